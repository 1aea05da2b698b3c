"""A step's kernels and messages over time, and the bytes that live in its arena, in a file that trace viewers open.

The format is the Trace Event Format, as Perfetto (https://ui.perfetto.dev) and chrome://tracing read it: JSON with a
list of events, whose times are in microseconds. Each rank of a group is a process of it; a message is a flow, an arrow
from where it was started to where it was waited for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .. import distributed
from ..compiler import Plan
from ..devices import Array
from ..errors import DataError
from ..graph import Node
from .profile import WARM_UP, spans_of, twin_of, work_of
from .text import number

FLOW = "message"
Event = dict[str, Any]


def record(prepare: Callable[[], tuple[Plan, Mapping[Node, Array]]], path: Path) -> None:
    """Writes the trace of one run, whose calls are made one by one; see `Executor.trace`."""
    plan, feeds = prepare()
    _, _, calls = twin_of(plan, feeds)
    wait = plan.ctx.synchronize if plan.ctx.kind != "cpu" else None
    for _ in range(WARM_UP):
        spans_of(calls, wait)
    distributed.barrier()  # the ranks' clocks begin together
    spans = spans_of(calls, wait)
    events = _of_all_ranks([_named("thread_name", "kernels"), *_events(plan, spans)], plan)
    if distributed.rank() == 0:
        content = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, indent=1)
        try:
            path.write_text(content, encoding="utf-8")
        except OSError as error:
            raise DataError(f"{path} cannot be written: {error.strerror or error}") from None


def _events(plan: Plan, spans: list[Any]) -> list[Event]:
    """The events of one rank. `spans`: for each call the kernel's number or the message's, its start, and its seconds.
    Calls that only test messages have none."""
    keys, events, position, at = list(plan.kernel_of), list[Event](), -1, 0.0
    groups = plan.program.groups
    of_message = {group.nodes[0]: i for i, group in enumerate(groups) if group.kind == "communication"}
    for of, first, seconds in spans:
        node = None if isinstance(of, int) else of.of
        if not isinstance(of, int) and node is None:
            continue
        key = (of_message[node],) if node is not None else keys[of]
        if key[0] != position:  # the arena changes from group to group
            position = key[0]
            events.append(_event("arena", "C", first, args={"bytes": _live(plan, position)}))
        at = first + seconds
        if node is None:
            events.append(_event(plan.kernel_of[key].name, "X", first, dur=_micro(seconds), **_about(plan, key)))
            continue
        ends = len(node.inputs) > 1
        told = {"group": number(key), "bytes": plan.program.nbytes(node), "carries": ", ".join(node.attrs["carries"])}
        about = {"cat": "communication", "args": {**told, "exchange": node.attrs["exchange"]}}
        events.append(_event(groups[position].name, "X", first, dur=_micro(seconds), **about))
        flow = {"cat": FLOW, "id": node.attrs["number"], **({"bp": "e"} if ends else {})}  # bp: the slice around
        events.append(_event(f"bucket_{node.attrs['number']}", "f" if ends else "s", first + seconds / 2, **flow))
    if spans:
        events.append(_event("arena", "C", at, args={"bytes": _live(plan, position)}))
    return events


def _of_all_ranks(own: list[Event], plan: Plan) -> list[Event]:
    """The events of all ranks, each of which is a process of one thread; flows have numbers of their own."""
    ranks, messages = [own], sum(group.kind == "communication" for group in plan.program.groups) // 2
    if distributed.size() > 1:
        text = np.frombuffer(json.dumps(own).encode(), np.uint8)
        padding = distributed.all_reduce(len(text), "max") - len(text)
        texts = distributed.all_gather(np.pad(text, (0, padding), constant_values=ord(" ")))
        ranks = [json.loads(bytes(found)) for found in np.split(texts, distributed.size())]
    events = []
    for rank, of_rank in enumerate(ranks):
        told = f"dlsys on {plan.ctx}" if len(ranks) == 1 else f"rank {rank}, dlsys on {plan.ctx}"
        for event in [_named("process_name", told), *of_rank]:
            flow = {"id": event["id"] + rank * messages} if "id" in event else {}
            events.append({**event, "pid": rank, "tid": rank, **flow})
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
