"""The passes along long rows: what needs a reduction's result is computed once that is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from .. import common
from ..row_stages import Rows
from ..stages import Expr, Stage, size
from ..sums import is_plain


@dataclass(frozen=True)
class Pass:
    """Once along the row.

    Attributes:
        before: stages of one number a row, which it may need.
        along: elementwise stages and reductions along the row.
    """

    before: list[Stage]
    along: list[Stage]


def in_passes(rows: Rows, down: Sequence[Stage]) -> list[Pass] | None:
    """The stages in as few passes as can be: what needs a reduction's result is in a later one. None for stages of
    other lengths. `down`: sums down the columns.

    A stage is in the last pass that will do: so the last one stores all results, side by side, and those before read
    little but what the next reduction needs."""
    rank, ready = len(rows.shape), dict[Any, int]()  # the pass in which a buffer can be read
    stages: list[tuple[Stage, bool]] = []  # and whether it runs along the row
    for stage in rows.stages:
        columns = [v for v in (*stage.spatial[rank:], *stage.reduced) if int(v.dom.extent) > 1]
        numbers = size(stage.spatial[rank:])
        if stage.reduced:
            fits = numbers == 1 and size(stage.reduced) == rows.length and is_plain(stage)
        else:
            fits = numbers in (1, rows.length)
        if (
            not fits
            or len(columns) > 1
            or not all(_in_row(load, rank, columns, ready) for load in stage.loads())
        ):
            return None
        stages.append((stage, bool(columns)))
        ready[stage.buffer] = _first(stage, ready) + bool(stage.reduced)
    if not all(_in_row(load, rank, [stage.spatial[-1]], ready) for stage in down for load in stage.loads()):
        return None
    stages += [(stage, True) for stage in down]
    found = [Pass([], []) for _ in range(1 + max(_first(stage, ready) for stage, _ in stages))]
    last: dict[Any, int] = {}  # the pass in which a buffer has to be read
    for stage, along in reversed(stages):
        most = len(found) - 1
        if stage.reduced and stage.buffer not in last:  # beside the results' stores there is no room in L1
            most = max(most - 1, _first(stage, ready))
        number = (
            min(most, last.get(stage.buffer, most + 1) - 1) if stage.reduced else last.get(stage.buffer, most)
        )
        for load in stage.loads():
            last[load.source] = min(number, last.get(load.source, number))
        (found[number].along if along else found[number].before).insert(0, stage)
    return found


def _first(stage: Stage, ready: Mapping[Any, int]) -> int:
    """The first pass in which all can be read that a stage reads."""
    return max((ready[load.source] for load in stage.loads() if load.source in ready), default=0)


def _in_row(load: Expr, rank: int, columns: list[tirx.IterVar], inside: Any) -> bool:
    """Whether a load from another stage reads the column being computed, or one number a row."""
    if load.source not in inside:
        return True
    return all(
        int(extent) == 1 or (columns and index.same_as(columns[0].var))
        for index, extent in zip(load.indices[rank:], list(load.source.shape)[rank:], strict=True)
    )


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
