"""Loaders with samplers, with several workers, and with strings and dictionaries in batches."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from itertools import chain
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys.data import DataArgumentError, DataLoader, Dataset, TensorDataset
from helpers import error_of

DATA = TensorDataset(np.arange(23))


def flat(batches: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(batches))


def numbers(loader: DataLoader) -> list[list[int]]:
    return [x.tolist() for (x,) in loader]


class Drawn:
    """The numbers of all samples in an order that is drawn for each loop."""

    def __len__(self) -> int:
        return len(DATA)

    def __iter__(self) -> Iterator[int]:
        return iter(dl.random.default_generator.numpy().permutation(len(DATA)))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_batches_come_in_the_samplers_order_from_any_number_of_workers(workers: int) -> None:
    loader = DataLoader(DATA, 4, sampler=range(22, -1, -1), num_workers=workers, drop_last=True)
    assert len(loader) == 5 and flat(numbers(loader)) == list(range(22, 2, -1))
    own = DataLoader(DATA, 2, sampler=[3, 1, -1], num_workers=workers)
    assert len(own) == 2 and numbers(own) == [[3, 1], [22]]
    assert numbers(DataLoader(DATA, 10, num_workers=workers)) == [list(range(10)), list(range(10, 20)), [20, 21, 22]]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("dlsys-data")]


def test_workers_prepare_batches_at_once() -> None:
    class Slow(Dataset):
        met = threading.Barrier(3, timeout=20)

        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> int:
            self.met.wait()  # passes where three samples are asked for at the same time
            return index

    assert [x.tolist() for x in DataLoader(Slow(), num_workers=3)] == [[i] for i in range(6)]


def test_errors_of_workers_reach_the_loop() -> None:
    class Failing(Dataset):
        def __len__(self) -> int:
            return 9

        def __getitem__(self, index: int) -> int:
            time.sleep(0.001)
            if index == 5:
                raise LookupError("sample 5 is lost")
            return index

    found: list[Any] = []
    assert "is lost" in error_of(LookupError, lambda: found.extend(DataLoader(Failing(), 2, num_workers=2)))
    assert [x.tolist() for x in found] == [[0, 1], [2, 3]]


def test_a_loader_with_a_sampler_goes_on_in_the_order_that_was_drawn() -> None:
    dl.manual_seed(3)
    loader = DataLoader(DATA, 4, sampler=Drawn())
    seen = []
    for (x,) in loader:
        seen.append(x.tolist())
        if len(seen) == 2:
            break
    state = json.loads(json.dumps(loader.state_dict()))
    again = DataLoader(DATA, 4, sampler=Drawn())
    again.load_state_dict(state)
    rest = numbers(again)
    assert sorted(flat(seen + rest)) == list(range(23)) and len(seen) + len(rest) == 6
    assert again.epoch == 1 and sorted(flat(numbers(again))) == list(range(23))
    del state["order"]
    assert "the state has no order" in error_of(DataArgumentError, again.load_state_dict, state)


def test_strings_and_dictionaries_are_batches() -> None:
    rows = [{"text": f"line {i}", "label": i, "pair": (i, "a")} for i in range(3)]
    batch = next(iter(DataLoader(rows, 2)))
    assert batch["text"] == ["line 0", "line 1"] and batch["pair"][1] == ("a", "a")
    assert isinstance(batch["label"], dl.Tensor) and batch["label"].tolist() == [0, 1]
    assert list(DataLoader(["a", "b", "c"], 2)) == [["a", "b"], ["c"]]
    (texts, labels), *_ = DataLoader([("one", 1), ("two", 2)], 2)
    assert texts == ("one", "two") and labels.tolist() == [1, 2]
