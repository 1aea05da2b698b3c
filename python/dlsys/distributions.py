"""Probability distributions, as `torch.distributions`: numbers drawn, log-probabilities, entropies, divergences.

Parameters are tensors or numbers, broadcast together. Where they hold data, numbers are drawn when `sample` or
`rsample` is called; of graphs with variables, in each run anew. Both draw from `dl.manual_seed`'s streams.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from . import autodiff as ad
from .autodiff import Node
from .eager import evaluate, no_grad, tensor
from .eager.creation import leaf, size_of
from .eager.running import is_data
from .errors import GraphError
from .graph import FLOATS, Shape
from .ops import broadcast_rule, dtype_of, known_shape, shape_of
from .ops.types import as_float, promoted
from .random import default_generator


def _together(name: str, *given: Any) -> list[Node]:
    """Parameters as nodes of floats of one dtype and shape."""
    nodes = [as_float(value) if isinstance(value, Node) else tensor(value, "float32") for value in given]
    if len(nodes) == 2:
        first, second = nodes  # a number takes the other's dtype
        if not isinstance(given[1], Node) and isinstance(given[0], Node):
            second = ad.cast_like_op(second, first)
        elif not isinstance(given[0], Node) and isinstance(given[1], Node):
            first = ad.cast_like_op(first, second)
        nodes = list(promoted(first, second))
    shapes = [_known(name, node) for node in nodes]
    joint = shapes[0] if len(shapes) == 1 else broadcast_rule(*shapes)
    return [
        node if shape == joint else ad.broadcast_shape_op(node, joint)
        for node, shape in zip(nodes, shapes, strict=True)
    ]


def _known(name: str, node: Node) -> Shape:
    if known_shape(node) is None:
        raise GraphError(f"{name}: the shape of {node.name} must be known: declare that of the variables")
    return shape_of(node)


def _drawn(operation: Callable[..., Node], shape: Shape, dtype: str, like: Node) -> Node:
    """Random numbers, here and now where `like` holds data."""
    node = default_generator.drawing(operation(default_generator.key(), shape, 0.0, 1.0, dtype))
    if not is_data(like):
        return node
    (value,) = evaluate([node])
    return leaf(value)


class Distribution:
    """Base of the distributions.

    Attributes:
        batch_shape: the parameters' shape together, without that of one event.
        event_shape: the shape of one event.
    """

    batch_shape: Shape = ()
    event_shape: Shape = ()

    def _require(self, validate_args: bool | None, name: str, value: Node, holds: Any, words: str) -> None:
        """Raise GraphError where a parameter's value is at hand and does not hold."""
        if validate_args is False or not is_data(value):
            return
        with no_grad():
            (found,) = evaluate([value])
        given = np.asarray(found)
        if not holds(given):
            raise GraphError(f"{type(self).__name__}: {name} of shape {given.shape} must be {words}")

    def _extended(self, sample_shape: Any) -> Shape:
        return (*size_of((sample_shape,)), *self.batch_shape, *self.event_shape)

    def rsample(self, sample_shape: Any = ()) -> Node:
        """Numbers of shape (*sample_shape, *batch_shape, *event_shape), through which gradients go to the parameters.
        Raises NotImplementedError where there are none."""
        raise NotImplementedError(f"{type(self).__name__} has no rsample: its numbers have no derivative")

    def sample(self, sample_shape: Any = ()) -> Node:
        """Numbers of shape (*sample_shape, *batch_shape, *event_shape), without gradients."""
        with no_grad():
            node = self._sample(self._extended(sample_shape))
        if not is_data(node):
            return node
        (value,) = evaluate([node])
        return leaf(value)

    def _sample(self, shape: Shape) -> Node:
        raise NotImplementedError

    def log_prob(self, value: Any) -> Node:
        """The logarithm of the probability, or density, of a value that broadcasts with the parameters."""
        raise NotImplementedError

    def entropy(self) -> Node:
        """The entropy, of shape batch_shape, in nats."""
        raise NotImplementedError

    @property
    def mean(self) -> Node:
        """The mean."""
        raise NotImplementedError

    @property
    def variance(self) -> Node:
        """The variance."""
        raise NotImplementedError

    @property
    def stddev(self) -> Node:
        """The standard deviation."""
        return ad.sqrt_op(self.variance)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_shape={self.batch_shape}, event_shape={self.event_shape})"


def _value(value: Any, like: Node) -> Node:
    """A value as a node of the parameters' dtype."""
    node = value if isinstance(value, Node) else tensor(value)
    return node if dtype_of(node) == dtype_of(like) else ad.cast_like_op(node, like)


