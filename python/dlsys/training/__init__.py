"""Training: epochs of compiled steps, with a log, checkpoints, and a run that goes on where it was stopped."""

from __future__ import annotations

import contextlib
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from .. import random
from ..checks import integer
from ..errors import DataError, DlsysError, GraphError
from ..nn import Module
from ..optim import Optimizer
from ..serialization import last_good, load, save
from ..system import warn
from .steps import History, line_of, wrong_entry
from .steps import Function, Steps
from .steps import accuracy as accuracy

LAST, BEST, LOG, CURVE = "last.safetensors", "best.safetensors", "log.jsonl", "loss.png"
PARTS = ("model", "optimizer", "schedule", "data", "random")
FORMAT = "dlsys training 3"
COLUMNS = ("epoch", "steps", "loss", "lr", "seconds")
"""Of the history's rows, besides the metrics."""
VALIDATION = "validation_"
"""What the columns of validation begin with."""
ANEW = "give another directory, or resume=False"


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
    progress: bool = True,
) -> History:
    """Train `model` for `epochs` epochs of `data`; returns the numbers.

    Args:
        model, loss, metrics: a batch (x, *targets) gives `loss(model(x), *targets)`, one number, and so each metric by
            its name, e.g. {"accuracy": dl.accuracy}, which is none of `COLUMNS` and does not begin with "validation_".
            Means over an epoch are weighted by the batches' sizes.
        optimizer: of `dlsys.optim`, made with the model's parameters.
        data, validation: what iterates over batches of NumPy arrays, as a `DataLoader`, once an epoch.
        schedule: of `dlsys.optim`, stepped after each "epoch" or "step" (`schedule_each`).
        clip_norm: the most that the gradients' global norm may be.
        directory: where to leave `last.safetensors` after each epoch (and every `save_every` steps, and when stopped),
            `best.safetensors` after the epoch of the least loss (or the greatest metric of the name `best`; of
            validation, if given), `log.jsonl`, `loss.png`.
        resume: go on from `last.safetensors` if it is there. A run that was killed at any moment and resumed gives the
            same numbers, to the bit, as one that was not: parameters, buffers, optimizer, schedule, random state and
            the place in the data are kept. `data` must then have `state_dict`, as DataLoader has.
        progress: whether to show a bar in a terminal and a line an epoch.

    Ctrl-C, and SIGTERM, by which clusters end jobs, end the run after the step under way, save, and raise
    KeyboardInterrupt, and SystemExit(143); a second one ends it at once. Raises GraphError for arguments that do not
    fit, DataError for a checkpoint that is damaged or of another run; what the operators raise.
    """
    for value, least, name in ((epochs, 0, "epochs"), (1 if save_every is None else save_every, 1, "save_every")):
        integer("fit", name, value, least)
    validates = validation is None or hasattr(validation, "__iter__")
    _check(
        "fit",
        *_expected(model, loss, data),
        (isinstance(optimizer, Optimizer), "needs an optimizer of dlsys.optim", optimizer),
        (validates, "validation must iterate over batches, as a DataLoader", validation),
        (schedule is None or hasattr(schedule, "step"), "schedule must be one of dlsys.optim", schedule),
        (isinstance(directory, (str, Path, type(None))), "directory must be text or a path", directory),
    )
    _check_metrics("fit", metrics)
    if best != "loss" and best not in (metrics or {}):
        raise GraphError(f"fit: best must be the loss or one of the metrics, not {best!r}")
    if hasattr(validation, "__len__") and len(validation) == 0:
        raise GraphError("fit: the validation data have no batch: give None, or one at least")
    if schedule_each not in ("epoch", "step"):
        raise GraphError(f'fit: schedule_each must be "epoch" or "step", not {schedule_each!r}')
    if set(optimizer.parameters).isdisjoint(model.parameters()):
        raise GraphError("fit: the optimizer has none of the model's parameters")
    steps = Steps(model, loss, optimizer, metrics or {}, clip_norm, random.default_generator.streams)
    place = None if directory is None else Path(directory)
    run = _Run(steps, optimizer, data, validation, schedule, place, best)

    def say(text: str) -> None:
        if progress:
            tqdm.write(text, file=sys.stdout)
            sys.stdout.flush()

    if resume and run.load():
        say(f"goes on from {run.path(LAST)}: epoch {run.epoch + 1}, step {run.steps + 1}")
    with _at_signals() as asked:

        def stop_if_asked() -> None:
            if asked:
                say(f"interrupted after step {run.steps}{'' if place is None else f'; saved in {run.path(LAST)}'}")
                raise KeyboardInterrupt if asked[0] == signal.SIGINT else SystemExit(128 + asked[0])

        while run.epoch < epochs:
            told = f"epoch {run.epoch + 1}"
            with tqdm(data, told, initial=len(run.measured), leave=False, disable=None if progress else True) as bar:
                for batch in bar:
                    found = run.step(batch)
                    bar.set_postfix(loss=f"{found:.4f}", lr=f"{optimizer.lr:.3g}", refresh=False)
                    if schedule is not None and schedule_each == "step":
                        schedule.step()
                    if asked or (save_every and run.steps % save_every == 0):
                        run.save(LAST)
                    stop_if_asked()
            if not any(size for _, size in run.measured):
                raise GraphError(f"fit: the data gave no batch in {told}: give a list or a DataLoader of one at least")
            row = run.end_epoch()
            if schedule is not None and schedule_each == "epoch":
                schedule.step()
            say(line_of(row))
            if not math.isfinite(row["loss"]):
                say("the loss is no longer finite: try a smaller learning rate, and look at the labels' range")
            run.save_epoch()
            stop_if_asked()
    return run.history


