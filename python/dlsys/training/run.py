"""A run of `fit`: its progress, its checkpoints and its log."""

from __future__ import annotations

import contextlib
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from .. import distributed, random
from ..errors import DataError, DlsysError, GraphError
from ..nn.module import in_mode
from ..optim import Optimizer
from ..serialization import last_good, load, save
from .steps import History, Steps, line_of

LAST, BEST, LOG = "last.safetensors", "best.safetensors", "log.jsonl"
PARTS = ("model", "optimizer", "schedule", "data", "random")
FORMAT = "dlsys training 3"
COLUMNS = ("epoch", "steps", "loss", "lr", "seconds")
"""Columns of the history's rows, besides the metrics."""
VALIDATION = "validation_"
"""The start of the names of validation's columns."""
ANEW = "give another directory, or resume=False"


def means(measured: Sequence[tuple[Mapping[str, float], int]]) -> dict[str, float]:
    """The means of batches' numbers, weighted by the batches' sizes."""
    total = sum(size for _, size in measured)
    names = measured[0][0] if total else ()
    return {name: sum(values[name] * size for values, size in measured) / total for name in names}


@dataclass
class Place:
    """How far a run has come.

    Attributes:
        epoch, steps: how many are complete.
        measured: the loss and metrics of each batch of the current epoch, with the batch's size.
        least: the smallest loss (or minus the largest metric) of an epoch.
        seconds: of the current epoch until the last checkpoint.
    """

    epoch: int = 0
    steps: int = 0
    measured: list[tuple[dict[str, float], int]] = field(default_factory=list)
    least: float = math.inf
    seconds: float = 0.0


