"""Convolutions and pooling as functions, by the names and in the argument order of torch.nn.functional.

Without the batch N, an example is a batch of one where x's shape is known at the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import GraphError
from ..tensors import known_shape
from .checks import checked_extent, shape_of


def per_channel(values: Node, space: int = 2) -> Node:
    """(C,) as (C, 1, ...), which broadcasts against (N, C, *space)."""
    return values if space == 0 else ad.reshape_op(values, (-1, *(1,) * space))


def _batched(x: Node, function: Callable[[Node], Node]) -> Node:
    """function(x) of images x (N, C, H, W); of (C, H, W) as of a batch of one."""
    if len(known_shape(x) or ()) != 3:
        return function(x)
    return ad.squeeze_op(function(ad.expand_dims_op(x, 0)), 0)


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
    y = _batched(input, lambda x: ad.conv2d_op(x, weight, stride, padding, dilation, groups))
    return y if bias is None else y + per_channel(bias)


def max_pool2d(
    input: Node, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Node:
    """The maxima of windows of images (N, C, H, W); with `ceil_mode` the last window may reach beyond. Raises
    GraphError, also for a dilation other than 1."""
    if dilation not in (1, (1, 1), [1, 1]):
        raise GraphError(f"max_pool2d: dilation must be 1, not {dilation!r}")
    return _batched(input, lambda x: ad.max_pool2d_op(x, kernel_size, stride, padding, ceil_mode))


def avg_pool2d(
    input: Node,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Node:
    """The means of windows of images (N, C, H, W), see `autodiff.avg_pool2d_op`. Raises GraphError."""
    settings = (kernel_size, stride, padding, count_include_pad, ceil_mode)
    return _batched(input, lambda x: ad.avg_pool2d_op(x, *settings))


def adaptive_avg_pool2d(input: Node, output_size: Any) -> Node:
    """The means of windows that share images (N, C, H, W) out evenly: (N, C, *output_size). Raises GraphError."""
    return _batched(input, lambda x: ad.adaptive_avg_pool2d_op(x, output_size))


def pad(input: Node, pad: Sequence[int], mode: str = "constant", value: float | None = 0.0) -> Node:
    """The input, of known shape, with `value` around it: pad is (before, after) of the last axis, then of the one
    before, ... Raises GraphError, also for another mode than "constant"."""
    if mode != "constant":
        raise GraphError(f'pad: mode must be "constant", not {mode!r}')
    shape = shape_of("pad", input)
    if len(pad) % 2 or len(pad) > 2 * len(shape):
        raise GraphError(f"pad: {tuple(pad)} are not pairs for the last of {len(shape)} axes")
    widths = [checked_extent("pad", "a width", width, 0) for width in pad]
    pairs = [(0, 0)] * (len(shape) - len(widths) // 2) + list(zip(widths[-2::-2], widths[::-2], strict=True))
    return ad.pad_op(input, pairs, 0.0 if value is None else value) if any(map(any, pairs)) else input
