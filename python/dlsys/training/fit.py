"""`fit`, the loop over epochs, its arguments, and the signals that stop it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .. import random
from ..checks import integer, word
from ..distributed import synchronize
from ..errors import GraphError
from ..nn import Module
from ..nn.module import in_mode
from ..optim import Optimizer, ReduceLROnPlateau
from .run import COLUMNS, VALIDATION, Run, means
from .steps import Function, History, Steps


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
    on_step: Callable[[int, float], Any] | None = None,
    on_epoch: Callable[[dict[str, Any]], Any] | None = None,
) -> History:
    """Train `model` for `epochs` epochs of `data`; returns the history: losses, metrics and times.

    Args:
        model, loss, metrics: for a batch (x, *targets) the loss is `loss(model(x), *targets)`, one number. Metrics are
            functions of the same arguments by name, e.g. {"accuracy": dl.accuracy}; a name is none of `COLUMNS` and
            does not begin with "validation_". Means over an epoch are weighted by the batches' sizes.
        optimizer: one of `dlsys.optim`, made with the model's parameters.
        data, validation: objects that iterate over batches of arrays, such as a `DataLoader`, once per epoch.
        schedule: one of `dlsys.optim`, stepped after each "epoch" or "step" (`schedule_each`). A `ReduceLROnPlateau`
            gets the number that `best` names, of validation, if given; after each step the loss.
        clip_norm: the largest global norm of the gradients.
        directory: the folder for `last.safetensors`, written after each epoch (and every `save_every` steps, and when
            stopped), `best.safetensors`, written after the epoch with the smallest loss (or the largest metric `best`;
            of validation, if given), and `log.jsonl`.
        resume: continue from `last.safetensors` if it exists. A run that was killed at any moment and resumed gives the
            same bits as one that was not: the checkpoint has parameters, buffers, optimizer, schedule, random state and
            the place in the data. `data` must then have `state_dict`, as a DataLoader has, or give the same batches in
            each loop, as a list does: of these the ones that are done are skipped.
        progress: whether to show a bar in a terminal and one line per epoch.
        on_step, on_epoch: called after each step with its number and loss, and after each epoch with its row of the
            history, before anything is saved.

    Started by `mpiexec -n 4`, four processes train one model (`dlsys.distributed`): each takes its share of a batch,
    loss, metrics and gradients are means over all samples, rank 0 prints and saves. Batch norm normalizes by the
    statistics of a rank's own samples, and running statistics are rank 0's at the end of each epoch. All ranks need the
    same data.

    Ctrl-C, and SIGTERM, by which clusters end jobs, end the run after the current step: it is saved, and
    KeyboardInterrupt or SystemExit(143) is raised; a second signal ends it at once. Raises GraphError for arguments
    that do not fit, DataError for a checkpoint that is damaged or of another run, and the errors of the operators.
    """
    check_fit(**locals())
    place = None if directory is None else Path(directory)

    steps = Steps(model, loss, metrics or {}, random.default_generator.streams)
    steps.trains(optimizer, clip_norm)
    run = Run(steps, optimizer, data, validation, schedule, place, save_every, best, progress)
    if schedule is not None and schedule_each == "step":
        run.on_step.append(lambda number, loss: advance(schedule, loss))
    elif schedule is not None:
        run.on_epoch.append(lambda row: advance(schedule, run.result))
    run.on_step += [on_step] if on_step is not None else []
    run.on_epoch += [on_epoch] if on_epoch is not None else []
    if resume:
        run.load()
    synchronize([*model.parameters(), *model.buffers()], optimizer)
    with signals() as run.asked:
        for epoch in run.remaining(epochs):
            run.train(epoch)
            run.validate()
            run.end()
    return run.history


def advance(schedule: Any, result: float) -> None:
    """Set the schedule's next learning rate; a ReduceLROnPlateau is told the result."""
    if isinstance(schedule, ReduceLROnPlateau):
        schedule.step(result)
    else:
        schedule.step()