class Normal(Distribution):
    """The normal distribution of mean `loc` and standard deviation `scale`."""

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        """Raises GraphError for a scale that is not greater than 0, where its value is at hand."""
        self.loc, self.scale = _together("Normal", loc, scale)
        self.batch_shape = shape_of(self.loc)
        self._require(validate_args, "scale", self.scale, lambda v: (v > 0).all(), "greater than 0")

    def rsample(self, sample_shape: Any = ()) -> Node:
        noise = _drawn(ad.random_normal_op, self._extended(sample_shape), dtype_of(self.loc), self.loc + self.scale)
        return self.loc + noise * self.scale

    def _sample(self, shape: Shape) -> Node:
        return self.loc + _drawn(ad.random_normal_op, shape, dtype_of(self.loc), self.loc + self.scale) * self.scale

    def log_prob(self, value: Any) -> Node:
        z = (_value(value, self.loc) - self.loc) / self.scale
        return z * z * -0.5 - ad.log_op(self.scale) - 0.5 * math.log(2 * math.pi)

    def entropy(self) -> Node:
        return ad.log_op(self.scale) + 0.5 * (1 + math.log(2 * math.pi))

    def cdf(self, value: Any) -> Node:
        """The probability of numbers up to the value."""
        z = (_value(value, self.loc) - self.loc) / self.scale
        return (ad.erf_op(z * math.sqrt(0.5)) + 1.0) * 0.5

    @property
    def mean(self) -> Node:
        return self.loc

    mode = mean

    @property
    def variance(self) -> Node:
        return self.scale * self.scale

    @property
    def stddev(self) -> Node:
        return self.scale


class Uniform(Distribution):
    """The uniform distribution of [low, high)."""

    def __init__(self, low: Any, high: Any, validate_args: bool | None = None) -> None:
        """Raises GraphError for a low that is not less than high, where their values are at hand."""
        self.low, self.high = _together("Uniform", low, high)
        self.batch_shape = shape_of(self.low)
        width = self.high - self.low
        self._require(validate_args, "high - low", width, lambda v: (v > 0).all(), "greater than 0")

    def rsample(self, sample_shape: Any = ()) -> Node:
        return self._sample(self._extended(sample_shape))

    def _sample(self, shape: Shape) -> Node:
        width = self.high - self.low
        return self.low + _drawn(ad.random_uniform_op, shape, dtype_of(self.low), width) * width

    def log_prob(self, value: Any) -> Node:
        """-log(high - low) from low on and below high, elsewhere -infinity."""
        given = _value(value, self.low)
        inside = ad.logical_and_op(given >= self.low, given < self.high)
        return ad.where_op(inside, -ad.log_op(self.high - self.low), -math.inf)

    def entropy(self) -> Node:
        return ad.log_op(self.high - self.low)

    def cdf(self, value: Any) -> Node:
        """The probability of numbers up to the value."""
        return ad.clip_op((_value(value, self.low) - self.low) / (self.high - self.low), 0.0, 1.0)

    @property
    def mean(self) -> Node:
        return (self.high + self.low) * 0.5

    @property
    def variance(self) -> Node:
        width = self.high - self.low
        return width * width * (1 / 12)

    @property
    def stddev(self) -> Node:
        return (self.high - self.low) * math.sqrt(1 / 12)


def _one_of(name: str, probs: Any, logits: Any) -> Node:
    """The parameter that is given, as a node. Raises GraphError for both or none."""
    if (probs is None) == (logits is None):
        raise GraphError(f"{name}: either probs or logits must be given, and not both")
    (found,) = _together(name, logits if probs is None else probs)
    return found


def _clamped(probs: Node) -> Node:
    """Probabilities whose logarithms are finite."""
    eps = float(np.finfo(dtype_of(probs)).eps)
    return ad.clip_op(probs, eps, 1 - eps)


class Bernoulli(Distribution):
    """1 with probability `probs`, else 0; logits = log(probs / (1 - probs)). Values are floats."""

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        """One of both is given. Raises GraphError; also for probabilities outside [0, 1], where they are at hand."""
        given = _one_of("Bernoulli", probs, logits)
        self.batch_shape = shape_of(given)
        if probs is not None:
            self._require(validate_args, "probs", given, lambda v: ((v >= 0) & (v <= 1)).all(), "in [0, 1]")
            self.probs, p = given, _clamped(given)
            self.logits = ad.log_op(p) - ad.log1p_op(-p)
        else:
            self.probs, self.logits = ad.sigmoid_op(given), given

    def _sample(self, shape: Shape) -> Node:
        drawn = _drawn(ad.random_uniform_op, shape, dtype_of(self.probs), self.probs)
        return ad.cast_like_op(drawn < self.probs, self.probs)

    def log_prob(self, value: Any) -> Node:
        given = _value(value, self.logits)
        return given * self.logits - ad.softplus_op(self.logits)

    def entropy(self) -> Node:
        return ad.softplus_op(self.logits) - self.probs * self.logits

    @property
    def mean(self) -> Node:
        return self.probs

    @property
    def variance(self) -> Node:
        return self.probs * (1.0 - self.probs)


