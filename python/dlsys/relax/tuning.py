"""Schedules searched by TVM's MetaSchedule, measured, compared with our rules', and stored in a file of records."""

from __future__ import annotations

import importlib.util
import itertools
import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.error import InternalError
from tvm.target import Target

from .. import timing
from ..charts import chart
from ..checks import integer
from ..devices import empty
from ..errors import DataError, GraphError, TargetError
from ..executor import Executor
from ..graph import Node
from ..kernels.build import UNCHECKED, any_alignment, prim_func
from ..schedule import apply, resolve_target
from ..schedule.machine_code import compiled
from ..schedule.target import refusal
from ..system import available_cores
from ..tuning import MAIN, Records, key_of, replayed, workload
from .build import fused_kernels
from .machine import default_database

POPULATION = 256  # schedules from which those of a round are chosen
ROUND = 16  # schedules of one kernel that are tried before another kernel's turn
MEASURED = 2e-3  # seconds for which a schedule is run
COMPARED = 11  # rounds in which the best schedule and our rule's run in turn
SHARE = 0.01  # of the step's time: a kernel that takes less is not tuned
MOST_BYTES = 64 * 2**20  # of the copies of a kernel's arrays
MOST_COPIES = 16
AGREE = 1e-3  # the largest difference from our rule's result, relative to its largest element
_NEEDED = ("psutil", "cloudpickle")
_LOGGER = logging.getLogger(__name__)  # for the search's messages, a screen for each round
_LOGGER.setLevel(logging.ERROR)


class Task:
    """One kernel to tune.

    Attributes:
        name: the kernel's name. calls: how often it is called in a step. rule: seconds of a call with our rule's
        schedule. best: seconds of a call with the best schedule so far, infinite at first; at the end measured in turn
        with `rule`. gflop: 10^9 operations of a call; 0 if TVM cannot count them. history: the best seconds after each
        schedule that was tried.
    """

    def __init__(
        self, name: str, function: tirx.PrimFunc, target: Target, calls: int, step_bytes: int
    ) -> None:
        """`step_bytes`: bytes of the arrays of all calls of a step."""
        self.name, self.function, self.calls = name, function, calls
        # In a step the arrays of other kernels share the caches; copies of the arrays have the same effect here.
        copies = min(max(1, math.ceil(min(step_bytes, MOST_BYTES) / max(_nbytes(function), 1))), MOST_COPIES)
        self._target, self._copies = target, [_arrays(function) for _ in range(copies)]
        self._ours = _built([apply(function, target)[0]], target)[0]
        self.rule = self._seconds(self._ours)
        self.gflop = _operations(function) / 1e9
        self.best, self.trials = math.inf, 0
        self.history: list[float] = []
        self.found: list[list[Any]] = []
        self._search: Any = None

    def __str__(self) -> str:
        return f"{self.name}: {self.trials} tried, best {self._told(self.best)}, rule {self._told(self.rule)}"

    def _told(self, seconds: float) -> str:
        if math.isinf(seconds):
            return "none"
        return f"{1e6 * seconds:.1f} us" + (f" ({self.gflop / seconds:.1f} GFLOP/s)" if self.gflop else "")

    def _seconds(self, kernel: Any, enough: float = math.inf) -> float:
        """Seconds of a call; measured once only if it takes longer than `enough`."""
        kernel(*self._copies[0])
        once = timing.seconds(lambda _: kernel(*self._copies[-1]))
        if once > enough:
            return once
        calls = max(1, math.ceil(MEASURED / 3 / max(once, 1e-7)))
        return min(timing.seconds(self._runner(kernel), calls) for _ in range(3))

    def _runner(self, kernel: Any) -> timing.Runner:
        """A runner that calls a kernel with one copy of the arrays after another."""

        def run(calls: int) -> None:
            for _, arrays in zip(range(calls), itertools.cycle(self._copies), strict=False):
                kernel(*arrays)

        return run

    def try_some(self, count: int, deadline: float) -> None:
        """Try `count` more schedules, until the deadline."""
        if self._search is None:
            self._search = _Search(self.function, self._target, self.found)
        for steps, kernel in self._search.candidates(count):
            seconds = math.inf
            if kernel is not None:
                seconds = self._seconds(kernel, 3 * self.best)
                self.found.append([seconds, steps])
            self._search.measured(seconds)
            self.trials += 1
            self.best = min(self.best, seconds)
            self.history.append(self.best)
            if time.perf_counter() > deadline:
                break
        self._search.told()

    def compare(self) -> float | None:
        """Measure the best schedule whose results agree with our rule's, in turn with the rule's; its seconds, or None
        if there is none."""
        while self.found:
            self.found.sort(key=lambda found: found[0])
            kernel = _built([replayed(self.function, self.found[0][1])], self._target)[0]
            if self._agree(kernel):
                runners = {"best": self._runner(kernel), "rule": self._runner(self._ours)}
                found = timing.in_turn(runners, COMPARED, MEASURED)
                self.best, self.rule = found["best"].median, found["rule"].median
                return self.best
            del self.found[0]
        return None

    def _agree(self, kernel: Any) -> bool:
        """Whether a kernel's results are our rule's, up to rounding."""
        results = []
        for made in (self._ours, kernel):
            made(*self._copies[0])
            results.append([np.array(np.from_dlpack(array)) for array in self._copies[0]])
        return all(
            np.allclose(one, other, atol=AGREE * np.abs(other).max(initial=0), rtol=0, equal_nan=True)
            for one, other in zip(*results, strict=True)
        )


