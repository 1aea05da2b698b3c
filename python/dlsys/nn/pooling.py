"""Pooling of images, NCHW."""

from __future__ import annotations

from typing import Any

from ..autodiff import Node
from ..checks import pair
from ..errors import GraphError
from . import functional as F
from .checks import known_shape
from .module import Module


class _Pool(Module):
    """Windows of images: integers or pairs (rows, columns)."""

    def _set(self, kernel_size: Any, stride: Any, padding: Any, **idle: Any) -> None:
        """Keep the settings, checked. Raises GraphError, also for another than PyTorch's default of those that are not
        built."""
        owner = type(self).__name__
        for name, value in idle.items():
            if value not in (False, 1):
                raise GraphError(f"{owner}: {name}={value!r} is not built")
        self.kernel_size = pair(owner, "kernel_size", kernel_size, 1)
        self.stride = self.kernel_size if stride is None else pair(owner, "stride", stride, 1)
        self.padding = pair(owner, "padding", padding, 0)
        if any(2 * p > k for p, k in zip(self.padding, self.kernel_size, strict=True)):
            told = f"padding {self.padding} is more than half of the windows {self.kernel_size}"
            raise GraphError(f"{owner}: {told}")

    def _require_fit(self, x: Node) -> None:
        shape = known_shape(x)
        if shape is not None:
            spans = zip(shape[-2:], self.kernel_size, self.padding, strict=False)
            self.require(len(shape) == 4 and all(n + 2 * p >= k for n, k, p in spans), x)


class MaxPool2d(_Pool):
    """The maximum of each window: (N, C, H, W) -> (N, C, H', W'), H' = (H + 2 padding - kernel_size) // stride + 1."""

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        """stride None is kernel_size, padding is at most its half; of the others PyTorch's defaults alone are built.
        Raises GraphError."""
        self._set(kernel_size, stride, padding, dilation=dilation, return_indices=return_indices, ceil_mode=ceil_mode)

    def forward(self, x: Node) -> Node:
        self._require_fit(x)
        return F.max_pool2d(x, self.kernel_size, self.stride, self.padding)


class AvgPool2d(_Pool):
    """The mean of each window, shapes as of MaxPool2d. What of a window is padding counts as zeros, or not at all
    without `count_include_pad`."""

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        """stride None is kernel_size, padding is at most its half. Raises GraphError, also for `ceil_mode`."""
        self._set(kernel_size, stride, padding, ceil_mode=ceil_mode)
        self.count_include_pad = bool(count_include_pad)

    def forward(self, x: Node) -> Node:
        self._require_fit(x)
        return F.avg_pool2d(x, self.kernel_size, self.stride, self.padding, False, self.count_include_pad)


class AdaptiveAvgPool2d(Module):
    """The means of equal windows: (N, C, H, W) -> (N, C, *output_size)."""

    def __init__(self, output_size: Any) -> None:
        """Args: output_size: an integer or a pair (rows, columns). Raises GraphError."""
        self.output_size = pair("AdaptiveAvgPool2d", "output_size", output_size, 1)

    def forward(self, x: Node) -> Node:
        shape = known_shape(x)
        self.require(shape is None or (len(shape) == 4 and min(shape[-2:]) > 0), x)
        return F.adaptive_avg_pool2d(x, self.output_size)
