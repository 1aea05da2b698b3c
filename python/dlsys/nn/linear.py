"""Layers of matrix products, and what only moves values."""

from __future__ import annotations

import math
from typing import Any

from .. import autodiff as ad
from ..autodiff import Node
from ..checks import integer
from . import init
from .checks import known_shape, placed
from .module import Module


class Linear(Module):
    """y = x W^T + b: (..., in_features) -> (..., out_features).

    Parameters: weight (out_features, in_features), bias (out_features,), uniform in +-1 / sqrt(in_features) as in
    PyTorch.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        """Raises GraphError for what are no positive integers."""
        dtype = placed(device, dtype)
        self.in_features = in_features = integer("Linear", "in_features", in_features, 1)
        self.out_features = out_features = integer("Linear", "out_features", out_features, 1)
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