def evaluate_on(
    model: Module, loss: Function, data: Any, metrics: Mapping[str, Function] | None = None
) -> dict[str, float]:
    """The mean loss and metrics of a model in its `eval` mode over all batches of `data`. Raises GraphError for what is
    no model, and data of no batch."""
    _check("evaluate_on", *_expected(model, loss, data))
    _check_metrics("evaluate_on", metrics)
    steps = Steps(model, loss, None, metrics or {}, None, 0)
    found = _means([steps.run(batch, False) for batch in data])
    if not found:
        raise GraphError("evaluate_on: the data gave no batch")
    return found


Argument = tuple[bool, str, Any]
"""Whether an argument fits, what it must be, and itself."""


def _expected(model: Any, loss: Any, data: Any) -> tuple[Argument, ...]:
    """The arguments that training and evaluation both take."""
    return (
        (isinstance(model, Module), "needs a model, a Module", model),
        (callable(loss), "loss must be a function of output and targets", loss),
        (hasattr(data, "__iter__"), "data must iterate over batches, as a DataLoader", data),
    )


def _check_metrics(function: str, metrics: Any) -> None:
    """Raises GraphError for what are no metrics, or named as the history's own columns are."""
    fit = metrics is None or (isinstance(metrics, Mapping) and all(map(callable, metrics.values())))
    _check(function, (fit, "metrics must be a dictionary of names and functions", metrics))
    for name in metrics or ():
        if not isinstance(name, str):
            raise GraphError(f"{function}: a metric's name must be text, not {name!r}")
        if name in COLUMNS or name.startswith(VALIDATION):
            own = ", ".join((*COLUMNS, f"{VALIDATION}..."))
            raise GraphError(f"{function}: a metric cannot be named {name!r}: the history has columns {own} of its own")


def _check(function: str, *arguments: Argument) -> None:
    """Raises GraphError for the first argument that does not fit."""
    for fits, told, given in arguments:
        if not fits:
            raise GraphError(f"{function}: {told}, not {type(given).__name__}")


def _means(measured: Sequence[tuple[Mapping[str, float], int]]) -> dict[str, float]:
    """The means of batches' numbers, weighted by the batches' sizes."""
    total = sum(size for _, size in measured)
    names = measured[0][0] if total else ()
    return {name: sum(values[name] * size for values, size in measured) / total for name in names}


