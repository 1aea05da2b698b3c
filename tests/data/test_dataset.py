"""Data sets, loaders and transforms of images."""

from __future__ import annotations

import itertools
import json
import threading
from typing import Any

import dlsys as dl
import numpy as np
from dlsys.data import (
    Compose,
    DataArgumentError,
    DataLoader,
    Dataset,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    Subset,
    TensorDataset,
    default_collate,
    random_split,
)
from dlsys.errors import ShapeError
from helpers import error_of
from hypothesis import given, settings
from hypothesis import strategies as st

COUNT = 23
DATA = TensorDataset(np.arange(COUNT, dtype=np.float32)[:, None], np.arange(COUNT))


class Squares(Dataset):
    """Sample i is i squared; a stated sample fails."""

    def __init__(self, count: int = 10, fails: int = -1) -> None:
        self.count, self.fails, self.asked = count, fails, []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        self.asked.append(index)
        if index == self.fails:
            raise LookupError(f"sample {index} is lost")
        return index, np.float32(index) ** 2


def labels_of(loader: DataLoader) -> list[list[int]]:
    return [batch[1].tolist() for batch in loader]


def noise(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return images + rng.random(images.shape, np.float32)


def same(first: list[Any], second: list[Any]) -> bool:
    return len(first) == len(second) and all(
        np.array_equal(x, y) for a, b in zip(first, second, strict=True) for x, y in zip(a, b, strict=True)
    )


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "dlsys-data-loader"]


# Data sets -------------------------------------------------------------------------------------------------


def test_a_data_set_is_split_at_random() -> None:
    for lengths, sizes in (
        ([10, 13], [10, 13]), ([0.5, 0.5], [12, 11]), ([0.2, 0.3, 0.5], [5, 7, 11]), ([1], [23]), ([23, 0], [23, 0]),
    ):  # fmt: skip
        parts = random_split(DATA, lengths, dl.random.Generator(3))
        assert [len(part) for part in parts] == sizes
        assert sorted(itertools.chain(*(part.indices for part in parts))) == list(range(COUNT))
        again = random_split(DATA, lengths, dl.random.Generator(3))
        assert [part.indices for part in parts] == [part.indices for part in again]
    part, _ = random_split(DATA, [10, 13])
    assert part.indices != list(range(10))
    x, y = next(iter(DataLoader(part, batch_size=4)))
    assert y.numpy().tolist() == part.indices[:4] == x.numpy()[:, 0].tolist()
    assert part[-1][1] == part.indices[-1]
    assert [int(Subset(Squares(), [3, 1])[i][1]) for i in (0, 1)] == [9, 1]
    assert "add up to 23" in error_of(DataArgumentError, random_split, DATA, [10, 10])


def test_tensor_dataset():
    assert len(DATA) == COUNT and DATA[3][0].tolist() == [3.0] and DATA[3][1] == 3
    batch = DATA.batch(np.arange(3))
    batch[0][:] = -1
    assert DATA[0][0].tolist() == [0.0]  # a batch is a copy
    assert "(3,), (4,)" in error_of(ShapeError, TensorDataset, np.zeros(3), np.zeros(4))
    assert "first axis" in error_of(ShapeError, TensorDataset, np.float32(1))


def test_default_collate():
    x, label = default_collate([(np.zeros((2, 3), np.float32), 1), (np.ones((2, 3), np.float32), 2)])
    assert (
        x.shape == (2, 2, 3)
        and x.dtype == np.float32
        and label.tolist() == [1, 2]
        and label.dtype == np.int64
    )
    nested = default_collate([((1.5, True), np.int32(3))] * 3)
    assert nested[0][0].dtype == np.float64 and nested[0][1].dtype == np.bool_
    assert nested[1].dtype == np.int32 and nested[1].shape == (3,)
    assert default_collate([1, 2.5]).tolist() == [1.0, 2.5]
    message = error_of(ShapeError, default_collate, [np.zeros((3, 32)), np.zeros((3, 28))])
    assert "(3, 28), (3, 32)" in message and "collate" in message
    assert "no samples" in error_of(DataArgumentError, default_collate, [])


