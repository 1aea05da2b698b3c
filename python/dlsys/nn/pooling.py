"""Pooling of images, NCHW; N may be left out where the shape is known."""

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
            spans = zip(shape[-self._axes :], self.kernel_size, self.padding, strict=False)
            self.require(fits and all(n + 2 * p >= k for n, k, p in spans), x)

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
        """Integers, or one of each axis (rows, columns); stride None is kernel_size, padding is at most its half.
        Raises GraphError, also for a dilation other than 1 and for `return_indices`, which are not built."""
        super().__init__(kernel_size, stride, padding, ceil_mode)
        if return_indices or dilation not in (1, (1, 1), [1, 1]):
            found = f"{dilation!r} and {return_indices!r}"
            raise GraphError(f"MaxPool2d: dilation must be 1 and return_indices False, not {found}")


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


class AdaptiveAvgPool2d(_Adaptive):
    """The means of windows that share an image out evenly: (N, C, H, W) -> (N, C, *output_size)."""

    def forward(self, x: Node) -> Node:
        self._require_fit(x)
        return F.adaptive_avg_pool2d(x, self.output_size)
