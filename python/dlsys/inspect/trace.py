"""A step's kernels over time, and the bytes that live in its arena, in a file that trace viewers open.

The format is the Trace Event Format, as Perfetto (https://ui.perfetto.dev) and chrome://tracing read it: JSON with a
list of events, whose times are in microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..compiler import Plan
from ..devices import Array
from ..errors import DataError
from ..graph import Node
from .profile import WARM_UP, spans_of, twin_of, work_of
from .text import number

Event = dict[str, Any]


def record(prepare: Callable[[], tuple[Plan, Mapping[Node, Array]]], path: Path) -> None:
    """Writes the trace of one run, whose calls are made one by one; see `Executor.trace`."""
    plan, feeds = prepare()
    _, _, calls = twin_of(plan, feeds)
    wait = plan.ctx.synchronize if plan.ctx.kind != "cpu" else None
    for _ in range(WARM_UP):
        spans_of(calls, wait)
    named = [_named("process_name", f"dlsys on {plan.ctx}"), _named("thread_name", "kernels")]
    events = [{**event, "pid": 0, "tid": 0} for event in [*named, *_events(plan, spans_of(calls, wait))]]
    content = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, indent=1)
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from None


def _events(plan: Plan, spans: list[Any]) -> list[Event]:
    """The events of a run. `spans`: for each call the kernel's number, its start, and its seconds."""
    keys, events, position, at = list(plan.kernel_of), list[Event](), -1, 0.0
    for number_of_kernel, first, seconds in spans:
        key = keys[number_of_kernel]
        if key[0] != position:  # the arena changes from group to group
            position = key[0]
            events.append(_event("arena", "C", first, args={"bytes": _live(plan, position)}))
        at = first + seconds
        events.append(_event(plan.kernel_of[key].name, "X", first, dur=_micro(seconds), **_about(plan, key)))
    if spans:
        events.append(_event("arena", "C", at, args={"bytes": _live(plan, position)}))
    return events


def _micro(seconds: float) -> float:
    return round(1e6 * seconds, 3)


def _event(name: str, kind: str, seconds: float, **more: Any) -> Event:
    """An event that begins so many seconds after the run."""
    return {"name": name, "ph": kind, "ts": _micro(seconds), **more}


def _named(what: str, name: str) -> Event:
    return {"name": what, "ph": "M", "args": {"name": name}}


def _live(plan: Plan, position: int) -> int:
    """The bytes of the arena in use while a group runs."""
    return sum(buffer.nbytes for buffer in plan.memory.buffers if buffer.first <= position <= buffer.last)


def _about(plan: Plan, key: Any) -> Event:
    """A call's kind, the key of its group, and its operations and bytes."""
    group, kernel = plan.program.located(key).group, plan.kernel_of[key]
    calls, flop, nbytes = work_of(plan, kernel, [key])
    return {"cat": group.kind, "args": {"group": number(key), "flop": flop // calls, "bytes": nbytes // calls}}
