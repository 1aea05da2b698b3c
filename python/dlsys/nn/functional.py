"""Layers as functions, by the names and in the argument order of torch.nn.functional; all return nodes.

Some need a shape when they are called: of tensors it is known, of a `Variable` where it is declared.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node
from ..checks import dtype_named, flag, integer, integers, number, pair, real, word
from ..errors import DTypeError, GraphError, ShapeError
from ..graph import FLOATS, INTEGERS
from ..ops.cross_entropy import class_losses
from ..ops.loss import difference_of, reduced
from ..ops.rules import axes_attribute, shape_attribute
from ..random import default_generator
from ..tensors import Tensor, known_dtype, known_shape, tensor
from .checks import require_nodes, shape_of


def _per_channel(values: Node, space: int = 2) -> Node:
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
    require_nodes("conv2d", input, weight, bias)
    y = ad.conv2d_op(input, weight, stride, padding, dilation, groups)
    return y if bias is None else y + _per_channel(bias)


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
    """The gradient of conv2d with respect to its images, of images (N, C, H, W), of known shape, with weight
    (C, O / groups, h, w), plus bias (O,): (N, O, H', W'), H' = (H - 1) stride - 2 padding + dilation (h - 1) +
    output_padding + 1. Raises GraphError, ShapeError."""
    op = "conv_transpose2d"
    require_nodes(op, input, weight, bias)
    shape, filters = shape_of(op, input), shape_of(op, weight)
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
    made = (shape[0], filters[1] * integer(op, "groups", groups, 1), *space)
    like = ad.full_op(made, 0.0, known_dtype(input) or "float32")
    y = ad.conv2d_input_gradient_op(weight, input, like, *settings, groups)
    return y if bias is None else y + _per_channel(bias)


def conv1d(
    input: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Node:
    """Cross-correlation of signals (N, C, L) with weight (O, C / groups, l), plus bias (O,): as of images of one row.
    Raises GraphError."""
    require_nodes("conv1d", input, weight, bias)
    (s,), (p,), (d,) = (
        integers("conv1d", name, value, least, 1)
        for name, value, least in (("stride", stride, 1), ("padding", padding, 0), ("dilation", dilation, 1))
    )
    images, filters = ad.expand_dims_op(input, -2), ad.expand_dims_op(weight, -2)
    return ad.squeeze_op(conv2d(images, filters, bias, (1, s), (0, p), (1, d), groups), -2)


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
    if flag("avg_pool2d", "ceil_mode", ceil_mode):
        raise GraphError("avg_pool2d: ceil_mode is not supported: pad the images")
    return ad.avg_pool2d_op(input, kernel_size, stride, padding, count_include_pad)


def adaptive_avg_pool2d(input: Node, output_size: Any) -> Node:
    """The means of equal windows of images (N, C, H, W): (N, C, *output_size). Raises GraphError, and ShapeError where
    H and W are no multiples of it."""
    return ad.adaptive_avg_pool2d_op(input, output_size)


def pad(input: Node, pad: Sequence[int], mode: str = "constant", value: float | None = 0.0) -> Node:
    """The input, of known shape, with `value` around it, or, for the modes "reflect" and "replicate", its own elements,
    mirrored at the first and the last, or these; pad is (before, after) of the last axis, then of the one before, ...
    Raises GraphError."""
    word("pad", "mode", mode, ("constant", "reflect", "replicate"))
    require_nodes("pad", input)
    shape = shape_of("pad", input)
    if not isinstance(pad, (tuple, list)):
        raise GraphError(f"pad: takes a list of widths, not {pad!r}")
    if len(pad) % 2 or len(pad) > 2 * len(shape):
        raise GraphError(f"pad: {tuple(pad)} are not pairs for the last of {len(shape)} axes")
    flat = [integer("pad", "a width", width, 0) for width in pad]
    pairs = [(0, 0)] * (len(shape) - len(flat) // 2) + list(zip(flat[-2::-2], flat[::-2], strict=True))
    if mode == "constant":
        return ad.pad_op(input, pairs, 0.0 if value is None else value) if any(map(any, pairs)) else input
    if value is not None and real("pad", "value", value):
        raise GraphError(f'pad: mode "{mode}" takes no value, and there is {value!r}')
    for axis, (extent, widths) in enumerate(zip(shape, pairs, strict=True)):
        if any(widths):
            if max(widths) >= extent and (mode == "reflect" or extent == 0):
                raise ShapeError(f"pad: {widths} are too many to {mode} axis {axis} of {input.name} of shape {shape}")
            places = np.pad(np.arange(extent), widths, mode="reflect" if mode == "reflect" else "edge")
            input = ad.take_op(input, tensor(places), axis)
    return input


def interpolate(
    input: Node,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
) -> Node:
    """x (N, C, *space), of known shape, with its space in another size, given or `scale_factor` times its own.

    Args:
        mode: "nearest" takes the element before each place, "bilinear", of two axes, weighs the two beside it along
            each axis.
        align_corners: whether the outermost elements, not their edges, keep their places; of "bilinear".
        recompute_scale_factor: whether the distance of places is that of the sizes, not 1 / scale_factor.

    Raises GraphError, ShapeError.
    """
    word("interpolate", "mode", mode, ("nearest", "bilinear"))
    require_nodes("interpolate", input)
    shape = shape_of("interpolate", input)
    space = shape[2:]
    if not space or 0 in space or (mode == "bilinear" and len(space) != 2):
        raise ShapeError(f"interpolate: {input.name} has shape {shape}, which mode {mode!r} does not take")
    if (size is None) == (scale_factor is None):
        raise GraphError(f"interpolate: takes either a size or a scale_factor, not {size!r} and {scale_factor!r}")
    if align_corners is not None and mode == "nearest":
        raise GraphError('interpolate: align_corners is of mode "bilinear"')
    if size is None:
        given = scale_factor if isinstance(scale_factor, (tuple, list)) else (scale_factor,) * len(space)
        if len(given) != len(space):
            raise GraphError(f"interpolate: scale_factor must be a number or {len(space)} of them, not {given!r}")
        factors = [number("interpolate", "scale_factor", factor) for factor in given]
        size = [math.floor(n * factor) for n, factor in zip(space, factors, strict=True)]
    size = integers("interpolate", "size", size, 1, len(space))
    keeps = scale_factor is not None and not flag("interpolate", "recompute_scale_factor", recompute_scale_factor)
    for axis, (old, new) in enumerate(zip(space, size, strict=True)):
        step = 1 / factors[axis] if keeps else old / new
        input = _resized(input, axis + 2, old, new, step, mode, flag("interpolate", "align_corners", align_corners))
    return input


def _resized(x: Node, axis: int, old: int, new: int, step: float, mode: str, corners: bool) -> Node:
    """x with `new` elements along an axis, at places `step` apart."""
    if mode == "nearest":
        places = np.floor(np.arange(new, dtype="float32") * np.float32(step)).astype("int64")
        return ad.take_op(x, tensor(np.minimum(places, old - 1)), axis)
    at = np.arange(new) * ((old - 1) / max(new - 1, 1)) if corners else (np.arange(new) + 0.5) * step - 0.5
    before = np.minimum(np.floor(np.maximum(at, 0.0)).astype("int64"), old - 1)
    shares = (np.maximum(at, 0.0) - before).reshape(-1, *(1,) * (len(shape_of("interpolate", x)) - axis - 1))
    low, high = (ad.take_op(x, tensor(np.minimum(before + more, old - 1)), axis) for more in (0, 1))
    return low + (high - low) * ad.cast_like_op(tensor(shares), x)


def pixel_shuffle(input: Node, upscale_factor: int) -> Node:
    """(..., C r^2, H, W), of known shape, as (..., C, H r, W r), r being the factor: the channels of a pixel become its
    rows and columns. Raises GraphError, ShapeError."""
    r = integer("pixel_shuffle", "upscale_factor", upscale_factor, 1)
    require_nodes("pixel_shuffle", input)
    shape = shape_of("pixel_shuffle", input)
    if len(shape) < 3 or shape[-3] % (r * r):
        raise ShapeError(f"pixel_shuffle: {input.name} of shape {shape} has no multiple of {r * r} channels")
    *lead, channels, rows, columns = shape
    parts = ad.reshape_op(input, (-1, channels // (r * r), r, r, rows, columns))
    moved = ad.transpose_op(parts, (0, 1, 4, 2, 5, 3))
    return ad.reshape_op(moved, (*lead, channels // (r * r), rows * r, columns * r))


def normalize(input: Node, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Node:
    """x over its norm along `dim`, which is `eps` at least; p is 1 or 2. Raises GraphError."""
    if not isinstance(p, (int, float)) or p not in (1, 2):
        raise GraphError(f"normalize: p must be 1 or 2, not {p!r}")
    least = number("normalize", "eps", eps)
    if p == 1:
        return input / ad.maximum_op(ad.reducesum_op(ad.abs_op(input), dim, keepdims=True), least)
    squares = ad.reducesum_op(ad.mul_op(input, input), dim, keepdims=True)
    return input / ad.sqrt_op(ad.maximum_op(squares, least * least))


relu: Callable[..., Tensor] = Tensor.relu
sigmoid: Callable[..., Tensor] = Tensor.sigmoid
tanh: Callable[..., Tensor] = Tensor.tanh
softmax: Callable[..., Tensor] = Tensor.softmax
log_softmax: Callable[..., Tensor] = Tensor.log_softmax


def relu6(input: Node) -> Node:
    """x within [0, 6]; the derivative is 0 at 0 and at 6."""
    rectified = ad.relu_op(input)
    return ad.where_op(input >= 6.0, 6.0, rectified)


def gelu(input: Node, approximate: str = "none") -> Node:
    """x times the normal distribution's function; approximate="tanh" takes a formula with tanh for it."""
    return ad.gelu_op(input, approximate)


