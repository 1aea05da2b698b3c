"""Data sets, what stacks their samples, and loaders: the same batches, by threads and without, and resumed."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys import data
from dlsys.data import DataArgumentError, DataLoader, Dataset, Subset, TensorDataset, default_collate
from dlsys.errors import DTypeError, ShapeError
from helpers import error_of
from hypothesis import given
from hypothesis import strategies as st

COUNT = 23
DATA = TensorDataset(np.arange(COUNT, dtype=np.float32)[:, None], np.arange(COUNT))
WORKERS = pytest.mark.parametrize("workers", [0, 1, 3])


class Squares(Dataset):
    """Sample i is (i, i squared); number 7 fails."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        if index == 7:
            raise LookupError("sample 7 is lost")
        return index, np.float32(index) ** 2


class Drawn:
    """The numbers of all samples in an order that is drawn for each loop."""

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Iterator[int]:
        return iter(dl.random.default_generator.numpy().permutation(COUNT))


def noise(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return images + rng.random(images.shape, np.float32)


def as_lists(batches: Iterable[Any]) -> list[Any]:
    return [[part.tolist() for part in batch] for batch in batches]


def labels_of(batches: Iterable[Any]) -> list[list[int]]:
    return [labels for _, labels in as_lists(batches)]


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("dlsys-data")]


# Data sets and their samples -------------------------------------------------------------------------------


def test_a_tensor_dataset_has_rows_of_arrays_or_tensors() -> None:
    assert len(DATA) == COUNT and DATA[3][0].tolist() == [3.0] and DATA[3][1] == 3
    DATA.batch(np.arange(3))[0][:] = -1
    assert DATA[0][0].tolist() == [0.0]  # a batch is a copy
    assert all(isinstance(part, dl.Tensor) for part in TensorDataset(dl.ones(3, 2), np.arange(3))[:2])
    for arrays in ((np.zeros(3), np.zeros(4)), (np.float32(1),), ()):
        assert str([np.shape(x) for x in arrays]) in error_of(ShapeError, TensorDataset, *arrays)


@pytest.mark.parametrize(
    "lengths, sizes",
    [([10, 13], [10, 13]), ([0.5, 0.5], [12, 11]), ([0.2, 0.3, 0.5], [5, 7, 11]), ([1], [23]), ([23, 0], [23, 0])],
)
def test_a_data_set_is_split_at_random(lengths: list[float], sizes: list[int]) -> None:
    parts, again = (data.random_split(DATA, lengths, dl.random.Generator(3)) for _ in range(2))
    assert [len(part) for part in parts] == sizes
    assert sorted(itertools.chain(*(part.indices for part in parts))) == list(range(COUNT))
    assert [part.indices for part in parts] == [part.indices for part in again]
    part = data.random_split(DATA, lengths)[0]
    assert part.indices != list(range(len(part))) and part[-1][1] == part.indices[-1]
    assert labels_of(DataLoader(part, batch_size=4))[0] == part.indices[:4]
    assert "add up to 23" in error_of(DataArgumentError, data.random_split, DATA, [10, 10])


def test_samples_are_stacked_part_by_part() -> None:
    x, (y, z) = default_collate([(np.full((2, 3), i, np.float32), (i, np.int32(3))) for i in range(2)])
    assert x.shape == (2, 2, 3) and x.dtype == np.float32 and y.tolist() == [0, 1] and y.dtype == np.int64
    assert z.dtype == np.int32 and default_collate([1, 2.5]).tolist() == [1.0, 2.5]
    assert default_collate([True]).dtype == np.bool_ and isinstance(default_collate([dl.ones(2)]), dl.Tensor)
    rows = [{"text": f"line {i}", "label": i, "pair": (i, "a")} for i in range(3)]
    batch = next(iter(DataLoader(rows, 2)))
    assert batch["text"] == ["line 0", "line 1"] and batch["pair"][1] == ("a", "a")
    assert isinstance(batch["label"], dl.Tensor) and batch["label"].tolist() == [0, 1]
    assert list(DataLoader(["a", "b", "c"], 2)) == [["a", "b"], ["c"]]
    for kind, samples, words in (
        (ShapeError, [np.zeros((3, 32)), np.zeros((3, 28))], "(3, 28), (3, 32) cannot be stacked: use a `collate_fn`"),
        (ShapeError, [(1, 2), (1,)], "1 parts, 2 parts"),
        (ShapeError, [{"a": 1}, {"b": 1}], "keys ['a'], keys ['b']"),
        (DTypeError, [None, None], "samples of object"),
        (DataArgumentError, [], "no samples"),
    ):
        assert words in error_of(kind, default_collate, samples)


