"""Activations that gate, shrink or cut."""

from __future__ import annotations

from ..autodiff import Node
from ..errors import GraphError
from . import functional as F
from .checks import known_shape
from .module import Module


class GLU(Module):
    """a * sigmoid(b) of the halves a and b of x along `dim`: Dauphin et al. (2017)."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim

    def forward(self, x: Node) -> Node:
        return F.glu(x, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class CELU(Module):
    """x where x > 0, else alpha * (exp(x / alpha) - 1)."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        """Raises GraphError for an alpha of 0."""
        if not alpha:
            raise GraphError("CELU: alpha must not be 0")
        self.alpha = alpha

    def forward(self, x: Node) -> Node:
        return F.celu(x, self.alpha)

    def extra_repr(self) -> str:
        return f"{self.alpha}"


class _Shrink(Module):
    def __init__(self, lambd: float = 0.5) -> None:
        """Raises GraphError for a lambd below 0."""
        if not lambd >= 0:
            raise GraphError(f"{type(self).__name__}: lambd must be a number >= 0, not {lambd!r}")
        self.lambd = lambd

    def extra_repr(self) -> str:
        return f"{self.lambd}"


class Hardshrink(_Shrink):
    """x where |x| > lambd, else 0."""

    def forward(self, x: Node) -> Node:
        return F.hardshrink(x, self.lambd)


class Softshrink(_Shrink):
    """x moved by lambd towards 0, which it does not cross."""

    def forward(self, x: Node) -> Node:
        return F.softshrink(x, self.lambd)


class Tanhshrink(Module):
    """x - tanh(x)."""

    def forward(self, x: Node) -> Node:
        return F.tanhshrink(x)


class Threshold(Module):
    """x where x > threshold, else value."""

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        self.threshold, self.value = threshold, value

    def forward(self, x: Node) -> Node:
        return F.threshold(x, self.threshold, self.value)

    def extra_repr(self) -> str:
        return f"threshold={self.threshold}, value={self.value}"


class RReLU(Module):
    """LeakyReLU, in training with slopes drawn from [lower, upper] for each element in each run, else with their
    mean: Xu et al. (2015)."""

    def __init__(self, lower: float = 1 / 8, upper: float = 1 / 3, inplace: bool = False) -> None:
        """Raises GraphError for limits that cross."""
        if not lower <= upper:
            raise GraphError(f"RReLU: lower must be at most upper, not {lower!r} and {upper!r}")
        self.lower, self.upper = lower, upper

    def forward(self, x: Node) -> Node:
        return F.rrelu(x, self.lower, self.upper, self.training)

    def extra_repr(self) -> str:
        return f"{self.lower:g}, {self.upper:g}"


class Softmin(Module):
    """Softmax of -x along `dim`."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim

    def forward(self, x: Node) -> Node:
        return F.softmin(x, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class Softmax2d(Module):
    """Softmax over the channels of images (N, C, H, W) or (C, H, W)."""

    def forward(self, x: Node) -> Node:
        shape = known_shape(x)
        self.require(shape is None or len(shape) in (3, 4), x)
        return F.softmax(x, -3)
