"""Products with weights, linear maps and convolutions, and maxima and means of windows of images."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ... import autodiff as ad
from ...checks import flag, integer, integers, pair
from ...errors import GraphError, ShapeError
from ...graph import Node
from ...ops.replay import composition, function
from ...tensors import Tensor, tensor
from ...tensors.arguments import node_of
from ..checks import require_nodes


@composition
def linear(input: Node, weight: Node, bias: Node | None = None) -> Tensor:
    """x W^T + b: (..., in), (out, in), (out,) -> (..., out)."""
    require_nodes("linear", input, weight, bias)
    product = ad.matmul_op(input, weight, trans_B=True)
    return product if bias is None else product + bias


@composition
def conv1d(
    input: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation of signals (N, C, L) with weight (O, C / groups, l), plus bias (O,): as of images of one row.
    Raises GraphError."""
    require_nodes("conv1d", input, weight, bias)
    (s,), (p,), (d,) = (
        integers("conv1d", name, value, least, 1)
        for name, value, least in (("stride", stride, 1), ("padding", padding, 0), ("dilation", dilation, 1))
    )
    images, filters = ad.expand_dims_op(input, -2), ad.expand_dims_op(weight, -2)
    return ad.squeeze_op(conv2d(images, filters, bias, (1, s), (0, p), (1, d), groups), -2)


@composition
def conv2d(
    input: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation of images (N, C, H, W) with weight (O, C / groups, h, w), plus bias (O,): `autodiff.conv2d_op`.
    Raises GraphError."""
    require_nodes("conv2d", input, weight, bias)
    y = ad.conv2d_op(input, weight, stride, padding, dilation, groups)
    return y if bias is None else y + per_channel(bias)


@function(on_tensors=True)
def conv_transpose2d(
    input: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """The gradient of conv2d with respect to its images, of images (N, C, H, W), with weight
    (C, O / groups, h, w), plus bias (O,): (N, O, H', W'), H' = (H - 1) stride - 2 padding + dilation (h - 1) +
    output_padding + 1. Raises GraphError, ShapeError."""
    op = "conv_transpose2d"
    shape, filters = input.shape, weight.shape
    strides, more = pair(op, "stride", stride, 1), pair(op, "output_padding", output_padding, 0)
    if any(extra >= step for extra, step in zip(more, strides, strict=True)):
        raise GraphError(f"{op}: output_padding {more} must be less than the stride {strides}")
    if len(shape) != 4 or len(filters) != 4:
        raise ShapeError(f"{op}: images and filters have four dimensions, not {shape} and {filters}")
    settings = strides, pair(op, "padding", padding, 0), pair(op, "dilation", dilation, 1)
    space = [
        (n - 1) * s - 2 * p + d * (k - 1) + extra + 1
        for n, k, extra, s, p, d in zip(shape[2:], filters[2:], more, *settings, strict=True)
    ]
    if min(space) < 1:
        raise ShapeError(f"{op}: padding {settings[1]} leaves nothing of {input.name} of shape {shape}")
    images = (shape[0], filters[1] * integer(op, "groups", groups, 1), *space)
    y = ad.conv2d_input_gradient_op(weight, input, images, *settings, groups)
    return y if bias is None else y + per_channel(bias)


def max_pool2d(input: Node, kernel_size: Any, stride: Any = None, padding: Any = 0) -> Tensor:
    """The maxima of windows of images (N, C, H, W). Raises GraphError."""
    return ad.max_pool2d_op(input, kernel_size, stride, padding)


def avg_pool2d(
    input: Node,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The means of windows of images (N, C, H, W), see `autodiff.avg_pool2d_op`. Raises GraphError."""
    if flag("avg_pool2d", "ceil_mode", ceil_mode):
        raise GraphError("avg_pool2d: ceil_mode is not supported: pad the images")
    return ad.avg_pool2d_op(input, kernel_size, stride, padding, count_include_pad)


def adaptive_avg_pool2d(input: Node, output_size: Any) -> Tensor:
    """The means of equal windows of images (N, C, H, W): (N, C, *output_size). Raises GraphError, and ShapeError where
    H and W are no multiples of it."""
    return ad.adaptive_avg_pool2d_op(input, output_size)


@function(on_tensors=True)
def unfold(input: Node, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Tensor:
    """The windows of images (N, C, H, W): (N, C h w, L), each a column of L, row after row. Computed as a convolution
    of each channel with filters of a single 1. Raises GraphError, ShapeError."""
    if len(input.shape) != 4:
        raise ShapeError(f"unfold: takes images (N, C, H, W), not of shape {input.shape}")
    window, channels = pair("unfold", "kernel_size", kernel_size, 1), input.shape[1]
    ones = np.tile(np.eye(math.prod(window), dtype=input.dtype), (channels, 1))
    windows = ad.conv2d_op(input, tensor(ones.reshape(-1, 1, *window)), stride, padding, dilation, channels)
    return ad.reshape_op(windows, (*windows.shape[:2], math.prod(windows.shape[2:])))


def per_channel(values: Node, space: int = 2) -> Tensor:
    """(C,) as (C, 1, ...), which broadcasts against (N, C, *space)."""
    return node_of(values) if space == 0 else ad.reshape_op(values, (-1, *(1,) * space))
