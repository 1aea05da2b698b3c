"""Normalisation of each channel of each example, and across neighbouring channels."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from ..autodiff import Node
from . import functional as F
from . import init
from .checks import checked_eps, checked_extent, checked_share, known_shape
from .functional_windows import batched
from .module import Module


class _InstanceNorm(Module):
    """y = (x - mean) / sqrt(var + eps) * weight + bias, mean and var over the space of each channel of each example of
    (N, num_features, *space), or without N, whose shape must be known at the call: Ulyanov et al. (2016).

    With `track_running_stats`, whoever evaluates y in training moves the running statistics by `momentum`, None is 0,
    towards the means over the examples; in evaluation they are taken.

    Parameters: weight, bias (num_features,) with `affine`, ones and zeros. Buffers with `track_running_stats`:
    running_mean, running_var (num_features,), zeros and ones, num_batches_tracked, int64.
    """

    _axes: ClassVar[int]
    running_mean: Any
    running_var: Any
    num_batches_tracked: Any

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        *,
        dtype: str = "float32",
    ) -> None:
        """Raises GraphError."""
        name = type(self).__name__
        self.num_features, self.eps = checked_extent(name, "num_features", num_features), checked_eps(name, eps)
        self.momentum = 0.0 if momentum is None else checked_share(name, "momentum", momentum)
        self.affine, self.track_running_stats = bool(affine), bool(track_running_stats)
        self.weight = init.ones_(init.made((self.num_features,), dtype, "weight")) if affine else None
        self.bias = init.made((self.num_features,), dtype, "bias") if affine else None
        if track_running_stats:
            self.register_buffer("running_mean", np.zeros(self.num_features, dtype))
            self.register_buffer("running_var", np.ones(self.num_features, dtype))
            self.register_buffer("num_batches_tracked", np.zeros((), np.int64))
        else:
            self.running_mean = self.running_var = self.num_batches_tracked = None

    def reset_parameters(self) -> None:
        """Set the initial values anew."""
        init.reset_affine(self)

    def forward(self, x: Node) -> Node:
        shape = known_shape(x)
        own = self.training or not self.track_running_stats
        if shape is not None:
            fits = len(shape) in (1 + self._axes, 2 + self._axes) and shape[-1 - self._axes] == self.num_features
            self.require(fits and not (self.training and math.prod(shape[-self._axes :]) == 1), x)
        return batched(x, self._axes, lambda x: self._normalised(x, own))

    def _normalised(self, x: Node, own: bool) -> Node:
        return F.instance_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, own, self.momentum, self.eps
        )

    def extra_repr(self) -> str:
        settings = f"{self.num_features}" + (f", eps={self.eps:g}" if self.eps != 1e-5 else "")
        settings += "" if self.momentum == 0.1 else f", momentum={self.momentum}"
        settings += ", affine=True" if self.affine else ""
        return settings + (", track_running_stats=True" if self.track_running_stats else "")


class InstanceNorm1d(_InstanceNorm):
    """Instance normalisation of (N, num_features, L), see the base class."""

    _axes = 1


class InstanceNorm2d(_InstanceNorm):
    """Instance normalisation of (N, num_features, H, W), see the base class."""

    _axes = 2


class LocalResponseNorm(Module):
    """x / (k + alpha mean(x^2))^beta of (N, C, *space), the mean over `size` channels around each: Krizhevsky et al.
    (2012). The shape must be known at the call."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        """Raises GraphError."""
        self.size = checked_extent("LocalResponseNorm", "size", size)
        self.alpha, self.beta, self.k = alpha, beta, k

    def forward(self, x: Node) -> Node:
        return F.local_response_norm(x, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
