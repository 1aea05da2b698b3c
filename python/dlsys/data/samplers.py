"""Samplers: in which order, or how often, a loader takes the samples of a data set; a loop over one is an epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .dataset import DataArgumentError, integer

if TYPE_CHECKING:
    from ..random import Generator


class Sampler:
    """Base of samplers: a subclass defines `__iter__`, over numbers of samples, and `__len__`, how many these are."""

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} has no __len__")


class SequentialSampler(Sampler):
    """The numbers of all samples, in order."""

    def __init__(self, data_source: Any) -> None:
        self.data_source = data_source

    def __len__(self) -> int:
        return len(self.data_source)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))


class RandomSampler(Sampler):
    """`num_samples` numbers of samples, all for None, in an order drawn by a `dl.Generator`, the default one for None;
    each at most once, or, with `replacement`, each by itself. More than there are, without it, are several orders.
    Raises DataArgumentError."""

    def __init__(
        self,
        data_source: Any,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Generator | None = None,
    ) -> None:
        self.data_source = data_source
        self.replacement: bool = bool(replacement)
        self.generator = generator
        given = None if num_samples is None else integer("RandomSampler", "num_samples", num_samples)
        self.num_samples: int | None = given

    def __len__(self) -> int:
        return len(self.data_source) if self.num_samples is None else self.num_samples

    def __iter__(self) -> Iterator[int]:
        """The numbers of one epoch, drawn anew."""
        size, rng = len(self.data_source), _drawing(self.generator)
        if self.replacement:
            return iter(rng.integers(0, max(size, 1), len(self)).tolist())
        orders = [rng.permutation(size) for _ in range(-(-len(self) // max(size, 1)))]
        return iter(np.concatenate([np.zeros(0, int), *orders])[: len(self)].tolist())


class SubsetRandomSampler(Sampler):
    """These numbers of samples, in a drawn order."""

    def __init__(self, indices: Sequence[int], generator: Generator | None = None) -> None:
        self.indices = indices
        self.generator = generator

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[int]:
        return iter([self.indices[i] for i in _drawing(self.generator).permutation(len(self))])


class WeightedRandomSampler(Sampler):
    """`num_samples` numbers of samples, drawn with probabilities proportional to `weights`, each by itself, or, without
    `replacement`, at most once. Raises DataArgumentError for weights that are no finite numbers >= 0, and where fewer
    than `num_samples` can be drawn."""

    def __init__(
        self, weights: Any, num_samples: int, replacement: bool = True, generator: Generator | None = None
    ) -> None:
        self.num_samples: int = integer("WeightedRandomSampler", "num_samples", num_samples)
        try:
            self.weights: np.ndarray = np.asarray(weights, np.float64)
        except (TypeError, ValueError):
            raise DataArgumentError(f"WeightedRandomSampler: weights must be numbers, not {weights!r}") from None
        self.replacement: bool = bool(replacement)
        self.generator = generator
        values = self.weights
        if values.ndim != 1 or not np.isfinite(values).all() or (values < 0).any() or not values.any():
            raise DataArgumentError("WeightedRandomSampler: weights must be a list of finite numbers >= 0, not all 0")
        if not self.replacement and np.count_nonzero(values) < self.num_samples:
            told = f"{np.count_nonzero(values)} samples have a weight, fewer than {num_samples}"
            raise DataArgumentError(f"WeightedRandomSampler: {told}: replacement=True")

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        shares = self.weights / self.weights.sum()
        found = _drawing(self.generator).choice(len(shares), self.num_samples, self.replacement, shares)
        return iter(found.tolist())


class BatchSampler(Sampler):
    """The numbers of a sampler in lists of `batch_size`; the last may be shorter, or is left out with `drop_last`.
    Raises DataArgumentError."""

    def __init__(self, sampler: Iterable[Any], batch_size: int, drop_last: bool = False) -> None:
        self.sampler = sampler
        self.drop_last: bool = bool(drop_last)
        self.batch_size: int = integer("BatchSampler", "batch_size", batch_size)

    def __len__(self) -> int:
        size = len(self.sampler)  # type: ignore[arg-type]
        return size // self.batch_size if self.drop_last else -(-size // self.batch_size)

    def __iter__(self) -> Iterator[list[Any]]:
        """The sampler's numbers in lists of `batch_size`; the last may be shorter, or is left out."""
        batch: list[Any] = []
        for index in self.sampler:
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch


def _drawing(generator: Generator | None) -> np.random.Generator:
    """A NumPy generator with a new stream."""
    from ..random import default_generator  # here: it imports TVM

    return (default_generator if generator is None else generator).numpy()
