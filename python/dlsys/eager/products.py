"""Products of matrices and of tensors in general, by PyTorch's names."""

from __future__ import annotations

import math
from typing import Any

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import ShapeError
from ..ops import shape_of
from .functions import dims_of, node_of
from .reductions import norm
from .shapes import roll


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


def mv(a: Any, b: Any) -> Node:
    """The product of a matrix and a vector. Raises ShapeError for others."""
    first, second = node_of(a), node_of(b)
    if (len(shape_of(first)), len(shape_of(second))) != (2, 1):
        raise ShapeError(f"mv: takes a matrix and a vector, not {shape_of(first)} and {shape_of(second)}")
    return ad.matmul_op(first, second)


def inner(a: Any, b: Any) -> Node:
    """The sums of products over the last axes; of numbers the product."""
    first, second = node_of(a), node_of(b)
    if not shape_of(first) or not shape_of(second):
        return first * second
    return tensordot(first, second, ([-1], [-1]))


def vdot(a: Any, b: Any) -> Node:
    """The product of two vectors. Raises ShapeError for others."""
    return dot(a, b)


def dist(a: Any, b: Any, p: float = 2.0) -> Node:
    """The norm of a - b."""
    return norm(node_of(a) - b, p)


def tensordot(a: Any, b: Any, dims: Any = 2) -> Node:
    """The sums of products over axes of a and as many of b: the last of one and the first of the other for a number, or
    a list for each. Raises ShapeError for axes that do not fit."""
    first, second = node_of(a), node_of(b)
    left, right = shape_of(first), shape_of(second)
    pairs = (range(len(left) - dims, len(left)), range(dims)) if isinstance(dims, int) else dims
    over_a, over_b = dims_of(first, tuple(pairs[0])), dims_of(second, tuple(pairs[1]))
    if len(over_a) != len(over_b) or any(left[i] != right[j] for i, j in zip(over_a, over_b, strict=True)):
        raise ShapeError(f"tensordot: axes {over_a} of {left} do not fit axes {over_b} of {right}")
    own_a = [axis for axis in range(len(left)) if axis not in over_a]
    own_b = [axis for axis in range(len(right)) if axis not in over_b]
    summed = math.prod(left[axis] for axis in over_a)
    rows, columns = [left[axis] for axis in own_a], [right[axis] for axis in own_b]
    matrix_a = ad.reshape_op(ad.transpose_op(first, (*own_a, *over_a)), (math.prod(rows), summed))
    matrix_b = ad.reshape_op(ad.transpose_op(second, (*over_b, *own_b)), (summed, math.prod(columns)))
    return ad.reshape_op(ad.matmul_op(matrix_a, matrix_b), (*rows, *columns))


def kron(a: Any, b: Any) -> Node:
    """Kronecker's product: each element of a times all of b, laid out as a is."""
    first, second = node_of(a), node_of(b)
    rank = max(len(shape_of(first)), len(shape_of(second)))
    left, right = ((1,) * (rank - len(shape_of(node))) + shape_of(node) for node in (first, second))
    apart = [ad.reshape_op(first, tuple(n for extent in left for n in (extent, 1)))]
    apart.append(ad.reshape_op(second, tuple(n for extent in right for n in (1, extent))))
    return ad.reshape_op(apart[0] * apart[1], tuple(m * n for m, n in zip(left, right, strict=True)))


def _added(x: Any, product: Node, beta: Any, alpha: Any) -> Node:
    """beta x + alpha product; without x, whatever it holds, where beta is 0."""
    scaled = product if alpha == 1 else alpha * product
    if beta == 0:
        return scaled
    return (node_of(x) if beta == 1 else beta * node_of(x)) + scaled


def addmm(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Node:
    """beta x + alpha a b, of matrices. Raises ShapeError for others."""
    return _added(x, mm(a, b), beta, alpha)


def addmv(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Node:
    """beta x + alpha a b, of a matrix and a vector. Raises ShapeError for others."""
    return _added(x, mv(a, b), beta, alpha)


def baddbmm(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Node:
    """beta x + alpha a b, of batches of matrices. Raises ShapeError for others."""
    return _added(x, bmm(a, b), beta, alpha)


def addr(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Node:
    """beta x + alpha times the products of all elements of a with all of b."""
    return _added(x, outer(a, b), beta, alpha)


def cross(a: Any, b: Any, dim: int = -1) -> Node:
    """The vector product along an axis of extent 3, of which both are broadcast. Raises ShapeError for another."""
    first, second = node_of(a), node_of(b)
    for node in (first, second):
        (axis,) = dims_of(node, dim)
        if shape_of(node)[axis] != 3:
            raise ShapeError(f"cross: axis {dim} of {shape_of(node)} must have 3 elements [{node.name}]")

    def turned(node: Node, by: int) -> Node:
        return roll(node, -by, dim)

    return turned(first, 1) * turned(second, 2) - turned(first, 2) * turned(second, 1)


def cdist(a: Any, b: Any, p: float = 2.0) -> Node:
    """The distances (..., m, n) of the rows of (..., m, d) from those of (..., n, d): the norms of their differences.

    Raises ShapeError for what has no rows of one length.
    """
    first, second = node_of(a), node_of(b)
    left, right = shape_of(first), shape_of(second)
    if len(left) < 2 or len(right) < 2 or left[-1] != right[-1]:
        raise ShapeError(f"cdist: takes rows of one length, not {left} and {right}")
    return norm(ad.expand_dims_op(first, -2) - ad.expand_dims_op(second, -3), p, -1)
