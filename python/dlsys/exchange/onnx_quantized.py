"""ONNX's operators of integers of eight bits by ours; see `onnx_operators`.

Scales and zero points are numbers, or one for each place along an axis. A model with QuantizeLinear and
DequantizeLinear around its products (QDQ) is read as it is; the rules of `compiler.quantized` make its products some of
bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import DataError, GraphError
from ..graph import Shape
from ..ops.quantization import BYTES, product_of_bytes
from ..tensors import dtype_of, shape_of, tensor
from . import composed
from .network import Value
from .onnx_layers import windows_of
from .onnx_operators import axes_of, dtype_of_code, node, operator


def _spread(value: Value, shape: Shape, axis: int, block: int = 0) -> Value:
    """One number, numbers along an axis of a shape, or for each block of it, so that they are broadcast with it. Raises
    DataError for what does not fit."""
    own = value.shape if isinstance(value, np.ndarray) else shape_of(value)
    if math.prod(own) == 1 and len(own) < 2:
        wide: Sequence[int] = ()
    elif block:
        (at,) = axes_of(len(shape), [axis])
        places = np.arange(shape[at]) // block
        if len(own) != len(shape) or own[at] <= places.max(initial=-1):
            raise DataError(f"{own} are no blocks of {block} along axis {axis} of {shape}")
        return ad.take_op(node(value), tensor(places), at)
    else:
        (at,) = axes_of(len(shape), [axis])
        if own != (shape[at],):
            raise DataError(f"{own} are no numbers along axis {axis} of {shape}")
        wide = (-1,) + (1,) * (len(shape) - 1 - at)
    return value.reshape(wide) if isinstance(value, np.ndarray) else ad.reshape_op(value, tuple(wide))


def _zero(value: Value, shape: Shape, axis: int, block: int = 0) -> Any:
    """A zero point: a number where it is known and the same everywhere, else a node."""
    if value is None:
        return 0.0
    if isinstance(value, np.ndarray) and value.size and (value == value.flat[0]).all():
        return float(value.flat[0])
    return node(_spread(value, shape, axis, block))


def _as_float(zero: Any) -> Any:
    return ad.cast_op(zero, "float32") if isinstance(zero, Node) else zero


def _bytes(dtype: str, owner: str) -> str:
    if dtype not in BYTES:
        raise GraphError(f"{owner}: {dtype} is not one of {', '.join(BYTES)}")
    return dtype


def _dtype(value: Value) -> str:
    return str(value.dtype) if isinstance(value, np.ndarray) else dtype_of(value)


@operator("QuantizeLinear", 1, 2)
def quantize_linear(
    x: Node,
    scale: Value,
    zero: Value = None,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Node:
    """round(x / scale) + zero, in zero's dtype."""
    dtype = _dtype(zero) if zero is not None else dtype_of_code(output_dtype) if output_dtype else "uint8"
    _bytes(dtype, "QuantizeLinear")
    x, shape = x if dtype_of(x) != "int32" else ad.cast_op(x, "float32"), shape_of(x)
    step, shift = node(_spread(scale, shape, axis, block_size)), _as_float(_zero(zero, shape, axis, block_size))
    return ad.quantize_linear_op(x, step, shift, dtype)


@operator("DequantizeLinear", 1, 2, kept=True)
def dequantize_linear(
    q: Node, scale: Value, zero: Value = None, axis: int = 1, block_size: int = 0, output_dtype: int = 0
) -> Node:
    """(q - zero) scale."""
    shape = shape_of(q)
    step, shift = node(_spread(scale, shape, axis, block_size)), _as_float(_zero(zero, shape, axis, block_size))
    return ad.dequantize_linear_op(q, step, shift)


def _matmul(a: Node, b: Node, a_zero: Value, b_zero: Value) -> Node:
    """The int32 product of matrices of bytes."""
    dtypes = _bytes(dtype_of(a), "a"), _bytes(dtype_of(b), "b")
    zeros = _zero(a_zero, shape_of(a), -2), _zero(b_zero, shape_of(b), -1)
    return product_of_bytes(ad.matmul_op(a, b), dtypes, (len(shape_of(a)), len(shape_of(b))), *zeros)