def silu(input: Node) -> Node:
    """x sigmoid(x)."""
    return input * ad.sigmoid_op(input)


def hardswish(input: Node) -> Node:
    """x relu6(x + 3) / 6."""
    return input * (relu6(ad.add_byconst_op(input, 3.0)) * (1 / 6))


def leaky_relu(input: Node, negative_slope: float = 0.01) -> Node:
    """x where x > 0, else negative_slope x."""
    slope = real("leaky_relu", "negative_slope", negative_slope)
    return ad.where_op(ad.greater_op(input, 0.0), input, input * slope)


def elu(input: Node, alpha: float = 1.0) -> Node:
    """x where x > 0, else alpha (exp(x) - 1)."""
    above = ad.greater_op(input, 0.0)
    below = ad.exp_op(ad.where_op(above, 0.0, input)) - 1.0  # of large x without infinities
    return ad.where_op(above, input, below * real("elu", "alpha", alpha))


def softplus(input: Node, beta: float = 1.0, threshold: float = 20.0) -> Node:
    """log(1 + exp(beta x)) / beta, and x where beta x > threshold. Raises GraphError for no numbers."""
    beta, threshold = real("softplus", "beta", beta), real("softplus", "threshold", threshold)
    scaled = ad.mul_byconst_op(input, beta)
    soft = ad.maximum_op(scaled, 0.0) + ad.log_op(1.0 + ad.exp_op(-ad.abs_op(scaled)))
    return ad.where_op(scaled > threshold, input, soft / beta)