class Tuning:
    """The result of a search, to `print` and to `plot`.

    Attributes:
        tasks: the kernels, by their share of the step, largest first.
        path: the file of records.
    """

    def __init__(self, tasks: list[Task], path: Path) -> None:
        self.tasks, self.path = tasks, path

    def __str__(self) -> str:
        before = sum(task.calls * task.rule for task in self.tasks)
        after = sum(task.calls * min(task.rule, task.best) for task in self.tasks)
        lines = [str(task) for task in self.tasks]
        count = f"{len(lines)} kernel{'s' * (len(lines) != 1)}"
        lines.append(f"{count}, {1e6 * before:.1f} us a step by our rules, {1e6 * after:.1f} us tuned")
        return "\n".join([*lines, f"stored in {self.path}"])

    def plot(self, path: Any) -> None:
        """Draw the best speed of each kernel over the number of schedules tried, and our rule's speed as a line."""
        with chart(path, "Best schedule found; dotted: our rule's", "schedules tried", "GFLOP/s") as axes:
            for number, task in enumerate(task for task in self.tasks if task.history and task.gflop):
                color = f"C{number % 10}"
                speeds = [task.gflop / seconds for seconds in task.history]
                axes.plot(range(1, len(speeds) + 1), speeds, color=color, drawstyle="steps-post", label=task.name)
                axes.axhline(task.gflop / task.rule, color=color, linestyle=":")
            axes.set_ylim(bottom=0)


def tune(
    what: Any,
    trials: int = 64,
    seconds: float | None = None,
    database: Any = None,
    target: Any = "llvm",
    *,
    feed_shapes: Mapping[Node, Any] | None = None,
    verbose: bool = True,
) -> Tuning:
    """Search for faster schedules for the kernels of a network, and store them in a file.

    Args:
        what: an Executor, whose kernels for its latest signature are tuned, or nodes or a Relax module, as in
            `relax.compile`, whose fused functions are tuned.
        trials: how many schedules to try for all kernels together; kernels with a larger share of the step's time get
            more.
        seconds: the longest time to search; None for no limit.
        database: the file of records; None for that of `default_database`. A search continues from its records.
        target: as in `kernels.get`.
        feed_shapes: for nodes, see `to_relax`; for an Executor, see `infer_shape`.
        verbose: whether to print one line per round.

    Kernels without sums are not tuned, since memory limits them. After Ctrl-C the schedules found so far are stored.
    `relax.compile(..., schedule="tuned", database=...)` uses the schedules, and so do all kernels of a process whose
    `DLSYS_TUNING` names the file. Raises GraphError for arguments that cannot be tuned, TargetError for a CPU that this
    machine cannot run, DataError for a file of another kind.
    """
    integer("relax.tune", "trials", trials, 1)
    if absent := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise GraphError(f"relax.tune needs {' and '.join(absent)}: pip install 'dlsys[relax]'")
    records = Records(database if database is not None else default_database())
    found = resolve_target(target)
    if found.kind.name != "llvm":
        raise GraphError(f"relax.tune: kernels are tuned for the CPU, not for {found.kind.name}")
    if told := refusal(found):
        raise TargetError(f"relax.tune: {told}")
    tasks = _tasks(what, found, feed_shapes)
    for task in tasks:
        known = records.of(task.function, found)
        if known is not None and all(_fits(task.function, steps) for _, steps in known["found"]):
            task.found, task.trials = list(known["found"]), known["trials"]
            task.best = min((item[0] for item in task.found), default=math.inf)
    deadline = time.perf_counter() + (math.inf if seconds is None else seconds)
    turns = dict.fromkeys(tasks, 0)
    try:
        while tasks and (left := trials - sum(turns.values())) > 0 and time.perf_counter() < deadline:
            task = min(tasks, key=lambda task: (turns[task] + ROUND) / (task.calls * task.rule))
            count = min(ROUND, left)
            turns[task] += count
            task.try_some(count, deadline)
            if verbose:
                print(f"[{sum(turns.values())}/{trials}] {task}", flush=True)
    except KeyboardInterrupt:
        if verbose:
            print("interrupted: the schedules found so far are stored", flush=True)
    for task in tasks:
        tuned = task.compare()
        kernel = {
            "name": task.name,
            "rule": task.rule,
            "tuned": tuned,
            "trials": task.trials,
            "found": task.found,
        }
        records.enter(task.function, found, kernel)
    records.save()
    return Tuning(tasks, records.path)


