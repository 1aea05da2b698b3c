"""`tune`: the distinct kernels of a step whose rule has a space of choices, each searched by turns, and what was found.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from .. import schedule
from ..charts import chart
from ..checks import integer, number
from ..errors import GraphError
from ..executor import Executor
from ..graph import Node
from ..kernels import Kernel, choices, target_name
from ..kernels.build import any_alignment, loops_hash, prim_func
from ..kernels.spec import TargetName
from ..relax.build import fused_kernels
from .measure import LOCAL, Worker
from .model import MODELS
from .search import BATCH, Search, Task

SHARE = 0.01  # of the step's time: a kernel that takes less is not tuned
LOADING = 0.3  # of the time to search may go to the rules' own times, of the kernels with most to do first


@dataclass
class Tuning:
    """The result of a search, to `print` and to `plot`.

    Attributes:
        searches: one for each kernel that was searched, by their share of the step, largest first.
        path: the file of records.
        kernels: how many distinct kernels a step has.
    """

    searches: list[Search]
    path: Path
    kernels: int

    @property
    def gain(self) -> float:
        """How many times as fast the searched kernels of a step are together as by their rules."""
        after = sum(one.share / one.gain for one in self.searches)
        return sum(one.share for one in self.searches) / after if after else 1.0

    def __str__(self) -> str:
        lines = list[str]()
        for one in self.searches:
            ranks = ", ".join(f"{name} {x:.2f}" for name, x in one.correlations().items() if not math.isnan(x))
            lines += [str(one), *([f"    rank correlation before the first measurement: {ranks}"] if ranks else [])]
        count = f"{len(self.searches)} of {self.kernels} kernel{'s' * (self.kernels != 1)} searched"
        before = 1e6 * sum(one.share for one in self.searches)
        lines.append(f"{count}: {before:.1f} us a step by the rules, {before / self.gain:.1f} us tuned")
        return "\n".join([*lines, f"stored in {self.path}"])

    def plot(self, path: Any, others: Mapping[str, list[float]] | None = None) -> None:
        """Draw each product's best speed in GFLOP/s over the trials; dotted the rule's. `others`: seconds of the best
        call after each trial of another search, by kernel or by its own name, drawn dashed."""
        with chart(path, "Best choice found; dotted: the rule's", "trials", "GFLOP/s") as axes:
            for number, one in enumerate(one for one in self.searches if one.task.space.flop):
                lines = [(f"C{number}-", one.task.name, [one.rule * ratio for ratio in one.history])]
                for other, (name, seconds) in enumerate((others or {}).items(), number + 1):
                    if name == one.task.name or len(self.searches) == 1:
                        lines.append((f"C{number if name == one.task.name else other}--", name, seconds))
                for style, name, seconds in lines:
                    speeds = [one.task.space.flop / value / 1e9 for value in seconds]
                    axes.plot(range(1, len(speeds) + 1), speeds, style, drawstyle="steps-post", label=name)
                axes.axhline(one.task.space.flop / one.rule / 1e9, color=f"C{number}", linestyle=":")
            axes.set_ylim(bottom=0)


def tune(
    what: Any,
    trials: int = 64,
    seconds: float | None = None,
    database: Any = None,
    *,
    feed_shapes: Mapping[Node, Any] | None = None,
    model: str = "trees",
    verbose: bool = True,
    measurer: Worker | None = None,
) -> Tuning:
    """Search for faster loops for the kernels of a step on this CPU, and store what was measured in a file.

    Args:
        what: an Executor (its kernels for its latest signature), nodes, a kernel, or a Relax module.
        trials: how many choices to try for all kernels together, each by its share of the step's time.
        seconds: the longest time to search; None for no limit.
        database: the file of records, from which a search goes on; None for that of `DLSYS_TUNING`, or `tuning.jsonl`
            in the user's cache.
        feed_shapes: for nodes and Executors, see `Executor.infer_shape`; for a Relax module unused.
        model: what predicts times: "trees", or "mlp", a network of dlsys' own beside the trees.
        verbose: whether to print a line for each batch.
        measurer: what measures; None for a process on this machine.

    After Ctrl-C what was found so far is stored. Kernels use it where `DLSYS_TUNING` names the file, if it was 3 % or
    more faster than the rule's own choice when both were measured in turn at the end. Raises GraphError for arguments
    that cannot be tuned, DataError for a file that cannot be read or written.
    """
    integer("tune", "trials", trials, 1)
    if model not in MODELS:
        raise GraphError(f"tune: the model is one of {', '.join(MODELS)}, not {model!r}")
    path = Path(database) if database is not None else choices.default_database()
    how, begun = target_name("llvm"), time.monotonic()
    deadline = math.inf if seconds is None else begun + number("tune", "seconds", seconds)
    known, machine = choices.read(path), choices.machine_name(how)
    tasks, count = tasks_of(what, how, feed_shapes)
    measurer, found = measurer or Worker(LOCAL), list[Search]()
    try:
        for task in sorted(tasks, key=lambda task: -task.calls * task.space.flop):
            found.append(Search(task, known, model, measurer.load(task.request), machine, len(found)))
            if time.monotonic() > begun + (deadline - begun) * LOADING:
                break
        found.sort(key=lambda one: -one.share)
        found = [one for one in found if one.share >= SHARE * sum(other.share for other in found)]
        for at, one in enumerate(found):  # what one leaves of its trials and of its time the others have
            part, now = one.share / sum(other.share for other in found[at:]), time.monotonic()
            left = trials - sum(other.trials for other in found)
            own, until = min(left, max(BATCH, round(left * part))), now + part * (deadline - now)
            if own > 0 and now < deadline:
                measurer.load(one.task.request)
                try:
                    for records in one.searched(measurer, own, until):
                        choices.append(path, records)
                        if verbose:
                            spent = time.monotonic() - now
                            rest = max(min(spent / one.trials * (own - one.trials), until - now - spent), 0)
                            print(f"[{one.trials}/{own}] {one}, {rest:.0f} s left", flush=True)
                finally:  # after Ctrl-C too the best is compared with the rule's
                    choices.append(path, one.verdict(measurer))
    except KeyboardInterrupt:
        print("interrupted: what was found so far is stored", flush=True)
    finally:
        measurer.close()
    return Tuning(found, path, count)


def tasks_of(what: Any, how: TargetName, feed_shapes: Mapping[Node, Any] | None) -> tuple[list[Task], int]:
    """The tasks of an Executor, nodes, a kernel or a Relax module, and how many distinct kernels there are. Raises
    GraphError for something else."""
    found, step, nodes = dict[str, Task | None](), 0, [what] if isinstance(what, Node) else what
    if isinstance(nodes, Sequence) and nodes and all(isinstance(node, Node) for node in nodes):
        what = Executor(nodes)
    if isinstance(what, tvm.IRModule):
        fused = fused_kernels(what, how.target, feed_shapes)
        called = [(name, any_alignment(function), how.target, "", "", 1) for name, function in fused]
    elif isinstance(what, (Executor, Kernel)):
        specs = [(what.spec, 1)] if isinstance(what, Kernel) else what.specs_and_calls(feed_shapes)
        called = [(spec.name, prim_func(spec), how.target, spec.precision, spec.digest, calls)
                  for spec, calls in specs if not spec.loops]  # fmt: skip
    else:
        raise GraphError(f"tune: takes an Executor, nodes, a kernel or a Relax module, not {type(what).__name__}")
    for name, function, target, precision, formula, calls in called:
        loops = loops_hash(function)
        step += calls * sum(math.prod(map(int, v.shape)) * np.dtype(str(v.dtype)).itemsize for v in function.params)
        if loops not in found:
            space = schedule.space_of(function, target, precision)
            module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
            request = {"loops": tvm.ir.save_json(module), "target": tvm.ir.save_json(target), "precision": precision}
            found[loops] = Task(name, loops, space, request) if space else None
        if task := found[loops]:
            task.calls += calls
            task.formulas = tuple(sorted({*task.formulas, formula} - {""}))
    tasks = [task for task in found.values() if task]
    for task in tasks:
        task.request["bytes"] = step
    return tasks, len(found)
