"""Sequences of varying length in batches of few shapes: samples of similar length together, padded to one of some
lengths, the buckets. Each shape is compiled once, so a network of four buckets is compiled four times."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import ShapeError
from .dataset import DataArgumentError, as_tensors, default_collate, integer


def bucket_of(length: int, buckets: Sequence[int]) -> int:
    """The smallest of the buckets, given in ascending order, that holds a length. Raises DataArgumentError for none."""
    at = bisect_left(buckets, length)
    if at == len(buckets):
        raise DataArgumentError(f"a sample of length {length} is longer than the largest of the buckets {[*buckets]}")
    return buckets[at]


def checked_buckets(owner: str, buckets: Sequence[int]) -> list[int]:
    """The lengths, ascending. Raises DataArgumentError for none, and for what is no positive integer."""
    found = sorted({integer(owner, "a bucket", bucket) for bucket in buckets})
    if not found:
        raise DataArgumentError(f"{owner}: needs at least one bucket")
    return found


class BucketSampler:
    """Lists of the indices of a batch's samples, all of one bucket, for `DataLoader(batch_sampler=)`.

        lengths = [len(text) for text, label in dataset]
        sampler = BucketSampler(lengths, 32, buckets=(16, 32, 64, 128))
        loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=partial(pad_collate, buckets=(16, 32, 64, 128)))

    The order of the samples in each bucket, and that of the batches, depend on (seed, epoch) only; see `set_epoch`.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        batch_size: int,
        buckets: Sequence[int],
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        """Args:
            lengths: of each sample.
            buckets: the lengths to which batches are padded.
            drop_last: whether to leave out a bucket's last batch where it is smaller: one shape less for each bucket.

        Raises DataArgumentError for a sample that is longer than all buckets.
        """
        self.batch_size: int = integer("BucketSampler", "batch_size", batch_size)
        self.buckets: list[int] = checked_buckets("BucketSampler", buckets)
        self.shuffle: bool = bool(shuffle)
        self.drop_last: bool = bool(drop_last)
        self.seed: int = integer("BucketSampler", "seed", seed, 0)
        self.epoch: int = 0
        of_bucket: dict[int, list[int]] = {bucket: [] for bucket in self.buckets}
        for index, length in enumerate(lengths):
            of_bucket[bucket_of(length, self.buckets)].append(index)
        self._members = [np.array(members, np.int64) for members in of_bucket.values() if members]

    def set_epoch(self, epoch: int) -> None:
        """Let the next loop have the order of this epoch; a `DataLoader` does so in each of its own."""
        self.epoch = integer("BucketSampler", "epoch", epoch, 0)

    def __repr__(self) -> str:
        counts = ", ".join(str(len(own)) for own in self._members)
        return f"BucketSampler(buckets {self.buckets} of {counts} samples, batches of {self.batch_size})"

    def __len__(self) -> int:
        """The number of batches."""
        size = self.batch_size
        return sum(len(own) // size if self.drop_last else -(-len(own) // size) for own in self._members)

    def __iter__(self) -> Iterator[list[int]]:
        """The batches of one epoch, lists of numbers of samples of similar lengths."""
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(self.epoch,)))
        batches: list[list[int]] = []
        for members in self._members:
            own = rng.permutation(members) if self.shuffle else members
            end = len(own) // self.batch_size * self.batch_size if self.drop_last else len(own)
            batches += [own[i : i + self.batch_size].tolist() for i in range(0, end, self.batch_size)]
        order = rng.permutation(len(batches)) if self.shuffle else range(len(batches))
        return iter([batches[i] for i in order])


def pad_collate(samples: Sequence[Any], buckets: Sequence[int] | None = None, value: float = 0) -> tuple[Any, ...]:
    """A list of sequences as one batch of tensors: (padded, mask), or, of tuples, (padded, mask, the other parts).

    A sequence is an array of shape (length, ...), the first part of a sample that is a tuple. n sequences give `padded`
    of shape (n, L, ...), with `value` behind each, and `mask` (n, L) of booleans, True where a sequence has elements. L
    is the longest length, or the smallest of the `buckets` that holds it. Other parts are stacked, as `default_collate`
    does. Raises ShapeError where the sequences' other axes differ, DataArgumentError for one that no bucket holds.
    """
    if len(samples) == 0:
        raise DataArgumentError("pad_collate: no samples to pad")
    first, *others = zip(*samples, strict=True) if isinstance(samples[0], (tuple, list)) else (samples,)
    arrays = [np.asarray(sequence) for sequence in first]
    if () in (shapes := [array.shape for array in arrays]) or len({shape[1:] for shape in shapes}) > 1:
        raise ShapeError(f"pad_collate: sequences differ in more than their first axis: shapes {shapes}")
    lengths = np.array([len(array) for array in arrays])
    longest = int(lengths.max())
    if buckets is not None:
        longest = bucket_of(longest, checked_buckets("pad_collate", buckets))
    padded = np.full((len(arrays), longest, *shapes[0][1:]), value, np.result_type(*arrays))
    for row, array in zip(padded, arrays, strict=True):
        row[: len(array)] = array
    mask = np.arange(longest) < lengths[:, None]
    return tuple(as_tensors((padded, mask, *(default_collate(part) for part in others))))