def _conv(x: Node, w: Node, x_zero: Value, w_zero: Value, group: int = 1, **given: Any) -> Node:
    """The int32 cross-correlation of images, or signals, of bytes."""
    windows, alone = windows_of(x, shape_of(w)[2:], **given), len(shape_of(w)) == 3
    if alone:
        x, w, windows = composed.as_images(x), composed.as_images(w), windows.lifted()
    dtypes = _bytes(dtype_of(x), "x"), _bytes(dtype_of(w), "w")
    zeros = _zero(x_zero, shape_of(x), 1), _zero(w_zero, shape_of(w), 0)
    known = zeros[0] if isinstance(zeros[0], float) else 0.0
    x, padding = composed.symmetric(x, windows.pairs, (math.inf,) * 2, known)
    if padding == (0, 0) and any(map(any, windows.pairs)) and isinstance(zeros[0], Node):
        raise GraphError("a padding that is not the same on both sides needs a zero point that is known")
    product = ad.conv2d_op(x, w, tuple(windows.strides), padding, tuple(windows.dilations), group)
    found = product_of_bytes(product, dtypes, (4, 4), *zeros)
    return ad.squeeze_op(found, 2) if alone else found


def _requantized(total: Node, a: Value, b: Value, y: Value, y_zero: Value) -> Node:
    """An int32 sum in steps of y, where it is of products of steps a and b."""
    shape = shape_of(total)
    factor, dtype = node(a * b / y), _bytes(_dtype(y_zero), "y")
    return ad.quantize_linear_op(
        ad.dequantize_linear_op(total, factor), 1.0, _as_float(_zero(y_zero, shape, -2)), dtype
    )


@operator("MatMulInteger", 2, 3)
def matmul_integer(a: Node, b: Node, a_zero: Value = None, b_zero: Value = None) -> Node:
    """(a - a_zero) (b - b_zero), in int32."""
    return _matmul(a, b, a_zero, b_zero)


@operator("ConvInteger", 2, 3)
def conv_integer(x: Node, w: Node, x_zero: Value = None, w_zero: Value = None, **attributes: Any) -> Node:
    """The cross-correlation of x - x_zero with w - w_zero, in int32."""
    return _conv(x, w, x_zero, w_zero, **attributes)


@operator("QLinearMatMul", 1, 2, 4, 5, 6, 7)
def qlinear_matmul(
    a: Node,
    a_scale: Value,
    a_zero: Value,
    b: Node,
    b_scale: Value,
    b_zero: Value,
    y_scale: Value,
    y_zero: Value,
) -> Node:
    """The product of dequantized matrices, quantized."""
    total = _matmul(a, b, a_zero, b_zero)
    rows, columns = shape_of(a), shape_of(b)
    scales = _spread(a_scale, rows, -2), _spread(b_scale, columns, -1), _spread(y_scale, rows, -2)
    return _requantized(total, *scales, y_zero)


@operator("QLinearConv", 1, 2, 4, 5, 6, 7)
def qlinear_conv(
    x: Node,
    x_scale: Value,
    x_zero: Value,
    w: Node,
    w_scale: Value,
    w_zero: Value,
    y_scale: Value,
    y_zero: Value,
    bias: Node | None = None,
    **attributes: Any,
) -> Node:
    """The cross-correlation of dequantized images with dequantized filters plus bias, quantized."""
    total, space = _conv(x, w, x_zero, w_zero, **attributes), (1,) * (len(shape_of(w)) - 2)
    if bias is not None:
        total = total + ad.reshape_op(bias, (-1, *space))
    filters = _spread(w_scale, (shape_of(w)[0], *space), 0)
    return _requantized(total, _spread(x_scale, (), 0), filters, _spread(y_scale, (), 0), y_zero)
