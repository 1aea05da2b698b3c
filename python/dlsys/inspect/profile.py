"""Where a step's time goes: each kernel's time, operations and bytes, compared with the machine's peaks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from .. import timing
from ..compiler import Key, Plan, is_message
from ..devices import Array, array, get_num_threads, view_of
from ..errors import GraphError
from ..graph import Node
from ..kernels import Callback, each_call, unrolled_calls
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
        name, kind: the kernel's name, and its groups' kind, with what a search has gained.
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
        rows: one per kernel, then one per message of a group of processes: the seconds for which it is waited.
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
    copies. Raises GraphError for a number of runs that is not positive, and what `prepare` raises.
    """
    if isinstance(runs, bool) or not isinstance(runs, int) or runs < 1:
        raise GraphError(f"profile: the number of runs must be a positive integer, not {runs!r}")
    plan, feeds = prepare()
    twin = Plan(plan.program, plan.ctx)
    twin.kernel_of = plan.kernel_of
    written = {parameter for parameter, _ in plan.program.graph.updates}
    copies = {
        node: array(feeds[node].numpy() if node in feeds else node.value, plan.ctx)  # type: ignore[attr-defined]
        for node in plan.given
        if node not in feeds or node in written
    }
    twin._parameters.update(copies)
    tensors = {node: value.tensor for node, value in {**feeds, **copies}.items()}
    bound_calls = twin.bound_calls
    kernels = iter(plan.kernel_of.items())
    made = [None if isinstance(call, Callback) else next(kernels) for call in each_call(bound_calls)]
    calls = []
    for position, call in unrolled_calls(bound_calls):
        if (kernel := made[position]) is None:
            continue
        memory = [twin.arena if at.base is None else tensors[twin.given[at.base]] for at in call.places]
        arguments = [view_of(x, at.shape, at.dtype, at.offset) for x, at in zip(memory, call.places, strict=True)]
        calls.append((kernel[0], partial(kernel[1].function, *arguments), arguments))
    wait = plan.ctx.synchronize if plan.ctx.kind != "cpu" else lambda: None

    def seconds_of(call: Callable[[], object]) -> float:
        return timing.seconds(lambda _: (call(), wait()))

    def step() -> None:
        _, feeds = prepare()
        twin.run({**feeds, **copies})

    times: dict[Key, list[float]] = {key: [0.0] * (WARM_UP + runs) for key in plan.kernel_of}
    steps: list[float] = []
    waits: list[dict[int, float]] = []  # how long each message was waited for
    for run in range(WARM_UP + runs):
        for key, bound, _ in calls:
            times[key][run] += seconds_of(bound)
        steps.append(seconds_of(step))
        waits.append({} if twin.exchange is None else dict(twin.exchange.seconds))
    own: dict[Key, list[float]] = {}  # without the time of the calls; divided by the threads that call at once
    nothing = with_compiler("kernels.peak").NOTHING
    idle = {key: partial(nothing, *arguments) for key, _, arguments in calls}
    for key, found in times.items():
        at = plan.program.located(key)  # a GPU's calls return before the work is done
        cost = at.times * median(seconds_of(idle[key]) for _ in range(9)) if plan.ctx.kind == "cpu" else 0.0
        own[key] = [max(seconds - cost, LEAST) / at.threads for seconds in found[WARM_UP:]]
    least = min(map(sum, zip(*own.values(), strict=True)), default=0.0)
    rows, peaks = _rows(plan, {key: median(found) for key, found in own.items()})
    rows += _messages(plan, waits[WARM_UP:])
    return Profile(rows, median(steps[WARM_UP:]), least, min(steps[WARM_UP:]), runs, get_num_threads(), *peaks)


def _rows(plan: Plan, seconds: dict[Key, float]) -> tuple[tuple[Row, ...], tuple[float | None, float | None]]:
    """The table, from each group's time, and the machine's peaks."""
    program, threads = plan.program, get_num_threads()
    dtypes = [program.graph.dtypes[node] for group in program.groups for node in group.outputs]
    dtype = max(dtypes, key=dtypes.count, default="float32")
    known = plan.ctx.kind == "cpu" and bool(seconds)
    peak = with_compiler("kernels.peak")
    gflops, gbytes = (peak.fma_peak(threads, dtype), peak.memory_bandwidth(threads)) if known else (None, None)
    rows = []
    for kernel, keys in kernels_of(plan):
        calls, flop, nbytes = work_of(plan, kernel, keys)
        taken = sum(seconds[key] for key in keys)
        shares = (flop / taken / 1e9 / gflops, nbytes / taken / 1e9 / gbytes) if gflops and gbytes else (None, None)
        kind = program.located(keys[0]).group.kind + (f", {kernel.spec.choice}" if kernel.spec.choice else "")
        rows.append(Row(tuple(keys), kernel.name, kind, calls, taken, flop, nbytes, *shares))
    return tuple(rows), (gflops, gbytes)


def _messages(plan: Plan, waits: Sequence[Mapping[int, float]]) -> tuple[Row, ...]:
    """A row for each message that a step waits for. `waits`: the seconds in each run, by the messages' numbers."""
    ends = [(i, group) for i, group in enumerate(plan.program.groups) if is_message(group, ends=True)]
    rows = []
    for position, group in ends:
        (node,) = group.nodes
        seconds = max(median(run[node.attrs["number"]] for run in waits), LEAST)
        rows.append(Row(((position,),), group.name, group.kind, 1, seconds, 0, plan.program.nbytes(node)))
    return tuple(rows)


def work_of(plan: Plan, kernel: Any, keys: Iterable[Key]) -> tuple[int, int, int]:
    """The number of a kernel's calls in a step at these groups, and their operations and bytes (see `Row`)."""
    calls = flop = 0
    for program, group, times, _ in map(plan.program.located, keys):
        shapes = program.graph.shapes
        flop += times * sum(n.op.flop(n, [shapes[value] for value in n.inputs], shapes[n]) for n in group.nodes)
        calls += times
    return calls, flop, kernel.nbytes * calls
