"""Stages that share rows, found by structure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx

from . import common
from .codegen import unravelled
from .stages import Expr, Stage, extents, read_stages, size

_COMBINING = (tirx.Add, tirx.Mul, tirx.Max, tirx.Min)  # any order gives the same, but for rounding


@dataclass(frozen=True)
class Rows:
    """A function's stages by what they run over.

    Attributes:
        shape: of the rows: what the last axis is summed away from.
        stages: those that run over the rows, and read nothing of another row.
        rest: those after them.
    """

    shape: tuple[int, ...]
    stages: tuple[Stage, ...]
    rest: tuple[Stage, ...]

    @property
    def count(self) -> int:
        """Number of rows."""
        return math.prod(self.shape)

    @property
    def length(self) -> int:
        """Elements of the longest row."""
        return max(size(stage.iters) // max(self.count, 1) for stage in self.stages)

    def along(self, stage: Stage) -> list[tirx.IterVar]:
        """The iterators of a stage that run along a row; none where it has one number a row."""
        return [v for v in (*stage.spatial[len(self.shape) :], *stage.reduced) if int(v.dom.extent) > 1]

    def names(self, stage: Stage, row: Sequence[Expr], column: Expr) -> dict[Any, Expr]:
        """The values of a stage's iterators at a column of a row."""
        along = self.along(stage)
        names = {v.var: tirx.const(0, "int32") for v in stage.iters}
        names |= {v.var: at for v, at in zip(stage.spatial, row, strict=False)}
        places = unravelled(column, extents(along)) if along else []
        return names | {v.var: at for v, at in zip(along, places, strict=True)}

    def fit(self) -> bool:
        """Whether each stage has one number a row or is as long as the row, sums combine terms, and an element is
        computed of others of its own column, or of the row's numbers."""
        rank, inside = len(self.shape), {stage.buffer for stage in self.stages}
        for stage in self.stages:
            numbers, along = size(stage.spatial[rank:]), [v.var for v in self.along(stage)]
            if stage.reduced:
                fits = numbers == 1 and size(stage.reduced) == self.length and is_plain(stage)
            else:
                fits = numbers in (1, self.length)
            for load in (load for load in stage.loads() if load.source in inside):
                wide = zip(load.indices[rank:], load.source.shape[rank:], strict=True)
                own = [index for index, extent in wide if int(extent) > 1]
                fits &= len(own) in (0, len(along)) and all(i.same_as(v) for i, v in zip(own, along, strict=False))
            if not fits:
                return False
        return True


def find_rows(func: tirx.PrimFunc) -> Rows | None:
    """The rows of a function with a reduction along the last axis of what it reads; None where there is none, or where
    it reads a stage that has no such rows, as a product with a constant does."""
    stages = read_stages(func)
    if stages is None:
        return None
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
        if load.source in inside and not all(
            index.same_as(v.var) or extent == 1
            for index, v, extent in zip(load.indices[:rank], spatial, shape, strict=False)
        ):
            return False
    return True


def kept_buffers(func: tirx.PrimFunc, rows: Rows, along: Sequence[Stage] = ()) -> set[Any]:
    """The buffers that the rows' stages must store. `along`: of the others those that are computed with the rows."""
    own = {stage.buffer for stage in along}
    read = {load.source for stage in rows.rest if stage.buffer not in own for load in stage.loads()}
    return {s.buffer for s in rows.stages if s.buffer in func.params or s.buffer in read}


def work(rows: Rows) -> int:
    """Simple operations of the rows' stages."""
    return sum(size(s.iters) * common.operations(s.value) for s in rows.stages)


def is_plain(stage: Stage) -> bool:
    """Whether a reduction adds terms to what it has, or the like."""
    value = stage.value
    own = isinstance(value, _COMBINING) and isinstance(value.a, ir.TensorLoad)
    return own and value.a.source.same_as(stage.buffer)