def _tasks(what: Any, target: Target, feed_shapes: Mapping[Node, Any] | None) -> list[Task]:
    """The kernels with sums that take at least SHARE of the step, by their share, largest first."""
    functions: dict[str, tuple[str, tirx.PrimFunc, int]] = {}
    for name, function in _functions(what, target, feed_shapes):
        if _has_sums(function) and not _in_place(function):
            key = key_of(function)
            calls = functions[key][2] if key in functions else 0
            functions[key] = (name, function, calls + 1)
    step = sum(calls * _nbytes(function) for _, function, calls in functions.values())
    tasks = [Task(name, function, target, calls, step) for name, function, calls in functions.values()]
    whole = sum(task.calls * task.rule for task in tasks)
    tasks = [task for task in tasks if task.calls * task.rule >= SHARE * whole]
    return sorted(tasks, key=lambda task: -task.calls * task.rule)


def _functions(what: Any, target: Target, feed_shapes: Any) -> list[tuple[str, tirx.PrimFunc]]:
    """The names and plain loops of all kernels, in the order of their calls."""
    if isinstance(what, Executor):
        return [(spec.name, prim_func(spec)) for spec in what.specs(feed_shapes)]
    return [(name, any_alignment(function)) for name, function in fused_kernels(what, target, feed_shapes)]


def _has_sums(function: tirx.PrimFunc) -> bool:
    blocks: list[s_tir.SBlock] = []
    tvm_ffi.structural_walk(function.body, (s_tir.SBlock, blocks.append))
    return any(block.init is not None for block in blocks)


def _operations(function: tirx.PrimFunc) -> float:
    try:
        return s_tir.analysis.estimate_tir_flops(workload(function))
    except InternalError:  # for expressions that TVM does not know
        return 0.0


def _fits(function: tirx.PrimFunc, steps: Any) -> bool:
    """Whether the steps of a schedule, perhaps of an older TVM, can be applied to the function."""
    try:
        replayed(function, steps)
    except DataError:
        return False
    return True


def _in_place(function: tirx.PrimFunc) -> bool:
    return bool(function.attrs) and "tirx.noalias" in function.attrs and not function.attrs["tirx.noalias"]


def _nbytes(function: tirx.PrimFunc) -> int:
    return sum(math.prod(map(int, v.shape)) * np.dtype(str(v.dtype)).itemsize for v in function.params)


def _arrays(function: tirx.PrimFunc) -> list[Any]:
    """Arguments for a function: floats near 1, of which no exponential is infinite, and integers 0."""
    random, made = np.random.default_rng(0), []
    for value in function.params:
        shape, dtype = tuple(map(int, value.shape)), str(value.dtype)
        array = empty(shape, dtype)
        numbers = random.uniform(0.5, 1.5, shape) if dtype.startswith("float") else np.zeros(shape)
        array.copyfrom(numbers.astype(dtype))
        made.append(array.tensor)
    return made


def _built(functions: Sequence[tirx.PrimFunc], target: Target) -> list[Any]:
    """The compiled functions, built on all cores; None for one that TVM cannot compile."""

    def build(function: tirx.PrimFunc) -> Any:
        try:
            with tvm.transform.PassContext(config=UNCHECKED):
                return compiled({MAIN: function.with_attr("global_symbol", MAIN)}, target)[MAIN]
        except (RuntimeError, TypeError, ValueError):
            return None

    if len(functions) == 1:
        return [build(functions[0])]
    with ThreadPoolExecutor(available_cores()) as pool:
        return list(pool.map(build, functions))


