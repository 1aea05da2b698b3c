"""Training: epochs, records, runs that are stopped and go on to the same bits; the apps start and write."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import nn, optim, training
from dlsys.data import DataLoader, TensorDataset
from dlsys.errors import DataError, GraphError
from helpers import error_of, python

PATHS = [str(folder) for folder in Path(__file__).resolve().parents[:2]]


class Net(nn.Module):
    def __init__(self) -> None:
        self.first = nn.Linear(6, 16)
        self.second = nn.Linear(16, 3)

    def forward(self, x: ad.Node) -> ad.Node:
        hidden = ad.relu_op(self.first(x))
        if self.training:
            generator = dl.random.default_generator
            hidden = generator.drawing(ad.dropout_op(hidden, generator.key(), 0.25))
        return self.second(hidden)


def run(directory: str | None, epochs: int = 3, **more: object) -> tuple[nn.Module, object]:
    """A run with all that has state: dropout, Adam, a schedule, shuffled data with a last batch that is smaller."""
    dl.manual_seed(1)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((50, 6)).astype("float32")
    y = (x[:, 0] > 0).astype("int64") + (x[:, 1] > 1)
    model = Net()
    optimizer = optim.Adam(model.parameters(), lr=0.02)
    settings: dict[str, object] = {
        "schedule": optim.CosineAnnealingLR(optimizer, 160),
        "schedule_each": "step",
        "metrics": {"accuracy": dl.accuracy},
        "validation": DataLoader(TensorDataset(x[:30], y[:30]), 16),
        "progress": False,
    }
    data = DataLoader(TensorDataset(x, y), 16, shuffle=True, seed=3)
    history = dl.fit(
        model, ad.cross_entropy_op, optimizer, data, epochs=epochs, directory=directory, **{**settings, **more}
    )
    return model, history


def without_times(history: object) -> list[dict[str, object]]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in history.epochs]  # type: ignore[attr-defined]


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


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
    found = dl.evaluate_on(model, ad.cross_entropy_op, [(np.ones((2, 6), "f4"), np.array([2, 2], "uint8"))])
    assert set(found) == {"loss"} and "validation accuracy" in repr(history)


@pytest.mark.slow
def test_a_run_in_parts_is_the_run_in_one(folder: Path) -> None:
    whole, history = run(None, epochs=4)
    run(folder, epochs=1)
    run(folder, epochs=3)
    parts, later = run(folder, epochs=4)
    assert same(whole, parts) and without_times(history) == without_times(later)
    assert history.losses == later.losses
    again, _ = run(folder, epochs=4)  # nothing is left to do
    assert same(again, whole)
    fresh, _ = run(folder, epochs=4, resume=False)
    assert same(fresh, whole)


def started(folder: Path, settings: str, function: str = "run") -> subprocess.Popen[bytes]:
    """A process that makes a run with these settings."""
    called = f"test_training.{function}(sys.argv[1], {settings})"
    program = f"import sys; sys.path[:0] = {PATHS!r}; import test_training; {called}"
    return subprocess.Popen([sys.executable, "-c", program, str(folder)])


def goes_on(folder: str, epochs: int) -> None:
    """Fails unless a folder's run goes on to the bits of one that was not ended. It has its own process, as the run
    had: kernels of one that has met many lengths may add in another order."""
    (resumed, history), (whole, other) = run(folder, epochs, save_every=1), run(None, epochs)
    assert same(resumed, whole)
    assert history.losses == other.losses
    assert without_times(history) == without_times(other)


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_bits(folder: Path) -> None:
    """Killed at several moments, within epochs too."""
    last = folder / "last.safetensors"
    for delay in (0.0, 0.02):
        child = started(folder, "epochs=12, save_every=1")
        known = last.stat().st_mtime_ns if last.exists() else 0
        while child.poll() is None:  # however long it takes to begin
            if last.exists() and last.stat().st_mtime_ns != known:
                time.sleep(delay)
                break
            time.sleep(0.002)
        child.kill()
        child.wait()
        assert dl.load(last)["steps"] > 0
    assert started(folder, "12", "goes_on").wait(60) == 0


class Stop(Exception):
    """Ends a run from one of its callbacks."""


def stopping_at(last: int, also: Callable[[int], object] = lambda step: None) -> Callable[[int, float], None]:
    """A callback that ends a run at a step; before, it calls `also` at each."""

    def on_step(step: int, loss: float) -> None:
        also(step)
        if step == last:
            raise Stop

    return on_step


@pytest.mark.parametrize("as_list", [True, False])
def test_a_run_goes_on_behind_the_batches_that_are_done(as_list: bool, folder: Path) -> None:
    """Of a list as of a loader, whichever step it was stopped at, and whoever else goes through the batches."""
    x = np.random.default_rng(0).standard_normal((26, 6)).astype("float32")
    y = (x[:, 0] > 0).astype("int64")

    def run_of(directory: Path | None, last: int, looks: bool = False) -> tuple[nn.Module, training.History | None]:
        def look(step: int) -> None:
            if looks and step % 2:
                dl.evaluate_on(model, ad.cross_entropy_op, data)
            elif looks:
                next(iter(data))

        dl.manual_seed(1)
        model = nn.Linear(6, 2)
        data = [(x[i : i + 4], y[i : i + 4]) for i in range(0, 26, 4)] if as_list else DataLoader(
            TensorDataset(x, y), 4, shuffle=True
        )  # fmt: skip
        try:
            history = dl.fit(
                model, ad.cross_entropy_op, optim.SGD(model.parameters(), 0.5), data, epochs=2, directory=directory,
                save_every=1, progress=False, on_step=stopping_at(last, look),
            )  # fmt: skip
        except Stop:
            history = None
        return model, history

    whole, history = run_of(None, -1)
    assert history is not None and len(history.losses) == 14
    for last in (2, 3, 7, 8, 13):
        directory = folder / f"{last}"
        run_of(directory, last, looks=True)
        model, found = run_of(directory, -1)
        assert found is not None and found.losses == history.losses and same(model, whole)
        assert without_times(found) == without_times(history)


@pytest.mark.parametrize("best", ["loss", "accuracy"])
@pytest.mark.parametrize("validated", [False, True])
def test_a_plateau_is_given_the_number_by_which_the_best_is_chosen(best: str, validated: bool, folder: Path) -> None:
    options = {"mode": "min" if best == "loss" else "max", "patience": 0, "threshold": 0.1, "factor": 0.5}

    def run_to(epochs: int) -> training.History:
        x = np.random.default_rng(0).standard_normal((40, 6)).astype("float32")
        y = (x[:, 0] > 0).astype("int64")
        dl.manual_seed(1)
        model = nn.Linear(6, 2)
        optimizer = optim.SGD(model.parameters(), 0.5)
        return dl.fit(
            model, ad.cross_entropy_op, optimizer, [(x, y)], epochs=epochs, best=best, directory=folder,
            validation=[(x[:10], y[:10])] if validated else None, metrics={"accuracy": dl.accuracy}, progress=False,
            schedule=optim.ReduceLROnPlateau(optimizer, **options),
        )  # fmt: skip

    run_to(3)
    history = run_to(9)  # the schedule goes on from its state
    alone = optim.SGD([ad.Parameter([1.0])], 0.5)
    schedule = optim.ReduceLROnPlateau(alone, **options)
    for row in history.epochs:
        assert row["lr"] == alone.lr
        schedule.step(row[f"validation_{best}" if validated else best])
    assert len({row["lr"] for row in history.epochs}) > 2


def test_a_plateau_after_each_step_is_given_its_loss() -> None:
    x, rates = np.ones((4, 6), "float32"), []
    model = nn.Linear(6, 2)
    optimizer = optim.SGD(model.parameters(), 0.5)
    alone = optim.SGD([ad.Parameter([1.0])], 0.5)
    plateau, beside = (optim.ReduceLROnPlateau(o, patience=0, threshold=0.3) for o in (optimizer, alone))
    dl.fit(
        model, ad.cross_entropy_op, optimizer, [(x, np.zeros(4, "int64"))], epochs=9, schedule=plateau,
        schedule_each="step", progress=False, on_step=lambda n, loss: (beside.step(loss), rates.append(optimizer.lr)),
    )  # fmt: skip
    assert optimizer.lr == alone.lr and len(set(rates)) > 1
    wrong = optim.ReduceLROnPlateau(optimizer, mode="max")
    told = error_of(
        GraphError, dl.fit, model, ad.cross_entropy_op, optimizer, [(x, np.zeros(4, "int64"))], epochs=1, schedule=wrong
    )
    assert "is given the loss of each epoch, it needs mode='min', not 'max'" in told


@pytest.mark.slow
def test_interrupting_saves_and_says_so(folder: Path) -> None:
    before = signal.getsignal(signal.SIGINT)  # which may be ignored, as behind a shell's `&`
    seen: list[int] = []

    class Stopping(list):
        def __iter__(self):
            seen.append(1)
            if len(seen) == 2:  # while the second epoch is validated
                os.kill(os.getpid(), signal.SIGINT)
            return super().__iter__()

    batch = np.ones((2, 6), "f4"), np.array([2, 2])
    error_of(KeyboardInterrupt, run, folder, 5, validation=Stopping([batch]))
    assert dl.load(folder / "last.safetensors")["epoch"] == 2
    assert signal.getsignal(signal.SIGINT) is before
    parts, _ = run(folder, epochs=5)
    assert same(parts, run(None, epochs=5)[0])


@pytest.mark.slow
def test_sigterm_saves_and_exits_with_143(folder: Path) -> None:
    """As clusters end jobs: in a process of its own, which goes on to the bits of a run that was not ended."""
    last = folder / "last.safetensors"
    child = started(folder, "epochs=100_000")
    deadline = time.monotonic() + 60
    while not last.exists() and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    child.terminate()
    assert child.wait(60) == 128 + signal.SIGTERM == 143
    state = dl.load(last)
    assert started(folder, str(state["epoch"] + 1), "goes_on").wait(60) == 0
    assert dl.load(last)["steps"] > state["steps"]


def test_the_second_signal_acts_as_before_and_handlers_are_put_back() -> None:
    ended: list[str] = []

    class Ending(list):
        def __iter__(self):
            for number in (signal.SIGTERM, signal.SIGTERM):
                os.kill(os.getpid(), number)
            return super().__iter__()

    def own(number: int, frame: object) -> None:
        ended.append(signal.Signals(number).name)

    interrupt, before = signal.getsignal(signal.SIGINT), signal.signal(signal.SIGTERM, own)
    try:
        stopped = error_of(SystemExit, run, None, 5, validation=Ending([(np.ones((2, 6), "f4"), np.array([2, 2]))]))
        assert stopped == "143" and ended == ["SIGTERM"] and signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)
    assert signal.getsignal(signal.SIGINT) is interrupt


def test_no_epoch_is_a_run_and_an_evaluation_has_the_metrics() -> None:
    model = nn.Linear(6, 3)
    data = [(np.ones((4, 6), "f4"), np.zeros(4, "i8"))]
    optimizer = optim.SGD(model.parameters(), lr=1.0)
    assert dl.fit(model, ad.cross_entropy_op, optimizer, data, epochs=0, progress=False).epochs == []
    assert set(dl.evaluate_on(model, ad.cross_entropy_op, data, {"accuracy": dl.accuracy})) == {"loss", "accuracy"}


def test_metrics_are_not_named_as_the_historys_own_columns() -> None:
    """A metric of such a name would replace the column: the loss that is shown, and by which the best is chosen."""
    model = nn.Linear(6, 3)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    data = [(np.ones((4, 6), "f4"), np.zeros(4, "i8"))]
    (row,) = dl.fit(
        model, ad.cross_entropy_op, optimizer, data, epochs=1, validation=data, metrics={"m": dl.accuracy},
        progress=False,
    ).epochs  # fmt: skip
    taken = [name for name in row if name != "m"]
    assert set(taken) == {*training.COLUMNS, "validation_loss", "validation_m"}
    before = model.weight.numpy().copy()
    for name in [*taken, 5, None]:
        told = error_of(
            GraphError, dl.fit, model, ad.cross_entropy_op, optimizer, data, epochs=1, metrics={name: dl.accuracy},
            progress=False,
        )  # fmt: skip
        assert repr(name) in told and "fit: a metric" in told
        told = error_of(GraphError, dl.evaluate_on, model, ad.cross_entropy_op, data, {name: dl.accuracy})
        assert repr(name) in told and "evaluate_on: a metric" in told
    assert np.array_equal(model.weight.numpy(), before)


def test_callbacks_see_each_step_and_epoch() -> None:
    steps: list[tuple[int, float]] = []
    rows: list[dict[str, object]] = []
    _, history = run(None, epochs=2, on_step=lambda step, loss: steps.append((step, loss)), on_epoch=rows.append)
    assert steps == list(enumerate(history.losses, 1)) and len(steps) == 8  # type: ignore[attr-defined]
    assert rows == history.epochs  # type: ignore[attr-defined]


def test_a_layer_in_evaluation_stays_so_after_a_measurement() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    model[1].eval()
    dl.evaluate_on(model, ad.cross_entropy_op, [(np.ones((2, 6), "f4"), np.array([2, 2]))])
    assert [part.training for part in model.modules()] == [True, True, False, True]


APPS = Path(__file__).resolve().parents[2] / "apps"
CASES = (
    (("transformer.py", "--model", "lstm", "--words", "100", "--steps", "0", "--sample", "4"), "<eos> "),
    (("transformer.py", "--steps", "0", "--sample", "4"), "nats a token (perplexity"),
    (("mlp.py", "--epochs", "0"), "validation accuracy = 0."),
    (("resnet9.py", "--epochs", "0"), "test accuracy = 0."),
    (("tvm_eval.py", "--no-torch", "--recompile"), "times as fast"),
)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "expected"), CASES, ids=lambda value: value[0])
def test_apps_run(command: tuple[str, ...], expected: str) -> None:
    app, *options = command
    done = python(APPS / app, *options)
    assert expected in done.stdout, done.stdout


def test_a_loss_that_is_no_number_is_null_in_the_log(folder: Path) -> None:
    model = Net()
    failing = optim.SGD(model.parameters(), lr=float("1e30"))
    batches = [(np.ones((4, 6), "f4"), np.zeros(4, "i8"))] * 3
    rows = dl.fit(model, ad.cross_entropy_op, failing, batches, epochs=2, directory=folder, progress=False).epochs
    assert not np.isfinite(rows[-1]["loss"])
    assert json.loads((folder / "log.jsonl").read_text().splitlines()[-1])["loss"] is None


def test_a_checkpoint_of_another_run_is_named(folder: Path) -> None:
    run(folder, epochs=1)
    assert "of a run with schedule" in error_of(DataError, run, folder, 2, schedule=None)
    (folder / "last.safetensors").write_bytes(b"damaged")
    assert "last.safetensors" in error_of(DataError, run, folder, 2)
