"""Batches of sequences: samples of similar length together, padded, with masks."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from dlsys import errors
from dlsys.data import BucketSampler, DataArgumentError, DataLoader, pad_collate

BUCKETS = (4, 8, 16)


class Texts:
    """Pairs of a sequence, whose elements are its number plus 1, and the number."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return np.full(self.lengths[index], index + 1, np.int64), index


@pytest.fixture
def lengths() -> list[int]:
    return np.random.default_rng(0).integers(1, 17, 50).tolist()


def bucket(length: int) -> int:
    return min(b for b in BUCKETS if b >= length)


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_batch_has_samples_of_one_bucket(lengths: list[int], drop_last: bool) -> None:
    sampler = BucketSampler(lengths, 4, BUCKETS, drop_last=drop_last)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    assert all(len({bucket(lengths[i]) for i in batch}) == 1 for batch in batches)
    indices = sorted(i for batch in batches for i in batch)
    if drop_last:
        assert all(len(batch) == 4 for batch in batches) and len(set(indices)) == len(indices)
    else:
        assert indices == list(range(50))


def test_the_order_depends_on_seed_and_epoch(lengths: list[int]) -> None:
    one, other = (BucketSampler(lengths, 4, BUCKETS, seed=seed) for seed in (1, 2))
    first = list(one)
    assert list(one) == first != list(other)
    one.set_epoch(1)
    assert list(one) != first
    plain = BucketSampler(lengths, 4, BUCKETS, shuffle=False)
    assert [bucket(lengths[batch[0]]) for batch in plain] == sorted(bucket(lengths[batch[0]]) for batch in plain)


@pytest.mark.parametrize("prefetch", [0, 1])
def test_a_loader_of_padded_batches(lengths: list[int], prefetch: int) -> None:
    sampler = BucketSampler(lengths, 4, BUCKETS)
    collate = partial(pad_collate, buckets=BUCKETS)
    loader = DataLoader(Texts(lengths), batch_sampler=sampler, collate_fn=collate, prefetch=prefetch)
    seen: list[int] = []
    assert len(loader) == len(sampler)
    for padded, mask, numbers in loader:
        assert padded.shape == mask.shape and padded.shape[1] in BUCKETS and mask.dtype == "bool"
        for row, there, number in zip(padded.numpy(), mask.numpy(), numbers.numpy(), strict=True):
            assert there.sum() == lengths[number] and there[: lengths[number]].all()
            assert (row == np.where(there, number + 1, 0)).all()
        seen += numbers.numpy().tolist()
    assert sorted(seen) == list(range(50)) and loader.epoch == 1
    assert [batch[2].numpy().tolist() for batch in loader] != [seen[i : i + 4] for i in range(0, 50, 4)]


def test_a_loader_resumes_within_an_epoch(lengths: list[int]) -> None:
    def loader() -> DataLoader:
        return DataLoader(Texts(lengths), batch_sampler=BucketSampler(lengths, 4, BUCKETS), collate_fn=pad_collate)

    whole = [batch[2].numpy().tolist() for batch in loader()]
    first, second = loader(), loader()
    batches = iter(first)
    for _ in range(3):
        next(batches)
    second.load_state_dict(first.state_dict())
    assert [batch[2].numpy().tolist() for batch in second] == whole[3:]


def test_padding_without_buckets_and_of_vectors() -> None:
    padded, mask = pad_collate([np.ones((2, 3), "float32"), np.ones((5, 3), "float32")], value=-1)
    assert padded.shape == (2, 5, 3) and padded.dtype == "float32"
    assert (padded.numpy()[~mask.numpy()] == -1).all() and mask.numpy().sum(1).tolist() == [2, 5]


def test_errors() -> None:
    with pytest.raises(DataArgumentError, match=r"length 20 is longer than the largest of the buckets \[4, 8, 16\]"):
        BucketSampler([3, 20], 2, BUCKETS)
    with pytest.raises(DataArgumentError, match="at least one bucket"):
        BucketSampler([3], 2, ())
    with pytest.raises(DataArgumentError, match="longer than the largest"):
        pad_collate([np.zeros(9)], buckets=(4, 8))
    with pytest.raises(errors.ShapeError, match="differ in more than their first axis"):
        pad_collate([np.zeros((2, 3)), np.zeros((2, 4))])
    with pytest.raises(DataArgumentError, match="no samples"):
        pad_collate([])
    with pytest.raises(DataArgumentError, match="batch_sampler excludes batch_size"):
        DataLoader(Texts([3]), batch_size=2, batch_sampler=BucketSampler([3], 2, BUCKETS))
