"""`tune`: the kernels of a step, each searched by turns, and what was found."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..charts import chart
from ..checks import integer
from ..errors import GraphError
from ..graph import Node
from ..kernels import choices, target_name
from ..kernels.choices import Record
from ..rpc.client import Remote
from .measure import FAR, LOCAL, Measurer, Worker
from .model import MODELS, correlation
from .search import BATCH, Search
from .tasks import tasks_of

SHARE = 0.01  # of the step's time: a kernel that takes less is not tuned
LOADING = 0.3  # of the time to search may go to the rules' own times, of the kernels with most to do first


@dataclass
class Tuning:
    """The result of a search, to `print` and to `plot`.

    Attributes:
        searches: one for each kernel that was searched, by their share of the step, largest first.
        path: the file of records.
        kernels: how many distinct kernels a step has.
        records: all that was known at the end.
        models: the names of those that are compared, of which the first one has led.
    """

    searches: list[Search]
    path: Path
    kernels: int
    records: list[Record] = field(repr=False)
    models: list[str]

    @property
    def gain(self) -> float:
        """How many times as fast the searched kernels of a step are together as by their rules."""
        before = sum(one.share for one in self.searches)
        after = sum(one.share / one.gain for one in self.searches)
        return before / after if after else 1.0

    def __str__(self) -> str:
        lines = [line for one in self.searches for line in (described(one), *self._ranked(one))]
        count = f"{len(self.searches)} of {self.kernels} kernel{'s' * (self.kernels != 1)} searched"
        before = sum(one.share for one in self.searches)
        told = f"{count}: {1e6 * before:.1f} us a step by the rules, {1e6 * before / self.gain:.1f} us tuned"
        return "\n".join([*lines, told, f"stored in {self.path}"])

    def correlations(self, one: Search) -> dict[str, float]:
        """By model: the rank correlation of the measured times of a kernel with predictions that are made without them,
        from the records of other kernels; nan where there are too few. Most of what a search measures is what its model
        took for the best, which differs less than what is drawn, so that this is less than that of drawn choices."""
        return {name: correlation(name, self.records, one.task.loops, one.task.space) for name in self.models}

    def _ranked(self, one: Search) -> list[str]:
        told = [f"{name} {value:.2f}" for name, value in self.correlations(one).items() if not math.isnan(value)]
        return [f"    rank correlation before the first measurement: {', '.join(told)}"] if told else []

    def plot(self, path: Any, others: Mapping[str, list[float]] | None = None) -> None:
        """Draw each product's best speed in GFLOP/s over the trials; dotted the rule's. `others`: seconds of the best
        call after each trial of another search, by kernel or by its own name, drawn dashed."""
        with chart(path, "Best choice found; dotted: the rule's", "trials", "GFLOP/s") as axes:
            for number, one in enumerate(one for one in self.searches if one.task.space.flop):
                colour, flop = f"C{number % 10}", one.task.space.flop
                speeds = [flop / (one.rule * ratio) / 1e9 for ratio in one.history]
                axes.plot(range(1, len(speeds) + 1), speeds, color=colour, drawstyle="steps-post", label=one.task.name)
                axes.axhline(flop / one.rule / 1e9, color=colour, linestyle=":")
                alone = len(self.searches) == 1
                for other, (name, seconds) in enumerate((others or {}).items(), 1):
                    if name == one.task.name or alone:
                        own, line = [flop / value / 1e9 for value in seconds], f"C{other % 10}" if alone else colour
                        axes.plot(range(1, len(own) + 1), own, f"{line}--", drawstyle="steps-post", label=name)
            axes.set_ylim(bottom=0)


def described(one: Search) -> str:
    """A search as a line."""
    flop, best = one.task.space.flop, one.rule * one.ratio
    speeds = f" ({flop / best / 1e9:.1f} GFLOP/s)" if flop else ""
    failed = f", {len(one.failed)} failed ({one.failed[-1]})" if one.failed else ""
    return (f"{one.task.name}: {one.trials} tried{failed}, best {1e6 * best:.1f} us{speeds}, "
            f"rule {1e6 * one.rule:.1f} us, {one.rule / best:.2f} of the rule")  # fmt: skip


def tune(
    what: Any,
    trials: int = 64,
    seconds: float | None = None,
    database: Any = None,
    *,
    feed_shapes: Mapping[Node, Any] | None = None,
    model: str = "trees",
    verbose: bool = True,
    measurer: Measurer | None = None,
    remote: str | None = None,
) -> Tuning:
    """Search for faster loops for the kernels of a step on this CPU, and store what was measured in a file.

    Args:
        what: an Executor (its kernels for its latest signature), nodes, a kernel, or a Relax module.
        trials: how many choices to try for all kernels together; kernels with a larger share of the step's time get
            more.
        seconds: the longest time to search; None for no limit.
        database: the file of records; None for that of `DLSYS_TUNING`, or `tuning.jsonl` in the user's cache. A search
            goes on from its records, and learns from those of other kernels.
        feed_shapes: for nodes and Executors, see `Executor.infer_shape`; for a Relax module unused.
        model: what predicts times: "trees", or "mlp", a network of dlsys' own beside the trees.
        verbose: whether to print a line for each batch.
        measurer: what measures; None for a process on this machine.
        remote: HOST:PORT/NAME of a device far away, for which choices are compiled, and whose workers measure. Raises
            DeviceError where there is none.

    After Ctrl-C what was found so far is stored. Kernels use it where `DLSYS_TUNING` names the file, if it was 3 % or
    more faster than the rule's own choice when both were measured in turn at the end. Raises GraphError for arguments
    that cannot be tuned, DataError for a file that cannot be read or written.
    """
    integer("tune", "trials", trials, 1)
    if model not in MODELS:
        raise GraphError(f"tune: the model is one of {', '.join(MODELS)}, not {model!r}")
    path = Path(database) if database is not None else choices.default_database()
    how, begun = target_name("llvm") if remote is None else Remote(remote).how, time.monotonic()
    deadline = math.inf if seconds is None else begun + seconds
    records = choices.read(path)
    tasks, count, step = tasks_of(what, how, feed_shapes)
    measurer, found = measurer or Worker(LOCAL if remote is None else (*FAR, remote)), list[Search]()
    try:
        for task in sorted(tasks, key=lambda task: -task.calls * task.space.flop):
            rule = measurer.load(task, step)
            found.append(Search(task, records, model, rule, len(found)))
            if time.monotonic() > begun + (deadline - begun) * LOADING:
                break
        found.sort(key=lambda one: -one.share)
        whole = sum(one.share for one in found)
        found = [one for one in found if one.share >= SHARE * whole]
        left = trials
        for number, one in enumerate(found):  # what one leaves of its trials and of its time the others have
            part = one.share / sum(other.share for other in found[number:])
            own = min(left, max(BATCH, round(left * part)))
            until = deadline if math.isinf(deadline) else time.monotonic() + part * (deadline - time.monotonic())
            about = {"loops": one.task.loops, "machine": choices.machine_name(how), "versions": choices.versions(),
                     "name": one.task.name, "space": one.task.space.name}  # fmt: skip
            if own > 0 and time.monotonic() < deadline:
                left -= _searched(one, measurer, own, until, path, about, step, verbose)
    except KeyboardInterrupt:
        print("interrupted: what was found so far is stored", flush=True)
    finally:
        measurer.close()
    return Tuning(found, path, count, records, list(dict.fromkeys([model, "trees"])))


def _searched(
    one: Search, measurer: Measurer, trials: int, until: float, path: Path, about: Record, step: int, verbose: bool
) -> int:
    """Searches one task, by so many trials or until then, and stores what was measured; returns the number of trials.
    After Ctrl-C too the best is compared with the rule's."""
    measurer.load(one.task, step)
    begun = time.monotonic()
    try:
        while not one.done and one.trials < trials and time.monotonic() < until:
            left = trials - one.trials
            spent = (time.monotonic() - begun) / (until - begun)  # 0 without a limit
            records = one.try_some(measurer, left, min(left / trials, 1 - spent), {**about, "formula": ""})
            choices.append(path, records)
            if verbose and records:
                rate = (time.monotonic() - begun) / one.trials
                rest = min(rate * (trials - one.trials), until - time.monotonic())
                print(f"[{one.trials}/{trials}] {described(one)}, {max(rest, 0):.0f} s left", flush=True)
    finally:
        choices.append(path, one.verdict(measurer, about))
    return one.trials
