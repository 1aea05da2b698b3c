"""Convolutions and pooling as functions, by the names and in the argument order of torch.nn.functional.

Without the batch N, an example is a batch of one where x's shape is known at the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import GraphError, ShapeError
from ..tensors import known_shape
from .checks import checked_extent, extents, shape_of

Pair = tuple[int, int]


def per_channel(values: Node, space: int = 2) -> Node:
    """(C,) as (C, 1, ...), which broadcasts against (N, C, *space)."""
    return values if space == 0 else ad.reshape_op(values, (-1, *(1,) * space))


def batched(x: Node, axes: int, function: Callable[[Node], Node]) -> Node:
    """function(x) of x (N, C, *space), space having `axes` axes; of (C, *space) as of a batch of one."""
    if len(known_shape(x) or ()) != 1 + axes:
        return function(x)
    return ad.squeeze_op(function(ad.expand_dims_op(x, 0)), 0)


def same_padding(kernel: Sequence[int], dilation: Sequence[int]) -> list[Pair]:
    """Along each axis what to put before and behind, so that a window moved by 1 keeps the extent."""
    totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    return [(total // 2, total - total // 2) for total in totals]


def word_padding(op: str, weight: Node, padding: str, stride: Any, dilation: Any, axes: int = 2) -> list[Pair]:
    """The padding before and behind each axis that a word means: "valid" is nothing. Raises GraphError."""
    if padding not in ("same", "valid"):
        raise GraphError(f'{op}: padding must be "same", "valid" or integers, not {padding!r}')
    if padding == "valid":
        return [(0, 0)] * axes
    shape = known_shape(weight)
    if shape is None:
        raise GraphError(f"{op}: the shape of {weight.name} must be known here: declare that of its variables")
    if max(extents(op, "stride", stride, 1, axes)) > 1:
        raise GraphError(f'{op}: padding="same" needs a stride of 1, not {stride!r}')
    return same_padding(shape[-axes:], extents(op, "dilation", dilation, 1, axes))


def padded(x: Node, around: Sequence[Pair]) -> Node:
    """x (N, C, *space) with zeros around its space."""
    return ad.pad_op(x, [(0, 0), (0, 0), *around]) if any(map(any, around)) else x


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
    padding "valid" is 0, "same" as much as keeps H and W, for a weight of known shape. Raises GraphError."""

    def of_batch(x: Node) -> Node:
        around = padding
        if isinstance(padding, str):
            x, around = padded(x, word_padding("conv2d", weight, padding, stride, dilation)), 0
        y = ad.conv2d_op(x, weight, stride, around, dilation, groups)
        return y if bias is None else y + per_channel(bias)

    return batched(input, 2, of_batch)


def max_pool2d(
    input: Node, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Node:
    """The maxima of windows of images (N, C, H, W); with `ceil_mode` the last window may reach beyond. Raises
    GraphError, also for a dilation other than 1."""
    if dilation not in (1, (1, 1), [1, 1]):
        raise GraphError(f"max_pool2d: dilation must be 1, not {dilation!r}")
    return batched(input, 2, lambda x: ad.max_pool2d_op(x, kernel_size, stride, padding, ceil_mode))


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
    return batched(input, 2, lambda x: ad.avg_pool2d_op(x, *settings))


def _adaptive(op: str, input: Node, output_size: Any, function: Callable[[Node, Pair], Node]) -> Node:
    """Images, of known shape where an extent of the output is None, which keeps the input's. Raises GraphError."""
    if isinstance(output_size, (tuple, list)) and None in output_size:
        shape = known_shape(input)
        if shape is None or len(output_size) != 2:
            raise GraphError(f"{op}: output_size {tuple(output_size)} needs an input of known shape and two extents")
        output_size = [own if n is None else n for n, own in zip(output_size, shape[-2:], strict=True)]
    return batched(input, 2, lambda x: function(x, output_size))


def adaptive_avg_pool2d(input: Node, output_size: Any) -> Node:
    """The means of windows that share images (N, C, H, W) out evenly: (N, C, *output_size), of which None keeps the
    extent. Raises GraphError."""
    return _adaptive("adaptive_avg_pool2d", input, output_size, ad.adaptive_avg_pool2d_op)


def pad(input: Node, pad: Sequence[int], mode: str = "constant", value: float | None = 0.0) -> Node:
    """The input, of known shape, with `value` around it: pad is (before, after) of the last axis, then of the one
    before, ...; less than 0 takes values away. Raises GraphError, also for another mode than "constant"; ShapeError for
    more than there is to lose."""
    if mode != "constant":
        raise GraphError(f'pad: mode must be "constant", not {mode!r}')
    shape = shape_of("pad", input)
    if len(pad) % 2 or len(pad) > 2 * len(shape):
        raise GraphError(f"pad: {tuple(pad)} are not pairs for the last of {len(shape)} axes")
    widths = [checked_extent("pad", "a width", width, -(2**31)) for width in pad]
    pairs = [(0, 0)] * (len(shape) - len(widths) // 2) + list(zip(widths[-2::-2], widths[::-2], strict=True))
    for axis, (before, after) in enumerate(pairs):
        if min(before, after) < 0:
            kept = slice(max(-before, 0), shape[axis] - max(-after, 0))
            if kept.start > kept.stop:
                raise ShapeError(f"pad: {shape} has no {max(-before, 0)} and {max(-after, 0)} to lose at axis {axis}")
            input = ad.slice_op(input, (*[slice(None)] * axis, kept))
    pairs = [(max(before, 0), max(after, 0)) for before, after in pairs]
    return ad.pad_op(input, pairs, 0.0 if value is None else value) if any(map(any, pairs)) else input
