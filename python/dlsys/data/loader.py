"""Batches of a data set, in an order that depends on a seed, prepared by threads while the caller computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from ..checks import require_neutral
from .dataset import DataArgumentError, as_tensors, fetch_batch, integer

ORDER, TRANSFORM = 0, 1
"""The purposes of random streams; seed, epoch, purpose and number of the batch identify a stream."""
NEUTRAL: dict[str, Any] = dict.fromkeys(
    ("pin_memory", "persistent_workers", "prefetch_factor", "timeout", "multiprocessing_context")
)
"""Arguments of PyTorch's DataLoader that change no batch here; any value is accepted."""


class DataLoader:
    """Iterates over `dataset` in batches: one loop is one epoch.

    Args:
        dataset: an object with `__len__` and `__getitem__`; a `Dataset` may fetch whole batches.
        shuffle: whether to shuffle the samples; the order of epoch e depends on (seed, e) only.
        drop_last: whether to leave out a last batch of less than `batch_size` samples.
        sampler: the numbers of an epoch's samples, in place of `shuffle`: a list, or an object with a length that draws
            them anew for each loop.
        collate_fn: list of samples -> batch, returned as it is; the default is `default_collate`, whose stacked arrays
            are returned as tensors.
        transform: called as ``transform(x, rng)`` with a np.random.Generator that depends on (seed, epoch, number of
            the batch) only; x is the first NumPy array of a batch that is a tuple, else the batch.
        num_workers: how many threads prepare batches, two ahead for each; 0 for none. More than one ask the data set at
            the same time.
        neutral: those of PyTorch's arguments that are listed in `NEUTRAL`.

    `epoch` advances by one when a loop has run to its end; if a loop was left early, the next one repeats its epoch.
    `state_dict` may be called at any time, in a loop too. After `load_state_dict` of such a state, a loader with the
    same arguments continues with the batch after the last one that was returned, to the end of that epoch. Of several
    loops at once each counts for itself; the state is that of the loop that returned the last batch.

    Exceptions of the data set, `collate_fn` and `transform` reach the loop as they are. Raises DataArgumentError for
    arguments that do not fit.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        *,
        seed: int = 0,
        drop_last: bool = False,
        sampler: Collection[int] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        transform: Callable[[Any, np.random.Generator], Any] | None = None,
        num_workers: int = 1,
        **neutral: Any,
    ) -> None:
        require_neutral("DataLoader", neutral, NEUTRAL)
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise DataArgumentError(f"DataLoader: dataset needs __len__ and __getitem__: {type(dataset).__name__}")
        for name, function in (("collate_fn", collate_fn), ("transform", transform)):
            if function is not None and not callable(function):
                raise DataArgumentError(f"DataLoader: {name} must be a function, not {function!r}")
        if sampler is not None and shuffle:
            raise DataArgumentError("DataLoader: sampler excludes shuffle")
        self.dataset, self.sampler, self.collate_fn, self.transform = dataset, sampler, collate_fn, transform
        self.batch_size: int = integer("DataLoader", "batch_size", batch_size)
        self.shuffle, self.drop_last = bool(shuffle), bool(drop_last)
        self.seed: int = integer("DataLoader", "seed", seed, 0)
        self.num_workers: int = integer("DataLoader", "num_workers", num_workers, 0)
        self.epoch: int = 0
        self._batch, self._order = 0, np.empty(0, np.int64)  # of the latest loop: batches returned, order of samples
        self._resumes = False  # whether the next loop goes on behind them

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        size = len(self.dataset if self.sampler is None else self.sampler)
        return size // self.batch_size if self.drop_last else -(-size // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        if not self._resumes:
            self._batch, self._order = 0, self._numbers(self.sampler)
        self._resumes = False
        return self._loop(self.epoch, self._batch, self._order)

    def set_epoch(self, epoch: int) -> None:
        """Let the next loop be epoch `epoch`, from its start, unless it is the present epoch, which is resumed."""
        if (epoch := integer("DataLoader", "epoch", epoch, 0)) != self.epoch:
            self.epoch, self._batch, self._resumes = epoch, 0, False

    def state_dict(self) -> dict[str, Any]:
        """Epoch, number of its next batch, the settings on which the batches depend, and the order that a sampler has
        drawn, as values for JSON."""
        drawn = {"order": self._order.tolist()} if self.sampler is not None and self._batch else {}
        return {"epoch": self.epoch, "batch": self._batch, **self._settings(), **drawn}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where the loader of `state` was. Raises DataArgumentError if that loader had another data set, batch
        size or order."""
        settings = self._settings()
        if (others := {name: state.get(name) for name in settings}) != settings:
            raise DataArgumentError(f"DataLoader: the state is of a loader with {others}, not {settings}")
        self.epoch, self._batch = state["epoch"], state["batch"]
        self._order, self._resumes = self._numbers(state.get("order")), self._batch > 0

    def _settings(self) -> dict[str, Any]:
        settings = {"batch_size": self.batch_size, "shuffle": self.shuffle, "drop_last": self.drop_last}
        return {"seed": self.seed, "samples": len(self.dataset), "sampler": self.sampler is not None, **settings}

    def _numbers(self, sampler: Iterable[int] | None) -> np.ndarray:
        """The samples of this epoch: the sampler's, from the end where they are negative, or all. Raises
        DataArgumentError."""
        size = len(self.dataset)
        if sampler is None:
            return self._random(self.epoch, ORDER).permutation(size) if self.shuffle else np.arange(size)
        numbers = [integer("DataLoader", "a sample's number", number, -size) for number in sampler]
        if max(numbers, default=-1) >= size:
            raise DataArgumentError(f"DataLoader: the sampler gives number {max(numbers)} of {size} samples")
        return np.array(numbers, np.int64)

    def _loop(self, epoch: int, done: int, order: np.ndarray) -> Iterator[Any]:
        """The batches of an epoch but for the first `done`, counted; the epoch ends with the last."""
        threads = ThreadPoolExecutor(max(self.num_workers, 1), "dlsys-data-loader")  # the first job starts a thread
        jobs = (partial(self._prepare, epoch, order, number) for number in range(done, len(self)))
        results = (threads.submit(job).result if self.num_workers else job for job in jobs)
        ahead = deque(islice(results, 2 * self.num_workers or 1))
        try:
            while ahead:
                batch = ahead.popleft()()
                ahead.extend(islice(results, 1))
                done += 1
                self.epoch, self._batch, self._order = epoch, done, order
                yield batch
        finally:
            threads.shutdown(cancel_futures=True)
        self.epoch, self._batch = epoch + 1, 0

    def _prepare(self, epoch: int, order: np.ndarray, number: int) -> Any:
        """Batch `number` of an epoch, transformed."""
        indices = order[number * self.batch_size : (number + 1) * self.batch_size]
        if self.collate_fn is None:
            batch = fetch_batch(self.dataset, indices)
        else:
            batch = self.collate_fn([self.dataset[int(index)] for index in indices])
        if self.transform is not None:
            rng, alone = self._random(epoch, TRANSFORM, number), not isinstance(batch, tuple)
            batch = self.transform(batch, rng) if alone else (self.transform(batch[0], rng), *batch[1:])
        return as_tensors(batch) if self.collate_fn is None else batch

    def _random(self, epoch: int, *purpose: int) -> np.random.Generator:
        # A spawn key, as entropy (seed, 1) and (seed, 1, 0) are the same to SeedSequence, which pads with zeros.
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(epoch, *purpose)))
