"""Layers of matrix products, and what only moves values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import GraphError
from . import functional as F
from . import init
from .checks import checked_extent, known_shape
from .module import Module


class Linear(Module):
    """y = x W^T + b: (..., in_features) -> (..., out_features).

    Parameters: weight (out_features, in_features), bias (out_features,), uniform in +-1 / sqrt(in_features) as in
    PyTorch.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, dtype: str = "float32"
    ) -> None:
        """Raises GraphError for what are no positive integers."""
        self.in_features = in_features = checked_extent("Linear", "in_features", in_features)
        self.out_features = out_features = checked_extent("Linear", "out_features", out_features)
        self.weight = init.made((out_features, in_features), dtype, "weight")
        self.bias = init.made((out_features,), dtype, "bias") if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the initial values anew."""
        init.kaiming_uniform_(self.weight, math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features)
            init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Node) -> Node:
        shape = known_shape(x)
        self.require(shape is None or shape[-1:] == (self.in_features,), x)
        product = ad.matmul_op(x, self.weight, trans_B=True)
        return product if self.bias is None else product + self.bias

    def extra_repr(self) -> str:
        return f"{self.in_features} → {self.out_features}{'' if self.bias is not None else ', bias=False'}"


class Bilinear(Module):
    """y_k = x1 W_k x2 + b_k: (..., in1_features), (..., in2_features) -> (..., out_features), of known shapes.

    Parameters: weight (out_features, in1_features, in2_features), bias (out_features,), uniform in
    +-1 / sqrt(in1_features).
    """

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        *,
        dtype: str = "float32",
    ) -> None:
        """Raises GraphError for what are no positive integers."""
        self.in1_features = checked_extent("Bilinear", "in1_features", in1_features)
        self.in2_features = checked_extent("Bilinear", "in2_features", in2_features)
        self.out_features = checked_extent("Bilinear", "out_features", out_features)
        self.weight = init.made((self.out_features, self.in1_features, self.in2_features), dtype, "weight")
        self.bias = init.made((self.out_features,), dtype, "bias") if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the initial values anew."""
        bound = 1 / math.sqrt(self.in1_features)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def forward(self, input1: Node, input2: Node) -> Node:
        return F.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        more = "" if self.bias is not None else ", bias=False"
        return f"{self.in1_features}, {self.in2_features} → {self.out_features}{more}"


class Identity(Module):
    """y = x. Takes any arguments and passes them over."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def forward(self, x: Node) -> Node:
        return x


class Flatten(Module):
    """The axes from `start_dim` to `end_dim` as one; by default all but the batch."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: Node) -> Node:
        return ad.flatten_op(x, self.start_dim, self.end_dim)


class Unflatten(Module):
    """The axis `dim` as several of the extents `unflattened_size`, of which one may be -1; x must be of known shape."""

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        """Raises GraphError."""
        self.dim = checked_extent("Unflatten", "dim", dim, -(2**31))
        if not isinstance(unflattened_size, Sequence) or isinstance(unflattened_size, str):
            raise GraphError(f"Unflatten: unflattened_size must be extents, not {unflattened_size!r}")
        self.unflattened_size = tuple(checked_extent("Unflatten", "an extent", n, -1) for n in unflattened_size)

    def forward(self, x: Node) -> Node:
        shape = known_shape(x)
        self.require(shape is not None and -len(shape) <= self.dim < len(shape), x)
        assert shape is not None
        at = self.dim % len(shape)
        known = math.prod(n for n in self.unflattened_size if n != -1)
        free = self.unflattened_size.count(-1)
        self.require(shape[at] == known if not free else free == 1 and known > 0 and shape[at] % known == 0, x)
        inner = [shape[at] // known if n == -1 else n for n in self.unflattened_size]
        return ad.reshape_op(x, (*shape[:at], *inner, *shape[at + 1 :]))

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"
