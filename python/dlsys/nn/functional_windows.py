"""Convolutions and pooling as functions, by the names and in the argument order of torch.nn.functional.

What is of one axis is computed as images of one row.
"""

from __future__ import annotations

from typing import Any

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import GraphError
from .checks import extents

Pair = tuple[int, int]
adaptive_avg_pool2d = ad.adaptive_avg_pool2d_op
adaptive_max_pool2d = ad.adaptive_max_pool2d_op


def per_channel(values: Node, space: int = 2) -> Node:
    """(C,) as (C, 1, ...), which broadcasts against (N, C, *space)."""
    return values if space == 0 else ad.reshape_op(values, (-1, *(1,) * space))


def _row(op: str, what: str, value: Any, least: int, other: int) -> Pair:
    """An integer of an axis as a pair (rows, columns). Raises GraphError."""
    return other, extents(op, what, value, least, 1)[0]


def conv1d(
    x: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Node:
    """Cross-correlation of x (N, C, L) with weight (O, C / groups, l), plus bias (O,)."""
    geometry = (
        _row("conv1d", "stride", stride, 1, 1),
        _row("conv1d", "padding", padding, 0, 0),
        _row("conv1d", "dilation", dilation, 1, 1),
    )
    return ad.squeeze_op(conv2d(ad.expand_dims_op(x, 2), ad.expand_dims_op(weight, 2), bias, *geometry, groups), 2)


def conv2d(
    x: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Node:
    """Cross-correlation of x (N, C, H, W) with weight (O, C / groups, h, w), plus bias (O,): `autodiff.conv2d_op`."""
    y = ad.conv2d_op(x, weight, stride, padding, dilation, groups)
    return y if bias is None else y + per_channel(bias)


def conv_transpose2d(
    x: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Node:
    """Transposed convolution of x (N, C, H, W) with weight (C, O / groups, h, w), plus bias (O,)."""
    y = ad.conv_transpose2d_op(x, weight, stride, padding, output_padding, dilation, groups)
    return y if bias is None else y + per_channel(bias)


def _one_dilation(op: str, dilation: Any) -> None:
    """Raises GraphError for windows with holes."""
    if dilation not in (1, (1,), (1, 1), [1, 1]):
        raise GraphError(f"{op}: windows with a dilation are not supported: it must be 1, not {dilation!r}")


def max_pool2d(
    x: Node, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Node:
    """The maxima of windows of images (N, C, H, W); with `ceil_mode` the last window may reach beyond. Raises
    GraphError."""
    _one_dilation("max_pool2d", dilation)
    return ad.max_pool2d_op(x, kernel_size, stride, padding, ceil_mode)


def avg_pool2d(
    x: Node,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Node:
    """The means of windows of images (N, C, H, W), see `autodiff.avg_pool2d_op`. Raises GraphError."""
    return ad.avg_pool2d_op(x, kernel_size, stride, padding, count_include_pad, ceil_mode)


def _windows(op: str, kernel_size: Any, stride: Any, padding: Any) -> tuple[Pair, Pair, Pair]:
    kernel = _row(op, "kernel_size", kernel_size, 1, 1)
    return kernel, kernel if stride is None else _row(op, "stride", stride, 1, 1), _row(op, "padding", padding, 0, 0)


def max_pool1d(
    x: Node, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Node:
    """The maxima of windows of sequences (N, C, L), as `max_pool2d`. Raises GraphError."""
    kernel, step, before = _windows("max_pool1d", kernel_size, stride, padding)
    return ad.squeeze_op(max_pool2d(ad.expand_dims_op(x, 2), kernel, step, before, dilation, ceil_mode), 2)


def avg_pool1d(
    x: Node,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Node:
    """The means of windows of sequences (N, C, L), as `avg_pool2d`. Raises GraphError."""
    kernel, step, before = _windows("avg_pool1d", kernel_size, stride, padding)
    return ad.squeeze_op(avg_pool2d(ad.expand_dims_op(x, 2), kernel, step, before, ceil_mode, count_include_pad), 2)


def adaptive_avg_pool1d(x: Node, output_size: Any) -> Node:
    """The means of windows that share sequences (N, C, L) out evenly: (N, C, output_size). Raises GraphError."""
    size = _row("adaptive_avg_pool1d", "output_size", output_size, 1, 1)
    return ad.squeeze_op(adaptive_avg_pool2d(ad.expand_dims_op(x, 2), size), 2)


def adaptive_max_pool1d(x: Node, output_size: Any) -> Node:
    """The maxima of windows that share sequences (N, C, L) out evenly: (N, C, output_size). Raises GraphError."""
    size = _row("adaptive_max_pool1d", "output_size", output_size, 1, 1)
    return ad.squeeze_op(adaptive_max_pool2d(ad.expand_dims_op(x, 2), size), 2)
