"""Pooling of images, NCHW."""

from __future__ import annotations

from typing import Any

from ..autodiff import Node
from ..eager import known_shape
from ..errors import GraphError
from . import functional as F
from .conv import pair, shown
from .module import Module


class _Pool2d(Module):
    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0) -> None:
        """Integers or pairs (rows, columns); stride None is kernel_size, padding is at most its half. Raises
        GraphError."""
        owner = type(self).__name__
        self.kernel_size = pair(owner, "kernel_size", kernel_size, 1)
        self.stride = self.kernel_size if stride is None else pair(owner, "stride", stride, 1)
        self.padding = pair(owner, "padding", padding, 0)
        if any(2 * p > k for p, k in zip(self.padding, self.kernel_size, strict=True)):
            raise GraphError(
                f"{owner}: padding {self.padding} is more than half of the windows {self.kernel_size}"
            )

    def _require_fit(self, x: Node) -> None:
        shape = known_shape(x)
        if shape is not None:
            extents = zip(shape[2:], self.kernel_size, self.padding, strict=False)
            self.require(len(shape) == 4 and all(n + 2 * p >= k for n, k, p in extents), x)

    def extra_repr(self) -> str:
        stride = "" if self.stride == self.kernel_size else f", stride={shown(self.stride)}"
        padding = "" if self.padding == (0, 0) else f", padding={shown(self.padding)}"
        return f"kernel_size={shown(self.kernel_size)}{stride}{padding}"


class MaxPool2d(_Pool2d):
    """The maximum of each window: (N, C, H, W) -> (N, C, H', W'), H' = (H + 2 padding - kernel_size) // stride + 1."""

    def forward(self, x: Node) -> Node:
        self._require_fit(x)
        return F.max_pool2d(x, self.kernel_size, self.stride, self.padding)


class AvgPool2d(_Pool2d):
    """The mean of each window, shapes as of MaxPool2d. What of a window is padding counts as zeros, or not at all
    without `count_include_pad`."""

    def __init__(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, *, count_include_pad: bool = True
    ) -> None:
        super().__init__(kernel_size, stride, padding)
        self.count_include_pad = bool(count_include_pad)

    def forward(self, x: Node) -> Node:
        self._require_fit(x)
        return F.avg_pool2d(
            x, self.kernel_size, self.stride, self.padding, count_include_pad=self.count_include_pad
        )

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.count_include_pad else ", count_include_pad=False")


class AdaptiveAvgPool2d(Module):
    """The means of windows that share an image out evenly: (N, C, H, W) -> (N, C, *output_size)."""

    def __init__(self, output_size: Any) -> None:
        """Args: output_size: an integer or a pair (rows, columns). Raises GraphError."""
        self.output_size = pair("AdaptiveAvgPool2d", "output_size", output_size, 1)

    def forward(self, x: Node) -> Node:
        shape = known_shape(x)
        self.require(shape is None or (len(shape) == 4 and min(shape[2:]) > 0), x)
        return F.adaptive_avg_pool2d(x, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={shown(self.output_size)}"
