"""ONNX's operators of layers: products, windows, norms and recurrences; the table is in `onnx_operators`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import autodiff as ad
from ..errors import DataError, GraphError
from ..graph import Node
from ..nn import functional
from ..nn.recurrent import GATES
from ..tensors import dtype_of, shape_of
from .onnx_values import Value, axes_of, integers, known, pairs_of

Pairs = Sequence[tuple[int, int]]
"""The padding before and after each of the last axes."""
TINY = float(np.finfo("float32").tiny)
"""A norm that divides zeros."""


# Products and norms -----------------------------------------------------------------------------------------


def gemm(
    a: Node, b: Node, c: Node | None = None, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0
) -> Node:
    """alpha A B + beta C."""
    product = ad.matmul_op(a, b, bool(transA), bool(transB))
    product = product if alpha == 1.0 else product * alpha
    if c is None or beta == 0.0:
        return product
    return product + (c if beta == 1.0 else c * beta)


def batch_norm(
    x: Node, weight: Node, bias: Node, mean: Node, variance: Node,
    epsilon: float = 1e-5, momentum: float = 0.9, training_mode: int = 0,
) -> Node:  # fmt: skip
    """x normalized by known statistics."""
    if training_mode:
        raise GraphError("BatchNormalization is read for inference only")
    return functional.batch_norm(x, mean, variance, weight, bias, eps=epsilon)


def layer_norm(
    x: Node, weight: Node, bias: Node | None = None,
    axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1, outputs: int = 1,
) -> tuple[Node, ...]:  # fmt: skip
    """x normalized over the axes from `axis` on; the mean and 1 / deviation, where they are read."""
    axes = tuple(range(axes_of(x, axis)[0], len(shape_of(x))))
    normalized = ad.layer_norm_op(x, weight, bias, axes, epsilon)
    if outputs == 1:
        return (normalized,)
    mean = ad.mean_op(x, axes, True)
    centered = x - mean
    return normalized, mean, ad.rsqrt_op(ad.mean_op(centered * centered, axes, True) + epsilon)


# Windows ----------------------------------------------------------------------------------------------------


class Windows(NamedTuple):
    """The windows of images, along rows and columns: their extents, their strides, the padding around the axis, and the
    strides within a window."""

    kernel: Sequence[int]
    strides: Sequence[int]
    pairs: Pairs
    dilations: Sequence[int]


_OF_ROW = {"kernel_shape": 1, "strides": 1, "dilations": 1, "output_padding": 0, "output_shape": 1}
"""Attributes along the one row of a signal."""


def space_of(x: Node) -> tuple[int, ...]:
    """The axes behind the batch's and the channels'."""
    return tuple(range(2, len(shape_of(x))))


def of_images(function: Callable[..., Node]) -> Callable[..., Node]:
    """The function, which takes images, also for signals (N, C, W): as images of one row. Raises GraphError for other
    axes of space."""

    @functools.wraps(function)
    def apply(x: Node, *weights: Node | None, **attributes: Any) -> Node:
        space = len(space_of(x))
        if space == 2:
            return function(x, *weights, **attributes)
        if space != 1:
            raise GraphError(f"windows are of images and signals, not of {space} axes")
        images = [
            ad.expand_dims_op(value, 2) if value is not None and len(shape_of(value)) == 3 else value
            for value in (x, *weights)
        ]
        lifted = {name: [_OF_ROW[name], *value] if name in _OF_ROW else value for name, value in attributes.items()}
        if "pads" in attributes:
            lifted["pads"] = [width for pair in zip((0, 0), attributes["pads"], strict=True) for width in pair]
        return ad.squeeze_op(function(*images, **lifted), 2)

    return apply


def windows_of(
    x: Node, kernel: Sequence[int], kernel_shape: Any = None, auto_pad: str = "NOTSET", strides: Any = None,
    dilations: Any = None, pads: Any = None,
) -> Windows:  # fmt: skip
    """The windows that attributes state; the `auto_pad` "SAME_..." pads by so much that there are extent / stride of
    them. Raises DataError."""
    extents, ones = shape_of(x)[2:], [1] * len(kernel)
    strides, dilations = strides or ones, dilations or ones
    if kernel_shape is not None and tuple(kernel_shape) != tuple(kernel):
        raise DataError(f"kernel_shape is {list(kernel_shape)}, the weights have {list(kernel)}")
    if not len(extents) == len(kernel) == len(strides) == len(dilations):
        text = f"{len(kernel)} extents of the kernel, {len(strides)} strides and {len(dilations)} dilations"
        raise DataError(f"x has {len(extents)} axes of space; there are {text}")
    if min(strides) < 1:
        raise DataError(f"strides must be positive, not {list(strides)}")
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        return Windows(kernel, strides, pairs_of(pads, len(extents)), dilations)
    widths = [
        max((math.ceil(extent / stride) - 1) * stride + (width - 1) * dilation + 1 - extent, 0)
        for extent, width, stride, dilation in zip(extents, kernel, strides, dilations, strict=True)
    ]
    return Windows(kernel, strides, _halves(widths, auto_pad), dilations)


def _halves(widths: Sequence[int], auto_pad: str) -> list[tuple[int, int]]:
    """Widths in two, of which the larger half is behind for "SAME_UPPER", else before."""
    halves = [(width // 2, width - width // 2) for width in widths]
    return halves if auto_pad == "SAME_UPPER" else [(behind, before) for before, behind in halves]


def padded(x: Node, pairs: Pairs, value: float = 0.0) -> Node:
    """x with `value` around its last axes."""
    widths = [(0, 0)] * (len(shape_of(x)) - len(pairs)) + list(pairs)
    return ad.pad_op(x, widths, value) if any(map(any, pairs)) else x


def _symmetric(x: Node, pairs: Pairs, most: Sequence[float], value: float = 0.0) -> tuple[Node, tuple[int, ...]]:
    """x, and a padding that is the same before and behind each axis and at most so wide; or, where that cannot be, x
    padded, and none."""
    if all(before == behind <= limit for (before, behind), limit in zip(pairs, most, strict=True)):
        return x, tuple(before for before, _ in pairs)
    return padded(x, pairs, value), (0,) * len(pairs)


def conv(x: Node, weight: Node, bias: Node | None = None, group: int = 1, **attributes: Any) -> Node:
    """The cross-correlation of images (N, C, H, W) with weight (O, C / group, h, w), plus bias (O,)."""
    windows = windows_of(x, shape_of(weight)[2:], **attributes)
    x, padding = _symmetric(x, windows.pairs, (math.inf, math.inf))
    return functional.conv2d(x, weight, bias, tuple(windows.strides), padding, tuple(windows.dilations), group)


def conv_transposed(
    x: Node, weight: Node, bias: Node | None = None,
    auto_pad: str = "NOTSET", group: int = 1, output_padding: Any = None, output_shape: Any = None, **attributes: Any,
) -> Node:  # fmt: skip
    """The gradient of a convolution with respect to its images, with weight (C, O / group, h, w), plus bias (O,)."""
    windows = windows_of(x, shape_of(weight)[2:], **attributes)
    extents, more = shape_of(x)[2:], output_padding or (0, 0)
    if output_shape is None and auto_pad.startswith("SAME"):
        output_shape = [extent * stride for extent, stride in zip(extents, windows.strides, strict=True)]
    pairs = windows.pairs
    if output_shape is not None:
        spans = zip(extents, more, windows.kernel, windows.strides, windows.dilations, output_shape[-2:], strict=True)
        widths = [s * (n - 1) + extra + (k - 1) * d + 1 - wanted for n, extra, k, s, d, wanted in spans]
        pairs = _halves(widths, auto_pad)
    least = [max(min(pair), 0) for pair in pairs]  # what remains is cut off, or padded where it is negative
    y: Node = functional.conv_transpose2d(
        x, weight, None, tuple(windows.strides), tuple(least), tuple(more), group, tuple(windows.dilations)
    )
    rests = [(before - p, behind - p) for (before, behind), p in zip(pairs, least, strict=True)]
    y = padded(y, [(max(-before, 0), max(-behind, 0)) for before, behind in rests])
    rows, columns = (
        slice(max(before, 0), extent - max(behind, 0))
        for (before, behind), extent in zip(rests, shape_of(y)[2:], strict=True)
    )
    y = y[..., rows, columns] if any(max(pair) > 0 for pair in rests) else y
    return y if bias is None else y + ad.reshape_op(bias, (-1, 1, 1))


def _pool_windows(name: str, x: Node, kernel_shape: Any, ceil_mode: int, attributes: Any) -> tuple[Windows, Pairs]:
    """The windows, and the padding with which the last ones, that begin within the image or before it, lie within the
    padded image if `ceil_mode`. Raises GraphError for dilations."""
    windows = windows_of(x, kernel_shape, **attributes)
    if set(windows.dilations) != {1}:
        raise GraphError(f"{name}: dilations are not supported")
    if not ceil_mode:
        return windows, windows.pairs
    wanted = []
    for extent, width, stride, (before, behind), _ in zip(shape_of(x)[2:], *windows, strict=True):
        last = math.ceil((extent + before + behind - width) / stride) * stride
        last -= stride if last >= extent + before else 0
        wanted.append((before, max(behind, last + width - extent - before)))
    return windows, wanted


def max_pool(x: Node, kernel_shape: Any, ceil_mode: int = 0, storage_order: int = 0, **attributes: Any) -> Node:
    """The maxima of windows of images."""
    windows, wanted = _pool_windows("MaxPool", x, kernel_shape, ceil_mode, attributes)
    x, padding = _symmetric(x, wanted, [width // 2 for width in kernel_shape], -math.inf)
    return functional.max_pool2d(x, tuple(kernel_shape), tuple(windows.strides), padding)


def mean_pool(x: Node, kernel_shape: Any, ceil_mode: int = 0, count_include_pad: int = 0, **attributes: Any) -> Node:
    """The means of windows of images, in which padding counts as zeros or not at all. What `ceil_mode` adds never
    counts, so the mean is that of the padded image over that of ones in the place of what counts."""
    windows, wanted = _pool_windows("AveragePool", x, kernel_shape, ceil_mode, attributes)
    settings = tuple(kernel_shape), tuple(windows.strides)
    image, padding = _symmetric(x, wanted, [width // 2 for width in kernel_shape])
    if wanted == windows.pairs and image is x:
        return functional.avg_pool2d(x, *settings, padding, count_include_pad=bool(count_include_pad))
    counted = windows.pairs if count_include_pad else [(0, 0)] * 2
    extents = [sum(pair, extent) for extent, pair in zip(shape_of(x)[2:], counted, strict=True)]
    around = [tuple(np.subtract(*pairs).tolist()) for pairs in zip(wanted, counted, strict=True)]
    ones = padded(ad.full_op((1, 1, *extents), 1.0, dtype_of(x)), around)
    return functional.avg_pool2d(padded(x, wanted), *settings) / functional.avg_pool2d(ones, *settings)


_RESIZED = {"antialias": 0, "cubic_coeff_a": -0.75, "exclude_outside": 0, "extrapolation_value": 0.0,
            "keep_aspect_ratio_policy": "stretch"}  # fmt: skip
_PLACES = {"nearest": ("asymmetric",), "linear": ("half_pixel", "pytorch_half_pixel", "align_corners")}


def resize(
    x: Node, roi: Value = None, scales: Value = None, sizes: Value = None,
    coordinate_transformation_mode: str = "half_pixel", mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor", **attributes: Any,
) -> Node:  # fmt: skip
    """Images in another size, by the element before each place or the two beside it, as `functional.interpolate`.
    Raises GraphError for what that does not do."""
    places, shape = coordinate_transformation_mode, shape_of(x)
    others = [name for name, value in attributes.items() if value != _RESIZED.get(name)]
    if sizes is None:
        factors = known(scales, "the scales of Resize").reshape(-1).tolist()
        wanted = [factor * extent for factor, extent in zip(factors, shape, strict=True)]
        settings: dict[str, Any] = {"scale_factor": factors[2:]}
    else:
        wanted = integers(sizes, "the sizes of Resize")
        settings = {"size": wanted[2:]}
    corners = places == "align_corners"
    is_known = places in _PLACES.get(mode, ()) and (mode == "linear" or nearest_mode == "floor") and not others
    whole = all(n == math.floor(n) for n in wanted) or not corners
    alone = places == "pytorch_half_pixel" and 1 in map(math.floor, wanted[2:])
    if not is_known or not whole or alone or tuple(wanted[:2]) != shape[:2]:
        text = ", ".join([mode, places, nearest_mode, *others])
        raise GraphError(f"Resize of {shape} to {wanted} with {text} is not supported")
    if mode == "linear":
        settings |= {"mode": "bilinear", "align_corners": corners}
    return functional.interpolate(x, **settings)


# Recurrences ------------------------------------------------------------------------------------------------

_ORDERS = {"RNN": (0,), "LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2)}
"""The places of our gates among ONNX's."""
_ACTIVATIONS = {"RNN": ["tanh"], "LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"]}
_WAYS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def recurrent(
    name: str, x: Node, w: Node, r: Node, b: Node | None = None, lengths: Value = None,
    h: Node | None = None, c: Node | None = None, peepholes: Node | None = None, *,
    activations: Sequence[str] | None = None, direction: str = "forward", hidden_size: int = 0,
    linear_before_reset: int = 0, layout: int = 0, input_forget: int = 0, clip: float | None = None,
) -> tuple[Node, ...]:  # fmt: skip
    """The outputs of an RNN, LSTM or GRU at all steps, and its states behind the last one, in both directions. Raises
    GraphError for what `nn.LSTM` and its like do not do."""
    if (ranks := [len(shape_of(value)) for value in (x, w, r)]) != [3, 3, 3]:
        raise DataError(f"{name}: x, w and r have three axes, not {ranks}")
    ways, (steps, batch, _), hidden = _WAYS.get(direction, ()), shape_of(x), shape_of(r)[-1]
    if not len(ways) == shape_of(w)[0] == shape_of(r)[0]:
        raise DataError(f"{name}: direction {direction} with weights for {shape_of(w)[0]} and {shape_of(r)[0]}")
    usual = _ACTIVATIONS[name] * len(ways)
    wanted = usual if activations is None else [text.lower() for text in activations]
    is_relu = name == "RNN" and set(wanted) == {"relu"}
    unsupported = {
        f"activations {wanted}": not is_relu and wanted != usual,
        "peepholes": peepholes is not None, "input_forget": input_forget, "layout": layout, "clip": clip is not None,
        "linear_before_reset=0": name == "GRU" and not linear_before_reset,
        "sequences of different lengths": lengths is not None and set(integers(lengths, "lengths")) != {steps},
    }  # fmt: skip
    if any(unsupported.values()):
        raise GraphError(f"{name}: not supported: {', '.join(what for what, is_so in unsupported.items() if is_so)}")
    gates, start = GATES[name], ad.full_op((batch, hidden), 0.0, dtype_of(x))
    outputs, finals = [], []
    for way, reverse in enumerate(ways):
        wide = gates.count * hidden
        biases = (None, None) if b is None else (b[way, :wide], b[way, wide:])
        state = tuple(start if value is None else value[way] for value in (h, c)[: gates.states])
        weights = w[way], r[way], *biases
        last, output = gates(weights, "relu" if is_relu else "tanh", _ORDERS[name]).over_steps(x, state, reverse)
        outputs.append(output)
        finals.append(last)
    return ad.stack_op(outputs, 1), *(ad.stack_op(list(states)) for states in zip(*finals, strict=True))