def linear(input: Node, weight: Node, bias: Node | None = None) -> Node:
    """x W^T + b: (..., in), (out, in), (out,) -> (..., out)."""
    require_nodes("linear", input, weight, bias)
    product = ad.matmul_op(input, weight, trans_B=True)
    return product if bias is None else product + bias


def dropout(input: Node, p: float = 0.5, training: bool = True, *, key: Node | None = None) -> Node:
    """x with elements set to 0 with probability p, the others divided by 1 - p; x itself without `training`.

    `key`: see `autodiff.dropout_op`; None takes a stream of `dlsys.random.default_generator`, of which each run draws
    anew. Raises GraphError for a p outside [0, 1].
    """
    p = number("dropout", "p", p, most=1)
    require_nodes("dropout", input)
    if not flag("dropout", "training", training) or p == 0:
        return input
    if p == 1:
        return input * 0.0
    if key is not None:
        return ad.dropout_op(input, key, p)
    return default_generator.drawing(ad.dropout_op(input, default_generator.key(), p))


def embedding(input: Node, weight: Node, padding_idx: int | None = None) -> Node:
    """The rows of `weight`, (entries, width), with the numbers `input`: (*input.shape, width); zeros for the number
    `padding_idx`, from the end where it is negative, so that its row gets no gradient."""
    if known_dtype(input) not in (None, *INTEGERS):
        raise DTypeError(f"embedding: {input.name} must be of integers, not {known_dtype(input)}: use .long()")
    rows = ad.embedding_op(weight, input)
    if padding_idx is None:
        return rows
    padding_idx = integer("embedding", "padding_idx", padding_idx)
    if padding_idx < 0:
        padding_idx += shape_of("embedding", weight)[0]
    return ad.where_op(ad.expand_dims_op(ad.equal_op(input, padding_idx), -1), 0.0, rows)


