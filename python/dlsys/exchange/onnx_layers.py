"""ONNX's operators of layers by ours: products, windows, norms and recurrences; see `onnx_operators`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import DataError, GraphError
from ..nn import functional
from ..nn.recurrent import GATES
from ..tensors import dtype_of, shape_of
from . import composed
from .composed import Windows
from .onnx_operators import Value, axes_of, integers, known, operator, pairs_of


def windows_of(
    x: Node,
    kernel: Sequence[int],
    kernel_shape: Any = None,
    auto_pad: str = "NOTSET",
    strides: Any = None,
    dilations: Any = None,
    pads: Any = None,
) -> Windows:
    """The windows that attributes state; the `auto_pad` "SAME_..." pads by so much that there are extent / stride of
    them. Raises DataError."""
    extents, ones = shape_of(x)[2:], [1] * len(kernel)
    strides, dilations = strides or ones, dilations or ones
    if kernel_shape is not None and tuple(kernel_shape) != tuple(kernel):
        raise DataError(f"kernel_shape is {list(kernel_shape)}, the weights have {list(kernel)}")
    if not len(extents) == len(kernel) == len(strides) == len(dilations):
        told = f"{len(kernel)} extents of the kernel, {len(strides)} strides and {len(dilations)} dilations"
        raise DataError(f"x has {len(extents)} axes of space; there are {told}")
    if auto_pad not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise DataError(f"auto_pad is {auto_pad}")
    if min(strides, default=1) < 1:
        raise DataError(f"strides must be positive, not {list(strides)}")
    if auto_pad in ("NOTSET", "VALID"):
        pairs = pairs_of(pads if auto_pad == "NOTSET" else None, len(extents))
        return Windows(kernel, strides, pairs, dilations)
    wholes = [
        max((math.ceil(extent / stride) - 1) * stride + (width - 1) * dilation + 1 - extent, 0)
        for extent, width, stride, dilation in zip(extents, kernel, strides, dilations, strict=True)
    ]
    return Windows(kernel, strides, _halves(wholes, auto_pad == "SAME_UPPER"), dilations)


def _halves(wholes: Sequence[int], more_behind: bool) -> list[tuple[int, int]]:
    """Numbers in two, of which the larger half is behind or before."""
    return [(n // 2, n - n // 2) if more_behind else (n - n // 2, n // 2) for n in wholes]


@operator("Conv")
def conv(x: Node, weight: Node, bias: Node | None = None, group: int = 1, **windows: Any) -> Node:
    """The cross-correlation of images or signals."""
    return composed.convolution(x, weight, bias, windows_of(x, shape_of(weight)[2:], **windows), group)


def _pool(name: str, counted: int | None) -> None:
    """ONNX's pooling; `counted`: the default of `count_include_pad`, None of maxima."""

    def pool(
        x: Node,
        kernel_shape: Any,
        ceil_mode: int = 0,
        count_include_pad: int | None = counted,
        storage_order: int = 0,
        **windows: Any,
    ) -> Node:
        given = windows_of(x, kernel_shape, **windows)
        if set(given.dilations) - {1}:
            raise GraphError(f"{name}: dilations are not supported")
        return composed.pool(x, given, bool(ceil_mode), None if count_include_pad is None else bool(count_include_pad))

    operator(name)(pool)


_pool("MaxPool", None)
_pool("AveragePool", 0)


_RESIZED = {"antialias": 0, "cubic_coeff_a": -0.75, "exclude_outside": 0, "extrapolation_value": 0.0,
            "keep_aspect_ratio_policy": "stretch"}  # fmt: skip
_PLACES = {"nearest": ("asymmetric",), "linear": ("half_pixel", "pytorch_half_pixel", "align_corners")}


