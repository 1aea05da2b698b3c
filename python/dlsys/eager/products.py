"""Products of matrices and of tensors in general, by PyTorch's names."""

from __future__ import annotations

import math
from typing import Any

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import GraphError, ShapeError
from ..ops import shape_of
from .functions import node_of


def matmul(a: Any, b: Any) -> Node:
    """The product of matrices, vectors and batches of them."""
    return ad.matmul_op(node_of(a), node_of(b))


def _product(op: str, rank: int, a: Any, b: Any) -> Node:
    first, second = node_of(a), node_of(b)
    for node in (first, second):
        if len(shape_of(node)) != rank:
            raise ShapeError(
                f"{op}: takes tensors of {rank} axes, not of shape {shape_of(node)} [{node.name}]"
            )
    return ad.matmul_op(first, second)


def mm(a: Any, b: Any) -> Node:
    """The product of two matrices. Raises ShapeError for others."""
    return _product("mm", 2, a, b)


def bmm(a: Any, b: Any) -> Node:
    """The products of two batches of matrices. Raises ShapeError for others."""
    return _product("bmm", 3, a, b)


def dot(a: Any, b: Any) -> Node:
    """The product of two vectors. Raises ShapeError for others."""
    return _product("dot", 1, a, b)


def outer(a: Any, b: Any) -> Node:
    """The products of all elements of one vector with all of another."""
    return ad.expand_dims_op(node_of(a), 1) * node_of(b)


def einsum(equation: str, *operands: Any) -> Node:
    """Einstein's sum, as "bik,bkj->bij": products over all letters, summed over those that the result lacks; without
    "->" the result has those that occur once, by the alphabet. Several operands are multiplied from the left.

    The shapes must be known. Raises GraphError for an equation that does not fit, with "..." or with a letter twice in
    one term; ShapeError for extents that differ.
    """
    tensors = [
        node_of(operand) for operand in (operands[0] if isinstance(operands[0], (tuple, list)) else operands)
    ]
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow:
        result = "".join(sorted(letter for letter in set(left) - {","} if left.count(letter) == 1))
    extents: dict[str, int] = {}
    fits = len(terms) == len(tensors) and all(len(set(term)) == len(term) for term in (*terms, result))
    if not fits or not set(result) <= set(left) or not left.replace(",", "").isalpha():
        raise GraphError(
            f"einsum: {equation!r} does not fit {len(tensors)} tensors, or has a letter twice in a term"
        )
    for term, node in zip(terms, tensors, strict=True):
        shape = shape_of(node)
        if len(shape) != len(term):
            raise ShapeError(f"einsum: {term!r} has {len(term)} letters for the shape {shape} [{node.name}]")
        for letter, extent in zip(term, shape, strict=True):
            if extents.setdefault(letter, extent) != extent:
                raise ShapeError(f"einsum: {letter!r} is {extents[letter]} and {extent} in {equation!r}")
    term, value = terms[0], tensors[0]
    for i, (other, node) in enumerate(zip(terms[1:], tensors[1:], strict=True), 2):
        kept = set(result).union(*terms[i:])
        term, value = _contracted(value, term, node, other, kept, extents)
    value = _summed(value, term, set(result))
    order = [letter for letter in term if letter in result]
    return ad.transpose_op(value, tuple(order.index(letter) for letter in result)) if order else value


def _summed(value: Node, term: str, kept: set[str]) -> Node:
    """The value summed over the letters that are not kept."""
    axes = tuple(axis for axis, letter in enumerate(term) if letter not in kept)
    return ad.reducesum_op(value, axes) if axes else value


def _contracted(
    a: Node, term_a: str, b: Node, term_b: str, kept: set[str], extents: dict[str, int]
) -> tuple[str, Node]:
    """The letters and value of the product of two: one batched product of matrices (batch, own, sum) x (.., other)."""
    a, b = _summed(a, term_a, kept | set(term_b)), _summed(b, term_b, kept | set(term_a))
    term_a = "".join(c for c in term_a if c in kept or c in term_b)
    term_b = "".join(c for c in term_b if c in kept or c in term_a)
    both = [c for c in term_a if c in term_b]
    batch, summed = [c for c in both if c in kept], [c for c in both if c not in kept]
    own_a, own_b = ([c for c in term if c not in both] for term in (term_a, term_b))

    def matrix(node: Node, term: str, *groups: list[str]) -> Node:
        order = tuple(term.index(letter) for group in groups for letter in group)
        shape = tuple(math.prod(extents[letter] for letter in group) for group in groups)
        return ad.reshape_op(ad.transpose_op(node, order) if order else node, shape)

    product = ad.matmul_op(matrix(a, term_a, batch, own_a, summed), matrix(b, term_b, batch, summed, own_b))
    letters = [*batch, *own_a, *own_b]
    return "".join(letters), ad.reshape_op(product, tuple(extents[letter] for letter in letters))