def test_a_data_set_fetches_a_batch_itself_unless_its_samples_are_others() -> None:
    class Items(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            x, label = super().__getitem__(index)
            return x + 1, label

    assert as_lists(DataLoader(DATA, 4)) == as_lists(DataLoader([DATA[i] for i in range(COUNT)], 4))
    assert as_lists(DataLoader(Items(*DATA.arrays), COUNT)) == [[[[i + 1] for i in range(COUNT)], [*range(COUNT)]]]
    assert [int(Subset(Squares(), [3, 1])[i][1]) for i in (0, 1)] == [9, 1]
    assert next(iter(DataLoader(Squares(), 3, collate_fn=lambda samples: [x for x, _ in samples]))) == [0, 1, 2]
    assert isinstance(next(iter(DataLoader(DATA, collate_fn=default_collate)))[0], np.ndarray)
    assert next(iter(DataLoader(TensorDataset(np.arange(4, dtype=np.uint16)), 3)))[0].dtype == "int64"


# Loaders ---------------------------------------------------------------------------------------------------


@WORKERS
def test_batches_and_exceptions_come_in_order_and_threads_end_with_the_loop(workers: int) -> None:
    for drop_last, sizes in ((False, [5, 5, 5, 5, 3]), (True, [5, 5, 5, 5])):
        loader = DataLoader(DATA, 5, drop_last=drop_last, num_workers=workers)
        batches = list(loader)
        assert [len(x) for x, _ in batches] == sizes and len(loader) == len(sizes)
        assert list(itertools.chain(*labels_of(batches))) == list(range(sum(sizes)))
        assert all(isinstance(x, dl.Tensor) and x.dtype == "float32" and y.dtype == "int64" for x, y in batches)
    picked = DataLoader(DATA, 2, sampler=[3, 1, -1], num_workers=workers)
    assert len(picked) == 2 and labels_of(picked) == [[3, 1], [22]]
    assert list(DataLoader(TensorDataset(np.zeros(0)), 4, num_workers=workers)) == []
    received: list[Any] = []
    failing = DataLoader(Squares(), 2, num_workers=workers)
    assert error_of(LookupError, lambda: received.extend(x.tolist() for x, _ in failing)) == "sample 7 is lost"
    assert received == [[0, 1], [2, 3], [4, 5]] and loader_threads() == []
    divides = DataLoader([1, 2], num_workers=workers, transform=lambda x, rng: 1 // 0)
    assert "by zero" in error_of(ZeroDivisionError, list, divides)
    for _ in DataLoader(DATA, 2, num_workers=workers):
        assert len(loader_threads()) <= workers
        break
    waiting = iter(DataLoader(DATA, 2, num_workers=workers))  # which is asked for no batch
    assert loader_threads() == []
    del waiting


def test_threads_prepare_batches_at_once() -> None:
    met = threading.Barrier(3, timeout=20)  # passes where three samples are asked for at the same time
    loader = DataLoader(range(6), num_workers=3, collate_fn=lambda samples: met.wait() * 0 + samples[0])
    assert list(loader) == [*range(6)]


def test_orders_and_a_transforms_streams_differ_by_seed_epoch_and_batch() -> None:
    loaders = [DataLoader(DATA, 4, shuffle=True, seed=seed, transform=noise) for seed in (3, 3, 4)]
    epochs = [[*loader, *loader] for loader in loaders]
    assert as_lists(epochs[0]) == as_lists(epochs[1]) and loaders[0].epoch == 2
    for part in (0, 1):
        assert len({tuple(batch[part].numpy().ravel()) for batch in epochs[0] + epochs[2]}) == 4 * 6
    added = [x.numpy()[:, 0] - y.numpy() for x, y in epochs[0]]
    assert all((part >= 0).all() and (part <= 1).all() for part in added) and not np.allclose(added[0], added[1])
    alone = DataLoader([1, 2, 3], 3, transform=lambda batch, rng: batch + isinstance(batch, np.ndarray))
    assert next(iter(alone)).tolist() == [2, 3, 4]


@given(st.data())
def test_loops_count_for_themselves_and_are_resumed(drawn: st.DataObject) -> None:
    """Each of several loops over a loader gives the batches of its epoch; the state, that of the loop that returned the
    last batch, leads another loader through the rest, and through the next epoch."""
    sampled, shuffle = drawn.draw(st.booleans()), drawn.draw(st.booleans())
    order = {"sampler": Drawn()} if sampled else {"shuffle": shuffle}

    def make() -> DataLoader:
        return DataLoader(DATA, 4, seed=5, transform=noise, num_workers=drawn.draw(st.integers(0, 2)), **order)

    dl.manual_seed(3)
    loader = make()
    loops: list[tuple[int, list[Any], Any]] = []
    for _ in range(drawn.draw(st.integers(1, 25))):
        if not loops or drawn.draw(st.integers(0, 4)) == 0:
            loops.append((loader.epoch, [], iter(loader)))
            continue
        number = drawn.draw(st.integers(0, len(loops) - 1))
        epoch, seen, loop = loops[number]
        batch = next(loop, None)
        if batch is None:
            assert len(seen) == len(loader)
            del loops[number]
            continue
        seen.append(batch)
        state, resumed = json.loads(json.dumps(loader.state_dict())), make()
        assert (state["epoch"], state["batch"]) == (epoch, len(seen))
        resumed.load_state_dict(state)
        resumed.set_epoch(epoch)  # the epoch that it is in: keeps its place
        assert resumed.state_dict() == state
        whole = seen + list(resumed)
        assert sorted(itertools.chain(*labels_of(whole))) == list(range(COUNT)) and resumed.epoch == epoch + 1
        if not sampled:
            again = make()
            again.set_epoch(epoch)
            assert as_lists(whole) == as_lists(again) and as_lists(resumed) == as_lists(again)


def test_a_state_is_of_the_same_batches() -> None:
    loader = DataLoader(DATA, 4, shuffle=True)
    for other in (DataLoader(DATA, 5, shuffle=True), DataLoader(DATA, 4), DataLoader(DATA, 4, sampler=Drawn())):
        message = error_of(DataArgumentError, loader.load_state_dict, other.state_dict())
        assert "the state is of a loader with" in message
    first = labels_of(loader)[0]
    left = next(iter(loader))[1].tolist()
    assert labels_of(loader)[0] == left != first  # a loop that was left begins anew
    loader.load_state_dict({**loader.state_dict(), "epoch": 0, "batch": 2})
    loader.set_epoch(1)
    loader.set_epoch(0)  # another epoch begins at its start
    assert labels_of(loader)[0] == first


def test_pytorchs_arguments_that_change_no_batch_are_taken() -> None:
    unused = {"pin_memory": True, "persistent_workers": True, "prefetch_factor": 2, "timeout": 0}
    assert labels_of(DataLoader(DATA, 20, **unused)) == [[*range(20)], [20, 21, 22]]
    assert "unexpected keyword argument 'batchsize'" in error_of(TypeError, DataLoader, DATA, batchsize=3)
