"""Activations as functions, by the names and in the argument order of torch.nn.functional.

`inplace` changes nothing: the memory plan decides what is written where.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node
from ..eager import dtype_of, known_shape, no_grad
from ..errors import GraphError, ShapeError
from ..random import default_generator
from .checks import checked_share, shape_of
from .functional_windows import per_channel


def relu(input: Node, inplace: bool = False) -> Node:
    """max(x, 0)."""
    return ad.relu_op(input)


def leaky_relu(input: Node, negative_slope: float = 0.01, inplace: bool = False) -> Node:
    """x where x > 0, else negative_slope x."""
    return ad.leaky_relu_op(input, negative_slope)


def elu(input: Node, alpha: float = 1.0, inplace: bool = False) -> Node:
    """x where x > 0, else alpha (exp(x) - 1)."""
    return ad.elu_op(input, alpha)


def celu(input: Node, alpha: float = 1.0, inplace: bool = False) -> Node:
    """x where x > 0, else alpha (exp(x / alpha) - 1). Raises GraphError for an alpha of 0."""
    if not alpha:
        raise GraphError("celu: alpha must not be 0")
    return ad.where_op(input > 0.0, input, ad.expm1_op(ad.minimum_op(input, 0.0) / alpha) * alpha)


def selu(input: Node, inplace: bool = False) -> Node:
    """1.0507 elu(x, 1.6733), which keeps mean 0 and variance 1: Klambauer et al. (2017)."""
    return ad.elu_op(input, 1.6732632423543772848170429916717) * 1.0507009873554804934193349852946


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


def softplus(input: Node, beta: float = 1.0, threshold: float = 20.0) -> Node:
    """log(1 + exp(beta x)) / beta, exact for all x: `threshold`, beyond which PyTorch takes x, changes nothing."""
    return ad.softplus_op(input) if beta == 1 else ad.softplus_op(input * beta) / beta


def hardtanh(input: Node, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Node:
    """x within [min_val, max_val]; the derivative is 0 on the bounds. Raises GraphError for bounds that cross."""
    if not min_val < max_val:
        raise GraphError(f"hardtanh: min_val must be less than max_val, not {min_val!r} and {max_val!r}")
    return ad.where_op(input >= max_val, max_val, ad.where_op(input <= min_val, min_val, input))


def relu6(input: Node, inplace: bool = False) -> Node:
    """x within [0, 6]."""
    return hardtanh(input, 0.0, 6.0)


def hardsigmoid(input: Node, inplace: bool = False) -> Node:
    """relu6(x + 3) / 6."""
    return relu6(input + 3.0) / 6.0


def hardswish(input: Node, inplace: bool = False) -> Node:
    """x relu6(x + 3) / 6."""
    return input * relu6(input + 3.0) / 6.0


def mish(input: Node, inplace: bool = False) -> Node:
    """x tanh(log(1 + exp(x))): Misra (2019)."""
    return input * ad.tanh_op(ad.softplus_op(input))


def logsigmoid(input: Node) -> Node:
    """The logarithm of sigmoid."""
    return -ad.softplus_op(-input)


def softsign(input: Node) -> Node:
    """x / (1 + |x|)."""
    return input / (ad.abs_op(input) + 1.0)


def tanhshrink(input: Node) -> Node:
    """x - tanh(x)."""
    return input - ad.tanh_op(input)


def hardshrink(input: Node, lambd: float = 0.5) -> Node:
    """x where |x| > lambd, else 0."""
    return ad.where_op(ad.abs_op(input) <= lambd, 0.0, input)


def softshrink(input: Node, lambd: float = 0.5) -> Node:
    """x moved by lambd towards 0, which it does not cross. Raises GraphError for a lambd below 0."""
    if not lambd >= 0:
        raise GraphError(f"softshrink: lambd must be a number >= 0, not {lambd!r}")
    return ad.where_op(ad.abs_op(input) <= lambd, 0.0, input - ad.sign_op(input) * lambd)


def threshold(input: Node, threshold: float, value: float, inplace: bool = False) -> Node:
    """x where x > threshold, else value."""
    return ad.where_op(input <= threshold, value, input)


def prelu(input: Node, weight: Node) -> Node:
    """x where x > 0, else weight x; weight is (1,), or (C,) for x (N, C, ...) of known shape: He et al. (2015)."""
    if known_shape(weight) != (1,):
        rank = len(shape_of("prelu", input))
        weight = per_channel(weight, max(rank - 2, 0))
    return ad.where_op(input > 0.0, input, input * weight)


def rrelu(
    input: Node, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Node:
    """leaky_relu, in training with slopes drawn from [lower, upper] for each element in each run, else with their mean.
    In training the shape and dtype must be known. Raises GraphError."""
    if not lower <= upper:
        raise GraphError(f"rrelu: lower must be at most upper, not {lower!r} and {upper!r}")
    if not training:
        return ad.leaky_relu_op(input, (lower + upper) / 2)
    return ad.where_op(input > 0.0, input, input * (_uniform("rrelu", input) * (upper - lower) + lower))


def _uniform(function: str, x: Node) -> Node:
    """Numbers of [0, 1) in x's shape and dtype, which each run draws anew."""
    drawn = ad.random_uniform_op(default_generator.key(), shape_of(function, x), 0.0, 1.0, dtype_of(x))
    return default_generator.drawing(drawn)


