"""Products of matrices and vectors, norms and distances, and sums of products by Einstein's convention, see `table`."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from .. import ops
from ..errors import GraphError, ShapeError
from ..ops import promoted, shape_of
from .arguments import dims_of, node_of, require_rank
from .table import function
from .typing import ArrayLike

if TYPE_CHECKING:
    from .base import Tensor


@function
def mm(x: Tensor, other: ArrayLike) -> Tensor:
    """The product of two matrices. Raises ShapeError for others."""
    second = node_of(other)
    require_rank("mm", 2, x, second)
    return ops.matmul_op(x, second)


@function
def bmm(x: Tensor, other: ArrayLike) -> Tensor:
    """The products of two batches of matrices. Raises ShapeError for others."""
    second = node_of(other)
    require_rank("bmm", 3, x, second)
    return ops.matmul_op(x, second)


@function
def mv(x: Tensor, vec: ArrayLike) -> Tensor:
    """The product of a matrix and a vector. Raises ShapeError for others."""
    vector = node_of(vec)
    require_rank("mv", 2, x)
    require_rank("mv", 1, vector)
    return ops.matmul_op(x, vector)


@function
def dot(x: Tensor, tensor: ArrayLike) -> Tensor:
    """The sum of the products of two vectors' elements. Raises ShapeError for others."""
    second = node_of(tensor)
    require_rank("dot", 1, x, second)
    return ops.matmul_op(x, second)


@function
def outer(x: Tensor, vec2: ArrayLike) -> Tensor:
    """The products of each element of a vector with each of another. Raises ShapeError for others."""
    second = node_of(vec2)
    require_rank("outer", 1, x, second)
    return ops.expand_dims_op(x, 1) * second


@function
def addmm(x: Tensor, mat1: ArrayLike, mat2: ArrayLike, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * x + alpha * mat1 @ mat2. Raises ShapeError for what are no matrices."""
    product = mm(mat1, mat2)
    return (x if beta == 1 else x * beta) + (product if alpha == 1 else product * alpha)


@function(method=False)
def tensordot(x: Tensor, other: ArrayLike, dims: int | Sequence[Sequence[int]] = 2) -> Tensor:
    """The products summed over axes of both: the last `dims` of x and the first of `other`, or those in two lists."""
    second = node_of(other)
    ours, theirs = (range(-dims, 0), range(dims)) if isinstance(dims, int) else dims
    letters = iter(string.ascii_letters)
    of_x, of_other = ([next(letters) for _ in node.shape] for node in (x, second))
    for axis, other_axis in zip(dims_of(x, tuple(ours)), dims_of(second, tuple(theirs)), strict=True):
        of_other[other_axis] = of_x[axis]
    kept = "".join(letter for letter in of_x + of_other if (of_x + of_other).count(letter) == 1)
    return einsum(f"{''.join(of_x)},{''.join(of_other)}->{kept}", x, second)


def einsum(equation: str, *operands: ArrayLike) -> Tensor:
    """The sum of the operands' products over the axes whose letters are not in the result: "ij,jk->ik" is `mm`.

    `...` stands for axes that are broadcast; without `->` the result has the letters that occur once, in order. Two
    operands at a time are multiplied, from the left; their shapes must be known. Raises GraphError for an equation that
    does not fit, and for a letter that an operand has twice, as diagonals are not supported; ShapeError for extents
    that differ.
    """
    given = operands[0] if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
    if not isinstance(equation, str) or not given:
        told = f"{equation!r} and {len(given)} operands"
        raise GraphError(f"einsum: takes an equation, as 'ij,jk->ik', and its operands, not {told}")
    nodes = cast("list[Tensor]", promoted(*map(node_of, cast("Sequence[ArrayLike]", given))))
    terms, result = _parsed(equation, [len(shape_of(node)) for node in nodes])
    found, axes = nodes[0], terms[0]
    for i, (node, term) in enumerate(zip(nodes[1:], terms[1:], strict=True)):
        found, axes = _product(found, axes, node, term, "".join([result, *terms[i + 2 :]]))
    found, axes = _summed(found, axes, result)
    return found.permute([axes.index(letter) for letter in result])


def _parsed(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The letters of each operand's axes and of the result's. Axes of `...` have numbers, the last one 0."""
    given, arrow, wanted = equation.replace(" ", "").partition("->")
    terms, spread = given.split(","), 0
    for i, rank in enumerate(ranks[: len(terms)]):
        count = rank - len(terms[i].replace("...", "")) if "..." in terms[i] else 0
        terms[i] = terms[i].replace("...", _numbers(count), 1)
        spread = max(spread, count)
        if len(terms[i]) != rank or len(set(terms[i])) != rank:
            raise GraphError(f"einsum: operand {i} of {equation!r} has {rank} axes, which need a letter each")
    letters = sorted(letter for letter in set("".join(terms)) if "".join(terms).count(letter) == 1)
    wanted = wanted if arrow else "..." + "".join(filter(str.isalpha, letters))
    result = wanted.replace("...", _numbers(spread), 1)
    known = all(letter.isalpha() or letter in _numbers(spread) for letter in "".join(terms))
    is_result = len(set(result)) == len(result) and set(result) <= set("".join(terms))
    if len(terms) != len(ranks) or not known or not is_result:
        raise GraphError(f"einsum: {equation!r} is no equation of {len(ranks)} operands")
    return terms, result


def _numbers(count: int) -> str:
    return "9876543210"[10 - max(count, 0) :]


def _summed(x: Tensor, axes: str, kept: str) -> tuple[Tensor, str]:
    """x without the axes that are not kept, and the letters of those that are."""
    over = tuple(i for i, letter in enumerate(axes) if letter not in kept)
    left = "".join(letter for letter in axes if letter in kept)
    return (ops.reducesum_op(x, over) if over else x), left


def _product(a: Tensor, of_a: str, b: Tensor, of_b: str, kept: str) -> tuple[Tensor, str]:
    """The products of a's and b's elements, summed over the letters of both that are not kept."""
    a, of_a = _summed(a, of_a, kept + of_b)
    b, of_b = _summed(b, of_b, kept + of_a)
    both = "".join(letter for letter in of_a if letter in of_b and letter in kept)
    inner = "".join(letter for letter in of_a if letter in of_b and letter not in kept)
    rows = "".join(letter for letter in of_a if letter not in of_b)
    columns = "".join(letter for letter in of_b if letter not in of_a)
    sizes = {**dict(zip(of_a, shape_of(a), strict=True)), **dict(zip(of_b, shape_of(b), strict=True))}
    for letter, extent in zip(of_a, shape_of(a), strict=True):
        one = sizes[letter] == 1 or extent == 1
        if extent != sizes[letter] and not (one and letter in both):
            raise ShapeError(f"einsum: axis {letter!r} has extents {extent} and {sizes[letter]}")
    a, b = (x.permute([of.index(letter) for letter in order]) for x, of, order in (
        (a, of_a, both + rows + inner), (b, of_b, both + inner + columns)
    ))  # fmt: skip
    first, second = shape_of(a)[: len(both)], shape_of(b)[: len(both)]
    m, k, n = (math.prod(sizes[letter] for letter in group) for group in (rows, inner, columns))
    a, b = a.reshape((*first, m, k)), b.reshape((*second, k, n))
    found = a @ b if inner else a * b
    shape = (*np.broadcast_shapes(first, second), *(sizes[letter] for letter in rows + columns))
    return found.reshape(shape), both + rows + columns
