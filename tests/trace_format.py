"""The Trace Event Format (N. Duca, D. Sinclair: "Trace Event Format", "Event Descriptions"), as far as traces of a step
use it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

FIELDS = {
    "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"},
    "C": {"name", "ph", "ts", "pid", "tid", "args"},
    "M": {"name", "ph", "pid", "tid", "args"},
}


def events_of(path: Path) -> list[dict[str, Any]]:
    """The events of a file. Slices of a thread do not overlap."""
    document = json.loads(path.read_text(encoding="utf-8"))
    assert set(document) == {"traceEvents", "displayTimeUnit"} and document["displayTimeUnit"] in ("ms", "ns")
    events = document["traceEvents"]
    slices: dict[Any, list[Any]] = {}
    for event in events:
        assert set(event) == FIELDS[event["ph"]], event
        assert all(isinstance(event.get(key, 0), int) for key in ("pid", "tid"))
        assert all(isinstance(event.get(key, 0.0), float) and event.get(key, 0) >= 0 for key in ("ts", "dur"))
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name") and isinstance(event["args"]["name"], str)
        if event["ph"] == "C":
            assert all(isinstance(value, (int, float)) for value in event["args"].values())
        if event["ph"] == "X":
            slices.setdefault((event["pid"], event["tid"]), []).append(event)
    for of_thread in slices.values():
        for first, second in pairwise(of_thread):
            assert first["ts"] + first["dur"] <= second["ts"] + 0.01, (first, second)  # rounded
    return events
