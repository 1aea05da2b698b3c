"""Normalised values: by a norm, by statistics of a batch, of layers, of groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import autodiff as ad
from ...checks import flag, integer, number, real
from ...errors import GraphError, ShapeError
from ...graph import Node, is_node
from ...ops.replay import composition, function
from ...ops.rules import shape_attribute
from ...tensors import Tensor
from ...tensors.evaluate import changing
from ...tensors.inplace import advance_op
from ...tensors.reductions import norm
from ..checks import require_nodes, shape_of
from .products import per_channel


@function(on_tensors=True)
def normalize(input: Node, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """x over its norm along `dim`, which is `eps` at least; p is 1 or 2. Raises GraphError."""
    if not isinstance(p, (int, float)) or p not in (1, 2):
        raise GraphError(f"normalize: p must be 1 or 2, not {p!r}")
    return input / ad.maximum_op(norm(input, p, dim, True), number("normalize", "eps", eps))


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
) -> Tensor:
    """x (N, C, *space) normalised for each channel, times weight plus bias (C,): Ioffe and Szegedy (2015).

    With `training` by x's own mean and variance; whoever evaluates the result then moves the running ones, Parameters,
    by `momentum`, a number or a node: running = (1 - momentum) running + momentum own, with the unbiased variance.
    Else by the running ones. `axes` are all but that of the channels; None: of x's shape. Raises GraphError.
    """
    require_nodes("batch_norm", input, running_mean, running_var, weight, bias)
    eps = real("batch_norm", "eps", eps)
    if not flag("batch_norm", "training", training):
        if running_mean is None or running_var is None:
            raise GraphError("batch_norm: without training it needs running_mean and running_var")
        scale = ad.rsqrt_op(running_var + eps)
        scale = scale if weight is None else scale * weight
        shift = -running_mean * scale if bias is None else bias - running_mean * scale
        return _of_channels(input, scale, shift)
    y, mean, var = ad.batch_norm_op(input, weight, bias, axes, eps)
    with changing:
        updates = []
        if running_mean is not None:
            updates.append(_advanced(running_mean, mean, momentum))
        if running_var is not None:
            updates.append(_advanced(running_var, _unbiased(input, var), momentum))
        return ad.with_updates_op(y, updates) if updates else y


@function(on_tensors=True)
def _of_channels(x: Node, scale: Node, shift: Node) -> Tensor:
    """x (N, C, *space) times scale plus shift, (C,)."""
    space = len(x.shape) - 2
    return x * per_channel(scale, space) + per_channel(shift, space)


@function(on_tensors=True)
def _unbiased(input: Node, var: Node) -> Tensor:
    """The variance times n / (n - 1) for the n elements of a channel; NaN of one."""
    count = math.prod(input.shape) // max(math.prod(var.shape), 1)
    return var * (count / (count - 1)) if count > 1 else var / 0.0


def _advanced(running: Node, own: Node, momentum: Any) -> Tensor:
    """The assignment that moves a running statistic towards the batch's own."""
    own = ad.reshape_op(own, shape_of("batch_norm", running))
    momentum = momentum if is_node(momentum) else real("batch_norm", "momentum", momentum)
    return advance_op(running, lambda before: _moved(before, own, momentum))


@composition
def _moved(before: Node, own: Node, momentum: Any) -> Tensor:
    """A running statistic after one more of its own."""
    if is_node(momentum):
        return before + (own - before) * momentum
    return before * (1 - momentum) + own * momentum


@function(on_tensors=True)
def layer_norm(
    input: Node,
    normalized_shape: Sequence[int],
    weight: Node | None = None,
    bias: Node | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """x normalised over its last axes, of extents `normalized_shape`, times weight plus bias of that shape. Raises
    GraphError for what is no shape, ShapeError for another than x's."""
    return ad.layer_norm_op(input, weight, bias, _last_axes("layer_norm", input, normalized_shape), eps)


@function(on_tensors=True)
def group_norm(
    input: Node, num_groups: int, weight: Node | None = None, bias: Node | None = None, eps: float = 1e-5
) -> Tensor:
    """x (N, C, *space) normalised over each of `num_groups` groups of channels, times weight plus bias
    (C,): Wu and He (2018). Raises GraphError, ShapeError."""
    groups = integer("group_norm", "num_groups", num_groups, 1)
    shape = input.shape
    if len(shape) < 2 or shape[1] % groups:
        raise ShapeError(f"group_norm: {input.name} of shape {shape} has no multiple of {groups} channels")
    parts = ad.reshape_op(input, (shape[0], groups, math.prod(shape[1:]) // groups))
    found = ad.reshape_op(ad.layer_norm_op(parts, None, None, (-1,), eps), shape)
    found = found if weight is None else found * per_channel(weight, len(shape) - 2)
    return found if bias is None else found + per_channel(bias, len(shape) - 2)


@function(on_tensors=True)
def rms_norm(
    input: Node, normalized_shape: Sequence[int], weight: Node | None = None, eps: float | None = None
) -> Tensor:
    """x / sqrt(mean(x^2) + eps) over its last axes, of extents `normalized_shape`, times weight of that shape: Zhang
    and Sennrich (2019). eps None is the dtype's distance of 1 to the next number. Raises GraphError, ShapeError."""
    axes = _last_axes("rms_norm", input, normalized_shape)
    least = float(np.finfo(input.dtype).eps) if eps is None else number("rms_norm", "eps", eps)
    found = input * ad.rsqrt_op(ad.mean_op(input * input, axes, keepdims=True) + least)
    return found if weight is None else found * weight


def _last_axes(op: str, x: Node, normalized_shape: Sequence[int]) -> tuple[int, ...]:
    """The axes of extents `normalized_shape`. Raises GraphError for what is no shape, ShapeError for another than
    x's."""
    extents = shape_attribute(op, normalized_shape)
    if not extents:
        raise GraphError(f"{op}: normalized_shape has one extent or more")
    if x.shape[-len(extents) :] != extents:
        raise ShapeError(f"{op}: the last axes of {x.name}, of shape {x.shape}, are not {extents}")
    return tuple(range(-len(extents), 0))
