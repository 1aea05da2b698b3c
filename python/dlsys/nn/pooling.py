"""Pooling of images, NCHW; N may be left out where the shape is known."""

from __future__ import annotations

from typing import Any

from ..autodiff import Node
from ..errors import GraphError
from . import functional as F
from .checks import known_shape, pair, shown
from .module import Module


class _Pool(Module):
    """Windows of images: integers or pairs (rows, columns)."""

    def _set(self, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool) -> None:
        """Keep the settings, checked. Raises GraphError."""
        owner = type(self).__name__
        self.kernel_size = pair(owner, "kernel_size", kernel_size, 1)
        self.stride = self.kernel_size if stride is None else pair(owner, "stride", stride, 1)
        self.padding = pair(owner, "padding", padding, 0)
        self.ceil_mode = bool(ceil_mode)
        if any(2 * p > k for p, k in zip(self.padding, self.kernel_size, strict=True)):
            told = f"padding {self.padding} is more than half of the windows {self.kernel_size}"
            raise GraphError(f"{owner}: {told}")

    def _require_fit(self, x: Node) -> None:
        shape = known_shape(x)
        if shape is not None:
            spans = zip(shape[-2:], self.kernel_size, self.padding, strict=False)
            self.require(len(shape) in (3, 4) and all(n + 2 * p >= k for n, k, p in spans), x)

    def extra_repr(self) -> str:
        stride = "" if self.stride == self.kernel_size else f", stride={shown(self.stride)}"
        padding = "" if not max(self.padding) else f", padding={shown(self.padding)}"
        return f"kernel_size={shown(self.kernel_size)}{stride}{padding}{', ceil_mode=True' if self.ceil_mode else ''}"


class MaxPool2d(_Pool):
    """The maximum of each window: (N, C, H, W) -> (N, C, H', W'), H' = (H + 2 padding - kernel_size) // stride + 1,
    rounded up with `ceil_mode`."""

    def __init__(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> None:
        """stride None is kernel_size, padding is at most its half. Raises GraphError, also for a dilation other than
        1."""
        self._set(kernel_size, stride, padding, ceil_mode)
        if dilation not in (1, (1, 1), [1, 1]):
            raise GraphError(f"MaxPool2d: dilation must be 1, not {dilation!r}")

    def forward(self, x: Node) -> Node:
        self._require_fit(x)
        return F.max_pool2d(x, self.kernel_size, self.stride, self.padding, ceil_mode=self.ceil_mode)


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
        """stride None is kernel_size, padding is at most its half. Raises GraphError."""
        self._set(kernel_size, stride, padding, ceil_mode)
        self.count_include_pad = bool(count_include_pad)

    def forward(self, x: Node) -> Node:
        self._require_fit(x)
        settings = (self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)
        return F.avg_pool2d(x, *settings)

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.count_include_pad else ", count_include_pad=False")


class AdaptiveAvgPool2d(Module):
    """The means of windows that share an image out evenly: (N, C, H, W) -> (N, C, *output_size)."""

    def __init__(self, output_size: Any) -> None:
        """Args: output_size: an integer or a pair (rows, columns). Raises GraphError."""
        self.output_size = pair("AdaptiveAvgPool2d", "output_size", output_size, 1)

    def forward(self, x: Node) -> Node:
        shape = known_shape(x)
        self.require(shape is None or (len(shape) in (3, 4) and min(shape[-2:]) > 0), x)
        return F.adaptive_avg_pool2d(x, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={shown(self.output_size)}"
