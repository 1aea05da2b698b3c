"""Normal, Bernoulli and categorical distributions by PyTorch's names: samples, log probabilities, entropies and
Kullback-Leibler divergences, as formulas of tensors, through which gradients pass to the parameters.

Samples are drawn from `dlsys.random.default_generator`. Parameters that hold data and are out of their range raise
GraphError; where they are computed, log probabilities are NaN, as those of a category that there is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Self

import numpy as np

from .errors import GraphError
from .graph import Shape
from .random import multinomial, rand, randn
from .tensors import Tensor, no_grad
from .tensors.arguments import float_of, node_of
from .tensors.elementwise import where
from .tensors.typing import ArrayLike


class Distribution:
    """A distribution for each element of its parameters, whose shape is `batch_shape`."""

    batch_shape: Shape

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Values drawn now, (*sample_shape, *batch_shape), without a history of gradients."""
        raise NotImplementedError

    def log_prob(self, value: ArrayLike) -> Tensor:
        """The logarithm of the probability, or of its density, at the value."""
        raise NotImplementedError

    def entropy(self) -> Tensor:
        """The entropy in nats, of `batch_shape`."""
        raise NotImplementedError

    def divergence(self, other: Self) -> Tensor:
        """See `kl_divergence`, for another distribution of the same class."""
        raise NotImplementedError


class Normal(Distribution):
    """The normal distribution of mean `loc` and standard deviation `scale`, tensors or numbers, which are broadcast.
    Raises GraphError for a scale that is not above 0."""

    def __init__(self, loc: ArrayLike, scale: ArrayLike) -> None:
        self.loc: Tensor = float_of(loc)
        self.scale: Tensor = _require("Normal: scale must be above 0", float_of(scale), lambda scale: scale > 0)
        self.batch_shape: Shape = np.broadcast_shapes(self.loc.shape, self.scale.shape)

    @property
    def mean(self) -> Tensor:
        """The mean, of `batch_shape`."""
        return self.loc.expand(self.batch_shape)

    @property
    def stddev(self) -> Tensor:
        """The standard deviation, of `batch_shape`."""
        return self.scale.expand(self.batch_shape)

    @property
    def variance(self) -> Tensor:
        """The variance, of `batch_shape`."""
        return self.stddev**2

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """loc + scale times standard normal numbers, through which gradients pass: Kingma and Welling (2014)."""
        noise = randn(*sample_shape, *self.batch_shape, dtype=self.loc.dtype)
        return self.loc + self.scale * noise

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with no_grad():
            return self.rsample(sample_shape).detach()

    def log_prob(self, value: ArrayLike) -> Tensor:
        return -(((node_of(value) - self.loc) / self.scale) ** 2) / 2 - self.scale.log() - math.log(2 * math.pi) / 2

    def entropy(self) -> Tensor:
        return self.stddev.log() + (1 + math.log(2 * math.pi)) / 2

    def divergence(self, other: Normal) -> Tensor:
        ratio = (self.scale / other.scale) ** 2
        return (ratio + ((self.loc - other.loc) / other.scale) ** 2 - 1 - ratio.log()) / 2


class Bernoulli(Distribution):
    """1 with a probability, else 0; it is given as `probs` or as `logits`, log(p / (1 - p)). Raises GraphError for
    both, for none, and for a probability outside [0, 1]."""

    def __init__(self, probs: ArrayLike | None = None, logits: ArrayLike | None = None) -> None:
        given = _one_of("Bernoulli", probs, logits)
        if logits is None:
            _require("Bernoulli: probs must be in [0, 1]", given, lambda probs: (probs >= 0) & (probs <= 1))
            inside = _inside(given)
            self.probs: Tensor = given
            self.logits: Tensor = inside.log() - (-inside).log1p()
        else:
            self.probs = given.sigmoid()
            self.logits = given
        self.batch_shape: Shape = given.shape

    @property
    def mean(self) -> Tensor:
        """The probability of 1."""
        return self.probs

    @property
    def variance(self) -> Tensor:
        """p (1 - p)."""
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        drawn = rand(*sample_shape, *self.batch_shape, dtype=self.probs.dtype)
        with no_grad():
            return (drawn < self.probs).to(self.probs.dtype).detach()

    def log_prob(self, value: ArrayLike) -> Tensor:
        zero = 1 - node_of(value).to(self.logits.dtype)
        return -(zero * self.logits + _softplus(-self.logits))

    def entropy(self) -> Tensor:
        return _softplus(self.logits) - self.probs * self.logits

    def divergence(self, other: Bernoulli) -> Tensor:
        ones = _weighted(self.probs, _softplus(-other.logits) - _softplus(-self.logits), other.probs)
        zeros = _weighted(1 - self.probs, _softplus(other.logits) - _softplus(self.logits), 1 - other.probs)
        return ones + zeros


