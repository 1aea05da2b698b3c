"""Samplers, sums and streams of data sets, tensors in samples, and the arguments of PyTorch's loader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import dlsys as dl
import numpy as np
from dlsys import nn
from dlsys.data import (
    BatchSampler,
    ConcatDataset,
    DataArgumentError,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    random_split,
)
from dlsys.graph import Node
from helpers import error_of

NUMBERS = TensorDataset(np.arange(10))


def batches(loader: DataLoader) -> list[list[int]]:
    return [batch[0].tolist() for batch in loader]


class Stream(IterableDataset):
    """0 to 6, and where it was asked."""

    def __init__(self) -> None:
        self.epochs = 0

    def __iter__(self) -> Iterator[Any]:
        self.epochs += 1
        yield from range(7)


class Evens(Sampler):
    """A sampler of the user's."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(0, 10, 2))

    def __len__(self) -> int:
        return 5


def test_samplers_draw_what_they_say() -> None:
    rng = np.random.default_rng(0)
    assert list(SequentialSampler(NUMBERS)) == list(range(10))
    assert sorted(RandomSampler(NUMBERS)) == list(range(10)) and len(RandomSampler(NUMBERS)) == 10
    drawn = list(RandomSampler(NUMBERS, replacement=True, num_samples=1000, generator=rng))
    assert len(drawn) == 1000 and set(drawn) == set(range(10))
    twice = list(RandomSampler(NUMBERS, num_samples=25))
    assert sorted(twice[:10]) == sorted(twice[10:20]) == list(range(10)) and len(twice) == 25
    assert sorted(SubsetRandomSampler([3, 1, 8])) == [1, 3, 8]
    weighted = list(WeightedRandomSampler([1, 0, 3], 4000, generator=rng))
    assert 1 not in weighted and abs(weighted.count(2) / 4000 - 0.75) < 0.03
    assert sorted(WeightedRandomSampler([1.0, 0.0, 3.0], 2, replacement=False)) == [0, 2]
    assert list(BatchSampler(range(5), 2, False)) == [[0, 1], [2, 3], [4]] and len(BatchSampler(range(5), 2, True)) == 2
    assert list(BatchSampler(SequentialSampler(NUMBERS), 4, True)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    first, second = (list(RandomSampler(NUMBERS, generator=np.random.default_rng(3))) for _ in range(2))
    assert first == second
    for words, kind, args in (
        ("weights must be numbers >= 0", WeightedRandomSampler, ([0.0, 0.0], 2)),
        ("weights must be numbers >= 0", WeightedRandomSampler, ([1.0, -1.0], 2)),
        ("3 of 2 samples without replacement", WeightedRandomSampler, ([1, 0, 1], 3, False)),
        ("an integer >= 1, not 0", BatchSampler, (range(3), 0, False)),
        ("of dlsys.random or NumPy, not int", RandomSampler, (NUMBERS, False, None, 3)),
    ):
        assert words in error_of(DataArgumentError, kind, *args), words  # type: ignore[arg-type]


def test_loaders_follow_samplers_and_resume() -> None:
    assert batches(DataLoader(NUMBERS, 2, sampler=Evens())) == [[0, 2], [4, 6], [8]]
    assert batches(DataLoader(NUMBERS, 2, sampler=[5, 1, 1], drop_last=True)) == [[5, 1]]
    assert batches(DataLoader(NUMBERS, batch_sampler=[[1, 2, 3], [0]])) == [[1, 2, 3], [0]]

    def make(**arguments: Any) -> DataLoader:
        return DataLoader(NUMBERS, seed=4, **arguments)

    for arguments in (
        {"sampler": WeightedRandomSampler(np.arange(1, 11), 12), "batch_size": 5},
        {"batch_sampler": BatchSampler(RandomSampler(NUMBERS), 3, False)},
    ):
        loader = make(**arguments)
        epochs = [batches(loader) for _ in range(2)]
        assert epochs[0] != epochs[1] and len(loader) == len(epochs[0])
        again = make(**arguments)
        assert batches(again) == epochs[0]  # of seed and epoch alone
        for number, _ in enumerate(again):
            if number == 1:
                state = json.loads(json.dumps(again.state_dict()))
                break
        resumed = make(**arguments)
        resumed.load_state_dict(state)
        assert batches(resumed) == epochs[1][2:]
        name = next(iter(arguments))
        plain = make(batch_size=arguments.get("batch_size", 1))
        assert name in resumed.state_dict() and name not in plain.state_dict()
    for words, arguments in (
        ("neither shuffle nor a stream", {"sampler": Evens(), "shuffle": True}),
        ("batch_sampler says", {"batch_sampler": [[1]], "batch_size": 2}),
        ("batch_sampler says", {"batch_sampler": [[1]], "sampler": Evens()}),
        ("drop_last needs a batch_size", {"batch_size": None, "drop_last": True}),
        ("of dlsys.random or NumPy", {"generator": 3}),
    ):
        assert words in error_of(DataArgumentError, DataLoader, NUMBERS, **arguments), words


def test_arguments_of_pytorch_are_taken() -> None:
    loader = DataLoader(
        NUMBERS,
        batch_size=4,
        shuffle=True,
        num_workers=2,
        pin_memory=True,
        timeout=0,
        worker_init_fn=None,
        prefetch_factor=2,
        persistent_workers=True,
        generator=np.random.default_rng(1),
    )
    other = DataLoader(NUMBERS, 4, True, generator=np.random.default_rng(1))
    found = batches(loader)
    assert found == batches(other) and sorted(number for batch in found for number in batch) == list(range(10))
    dl.manual_seed(3)
    parts = random_split(NUMBERS, [7, 3], generator=dl.random.default_generator)
    dl.manual_seed(3)
    same = random_split(NUMBERS, [7, 3], generator=dl.random.default_generator)
    assert [part.indices.tolist() for part in parts] == [part.indices.tolist() for part in same]
    assert [len(part) for part in parts] == [7, 3]


def test_samples_one_by_one() -> None:
    data = [{"x": np.arange(3), "name": "a"}, {"x": np.arange(2), "name": "b"}]
    assert [sample["name"] for sample in DataLoader(data, batch_size=None)] == ["a", "b"]
    shapes = list(DataLoader(data, batch_size=None, collate_fn=lambda sample: sample["x"].shape))
    assert shapes == [(3,), (2,)] and len(DataLoader(data, batch_size=None)) == 2


def test_streams_come_in_batches_and_resume() -> None:
    for prefetch in (0, 2):
        stream = Stream()
        loader = DataLoader(stream, 3, prefetch=prefetch)
        assert [batch.tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5], [6]]
        assert (loader.epoch, stream.epochs) == (1, 1) and "stream Stream" in repr(loader)
        assert [b.tolist() for b in DataLoader(stream, 3, drop_last=True, prefetch=prefetch)] == [[0, 1, 2], [3, 4, 5]]
        assert list(DataLoader(stream, None, prefetch=prefetch)) == list(range(7))
        for _ in loader:
            state = json.loads(json.dumps(loader.state_dict()))
            break
        again = DataLoader(Stream(), 3, prefetch=prefetch)
        again.load_state_dict(state)
        assert [batch.tolist() for batch in again] == [[3, 4, 5], [6]]
    assert "has no length" in error_of(TypeError, len, DataLoader(stream))
    assert "cannot be shuffled" in error_of(DataArgumentError, DataLoader, stream, shuffle=True)