@dataclass
class Run:
    """A run of `fit`, with its arguments: `for epoch in run.remaining(n)`: `train`, `validate`, `end`.

    Attributes:
        on_step, on_epoch: called with the number and loss of each step, and with the row of each epoch.
        asked: the signals that have asked the run to stop.
        at: how far the run has come.
        row: the latest epoch's row of the history.
        place_in_data: within an epoch the data's state behind the batch that is trained on, which another loop over
            them, e.g. of a callback, does not change; else None.
        since: when the current epoch, or its part since the last checkpoint, began.
    """

    compiled: Steps
    optimizer: Optimizer
    data: Any
    validation: Any
    schedule: Any
    directory: Path | None
    save_every: int | None
    best: str
    progress: bool
    on_step: list[Callable[[int, float], Any]] = field(default_factory=list)
    on_epoch: list[Callable[[dict[str, Any]], Any]] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    at: Place = field(default_factory=Place)
    history: History = field(default_factory=History)
    row: dict[str, Any] = field(default_factory=dict)
    place_in_data: dict[str, Any] | None = None
    since: float = field(default_factory=time.perf_counter)

    def remaining(self, epochs: int) -> Iterator[int]:
        """The numbers of the epochs that are left, from 1 on."""
        while self.at.epoch < epochs:
            yield self.at.epoch + 1

    def train(self, epoch: int) -> None:
        """Train on the rest of an epoch's batches. Raises GraphError if there is none."""
        at, optimizer = self.at, self.optimizer
        shown = None if self.progress and distributed.rank() == 0 else True
        done, has_state = len(at.measured), hasattr(self.data, "state_dict")
        count = len(self.data) if hasattr(self.data, "__len__") else None
        batches = islice(self.data, 0 if has_state else done, None)  # a DataLoader goes on by itself
        bar = tqdm(batches, f"epoch {epoch}", count, initial=done, leave=False, disable=shown)
        with in_mode(self.compiled.model, True), bar:
            for batch in bar:
                self.place_in_data = self.data.state_dict() if has_state else None
                self.compiled.asks = bool(self.asked)
                values, size = self.compiled.run(batch, True)
                loss = values["loss"]
                at.measured.append((values, size))
                self.history.losses.append(loss)
                at.steps += 1
                bar.set_postfix(loss=f"{loss:.4f}", lr=f"{optimizer.lr:.3g}", refresh=False)
                for call in self.on_step:
                    call(at.steps, loss)
                if self.stops or (self.save_every and at.steps % self.save_every == 0):
                    self.save(LAST)
                self.stop_if_asked()
        found = means(at.measured)
        if not found:
            raise GraphError(
                f"fit: the data have no batch in epoch {epoch}: give a list or a DataLoader with at least one"
            )
        self.row = {"epoch": epoch, "steps": at.steps, **found, "lr": optimizer.lr, "seconds": self.seconds()}

    def validate(self) -> None:
        """Measure the model on the validation data, if there are any. In a group of processes all take rank 0's
        buffers, such as running means, which each rank has of its own samples."""
        distributed.synchronize(self.compiled.model.buffers())
        if self.validation is not None:
            with in_mode(self.compiled.model, False):
                found = means([self.compiled.run(batch, False) for batch in self.validation])
            if not found:
                raise GraphError(f"fit: the validation data gave no batch in epoch {self.row['epoch']}")
            self.row |= {VALIDATION + name: value for name, value in found.items()}

    def end(self) -> None:
        """End the epoch: history, callbacks, checkpoints, log."""
        self.history.epochs.append(self.row)
        self.at = Place(self.at.epoch + 1, self.at.steps, least=self.at.least)
        self.since = time.perf_counter()
        for call in self.on_epoch:
            call(self.row)
        self.say(line_of(self.row))
        if not math.isfinite(self.row["loss"]):
            self.say("the loss is no longer finite: try a smaller learning rate, and look at the labels' range")
        self.place_in_data = None
        if self.directory is not None:
            value = self.result * (1 if self.best == "loss" else -1)
            names = (LAST, BEST) if value < self.at.least else (LAST,)
            self.at.least = min(self.at.least, value)
            for name in names:
                self.save(name)
        if self.directory is not None and distributed.rank() == 0:
            self.history.write(self.path(LOG))
        self.stop_if_asked()

    def say(self, text: str) -> None:
        """Print a line, above the bar; rank 0 does."""
        if self.progress and distributed.rank() == 0:
            tqdm.write(text, file=sys.stdout)
            sys.stdout.flush()

    @property
    def result(self) -> float:
        """The number of the latest epoch by which the best is chosen: of validation, if there is any."""
        return self.row.get(VALIDATION + self.best, self.row[self.best])

    @property
    def stops(self) -> bool:
        """Whether the run stops now: a signal has arrived, in a group of processes at one of them before the step."""
        return bool(self.asked) if distributed.size() == 1 else self.compiled.asked

    def stop_if_asked(self) -> None:
        """Raises KeyboardInterrupt or SystemExit if the run stops."""
        if self.stops:
            self.asked = self.asked or [signal.SIGTERM]  # another rank's
            saved = "" if self.directory is None else f"; saved in {self.path(LAST)}"
            self.say(f"interrupted after step {self.at.steps}{saved}")
            raise KeyboardInterrupt if self.asked[0] == signal.SIGINT else SystemExit(128 + self.asked[0])

    def seconds(self) -> float:
        """Seconds of the current epoch so far."""
        return self.at.seconds + time.perf_counter() - self.since

    def path(self, name: str) -> Path:
        """The path of one of the run's files."""
        return Path(self.directory or "", name)

    # Checkpoints -----------------------------------------------------------------------------------------------

    def parts(self) -> dict[str, Any]:
        """The parts of the run that have a state, by their names in a checkpoint."""
        parts = (self.compiled.model, self.optimizer, self.schedule, self.data, random.default_generator)
        return {name: part for name, part in zip(PARTS, parts, strict=True) if hasattr(part, "state_dict")}

    def save(self, name: str) -> None:
        """Write a checkpoint with the whole state of the run; rank 0 does. Raises DataError if it cannot be written."""
        if self.directory is None or distributed.rank() > 0:
            return
        states = {name: part.state_dict() for name, part in self.parts().items()}
        if self.place_in_data is not None:
            states["data"] = self.place_in_data
        with contextlib.suppress(OSError):  # `save` says what is wrong
            self.directory.mkdir(parents=True, exist_ok=True)
        state = {
            "format": FORMAT,
            **states,
            **vars(self.at),
            "first_stream": self.compiled.first_stream,
            "seconds": self.seconds(),
            "history": self.history.epochs,
            "losses": np.asarray(self.history.losses, np.float64),
        }
        save(state, self.path(name))

    def load(self) -> None:
        """Continue from the last checkpoint, if there is one. Raises DataError for one that is damaged or of another
        run.
        """
        path = self.path(LAST)
        if self.directory is None or not path.exists():
            return
        try:
            state = load(path)
        except DataError as error:
            good = last_good(self.directory, path)
            other = "there is no other" if good is None else f"copy {good} over it to continue from there"
            raise DataError(f"{error}; {other}, or give resume=False to start again") from None
        kind = state.get("format") if isinstance(state, dict) else None
        if not isinstance(kind, str) or kind != FORMAT:
            raise DataError(f"{path} is no checkpoint of fit")
        parts = self.parts()
        for name in PARTS:
            if (known := name in state) != (name in parts):
                raise DataError(f"{path} is of a run {'with' if known else 'without'} {name}'s state")
            try:
                if name in parts:
                    parts[name].load_state_dict(state[name])
            except DlsysError as error:
                raise DataError(f"{path} is of another {name}: {error}; {ANEW}") from None
        try:
            self.compiled.first_stream = int(state["first_stream"])
            self.history = History(list(state["history"]), state["losses"].tolist())
            self.at = Place(**{name: state[name] for name in vars(self.at)})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{path} is not what fit has saved: {error!r}; {ANEW}") from None
        self.say(f"continues from {path}: epoch {self.at.epoch + 1}, step {self.at.steps + 1}")
