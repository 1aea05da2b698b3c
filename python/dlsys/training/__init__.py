"""Training: epochs of compiled steps, with a log, checkpoints, and a run that goes on where it was stopped."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .. import random
from ..errors import DataError, DTypeError, GraphError, ShapeError
from ..nn import Module
from ..optim import Optimizer
from ..serialization import last_good, load_checkpoint, save_checkpoint
from ..system import warn
from .record import History, Progress, line_of
from .steps import Batch, Function, Steps, accuracy, as_batch

__all__ = ["Batch", "History", "Steps", "accuracy", "as_batch", "evaluate_on", "fit"]

LAST, BEST, LOG, CURVE = "last.safetensors", "best.safetensors", "log.jsonl", "loss.png"
FORMAT = "dlsys training 1"


def fit(
    model: Module,
    loss: Function,
    optimizer: Optimizer,
    data: Any,
    *,
    epochs: int,
    validation: Any = None,
    metrics: Mapping[str, Function] | None = None,
    schedule: Any = None,
    schedule_each: str = "epoch",
    clip_norm: float | None = None,
    directory: str | Path | None = None,
    resume: bool = True,
    save_every: int | None = None,
    best: str = "loss",
    progress: bool | None = None,
    after_epoch: Callable[[dict[str, Any]], Any] | None = None,
) -> History:
    """Train `model` for `epochs` epochs of `data`; returns the numbers.

    Args:
        model, loss, metrics: a batch (x, *targets) gives `loss(model(x), *targets)`, one number, and so each metric by
            its name, e.g. {"accuracy": dl.accuracy}. Means over an epoch are weighted by the batches' sizes.
        optimizer: of `dlsys.optim`, made with the model's parameters.
        data, validation: what iterates over batches of NumPy arrays, as a `DataLoader`, once an epoch.
        schedule: of `dlsys.optim`, stepped after each "epoch" or "step" (`schedule_each`).
        clip_norm: the most that the gradients' global norm may be.
        directory: where to leave `last.safetensors` after each epoch (and every `save_every` steps, and at Ctrl-C),
            `best.safetensors` after the best epoch by validation's `best` ("loss" or a metric; training's without
            validation), `log.jsonl` and `loss.png`.
        resume: go on from `last.safetensors` if it is there. A run that was killed at any moment and resumed gives the
            same numbers, to the bit, as one that was not: parameters, buffers, optimizer, schedule, random state and
            the place in the data are kept. `data` must then have `state_dict`, as DataLoader has.
        progress: None: a bar in a terminal, a line an epoch elsewhere; True: lines; False: nothing.
        after_epoch: called with the epoch's row, which it may add to.

    Ctrl-C ends the run after the step under way, saves, and raises KeyboardInterrupt. Raises GraphError for arguments
    that do not fit, DataError for a checkpoint that is damaged or of another run; what the operators raise.
    """
    if schedule_each not in ("epoch", "step"):
        raise GraphError(f'fit: schedule_each must be "epoch" or "step", not {schedule_each!r}')
    if metrics is not None and not (isinstance(metrics, Mapping) and all(map(callable, metrics.values()))):
        raise GraphError(f"fit: metrics must be a dictionary of names and functions, not {metrics!r}")
    if best != "loss" and best not in (metrics or {}):
        raise GraphError(f"fit: best must be the loss or one of the metrics, not {best!r}")
    if schedule is not None and not hasattr(schedule, "step"):
        raise GraphError(f"fit: schedule must be one of dlsys.optim, not {type(schedule).__name__}")
    if not isinstance(optimizer, Optimizer):
        raise GraphError(f"fit: needs an optimizer of dlsys.optim, not {type(optimizer).__name__}")
    if not callable(loss):
        raise GraphError(f"fit: loss must be a function of output and targets, not {type(loss).__name__}")
    if save_every is not None and (isinstance(save_every, bool) or not isinstance(save_every, int) or save_every < 1):
        raise GraphError(f"fit: save_every must be None or an integer >= 1, not {save_every!r}")
    if not isinstance(model, Module):
        raise GraphError(f"fit: needs a model, a Module, not {type(model).__name__}")
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 0:
        raise GraphError(f"fit: epochs must be an integer >= 0, not {epochs!r}")
    if directory is not None and not isinstance(directory, (str, os.PathLike)):
        raise GraphError(f"fit: directory must be text or a pathlib.Path, not {type(directory).__name__}")
    if not hasattr(data, "__iter__"):
        raise GraphError(f"fit: data must iterate over batches, as a DataLoader, not {type(data).__name__}")
    strangers = set(optimizer.parameters) - set(model.parameters())
    if strangers == set(optimizer.parameters):
        raise GraphError("fit: the optimizer has none of the model's parameters")
    run = _Run(model, loss, optimizer, data, validation, metrics or {}, schedule, clip_norm, directory, best)
    bar = Progress(progress)
    if resume and run.load():
        bar.say(f"goes on from {run.path(LAST)}: epoch {run.epoch + 1}, step {run.steps + 1}")
    with _at_interrupt() as interrupted:
        while run.epoch < epochs:
            with bar.epoch(run.epoch + 1, _length(data), run.in_epoch) as tell:
                for batch in data:
                    tell(run.step(as_batch(batch)), optimizer.lr)
                    if schedule is not None and schedule_each == "step":
                        schedule.step()
                    if interrupted() or (save_every and run.steps % save_every == 0):
                        run.save(LAST)
                    if interrupted():
                        bar.say(f"interrupted after step {run.steps}{run.told()}")
                        raise KeyboardInterrupt
            if run.in_epoch == 0:
                raise GraphError(
                    f"fit: the data gave no batch in epoch {run.epoch + 1}: give a DataLoader or a list, which can be "
                    "gone through more than once, and has one batch at least"
                )
            row = run.end_epoch()
            if schedule is not None and schedule_each == "epoch":
                schedule.step()
            if after_epoch is not None:
                after_epoch(row)
            bar.say(line_of(row))
            if not math.isfinite(row["loss"]):
                bar.say("the loss is no longer finite: try a smaller learning rate, and look at the labels' range")
            run.save_epoch()
            if interrupted():
                bar.say(f"interrupted after epoch {run.epoch}{run.told()}")
                raise KeyboardInterrupt
    return run.history


def evaluate_on(
    model: Module, loss: Function, data: Any, metrics: Mapping[str, Function] | None = None
) -> dict[str, float]:
    """The mean loss and metrics of a model in its `eval` mode over all batches of `data`. Raises GraphError for what is
    no model, and data of no batch."""
    if not isinstance(model, Module):
        raise GraphError(f"evaluate_on: needs a model, a Module, not {type(model).__name__}")
    if not hasattr(data, "__iter__"):
        raise GraphError(f"evaluate_on: data must iterate over batches, as a DataLoader, not {type(data).__name__}")
    found = _measured(Steps(model, loss, None, metrics or {}, None, 0), data)
    if not found:
        raise GraphError("evaluate_on: the data gave no batch")
    return found


def _measured(steps: Steps, data: Any) -> dict[str, float]:
    means = _Means()
    for given in data:
        batch = as_batch(given)
        means.add(steps.measure(batch), len(batch[0]))
    return means.found()


class _Means:
    """Means weighted by the batches' sizes."""

    def __init__(self, sums: Mapping[str, float] | None = None, weight: float = 0.0) -> None:
        self.sums, self.weight = dict(sums or {}), weight

    def add(self, values: Mapping[str, float], weight: int) -> None:
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + weight * value
        self.weight += weight

    def found(self) -> dict[str, float]:
        return {name: total / self.weight if self.weight else math.nan for name, total in self.sums.items()}


