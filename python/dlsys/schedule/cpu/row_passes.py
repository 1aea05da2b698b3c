"""The passes along long rows: what needs a reduction's result is computed once that is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from .. import common
from ..rows import Rows
from ..stages import Stage


@dataclass(frozen=True)
class Pass:
    """Once along the row.

    Attributes:
        before: stages of one number a row, which it may need.
        along: elementwise stages and reductions along the row.
    """

    before: list[Stage]
    along: list[Stage]


def in_passes(rows: Rows) -> list[Pass] | None:
    """The stages in as few passes as can be: what needs a reduction's result is in a later one. None for stages of
    other lengths.

    A stage is in the last pass that will do: so the last one stores all results, side by side, and those before read
    little but what the next reduction needs."""
    if not rows.fit() or any(len(rows.along(stage)) > 1 for stage in rows.stages):
        return None
    ready: dict[Any, int] = {}  # the pass in which a buffer can be read
    for stage in rows.stages:
        ready[stage.buffer] = _first(stage, ready) + bool(stage.reduced)
    stages = [*rows.stages, *rows.down]
    found = [Pass([], []) for _ in range(1 + max(_first(stage, ready) for stage in stages))]
    last: dict[Any, int] = {}  # the pass in which a buffer has to be read
    for stage in reversed(stages):
        most = len(found) - 1
        if stage.reduced and stage.buffer not in last:  # beside the results' stores there is no room in L1
            most = max(most - 1, _first(stage, ready))
        number = min(most, last.get(stage.buffer, most + 1) - 1) if stage.reduced else last.get(stage.buffer, most)
        for load in stage.loads():
            last[load.source] = min(number, last.get(load.source, number))
        (found[number].along if rows.along(stage) else found[number].before).insert(0, stage)
    return found


def _first(stage: Stage, ready: Mapping[Any, int]) -> int:
    """The first pass in which all can be read that a stage reads."""
    return max((ready[load.source] for load in stage.loads() if load.source in ready), default=0)


def is_costly(stage: Stage, column: Any) -> bool:
    """Whether a stage computes exp, log or their like of each element of a row, not of a number of the row."""
    along, lets, calls = {column}, list[tirx.Let](), list[ir.Call]()
    tvm_ffi.structural_walk(stage.value, [(tirx.Let, lets.append), (ir.Call, calls.append)])

    def varies(expression: Any) -> bool:
        return not along.isdisjoint(tirx.analysis.undefined_vars(expression))

    for item in reversed(lets):  # the outer first
        if varies(item.value):
            along.add(item.var)
    return any(common.is_costly(call) and varies(call) for call in calls)