@dataclass
class _Run:
    """A run's state, and how it is kept."""

    compiled: Steps
    optimizer: Optimizer
    data: Any
    validation: Any
    schedule: Any
    directory: Path | None
    best: str
    history: History = field(default_factory=History)
    measured: list[tuple[dict[str, float], int]] = field(default_factory=list)
    epoch: int = 0
    steps: int = 0
    least: float = math.inf
    seconds: float = 0.0
    since: float = field(default_factory=time.perf_counter)

    def parts(self) -> dict[str, Any]:
        """The parts of the run that have a state, by their names in a checkpoint."""
        model, generator = self.compiled.model, random.default_generator
        found = dict(zip(PARTS, (model, self.optimizer, self.schedule, self.data, generator), strict=True))
        return {name: part for name, part in found.items() if hasattr(part, "state_dict")}

    def path(self, name: str) -> Path:
        return Path(self.directory or "", name)

    def step(self, batch: Any) -> float:
        """The loss of a batch, on which the model is trained."""
        self.measured.append(self.compiled.run(batch, True))
        self.history.losses.append(self.measured[-1][0]["loss"])
        self.steps += 1
        return self.history.losses[-1]

    def end_epoch(self) -> dict[str, Any]:
        """The row of the epoch that was trained; validation included."""
        row: dict[str, Any] = {"epoch": self.epoch + 1, "steps": self.steps, **_means(self.measured)}
        row |= {"lr": self.optimizer.lr, "seconds": self.seconds + time.perf_counter() - self.since}
        if self.validation is not None:
            found = _means([self.compiled.run(batch, False) for batch in self.validation])
            if not found:
                raise GraphError(f"fit: the validation data gave no batch in epoch {row['epoch']}")
            row |= {VALIDATION + name: value for name, value in found.items()}
        self.history.epochs.append(row)
        self.epoch, self.measured, self.seconds, self.since = self.epoch + 1, [], 0.0, time.perf_counter()
        return row

    def save_epoch(self) -> None:
        """After an epoch: the log, the picture, the checkpoints."""
        if self.directory is None:
            return
        row = self.history.epochs[-1]
        value = row.get(VALIDATION + self.best, row[self.best]) * (1 if self.best == "loss" else -1)
        better = value < self.least
        self.least = min(self.least, value)
        for name in (LAST, BEST) if better else (LAST,):
            self.save(name)
        self.history.write(self.path(LOG))
        try:
            self.history.draw(self.path(CURVE))
        except OSError as error:  # the run is worth more than its picture
            warn(f"fit: {self.path(CURVE)} is not drawn: {error}", RuntimeWarning)

    def save(self, name: str) -> None:
        """Write the checkpoint of that name, with all that a run goes on from. Raises DataError."""
        if self.directory is None:
            return
        with contextlib.suppress(OSError):  # `save` says what is wrong
            self.directory.mkdir(parents=True, exist_ok=True)
        state = {
            "format": FORMAT,
            **{name: part.state_dict() for name, part in self.parts().items()},
            **{name: getattr(self, name) for name in ("epoch", "steps", "measured", "least")},
            "first_stream": self.compiled.first_stream,
            "seconds": self.seconds + time.perf_counter() - self.since,
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
        kind = state.get("format") if isinstance(state, dict) else None
        if not isinstance(kind, str) or kind != FORMAT:
            raise DataError(f"{self.path(LAST)} is no checkpoint of fit")
        if wrong := wrong_entry(state):
            raise DataError(f"{self.path(LAST)} is damaged: its {wrong}; {ANEW}")
        parts = self.parts()
        for name in PARTS:
            if (known := name in state) != (name in parts):
                raise DataError(f"{self.path(LAST)} is of a run {'with' if known else 'without'} {name}'s state")
            try:
                if name in parts:
                    parts[name].load_state_dict(state[name])
            except DlsysError as error:
                raise DataError(f"{self.path(LAST)} is of another {name}: {error}; {ANEW}") from None
        self.compiled.first_stream = state["first_stream"]
        self.history = History(state["history"], state["losses"].tolist())
        for name in ("epoch", "steps", "measured", "least", "seconds"):
            setattr(self, name, state[name])
        return True


@contextlib.contextmanager
def _at_signals() -> Iterator[list[int]]:
    """The signals that have asked the run to stop: SIGINT, that is Ctrl-C, and SIGTERM; a second one of a kind acts as
    it did before, at once. Only the main thread can ask for signals."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def note(number: int, frame: Any) -> None:
        asked.append(number)
        signal.signal(number, before[number])

    # None: set by another language, of which Python knows no function
    before = {int(n): signal.getsignal(n) or signal.SIG_DFL for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in before:
            signal.signal(number, note)
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
