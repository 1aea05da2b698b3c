"""Activations as modules. `inplace`, where PyTorch has it, changes nothing: the memory plan decides."""

from __future__ import annotations

from ..autodiff import Node
from ..errors import GraphError
from . import functional as F
from .checks import checked_extent, known_shape
from .init import constant_, made
from .module import Module


class ReLU(Module):
    """max(x, 0)."""

    def __init__(self, inplace: bool = False) -> None:
        pass

    def forward(self, x: Node) -> Node:
        return F.relu(x)


class LeakyReLU(Module):
    """x where x > 0, else negative_slope * x."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        self.negative_slope = negative_slope

    def forward(self, x: Node) -> Node:
        return F.leaky_relu(x, self.negative_slope)

    def extra_repr(self) -> str:
        return f"{self.negative_slope}"


class ELU(Module):
    """x where x > 0, else alpha * (exp(x) - 1)."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        self.alpha = alpha

    def forward(self, x: Node) -> Node:
        return F.elu(x, self.alpha)

    def extra_repr(self) -> str:
        return f"{self.alpha}"


class SELU(Module):
    """1.0507 elu(x, 1.6733): Klambauer et al. (2017)."""

    def __init__(self, inplace: bool = False) -> None:
        pass

    def forward(self, x: Node) -> Node:
        return F.selu(x)


class PReLU(Module):
    """x where x > 0, else weight * x, of all or of each channel of (N, num_parameters, ...): He et al. (2015).

    Parameters: weight (num_parameters,), filled with `init`.
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25, *, dtype: str = "float32") -> None:
        """Raises GraphError."""
        self.num_parameters = checked_extent("PReLU", "num_parameters", num_parameters)
        self.weight = constant_(made((self.num_parameters,), dtype, "weight"), init)

    def forward(self, x: Node) -> Node:
        shape = known_shape(x)
        self.require(shape is None or self.num_parameters in (1, *shape[1:2]), x)
        return F.prelu(x, self.weight)

    def extra_repr(self) -> str:
        return f"{self.num_parameters}"


class Hardtanh(Module):
    """x within [min_val, max_val]."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        """Raises GraphError for bounds that cross."""
        if not min_val < max_val:
            raise GraphError(f"Hardtanh: min_val must be less than max_val, not {min_val!r} and {max_val!r}")
        self.min_val, self.max_val = min_val, max_val

    def forward(self, x: Node) -> Node:
        return F.hardtanh(x, self.min_val, self.max_val)

    def extra_repr(self) -> str:
        return f"{self.min_val}, {self.max_val}"


class ReLU6(Module):
    """x within [0, 6]."""

    def __init__(self, inplace: bool = False) -> None:
        pass

    def forward(self, x: Node) -> Node:
        return F.relu6(x)


class Hardsigmoid(Module):
    """relu6(x + 3) / 6."""

    def __init__(self, inplace: bool = False) -> None:
        pass

    def forward(self, x: Node) -> Node:
        return F.hardsigmoid(x)


class Hardswish(Module):
    """x * relu6(x + 3) / 6."""

    def __init__(self, inplace: bool = False) -> None:
        pass

    def forward(self, x: Node) -> Node:
        return F.hardswish(x)


class Mish(Module):
    """x * tanh(log(1 + exp(x))): Misra (2019)."""

    def __init__(self, inplace: bool = False) -> None:
        pass

    def forward(self, x: Node) -> Node:
        return F.mish(x)


class LogSigmoid(Module):
    """The logarithm of sigmoid."""

    def forward(self, x: Node) -> Node:
        return F.logsigmoid(x)


class Softsign(Module):
    """x / (1 + |x|)."""

    def forward(self, x: Node) -> Node:
        return F.softsign(x)


class GELU(Module):
    """x times the normal distribution's function; approximate="tanh" takes a formula with tanh for it."""

    def __init__(self, approximate: str = "none") -> None:
        """Raises GraphError for another formula."""
        if approximate not in ("none", "tanh"):
            raise GraphError(f'GELU: approximate must be "none" or "tanh", not {approximate!r}')
        self.approximate = approximate

    def forward(self, x: Node) -> Node:
        return F.gelu(x, self.approximate)

    def extra_repr(self) -> str:
        return "" if self.approximate == "none" else f"approximate={self.approximate!r}"


class SiLU(Module):
    """x * sigmoid(x)."""

    def __init__(self, inplace: bool = False) -> None:
        pass

    def forward(self, x: Node) -> Node:
        return F.silu(x)


class Softplus(Module):
    """log(1 + exp(beta x)) / beta, exact for all x: `threshold` changes nothing."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        self.beta = beta

    def forward(self, x: Node) -> Node:
        return F.softplus(x, self.beta)

    def extra_repr(self) -> str:
        return "" if self.beta == 1 else f"beta={self.beta}"


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

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class LogSoftmax(Module):
    """The logarithm of softmax along `dim`."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim

    def forward(self, x: Node) -> Node:
        return F.log_softmax(x, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"
