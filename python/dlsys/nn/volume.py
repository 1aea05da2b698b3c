"""Layers of volumes, NCDHW, whose shapes must be known; see `functional_volume`. Without N but for batch norm, too."""

from __future__ import annotations

from typing import Any

from ..autodiff import Node
from ..errors import GraphError
from . import functional as F
from .conv import _Forward
from .module import Module
from .norm import _BatchNorm
from .pooling import _AvgPool, _MaxPool


class Conv3d(_Forward):
    """Cross-correlation: (N, in_channels, D, H, W) -> (N, out_channels, D', H', W'), extents as of `Conv2d`.

    Parameters: weight (out_channels, in_channels / groups, *kernel_size), bias (out_channels,), uniform in
    +-1 / sqrt(fan_in) as in PyTorch.
    """

    _axes = 3

    def forward(self, x: Node) -> Node:
        x, padding = self._padded(x)
        return F.conv3d(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)


class MaxPool3d(_MaxPool):
    """The maximum of each window: (N, C, D, H, W) -> (N, C, D', H', W'), extents as of `MaxPool2d`."""

    _axes = 3

    def forward(self, x: Node) -> Node:
        """Raises GraphError for `return_indices`."""
        if self.return_indices:
            raise GraphError("MaxPool3d: return_indices=True, the places of maxima, does not exist here")
        self._require_fit(x)
        return F.max_pool3d(x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)


class AvgPool3d(_AvgPool):
    """The mean of each window: (N, C, D, H, W) -> (N, C, D', H', W'), extents as of `AvgPool2d`."""

    _axes = 3

    def forward(self, x: Node) -> Node:
        self._require_fit(x)
        return F.avg_pool3d(x, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)


class AdaptiveAvgPool3d(Module):
    """The means of windows that share volumes out evenly: (N, C, D, H, W) -> (N, C, *output_size), of which None keeps
    the extent."""

    def __init__(self, output_size: Any) -> None:
        self.output_size = output_size

    def forward(self, x: Node) -> Node:
        """Raises GraphError, ShapeError."""
        return F.adaptive_avg_pool3d(x, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class BatchNorm3d(_BatchNorm):
    """Batch normalisation of (N, num_features, D, H, W), see the base class."""

    _ranks = (5,)
