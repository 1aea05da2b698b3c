"""Padding of images, see `functional.pad`; shapes must be known at the call."""

from __future__ import annotations

from typing import Any

from ..autodiff import Node
from ..checks import integers
from . import functional as F
from .checks import known_shape
from .module import Module


class ConstantPad2d(Module):
    """(..., H, W) with `value` around it. padding: an integer or (left, right, top, bottom)."""

    def __init__(self, padding: Any, value: float) -> None:
        """Raises GraphError."""
        self.padding, self.value = integers(type(self).__name__, "padding", padding, 0, 4), value

    def forward(self, x: Node) -> Node:
        shape = known_shape(x)
        self.require(shape is None or len(shape) >= 2, x)
        return F.pad(x, self.padding, value=self.value)


class ZeroPad2d(ConstantPad2d):
    """(..., H, W) with zeros around it. padding: an integer or (left, right, top, bottom)."""

    def __init__(self, padding: Any) -> None:
        """Raises GraphError."""
        super().__init__(padding, 0.0)