# Loaders ---------------------------------------------------------------------------------------------------


def test_batches_in_order_and_their_number():
    for prefetch in (0, 1, 3):
        for drop_last, sizes in ((False, [5, 5, 5, 5, 3]), (True, [5, 5, 5, 5])):
            loader = DataLoader(DATA, 5, drop_last=drop_last, prefetch=prefetch)
            batches = list(loader)
            assert [len(x) for x, _ in batches] == sizes and len(loader) == len(sizes)
            assert np.concatenate([y for _, y in batches]).tolist() == list(range(sum(sizes)))
            assert all(isinstance(batch, tuple) and batch[0].numpy().dtype == np.float32 for batch in batches)
    assert list(DataLoader(TensorDataset(np.zeros(0)), 4)) == []
    assert list(DataLoader(TensorDataset(np.zeros(3)), 4, drop_last=True)) == []
    assert [x.tolist() for x in DataLoader([4, 5, 6], 2)] == [[4, 5], [6]]  # any sequence


def test_order_depends_on_seed_and_epoch_only():
    loader = DataLoader(DATA, 4, shuffle=True, seed=7)
    epochs = [labels_of(loader) for _ in range(3)]
    assert loader.epoch == 3
    assert all(sorted(itertools.chain(*epoch)) == list(range(COUNT)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    for epoch in (2, 0, 1):
        other = DataLoader(DATA, 4, shuffle=True, seed=7, prefetch=0)
        other.set_epoch(epoch)
        assert labels_of(other) == epochs[epoch] and other.epoch == epoch + 1
    assert labels_of(DataLoader(DATA, 4, shuffle=True, seed=8)) != epochs[0]


def test_fast_path_and_items_agree():
    class Items(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            x, label = super().__getitem__(index)
            return x + 1, label

    plain = list(DataLoader(DATA, 4, shuffle=True))
    assert same(plain, list(DataLoader([DATA[i] for i in range(COUNT)], 4, shuffle=True)))
    # a subclass that makes its own samples is not bypassed
    assert same(
        [(x + 1, label) for x, label in plain], list(DataLoader(Items(*DATA.arrays), 4, shuffle=True))
    )
    squares = next(iter(DataLoader(Squares(), 3)))
    assert squares[1].tolist() == [0.0, 1.0, 4.0] and squares[0].numpy().dtype == np.int64
    own = DataLoader(Squares(), 3, collate_fn=lambda samples: [sample[0] for sample in samples])
    assert list(own) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]


def test_thread_ends_with_the_loop():
    class BodyError(Exception):
        pass

    def broken_off() -> None:
        for _ in DataLoader(DATA, 2, prefetch=3):
            assert len(loader_threads()) <= 1
            break

    def failing() -> None:
        for number, _ in enumerate(DataLoader(DATA, 2, prefetch=2)):
            if number == 2:
                raise BodyError("in the body")

    def returned() -> Any:
        for batch in DataLoader(DATA, 2):
            return batch

    broken_off()
    assert loader_threads() == []
    assert error_of(BodyError, failing) == "in the body"
    assert loader_threads() == []
    returned()
    assert loader_threads() == []
    assert len(list(DataLoader(DATA, 2))) == 12 and loader_threads() == []
    iter(DataLoader(DATA, 2))  # never asked for a batch
    assert loader_threads() == []


def test_exceptions_reach_the_loop_after_the_batches_before():
    for prefetch in (0, 1, 5):
        received = []

        def run(received: list = received, prefetch: int = prefetch) -> None:
            for batch in DataLoader(Squares(10, fails=7), 2, prefetch=prefetch):
                received.append(batch[0].tolist())

        assert error_of(LookupError, run) == "sample 7 is lost"
        assert received == [[0, 1], [2, 3], [4, 5]] and loader_threads() == []

        def transform(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            raise ZeroDivisionError("in a transform")

        loader = DataLoader(DATA, 2, prefetch=prefetch, transform=transform)
        assert error_of(ZeroDivisionError, list, loader) == "in a transform"


def test_transform_gets_the_first_array_and_its_own_stream():
    loader = DataLoader(DATA, 4, shuffle=True, seed=3, transform=noise)
    first, second = list(loader), list(loader)
    plain = list(DataLoader(DATA, 4, shuffle=True, seed=3))
    assert [y.tolist() for _, y in first] == [y.tolist() for _, y in plain]
    added = [x - p for (x, _), (p, _) in zip(first, plain, strict=True)]
    assert all((a >= 0).all() and (a <= 1).all() for a in added)
    assert not np.allclose(added[0], added[1]) and not same(first, second)
    again = DataLoader(DATA, 4, shuffle=True, seed=3, transform=noise, prefetch=0)
    assert same(first, list(again)) and same(second, list(again))
    whole = DataLoader(Squares(4), 2, transform=lambda index, rng: index + 10)
    assert [batch[0].tolist() for batch in whole] == [[10, 11], [12, 13]]


def test_resumed_loop_goes_on_with_the_next_batch():
    def make(prefetch: int = 2) -> DataLoader:
        return DataLoader(DATA, 4, shuffle=True, seed=5, transform=noise, prefetch=prefetch)

    loader = make()
    epochs = [list(loader) for _ in range(3)]
    for stop in range(1, len(loader) + 1):
        loader = make()
        loader.set_epoch(1)
        for number, batch in enumerate(loader, 1):
            assert same([batch], [epochs[1][number - 1]])
            if number == stop:
                state = json.loads(json.dumps(loader.state_dict()))
                break
        assert state["epoch"] == 1 and state["batch"] == stop
        assert loader.state_dict() == state  # after the loop was broken off, too
        for prefetch in (0, 3):
            resumed = make(prefetch)
            resumed.load_state_dict(state)
            resumed.set_epoch(1)  # the epoch that it is in: keeps its place
            assert resumed.state_dict() == state
            assert same(list(resumed), epochs[1][stop:]) and resumed.epoch == 2
            assert same(list(resumed), epochs[2])
    assert same(list(loader), epochs[1])  # not resumed: a new loop begins the epoch anew
    done = make()
    list(done)
    assert (done.state_dict()["epoch"], done.state_dict()["batch"]) == (1, 0)
    done.load_state_dict(state)
    done.set_epoch(0)  # another epoch: from its start
    assert same(list(done), epochs[0])


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_loops_over_one_loader_at_once_count_for_themselves(drawn: st.DataObject) -> None:
    """Each gives the batches of its epoch, and the state is that of the loop that returned the last batch."""
    shuffle, prefetch = drawn.draw(st.booleans()), drawn.draw(st.integers(0, 2))

    def make() -> DataLoader:
        return DataLoader(DATA, 4, shuffle=shuffle, seed=5, transform=noise, prefetch=prefetch)

    epochs = [list(loader) for loader in [make()] for _ in range(3)]
    loader = make()
    loops: list[tuple[int, list[Any], Any]] = []
    for _ in range(drawn.draw(st.integers(1, 25))):
        if not loops or drawn.draw(st.integers(0, 4)) == 0:
            if loader.epoch > 2:
                break
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
        assert same(seen, epochs[epoch][: len(seen)])
        state, resumed = json.loads(json.dumps(loader.state_dict())), make()
        assert (state["epoch"], state["batch"]) == (epoch, len(seen))
        resumed.load_state_dict(state)
        assert same(list(resumed), epochs[epoch][len(seen) :])


# Transforms ------------------------------------------------------------------------------------------------


def images(count: int = 40, channels: int = 3, height: int = 6, width: int = 5) -> np.ndarray:
    return np.random.default_rng(0).random((count, channels, height, width), np.float32) + 0.5


def test_normalize():
    x = images()
    mean, std = [0.1, 0.2, 0.3], [0.5, 1.0, 2.0]
    out = Normalize(mean, std)(x)
    assert out.dtype == np.float32 and out.shape == x.shape
    for c in range(3):
        assert np.allclose(out[:, c], (x[:, c] - mean[c]) / std[c], atol=1e-6)
    assert np.array_equal(Normalize(mean, std)(x[4]), out[4])
    assert np.allclose(Normalize(0.5, 0.25)(x), (x - 0.5) / 0.25)
    assert "std" in error_of(DataArgumentError, Normalize, 0, [1, 0, 1])


def test_random_crop_is_a_window_of_the_padded_image():
    x = images(200)
    for size, padding in (((6, 5), 2), (4, 0), ((3, 9), 4)):
        out = RandomCrop(size, padding)(x, np.random.default_rng(1))
        rows, columns = (size, size) if isinstance(size, int) else size
        assert out.shape == (200, 3, rows, columns) and out.dtype == np.float32 and out.flags.c_contiguous
        padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
        places = set()
        for image, crop in zip(padded, out, strict=True):
            found = [
                (top, left)
                for top in range(6 + 2 * padding - rows + 1)
                for left in range(5 + 2 * padding - columns + 1)
                if np.array_equal(image[:, top : top + rows, left : left + columns], crop)
            ]
            assert found
            places.add(found[0])
        possible = (6 + 2 * padding - rows + 1) * (5 + 2 * padding - columns + 1)
        assert len(places) >= min(possible, 20) * 0.9  # every place, the outermost too
    assert RandomCrop(32)(np.ones((3, 32, 32), np.uint8), np.random.default_rng(0)).dtype == np.uint8
    assert "(9, 9)" in error_of(ShapeError, RandomCrop(9, 1), x, np.random.default_rng(0))
    assert "size" in error_of(DataArgumentError, RandomCrop, 0)


def test_random_flip():
    x = images(400)
    out = RandomHorizontalFlip(0.25)(x, np.random.default_rng(2))
    flipped = np.array([np.array_equal(a, b[..., ::-1]) for a, b in zip(out, x, strict=True)])
    kept = np.array([np.array_equal(a, b) for a, b in zip(out, x, strict=True)])
    assert (flipped ^ kept).all() and 60 < flipped.sum() < 140
    assert np.array_equal(RandomHorizontalFlip(1)(x, np.random.default_rng(0)), x[..., ::-1])
    assert np.array_equal(RandomHorizontalFlip(0)(x, np.random.default_rng(0)), x)
    assert "between 0 and 1, not 2" in error_of(DataArgumentError, RandomHorizontalFlip, 2)


def test_one_image_is_a_batch_of_one():
    transform = Compose([RandomHorizontalFlip(), RandomCrop((6, 5), 2), Normalize(0.5, 0.5)])
    x = images(1)
    for seed in range(10):
        alone = transform(x[0], np.random.default_rng(seed))
        assert alone.shape == x[0].shape
        assert np.array_equal(alone, transform(x, np.random.default_rng(seed))[0])
    before = x.copy()
    transform(x, np.random.default_rng(0))
    assert np.array_equal(x, before)  # nothing is changed in place
    assert "default_rng" in error_of(DataArgumentError, transform, x)


def test_batches_are_tensors_unless_the_caller_collates() -> None:
    images = np.arange(24, dtype=np.uint8).reshape(4, 2, 3)
    loader = DataLoader(TensorDataset(images, np.arange(4)), 3)
    x, y = next(iter(loader))
    assert x.view(-1, 6).size(0) == 3 and x.to("cpu").dtype == "uint8"
    assert (y.numpy() == np.arange(3)).all() and (x.float() / 2).tolist()[0][0] == [0.0, 0.5, 1.0]
    for batch in DataLoader(TensorDataset(images, np.arange(4)), 3, collate_fn=default_collate):
        assert isinstance(batch[0], np.ndarray) and batch[0].dtype == np.uint8
        break
    seen = []
    kinds = DataLoader(TensorDataset(images), 2, transform=lambda batch, rng: seen.append(type(batch)) or batch)
    assert len(list(kinds)) == 2 and seen == [np.ndarray] * 2
