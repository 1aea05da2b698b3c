"""Batches of a data set, in an order that depends on a seed, prepared by threads while the caller computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Generator as Generated
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np

from .dataset import DataArgumentError, as_tensors, fetch_batch, integer

ORDER, TRANSFORM = 0, 1
"""The purposes of random streams; a stream is identified by purpose, seed, epoch and number of the batch."""


class DataLoader:
    """Iterates over `dataset` in batches: one loop is one epoch.

    Args:
        dataset: an object with `__len__` and `__getitem__`; a `Dataset` may fetch whole batches.
        shuffle: whether to shuffle the samples; the order of epoch e depends on (seed, e) only.
        drop_last: whether to leave out a last batch of less than `batch_size` samples.
        collate_fn: list of samples -> batch, returned as it is; the default is `default_collate`, whose stacked arrays
            are returned as tensors.
        prefetch: how many batches a background thread prepares ahead; 0 for none.
        transform: called as ``transform(x, rng)`` with a np.random.Generator that depends on (seed, epoch, number of
            the batch) only; x is the first NumPy array of a batch that is a tuple, else the batch.
        sampler: the numbers of an epoch's samples, in place of `shuffle`: a list, or an object with a length that draws
            them anew for each loop.
        num_workers: how many threads prepare batches, two ahead for each; 0 for none. More than one ask the data set at
            the same time. None is one thread, `prefetch` ahead.

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
        seed: int = 0,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        prefetch: int = 1,
        transform: Callable[[Any, np.random.Generator], Any] | None = None,
        *,
        sampler: Collection[int] | None = None,
        num_workers: int | None = None,
    ) -> None:
        for name in ("__len__", "__getitem__"):
            if not hasattr(dataset, name):
                raise DataArgumentError(f"DataLoader: dataset has no {name}: {type(dataset).__name__}")
        for name, function in (("collate_fn", collate_fn), ("transform", transform)):
            if function is not None and not callable(function):
                raise DataArgumentError(f"DataLoader: {name} must be a function, not {function!r}")
        self.dataset = dataset
        self.batch_size: int = integer("DataLoader", "batch_size", batch_size)
        self.shuffle: bool = bool(shuffle)
        self.seed: int = integer("DataLoader", "seed", seed, 0)
        self.drop_last: bool = bool(drop_last)
        self.collate_fn = collate_fn
        self.prefetch: int = integer("DataLoader", "prefetch", prefetch, 0)
        self.transform = transform
        workers = None if num_workers is None else integer("DataLoader", "num_workers", num_workers, 0)
        self._threads = workers or 1
        self.prefetch = self.prefetch if workers is None else 2 * workers
        if sampler is not None and not (hasattr(sampler, "__len__") and hasattr(sampler, "__iter__")):
            raise DataArgumentError(f"DataLoader: sampler has no length or no __iter__: {type(sampler).__name__}")
        if sampler is not None and shuffle:
            raise DataArgumentError("DataLoader: sampler excludes shuffle")
        self.sampler: Collection[int] | None = sampler
        self._drawn: np.ndarray | None = None
        """The numbers of this epoch's samples, in their order, once a loop has returned a batch."""
        self.epoch: int = 0
        self._handed_out = 0
        """Batches of this epoch that a loop has received."""
        self._resume = 0
        """The batch with which the next loop begins."""

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        size = len(self.dataset if self.sampler is None else self.sampler)
        return size // self.batch_size if self.drop_last else -(-size // self.batch_size)

    def __repr__(self) -> str:
        """How many samples and batches, and in which order."""
        order = f"shuffled by seed {self.seed}" if self.shuffle else "in order"
        order = order if self.sampler is None else f"by a {type(self.sampler).__name__}"
        return f"DataLoader({len(self.dataset)} samples, {len(self)} batches of {self.batch_size}, {order})"

    def __iter__(self) -> Iterator[Any]:
        first, self._resume = self._resume, 0
        self._handed_out = first
        drawn = self._drawn if first and self.sampler is not None else None
        return self._loop(self.epoch, first, drawn)

    def set_epoch(self, epoch: int) -> None:
        """Let the next loop be epoch `epoch`, from its start, unless it is the present epoch, which is resumed."""
        if (epoch := integer("DataLoader", "epoch", epoch, 0)) != self.epoch:
            self.epoch = epoch
            self._handed_out = 0
            self._resume = 0

    def state_dict(self) -> dict[str, Any]:
        """Epoch, number of its next batch, and the settings on which the batches depend, as values for JSON."""
        state = {"epoch": self.epoch, "batch": self._handed_out, **self._identity()}
        if self.sampler is not None and self._handed_out and self._drawn is not None:
            state["order"] = self._drawn.tolist()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where the loader of `state` was. Raises DataArgumentError if that loader had another data set, batch
        size or order."""
        if not isinstance(state, Mapping):
            raise DataArgumentError(f"DataLoader: the state must be a dictionary, not {type(state).__name__}")
        for name, value in self._identity().items():
            if type(other := state.get(name)) is not type(value) or other != value:
                raise DataArgumentError(f"DataLoader: the state is of a loader with {name}={other!r}, not {value!r}")
        batch = integer("DataLoader", "batch", state.get("batch"), 0)
        if batch > len(self):
            raise DataArgumentError(f"DataLoader: the state stands at batch {batch} of {len(self)}")
        if self.sampler is not None and batch and not isinstance(state.get("order"), list):
            raise DataArgumentError("DataLoader: the state has no order, which a sampler has drawn")
        order = self._numbers(state["order"]) if "order" in state else None
        self.epoch = integer("DataLoader", "epoch", state.get("epoch"), 0)
        self._handed_out, self._resume, self._drawn = batch, batch, order

    def _identity(self) -> dict[str, Any]:
        settings = {"batch_size": self.batch_size, "shuffle": self.shuffle, "drop_last": self.drop_last}
        return {"seed": self.seed, "samples": len(self.dataset), **settings}

    def _loop(self, epoch: int, first: int, drawn: np.ndarray | None) -> Iterator[Any]:
        """The batches of an epoch from number `first` on, counted; the epoch ends with the last. `drawn`: the order
        that a sampler has drawn for it."""
        order = self._order(epoch) if drawn is None else drawn
        starts = ((number, number * self.batch_size) for number in range(first, len(self)))
        jobs = ((epoch, order[start : start + self.batch_size], number) for number, start in starts)
        batches = self._ahead(jobs) if self.prefetch else (self._prepare(*job) for job in jobs)
        # Closed by hand: closing this generator leaves the inner one, and its threads, to the garbage collector.
        try:
            for number, batch in enumerate(batches, first):
                self.epoch, self._handed_out, self._drawn = epoch, number + 1, order
                yield batch
        finally:
            batches.close()
        self.epoch, self._handed_out = epoch + 1, 0

    def _order(self, epoch: int) -> np.ndarray:
        """The numbers of an epoch's samples; a sampler draws them anew."""
        if self.sampler is not None:
            return self._numbers(self.sampler)
        size = len(self.dataset)
        return self._random(epoch, ORDER).permutation(size) if self.shuffle else np.arange(size)

    def _numbers(self, given: Iterable[Any]) -> np.ndarray:
        """Numbers of samples, from the end where they are negative. Raises DataArgumentError for others."""
        size = len(self.dataset)
        found = [integer("DataLoader", "a sample's number", number, -size) for number in given]
        if found and max(found) >= size:
            raise DataArgumentError(f"DataLoader: the sampler gives number {max(found)} of {size} samples")
        return np.array(found, np.int64)

    def _ahead(self, jobs: Iterator[tuple[Any, ...]]) -> Generated[Any, None, None]:
        """The batches from threads that are at most `prefetch` ahead and end when this generator does."""
        with ThreadPoolExecutor(self._threads, "dlsys-data-loader") as threads:
            waiting = deque(threads.submit(self._prepare, *job) for job in islice(jobs, self.prefetch))
            try:
                while waiting:
                    batch = waiting.popleft().result()
                    waiting.extend(threads.submit(self._prepare, *job) for job in islice(jobs, 1))
                    yield batch
            finally:
                threads.shutdown(cancel_futures=True)

    def _prepare(self, epoch: int, indices: np.ndarray, number: int) -> Any:
        """The batch of these samples, transformed."""
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
