"""Batch and layer normalisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from .. import autodiff as ad
from ..checks import integer, number
from ..errors import GraphError
from ..graph import Node, Shape
from ..scopes import scopes
from ..tensors.evaluate import changing
from ..tensors.inplace import advance_op, advancing
from . import functional as F
from . import init
from .checks import known_shape
from .module import Module


class _BatchNorm(Module):
    """y = (x - mean) / sqrt(var + eps) * weight + bias for each channel, axis 1.

    In training mean and var are those of x, and whoever evaluates y moves the running ones towards them by `momentum`,
    with the unbiased variance; None: they become the means over all batches so far. In evaluation mean and var are the
    running ones, or x's own without `track_running_stats`. Several calls in training that are evaluated together move
    the running ones one after the other.

    Parameters: weight, bias (num_features,), ones and zeros. Buffers: running_mean, running_var (num_features,), zeros
    and ones, num_batches_tracked, int64.
    """

    _ranks: ClassVar[tuple[int, ...]]
    running_mean: Any
    running_var: Any
    num_batches_tracked: Any

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        """Raises GraphError for a number of features that is none."""
        self.num_features: int = integer(type(self).__name__, "num_features", num_features, 1)
        self.eps: float = number(type(self).__name__, "eps", eps)
        moved = None if momentum is None else number(type(self).__name__, "momentum", momentum, most=1)
        self.momentum: float | None = moved
        self.affine = affine
        self.track_running_stats = track_running_stats
        self.weight: ad.Parameter | None = init.ones_(init.made((num_features,), "weight")) if affine else None
        self.bias: ad.Parameter | None = init.made((num_features,), "bias") if affine else None
        if track_running_stats:
            self.register_buffer("running_mean", np.zeros(num_features, np.float32))
            self.register_buffer("running_var", np.ones(num_features, np.float32))
            self.register_buffer("num_batches_tracked", np.zeros((), np.int64))
        else:
            self.running_mean = self.running_var = self.num_batches_tracked = None

    def forward(self, x: Node) -> Node:
        shape = known_shape(x)
        if shape is not None:
            fits = len(shape) in self._ranks and shape[1] == self.num_features
            alone = fits and self.training and shape[0] * math.prod(shape[2:]) == 1  # no unbiased variance
            self.require(fits and not alone, x)
        training = self.training or not self.track_running_stats
        moves = self.training and self.track_running_stats and 0 not in (shape or ())
        momentum: Any = self.momentum
        mean, var = (self.running_mean, self.running_var) if moves or not training else (None, None)
        if not moves:
            return F.batch_norm(x, mean, var, self.weight, self.bias, training, momentum, self.eps)
        with changing:  # from the reading of the state to its writing
            later = x.is_open and scopes.recording is None  # at a run of an Executor
            advance = advancing if later else advance_op
            batches = advance(self.num_batches_tracked, lambda before: before + 1)
            if momentum is None:
                momentum = 1.0 / ad.cast_op(batches, self.running_mean.dtype)
            y = F.batch_norm(x, mean, var, self.weight, self.bias, training, momentum, self.eps)
            return ad.with_updates_op(y, [batches])


class BatchNorm1d(_BatchNorm):
    """Batch normalisation of (N, num_features) or (N, num_features, L), see the base class."""

    _ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Batch normalisation of (N, num_features, H, W), see the base class."""

    _ranks = (4,)


def _positive(owner: str, shape: int | Sequence[int]) -> Shape:
    """A normalized_shape as a tuple. Raises GraphError for what are no positive integers."""
    found: Shape = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)  # type: ignore[assignment]
    if not found or not all(type(extent) is int and extent > 0 for extent in found):
        raise GraphError(f"{owner}: normalized_shape must be positive integers, not {shape!r}")
    return found


class LayerNorm(Module):
    """y = (x - mean) / sqrt(var + eps) * weight + bias over the last axes: Ba et al. (2016). Parameters: weight, bias
    of `normalized_shape`, ones and zeros."""

    normalized_shape: Shape

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
    ) -> None:
        """Raises GraphError for what is no shape."""
        shape = self.normalized_shape = _positive("LayerNorm", normalized_shape)
        self.elementwise_affine = elementwise_affine
        self.eps: float = number("LayerNorm", "eps", eps)
        self.weight: ad.Parameter | None = init.ones_(init.made(shape, "weight")) if elementwise_affine else None
        self.bias: ad.Parameter | None = init.made(shape, "bias") if elementwise_affine and bias else None

    def forward(self, x: Node) -> Node:
        shape = known_shape(x)
        self.require(shape is None or shape[-len(self.normalized_shape) :] == self.normalized_shape, x)
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(Module):
    """y = x / sqrt(mean(x^2) + eps) * weight over the last axes: Zhang and Sennrich (2019). Parameter: weight of
    `normalized_shape`, ones."""

    normalized_shape: Shape

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
    ) -> None:
        """eps None is the dtype's distance of 1 to the next number. Raises GraphError for what is no shape."""
        shape = self.normalized_shape = _positive("RMSNorm", normalized_shape)
        self.elementwise_affine = elementwise_affine
        self.eps: float | None = None if eps is None else number("RMSNorm", "eps", eps)
        self.weight: ad.Parameter | None = init.ones_(init.made(shape, "weight")) if elementwise_affine else None

    def forward(self, x: Node) -> Node:
        shape = known_shape(x)
        self.require(shape is None or shape[-len(self.normalized_shape) :] == self.normalized_shape, x)
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)


class GroupNorm(Module):
    """y = (x - mean) / sqrt(var + eps) * weight + bias over groups of the channels, axis 1: Wu and He (2018).
    Parameters: weight, bias (num_channels,), ones and zeros."""

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
    ) -> None:
        """Raises GraphError for groups into which the channels do not divide."""
        self.num_groups: int = integer("GroupNorm", "num_groups", num_groups, 1)
        self.num_channels: int = integer("GroupNorm", "num_channels", num_channels, 1)
        if num_channels % num_groups:
            raise GraphError(f"GroupNorm: {num_channels} channels do not divide into {num_groups} groups")
        self.eps: float = number("GroupNorm", "eps", eps)
        self.affine = affine
        self.weight: ad.Parameter | None = init.ones_(init.made((num_channels,), "weight")) if affine else None
        self.bias: ad.Parameter | None = init.made((num_channels,), "bias") if affine else None

    def forward(self, x: Node) -> Node:
        shape = known_shape(x)
        self.require(shape is None or (len(shape) > 1 and shape[1] == self.num_channels), x)
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)