class Categorical(Distribution):
    """Numbers from 0 to n - 1 by their probabilities (*batch_shape, n), as `probs`, which are divided by their sum, or
    as `logits`, of which softmax is taken. Raises GraphError for both, for none, and for a negative probability."""

    def __init__(self, probs: ArrayLike | None = None, logits: ArrayLike | None = None) -> None:
        given = _one_of("Categorical", probs, logits)
        if not given.shape:
            raise GraphError("Categorical: the parameters have one axis or more, that of the numbers")
        if logits is None:
            _require("Categorical: probs must be 0 or more", given, lambda probs: probs >= 0)
            self.probs: Tensor = given / given.sum(-1, keepdim=True)
            self.logits: Tensor = _inside(self.probs).log()
        else:
            self.probs = given.softmax(-1)
            self.logits = given.log_softmax(-1)
        self.batch_shape: Shape = given.shape[:-1]

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        rows = self.probs.detach().reshape(-1, self.probs.shape[-1])
        drawn = multinomial(rows, math.prod(sample_shape), replacement=True)
        return drawn.T.reshape(*sample_shape, *self.batch_shape).detach()

    def log_prob(self, value: ArrayLike) -> Tensor:
        place = node_of(value).long().unsqueeze(-1)
        shape = np.broadcast_shapes(place.shape[:-1], self.batch_shape)
        logits = self.logits.broadcast_to(*shape, self.logits.shape[-1])
        found = logits.gather(-1, place.broadcast_to(*shape, 1))
        return where((place >= 0) & (place < logits.shape[-1]), found, math.nan).squeeze(-1)

    def entropy(self) -> Tensor:
        return -(self.probs * self.logits.clamp(min=float(np.finfo(self.logits.dtype).min))).sum(-1)

    def divergence(self, other: Categorical) -> Tensor:
        return _weighted(self.probs, self.logits - other.logits, other.probs).sum(-1)


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """The Kullback-Leibler divergence, the mean of log(p(x) / q(x)) over x drawn from p, for each element. Raises
    GraphError for distributions of two classes."""
    if not isinstance(p, Distribution) or type(p) is not type(q):
        raise GraphError(f"kl_divergence: there is no formula for {type(p).__name__} and {type(q).__name__}")
    return p.divergence(q)


def _one_of(owner: str, probs: ArrayLike | None, logits: ArrayLike | None) -> Tensor:
    """The one parameter of two that is given, as floats. Raises GraphError for both and for none."""
    given = [value for value in (probs, logits) if value is not None]
    if len(given) != 1:
        raise GraphError(f"{owner}: takes either probs or logits")
    return float_of(given[0])


def _require(told: str, parameter: Tensor, valid: Callable[[np.ndarray], np.ndarray]) -> Tensor:
    """The parameter. Raises GraphError where it holds data, some of which is not valid."""
    held = parameter.known_value
    if held is not None and not (found := valid(values := np.asarray(held))).all():
        raise GraphError(f"{told}, not {values[~found].flat[0]:g}")
    return parameter


def _inside(probs: Tensor) -> Tensor:
    """Probabilities away from 0 and 1 by the dtype's precision, so that their logarithms are finite; NaN outside."""
    eps = float(np.finfo(probs.dtype).eps)
    return where((probs >= 0) & (probs <= 1), probs.clamp(eps, 1 - eps), math.nan)


def _softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), without overflow; at 0 the derivative is 1/2, as `maximum` shares it."""
    return x.maximum(0.0) + (-x.abs()).exp().log1p()


def _weighted(p: Tensor, terms: Tensor, q: Tensor) -> Tensor:
    """p times the terms; infinite where q is 0, and 0 where p is."""
    return where(p == 0, 0.0, where(q == 0, math.inf, p * terms))