def embedding_bag(
    input: Node,
    weight: Node,
    offsets: Node | None = None,
    *,
    mode: str = "mean",
    per_sample_weights: Node | None = None,
) -> Node:
    """The mean, sum or maximum of the rows of `weight`, (entries, width), with the numbers of each bag: (bags, width).

    Args:
        input: the numbers, (bags, length); or (numbers,) with the `offsets` (bags,), where in it each bag begins, of
            "mean" and "sum"; a bag of none is zeros.
        per_sample_weights: by which rows are multiplied, of the input's shape, for "sum".

    Raises GraphError, and ShapeError where the input's shape is not known.
    """
    word("embedding_bag", "mode", mode, ("mean", "sum", "max"))
    require_nodes("embedding_bag", input, weight, offsets, per_sample_weights)
    if per_sample_weights is not None and mode != "sum":
        raise GraphError(f'embedding_bag: per_sample_weights are for the mode "sum", not {mode!r}')
    shape, rows = shape_of("embedding_bag", input), embedding(input, weight)
    if len(shape) != (2 if offsets is None else 1):
        told = "numbers (bags, length), or (numbers,) with offsets"
        raise ShapeError(f"embedding_bag: takes {told}, not {shape} [{input.name}]")
    if per_sample_weights is not None:
        rows = rows * ad.expand_dims_op(per_sample_weights, -1)
    if offsets is None:
        return {"mean": ad.mean_op, "sum": ad.reducesum_op, "max": ad.max_op}[mode](rows, 1)
    if mode == "max":
        raise GraphError('embedding_bag: mode "max" takes numbers (bags, length), without offsets')
    begun = ad.expand_dims_op(tensor(np.arange(shape[0])), 0) >= ad.cast_op(ad.expand_dims_op(offsets, 1), "int64")
    inside = ad.cast_like_op(begun, rows)  # (bags, numbers): 1 from the bag's offset on
    bags = inside - pad(inside, (0, 0, 0, 1))[1:]
    sums = ad.matmul_op(bags, rows)
    counts = ad.maximum_op(ad.reducesum_op(bags, 1, keepdims=True), 1.0)
    return sums if mode == "sum" else sums / counts


def one_hot(indices: Node, num_classes: int = -1, dtype: Any = "int64") -> Node:
    """Ones at the indices along a new last axis of extent `num_classes`, zeros elsewhere; -1: one more than the largest
    of the indices, which must hold data then."""
    require_nodes("one_hot", indices)
    if isinstance(num_classes, int) and num_classes == -1:
        if known_dtype(indices) not in (None, *INTEGERS):
            raise DTypeError(f"one_hot: {indices.name} must be of integers, not {known_dtype(indices)}")
        num_classes = int(np.asarray(indices).max(initial=-1)) + 1
    return ad.one_hot_op(indices, num_classes, dtype)


def mse_loss(input: Node, target: Node, reduction: str = "mean") -> Node:
    """(x - y)^2, "none", or their "mean" or "sum", shape (). Raises GraphError for another reduction."""
    return ad.mse_loss_op(input, target, reduction)


def l1_loss(input: Node, target: Node, reduction: str = "mean") -> Node:
    """|x - y|, "none", or their "mean" or "sum", shape (). Raises GraphError for another reduction."""
    return reduced("l1_loss", ad.abs_op(difference_of("l1_loss", input, target)), reduction)


def smooth_l1_loss(input: Node, target: Node, reduction: str = "mean", beta: float = 1.0) -> Node:
    """(x - y)^2 / (2 beta) where |x - y| < beta, else |x - y| - beta / 2; reduced as `l1_loss`. Raises GraphError."""
    beta, difference = number("smooth_l1_loss", "beta", beta), difference_of("smooth_l1_loss", input, target)
    far = ad.abs_op(difference)
    near = difference * difference * (0.5 / beta) if beta else far
    return reduced("smooth_l1_loss", ad.where_op(far < beta, near, far - 0.5 * beta), reduction)


