"""A step's kernels over time, and the bytes that live in its arena, in a file that trace viewers open.

The format is the Trace Event Format, as Perfetto (https://ui.perfetto.dev) and chrome://tracing read it: JSON with a
list of events, whose times are in microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..compiler import Key, Plan
from ..errors import DataError
from .profile import work_of
from .text import number


def record(plan: Plan, calls: Sequence[tuple[Key, float]], path: Path) -> None:
    """Write the calls of a step, one after the other, each with its seconds. Raises DataError for a path that cannot be
    written."""
    events: list[dict[str, Any]] = [{"name": "process_name", "ph": "M", "args": {"name": f"dlsys on {plan.ctx}"}}]
    now = 0.0
    for key, seconds in calls:
        (group, _), kernel = plan.located(key), plan.kernel_of[key]
        count, flop, nbytes = work_of(plan, kernel, [key])
        about = {"group": number(key), "flop": flop // count, "bytes": nbytes // count}
        times = {"ts": round(now, 3), "dur": round(1e6 * seconds, 3)}
        in_use = sum(buffer.nbytes for buffer in plan.memory.buffers if buffer.first <= key[0] <= buffer.last)
        events.append({"name": "arena", "ph": "C", "ts": times["ts"], "args": {"bytes": in_use}})
        events.append({"name": kernel.name, "ph": "X", "cat": group.kind, "args": about, **times})
        now += 1e6 * seconds
    content = {"traceEvents": [{**event, "pid": 0, "tid": 0} for event in events], "displayTimeUnit": "ms"}
    try:
        path.write_text(json.dumps(content, indent=1), encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from None
