"""Normal, Bernoulli and categorical distributions by PyTorch's names: formulas of tensors, with gradients for the
parameters.

Each has `sample(sample_shape=())`, values drawn now, (*sample_shape, *batch_shape), without a history of gradients;
`log_prob(value)`, the logarithm of the value's probability or density, NaN where a parameter is out of its range; and
`entropy()` in nats, of `batch_shape`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .errors import GraphError
from .graph import Shape
from .random import multinomial, rand, randn
from .tensors import Tensor, no_grad
from .tensors.arguments import float_of, node_of
from .tensors.typing import ArrayLike


class Normal:
    """The normal distribution of mean `loc` and standard deviation `scale`, which are broadcast to `batch_shape`."""

    def __init__(self, loc: ArrayLike, scale: ArrayLike) -> None:
        self.loc, self.scale = float_of(loc), float_of(scale)
        self.batch_shape: Shape = np.broadcast_shapes(self.loc.shape, self.scale.shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """loc + scale times standard normal numbers, (*sample_shape, *batch_shape), through which gradients pass."""
        return self.loc + self.scale * randn(*sample_shape, *self.batch_shape, dtype=self.loc.dtype)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with no_grad():
            return self.rsample(sample_shape).detach()

    def log_prob(self, value: ArrayLike) -> Tensor:
        return -(((node_of(value) - self.loc) / self.scale) ** 2) / 2 - self.scale.log() - math.log(2 * math.pi) / 2

    def entropy(self) -> Tensor:
        return self.scale.expand(self.batch_shape).log() + (1 + math.log(2 * math.pi)) / 2


class Bernoulli:
    """1 with the probability `probs`, or that of `logits`, else 0. Raises GraphError unless one of them is given."""

    def __init__(self, probs: ArrayLike | None = None, logits: ArrayLike | None = None) -> None:
        given = _one_of("Bernoulli", probs, logits)
        inside = _inside(given)
        self.probs: Tensor = given if logits is None else given.sigmoid()
        self.logits: Tensor = inside.log() - (-inside).log1p() if logits is None else given
        self.batch_shape: Shape = given.shape

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        drawn = rand(*sample_shape, *self.batch_shape, dtype=self.probs.dtype)
        return (drawn < self.probs).to(self.probs.dtype).detach()

    def log_prob(self, value: ArrayLike) -> Tensor:
        return (node_of(value).to(self.logits.dtype) - 1) * self.logits - _softplus(-self.logits)

    def entropy(self) -> Tensor:
        return _softplus(self.logits) - self.probs * self.logits


class Categorical:
    """Numbers from 0 to n - 1, int64, by `probs` (*batch_shape, n), which are divided by their sum, or by `logits`, of
    which softmax is taken. Raises GraphError unless one is given, and where it has no axis."""

    def __init__(self, probs: ArrayLike | None = None, logits: ArrayLike | None = None) -> None:
        given = _one_of("Categorical", probs, logits)
        if not given.shape:
            raise GraphError("Categorical: the parameters have one axis or more, that of the numbers")
        self.probs: Tensor = given / given.sum(-1, keepdim=True) if logits is None else given.softmax(-1)
        self.logits: Tensor = _inside(self.probs).log() if logits is None else given.log_softmax(-1)
        self.batch_shape: Shape = given.shape[:-1]

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        rows = self.probs.detach().reshape(-1, self.probs.shape[-1])
        drawn = multinomial(rows, math.prod(sample_shape), replacement=True)
        return drawn.T.reshape(*sample_shape, *self.batch_shape).detach()

    def log_prob(self, value: ArrayLike) -> Tensor:
        place, count = node_of(value).long().unsqueeze(-1), self.probs.shape[-1]
        shape = np.broadcast_shapes(place.shape[:-1], self.batch_shape)
        logits = self.logits.broadcast_to(*shape, count)
        found = logits.gather(-1, place.broadcast_to(*shape, 1).clamp(0, count - 1))
        return found.masked_fill((place < 0) | (place >= count), math.nan).squeeze(-1)

    def entropy(self) -> Tensor:
        return -(self.probs * self.logits.clamp(min=float(np.finfo(self.logits.dtype).min))).sum(-1)


def _one_of(owner: str, probs: ArrayLike | None, logits: ArrayLike | None) -> Tensor:
    """The one parameter of two that is given, as floats. Raises GraphError for both and for none."""
    given = [value for value in (probs, logits) if value is not None]
    if len(given) != 1:
        raise GraphError(f"{owner}: takes either probs or logits")
    return float_of(given[0])


def _inside(probs: Tensor) -> Tensor:
    """Probabilities away from 0 and 1 by the dtype's precision, so that their logarithms are finite; NaN outside."""
    eps = float(np.finfo(probs.dtype).eps)
    return probs.clamp(eps, 1 - eps).masked_fill((probs < 0) | (probs > 1), math.nan)


def _softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), without overflow; at 0 the derivative is 1/2, as `maximum` shares it."""
    return x.maximum(0.0) + (-x.abs()).exp().log1p()
