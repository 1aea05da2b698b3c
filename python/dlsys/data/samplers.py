"""Orders of samples: in turn, at random, by weights, in batches of one's own.

A `DataLoader` takes an order for its epoch from `order(rng)`, with a generator that depends on seed and epoch only, or,
of samplers that are not from here, from `iter(sampler)`.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from .dataset import DataArgumentError, numpy_generator


class Sampler:
    """Numbers of samples: a subclass says which, `__iter__`, and how many, `__len__`."""

    def __init__(self, data_source: Any = None) -> None:
        pass

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")


class _Ordered(Sampler):
    """Samplers whose numbers a generator draws: that which they were given, or the loader's."""

    generator: np.random.Generator | None = None

    def order(self, rng: np.random.Generator) -> Any:
        """The numbers of one epoch."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        order = self.order(np.random.default_rng() if self.generator is None else self.generator)
        return iter(order.tolist() if isinstance(order, np.ndarray) else order)


def _sized(owner: str, data_source: Any) -> Any:
    """The argument. Raises DataArgumentError for what has no length."""
    if not hasattr(data_source, "__len__"):
        raise DataArgumentError(f"{owner}: needs a data set with a length, not {type(data_source).__name__}")
    return data_source


class SequentialSampler(_Ordered):
    """0, 1, ..., the last."""

    def __init__(self, data_source: Any) -> None:
        """Raises DataArgumentError for what has no length."""
        self.data_source = _sized("SequentialSampler", data_source)

    def __len__(self) -> int:
        return len(self.data_source)

    def order(self, rng: np.random.Generator) -> np.ndarray:
        return np.arange(len(self))


class RandomSampler(_Ordered):
    """All numbers in a random order; with `replacement` each drawn from all. `num_samples`: how many, None: as many as
    there are."""

    def __init__(
        self,
        data_source: Any,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Any = None,
    ) -> None:
        """generator: of `dlsys.random` or NumPy; None: the loader's. Raises DataArgumentError."""
        self.data_source, self.replacement = _sized("RandomSampler", data_source), bool(replacement)
        self.num_samples = len(data_source) if num_samples is None else _count("RandomSampler", num_samples)
        self.generator = None if generator is None else numpy_generator("RandomSampler", generator)

    def __len__(self) -> int:
        return self.num_samples

    def order(self, rng: np.random.Generator) -> np.ndarray:
        size = len(self.data_source)
        if self.replacement:
            return rng.integers(size, size=self.num_samples)
        rounds = [rng.permutation(size) for _ in range(-(-self.num_samples // max(size, 1)))]
        return np.concatenate([np.arange(0), *rounds])[: self.num_samples]


class SubsetRandomSampler(_Ordered):
    """The given numbers in a random order."""

    def __init__(self, indices: Sequence[int], generator: Any = None) -> None:
        """generator: of `dlsys.random` or NumPy; None: the loader's. Raises DataArgumentError."""
        self.indices = np.asarray(indices, np.int64)
        self.generator = None if generator is None else numpy_generator("SubsetRandomSampler", generator)

    def __len__(self) -> int:
        return len(self.indices)

    def order(self, rng: np.random.Generator) -> np.ndarray:
        return rng.permutation(self.indices)


class WeightedRandomSampler(_Ordered):
    """`num_samples` numbers, number i with a probability in proportion to weights[i], which need not sum to 1."""

    def __init__(
        self, weights: Sequence[float], num_samples: int, replacement: bool = True, generator: Any = None
    ) -> None:
        """generator: of `dlsys.random` or NumPy; None: the loader's. Raises DataArgumentError; also for more samples
        than weights above 0 without `replacement`."""
        self.weights = np.asarray(weights, np.float64)
        fit = self.weights.ndim == 1 and bool((np.isfinite(self.weights) & (self.weights >= 0)).all())
        if not fit or not self.weights.any():
            raise DataArgumentError("WeightedRandomSampler: weights must be numbers >= 0, not all of them 0")
        self.num_samples = _count("WeightedRandomSampler", num_samples)
        self.replacement = bool(replacement)
        if not self.replacement and self.num_samples > np.count_nonzero(self.weights):
            told = f"{self.num_samples} of {np.count_nonzero(self.weights)} samples without replacement"
            raise DataArgumentError(f"WeightedRandomSampler: {told}")
        self.generator = None if generator is None else numpy_generator("WeightedRandomSampler", generator)

    def __len__(self) -> int:
        return self.num_samples

    def order(self, rng: np.random.Generator) -> np.ndarray:
        shares = self.weights / self.weights.sum()
        return rng.choice(len(shares), self.num_samples, self.replacement, shares)


class BatchSampler(_Ordered):
    """Lists of `batch_size` numbers of a sampler; `drop_last` leaves out a last one of less."""

    def __init__(self, sampler: Iterable[Any], batch_size: int, drop_last: bool) -> None:
        """Raises DataArgumentError."""
        if not isinstance(sampler, Iterable):
            raise DataArgumentError(f"BatchSampler: needs a sampler, not {type(sampler).__name__}")
        self.sampler, self.batch_size, self.drop_last = sampler, _count("BatchSampler", batch_size), bool(drop_last)

    def __len__(self) -> int:
        size: int = len(self.sampler)  # type: ignore[arg-type]
        return size // self.batch_size if self.drop_last else -(-size // self.batch_size)

    def order(self, rng: np.random.Generator) -> list[list[int]]:
        numbers = [int(number) for number in order_of(self.sampler, rng)]
        whole = len(numbers) - (len(numbers) % self.batch_size if self.drop_last else 0)
        return [numbers[first : first + self.batch_size] for first in range(0, whole, self.batch_size)]


def order_of(sampler: Any, rng: np.random.Generator) -> Any:
    """The numbers of one epoch of any sampler."""
    if not isinstance(sampler, _Ordered):
        return list(sampler)
    return sampler.order(rng if sampler.generator is None else sampler.generator)


def _count(owner: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise DataArgumentError(f"{owner}: a number of samples must be an integer >= 1, not {value!r}")
    return int(value)
