"""Numbers as integers of eight bits and a step, ONNX's QuantizeLinear and DequantizeLinear; products of such."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from .. import compute
from ..graph import FLOATS, Formula, Node, register
from .arithmetic import mul_op, neg_op, sub_op
from .elementary import bitwise_xor_op
from .family import ZERO, Pointwise, Zero
from .inputs import constant_op, full_op, is_number
from .linalg import MatMul
from .reduction import reducesum_op
from .rules import dtype_attribute
from .shape import reshape_op, swapaxes_op
from .slicing import pad_op
from .types import cast_like_op, cast_op

BYTES = ("uint8", "int8")


def _quantized(x: np.ndarray, scale: np.ndarray, zero: np.ndarray, dtype: str) -> np.ndarray:
    limits = np.iinfo(dtype)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        q = np.rint(x / scale) + zero
    return np.where(q > limits.min, np.where(q < limits.max, q, limits.max), limits.min).astype(dtype)


@register
class QuantizeLinear(Pointwise):
    """round(x / scale) + zero within the limits of `attrs["dtype"]`, uint8 or int8, broadcast; of two nearest integers
    the even one, of NaN the lower limit. The derivative is 0."""

    name, onnx = "quantize_linear", "QuantizeLinear"
    broadcasts, derivative = True, ZERO
    result = "dtype"
    formula, reference, takes = compute.quantize_linear, _quantized, ("dtype",)


@register
class DequantizeLinear(Pointwise):
    """(q - zero) scale of integers q, broadcast, in scale's dtype; d/dscale = q - zero, d/dzero = -scale."""

    name, onnx = "dequantize_linear", "DequantizeLinear"
    broadcasts = True
    apart: ClassVar = {0: (*BYTES, "int32")}
    formula: ClassVar[Formula] = compute.dequantize_linear
    reference: ClassVar[Formula] = lambda q, scale, zero: (q.astype(scale.dtype) - zero) * scale

    @staticmethod
    def derivative(g: Node, node: Node, q: Node, scale: Node, zero: Node) -> tuple[Zero, Node, Node | Zero]:
        return ZERO, mul_op(g, sub_op(cast_like_op(q, scale), zero)), neg_op(mul_op(g, scale))


def quantize_linear_op(x: Node, scale: Any, zero: Any = 0.0, dtype: Any = "uint8") -> Node:
    """round(x / scale) + zero within the limits of dtype, uint8 or int8, broadcast. scale and zero are numbers or nodes
    of x's dtype.

    Raises GraphError for another dtype.
    """
    inputs = [constant_op(one) if is_number(one) else one for one in (scale, zero)]
    return QuantizeLinear.make([x, *inputs], {"dtype": dtype_attribute("quantize_linear", dtype, BYTES)})


def dequantize_linear_op(q: Node, scale: Any, zero: Any = 0.0) -> Node:
    """(q - zero) scale of integers q, uint8, int8 or int32, broadcast. scale and zero are numbers of float32, or nodes
    of one dtype, which is the result's."""
    step = full_op((), scale, FLOATS[0]) if is_number(scale) else scale
    return DequantizeLinear.make([q, step, constant_op(zero) if is_number(zero) else zero])


# Products --------------------------------------------------------------------------------------------------
#
# sum (x - a) (w - b) with b = 0 is sum x w - a sum w: a product of bytes, which the CPU has instructions for, and a
# number for each column. Bytes of the other sign are shifted by 128, and their zero point with them.


def product_of_bytes(product: Node, dtypes: tuple[str, str], ranks: tuple[int, int], x_zero: Any, w_zero: Any) -> Node:
    """The int32 sum of (x - x_zero) (w - w_zero) in place of a product, `matmul` or `conv2d`, of x and w.

    `dtypes`, `ranks`: of x and w, each uint8 or int8. Zero points are numbers, or nodes that are broadcast with x and
    w. It is of bytes where w_zero is 0 (128 of uint8), else computed in float64; exact as long as int32 holds it.
    """
    op, (x, w), attrs = product.op, product.inputs, dict(product.attrs)
    is_matmul = isinstance(op, MatMul)
    (x, x_zero), (w, w_zero) = _as(x, dtypes[0], x_zero, "uint8"), _as(w, dtypes[1], w_zero, "int8")
    padded = not is_matmul and any(attrs["padding"])
    if not (is_number(w_zero) and w_zero == 0) or min(ranks) < 2 or (padded and isinstance(x_zero, Node)):
        zeros = (cast_op(z, "float64") if isinstance(z, Node) else constant_op(z) for z in (x_zero, w_zero))
        wide = [sub_op(cast_op(one, "float64"), zero) for one, zero in zip((x, w), zeros, strict=True)]
        return cast_op(op.make(wide, attrs), "int32")
    if is_number(x_zero) and x_zero == 0:
        return op.make([x, w], attrs)
    if padded:  # zeros around images are bytes of their own
        around = [(0, 0), (0, 0), *((p, p) for p in attrs["padding"])]
        x, attrs["padding"] = pad_op(x, around, x_zero), (0, 0)
    words = cast_op(w, "int32")
    if is_matmul:
        sums = reducesum_op(words, -1 if attrs["trans_B"] else -2, keepdims=True)
        sums = swapaxes_op(sums, -1, -2) if attrs["trans_B"] else sums
    else:
        sums = reshape_op(reducesum_op(words, (1, 2, 3)), (-1, 1, 1))
    a = cast_op(x_zero, "int32") if isinstance(x_zero, Node) else constant_op(x_zero)
    return sub_op(op.make([x, w], attrs), mul_op(sums, a))


def _as(x: Node, dtype: str, zero: Any, wanted: str) -> tuple[Node, Any]:
    """Bytes in the dtype of the other sign, and their zero point."""
    if dtype == wanted:
        return x, zero
    if isinstance(zero, Node):
        zero = cast_op(zero, "int32")
    by = 128 if wanted == "uint8" else -128
    flipped = bitwise_xor_op(cast_op(x, wanted), constant_op(by))
    return flipped, zero + by


def most_of_bytes(terms: int) -> bool:
    """Whether int32 holds the sum of so many products of bytes."""
    return terms * 255 * 128 < 2**31
