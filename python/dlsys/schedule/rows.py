"""Stages that share rows, found by structure, and what belongs to a row of each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx

from . import common
from .codegen import unravelled
from .stages import Expr, Stage, extents, kept, size


@dataclass(frozen=True)
class Rows:
    """A function's stages: those that run over rows of a `shape`, the axes that are not summed, and read nothing of
    another row; the `rest` after them, of which the sums `down` all rows are computed with the rows."""

    shape: tuple[int, ...]
    stages: tuple[Stage, ...]
    rest: tuple[Stage, ...]
    down: tuple[Stage, ...] = ()

    @property
    def count(self) -> int:
        """Number of rows."""
        return math.prod(self.shape)

    @property
    def length(self) -> int:
        """Elements of the longest row."""
        return max(size(self._over(stage)[1]) for stage in self.stages)

    @property
    def work(self) -> int:
        """Simple operations of the rows' stages."""
        return sum(size(s.iters) * common.operations(s.value) for s in self.stages)

    def _over(self, stage: Stage) -> tuple[list[tirx.IterVar], list[tirx.IterVar]]:
        """The iterators of a stage that count rows, and the others."""
        if stage in self.down:
            return stage.reduced, stage.spatial
        rank = len(self.shape)
        return stage.spatial[:rank], [*stage.spatial[rank:], *stage.reduced]

    def along(self, stage: Stage) -> list[tirx.IterVar]:
        """The iterators of a stage that run along a row; none where it has one number a row."""
        return [v for v in self._over(stage)[1] if int(v.dom.extent) > 1]

    def is_cheap(self, stage: Stage) -> bool:
        """Whether a stage takes less time than its row's way to L1 and back: arithmetic of one other row."""
        along = {v.var for v in self.along(stage)}

        def varies(expression: Any) -> bool:
            return not along.isdisjoint(tirx.analysis.undefined_vars(expression))

        for item in reversed(common.found_in(stage.value, tirx.Let)):  # the outer first
            if varies(item.value):
                along.add(item.var)
        calls = filter(varies, common.found_in(stage.value, ir.Call))
        read = {load.source for load in stage.loads() if any(map(varies, load.indices))}
        return len(read) == 1 and not any(map(common.is_costly, calls))

    def names(self, stage: Stage, row: Sequence[Expr], column: Expr) -> dict[Any, Expr]:
        """The values of a stage's iterators at a column of a row."""
        over, others = self._over(stage)
        along = self.along(stage)
        names = {v.var: at for v, at in zip(over, row, strict=True)} | {v.var: tirx.const(0, "int32") for v in others}
        places = unravelled(column, extents(along)) if along else []
        return names | {v.var: at for v, at in zip(along, places, strict=True)}

    def kept(self, results: Iterable[Any]) -> set[Any]:
        """The buffers that the rows' stages must store: results, and what later stages read."""
        return kept(self.stages, [stage for stage in self.rest if stage not in self.down], set(results))

    def fit(self) -> bool:
        """Whether stages have one number a row or its length, and read of others their own column."""
        inside, rank = {stage.buffer for stage in self.stages}, len(self.shape)

        def at_own_column(load: Expr, along: Sequence[tirx.IterVar]) -> bool:
            wide = zip(load.indices[rank:], load.source.shape[rank:], strict=True)
            own = [index for index, extent in wide if int(extent) > 1]
            return len(own) in (0, len(along)) and all(i.same_as(v.var) for i, v in zip(own, along, strict=False))

        def has_length(stage: Stage) -> bool:
            numbers = size(stage.spatial[rank:])
            if stage.reduced:
                return numbers == 1 and size(stage.reduced) == self.length and stage.is_plain
            return numbers in (1, self.length)

        loads = ((x, self.along(s)) for s in (*self.stages, *self.down) for x in s.loads() if x.source in inside)
        return all(at_own_column(*one) for one in loads) and all(map(has_length, self.stages))


def find_rows(stages: Sequence[Stage]) -> Rows | None:
    """The rows of stages with a reduction along the last axis of what it reads; None where there is none, or where
    it reads a stage that has no such rows, as a product with a constant does."""
    shape = next((found for stage in stages if (found := _summed_rows(stage)) is not None), None)
    if not shape:
        return None
    inside: dict[Any, Stage] = {}
    rest: list[Stage] = []
    for stage in stages:
        if _runs_over(stage, shape, inside, {other.buffer for other in rest}):
            inside[stage.buffer] = stage
        else:
            rest.append(stage)
    return Rows(shape, tuple(inside.values()), tuple(rest)) if inside else None


def _summed_rows(stage: Stage) -> tuple[int, ...] | None:
    """The shape of the rows that a reduction leaves of what it reads."""
    if len(stage.reduced) != 1:
        return None
    (term,) = stage.reduced
    for load in stage.loads():
        if not load.indices:
            continue  # one number for all rows
        *outer, last = load.indices
        own = stage.spatial[: len(outer)]
        if last.same_as(term.var) and all(i.same_as(v.var) for i, v in zip(outer, own, strict=True)):
            return extents(own)
    return None


def _runs_over(stage: Stage, shape: tuple[int, ...], inside: dict[Any, Stage], outside: set[Any]) -> bool:
    """Whether the stage runs over the rows, and takes from other stages what belongs to its own row."""
    rank, spatial = len(shape), stage.spatial
    if extents(spatial[:rank]) != shape or len(stage.iters) != len(spatial) + len(stage.reduced):
        return False
    terms = {v.var for v in stage.reduced}
    for load in stage.loads():
        if load.source in outside or not terms.isdisjoint(load.indices[:-1]):  # a sum down the columns of a square
            return False
        own = zip(load.indices[:rank], spatial, shape, strict=False)
        if load.source in inside and not all(at.same_as(v.var) or extent == 1 for at, v, extent in own):
            return False
    return True


def with_down(rows: Rows) -> Rows:
    """The rows with the sums down the columns of what their stages compute, or of what these are given."""
    others = {other.buffer for other in rows.rest}
    inside = {other.buffer for other in rows.stages}

    def at_row(stage: Stage, load: Expr) -> bool:
        own = zip(load.indices, stage.reduced, list(load.source.shape), strict=False)
        return load.source not in inside or all(i.same_as(v.var) or int(extent) == 1 for i, v, extent in own)

    def is_down(stage: Stage) -> bool:
        whole = extents(stage.reduced) == rows.shape and size(stage.spatial) == rows.length
        plain = whole and stage.is_plain and isinstance(stage.value, tirx.Add)
        one = plain and int(stage.spatial[-1].dom.extent) == rows.length  # a row is one axis
        return one and all(at_row(stage, load) and load.source not in others for load in stage.loads())

    return Rows(rows.shape, rows.stages, rows.rest, tuple(filter(is_down, rows.rest)))
