"""Convolutions and pooling as functions, by the names and in the argument order of torch.nn.functional.

What is of one axis is computed as images of one row. Without the batch N, an example is a batch of one where x's shape
is known at the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import autodiff as ad
from ..autodiff import Node
from ..eager import known_shape
from ..errors import GraphError
from .checks import extents
from .functional_unpool import max_pool_with_indices, max_unpool

Pair = tuple[int, int]


def per_channel(values: Node, space: int = 2) -> Node:
    """(C,) as (C, 1, ...), which broadcasts against (N, C, *space)."""
    return values if space == 0 else ad.reshape_op(values, (-1, *(1,) * space))


def _row(op: str, what: str, value: Any, least: int, other: int) -> Pair:
    """An integer of an axis as a pair (rows, columns). Raises GraphError."""
    return other, extents(op, what, value, least, 1)[0]


def batched(x: Node, axes: int, function: Callable[[Node], Node]) -> Node:
    """function(x) of x (N, C, *space), space having `axes` axes; of (C, *space) as of a batch of one."""
    if len(known_shape(x) or ()) != 1 + axes:
        return function(x)
    return ad.squeeze_op(function(ad.expand_dims_op(x, 0)), 0)


def as_row(x: Node, function: Callable[[Node], Node]) -> Node:
    """function(images) of sequences (N, C, L) or (C, L) as images of one row."""
    return batched(x, 1, lambda x: ad.squeeze_op(function(ad.expand_dims_op(x, 2)), 2))


def same_padding(kernel: Sequence[int], dilation: Sequence[int]) -> list[Pair]:
    """Along each axis what to put before and behind, so that a window moved by 1 keeps the extent."""
    totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    return [(total // 2, total - total // 2) for total in totals]


def word_padding(op: str, weight: Node, padding: str, stride: Any, dilation: Any, axes: int = 2) -> list[Pair]:
    """What a word says to put before and behind along each axis: "valid" is nothing. Raises GraphError."""
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


def conv1d(
    input: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Node:
    """Cross-correlation of sequences (N, C, L) with weight (O, C / groups, l), plus bias (O,); padding as in conv2d."""
    stride, dilation = _row("conv1d", "stride", stride, 1, 1), _row("conv1d", "dilation", dilation, 1, 1)
    padding = padding if isinstance(padding, str) else _row("conv1d", "padding", padding, 0, 0)
    wide = ad.expand_dims_op(weight, 2)
    return as_row(input, lambda x: conv2d(x, wide, bias, stride, padding, dilation, groups))


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


def conv_transpose1d(
    input: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Node:
    """Transposed convolution of sequences (N, C, L) with weight (C, O / groups, l), plus bias (O,)."""
    op = "conv_transpose1d"
    steps = (_row(op, "stride", stride, 1, 1), _row(op, "padding", padding, 0, 0))
    more, holes = _row(op, "output_padding", output_padding, 0, 0), _row(op, "dilation", dilation, 1, 1)
    wide = ad.expand_dims_op(weight, 2)
    return as_row(input, lambda x: conv_transpose2d(x, wide, bias, *steps, more, groups, holes))


def conv_transpose2d(
    input: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Node:
    """Transposed convolution of images (N, C, H, W) with weight (C, O / groups, h, w), plus bias (O,)."""

    def of_batch(x: Node) -> Node:
        y = ad.conv_transpose2d_op(x, weight, stride, padding, output_padding, dilation, groups)
        return y if bias is None else y + per_channel(bias)

    return batched(input, 2, of_batch)


def _is_plain(dilation: Any, return_indices: bool) -> bool:
    """Whether maxima alone are asked for, of windows without holes: what has an operator of its own."""
    return not return_indices and dilation in (1, (1,), (1, 1), [1, 1])


def max_pool2d(
    input: Node,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The maxima of windows of images (N, C, H, W); with `ceil_mode` the last window may reach beyond, with
    `return_indices` (maxima, places), int64, the numbers of the elements within (H, W). For places and for windows with
    holes the shape must be known. Raises GraphError, ShapeError."""
    if _is_plain(dilation, return_indices):
        return batched(input, 2, lambda x: ad.max_pool2d_op(x, kernel_size, stride, padding, ceil_mode))
    found = max_pool_with_indices("max_pool2d", input, 2, kernel_size, stride, padding, dilation, ceil_mode)
    return found if return_indices else found[0]


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


def _windows(op: str, kernel_size: Any, stride: Any, padding: Any) -> tuple[Pair, Pair, Pair]:
    kernel = _row(op, "kernel_size", kernel_size, 1, 1)
    return kernel, kernel if stride is None else _row(op, "stride", stride, 1, 1), _row(op, "padding", padding, 0, 0)


def max_pool1d(
    input: Node,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The maxima of windows of sequences (N, C, L), as `max_pool2d`. Raises GraphError, ShapeError."""
    if not _is_plain(dilation, return_indices):
        found = max_pool_with_indices("max_pool1d", input, 1, kernel_size, stride, padding, dilation, ceil_mode)
        return found if return_indices else found[0]
    kernel, step, before = _windows("max_pool1d", kernel_size, stride, padding)
    return as_row(input, lambda x: max_pool2d(x, kernel, step, before, 1, ceil_mode))


def max_unpool1d(
    input: Node, indices: Node, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None
) -> Node:
    """`max_pool1d` undone: zeros (N, C, L), with the input at the places `indices`. L is (L' - 1) stride - 2 padding +
    kernel_size, or that of `output_size`. Raises GraphError, ShapeError."""
    return max_unpool("max_unpool1d", input, indices, 1, kernel_size, stride, padding, output_size)


def max_unpool2d(
    input: Node, indices: Node, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None
) -> Node:
    """`max_pool2d` undone, see `max_unpool1d`. Raises GraphError, ShapeError."""
    return max_unpool("max_unpool2d", input, indices, 2, kernel_size, stride, padding, output_size)


def avg_pool1d(
    input: Node,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Node:
    """The means of windows of sequences (N, C, L), as `avg_pool2d`. Raises GraphError."""
    kernel, step, before = _windows("avg_pool1d", kernel_size, stride, padding)
    return as_row(input, lambda x: avg_pool2d(x, kernel, step, before, ceil_mode, count_include_pad))


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


def adaptive_max_pool2d(input: Node, output_size: Any) -> Node:
    """The maxima of windows that share images (N, C, H, W) out evenly: (N, C, *output_size), of which None keeps the
    extent. Raises GraphError."""
    return _adaptive("adaptive_max_pool2d", input, output_size, ad.adaptive_max_pool2d_op)


def adaptive_avg_pool1d(input: Node, output_size: Any) -> Node:
    """The means of windows that share sequences (N, C, L) out evenly: (N, C, output_size). Raises GraphError."""
    size = _row("adaptive_avg_pool1d", "output_size", output_size, 1, 1)
    return as_row(input, lambda x: adaptive_avg_pool2d(x, size))


def adaptive_max_pool1d(input: Node, output_size: Any) -> Node:
    """The maxima of windows that share sequences (N, C, L) out evenly: (N, C, output_size). Raises GraphError."""
    size = _row("adaptive_max_pool1d", "output_size", output_size, 1, 1)
    return as_row(input, lambda x: adaptive_max_pool2d(x, size))
