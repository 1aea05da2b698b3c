"""Normalisation as functions, by the names and in the argument order of torch.nn.functional."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import GraphError
from .checks import known_shape, shape_of
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
    return ad.div_by_terms_op(one, input, axes) / ad.div_by_extent_op(one, input, axes)


def _advanced(running: Node, own: Node, momentum: Any) -> Node:
    """The assignment that moves a running statistic towards the batch's own."""
    own = ad.reshape_op(own, shape_of("batch_norm", running))
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
    """x normalised over its last axes, of extents `normalized_shape`, times weight plus bias of that shape."""
    return ad.layer_norm_op(input, weight, bias, tuple(range(-len(normalized_shape), 0)), eps)
