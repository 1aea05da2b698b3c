"""Batches of a data set, in an order that depends on a seed, prepared by a thread while the caller computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from .dataset import DataArgumentError, as_tensors, fetch_batch, integer

ORDER, TRANSFORM = 0, 1
"""The purposes of random streams; a stream is identified by purpose, seed, epoch and number of the batch."""
_END = object()


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
        batch_sampler: an object with `__len__` whose loop gives the lists of indices of the batches, as a
            `BucketSampler`; then `batch_size`, `shuffle` and `drop_last` are not given. Its `set_epoch` is called
            before each loop, if it has one.

    `epoch` advances by one when a loop has run to its end; if a loop was left early, the next one repeats its epoch.
    `state_dict` may be called at any time, in a loop too. After `load_state_dict` of such a state, a loader with the
    same arguments continues with the batch after the last one that was returned, to the end of that epoch.

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
        batch_sampler: Any = None,
    ) -> None:
        for name in ("__len__", "__getitem__"):
            if not hasattr(dataset, name):
                raise DataArgumentError(f"DataLoader: dataset has no {name}: {type(dataset).__name__}")
        for name, function in (("collate_fn", collate_fn), ("transform", transform)):
            if function is not None and not callable(function):
                raise DataArgumentError(f"DataLoader: {name} must be a function, not {function!r}")
        if batch_sampler is not None and (batch_size != 1 or shuffle or drop_last):
            raise DataArgumentError("DataLoader: a batch_sampler decides the batch size, order and last batches")
        self.dataset, self.batch_sampler = dataset, batch_sampler
        self.batch_size: int = integer("DataLoader", "batch_size", batch_size)
        self.shuffle: bool = bool(shuffle)
        self.seed: int = integer("DataLoader", "seed", seed, 0)
        self.drop_last: bool = bool(drop_last)
        self.collate_fn = collate_fn
        self.prefetch: int = integer("DataLoader", "prefetch", prefetch, 0)
        self.transform = transform
        self.epoch: int = 0
        self._handed_out = 0
        """Batches of this epoch that a loop has received."""
        self._resume = 0
        """The batch with which the next loop begins."""

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        if self.batch_sampler is not None:
            return len(self.batch_sampler)
        size = len(self.dataset)
        return size // self.batch_size if self.drop_last else -(-size // self.batch_size)

    def __repr__(self) -> str:
        if self.batch_sampler is not None:
            return f"DataLoader({len(self.dataset)} samples, {len(self)} batches of {self.batch_sampler!r})"
        order = f"shuffled by seed {self.seed}" if self.shuffle else "in order"
        return f"DataLoader({len(self.dataset)} samples, {len(self)} batches of {self.batch_size}, {order})"

    def __iter__(self) -> Iterator[Any]:
        first, self._resume = self._resume, 0
        self._handed_out = first
        return self._loop(self.epoch, first)

    def set_epoch(self, epoch: int) -> None:
        """Let the next loop be epoch `epoch`, from its start, unless it is the present epoch, which is resumed."""
        if (epoch := integer("DataLoader", "epoch", epoch, 0)) != self.epoch:
            self.epoch = epoch
            self._handed_out = 0
            self._resume = 0

    def state_dict(self) -> dict[str, Any]:
        """Epoch, number of its next batch, and the settings on which the batches depend, as values for JSON."""
        return {"epoch": self.epoch, "batch": self._handed_out, **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where the loader of `state` was.

        Raises DataArgumentError if that loader had another data set, batch size or order.
        """
        if not isinstance(state, Mapping):
            raise DataArgumentError(f"DataLoader: the state must be a dictionary, not {type(state).__name__}")
        for name, value in self._identity().items():
            if type(other := state.get(name)) is not type(value) or other != value:
                raise DataArgumentError(f"DataLoader: the state is of a loader with {name}={other!r}, not {value!r}")
        batch = integer("DataLoader", "batch", state.get("batch"), 0)
        if batch > len(self):
            raise DataArgumentError(f"DataLoader: the state stands at batch {batch} of {len(self)}")
        self.epoch = integer("DataLoader", "epoch", state.get("epoch"), 0)
        self._handed_out = self._resume = batch

    def _identity(self) -> dict[str, Any]:
        settings = {"batch_size": self.batch_size, "shuffle": self.shuffle, "drop_last": self.drop_last}
        return {"seed": self.seed, "samples": len(self.dataset), **settings}

    def _loop(self, epoch: int, first: int) -> Iterator[Any]:
        """The batches of an epoch from number `first` on, counted; the epoch ends with the last."""
        made = self._made(epoch, first)
        batches = self._ahead(made) if self.prefetch else made
        # Closed by hand: closing this generator leaves the inner one, and its thread, to the garbage collector.
        try:
            for number, batch in enumerate(batches, first):
                self._handed_out = number + 1
                yield batch
        finally:
            batches.close()
        self.epoch, self._handed_out = epoch + 1, 0

    def _made(self, epoch: int, first: int) -> Generator[Any, None, None]:
        """The batches of an epoch from number `first` on."""
        for number, indices in enumerate(self._indices(epoch)):
            if number >= first:
                yield self._prepare(epoch, indices, number)

    def _indices(self, epoch: int) -> Iterator[np.ndarray]:
        """The numbers of each batch's samples."""
        if self.batch_sampler is not None:
            if hasattr(self.batch_sampler, "set_epoch"):
                self.batch_sampler.set_epoch(epoch)
            yield from (np.asarray(indices, np.int64) for indices in self.batch_sampler)
            return
        size = len(self.dataset)
        order = self._random(epoch, ORDER).permutation(size) if self.shuffle else np.arange(size)
        for number in range(len(self)):
            yield order[number * self.batch_size : (number + 1) * self.batch_size]

    def _ahead(self, batches: Iterator[Any]) -> Generator[Any, None, None]:
        """The batches from a thread that is at most `prefetch` ahead and ends when this generator does."""
        with ThreadPoolExecutor(1, "dlsys-data-loader") as thread:
            waiting = deque(thread.submit(next, batches, _END) for _ in range(self.prefetch))
            try:
                while (batch := waiting.popleft().result()) is not _END:
                    waiting.append(thread.submit(next, batches, _END))
                    yield batch
            finally:
                thread.shutdown(cancel_futures=True)

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
