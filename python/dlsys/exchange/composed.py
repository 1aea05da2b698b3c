"""Convolutions and poolings as ONNX has them, of several of our operators. Shapes are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import GraphError
from ..nn import functional
from ..tensors import shape_of

Pairs = Sequence[tuple[int, int]]
"""The padding before and after each of the last axes."""


class Windows(NamedTuple):
    """The windows of images or signals, along each axis of space: their extents, their steps, the padding around the
    axis, and the steps within a window."""

    kernel: Sequence[int]
    strides: Sequence[int]
    pairs: Pairs
    dilations: Sequence[int]

    def lifted(self) -> Windows:
        """The windows of images of one row, of those of signals."""
        return Windows((1, *self.kernel), (1, *self.strides), ((0, 0), *self.pairs), (1, *self.dilations))


def padded(x: Node, pairs: Pairs, value: float = 0.0) -> Node:
    """x with `value` around its last axes."""
    widths = [(0, 0)] * (len(shape_of(x)) - len(pairs)) + list(pairs)
    return ad.pad_op(x, widths, value) if any(map(any, pairs)) else x


def symmetric(
    x: Node, pairs: Pairs, most: Sequence[float], value: float = 0.0
) -> tuple[Node, tuple[int, ...]]:
    """x, and a padding that is the same before and behind each axis and at most so wide; or, where that is not so, x
    padded, and none."""
    if all(before == behind <= limit for (before, behind), limit in zip(pairs, most, strict=True)):
        return x, tuple(before for before, _ in pairs)
    return padded(x, pairs, value), (0,) * len(pairs)


def as_images(x: Node) -> Node:
    """(N, C, W) as (N, C, 1, W)."""
    return ad.expand_dims_op(x, 2)


def convolution(x: Node, weight: Node, bias: Node | None, windows: Windows, groups: int) -> Node:
    """The cross-correlation of images (N, C, H, W), or signals (N, C, W), with weight (O, C / groups, ...) plus bias
    (O,). Raises GraphError for more axes."""
    space = len(windows.kernel)
    if space not in (1, 2):
        raise GraphError(f"convolutions are of images and signals, not of {space} axes")
    x, padding = symmetric(x, windows.pairs, (math.inf,) * space)
    function = functional.conv1d if space == 1 else functional.conv2d
    return function(x, weight, bias, tuple(windows.strides), padding, tuple(windows.dilations), groups)


def convolution_transposed(
    x: Node, weight: Node, bias: Node | None, windows: Windows, more: Sequence[int], groups: int
) -> Node:
    """The gradient of `convolution` with respect to its images or signals, with weight (C, O / groups, ...), `more`
    wide at each end, plus bias (O,). Raises GraphError for more axes."""
    space = len(windows.kernel)
    if space == 1:
        lifted = as_images(x), as_images(weight), bias, windows.lifted(), (0, *more), groups
        return ad.squeeze_op(convolution_transposed(*lifted), 2)
    if space != 2:
        raise GraphError(f"convolutions are of images and signals, not of {space} axes")
    least = [max(min(pair), 0) for pair in windows.pairs]
    given = tuple(windows.strides), tuple(least), tuple(more), groups, tuple(windows.dilations)
    y: Node = functional.conv_transpose2d(x, weight, None, *given)
    rows, columns = ([end - own for end in pair] for pair, own in zip(windows.pairs, least, strict=True))
    y = padded(y, [(max(-before, 0), max(-behind, 0)) for before, behind in (rows, columns)])
    (top, below), (left, right) = ([max(end, 0) for end in pair] for pair in (rows, columns))
    if top or below or left or right:
        y = y[..., top : shape_of(y)[2] - below, left : shape_of(y)[3] - right]
    return y if bias is None else y + ad.reshape_op(bias, (-1, 1, 1))


def ceiled(extents: Sequence[int], windows: Windows) -> list[tuple[int, int]]:
    """The padding with which the last windows, that begin within the image or before it, lie within the padded one."""
    found = []
    for extent, width, stride, (before, behind), _ in zip(extents, *windows, strict=True):
        count = math.ceil((extent + before + behind - width) / stride) + 1
        if (count - 1) * stride >= extent + before:
            count -= 1
        found.append((before, max(behind, (count - 1) * stride + width - extent - before)))
    return found


def pool(x: Node, windows: Windows, ceil: bool, count_pad: bool | None = None) -> Node:
    """The maxima of windows of images, or of signals; or their means, where `count_pad` says whether the padding of
    the windows is counted."""
    if len(windows.kernel) == 1:
        return ad.squeeze_op(pool(as_images(x), windows.lifted(), ceil, count_pad), 2)
    extents, pairs, given = shape_of(x)[2:], list(windows.pairs), (tuple(windows.kernel), tuple(windows.strides))
    wanted = ceiled(extents, windows) if ceil else pairs
    image, padding = symmetric(x, wanted, [width // 2 for width in windows.kernel], -math.inf)
    if count_pad is None:
        return functional.max_pool2d(image, *given, padding)
    if wanted == pairs and image is x:
        return functional.avg_pool2d(x, *given, padding, count_include_pad=count_pad)
    wanted_of_ones = wanted
    if count_pad:
        extents = tuple(sum(pair, extent) for extent, pair in zip(extents, pairs, strict=True))
        wanted_of_ones = [(0, all_ - own) for (_, all_), (_, own) in zip(wanted, pairs, strict=True)]
    of_images, of_ones = (
        functional.avg_pool2d(padded(image, widths), *given)
        for image, widths in ((x, wanted), (ad.full_op((1, 1, *extents), 1.0), wanted_of_ones))
    )
    return of_images / of_ones
