"""A step's kernels over time, and the bytes that live in its arena, in a file that trace viewers open.

The format is the Trace Event Format, as Perfetto (https://ui.perfetto.dev) and chrome://tracing read it: JSON with a
list of events, whose times are in microseconds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..compiler import Plan
from ..devices import Array
from ..graph import Node
from .profile import WARM_UP, twin_of, work_of
from .text import number

PROCESS, KERNELS = 0, 0  # the numbers of the viewer's only process, and of its row of kernels


def record(prepare: Callable[[], tuple[Plan, Mapping[Node, Array]]], path: Path) -> None:
    """Writes the trace of one run, whose kernels are called one by one; see `Executor.trace`."""
    plan, feeds = prepare()
    _, _, calls = twin_of(plan, feeds)
    wait = plan.ctx.synchronize if plan.ctx.kind != "cpu" else lambda: None
    for _ in range(WARM_UP):
        for _, function, arguments in calls:
            function(*arguments)
    wait()
    keys, spans, begun = list(plan.kernel_of), [], time.perf_counter()
    for at, function, arguments in calls:
        first = time.perf_counter()
        function(*arguments)
        wait()
        spans.append((keys[at], first - begun, time.perf_counter() - first))
    events = [_named("process_name", "dlsys on " + str(plan.ctx)), _named("thread_name", "kernels")]
    position = -1
    for key, first, seconds in spans:
        if key[0] != position:  # the arena changes from group to group
            position = key[0]
            events.append(_event("arena", "C", first, args={"bytes": _live(plan, position)}))
        events.append(_event(plan.kernel_of[key].name, "X", first, dur=_micro(seconds), **_about(plan, key)))
    if spans:
        _, first, seconds = spans[-1]
        events.append(_event("arena", "C", first + seconds, args={"bytes": _live(plan, position)}))
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, indent=1), encoding="utf-8")


def _micro(seconds: float) -> float:
    return round(1e6 * seconds, 3)


def _event(name: str, kind: str, seconds: float, **more: Any) -> dict[str, Any]:
    """An event that begins so many seconds after the run."""
    return {"name": name, "ph": kind, "ts": _micro(seconds), "pid": PROCESS, "tid": KERNELS, **more}


def _named(what: str, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": PROCESS, "tid": KERNELS, "args": {"name": name}}


def _live(plan: Plan, position: int) -> int:
    """The bytes of the arena in use while a group runs."""
    return sum(buffer.nbytes for buffer in plan.memory.buffers if buffer.first <= position <= buffer.last)


def _about(plan: Plan, key: Any) -> dict[str, Any]:
    """A call's kind, the key of its group, and its operations and bytes."""
    group, kernel = plan.program.located(key).group, plan.kernel_of[key]
    calls, flop, nbytes = work_of(plan, kernel, [key])
    return {"cat": group.kind, "args": {"group": number(key), "flop": flop // calls, "bytes": nbytes // calls}}