def glu(input: Node, dim: int = -1) -> Node:
    """a sigmoid(b) of the halves a and b of x along `dim`, of known shape: Dauphin et al. (2017). Raises GraphError,
    ShapeError."""
    shape = shape_of("glu", input)
    if not -len(shape) <= dim < len(shape) or shape[dim] % 2:
        raise ShapeError(f"glu: {shape} has no two halves along axis {dim}")
    a, b = ad.split_op(input, 2, dim)
    return a * ad.sigmoid_op(b)


def softmax(input: Node, dim: int = -1, *, dtype: Any = None) -> Node:
    """exp(x) / sum(exp(x)) along `dim`; computed in `dtype`, if given."""
    return ad.softmax_op(input if dtype is None else ad.cast_op(input, dtype), dim)


def log_softmax(input: Node, dim: int = -1, *, dtype: Any = None) -> Node:
    """The logarithm of softmax along `dim`."""
    return ad.log_softmax_op(input if dtype is None else ad.cast_op(input, dtype), dim)


def softmin(input: Node, dim: int = -1, *, dtype: Any = None) -> Node:
    """softmax of -x along `dim`."""
    return softmax(-input, dim, dtype=dtype)


def normalize(input: Node, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Node:
    """x / max(|x|, eps), where |x| is the p-norm along `dim`. Raises GraphError for a p below 1."""
    if not isinstance(p, (int, float)) or p < 1:
        raise GraphError(f"normalize: p must be a number >= 1, not {p!r}")
    return input / norm_along(input, p, dim, eps)


def norm_along(x: Node, p: float, dim: int, eps: float) -> Node:
    """The p-norm along `dim`, which stays, with an extent of 1; `eps` at least."""
    if p == 2:
        return ad.sqrt_op(ad.clip_op(ad.reducesum_op(x * x, dim, keepdims=True), eps * eps))
    if p == math.inf:
        return ad.clip_op(ad.max_op(ad.abs_op(x), dim, keepdims=True), eps)
    size = ad.abs_op(x) if p == 1 else ad.power_byconst_op(ad.abs_op(x), p)
    total = ad.reducesum_op(size, dim, keepdims=True)
    return ad.clip_op(total if p == 1 else ad.power_byconst_op(ad.clip_op(total, eps**p), 1 / p), eps)


def alpha_dropout(input: Node, p: float = 0.5, training: bool = False, inplace: bool = False) -> Node:
    """Elements at SELU's lowest value with probability p, then scaled so that mean and variance stay: Klambauer et al.
    (2017). Each run draws anew; shape and dtype must be known in training. Raises GraphError."""
    p = checked_share("alpha_dropout", "p", p)
    if not training or p == 0:
        return input
    if p == 1:
        return input * 0.0
    lowest = -1.7580993408473766
    scale = 1 / math.sqrt((1 - p) * (1 + p * lowest * lowest))
    return ad.where_op(_uniform("alpha_dropout", input) < p, lowest, input) * scale - scale * p * lowest


def gumbel_softmax(logits: Node, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Node:
    """softmax((x + g) / tau) along an axis, g drawn from Gumbel's distribution, anew in each run: Jang et al. (2017).

    `hard`: 1 where it is largest, 0 elsewhere, with the gradients of the softmax. The shape and dtype must be known;
    `eps` changes nothing. Raises GraphError for a tau that is not greater than 0, ShapeError for an axis out of range.
    """
    if isinstance(tau, bool) or not isinstance(tau, (int, float)) or not tau > 0:
        raise GraphError(f"gumbel_softmax: tau must be a number > 0, not {tau!r}")
    shape, dtype = shape_of("gumbel_softmax", logits), dtype_of(logits)
    if not -len(shape) <= dim < len(shape):
        raise ShapeError(f"gumbel_softmax: axis {dim} of {shape}")
    drawn = default_generator.drawing(ad.random_uniform_op(default_generator.key(), shape, 0.0, 1.0, dtype))
    tiny = float(np.finfo(dtype).tiny)
    noise = -ad.log_op(-ad.log_op(ad.clip_op(drawn, tiny, None)))
    soft = ad.softmax_op(ad.swapaxes_op((logits + noise) / float(tau), dim, -1))
    if hard:
        with no_grad():
            shift = ad.one_hot_op(ad.argmax_op(soft, -1), shape[dim], dtype) - soft
        soft = shift + soft
    return ad.swapaxes_op(soft, dim, -1)
