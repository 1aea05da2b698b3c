"""Training: epochs, records, runs that are stopped and go on to the same bits; the apps start and write."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import nn, optim, training
from dlsys.data import DataLoader, TensorDataset
from dlsys.errors import DataError, GraphError
from helpers import error_of, python, running

BATCH = np.ones((4, 6), "f4"), np.array([1, 1, 0, 1])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.dropout, self.second = nn.Linear(6, 16), nn.Dropout(0.25), nn.Linear(16, 3)

    def forward(self, x: ad.Node) -> ad.Node:
        return self.second(self.dropout(ad.relu_op(self.first(x))))


def run(directory: Any, epochs: int = 3, **more: Any) -> tuple[nn.Module, training.History]:
    """A run with all that has state: dropout, Adam, a schedule, shuffled data with a last batch that is smaller."""
    dl.manual_seed(1)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((50, 6)).astype("float32")
    y = (x[:, 0] > 0).astype("int64") + (x[:, 1] > 1)
    model = Net()
    optimizer = optim.Adam(model.parameters(), lr=0.02)
    settings: dict[str, Any] = {
        "schedule": optim.CosineAnnealingLR(optimizer, 160),
        "schedule_each": "step",
        "metrics": {"accuracy": dl.accuracy},
        "validation": DataLoader(TensorDataset(x[:30], y[:30]), 16),
    }
    data = DataLoader(TensorDataset(x, y), 16, shuffle=True, seed=3)
    return model, fit(model, optimizer, data, epochs=epochs, directory=directory, **{**settings, **more})


def fit(model: nn.Module, optimizer: Any, data: Any, **words: Any) -> training.History:
    return dl.fit(model, ad.cross_entropy_op, optimizer, data, **{"progress": False, **words})


def linear(lr: float = 0.5) -> tuple[nn.Module, optim.SGD]:
    """A small model and its optimizer."""
    dl.manual_seed(1)
    model = nn.Linear(6, 2)
    return model, optim.SGD(model.parameters(), lr)


def equal(one: tuple[nn.Module, training.History], other: tuple[nn.Module, training.History]) -> bool:
    """Whether two runs have left the same bits, times apart."""
    (a, first), (b, second) = one, other
    values = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    rows = ([{**row, "seconds": 0} for row in history.epochs] for history in (first, second))
    return all(np.array_equal(x, y) for x, y in values) and first.losses == second.losses and next(rows) == next(rows)


@pytest.mark.slow
def test_a_run_learns_and_leaves_what_it_says(folder: Path) -> None:
    model, history = run(folder, epochs=8)
    losses = [row["loss"] for row in history.epochs]
    assert losses[-1] < 0.7 * losses[0] and len(history.losses) == 8 * 4
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert rows == history.epochs and rows[-1]["steps"] == 32
    assert {"validation_loss", "validation_accuracy", "accuracy", "lr", "seconds"} <= set(rows[0])
    found = dl.load(folder / "best.safetensors")
    best = min(range(8), key=lambda i: rows[i]["validation_loss"])
    assert found["epoch"] == best + 1 and "first.weight" in found["model"]
    assert set(dl.evaluate_on(model, ad.cross_entropy_op, [BATCH])) == {"loss"}
    assert "validation accuracy" in repr(history)


@pytest.mark.slow
def test_a_run_in_parts_is_the_run_in_one(folder: Path) -> None:
    whole = run(None, epochs=4)
    for epochs in (1, 3, 4, 4):  # at last nothing is left to do
        parts = run(folder, epochs=epochs)
    assert equal(parts, whole) and equal(run(folder, epochs=4, resume=False), whole)
    assert "of a run with schedule" in error_of(DataError, run, folder, 2, schedule=None)
    (folder / "last.safetensors").write_bytes(b"damaged")
    assert "last.safetensors" in error_of(DataError, run, folder, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 143)])
def test_a_process_that_is_ended_goes_on_to_the_same_bits(number: int, status: int, folder: Path) -> None:
    """Killed at any moment, or as clusters end jobs."""
    last = folder / "last.safetensors"
    program = "import sys, test_training; test_training.run(sys.argv[1], 100_000, save_every=1)"
    with running("-c", program, folder, PYTHONPATH=os.pathsep.join(sys.path)) as child:
        while child.poll() is None and not last.exists():
            time.sleep(0.002)
        time.sleep(0.02)
        child.send_signal(number)
        assert child.wait(60) == status, child.communicate()
    state = dl.load(last)
    assert state["steps"] > 0
    epochs = state["epoch"] + 2
    assert equal(run(folder, epochs, save_every=1), run(None, epochs)) and dl.load(last)["steps"] > state["steps"]


class Stop(Exception):
    """Ends a run from one of its callbacks."""


@pytest.mark.parametrize("as_list", [True, False])
def test_a_run_goes_on_behind_the_batches_that_are_done(as_list: bool, folder: Path) -> None:
    """Of a list as of a loader, whichever step it was stopped at, and whoever else goes through the batches."""
    x = np.random.default_rng(0).standard_normal((26, 6)).astype("float32")
    y = (x[:, 0] > 0).astype("int64")

    def run_of(directory: Path | None, last: int = -1) -> tuple[nn.Module, training.History]:
        model, optimizer = linear()
        rows = [slice(i, i + 4) for i in range(0, 26, 4)]
        data = [(x[i], y[i]) for i in rows] if as_list else DataLoader(TensorDataset(x, y), 4, shuffle=True)

        def on_step(step: int, loss: float) -> None:
            if last > 0 and step % 2:
                dl.evaluate_on(model, ad.cross_entropy_op, data)
            elif last > 0:
                next(iter(data))
            if step == last:
                raise Stop

        return model, fit(model, optimizer, data, epochs=2, directory=directory, save_every=1, on_step=on_step)

    whole = run_of(None)
    assert len(whole[1].losses) == 14
    for last in (2, 3, 7, 8, 13):
        error_of(Stop, run_of, folder / f"{last}", last)
        assert equal(run_of(folder / f"{last}"), whole)


@pytest.mark.parametrize("best", ["loss", "accuracy"])
@pytest.mark.parametrize("validated", [False, True])
def test_a_plateau_is_given_the_number_by_which_the_best_is_chosen(best: str, validated: bool, folder: Path) -> None:
    options = {"mode": "min" if best == "loss" else "max", "patience": 0, "threshold": 0.1, "factor": 0.5}
    x = np.random.default_rng(0).standard_normal((40, 6)).astype("float32")
    y = (x[:, 0] > 0).astype("int64")
    for epochs in (3, 9):  # the schedule goes on from its state
        model, optimizer = linear()
        history = fit(
            model, optimizer, [(x, y)], epochs=epochs, best=best, directory=folder, metrics={"accuracy": dl.accuracy},
            validation=[(x[:10], y[:10])] if validated else None,
            schedule=optim.ReduceLROnPlateau(optimizer, **options),
        )  # fmt: skip
    alone = optim.SGD([ad.Parameter([1.0])], 0.5)
    schedule = optim.ReduceLROnPlateau(alone, **options)
    for row in history.epochs:
        assert row["lr"] == alone.lr
        schedule.step(row[f"validation_{best}" if validated else best])
    assert len({row["lr"] for row in history.epochs}) > 2


def test_a_plateau_after_each_step_is_given_its_loss() -> None:
    rates: list[float] = []
    model, optimizer = linear()
    alone = optim.SGD([ad.Parameter([1.0])], 0.5)
    plateau, beside = (optim.ReduceLROnPlateau(o, patience=0, threshold=0.3) for o in (optimizer, alone))
    fit(
        model, optimizer, [BATCH], epochs=9, schedule=plateau, schedule_each="step",
        on_step=lambda n, loss: (beside.step(loss), rates.append(optimizer.lr)),
    )  # fmt: skip
    assert optimizer.lr == alone.lr and len(set(rates)) > 1
    wrong = optim.ReduceLROnPlateau(optimizer, mode="max")
    told = error_of(GraphError, fit, model, optimizer, [BATCH], epochs=1, schedule=wrong)
    assert "is given the loss of each epoch, it needs mode='min', not 'max'" in told


class Signalling(list[Any]):
    """Batches that send this process signals when they are gone through for the second time."""

    def __init__(self, *numbers: int) -> None:
        super().__init__([BATCH])
        self.numbers, self.count = numbers, 0

    def __iter__(self) -> Any:
        self.count += 1
        for number in self.numbers if self.count == 2 else ():
            os.kill(os.getpid(), number)
        return super().__iter__()


@pytest.mark.slow
def test_interrupting_saves_and_says_so(folder: Path) -> None:
    before = signal.getsignal(signal.SIGINT)  # which may be ignored, as behind a shell's `&`
    error_of(KeyboardInterrupt, run, folder, 5, validation=Signalling(signal.SIGINT))
    assert dl.load(folder / "last.safetensors")["epoch"] == 2
    assert signal.getsignal(signal.SIGINT) is before
    state = [model.state_dict().values() for model, _ in (run(folder, epochs=5), run(None, epochs=5))]
    assert all(np.array_equal(a, b) for a, b in zip(*state, strict=True))


def test_the_second_signal_acts_as_before_and_handlers_are_put_back() -> None:
    ended: list[str] = []

    def own(number: int, frame: object) -> None:
        ended.append(signal.Signals(number).name)

    interrupt, before = signal.getsignal(signal.SIGINT), signal.signal(signal.SIGTERM, own)
    try:
        stopped = error_of(SystemExit, run, None, 5, validation=Signalling(signal.SIGTERM, signal.SIGTERM))
        assert stopped == "143" and ended == ["SIGTERM"] and signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)
    assert signal.getsignal(signal.SIGINT) is interrupt


def test_metrics_are_not_named_as_the_historys_own_columns() -> None:
    """A metric of such a name would replace the column: the loss that is shown, and by which the best is chosen."""
    model, optimizer = linear()
    (row,) = fit(model, optimizer, [BATCH], epochs=1, validation=[BATCH], metrics={"m": dl.accuracy}).epochs
    assert set(dl.evaluate_on(model, ad.cross_entropy_op, [BATCH], {"m": dl.accuracy})) == {"loss", "m"}
    taken = [name for name in row if name != "m"]
    assert set(taken) == {*training.COLUMNS, "validation_loss", "validation_m"}
    before = model.weight.numpy().copy()
    for name in [*taken, 5, None]:
        metrics: dict[Any, Any] = {name: dl.accuracy}
        told = error_of(GraphError, fit, model, optimizer, [BATCH], epochs=1, metrics=metrics)
        assert repr(name) in told and "fit: a metric" in told
        told = error_of(GraphError, dl.evaluate_on, model, ad.cross_entropy_op, [BATCH], metrics)
        assert repr(name) in told and "evaluate_on: a metric" in told
    assert np.array_equal(model.weight.numpy(), before)


def test_callbacks_see_each_step_and_epoch() -> None:
    steps: list[tuple[int, float]] = []
    rows: list[dict[str, object]] = []
    _, history = run(None, epochs=2, on_step=lambda step, loss: steps.append((step, loss)), on_epoch=rows.append)
    assert steps == list(enumerate(history.losses, 1)) and len(steps) == 8
    assert rows == history.epochs and fit(*linear(), [BATCH], epochs=0).epochs == []


def test_a_layer_in_evaluation_stays_so_after_a_measurement() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    model[1].eval()
    dl.evaluate_on(model, ad.cross_entropy_op, [BATCH])
    assert [part.training for part in model.modules()] == [True, True, False, True]


def test_a_loss_that_is_no_number_is_null_in_the_log(folder: Path) -> None:
    rows = fit(*linear(lr=1e38), [BATCH] * 3, epochs=2, directory=folder).epochs
    assert not np.isfinite(rows[-1]["loss"])
    assert json.loads((folder / "log.jsonl").read_text().splitlines()[-1])["loss"] is None


APPS = Path(__file__).resolve().parents[2] / "apps"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("transformer.py --model lstm --words 100 --steps 0 --sample 4", "<eos> "),
        ("transformer.py --steps 0 --sample 4", "nats a token (perplexity"),
        ("mlp.py --epochs 0", "validation accuracy = 0."),
        ("resnet9.py --epochs 0", "test accuracy = 0."),
        ("tvm_eval.py --no-torch --recompile", "times as fast"),
    ],
)
def test_apps_run(command: str, expected: str) -> None:
    app, *options = command.split()
    done = python(APPS / app, *options)
    assert expected in done.stdout, done.stdout
