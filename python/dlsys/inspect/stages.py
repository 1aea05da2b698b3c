"""What an executor shows of the stages from a graph to its run: texts, pictures, code, times."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checks import integer
from ..compiler import Plan, TypedGraph
from ..devices import Array, Context
from ..errors import GraphError
from ..graph import Node
from . import text

if TYPE_CHECKING:
    from .profile import Profile

Shapes = Mapping[Node, Any] | None
"""Of the feeds, see `Executor.infer_shape`; None for those of the latest run."""
Feeds = Mapping[Node, Any]


class Stages:
    """The stages of an executor, which says how a plan is found. All take its lock.

    Texts and pictures are for feeds of the shapes that are passed, or by default of the latest; FeedError is raised if
    none are known yet, and by all but `graph` and `memory_report` DeviceError in the `numpy` context.
    """

    eval_node_list: Sequence[Node]
    ctx: Context
    _lock: threading.RLock
    _current: Plan | None
    _analysed: dict[Plan, TypedGraph]
    plan_for: Callable[..., Plan]
    _prepare: Callable[[Feeds], tuple[Plan, Mapping[Node, Array]]]
    _check_kernels: Callable[[], None]

    def memory_report(self, feed_shapes: Shapes = None) -> str:
        """The text of `plan`, in every context."""
        with self._lock:
            return text.format_plan(self.plan_for(feed_shapes, kernels=False))

    def graph(self, optimized: bool = False, feed_shapes: Shapes = None, *, reasons: bool = False) -> str:
        """The graph as text, one line per node: as the user wrote it, or `optimized`, after the passes, with types, and
        with `reasons` one more line for each change, with its reason."""
        if not optimized:
            return text.format_graph(self.eval_node_list)
        with self._lock:
            plan = self.plan_for(feed_shapes, kernels=False)
            typed = self._analysed[plan] if self.ctx.kind == "numpy" else plan.graph
            return text.format_graph(typed, reasons)

    def groups(self, feed_shapes: Shapes = None, *, reasons: bool = False) -> str:
        """The kernels as text, one line each, in the order in which they run: number, name, kind, what it reads and
        writes; with `reasons` also why nodes share a kernel, and why neighbours do not."""
        with self._lock:
            return text.format_groups(self.plan_for(feed_shapes), reasons)

    def plan(self, feed_shapes: Shapes = None) -> str:
        """The memory plan as text, with the kernels' numbers of `groups`; also which values are views or in a
        parameter's memory."""
        with self._lock:
            return text.format_plan(self.plan_for(feed_shapes))

    def script(self, kernel: int | str | None = None, feed_shapes: Shapes = None) -> str:
        """The calls of a run and the loops of all kernels as TVMScript; or the loops of one, by its number or name in
        `groups`. Raises GraphError for an unknown kernel."""
        with self._lock:
            return text.format_script(self.plan_for(feed_shapes), kernel)

    def source(self, form: str = "asm", kernel: int | str | None = None, feed_shapes: Shapes = None) -> str:
        """The generated code of all kernels or one (see `script`): "asm" (machine code), "ll" (LLVM IR); for a GPU
        "cuda" and "ptx". Raises GraphError for an unknown kernel, KernelArgumentError for another form."""
        with self._lock:
            return text.format_source(self.plan_for(feed_shapes), form, kernel)

    def draw(self, path: Any, feed_shapes: Shapes = None) -> None:
        """Draw the kernels and the values between them into a file, .svg or .png. Raises GraphError for another suffix,
        or a graph too large for a picture."""
        from . import draw

        with self._lock:
            draw.draw_graph(self.plan_for(feed_shapes), path)

    def draw_memory(self, path: Any, feed_shapes: Shapes = None) -> None:
        """Draw the arena into a file: kernels across, bytes up, a box for each value. See `draw`."""
        from . import draw

        with self._lock:
            draw.draw_memory(self.plan_for(feed_shapes), path)

    def _repr_svg_(self) -> str | None:
        """The picture of `draw` for the latest signature, for Jupyter; None where there is none."""
        from . import draw

        with self._lock:
            if self._current is None or self.ctx.kind == "numpy":
                return None
            stream = io.BytesIO()
            try:
                draw.draw_graph(self._current, stream)
            except GraphError:  # too large
                return None
            return stream.getvalue().decode()

    def profile(self, feed_dict: Feeds, runs: int = 20) -> Profile:
        """The times of every kernel and of the whole step; `print` the result, or use its `rows`. The runs write copies
        of the parameters. Raises what `run` raises, and GraphError for a number of runs that is not positive."""
        from .profile import measure

        runs = integer("profile", "the number of runs", runs, 1)
        with self._lock:
            self._check_kernels()
            return measure(lambda: self._prepare(feed_dict), runs)

    def trace(self, path: Any, feed_dict: Feeds) -> None:
        """Write a step's kernels over time, each call with its kind, group, operations and bytes, and the bytes in use
        in the arena, as a JSON file for https://ui.perfetto.dev or chrome://tracing; the times are those of `profile`.
        Raises what `run` raises, and DataError for a path that cannot be written."""
        from . import trace
        from .profile import timed

        with self._lock:
            self._check_kernels()
            plan, calls, _ = timed(lambda: self._prepare(feed_dict), runs=20)
            trace.record(plan, calls, Path(path))
