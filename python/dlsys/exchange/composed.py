"""Formulas that ONNX and torch.export have as one operator, of several of ours. Shapes are known."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import GraphError
from ..graph import FLOATS
from ..nn import functional
from ..nn.recurrent import GATES, State
from ..ops.indexing import in_range_op
from ..tensors import dtype_of, shape_of

Pairs = Sequence[tuple[int, int]]
"""The padding before and after each of the last axes."""


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


def convolution(
    x: Node,
    weight: Node,
    bias: Node | None,
    strides: Sequence[int],
    pairs: Pairs,
    dilations: Sequence[int],
    groups: int,
) -> Node:
    """The cross-correlation of images (N, C, H, W), or signals (N, C, W), with weight (O, C / groups, ...) plus bias
    (O,). Raises GraphError for more axes."""
    space = len(shape_of(weight)) - 2
    if space not in (1, 2):
        raise GraphError(f"convolutions are of images and signals, not of {space} axes")
    x, padding = symmetric(x, pairs, (math.inf,) * space)
    function = functional.conv1d if space == 1 else functional.conv2d
    return function(x, weight, bias, tuple(strides), padding, tuple(dilations), groups)


def convolution_transposed(
    x: Node,
    weight: Node,
    bias: Node | None,
    strides: Sequence[int],
    pairs: Pairs,
    more: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> Node:
    """The gradient of `convolution` with respect to its images or signals, with weight (C, O / groups, ...), `more`
    wide at each end, plus bias (O,). Raises GraphError for more axes."""
    space = len(shape_of(weight)) - 2
    if space == 1:
        lifted = as_images(x), as_images(weight), bias, (1, *strides), ((0, 0), *pairs), (0, *more), (1, *dilations)
        return ad.squeeze_op(convolution_transposed(*lifted, groups), 2)
    if space != 2:
        raise GraphError(f"convolutions are of images and signals, not of {space} axes")
    least = [max(min(pair), 0) for pair in pairs]
    given = tuple(strides), tuple(least), tuple(more), groups, tuple(dilations)
    y: Node = functional.conv_transpose2d(x, weight, None, *given)
    rows, columns = ([end - own for end in pair] for pair, own in zip(pairs, least, strict=True))
    y = padded(y, [(max(-before, 0), max(-behind, 0)) for before, behind in (rows, columns)])
    (top, below), (left, right) = ([max(end, 0) for end in pair] for pair in (rows, columns))
    if top or below or left or right:
        y = y[..., top : shape_of(y)[2] - below, left : shape_of(y)[3] - right]
    return y if bias is None else y + ad.reshape_op(bias, (-1, 1, 1))


def ceiled(
    extents: Sequence[int], kernel: Sequence[int], strides: Sequence[int], pairs: Pairs
) -> list[tuple[int, int]]:
    """The padding with which the last windows, that begin within the image or before it, lie within the padded one."""
    found = []
    for extent, width, stride, (before, behind) in zip(extents, kernel, strides, pairs, strict=True):
        count = math.ceil((extent + before + behind - width) / stride) + 1
        if (count - 1) * stride >= extent + before:
            count -= 1
        found.append((before, max(behind, (count - 1) * stride + width - extent - before)))
    return found


def pool(
    x: Node,
    kernel: Sequence[int],
    strides: Sequence[int],
    pairs: Pairs,
    ceil: bool,
    count_pad: bool | None = None,
) -> Node:
    """The maxima of windows of images, or of signals; or their means, where `count_pad` says whether the padding of
    `pairs` is counted."""
    if len(kernel) == 1:
        lifted = pool(as_images(x), (1, *kernel), (1, *strides), ((0, 0), *pairs), ceil, count_pad)
        return ad.squeeze_op(lifted, 2)
    extents, windows = shape_of(x)[2:], (tuple(kernel), tuple(strides))
    wanted = ceiled(extents, kernel, strides, pairs) if ceil else list(pairs)
    most = [width // 2 for width in kernel]
    if count_pad is None:
        x, padding = symmetric(x, wanted, most, -math.inf)
        return functional.max_pool2d(x, *windows, padding)
    same = all(before == behind <= limit for (before, behind), limit in zip(pairs, most, strict=True))
    if wanted == list(pairs) and same:
        padding = tuple(before for before, _ in pairs)
        return functional.avg_pool2d(x, *windows, padding, count_include_pad=count_pad)
    wanted_of_ones = wanted
    if count_pad:
        extents = tuple(sum(pair, extent) for extent, pair in zip(extents, pairs, strict=True))
        wanted_of_ones = [(0, all_ - own) for (_, all_), (_, own) in zip(wanted, pairs, strict=True)]
    of_images, of_ones = (
        functional.avg_pool2d(padded(image, widths), *windows)
        for image, widths in ((x, wanted), (ad.full_op((1, 1, *extents), 1.0), wanted_of_ones))
    )
    return of_images / of_ones


def joint_index(indices: Sequence[Node], extents: Sequence[int]) -> Node:
    """Indices of several axes, which are broadcast, as places in these axes together."""
    found, *rest = map(in_range_op, indices, extents)
    for own, extent in zip(rest, extents[1:], strict=True):
        found = found * extent + own
    return found


def quotient(a: Node, b: Node) -> Node:
    """a / b; of integers rounded toward zero."""
    if dtype_of(a) in FLOATS:
        return a / b
    exact = ad.cast_op(a, "float64") / ad.cast_op(b, "float64")
    return ad.cast_op(ad.sign_op(exact) * ad.floor_op(ad.abs_op(exact)), dtype_of(a))


def normalized(x: Node, mean: Node, variance: Node, weight: Node, bias: Node, eps: float) -> Node:
    """(x - mean) / sqrt(variance + eps) * weight + bias along axis 1."""
    return functional.batch_norm(x, mean, variance, weight, bias, False, 0.1, eps)


def recurrent(
    kind: str,
    x: Node,
    weights: Sequence[Sequence[Node | None]],
    states: Sequence[Sequence[Node]],
    ways: Sequence[bool],
    nonlinearity: str = "tanh",
    order: Sequence[int] = (0, 1, 2, 3),
) -> tuple[list[Node], list[State]]:
    """The outputs and the last states of one layer over x (length, batch, width), in each of its ways, which are
    backwards or not, with weights and states of its own."""
    gates = GATES[kind]
    found = [
        gates(own, nonlinearity, order).over_steps(x, tuple(state), reverse)
        for own, state, reverse in zip(weights, states, ways, strict=True)
    ]
    return [output for _, output in found], [last for last, _ in found]


def hard_sigmoid(x: Node, alpha: float, beta: float) -> Node:
    """alpha x + beta within [0, 1]."""
    return ad.clip_op(x * alpha + beta, 0.0, 1.0)