def kl_div(input: Node, target: Node, reduction: str = "mean", log_target: bool = False) -> Node:
    """y (log y - x) of logarithms x and probabilities y, or their logarithms where `log_target`; reduced as `l1_loss`,
    or, "batchmean", their sum over the extent of the first axis. Raises GraphError."""
    require_nodes("kl_div", input, target)
    word("kl_div", "reduction", reduction, ("mean", "batchmean", "sum", "none"))
    if flag("kl_div", "log_target", log_target):
        losses = ad.exp_op(target) * difference_of("kl_div", target, input)
    else:
        logs = ad.log_op(ad.where_op(target > 0.0, target, 1.0))
        losses = target * difference_of("kl_div", logs, input)
    if reduction == "batchmean":
        return ad.div_by_extent_op(ad.reducesum_op(losses), input, 0)
    return reduced("kl_div", losses, reduction)


def binary_cross_entropy_with_logits(
    input: Node, target: Node, weight: Node | None = None, *, reduction: str = "mean", pos_weight: Node | None = None
) -> Node:
    """-y log s - (1 - y) log(1 - s) with s = sigmoid(x), times `weight`; the first term times `pos_weight` too, both of
    which broadcast; reduced as `l1_loss`. Raises GraphError, and ShapeError where x and y are of two shapes."""
    op = "binary_cross_entropy_with_logits"
    require_nodes(op, input, target, weight, pos_weight)
    shapes = known_shape(input), known_shape(target)
    if None not in shapes and shapes[0] != shapes[1]:
        raise ShapeError(f"{op}: shapes differ: {input.name} {shapes[0]} and {target.name} {shapes[1]}")
    of_ones, of_zeros = target * softplus(-input), (1.0 - target) * softplus(input)
    losses = (of_ones if pos_weight is None else of_ones * pos_weight) + of_zeros
    return reduced(op, losses if weight is None else losses * weight, reduction)


def nll_loss(
    input: Node, target: Node, weight: Node | None = None, *, ignore_index: int = -100, reduction: str = "mean"
) -> Node:
    """-x at each target's class, of logarithms (N, C) or (N, C, d1, ...), times the class's `weight` (C,); targets,
    reduction and errors are those of `cross_entropy`. Logarithms (C,), whose shape is known, are one example."""
    require_nodes("nll_loss", input, target, weight)
    if len(known_shape(input) or ()) == 1:
        one = nll_loss(
            ad.expand_dims_op(input, 0), ad.expand_dims_op(target, 0), weight,
            ignore_index=ignore_index, reduction=reduction,
        )  # fmt: skip
        return ad.squeeze_op(one, 0) if reduction == "none" else one
    ignored = integer("nll_loss", "ignore_index", ignore_index)
    losses, counts = class_losses("nll_loss", input, target, ignored, weight)
    return reduced("nll_loss", losses - ad.logsumexp_op(input, 1) * counts, reduction, counts)


