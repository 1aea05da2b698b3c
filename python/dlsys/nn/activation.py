"""Activations as modules. `inplace`, where PyTorch has it, changes nothing: the memory plan decides."""

from __future__ import annotations

from ..autodiff import Node
from ..errors import GraphError
from . import functional as F
from .module import Module


class ReLU(Module):
    """max(x, 0)."""

    def __init__(self, inplace: bool = False) -> None:
        pass

    def forward(self, x: Node) -> Node:
        return F.relu(x)


class ReLU6(Module):
    """x within [0, 6]."""

    def __init__(self, inplace: bool = False) -> None:
        pass

    def forward(self, x: Node) -> Node:
        return F.relu6(x)


class GELU(Module):
    """x times the normal distribution's function; approximate="tanh" takes a formula with tanh for it."""

    def __init__(self, approximate: str = "none") -> None:
        """Raises GraphError for another formula."""
        if approximate not in ("none", "tanh"):
            raise GraphError(f'GELU: approximate must be "none" or "tanh", not {approximate!r}')
        self.approximate = approximate

    def forward(self, x: Node) -> Node:
        return F.gelu(x, self.approximate)


class Tanh(Module):
    """tanh(x)."""

    def forward(self, x: Node) -> Node:
        return F.tanh(x)


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, x: Node) -> Node:
        return F.sigmoid(x)


class Softmax(Module):
    """exp(x) / sum(exp(x)) along `dim`."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim

    def forward(self, x: Node) -> Node:
        return F.softmax(x, self.dim)


class LogSoftmax(Module):
    """The logarithm of softmax along `dim`."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim

    def forward(self, x: Node) -> Node:
        return F.log_softmax(x, self.dim)
