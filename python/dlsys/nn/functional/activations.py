"""Activations, softmax and dropout."""

from __future__ import annotations

import math

from ... import autodiff as ad
from ...checks import flag, number, real
from ...errors import ShapeError
from ...graph import Node
from ...ops.replay import composition, function
from ...random import default_generator
from ...tensors import Tensor
from ...tensors.arguments import node_of
from ...tensors.elementwise import expm1, log1p
from ...tensors.shapes import split
from ..checks import require_nodes, shape_of
from .products import per_channel


@composition
def relu6(input: Node) -> Tensor:
    """x within [0, 6]; the derivative is 0 at 0 and at 6."""
    rectified = ad.relu_op(input)
    return ad.where_op(input >= 6.0, 6.0, rectified)


def gelu(input: Node, approximate: str = "none") -> Tensor:
    """x times the normal distribution's function; approximate="tanh" takes a formula with tanh for it."""
    return ad.gelu_op(input, approximate)


@composition
def silu(input: Node) -> Tensor:
    """x sigmoid(x)."""
    return input * ad.sigmoid_op(input)


@composition
def hardswish(input: Node) -> Tensor:
    """x relu6(x + 3) / 6."""
    return input * hardsigmoid(input)


@composition
def hardsigmoid(input: Node) -> Tensor:
    """relu6(x + 3) / 6."""
    return relu6(ad.add_op(input, 3.0)) * (1 / 6)


@composition
def mish(input: Node) -> Tensor:
    """x tanh(softplus(x)): Misra (2020)."""
    return input * ad.tanh_op(softplus(input))


@function(on_tensors=True)
def prelu(input: Node, weight: Node) -> Tensor:
    """x where x > 0, else weight x; weight of one element, or (C,) for x (N, C, *space). Raises ShapeError for
    others."""
    space, alone = len(input.shape) - 2, math.prod(weight.shape) == 1
    if not alone and weight.shape != input.shape[1:2]:
        told = f"{weight.name} of shape {weight.shape} is not one number for each channel of {input.shape}"
        raise ShapeError(f"prelu: {told}")
    slope = ad.reshape_op(weight, ()) if alone else per_channel(weight, space)
    return ad.where_op(ad.greater_op(input, 0.0), input, input * slope)


@composition
def leaky_relu(input: Node, negative_slope: float = 0.01) -> Tensor:
    """x where x > 0, else negative_slope x."""
    slope = real("leaky_relu", "negative_slope", negative_slope)
    return ad.where_op(ad.greater_op(input, 0.0), input, input * slope)


@composition
def elu(input: Node, alpha: float = 1.0) -> Tensor:
    """x where x > 0, else alpha (exp(x) - 1)."""
    above = ad.greater_op(input, 0.0)
    below = expm1(ad.where_op(above, 0.0, input))  # of large x without infinities
    return ad.where_op(above, input, below * real("elu", "alpha", alpha))


@composition
def softplus(input: Node, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta x)) / beta, and x where beta x > threshold. Raises GraphError for no numbers."""
    beta, threshold = real("softplus", "beta", beta), real("softplus", "threshold", threshold)
    scaled = ad.mul_op(input, beta)
    soft = ad.maximum_op(scaled, 0.0) + log1p(ad.exp_op(-ad.abs_op(scaled)))
    return ad.where_op(scaled > threshold, input, soft / beta)


def logsigmoid(input: Node) -> Tensor:
    """The logarithm of sigmoid, without loss of digits."""
    return -softplus(-input)


def glu(input: Node, dim: int = -1) -> Tensor:
    """The first half along `dim` times the sigmoid of the second: Dauphin et al. (2017). The shape must be known."""
    first, second = split(input, shape_of("glu", input)[dim] // 2, dim)
    return first * ad.sigmoid_op(second)


def hardtanh(input: Node, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """x within [min_val, max_val]."""
    return ad.clip_op(input, min_val, max_val)


def selu(input: Node) -> Tensor:
    """elu with the slopes that keep mean 0 and variance 1: Klambauer et al. (2017)."""
    return elu(input, 1.6732632423543772) * 1.0507009873554805


def softsign(input: Node) -> Tensor:
    """x / (1 + |x|)."""
    return input / (ad.abs_op(input) + 1.0)


def dropout(input: Node, p: float = 0.5, training: bool = True, *, key: Node | None = None) -> Tensor:
    """x with elements set to 0 with probability p, the others divided by 1 - p; x itself without `training`.

    `key`: see `autodiff.dropout_op`; None takes a stream of `dlsys.random.default_generator`, of which each run draws
    anew. Raises GraphError for a p outside [0, 1].
    """
    p = number("dropout", "p", p, most=1)
    require_nodes("dropout", input)
    if not flag("dropout", "training", training) or p == 0:
        return node_of(input)
    if p == 1:
        return input * 0.0
    if key is not None:
        return ad.dropout_op(input, key, p)
    return default_generator.drawing(ad.dropout_op(input, default_generator.key(), p))
