"""Where a step's time goes: each kernel's time, operations and bytes, compared with the machine's peaks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ..compiler import Key, Plan
from ..devices import Array, array, get_num_threads, view_of
from ..graph import Node
from ..kernels import Call, unrolled_calls
from ..planner import table
from ..tvm_import import with_compiler
from . import notebook
from .text import kernels_of, number

HEAD = ("", "kernel", "kind", "calls", "us", "share", "GFLOP/s", "GB/s", "of peak")
ALIGN = "><<>>>>><"
WARM_UP = 2  # runs that are not counted: pages are touched, the clock rises
LEAST = 1e-8  # seconds; a shorter time cannot be told from that of the call


@dataclass(frozen=True)
class Row:
    """A kernel in a step, with all its calls, if several groups have the same kernel.

    Attributes:
        groups: the keys of the groups that it computes.
        calls: how often it is called in a step.
        name, kind: the kernel's name, and its groups' kind.
        seconds: of all its calls in a step, the median of the runs, without the time of calling it from Python.
        flop: operations of its calls: a multiply-add is two, every other operation one, a transcendental function too.
        nbytes: bytes that its calls read and write, each input and output counted once. Small arrays come from caches,
            which are faster than memory.
        compute, bandwidth: the share of the machine's peaks that it reaches, 1.0 being all; None if they are unknown.
    """

    groups: tuple[Key, ...]
    name: str
    kind: str
    calls: int
    seconds: float
    flop: int
    nbytes: int
    compute: float | None = None
    bandwidth: float | None = None

    @property
    def gflops(self) -> float:
        """10^9 operations a second."""
        return self.flop / self.seconds / 1e9

    @property
    def gbytes(self) -> float:
        """10^9 bytes a second."""
        return self.nbytes / self.seconds / 1e9

    def cells(self, total: float) -> tuple[str, ...]:
        """The row of the table; `total`: seconds of all kernels. Faster than memory means that caches were read."""
        numbers = ", ".join(map(number, self.groups[:3])) + (", …" if len(self.groups) > 3 else "")
        times = str(self.calls), f"{self.seconds * 1e6:.1f}", f"{self.seconds / total:.1%}"
        peak = ""
        if self.compute is not None and self.bandwidth is not None:  # the larger share, and of which
            if self.compute >= self.bandwidth:
                peak = f"{self.compute:.0%} compute"
            else:
                peak = f"{self.bandwidth:.0%} memory" if self.bandwidth <= 1 else "from cache"
        speeds = f"{self.gflops:.1f}" if self.flop else "", f"{self.gbytes:.1f}", peak
        return numbers, self.name, self.kind, *times, *speeds


@dataclass(frozen=True)
class Profile:
    """The times of the kernels, in the order in which they run, and of the step; `print` it.

    Attributes:
        rows: one per kernel.
        step: seconds of the whole step as `run` takes it, the median of the runs.
        least_seconds, least_step: of the kernels together and of the step, in the fastest run. If the medians are far
            larger, other programs were running.
        runs: how many were timed.
        threads: how many the kernels ran on.
        peak_gflops, peak_gbytes: the machine's peaks on these threads, see `dlsys.kernels.peak`; None for a GPU.
    """

    rows: tuple[Row, ...]
    step: float
    least_seconds: float
    least_step: float
    runs: int
    threads: int
    peak_gflops: float | None = None
    peak_gbytes: float | None = None

    @property
    def seconds(self) -> float:
        """The sum of the kernels' medians."""
        return sum(row.seconds for row in self.rows)

    def __str__(self) -> str:
        return "\n".join([table(self._kernels(), ALIGN), "", self._totals()])

    def _repr_html_(self) -> str:
        """For Jupyter."""
        return f"{notebook.table(self._kernels(), ALIGN)}\n<pre>{self._totals()}</pre>"

    def _kernels(self) -> list[tuple[str, ...]]:
        """The cells of the table of kernels, with its heading."""
        return [HEAD, *(row.cells(self.seconds) for row in self.rows)]

    def _totals(self) -> str:
        """The text below that table: seconds of all kernels and of the step, and the machine's peaks."""
        totals = [
            ("kernels", self.seconds, self.least_seconds),
            ("step, as run takes it", self.step, self.least_step),
            ("difference", self.step - self.seconds, self.least_step - self.least_seconds),
        ]
        micro = [(name, f"{middle * 1e6:.1f}", f"{least * 1e6:.1f}") for name, middle, least in totals]
        lines = [table([(f"us, of {self.runs} runs", "median", "least"), *micro], "<>>")]
        if self.peak_gflops is not None:
            threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
            peaks = f"{self.peak_gflops:.1f} GFLOP/s, {self.peak_gbytes:.1f} GB/s from memory"
            lines.append(f"peak on {threads}: {peaks}")
        return "\n".join(lines)


def measure(prepare: Callable[[], tuple[Plan, Mapping[Node, Array]]], runs: int) -> Profile:
    """The Profile of `runs` runs, in each of which every kernel is timed alone, and then the step.

    `prepare` returns the plan, and the feeds on its device, as `Executor.run` prepares them. Parameters and arena are
    copies. Raises what `prepare` raises.
    """
    plan, feeds = prepare()
    twin, copies, calls = twin_of(plan, feeds)

    def step() -> None:
        _, feeds = prepare()
        twin.run({**feeds, **copies})

    if plan.ctx.kind != "cpu":  # whose calls return before the work is done
        return profile_of(plan, timed(calls, step, runs, plan.ctx.synchronize), (None, None))
    return profile_of(plan, timed(calls, step, runs), peaks_of(dtype_of(plan)) if calls else (None, None))