@operator("Resize", 1, 2, 3)
def resize(
    x: Node,
    roi: Value = None,
    scales: Value = None,
    sizes: Value = None,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
    **given: Any,
) -> Node:
    """Images in another size, by the element before each place or the two beside it, as `functional.interpolate`."""
    others = [name for name, value in given.items() if value != _RESIZED.get(name)]
    places = coordinate_transformation_mode
    corners, shape = places == "align_corners", shape_of(x)
    if sizes is None:
        factors = known(scales, "the scales of Resize").reshape(-1).tolist()
        wanted = [factor * extent for factor, extent in zip(factors, shape, strict=True)]
        settings: dict[str, Any] = {"scale_factor": factors[2:]}
    else:
        wanted = integers(sizes, "the sizes of Resize")
        settings = {"size": wanted[2:]}
    is_known = places in _PLACES.get(mode, ()) and (mode == "linear" or nearest_mode == "floor") and not others
    whole = all(n == math.floor(n) for n in wanted) or not corners
    alone = places == "pytorch_half_pixel" and 1 in map(math.floor, wanted[2:])
    if not is_known or not whole or alone or tuple(wanted[:2]) != shape[:2]:
        told = ", ".join([mode, places, nearest_mode, *others])
        raise GraphError(f"Resize of {shape} to {wanted} with {told} is not supported")
    if mode == "linear":
        settings |= {"mode": "bilinear", "align_corners": corners}
    return functional.interpolate(x, **settings)


def _space(x: Node) -> tuple[int, ...]:
    return tuple(range(2, len(shape_of(x))))


operator("GlobalAveragePool")(lambda x: ad.mean_op(x, _space(x), True))
operator("GlobalMaxPool")(lambda x: ad.max_op(x, _space(x), True))
operator("MatMul")(lambda a, b: a @ b)