def _have_a_sum(values: np.ndarray) -> bool:
    return bool((values >= 0).all() and (values.sum(-1) > 0).all())


class Categorical(Distribution):
    """The numbers from 0 on, int64, with probabilities that lie along the last axis of `probs`, which are divided by
    their sum; or with logits, from which log-probabilities differ by a constant."""

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        """One of both is given, of one axis at least. Raises GraphError; also for probabilities of which one is less
        than 0 or all are 0, where they are at hand."""
        given = _one_of("Categorical", probs, logits)
        if not shape_of(given):
            raise GraphError("Categorical: probabilities lie along an axis: a number is none")
        self.batch_shape = shape_of(given)[:-1]
        if probs is not None:
            self._require(validate_args, "probs", given, _have_a_sum, ">= 0 with a sum > 0")
            self.probs = given / ad.reducesum_op(given, -1, keepdims=True)
            self.logits = ad.log_op(_clamped(self.probs))
        else:
            self.logits = given - ad.logsumexp_op(given, -1, keepdims=True)
            self.probs = ad.softmax_op(given)

    @property
    def param_shape(self) -> Shape:
        """The parameters' shape."""
        return shape_of(self.logits)

    def _sample(self, shape: Shape) -> Node:
        wide = (*shape, shape_of(self.logits)[-1])
        drawn = _drawn(ad.random_uniform_op, wide, dtype_of(self.logits), self.logits)
        tiny = float(np.finfo(dtype_of(self.logits)).tiny)
        race = ad.neg_op(ad.log_op(ad.clip_op(drawn, tiny, None))) / self.probs  # times of arrival: the first one wins
        return ad.argmin_op(race, -1)

    def log_prob(self, value: Any) -> Node:
        """Of the numbers `value`, which broadcast with batch_shape. Raises GraphError for numbers out of range, where
        they are at hand."""
        given = value if isinstance(value, Node) else tensor(value)
        count = shape_of(self.logits)[-1]

        def fits(v: np.ndarray) -> bool:
            return bool(((v >= 0) & (v < count) & (v == np.floor(v))).all())

        self._require(None, "value", given, fits, f"whole numbers from 0 to {count - 1}")
        numbers = given if dtype_of(given) not in FLOATS else ad.cast_op(given, "int64")
        shape = broadcast_rule(shape_of(numbers), self.batch_shape)
        indices = ad.reshape_op(ad.broadcast_shape_op(numbers, shape), (*shape, 1))
        wide = ad.broadcast_shape_op(self.logits, (*shape, count))
        return ad.squeeze_op(ad.take_along_axis_op(wide, indices, -1), -1)

    def entropy(self) -> Node:
        least = float(np.finfo(dtype_of(self.logits)).min)
        return ad.neg_op(ad.reducesum_op(ad.clip_op(self.logits, least, None) * self.probs, -1))


def kl_divergence(p: Distribution, q: Distribution) -> Node:
    """The Kullback-Leibler divergence of two distributions of one kind, of shape batch_shape. Raises
    NotImplementedError for others."""
    if isinstance(p, Normal) and isinstance(q, Normal):
        ratio, shift = p.scale / q.scale, (p.loc - q.loc) / q.scale
        return (ratio * ratio + shift * shift - 1.0) * 0.5 - ad.log_op(ratio)
    if isinstance(p, Bernoulli) and isinstance(q, Bernoulli):
        of_one = p.probs * (ad.softplus_op(-q.logits) - ad.softplus_op(-p.logits))
        return of_one + (1.0 - p.probs) * (ad.softplus_op(q.logits) - ad.softplus_op(p.logits))
    if isinstance(p, Categorical) and isinstance(q, Categorical):
        return ad.reducesum_op(p.probs * (p.logits - q.logits), -1)
    if isinstance(p, Uniform) and isinstance(q, Uniform):
        within = ad.logical_and_op(q.low <= p.low, p.high <= q.high)
        return ad.where_op(within, ad.log_op((q.high - q.low) / (p.high - p.low)), math.inf)
    raise NotImplementedError(f"kl_divergence: of {type(p).__name__} and {type(q).__name__}")


__all__ = ["Bernoulli", "Categorical", "Distribution", "Normal", "Uniform", "kl_divergence"]
