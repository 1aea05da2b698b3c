"""Padding of sequences and images, see `functional.pad`; shapes must be known at the call."""

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
    _mode = "constant"
    value = 0.0

    def __init__(self, padding: Any) -> None:
        """Raises GraphError."""
        self.padding = extents(type(self).__name__, "padding", padding, -(2**31), 2 * self._axes)

    def forward(self, x: Node) -> Node:
        shape = known_shape(x)
        self.require(shape is None or len(shape) >= self._axes, x)
        return F.pad(x, self.padding, self._mode, self.value)

    def extra_repr(self) -> str:
        return f"padding={shown(self.padding)}" + (f", value={self.value}" if self.value else "")


class ConstantPad1d(_Pad):
    """(..., L) with `value` around it. padding: an integer or (left, right)."""

    _axes = 1

    def __init__(self, padding: Any, value: float) -> None:
        """Raises GraphError."""
        super().__init__(padding)
        self.value = value


class ConstantPad2d(ConstantPad1d):
    """(..., H, W) with `value` around it. padding: an integer or (left, right, top, bottom)."""

    _axes = 2


class ConstantPad3d(ConstantPad1d):
    """(..., D, H, W) with `value` around it. padding: an integer or (left, right, top, bottom, front, back)."""

    _axes = 3


class ZeroPad1d(_Pad):
    """(..., L) with zeros around it. padding: an integer or (left, right)."""

    _axes = 1


class ZeroPad2d(_Pad):
    """(..., H, W) with zeros around it. padding: an integer or (left, right, top, bottom)."""


class ZeroPad3d(_Pad):
    """(..., D, H, W) with zeros around it. padding: an integer or (left, right, top, bottom, front, back)."""

    _axes = 3


class ReflectionPad1d(_Pad):
    """(..., L) mirrored at its ends. padding: an integer or (left, right)."""

    _axes, _mode = 1, "reflect"


class ReflectionPad2d(_Pad):
    """(..., H, W) mirrored at its edges. padding: an integer or (left, right, top, bottom)."""

    _mode = "reflect"


class ReplicationPad1d(_Pad):
    """(..., L) with its ends repeated. padding: an integer or (left, right)."""

    _axes, _mode = 1, "replicate"


class ReplicationPad2d(_Pad):
    """(..., H, W) with its edges repeated. padding: an integer or (left, right, top, bottom)."""

    _mode = "replicate"


class CircularPad1d(_Pad):
    """(..., L) with the values of the other end. padding: an integer or (left, right)."""

    _axes, _mode = 1, "circular"


class CircularPad2d(_Pad):
    """(..., H, W) with the values of the other edge. padding: an integer or (left, right, top, bottom)."""

    _mode = "circular"