@operator("Gemm")
def gemm(
    a: Node,
    b: Node,
    c: Node | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Node:
    """alpha A B + beta C."""
    product = ad.matmul_op(a, b, bool(transA), bool(transB))
    product = product if alpha == 1.0 else product * alpha
    if c is None or beta == 0.0:
        return product
    return product + (c if beta == 1.0 else c * beta)


@operator("BatchNormalization")
def batch_norm(
    x: Node,
    weight: Node,
    bias: Node,
    mean: Node,
    variance: Node,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> Node:
    """x normalized by known statistics."""
    if training_mode:
        raise GraphError("BatchNormalization is read for inference only")
    return functional.batch_norm(x, mean, variance, weight, bias, eps=epsilon)


@operator("LayerNormalization")
def layer_norm(
    x: Node,
    weight: Node,
    bias: Node | None = None,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    outputs: int = 1,
) -> tuple[Node, ...]:
    """x normalized over the axes from `axis` on; the mean and 1 / deviation, where they are read."""
    rank = len(shape_of(x))
    axes = tuple(range(axes_of(rank, [axis])[0], rank))
    found = ad.layer_norm_op(x, weight, bias, axes, epsilon)
    if outputs == 1:
        return (found,)
    mean = ad.mean_op(x, axes, True)
    apart = x - mean
    return found, mean, ad.rsqrt_op(ad.mean_op(apart * apart, axes, True) + epsilon)


@operator("InstanceNormalization")
def instance_norm(x: Node, weight: Node, bias: Node, epsilon: float = 1e-5) -> Node:
    """x normalized over its places, times weight plus bias along axis 1."""
    return functional.group_norm(x, shape_of(x)[1], weight, bias, epsilon)


@operator("LpNormalization")
def lp_normalization(x: Node, axis: int = -1, p: int = 2) -> Node:
    """x divided by its norm along an axis; zeros where that is 0."""
    norm = ad.sum_op(ad.abs_op(x), axis, True) if p == 1 else ad.sqrt_op(ad.sum_op(x * x, axis, True))
    return ad.where_op(norm > 0.0, x / norm, 0.0)


@operator("ConvTranspose")
def conv_transposed(
    x: Node,
    weight: Node,
    bias: Node | None = None,
    auto_pad: str = "NOTSET",
    group: int = 1,
    output_padding: Any = None,
    output_shape: Any = None,
    **windows: Any,
) -> Node:
    """The gradient of a convolution with respect to its images or signals."""
    same = auto_pad.startswith("SAME")
    given = windows_of(x, shape_of(weight)[2:], auto_pad="VALID" if same else auto_pad, **windows)
    extents, more = shape_of(x)[2:], output_padding or [0] * len(given.kernel)
    if len(more) != len(extents):
        raise DataError(f"ConvTranspose: attributes that do not fit {len(extents)} axes of space")
    if same and output_shape is None:
        output_shape = [extent * stride for extent, stride in zip(extents, given.strides, strict=True)]
    if output_shape is not None:
        wanted = output_shape[-len(more) :]
        spans = zip(extents, more, given.kernel, given.strides, given.dilations, wanted, strict=True)
        wholes = [s * (n - 1) + extra + (k - 1) * d + 1 - own for n, extra, k, s, d, own in spans]
        given = given._replace(pairs=_halves(wholes, auto_pad == "SAME_UPPER"))
    return composed.convolution_transposed(x, weight, bias, given, more, group)


def _recurrent(name: str, order: Sequence[int], activations: Sequence[str]) -> None:
    """ONNX's recurrent operator: `order` has the places of our gates among ONNX's."""

    def layers(
        x: Node,
        w: Node,
        r: Node,
        b: Node | None = None,
        lengths: Value = None,
        h: Node | None = None,
        c: Node | None = None,
        peepholes: Node | None = None,
        direction: str = "forward",
        hidden_size: int | None = None,
        layout: int = 0,
        linear_before_reset: int = 0,
        input_forget: int = 0,
        **given: Any,
    ) -> tuple[Node, ...]:
        kind = "tanh"
        if (ranks := [len(shape_of(value)) for value in (x, w, r)]) != [3, 3, 3]:
            raise DataError(f"{name}: x, w and r have three axes, not {ranks}")
        known = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
        ways = known.get(direction, ())
        if not len(ways) == shape_of(w)[0] == shape_of(r)[0]:
            raise DataError(f"{name}: direction {direction} with weights for {shape_of(w)[0]} and {shape_of(r)[0]}")
        wanted = [text.lower() for text in given.pop("activations", list(activations) * len(ways))]
        if name == "RNN" and set(wanted) == {"relu"}:
            kind = "relu"
        elif wanted != [text.lower() for text in activations] * len(ways):
            raise GraphError(f"{name}: activations {wanted} are not supported")
        if peepholes is not None or input_forget or layout or given:
            raise GraphError(
                f"{name}: peepholes, input_forget, layout, {', '.join(given) or 'clip'} are not supported"
            )
        if name == "GRU" and not linear_before_reset:
            raise GraphError("GRU: only linear_before_reset=1 is supported")
        if lengths is not None and set(integers(lengths, "sequence_lens")) != {shape_of(x)[0]}:
            raise GraphError(f"{name}: sequences of different lengths are not supported")
        start = ad.full_op((shape_of(x)[1], shape_of(r)[-1]), 0.0, dtype_of(x))
        gates = GATES[name]
        wide = gates.count * shape_of(r)[-1]
        outputs, finals = [], []
        for i, reverse in enumerate(ways):
            biases = (None, None) if b is None else (b[i, :wide], b[i, wide:])
            state = tuple(start if value is None else value[i] for value in (h, c)[: gates.states])
            last, output = gates((w[i], r[i], *biases), kind, order).over_steps(x, state, reverse)
            outputs.append(output)
            finals.append(last)
        return ad.stack_op(outputs, 1), *(ad.stack_op(list(states)) for states in zip(*finals, strict=True))

    operator(name, 4)(layers)


_recurrent("RNN", (0,), ("Tanh",))
_recurrent("LSTM", (0, 2, 3, 1), ("Sigmoid", "Tanh", "Tanh"))
_recurrent("GRU", (1, 0, 2), ("Sigmoid", "Tanh"))
