"""Einstein's sums."""

from __future__ import annotations

import math
import string
from typing import Any

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import GraphError, ShapeError
from ..ops import shape_of
from .diagonals import diagonal
from .functions import node_of

_ELLIPSIS = "..."


def einsum(equation: str, *operands: Any) -> Node:
    """Einstein's sum, as "bik,bkj->bij": products over all letters, summed over those that the result lacks. A letter
    twice in a term is its diagonal; "..." stands for the axes that have no letter, which are broadcast. Without "->"
    the result has those axes, and the letters that occur once, by the alphabet. Several operands are multiplied from
    the left.

    The shapes must be known. Raises GraphError for an equation that does not fit, ShapeError for extents that differ.
    """
    tensors = [
        node_of(operand) for operand in (operands[0] if isinstance(operands[0], (tuple, list)) else operands)
    ]
    terms, result = _spelled(equation, tensors)
    tensors, terms = map(list, zip(*map(_without_repeats, tensors, terms), strict=True))
    extents: dict[str, int] = {}
    for term, node in zip(terms, tensors, strict=True):
        for letter, extent in zip(term, shape_of(node), strict=True):
            known = extents.get(letter, 1)
            if known != extent and 1 not in (known, extent):
                raise ShapeError(f"einsum: {letter!r} is {known} and {extent} in {equation!r}")
            extents[letter] = extent if known == 1 else known
    pairs = [_without_ones(node, term, extents, result) for node, term in zip(tensors, terms, strict=True)]
    value, term = pairs[0]
    for i, (node, other) in enumerate(pairs[1:], 2):
        kept = set(result).union(*(term for _, term in pairs[i:]))
        term, value = _contracted(value, term, node, other, kept, extents)
    value = _summed(value, term, set(result))
    order = [letter for letter in term if letter in result]
    value = ad.transpose_op(value, tuple(order.index(c) for c in result if c in order)) if order else value
    wide = tuple(extents[letter] for letter in result)
    if len(order) < len(result):  # of extent 1 everywhere
        value = ad.reshape_op(value, wide)
    return value


def _spelled(equation: str, tensors: list[Node]) -> tuple[list[str], str]:
    """The terms and the result with letters for the axes of "...". Raises GraphError, ShapeError."""
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    plain = [term.replace(_ELLIPSIS, "", 1) for term in (*terms, result)]
    letters = set("".join(plain))
    fits = len(terms) == len(tensors) and all(letter in string.ascii_letters for letter in letters)
    fits = fits and set(plain[-1]) <= set("".join(plain[:-1])) and len(set(plain[-1])) == len(plain[-1])
    if not fits or (_ELLIPSIS in result and _ELLIPSIS not in left):
        raise GraphError(
            f"einsum: {equation!r} does not fit {len(tensors)} tensors, or its result is none of it"
        )
    free = [letter for letter in string.ascii_letters if letter not in letters]
    most = 0
    found = []
    for term, short, node in zip(terms, plain, tensors, strict=False):
        shape = shape_of(node)
        rest = len(shape) - len(short)
        if rest < 0 or (rest and _ELLIPSIS not in term):
            raise ShapeError(f"einsum: {term!r} has {len(short)} letters for the shape {shape} [{node.name}]")
        most = max(most, rest)
        found.append((term, rest))
    if most > len(free):
        raise GraphError(f"einsum: there are not letters enough for {most} axes more")
    axes = "".join(free[:most])
    spelled = [term.replace(_ELLIPSIS, axes[most - rest :]) for term, rest in found]
    if not arrow:
        joined = "".join(plain[:-1])
        return spelled, axes + "".join(sorted(letter for letter in letters if joined.count(letter) == 1))
    return spelled, result.replace(_ELLIPSIS, axes)


def _without_repeats(node: Node, term: str) -> tuple[Node, str]:
    """The diagonals where a letter stands twice. Raises ShapeError for extents that differ."""
    for letter in dict.fromkeys(term):
        while term.count(letter) > 1:
            first = term.index(letter)
            second = term.index(letter, first + 1)
            shape = shape_of(node)
            if shape[first] != shape[second]:
                raise ShapeError(
                    f"einsum: {letter!r} is {shape[first]} and {shape[second]} in {term!r} [{node.name}]"
                )
            node = diagonal(node, 0, first, second)
            term = term[:first] + term[first + 1 : second] + term[second + 1 :] + letter
    return node, term


def _without_ones(node: Node, term: str, extents: dict[str, int], result: str) -> tuple[Node, str]:
    """The node without the axes of extent 1, which broadcasting repeats."""
    kept = [axis for axis, extent in enumerate(shape_of(node)) if extent == extents[term[axis]] != 1]
    if len(kept) == len(term):
        return node, term
    shape = shape_of(node)
    return ad.reshape_op(node, tuple(shape[axis] for axis in kept)), "".join(term[axis] for axis in kept)


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
