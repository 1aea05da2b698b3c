"""Normalisation by a mean and a variance: of a batch (Ioffe and Szegedy, 2015), of layers (Ba et al., 2016)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..checks import real
from ..errors import GraphError, ShapeError
from ..graph import Made, Node
from .elementwise import div_op, rsqrt_op
from .moves import reshape_op
from .reduction import Axes, mean_op, reducesum
from .replay import function
from .rules import axes_of, broadcast_rule
from .state import with_gradient


def _normalized(x: Node, mean: Node, var: Node, eps: float) -> Node:
    return (x - mean) * rsqrt_op(var + eps)


def _of_normalized(
    g: Node, y: Node, x: Node, mean: Node, var: Node, *affine: Node, axes: Axes, eps: float
) -> tuple[Node | None, ...]:
    """The gradients of n = (x - mean) r, with r = 1 / sqrt(var + eps), or n weight, or n weight + bias; those of mean
    and var, which are x's, are part of x's: r (g - mean(g) - n mean(g n)), where g is that of n.

    A weight of one number for all elements along the axes comes after the sums, which are the gradients of weight and
    bias; one with a number for each of them comes before.
    """
    count = math.prod(x.shape[axis] for axis in axes)
    n, scale = _normalized(x, mean, var, eps), rsqrt_op(var + eps)
    inner, is_shared = g, bool(affine) and affine[0].shape == mean.shape
    if is_shared:
        scale = scale * affine[0]
    elif affine:
        inner = g * affine[0]
    total, along = (reducesum(term, axes=axes, keepdims=True) for term in (inner, inner * n))
    dx = (inner - div_op(total, count) - n * div_op(along, count)) * scale
    of_affine = (along, total) if is_shared else (g * n, g)
    return dx, None, None, *of_affine[: len(affine)]


def _affine(op: str, x: Node, mean: Node, var: Node, affine: Sequence[Node], axes: Axes, eps: float) -> Made:
    """x normalised, times the weight, plus the bias, where there are some. Raises ShapeError where one does not
    broadcast to x."""
    y, steps = _normalized(x, mean, var, eps), ("*", "+")
    for step, value in zip(steps, affine, strict=False):
        if broadcast_rule(x.shape, value.shape) != x.shape:
            raise ShapeError(f"{op}: {value.name} of shape {value.shape} does not broadcast to {x.shape}")
        y = y * value if step == "*" else y + value
    return with_gradient(y, [x, mean, var, *affine], _of_normalized, axes=axes, eps=eps)


@function(results=2)
def statistics_op(x: Node, axes: Any) -> tuple[Made, Made]:
    """Mean and variance (divided by the number of elements) of x along `axes`, which are kept with extent 1."""
    mean = mean_op(x, axes, keepdims=True)
    centred = x - mean
    return mean, mean_op(centred * centred, axes, keepdims=True)


@function(results=3)
def batch_norm_op(
    x: Node, weight: Node | None = None, bias: Node | None = None, axes: Any = None, eps: float = 1e-5
) -> tuple[Made, Made, Made]:
    """x normalised along `axes`, None for all but axis 1, that of the channels, times weight plus bias (both of the
    channels' number, or both None); with its mean and variance, axes kept, from which running ones are made.

    Raises GraphError for a weight without a bias.
    """
    if (weight is None) != (bias is None):
        raise GraphError("batch_norm: weight and bias are both given or both None")
    axes = tuple(axis for axis in range(len(x.shape)) if axis != 1) if axes is None else axes
    along, least = axes_of("batch_norm", x, axes), real("batch_norm", "eps", eps)
    mean, var = statistics_op(x, along)
    affine = [] if weight is None or bias is None else [reshape_op(value, mean.shape) for value in (weight, bias)]
    return _affine("batch_norm", x, mean, var, affine, along, least), mean, var


@function()
def layer_norm_op(
    x: Node, weight: Node | None = None, bias: Node | None = None, axes: Any = (-1,), eps: float = 1e-5
) -> Made:
    """x normalised along its last axes `axes`, times weight plus bias of the shape of these axes."""
    along, least = axes_of("layer_norm", x, axes), real("layer_norm", "eps", eps)
    affine = [] if weight is None else [weight] if bias is None else [weight, bias]
    y = _affine("layer_norm", x, *statistics_op(x, along), affine, along, least)
    return y + bias if weight is None and bias is not None else y
