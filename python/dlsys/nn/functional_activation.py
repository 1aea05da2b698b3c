"""Activations as functions, by the names and in the argument order of torch.nn.functional.

`inplace` changes nothing: the memory plan decides what is written where.
"""

from __future__ import annotations

from typing import Any

from .. import autodiff as ad
from ..autodiff import Node


def relu(input: Node, inplace: bool = False) -> Node:
    """max(x, 0)."""
    return ad.relu_op(input)


def leaky_relu(input: Node, negative_slope: float = 0.01, inplace: bool = False) -> Node:
    """x where x > 0, else negative_slope x."""
    return ad.leaky_relu_op(input, negative_slope)


def gelu(input: Node, approximate: str = "none") -> Node:
    """x times the normal distribution's function; approximate="tanh" takes a formula with tanh for it."""
    return ad.gelu_op(input, approximate)


def silu(input: Node, inplace: bool = False) -> Node:
    """x sigmoid(x)."""
    return ad.silu_op(input)


def sigmoid(input: Node) -> Node:
    """1 / (1 + exp(-x))."""
    return ad.sigmoid_op(input)


def tanh(input: Node) -> Node:
    """tanh(x)."""
    return ad.tanh_op(input)


def relu6(input: Node, inplace: bool = False) -> Node:
    """x within [0, 6]; the derivative is 0 at 0 and at 6."""
    return ad.where_op(input >= 6.0, 6.0, ad.relu_op(input))


def softmax(input: Node, dim: int = -1, *, dtype: Any = None) -> Node:
    """exp(x) / sum(exp(x)) along `dim`; computed in `dtype`, if given."""
    return ad.softmax_op(input if dtype is None else ad.cast_op(input, dtype), dim)


def log_softmax(input: Node, dim: int = -1, *, dtype: Any = None) -> Node:
    """The logarithm of softmax along `dim`."""
    return ad.log_softmax_op(input if dtype is None else ad.cast_op(input, dtype), dim)
