"""Where a step's time goes: each kernel's time, operations and bytes, beside the machine's peaks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..compiler import Key, Plan
from ..devices import Array, copied, get_num_threads, view_of
from ..graph import Node
from ..kernels import unrolled_calls
from ..ops.state import array_on
from ..planner import table
from ..tvm_import import with_compiler
from .text import kernels_of, number

HEAD = ("", "kernel", "kind", "calls", "us", "share", "GFLOP/s", "of peak", "GB/s")
ALIGN = "><<>>>>>>"
WARM_UP = 2  # runs that are not counted: pages are touched, the clock rises
LEAST = 1e-8  # seconds; a shorter time cannot be told from that of the call

Prepare = Callable[[], tuple[Plan, Mapping[Node, Array]]]
"""Returns the plan, and the feeds on its device, as `Executor.run` prepares them."""


@dataclass(frozen=True)
class Row:
    """A kernel in a step, with all its calls, if several groups have the same kernel.

    Attributes:
        groups: the keys of the groups that it computes.
        name, kind: the kernel's name, and its groups' kind.
        calls: how often it is called in a step.
        flop: operations of the products in its calls, a multiply-add being two; 0 without products.
        nbytes: bytes that its calls read and write, each input and output counted once.
        seconds: of all its calls in a step, without the time of calling it from Python.
    """

    groups: tuple[Key, ...]
    name: str
    kind: str
    calls: int
    flop: int
    nbytes: int
    seconds: float

    @property
    def gflops(self) -> float:
        """10^9 operations a second."""
        return self.flop / self.seconds / 1e9

    @property
    def gbytes(self) -> float:
        """10^9 bytes a second."""
        return self.nbytes / self.seconds / 1e9


@dataclass(frozen=True, repr=False)
class Profile:
    """The times of the kernels, in the order in which they run, and of the step; `print` it.

    Attributes:
        rows: one per kernel.
        step: seconds of the whole step as `run` takes it. All times are medians of the runs.
        runs: how many were timed.
        threads: how many the kernels ran on.
        peak_gflops, peak_gbytes: the machine's peaks on these threads, see `dlsys.kernels.peak`; None for a GPU.
    """

    rows: tuple[Row, ...]
    step: float
    runs: int
    threads: int
    peak_gflops: float | None = None
    peak_gbytes: float | None = None

    @property
    def seconds(self) -> float:
        """The sum of the kernels' times."""
        return sum(row.seconds for row in self.rows)

    def __str__(self) -> str:
        """The table of the kernels; below it the sums, the step, and the peaks."""
        cells, peak = [HEAD], self.peak_gflops
        for row in self.rows:
            groups = ", ".join(map(number, row.groups[:3])) + (", …" if len(row.groups) > 3 else "")
            times = str(row.calls), f"{row.seconds * 1e6:.1f}", f"{row.seconds / self.seconds:.1%}"
            of_peak = f"{row.gflops / peak:.0%}" if peak and row.flop else ""
            speed = f"{row.gflops:.1f}" if row.flop else "", of_peak, f"{row.gbytes:.1f}"
            cells.append((groups, row.name, row.kind, *times, *speed))
        nbytes, threads = sum(row.nbytes for row in self.rows), f"{self.threads} thread{'s' * (self.threads > 1)}"
        return (
            f"{table(cells, ALIGN)}\n\n"
            f"kernels {self.seconds * 1e6:.1f} us, {nbytes / 1e6:.1f} MB read and written\n"
            f"step as run takes it {self.step * 1e6:.1f} us; medians of {self.runs} runs on {threads}"
            + (f"\npeak {peak:.1f} GFLOP/s, {self.peak_gbytes:.1f} GB/s from memory" if peak else "")
        )

    __repr__ = __str__  # which Jupyter shows


def measure(prepare: Prepare, runs: int) -> Profile:
    """The Profile of so many runs. Raises what `prepare` raises."""
    plan, calls, step = timed(prepare, runs)
    threads, peaks, rows = get_num_threads(), (None, None), []
    for kernel, keys in kernels_of(plan):
        seconds, kind = sum(taken for key, taken in calls if key in keys), plan.located(keys[0])[0].kind
        rows.append(Row(tuple(keys), kernel.name, kind, *work_of(plan, kernel, keys), seconds))
    if plan.ctx.kind == "cpu" and calls:
        peak = with_compiler("kernels.peak")
        dtypes = [node.dtype for group in plan.groups for node in group.outputs]
        peaks = peak.fma_peak(threads, max(dtypes, key=dtypes.count)), peak.memory_bandwidth(threads)
    return Profile(tuple(rows), step, runs, threads, *peaks)


def timed(prepare: Prepare, runs: int) -> tuple[Plan, list[tuple[Key, float]], float]:
    """The plan; for each call of a step the key of its group and its seconds, timed alone; the seconds of the step. All
    are medians of so many runs, which write copies of the parameters and an arena of their own."""
    plan, feeds = prepare()
    fed = {leaf: node for node, leaf in plan.leaves.items()}
    twin = replace(plan, arena=None, leaves={leaf: leaf for leaf in plan.given})  # whose parameters are fed, too
    twin.kernel_of = plan.kernel_of
    copies = {leaf: copied(feeds[fed[leaf]] if leaf in fed else array_on(leaf, plan.ctx)) for leaf in plan.given}
    given, kernels, calls = [copies[leaf].tensor for leaf in plan.given], list(plan.kernel_of.items()), []
    for position, call in unrolled_calls(twin.bound_calls):
        memory = [twin.tensor if at.base is None else given[at.base] for at in call.places]
        arguments = [view_of(x, at.shape, at.dtype, at.offset) for x, at in zip(memory, call.places, strict=True)]
        calls.append((kernels[position][0], kernels[position][1].function, arguments))

    def seconds(function: Callable[..., object], arguments: Sequence[Any]) -> float:
        begin = time.perf_counter()
        function(*arguments)
        if plan.ctx.kind != "cpu":  # whose calls return before the work is done
            plan.ctx.synchronize()
        return time.perf_counter() - begin

    times = []
    for _ in range(WARM_UP + runs):
        alone = [seconds(function, arguments) for _, function, arguments in calls]
        times.append([*alone, seconds(lambda: (prepare(), twin.run(copies, checks=False)), ())])
    *alone, whole = np.median(times[WARM_UP:], axis=0).tolist()
    if plan.ctx.kind == "cpu":
        nothing = with_compiler("kernels.peak").NOTHING  # whose time is that of the call
        idle = [np.median([seconds(nothing, arguments) for _ in range(9)]) for *_, arguments in calls]
        alone = np.maximum(np.subtract(alone, idle), LEAST).tolist()
    return plan, list(zip([key for key, *_ in calls], alone, strict=True)), whole


def work_of(plan: Plan, kernel: Any, keys: Iterable[Key]) -> tuple[int, int, int]:
    """The number of a kernel's calls in a step at these groups, and their operations and bytes (see `Row`)."""
    calls = flop = 0
    for group, times in map(plan.located, keys):
        for node in group.nodes:
            flop += times * node.op.flop(node, [value.shape for value in node.inputs], node.shape)
        calls += times
    return calls, flop, kernel.nbytes * calls
