"""Pooling of sequences, NCL, and images, NCHW; padding and enlarging of images."""

from __future__ import annotations

from typing import Any

from ..autodiff import Node
from ..errors import GraphError
from . import functional as F
from .checks import extents, known_shape, pair, shown
from .module import Module


class _Pool(Module):
    """Windows along `_axes` axes."""

    _axes = 2

    def __init__(self, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool) -> None:
        owner = type(self).__name__
        self.kernel_size = extents(owner, "kernel_size", kernel_size, 1, self._axes)
        self.stride = self.kernel_size if stride is None else extents(owner, "stride", stride, 1, self._axes)
        self.padding = extents(owner, "padding", padding, 0, self._axes)
        self.ceil_mode = bool(ceil_mode)
        if any(2 * p > k for p, k in zip(self.padding, self.kernel_size, strict=True)):
            raise GraphError(
                f"{owner}: padding {self.padding} is more than half of the windows {self.kernel_size}"
            )

    def _require_fit(self, x: Node) -> None:
        shape = known_shape(x)
        if shape is not None:
            spans = zip(shape[2:], self.kernel_size, self.padding, strict=False)
            self.require(len(shape) == 2 + self._axes and all(n + 2 * p >= k for n, k, p in spans), x)

    def extra_repr(self) -> str:
        stride = "" if self.stride == self.kernel_size else f", stride={shown(self.stride)}"
        padding = "" if not max(self.padding) else f", padding={shown(self.padding)}"
        return f"kernel_size={shown(self.kernel_size)}{stride}{padding}{', ceil_mode=True' if self.ceil_mode else ''}"


class _MaxPool(_Pool):
    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        """Integers, or one of each axis (rows, columns); stride None is kernel_size, padding is at most its half;
        dilation must be 1 and return_indices False. Raises GraphError."""
        super().__init__(kernel_size, stride, padding, ceil_mode)
        owner = type(self).__name__
        if max(extents(owner, "dilation", dilation, 1, self._axes)) > 1 or return_indices:
            raise GraphError(f"{owner}: dilation and return_indices are not supported")


class MaxPool1d(_MaxPool):
    """The maximum of each window: (N, C, L) -> (N, C, L'), L' = (L + 2 padding - kernel_size) // stride + 1, rounded up
    with `ceil_mode`."""

    _axes = 1

    def forward(self, x: Node) -> Node:
        self._require_fit(x)
        return F.max_pool1d(x, self.kernel_size, self.stride, self.padding, ceil_mode=self.ceil_mode)


class MaxPool2d(_MaxPool):
    """The maximum of each window: (N, C, H, W) -> (N, C, H', W'), H' = (H + 2 padding - kernel_size) // stride + 1,
    rounded up with `ceil_mode`."""

    def forward(self, x: Node) -> Node:
        self._require_fit(x)
        return F.max_pool2d(x, self.kernel_size, self.stride, self.padding, ceil_mode=self.ceil_mode)


class _AvgPool(_Pool):
    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        """Integers, or one of each axis (rows, columns); stride None is kernel_size, padding is at most its half.
        Raises GraphError."""
        super().__init__(kernel_size, stride, padding, ceil_mode)
        self.count_include_pad = bool(count_include_pad)

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.count_include_pad else ", count_include_pad=False")


class AvgPool1d(_AvgPool):
    """The mean of each window, shapes as of MaxPool1d. What of a window is padding counts as zeros, or not at all
    without `count_include_pad`."""

    _axes = 1

    def forward(self, x: Node) -> Node:
        self._require_fit(x)
        settings = (self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)
        return F.avg_pool1d(x, *settings)


class AvgPool2d(_AvgPool):
    """The mean of each window, shapes as of MaxPool2d. What of a window is padding counts as zeros, or not at all
    without `count_include_pad`."""

    def forward(self, x: Node) -> Node:
        self._require_fit(x)
        settings = (self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)
        return F.avg_pool2d(x, *settings)


class _Adaptive(Module):
    """Windows that share an example out evenly along `_axes` axes."""

    _axes = 2

    def __init__(self, output_size: Any) -> None:
        """Args: output_size: an integer, or one of each axis (rows, columns). Raises GraphError."""
        self.output_size = extents(type(self).__name__, "output_size", output_size, 1, self._axes)

    def _require_fit(self, x: Node) -> None:
        shape = known_shape(x)
        self.require(shape is None or (len(shape) == 2 + self._axes and min(shape[2:]) > 0), x)

    def extra_repr(self) -> str:
        return f"output_size={shown(self.output_size)}"


class AdaptiveAvgPool1d(_Adaptive):
    """The means of windows that share a sequence out evenly: (N, C, L) -> (N, C, output_size)."""

    _axes = 1

    def forward(self, x: Node) -> Node:
        self._require_fit(x)
        return F.adaptive_avg_pool1d(x, self.output_size)


class AdaptiveAvgPool2d(_Adaptive):
    """The means of windows that share an image out evenly: (N, C, H, W) -> (N, C, *output_size)."""

    def forward(self, x: Node) -> Node:
        self._require_fit(x)
        return F.adaptive_avg_pool2d(x, self.output_size)


class AdaptiveMaxPool1d(_Adaptive):
    """The maxima of windows that share a sequence out evenly: (N, C, L) -> (N, C, output_size)."""

    _axes = 1

    def forward(self, x: Node) -> Node:
        self._require_fit(x)
        return F.adaptive_max_pool1d(x, self.output_size)


class AdaptiveMaxPool2d(_Adaptive):
    """The maxima of windows that share an image out evenly: (N, C, H, W) -> (N, C, *output_size)."""

    def forward(self, x: Node) -> Node:
        self._require_fit(x)
        return F.adaptive_max_pool2d(x, self.output_size)


class ConstantPad2d(Module):
    """Images (N, C, H, W), of known shape, with `value` around them. padding is an integer or (left, right, top,
    bottom)."""

    def __init__(self, padding: Any, value: float) -> None:
        """Raises GraphError."""
        self.padding = extents(type(self).__name__, "padding", padding, 0, 4)
        self.value = value

    def forward(self, x: Node) -> Node:
        return F.pad(x, self.padding, value=self.value)

    def extra_repr(self) -> str:
        return f"padding={shown(self.padding)}" + (f", value={self.value}" if self.value else "")


class ZeroPad2d(ConstantPad2d):
    """ConstantPad2d with zeros."""

    def __init__(self, padding: Any) -> None:
        """Raises GraphError."""
        super().__init__(padding, 0.0)


class Upsample(Module):
    """Images (N, C, H, W), of known shape, with every element repeated `scale_factor` times, an integer or a pair
    (rows, columns)."""

    def __init__(self, size: Any = None, scale_factor: Any = None, mode: str = "nearest") -> None:
        """Raises GraphError for a size and for other modes than "nearest", which are not supported."""
        if size is not None or mode != "nearest":
            raise GraphError('Upsample: only scale_factor and mode="nearest" are supported')
        if isinstance(scale_factor, float) and scale_factor.is_integer():
            scale_factor = int(scale_factor)
        self.scale_factor = pair("Upsample", "scale_factor", scale_factor, 1)

    def forward(self, x: Node) -> Node:
        shape = known_shape(x)
        self.require(shape is None or len(shape) == 4, x)
        return F.interpolate(x, scale_factor=self.scale_factor)

    def extra_repr(self) -> str:
        return f"scale_factor={shown(self.scale_factor)}"
