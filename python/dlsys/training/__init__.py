"""Training: epochs of compiled steps, with a log, checkpoints, and a run that goes on where it was stopped."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .. import random
from ..errors import DataError, DTypeError, GraphError, ShapeError
from ..nn import Module
from ..optim import Optimizer
from ..serialization import last_good, load, save
from ..system import warn
from .record import History, Progress, line_of
from .steps import Batch, Function, Steps, accuracy, as_batch

LAST, BEST, LOG, CURVE = "last.safetensors", "best.safetensors", "log.jsonl", "loss.png"
FORMAT = "dlsys training 2"


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
    whole = [(epochs, 0, "epochs"), (1 if save_every is None else save_every, 1, "save_every")]
    for value, least, name in whole:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise GraphError(f"fit: {name} must be an integer >= {least}, not {value!r}")
    for fits, told, given in (
        (isinstance(model, Module), "needs a model, a Module", model),
        (callable(loss), "loss must be a function of output and targets", loss),
        (isinstance(optimizer, Optimizer), "needs an optimizer of dlsys.optim", optimizer),
        (hasattr(data, "__iter__"), "data must iterate over batches, as a DataLoader", data),
        (_are_metrics(metrics), "metrics must be a dictionary of names and functions", metrics),
        (schedule is None or hasattr(schedule, "step"), "schedule must be one of dlsys.optim", schedule),
        (isinstance(directory, (str, os.PathLike, type(None))), "directory must be text or a path", directory),
    ):
        if not fits:
            raise GraphError(f"fit: {told}, not {type(given).__name__}")
    if schedule_each not in ("epoch", "step"):
        raise GraphError(f'fit: schedule_each must be "epoch" or "step", not {schedule_each!r}')
    if best != "loss" and best not in (metrics or {}):
        raise GraphError(f"fit: best must be the loss or one of the metrics, not {best!r}")
    strangers = set(optimizer.parameters) - set(model.parameters())
    if strangers == set(optimizer.parameters):
        raise GraphError("fit: the optimizer has none of the model's parameters")
    steps = Steps(model, loss, optimizer, metrics or {}, clip_norm, random.default_generator.streams)
    place = None if directory is None else Path(directory)
    run = _Run(model, steps, optimizer, data, validation, schedule, place, best)
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
    for fits, told, given in (
        (isinstance(model, Module), "needs a model, a Module", model),
        (hasattr(data, "__iter__"), "data must iterate over batches, as a DataLoader", data),
    ):
        if not fits:
            raise GraphError(f"evaluate_on: {told}, not {type(given).__name__}")
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


@dataclass
class _Means:
    """Means weighted by the batches' sizes."""

    sums: dict[str, float] = field(default_factory=dict)
    weight: float = 0.0

    def add(self, values: Mapping[str, float], weight: int) -> None:
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + weight * value
        self.weight += weight

    def found(self) -> dict[str, float]:
        return {name: total / self.weight if self.weight else math.nan for name, total in self.sums.items()}


@dataclass
class _Run:
    """A run's state, and how it is kept."""

    model: Module
    compiled: Steps
    optimizer: Optimizer
    data: Any
    validation: Any
    schedule: Any
    directory: Path | None
    best: str
    history: History = field(default_factory=History)
    means: _Means = field(default_factory=_Means)
    epoch: int = 0
    steps: int = 0
    in_epoch: int = 0
    best_value: float | None = None
    seconds: float = 0.0
    since: float = field(default_factory=time.perf_counter)

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
        row |= {"lr": self.optimizer.lr, "seconds": self.seconds + time.perf_counter() - self.since}
        if self.validation is not None:
            row |= {f"validation_{name}": v for name, v in _measured(self.compiled, self.validation).items()}
        self.history.epochs.append(row)
        self.epoch, self.in_epoch, self.means, self.seconds = self.epoch + 1, 0, _Means(), 0.0
        self.since = time.perf_counter()
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
        state = {
            "format": FORMAT,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "data": self.data.state_dict() if hasattr(self.data, "state_dict") else None,
            "random": random.default_generator.state_dict(),
            "first_stream": self.compiled.first_stream,
            "epoch": self.epoch,
            "steps": self.steps,
            "in_epoch": self.in_epoch,
            "means": asdict(self.means),
            "seconds": self.seconds + time.perf_counter() - self.since,
            "best": self.best_value,
            "history": self.history.epochs,
            "losses": np.asarray(self.history.losses, np.float64),
        }
        save(state, self.path(name))

    def load(self) -> bool:
        """Go on from the last checkpoint; False if there is none."""
        if self.directory is None or not self.path(LAST).exists():
            return False
        try:
            state = load(self.path(LAST))
        except DataError as error:
            good = last_good(self.directory, self.path(LAST))
            told = "there is no other" if good is None else f"copy {good} over it to go on from there"
            raise DataError(f"{error}; {told}, or give resume=False to begin anew") from None
        if not isinstance(state, dict) or state.get("format") != FORMAT:
            raise DataError(f"{self.path(LAST)} is no checkpoint of fit")
        for kind, present in (("schedule", self.schedule is not None), ("data", hasattr(self.data, "state_dict"))):
            if (state[kind] is not None) != present:
                raise DataError(f"{self.path(LAST)} is of a run {'without' if present else 'with'} {kind}'s state")
        try:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        except (GraphError, ShapeError, DTypeError) as error:
            raise DataError(
                f"{self.path(LAST)} is of another model or optimizer: {error}; give another directory, or resume=False"
            ) from None
        if self.schedule is not None:
            self.schedule.load_state_dict(state["schedule"])
        if state["data"] is not None:
            self.data.load_state_dict(state["data"])
        random.default_generator.load_state_dict(state["random"])
        self.compiled.first_stream = state["first_stream"]
        self.history = History(state["history"], state["losses"].tolist())
        self.means = _Means(**state["means"])
        self.epoch, self.steps, self.in_epoch = state["epoch"], state["steps"], state["in_epoch"]
        self.best_value, self.seconds = state["best"], state["seconds"]
        return True


def _are_metrics(metrics: Any) -> bool:
    return metrics is None or (isinstance(metrics, Mapping) and all(map(callable, metrics.values())))


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