def test_sums_of_data_sets() -> None:
    both = ConcatDataset([NUMBERS, TensorDataset(np.arange(100, 103)), Subset(NUMBERS, [7])])
    assert len(both) == 14 and [int(both[i][0]) for i in (0, 9, 10, 12, 13, -1, -14)] == [0, 9, 100, 102, 7, 7, 0]
    assert batches(DataLoader(both, 6))[1] == [6, 7, 8, 9, 100, 101]
    assert len(NUMBERS + NUMBERS) == 20 and isinstance(NUMBERS + NUMBERS, ConcatDataset)
    assert "out of range for 14" in error_of(IndexError, both.__getitem__, 14)
    assert "at least one" in error_of(DataArgumentError, ConcatDataset, [])
    assert "int has no length" in error_of(DataArgumentError, ConcatDataset, [3])


def test_tensors_in_tensors_out() -> None:
    x = np.random.default_rng(0).standard_normal((10, 3)).astype("float32")
    data = TensorDataset(dl.tensor(x), np.arange(10) % 2)
    assert data.tensors[0].shape == (10, 3) and data.tensors[1] is not None
    for loader in (DataLoader(data, 4), DataLoader(Subset(data, range(10)), 4), DataLoader(data + data, 4)):
        images, labels = next(iter(loader))
        assert isinstance(images, Node) and isinstance(labels, Node)
        assert images.to("cpu").dtype == "float32" and labels.dtype == "int64" and labels.size(0) == 4
        np.testing.assert_array_equal(images.numpy(), x[:4])

    class Mixed(Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return {"image": dl.tensor(x[index]) * 2.0, "label": index, "pair": (x[index], 0.5)}

    batch = next(iter(DataLoader(Mixed(), 3)))
    assert all(isinstance(value, Node) for value in (batch["image"], batch["label"], *batch["pair"]))
    np.testing.assert_allclose(batch["image"].numpy(), 2 * x[:3])
    assert isinstance(default_collate([x[0], x[1]]), np.ndarray)


def test_fit_takes_batches_of_tensors() -> None:
    x = np.random.default_rng(0).standard_normal((10, 3)).astype("float32")
    losses = []
    for data in (TensorDataset(x, np.arange(10) % 2), TensorDataset(dl.tensor(x), dl.tensor(np.arange(10) % 2))):
        dl.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = dl.optim.SGD(model.parameters(), 0.5)
        history = dl.fit(model, nn.CrossEntropyLoss(), optimizer, DataLoader(data, 5), epochs=2, progress=False)
        losses.append(history.losses)
    assert losses[0] == losses[1] and losses[0][-1] < losses[0][0]
