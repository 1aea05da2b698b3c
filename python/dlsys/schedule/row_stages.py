"""Stages that share rows, found by structure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from . import common
from .stages import Stage, extents, read_stages, size


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
