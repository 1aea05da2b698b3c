"""Padding of images, see `functional.pad`; shapes must be known at the call."""

from __future__ import annotations

from typing import Any

from ..autodiff import Node
from . import functional as F
from .checks import extents, known_shape, shown
from .module import Module


class _Pad(Module):
    """(..., *space) with more around its last `_axes` axes. padding: an integer, or (before, after) of the last axis,
    then of the one before, ...; less than 0 takes away."""

    _axes = 2
    value = 0.0

    def __init__(self, padding: Any) -> None:
        """Raises GraphError."""
        self.padding = extents(type(self).__name__, "padding", padding, -(2**31), 2 * self._axes)

    def forward(self, x: Node) -> Node:
        shape = known_shape(x)
        self.require(shape is None or len(shape) >= self._axes, x)
        return F.pad(x, self.padding, value=self.value)

    def extra_repr(self) -> str:
        return f"padding={shown(self.padding)}" + (f", value={self.value}" if self.value else "")


class ConstantPad2d(_Pad):
    """(..., H, W) with `value` around it. padding: an integer or (left, right, top, bottom)."""

    def __init__(self, padding: Any, value: float) -> None:
        """Raises GraphError."""
        super().__init__(padding)
        self.value = value


class ZeroPad2d(_Pad):
    """(..., H, W) with zeros around it. padding: an integer or (left, right, top, bottom)."""