@dataclass(frozen=True)
class Times:
    """The seconds of a step and of its kernels.

    Attributes:
        kernels: for each kernel, by its number, the seconds of all its calls in each run.
        idle: for each kernel the seconds of one call that does nothing; 0 for a GPU.
        steps: seconds of the whole step, in each run.
        threads: how many the kernels ran on.
    """

    kernels: list[list[float]]
    idle: list[float]
    steps: list[float]
    threads: int


Called = tuple[Any, Callable[..., object], Sequence[Any]]
"""A call of a step: the kernel's number, its function, its arguments."""


def twin_of(plan: Plan, feeds: Mapping[Node, Array]) -> tuple[Plan, dict[Node, Array], list[Called]]:
    """The plan once more, whose runs change copies of what they write; these copies; and the calls of a run."""
    twin = Plan(plan.program, plan.ctx)
    twin.kernel_of = plan.kernel_of
    written = {parameter for parameter, _ in plan.program.graph.updates}
    copies = {
        node: array(feeds[node].numpy() if node in feeds else node.value, plan.ctx)  # type: ignore[attr-defined]
        for node in plan.given
        if node not in feeds or node in written
    }
    twin._parameters.update(copies)
    given = {**feeds, **copies}
    tensors = [given[node].tensor for node in twin.given]
    functions = [kernel.function for kernel in twin.kernel_of.values()]
    calls: list[Called] = [
        (of, functions[of], arguments_of(call, tensors, twin.arena)) for of, call in unrolled_calls(twin.bound_calls)
    ]
    return twin, copies, calls


def spans_of(
    calls: Iterable[Called], wait: Callable[[], object] | None = None
) -> list[tuple[Any, float, float]]:
    """Makes the calls one by one: of each what it is of, its start, after that of all, and its seconds. `wait`: returns
    when a GPU's work is done."""
    found, begun = [], time.perf_counter()
    for of, function, arguments in calls:
        first = time.perf_counter()
        function(*arguments)
        if wait is not None:
            wait()
        found.append((of, first - begun, time.perf_counter() - first))
    return found


def timed(
    calls: Sequence[Called], step: Callable[[], object], runs: int, wait: Callable[[], object] | None = None
) -> Times:
    """Times each call of a kernel alone, then the step, in each of some runs."""
    last = {at: arguments for at, _, arguments in calls}
    kernels, steps = [[0.0] * (WARM_UP + runs) for _ in last], []
    for run in range(WARM_UP + runs):
        for at, _, seconds in spans_of(calls, wait):
            kernels[at][run] += seconds
        steps.append(spans_of([(None, step, ())], wait)[0][-1])
    nothing = with_compiler("kernels.peak").NOTHING
    idle = [0.0 if wait else median(s for *_, s in spans_of([(at, nothing, last[at])] * 9)) for at in range(len(last))]
    return Times([found[WARM_UP:] for found in kernels], idle, steps[WARM_UP:], get_num_threads())


def arguments_of(call: Call, given: Sequence[Any], arena: Any) -> list[Any]:
    """The arrays that a call takes, of those that a step is given and its arena."""
    memory = [arena if at.base is None else given[at.base] for at in call.places]
    return [view_of(x, at.shape, at.dtype, at.offset) for x, at in zip(memory, call.places, strict=True)]


def profile_of(plan: Plan, times: Times, peaks: tuple[float | None, float | None]) -> Profile:
    """The Profile of a step that was timed, beside the machine's peaks."""
    own: dict[Key, list[float]] = {}  # without the time of the calls
    for key, found, idle in zip(plan.specs, times.kernels, times.idle, strict=True):
        times_called = plan.program.located(key).times
        own[key] = [max(seconds - times_called * idle, LEAST) for seconds in found]
    least = min(map(sum, zip(*own.values(), strict=True)), default=0.0)
    rows = _rows(plan, {key: median(found) for key, found in own.items()}, *peaks)
    steps = times.steps
    return Profile(rows, median(steps), least, min(steps), len(steps), times.threads, *peaks)


def dtype_of(plan: Plan) -> str:
    """The dtype that most of a step's values have."""
    dtypes = [plan.program.graph.dtypes[node] for group in plan.program.groups for node in group.outputs]
    return max(dtypes, key=dtypes.count, default="float32")


def peaks_of(dtype: str) -> tuple[float, float]:
    """This machine's peaks, in GFLOP/s and GB/s."""
    peak, threads = with_compiler("kernels.peak"), get_num_threads()
    return peak.fma_peak(threads, dtype), peak.memory_bandwidth(threads)


def _rows(plan: Plan, seconds: dict[Key, float], gflops: float | None, gbytes: float | None) -> tuple[Row, ...]:
    """The table, from each group's time."""
    program, rows = plan.program, []
    for kernel, keys in kernels_of(plan):
        calls, flop, nbytes = work_of(plan, kernel, keys)
        taken = sum(seconds[key] for key in keys)
        shares = (flop / taken / 1e9 / gflops, nbytes / taken / 1e9 / gbytes) if gflops and gbytes else (None, None)
        kind = program.located(keys[0]).group.kind
        rows.append(Row(tuple(keys), kernel.name, kind, calls, taken, flop, nbytes, *shares))
    return tuple(rows)


def work_of(plan: Plan, kernel: Any, keys: Iterable[Key]) -> tuple[int, int, int]:
    """The number of a kernel's calls in a step at these groups, and their operations and bytes (see `Row`)."""
    calls = flop = 0
    for program, group, times in map(plan.program.located, keys):
        shapes = program.graph.shapes
        flop += times * sum(n.op.flop(n, [shapes[value] for value in n.inputs], shapes[n]) for n in group.nodes)
        calls += times
    return calls, flop, kernel.nbytes * calls
