"""Matrix multiplication, of matrices, vectors and batches of matrices."""

from __future__ import annotations

import math

import numpy as np

from .. import compute
from ..checks import flag
from ..errors import ShapeError
from ..graph import NUMBERS, Made, Node, Shape
from .moves import as_shape, sum_to
from .primitive import primitive
from .rules import broadcast_rule, in_product_dtype, product_dtype


def _swapped(x: np.ndarray, swap: bool) -> np.ndarray:
    return x.swapaxes(-1, -2) if swap else x


def _matmul(a: np.ndarray, b: np.ndarray, trans_A: bool, trans_B: bool) -> np.ndarray:
    a, b = in_product_dtype(a, b)
    return _swapped(a, trans_A) @ _swapped(b, trans_B)


def _product_shape(a: Shape, b: Shape, trans_A: bool, trans_B: bool) -> Shape:
    """The shape of matmul(a, b). Raises ShapeError."""
    flags = [name for name, flag in (("trans_A", trans_A), ("trans_B", trans_B)) if flag]
    both = f"{a} x {b}" + (f" with {' and '.join(flags)}" if flags else "")
    if not a or not b:
        raise ShapeError(f"operands must be vectors or matrices, not scalars: {both}")
    if (len(a) == 1 and trans_A) or (len(b) == 1 and trans_B):
        raise ShapeError(f"a vector has no two axes to transpose: {both}")
    *m, k = a[-2:][::-1] if trans_A else a[-2:]
    k_b, *n = b[-2:][::-1] if trans_B else b[-2:]
    if k != k_b:
        raise ShapeError(f"inner dimensions differ: {both}")
    try:
        return (*broadcast_rule(a[:-2], b[:-2]), *m, *n)
    except ShapeError:
        raise ShapeError(f"leading dimensions do not broadcast: {both}") from None


def _gradients(g: Node, y: Node, a: Node, b: Node, trans_A: bool, trans_B: bool) -> tuple[Node, Node]:
    """dA' = G B'^T and dB' = A'^T G of A' = op(A), B' = op(B); transposed where A, B are.

    Vectors are matrices of one row or column. What broadcasting repeated is summed; where one right matrix meets many
    left ones, the sum is part of one product of all their rows.
    """
    left = a if len(a.shape) > 1 else as_shape(a, (1, *a.shape))
    right = b if len(b.shape) > 1 else as_shape(b, (*b.shape, 1))
    shape = _product_shape(left.shape, right.shape, trans_A, trans_B)
    g = as_shape(g, shape)
    of_left = matmul_op(right, g, trans_B, True) if trans_A else matmul_op(g, right, False, not trans_B)
    left_grad = as_shape(sum_to(of_left, left.shape), a.shape)
    if len(left.shape) > 2 and len(right.shape) == 2 and not trans_A:
        rows = math.prod(shape[:-1])
        left, g = as_shape(left, (rows, left.shape[-1])), as_shape(g, (rows, shape[-1]))
    of_right = matmul_op(g, left, True, trans_A) if trans_B else matmul_op(left, g, not trans_A)
    return left_grad, as_shape(sum_to(of_right, right.shape), b.shape)


matmul = primitive(
    "matmul", te=compute.matmul, numpy=_matmul, grad=_gradients, shape=_product_shape, dtype=product_dtype,
    dtypes=NUMBERS, kind="contraction",
    flop=lambda node, shapes, shape: 2 * math.prod(shape) * shapes[0][-2 if node.attrs["trans_A"] else -1],
    doc="The product of matrices, each transposed first if its flag says so, see `matmul_op`.",
)  # fmt: skip


def matmul_op(a: Node, b: Node, trans_A: bool = False, trans_B: bool = False) -> Made:
    """The product of matrices, (..., m, k) x (..., k, n) -> (..., m, n), each transposed first if its flag says so.

    As np.matmul: leading axes broadcast, and a vector is a row on the left, a column on the right, whose other axis
    is not there in the result. Of uint8 and int8 the result is int32, exactly, by the CPU's dot products of bytes.
    """
    return matmul(a, b, trans_A=flag("matmul", "trans_A", trans_A), trans_B=flag("matmul", "trans_B", trans_B))