class _Search:
    """MetaSchedule's evolutionary search over the schedules of one function. Candidates are built and measured in this
    process, so no worker processes must be started and cleaned up."""

    def __init__(self, function: tirx.PrimFunc, target: Target, known: Sequence[Any]) -> None:
        from tvm.s_tir import meta_schedule

        self._ms, self._target, module = meta_schedule, target, workload(function)
        self._database = meta_schedule.database.MemoryDatabase()
        self._workload = self._database.commit_workload(module)
        self._context = _context(
            module,
            target,
            meta_schedule.space_generator.PostOrderApply(
                sch_rules=meta_schedule.schedule_rule.ScheduleRule.create("llvm"),
                postprocs=meta_schedule.postproc.Postproc.create("llvm"),
                mutator_probs=meta_schedule.mutator.Mutator.create("llvm"),
            ),
            meta_schedule.search_strategy.EvolutionarySearch(population_size=POPULATION),
        )
        for seconds, steps in known:
            sch = s_tir.Schedule(module)
            s_tir.schedule.Trace.apply_json_to_schedule(steps, sch)
            self._commit(sch.trace, sch.mod[MAIN], seconds)
        with_xgboost = importlib.util.find_spec("xgboost") is not None
        model = (
            meta_schedule.cost_model.XGBModel() if with_xgboost else meta_schedule.cost_model.RandomModel()
        )
        self._context.pre_tuning(
            max_trials=10**6,
            num_trials_per_iter=ROUND,
            design_spaces=self._context.generate_design_space(),
            database=self._database,
            cost_model=model,
        )
        self._model: Any = model
        self._round: list[Any] = []
        self._results: list[Any] = []

    def candidates(self, count: int) -> list[tuple[Any, Any]]:
        """The steps and the kernel of each schedule to measure; None for a kernel that cannot be compiled."""
        self._round, self._results = list(self._context.generate_measure_candidates() or [])[:count], []
        kernels = _built([candidate.sch.mod[MAIN] for candidate in self._round], self._target)
        steps = [json.loads(json.dumps(_plain(candidate.sch.trace.as_json()))) for candidate in self._round]
        return list(zip(steps, kernels, strict=True))

    def measured(self, seconds: float) -> None:
        """Record the seconds of the next candidate; infinite for one that was not measured."""
        candidate, runner = self._round[len(self._results)], self._ms.runner.RunnerResult
        if math.isinf(seconds):
            self._results.append(runner(run_secs=None, error_msg="not compiled"))
            return
        self._results.append(runner(run_secs=[seconds], error_msg=None))
        self._commit(candidate.sch.trace, candidate.sch.mod[MAIN], seconds)

    def told(self) -> None:
        """End the round: the cost model learns from its results."""
        count = len(self._results)
        self._context.notify_runner_results(self._round[:count], self._results)
        if count:
            self._model.update(self._context, self._round[:count], self._results)

    def _commit(self, trace: Any, function: tirx.PrimFunc, seconds: float) -> None:
        arguments = self._ms.arg_info.ArgInfo.from_prim_func(function)
        record = self._ms.database.TuningRecord(trace, self._workload, [seconds], self._target, arguments)
        self._database.commit_tuning_record(record)


def _context(module: tvm.IRModule, target: Target, space: Any, strategy: Any) -> Any:
    """MetaSchedule's TuneContext. Its own constructor would first import hundreds of tensor intrinsics, which takes
    half a minute and is not needed for float32."""
    from tvm.s_tir.meta_schedule import TuneContext, _ffi_api
    from tvm.s_tir.meta_schedule.logging import get_logging_func

    made, seed = TuneContext.__new__(TuneContext), 1
    made.__init_handle_by_constructor__(
        _ffi_api.TuneContext,
        *(module, target, space, strategy, MAIN, available_cores(), seed, get_logging_func(_LOGGER)),
    )
    _ffi_api.TuneContextInitialize(made)
    return made


def _plain(value: Any) -> Any:
    """TVM's containers and numbers converted to Python's."""
    if isinstance(value, (str, bool, int, float)) or value is None:
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_plain(item) for item in value]
    return value.value
