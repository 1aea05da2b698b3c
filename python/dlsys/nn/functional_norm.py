"""Normalisation as functions, by the names and in the argument order of torch.nn.functional."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node
from ..eager import dtype_of
from ..errors import GraphError, ShapeError
from .checks import checked_extent, known_shape, shape_of
from .functional_windows import per_channel


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
    if axes is None:
        axes = tuple(axis for axis in range(len(shape_of("batch_norm", input))) if axis != 1)
    if not training:
        if running_mean is None or running_var is None:
            raise GraphError("batch_norm: without training it needs running_mean and running_var")
        scale = ad.rsqrt_op(running_var + eps)
        scale = scale if weight is None else scale * weight
        shift = -running_mean * scale if bias is None else bias - running_mean * scale
        space = len(axes) - 1
        return input * per_channel(scale, space) + per_channel(shift, space)
    y, mean, var = ad.batch_norm_op(input, weight, bias, axes, eps)
    updates = []
    if running_mean is not None:
        updates.append(ad.advance_op(running_mean, lambda before: _moved(before, mean, momentum)))
    if running_var is not None:
        unbiased = var * _unbiased(input, var, axes)
        updates.append(ad.advance_op(running_var, lambda before: _moved(before, unbiased, momentum)))
    return ad.with_updates_op(y, updates) if updates else y


def _unbiased(input: Node, var: Node, axes: Sequence[int]) -> Any:
    """n / (n - 1) for the n elements of a channel: a number, where the shape is known."""
    shape = known_shape(input)
    count = 0 if shape is None else math.prod(shape[axis] for axis in axes)
    if count > 1:
        return count / (count - 1)
    one = ad.oneslike_op(var)
    return ad.div_by_terms_op(one, input, axes) / ad.div_by_extent_op(one, input, axes)


def _moved(running: Node, own: Node, momentum: Any) -> Node:
    own = ad.reshape_like_op(own, running)
    if isinstance(momentum, Node):
        return running + (own - running) * momentum
    return running * (1 - momentum) + own * momentum


def layer_norm(
    input: Node,
    normalized_shape: Sequence[int],
    weight: Node | None = None,
    bias: Node | None = None,
    eps: float = 1e-5,
) -> Node:
    """x normalised over its last axes, of extents `normalized_shape`, times weight plus bias of that shape."""
    return ad.layer_norm_op(input, weight, bias, tuple(range(-len(normalized_shape), 0)), eps)


def rms_norm(
    input: Node, normalized_shape: Sequence[int], weight: Node | None = None, eps: float | None = None
) -> Node:
    """x / sqrt(mean(x^2) + eps) over its last axes, of extents `normalized_shape`, times weight; eps is by default the
    machine's for x's dtype, which must be known here then."""
    if eps is None:
        eps = float(np.finfo(dtype_of(input)).eps)
    return ad.rms_norm_op(input, weight, tuple(range(-len(normalized_shape), 0)), eps)


def instance_norm(
    input: Node,
    running_mean: Node | None = None,
    running_var: Node | None = None,
    weight: Node | None = None,
    bias: Node | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Node:
    """x (N, C, *space), of known shape, normalised over the space of each channel of each example, times weight plus
    bias (C,): Ulyanov et al. (2016).

    Without `use_input_stats` by the running statistics, as `batch_norm`. With it, whoever evaluates the result then
    moves those by `momentum` towards the means over the examples, of the unbiased variance. Raises GraphError.
    """
    shape = shape_of("instance_norm", input)
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    y = ad.group_norm_op(input, shape[1], weight, bias, shape, eps)
    space, updates = tuple(range(2, len(shape))), []
    if running_mean is not None:
        mean = ad.mean_op(input, (0, *space))
        updates.append(ad.advance_op(running_mean, lambda before: _moved(before, mean, momentum)))
    if running_var is not None:
        var = ad.mean_op(ad.var_op(input, space), 0)
        updates.append(ad.advance_op(running_var, lambda before: _moved(before, var, momentum)))
    return ad.with_updates_op(y, updates) if updates else y


def group_norm(
    input: Node, num_groups: int, weight: Node | None = None, bias: Node | None = None, eps: float = 1e-5
) -> Node:
    """x (N, C, *space), of known shape, normalised over each of `num_groups` parts of its channels, times weight plus
    bias (C,). Raises GraphError."""
    return ad.group_norm_op(input, num_groups, weight, bias, shape_of("group_norm", input), eps)


def local_response_norm(input: Node, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Node:
    """x / (k + alpha mean(x^2))^beta of (N, C, *space), of known shape, the mean over `size` channels around each,
    those beyond the ends being 0: Krizhevsky et al. (2012). Raises GraphError, ShapeError."""
    size = checked_extent("local_response_norm", "size", size)
    shape = shape_of("local_response_norm", input)
    if len(shape) < 3:
        raise ShapeError(f"local_response_norm: needs (N, C, ...), not {shape}")
    around = [(0, 0), (size // 2, (size - 1) // 2), *[(0, 0)] * (len(shape) - 2)]
    squares = ad.pad_op(input * input, around)
    parts = [ad.slice_op(squares, (slice(None), slice(first, first + shape[1]))) for first in range(size)]
    return input / ad.power_byconst_op(ad.sum_node_list(parts) * (alpha / size) + k, beta)