def cross_entropy(
    input: Node,
    target: Node,
    weight: Node | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Node:
    """The cross-entropy of logits (N, C) or (N, C, d1, ...) with class numbers (N, d1, ...) or probabilities of the
    logits' shape; see `autodiff.cross_entropy_op`. Logits (C,), whose shape is known, are one example."""
    require_nodes("cross_entropy", weight)
    if len(known_shape(input) or ()) != 1:
        return ad.cross_entropy_op(input, target, ignore_index, label_smoothing, reduction, weight)
    one, of = ad.expand_dims_op(input, 0), ad.expand_dims_op(target, 0)
    loss = ad.cross_entropy_op(one, of, ignore_index, label_smoothing, reduction, weight)
    return ad.squeeze_op(loss, 0) if reduction == "none" else loss


def batch_norm(
    input: Node,
    running_mean: Node | None,
    running_var: Node | None,
    weight: Node | None = None,
    bias: Node | None = None,
    training: bool = False,
    momentum: Any = 0.1,
    eps: float = 1e-5,
    axes: Sequence[int] | None = None,
) -> Node:
    """x (N, C, *space) normalised for each channel, times weight plus bias (C,): Ioffe and Szegedy (2015).

    With `training` by x's own mean and variance; whoever evaluates the result then moves the running ones, Parameters,
    by `momentum`, a number or a node: running = (1 - momentum) running + momentum own, with the unbiased variance.
    Else by the running ones. `axes` are all but that of the channels; None: of x's shape. Raises GraphError.
    """
    require_nodes("batch_norm", input, running_mean, running_var, weight, bias)
    axes, eps = axes_attribute("batch_norm", axes), real("batch_norm", "eps", eps)
    if axes is None:
        axes = tuple(axis for axis in range(len(shape_of("batch_norm", input))) if axis != 1)
    if not flag("batch_norm", "training", training):
        if running_mean is None or running_var is None:
            raise GraphError("batch_norm: without training it needs running_mean and running_var")
        scale = ad.rsqrt_op(running_var + eps)
        scale = scale if weight is None else scale * weight
        shift = -running_mean * scale if bias is None else bias - running_mean * scale
        space = len(axes) - 1
        return input * _per_channel(scale, space) + _per_channel(shift, space)
    y, mean, var = ad.batch_norm_op(input, weight, bias, axes, eps)
    updates = []
    if running_mean is not None:
        updates.append(_advanced(running_mean, mean, momentum))
    if running_var is not None:
        updates.append(_advanced(running_var, var * _unbiased(input, var, axes), momentum))
    return ad.with_updates_op(y, updates) if updates else y


def _unbiased(input: Node, var: Node, axes: Sequence[int]) -> Any:
    """n / (n - 1) for the n elements of a channel: a number, where the shape is known."""
    shape = known_shape(input)
    count = 0 if shape is None else math.prod(shape[axis] for axis in axes)
    if count > 1:
        return count / (count - 1)
    one = ad.oneslike_op(var)
    return ad.div_by_extent_op(one, input, axes, 1) / ad.div_by_extent_op(one, input, axes)


def _advanced(running: Node, own: Node, momentum: Any) -> Node:
    """The assignment that moves a running statistic towards the batch's own."""
    own = ad.reshape_op(own, shape_of("batch_norm", running))
    momentum = momentum if isinstance(momentum, Node) else real("batch_norm", "momentum", momentum)
    if isinstance(momentum, Node):
        return ad.advance_op(running, lambda before: before + (own - before) * momentum)
    return ad.advance_op(running, lambda before: before * (1 - momentum) + own * momentum)


def layer_norm(
    input: Node,
    normalized_shape: Sequence[int],
    weight: Node | None = None,
    bias: Node | None = None,
    eps: float = 1e-5,
) -> Node:
    """x normalised over its last axes, of extents `normalized_shape`, times weight plus bias of that shape. Raises
    GraphError for what is no shape, ShapeError for another than x's."""
    require_nodes("layer_norm", input, weight, bias)
    return ad.layer_norm_op(input, weight, bias, _last_axes("layer_norm", input, normalized_shape), eps)


def group_norm(
    input: Node, num_groups: int, weight: Node | None = None, bias: Node | None = None, eps: float = 1e-5
) -> Node:
    """x (N, C, *space), of known shape, normalised over each of `num_groups` groups of channels, times weight plus bias
    (C,): Wu and He (2018). Raises GraphError, ShapeError."""
    groups = integer("group_norm", "num_groups", num_groups, 1)
    require_nodes("group_norm", input, weight, bias)
    shape = shape_of("group_norm", input)
    if len(shape) < 2 or shape[1] % groups:
        raise ShapeError(f"group_norm: {input.name} of shape {shape} has no multiple of {groups} channels")
    parts = ad.reshape_op(input, (shape[0], groups, math.prod(shape[1:]) // groups))
    found = ad.reshape_op(ad.layer_norm_op(parts, None, None, (-1,), eps), shape)
    found = found if weight is None else found * _per_channel(weight, len(shape) - 2)
    return found if bias is None else found + _per_channel(bias, len(shape) - 2)


def rms_norm(
    input: Node, normalized_shape: Sequence[int], weight: Node | None = None, eps: float | None = None
) -> Node:
    """x / sqrt(mean(x^2) + eps) over its last axes, of extents `normalized_shape`, times weight of that shape: Zhang
    and Sennrich (2019). eps None is the dtype's distance of 1 to the next number. Raises GraphError, ShapeError."""
    require_nodes("rms_norm", input, weight)
    axes = _last_axes("rms_norm", input, normalized_shape)
    least = float(np.finfo(known_dtype(input) or "float32").eps) if eps is None else number("rms_norm", "eps", eps)
    found = input * ad.rsqrt_op(ad.mean_op(input * input, axes, keepdims=True) + least)
    return found if weight is None else found * weight


def _last_axes(function: str, x: Node, normalized_shape: Sequence[int]) -> tuple[int, ...]:
    """The axes of extents `normalized_shape`. Raises GraphError for what is no shape, ShapeError for another than
    x's."""
    extents = shape_attribute(function, normalized_shape)
    if not extents:
        raise GraphError(f"{function}: normalized_shape has one extent or more")
    shape = known_shape(x)
    if shape is not None and shape[-len(extents) :] != extents:
        raise ShapeError(f"{function}: the last axes of {x.name}, of shape {shape}, are not {extents}")
    return tuple(range(-len(extents), 0))


def causal_mask(
    queries: int, keys: int, dtype: str = "float32", first: int = 1, finite: bool = False
) -> Node:
    """(queries, keys): 0 where a query sees a key, those up to its own number, and -infinity, or the dtype's least
    number, from the diagonal number `first` on; to be added to scores. Raises GraphError for sizes that are no
    integers, DTypeError."""
    sizes = integer("causal_mask", "queries", queries, 0), integer("causal_mask", "keys", keys, 0)
    named = dtype_named(dtype)
    if named is None or named not in FLOATS:
        raise DTypeError(f"causal_mask: dtype must be one of {', '.join(FLOATS)}, not {dtype!r}")
    first, finite = integer("causal_mask", "first", first), flag("causal_mask", "finite", finite)
    return _causal_mask(*sizes, named, first, finite)


@functools.lru_cache(maxsize=64)
def _causal_mask(queries: int, keys: int, dtype: str, first: int, finite: bool) -> Node:
    """One leaf serves all layers of all models, and so decides for none where it is computed."""
    hidden = np.finfo(dtype).min if finite else -math.inf
    made: Node = tensor(np.triu(np.full((queries, keys), hidden, dtype), first), name="causal_mask")
    made.cell.roams = True
    return made


def attended(scores: Node, value: Node, drop: Callable[[Node], Node], unseen: Node | None = None) -> tuple[Node, Node]:
    """softmax(scores) value, and the softmax, to which `drop` is applied; weights are 0 where `unseen` holds, also
    those of a query that sees no key."""
    weights = ad.softmax_op(scores)
    weights = drop(weights if unseen is None else ad.where_op(unseen, 0.0, weights))
    return ad.matmul_op(weights, value), weights


def scaled_dot_product_attention(
    query: Node,
    key: Node,
    value: Node,
    attn_mask: Node | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Node:
    """softmax(q k^T scale) v: (..., L, d), (..., S, d), (..., S, e) -> (..., L, e): Vaswani et al. (2017).

    Args:
        attn_mask: broadcasts to (..., L, S); booleans of a known dtype say which keys a query sees, where it sees none
            the result is 0; floats are added to the scores.
        dropout_p: with which probability a weight is dropped, see `dropout`.
        is_causal: query i sees the keys up to i alone; the shapes of q and k must be known then.
        scale: None is 1 / sqrt(d).

    Raises GraphError, ShapeError.
    """
    require_nodes("scaled_dot_product_attention", query, key, value, attn_mask)
    shape = known_shape(query)
    if scale is not None:
        q = query * real("scaled_dot_product_attention", "scale", scale)
    elif shape is None:
        one = ad.cast_like_op(ad.full_op((), 1.0), query)
        q = query * ad.sqrt_op(ad.div_by_extent_op(one, query, -1))
    else:
        q = query / math.sqrt(shape[-1])
    scores, unseen = ad.matmul_op(q, key, trans_B=True), None
    if attn_mask is not None and known_dtype(attn_mask) == "bool":
        unseen = ad.logical_not_op(attn_mask)
        scores = ad.where_op(unseen, -math.inf, scores)
    elif attn_mask is not None:
        scores = scores + attn_mask
    if flag("scaled_dot_product_attention", "is_causal", is_causal):
        rows, columns = (shape_of("scaled_dot_product_attention", x)[-2] for x in (query, key))
        scores = scores + ad.cast_like_op(causal_mask(rows, columns, known_dtype(query) or "float32"), query)
    return attended(scores, value, lambda weights: dropout(weights, dropout_p), unseen)[0]