def evaluate_on(
    model: Module, loss: Function, data: Any, metrics: Mapping[str, Function] | None = None
) -> dict[str, float]:
    """The mean loss and metrics of a model in its `eval` mode over all batches of `data`, by name. Raises GraphError
    for wrong arguments and for data without a batch."""
    require("evaluate_on", model=model, loss=loss, data=data, metrics=metrics)
    steps = Steps(model, loss, metrics or {})
    with in_mode(model, False):
        found = means([steps.run(batch, False) for batch in data])
    if not found:
        raise GraphError("evaluate_on: the data gave no batch")
    return found


_KINDS: dict[str, tuple[Any, str]] = {
    "model": (Module, "needs a model, a Module"),
    "optimizer": (Optimizer, "needs an optimizer of dlsys.optim"),
    "loss": (Callable, "loss must be a function of output and targets"),
    "data": (Iterable, "data must iterate over batches, as a DataLoader"),
    "validation": (Iterable | None, "validation must iterate over batches, as a DataLoader"),
    "directory": (str | Path | None, "directory must be text or a path"),
    "metrics": (Mapping | None, "metrics must be a dictionary of names and functions"),
}
"""For each argument its types, and the text of the error."""


def check_fit(*, schedule: Any, validation: Any, epochs: Any, save_every: Any, best: Any, **more: Any) -> None:
    """Raises GraphError for arguments of `fit` that do not fit."""
    require("fit", validation=validation, **{name: more[name] for name in _KINDS if name in more})
    if schedule is not None and not hasattr(schedule, "step"):
        raise GraphError(f"fit: schedule must be one of dlsys.optim, not {type(schedule).__name__}")
    if hasattr(validation, "__len__") and len(validation) == 0:
        raise GraphError("fit: the validation data have no batch: give None, or one at least")
    integer("fit", "epochs", epochs, 0)
    integer("fit", "save_every", 1 if save_every is None else save_every, 1)
    word("fit", "schedule_each", more["schedule_each"], ("epoch", "step"))
    if best != "loss" and best not in (more["metrics"] or {}):
        raise GraphError(f"fit: best must be the loss or one of the metrics, not {best!r}")
    smaller = best == "loss" or more["schedule_each"] == "step"
    if isinstance(schedule, ReduceLROnPlateau) and schedule.mode != (mode := "min" if smaller else "max"):
        result = f"the {'loss' if smaller else best} of each {more['schedule_each']}"
        raise GraphError(f"fit: the schedule is given {result}, it needs mode={mode!r}, not {schedule.mode!r}")
    if set(more["optimizer"].parameters).isdisjoint(more["model"].parameters()):
        raise GraphError("fit: the optimizer has none of the model's parameters")


def require(function: str, **arguments: Any) -> None:
    """Raises GraphError for the first argument of a wrong type, and for metrics that are no functions or have the name
    of one of the history's columns."""
    for name, value in arguments.items():
        kinds, must = _KINDS[name]
        if not isinstance(value, kinds) or (name == "metrics" and not all(map(callable, (value or {}).values()))):
            raise GraphError(f"{function}: {must}, not {type(value).__name__}")
    for name in arguments["metrics"] or ():
        if not isinstance(name, str):
            raise GraphError(f"{function}: a metric's name must be text, not {name!r}")
        if name in COLUMNS or name.startswith(VALIDATION):
            own = ", ".join((*COLUMNS, f"{VALIDATION}..."))
            raise GraphError(f"{function}: a metric cannot be named {name!r}: the history has columns {own} of its own")


@contextlib.contextmanager
def signals() -> Iterator[list[int]]:
    """A list of the signals SIGINT (Ctrl-C) and SIGTERM that arrive inside. A second one of a kind has its usual
    effect at once. Outside the main thread, which alone gets signals, the list stays empty."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def note(number: int, frame: Any) -> None:
        asked.append(number)
        signal.signal(number, before[number])

    # `getsignal` is None if the handler was not set by Python
    before = {int(n): signal.getsignal(n) or signal.SIG_DFL for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in before:
            signal.signal(number, note)
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
