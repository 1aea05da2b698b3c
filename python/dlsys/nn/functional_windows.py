"""Convolutions and pooling as functions, by the names and in the argument order of torch.nn.functional.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import autodiff as ad
from ..autodiff import Node
from ..checks import integer
from ..errors import GraphError
from .checks import shape_of


def per_channel(values: Node, space: int = 2) -> Node:
    """(C,) as (C, 1, ...), which broadcasts against (N, C, *space)."""
    return values if space == 0 else ad.reshape_op(values, (-1, *(1,) * space))


def conv2d(
    input: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Node:
    """Cross-correlation of images (N, C, H, W) with weight (O, C / groups, h, w), plus bias (O,): `autodiff.conv2d_op`.
    Raises GraphError."""
    y = ad.conv2d_op(input, weight, stride, padding, dilation, groups)
    return y if bias is None else y + per_channel(bias)


def max_pool2d(input: Node, kernel_size: Any, stride: Any = None, padding: Any = 0) -> Node:
    """The maxima of windows of images (N, C, H, W). Raises GraphError."""
    return ad.max_pool2d_op(input, kernel_size, stride, padding)


def avg_pool2d(
    input: Node,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Node:
    """The means of windows of images (N, C, H, W), see `autodiff.avg_pool2d_op`. Raises GraphError."""
    if ceil_mode:
        raise GraphError("avg_pool2d: ceil_mode is not built: pad the images")
    return ad.avg_pool2d_op(input, kernel_size, stride, padding, count_include_pad)


def adaptive_avg_pool2d(input: Node, output_size: Any) -> Node:
    """The means of equal windows of images (N, C, H, W): (N, C, *output_size). Raises GraphError, and ShapeError where
    H and W are no multiples of it."""
    return ad.adaptive_avg_pool2d_op(input, output_size)


def pad(input: Node, pad: Sequence[int], mode: str = "constant", value: float | None = 0.0) -> Node:
    """The input, of known shape, with `value` around it: pad is (before, after) of the last axis, then of the one
    before, ... Raises GraphError, also for another mode than "constant"."""
    if mode != "constant":
        raise GraphError(f'pad: mode must be "constant", not {mode!r}')
    shape = shape_of("pad", input)
    if len(pad) % 2 or len(pad) > 2 * len(shape):
        raise GraphError(f"pad: {tuple(pad)} are not pairs for the last of {len(shape)} axes")
    widths = [integer("pad", "a width", width, 0) for width in pad]
    pairs = [(0, 0)] * (len(shape) - len(widths) // 2) + list(zip(widths[-2::-2], widths[::-2], strict=True))
    return ad.pad_op(input, pairs, 0.0 if value is None else value) if any(map(any, pairs)) else input
