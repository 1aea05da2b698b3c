"""Layers of matrix products, and what only moves values."""

from __future__ import annotations

import math

from .. import autodiff as ad
from ..autodiff import Node
from ..eager import known_shape
from . import init
from .module import Module


class Linear(Module):
    """y = x W^T + b: (..., in_features) -> (..., out_features).

    Parameters: weight (out_features, in_features), bias (out_features,), uniform in +-1 / sqrt(in_features) as in
    PyTorch.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, dtype: str = "float32"
    ) -> None:
        self.in_features, self.out_features = in_features, out_features
        self.weight = init.kaiming_uniform_(init.made((out_features, in_features), dtype, "weight"), math.sqrt(5))
        self.bias = None
        if bias:
            bound = 1 / math.sqrt(in_features) if in_features else 0.0
            self.bias = init.uniform_(init.made((out_features,), dtype, "bias"), -bound, bound)

    def forward(self, x: Node) -> Node:
        shape = known_shape(x)
        self.require(shape is None or shape[-1:] == (self.in_features,), x)
        product = ad.matmul_op(x, self.weight, trans_B=True)
        return product if self.bias is None else product + self.bias

    def extra_repr(self) -> str:
        return f"{self.in_features} → {self.out_features}{'' if self.bias is not None else ', bias=False'}"


class Identity(Module):
    """y = x."""

    def forward(self, x: Node) -> Node:
        return x


class Flatten(Module):
    """The axes from `start_dim` to `end_dim` as one; by default all but the batch."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: Node) -> Node:
        return ad.flatten_op(x, self.start_dim, self.end_dim)