class _Run:
    """A run's state, and how it is kept."""

    def __init__(
        self,
        model: Module,
        loss: Function,
        optimizer: Optimizer,
        data: Any,
        validation: Any,
        metrics: Mapping[str, Function],
        schedule: Any,
        clip_norm: float | None,
        directory: str | Path | None,
        best: str,
    ) -> None:
        self.model, self.optimizer, self.data, self.validation = model, optimizer, data, validation
        self.schedule, self.best = schedule, best
        self.directory = None if directory is None else Path(directory)
        self.generator = random.default_generator
        self.first_stream = self.generator.streams
        self.compiled = Steps(model, loss, optimizer, metrics, clip_norm, self.first_stream)
        self.history, self.means = History(), _Means()
        self.epoch = self.steps = self.in_epoch = 0
        self.best_value: float | None = None
        self.seconds = 0.0
        self._since = time.perf_counter()

    def path(self, name: str) -> Path:
        assert self.directory is not None
        return self.directory / name

    def told(self) -> str:
        return "" if self.directory is None else f"; saved in {self.path(LAST)}"

    def step(self, batch: Batch) -> float:
        values = self.compiled.train(batch)
        self.means.add(values, len(batch[0]))
        self.history.losses.append(values["loss"])
        self.steps += 1
        self.in_epoch += 1
        return values["loss"]

    def end_epoch(self) -> dict[str, Any]:
        """The row of the epoch that was trained; validation included."""
        row: dict[str, Any] = {"epoch": self.epoch + 1, "steps": self.steps, **self.means.found()}
        row |= {"lr": self.optimizer.lr, "seconds": self.seconds + time.perf_counter() - self._since}
        if self.validation is not None:
            row |= {f"validation_{name}": v for name, v in _measured(self.compiled, self.validation).items()}
        self.history.epochs.append(row)
        self.epoch, self.in_epoch, self.means, self.seconds = self.epoch + 1, 0, _Means(), 0.0
        self._since = time.perf_counter()
        return row

    def save_epoch(self) -> None:
        """After an epoch: the log, the picture, the checkpoints."""
        if self.directory is None:
            return
        row = self.history.epochs[-1]
        found = row.get(f"validation_{self.best}", row.get(self.best, math.nan))
        value = found if math.isfinite(found) else None
        sign = 1 if self.best == "loss" else -1  # the least loss, the greatest metric
        better = value is not None and (self.best_value is None or sign * value < sign * self.best_value)
        if better:
            self.best_value = value
        self.save(LAST)
        if better:
            self.save(BEST)
        self.history.write(self.path(LOG))
        try:
            self.history.draw(self.path(CURVE))
        except OSError as error:  # the run is worth more than its picture
            warn(f"fit: {self.path(CURVE)} is not drawn: {error}", RuntimeWarning)

    def save(self, name: str) -> None:
        """Write the checkpoint of that name, with all that a run goes on from. Raises DataError."""
        if self.directory is None:
            return
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"fit: {self.directory} cannot be made: {error}") from None
        arrays: dict[str, Any] = {f"model.{key}": value for key, value in self.model.state_dict().items()}
        optimizer = self.optimizer.state_dict()
        for number, kept in optimizer["state"].items():
            arrays |= {f"optimizer.state.{number}.{key}": value for key, value in kept.items()}
        arrays["losses"] = np.asarray(self.history.losses, np.float64)
        state = self.generator.state_dict()
        arrays["random"] = state["state"]
        meta = {
            "format": FORMAT,
            "epoch": self.epoch,
            "steps": self.steps,
            "in_epoch": self.in_epoch,
            "means": {"sums": self.means.sums, "weight": self.means.weight},
            "seconds": self.seconds + time.perf_counter() - self._since,
            "best": self.best_value,
            "history": self.history.epochs,
            "first_stream": self.first_stream,
            "streams": state["streams"],
            "optimizer": {
                f"groups.{i}.{key}": group[key]
                for i, group in enumerate(optimizer["param_groups"])
                for key in ("lr", "initial_lr")
            },
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "data": self.data.state_dict() if hasattr(self.data, "state_dict") else None,
        }
        save_checkpoint(self.path(name), arrays, meta)

    def load(self) -> bool:
        """Go on from the last checkpoint; False if there is none."""
        if self.directory is None or not self.path(LAST).exists():
            return False
        try:
            arrays, meta = load_checkpoint(self.path(LAST))
        except DataError as error:
            good = last_good(self.directory, self.path(LAST))
            told = "there is no other" if good is None else f"copy {good} over it to go on from there"
            raise DataError(f"{error}; {told}, or give resume=False to begin anew") from None
        if meta.get("format") != FORMAT:
            raise DataError(f"{self.path(LAST)} is no checkpoint of fit")
        for kind, present in (("schedule", self.schedule is not None), ("data", hasattr(self.data, "state_dict"))):
            if (meta[kind] is not None) != present:
                raise DataError(f"{self.path(LAST)} is of a run {'without' if present else 'with'} {kind}'s state")

        def part(prefix: str) -> dict[str, Any]:
            return {key[len(prefix) :]: value for key, value in arrays.items() if key.startswith(prefix)}

        try:
            self.model.load_state_dict(part("model."))
            kept: dict[int, dict[str, Any]] = {}
            for name, value in part("optimizer.state.").items():
                number, _, key = name.partition(".")
                kept.setdefault(int(number), {})[key] = value
            rates = meta["optimizer"]
            groups = [
                {key: rates[f"groups.{i}.{key}"] for key in ("lr", "initial_lr")} for i in range(len(rates) // 2)
            ]
            self.optimizer.load_state_dict({"state": kept, "param_groups": groups})
        except (GraphError, ShapeError, DTypeError) as error:
            raise DataError(
                f"{self.path(LAST)} is of another model or optimizer: {error}; give another directory, or resume=False"
            ) from None
        if self.schedule is not None:
            self.schedule.load_state_dict(meta["schedule"])
        if meta["data"] is not None:
            self.data.load_state_dict(meta["data"])
        self.generator.load_state_dict({"state": arrays["random"], "streams": meta["streams"]})
        self.first_stream = self.compiled.first_stream = meta["first_stream"]
        self.history = History(meta["history"], arrays["losses"].tolist())
        self.means = _Means(**meta["means"])
        self.epoch, self.steps, self.in_epoch = meta["epoch"], meta["steps"], meta["in_epoch"]
        self.best_value, self.seconds = meta["best"], meta["seconds"]
        return True


def _length(data: Any) -> int | None:
    return len(data) if hasattr(data, "__len__") else None


@contextlib.contextmanager
def _at_interrupt() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed; a second one interrupts at once. Only the main thread can ask for signals."""
    pressed = False
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: Any) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
