"""Pooling of sequences, NCL, and images, NCHW; N may be left out where the shape is known."""

from __future__ import annotations

from typing import Any

from ..autodiff import Node
from ..errors import GraphError
from . import functional as F
from .checks import extents, known_shape, shown
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
            fits = len(shape) in (1 + self._axes, 2 + self._axes)
            spans = zip(shape[-self._axes :], self._spans(), self.padding, strict=False)
            self.require(fits and all(n + 2 * p >= k for n, k, p in spans), x)

    def _spans(self) -> list[int]:
        """How much of each axis a window covers."""
        return list(self.kernel_size)

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
        dilation: from one element of a window to the next; return_indices: whether `forward` gives (maxima, places) for
        MaxUnpool. These two need an input of known shape. Raises GraphError."""
        super().__init__(kernel_size, stride, padding, ceil_mode)
        self.dilation = extents(type(self).__name__, "dilation", dilation, 1, self._axes)
        self.return_indices = bool(return_indices)

    def _spans(self) -> list[int]:
        return [d * (k - 1) + 1 for k, d in zip(self.kernel_size, self.dilation, strict=True)]

    def extra_repr(self) -> str:
        more = f", dilation={shown(self.dilation)}" if max(self.dilation) > 1 else ""
        return super().extra_repr() + more + (", return_indices=True" if self.return_indices else "")


class MaxPool1d(_MaxPool):
    """The maximum of each window: (N, C, L) -> (N, C, L'), L' = (L + 2 padding - kernel_size) // stride + 1, rounded up
    with `ceil_mode`."""

    _axes = 1

    def forward(self, x: Node) -> Any:
        self._require_fit(x)
        settings = (self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices)
        return F.max_pool1d(x, *settings)


class MaxPool2d(_MaxPool):
    """The maximum of each window: (N, C, H, W) -> (N, C, H', W'), H' = (H + 2 padding - kernel_size) // stride + 1,
    rounded up with `ceil_mode`."""

    def forward(self, x: Node) -> Any:
        self._require_fit(x)
        settings = (self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices)
        return F.max_pool2d(x, *settings)


class _MaxUnpool(Module):
    _axes = 2

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0) -> None:
        """Those of the pooling that is undone. Raises GraphError."""
        owner = type(self).__name__
        self.kernel_size = extents(owner, "kernel_size", kernel_size, 1, self._axes)
        self.stride = self.kernel_size if stride is None else extents(owner, "stride", stride, 1, self._axes)
        self.padding = extents(owner, "padding", padding, 0, self._axes)

    def extra_repr(self) -> str:
        settings = f"kernel_size={shown(self.kernel_size)}, stride={shown(self.stride)}"
        return settings + (f", padding={shown(self.padding)}" if max(self.padding) else "")


class MaxUnpool1d(_MaxUnpool):
    """MaxPool1d undone, see `functional.max_unpool1d`: (x, indices) or (x, indices, output_size), of known shapes."""

    _axes = 1

    def forward(self, x: Node, indices: Node, output_size: Any = None) -> Node:
        return F.max_unpool1d(x, indices, self.kernel_size, self.stride, self.padding, output_size)


class MaxUnpool2d(_MaxUnpool):
    """MaxPool2d undone, see `functional.max_unpool2d`: (x, indices) or (x, indices, output_size), of known shapes."""

    def forward(self, x: Node, indices: Node, output_size: Any = None) -> Node:
        return F.max_unpool2d(x, indices, self.kernel_size, self.stride, self.padding, output_size)


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
    output_size: tuple[int | None, ...]

    def __init__(self, output_size: Any) -> None:
        """Args: output_size: an integer, or one of each axis (rows, columns), of which None keeps the extent. Raises
        GraphError."""
        owner = type(self).__name__
        if isinstance(output_size, (tuple, list)) and self._axes > 1:
            one = extents(owner, "output_size", [1 if n is None else n for n in output_size], 1, self._axes)
            self.output_size = tuple(None if n is None else m for n, m in zip(output_size, one, strict=True))
        else:
            self.output_size = extents(owner, "output_size", output_size, 1, self._axes)

    def _require_fit(self, x: Node) -> None:
        shape = known_shape(x)
        fits = shape is None or (len(shape) in (1 + self._axes, 2 + self._axes) and min(shape[-self._axes :]) > 0)
        self.require(fits, x)

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
