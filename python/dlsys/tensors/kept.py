"""Compiled traces on disk, beside their kernels: the next process runs them without planning.

A trace's plan depends on its entries, on the numbers that are part of it, on what `build` is given besides, on the
machine, and on the sources of dlsys: the hash of all of these is its key. Traces that have more are not kept: operators
of the user's, attributes that are objects. Kernels are a plan's own where its shapes are the first of their graph, and
ones for many numbers of rows later (`kernels.rows`), so a plan with such kernels is taken only where as many other
shapes were met before: what always has the same shape runs kernels for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..compiler import Arena, Plan
from ..compiler.records import RecordedPlan, read_record, record_of
from ..devices import Context
from ..graph import Node
from ..kernels import disk, functions_on_disk, note_members, target_name, tunes
from ..scopes import scopes

if TYPE_CHECKING:
    from .trace import Trace

LEAST = 16  # nodes of a trace that is kept: smaller ones are planned as fast as a file is written
SOURCES: tuple[str, ...] = (
    *disk.SOURCES, "compiler", "tensors",
    "executor.py", "gradients.py", "graph.py", "node.py", "planner.py", "scopes.py",
)  # fmt: skip
"""The parts of the package that decide a plan."""
PLAIN = (int, float, bool, str, bytes, type(None))


def key_of(trace: Trace, ctx: Context, key: object, numbers: Sequence[str | None]) -> str | None:
    """The key under which a trace is kept that is compiled for such numbers; None for one that is not. `key`: what else
    its result depends on."""
    if len(trace.place) < LEAST or ctx.kind != "cpu" or tunes() or not scopes.own_schedules:
        return None
    if disk.cache_directory() is None:
        return None
    if not all(node.op.builtin and all(map(is_plain, node.attrs.values())) for node in trace.place):
        return None
    leaves = {place for place, _ in trace.leaves}
    entries = [one if at in leaves else (one[0].name, *one[1:]) for at, one in enumerate(trace.entries)]
    return disk.key("trace", key, entries, numbers, target_name("llvm").text, sources=SOURCES)


def is_plain(value: Any) -> bool:
    """Whether a value's text says all of it, also in another process."""
    return type(value) in PLAIN or (type(value) in (tuple, list) and all(map(is_plain, value)))


def load(key: str, ctx: Context, arena: Arena, shapes: int) -> RecordedPlan | None:
    """The plan that is kept under a key; None for none, or where a kernel is missing. `shapes`: how many other sets of
    shapes of its graph the process has met."""
    if (text := disk.content(key)) is None:
        return None
    try:
        record = read_record(text)
    except (TypeError, ValueError):
        return None
    if record.after > shapes or (functions := functions_on_disk(record.kernels)) is None:
        return None
    note_members(record.members, key)
    return RecordedPlan(record, functions, ctx, arena)


def save(key: str, plan: Plan, variables: Sequence[Node], left: object) -> None:
    """Keeps a plan that was compiled, if it can be, with what belongs to it."""
    record = record_of(plan, variables, left)
    if record is not None:
        disk.keep_content(key, record.text())
