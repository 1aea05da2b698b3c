"""Stages that share rows: softmax, its loss, their gradients. Each row runs through all of them at once.

Short rows become straight-line code over as many rows as a vector has lanes, everything in between in registers;
long ones run along vectors, with what is in between in the first cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

from tvm import ir, s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from . import common
from .common import COSTLY_VECTORS, PARALLEL_WORK
from .stages import Expr, Stage, extents, read_stages, share, size, with_nests
from .straight import Straight, block_of, sequence, steps, unravelled, vectors
from .target import Machine

ACCUMULATORS = 4  # vectors in which a row is summed: an add waits four cycles for the one before it
SHORT_ROW = 16  # elements of a row that runs as straight-line code: its registers spill, and code grows
SHORT_VALUES = 160  # of all stages of such a row
PARALLEL_SHORT = 4 * PARALLEL_WORK  # simple operations; without memory to wait for, they take less time
SHARES = 64  # of the rows for threads: each allocates its arrays once

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


def find_rows(func: tirx.PrimFunc) -> Rows | None:
    """The rows of a function with a reduction along the last axis of what it reads; None where there is none."""
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
    return Rows(shape, tuple(inside.values()), tuple(rest))


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
    for load in stage.loads():
        if load.source in outside:
            return False
        if load.source in inside and not all(
            index.same_as(v.var) or extent == 1
            for index, v, extent in zip(load.indices[:rank], spatial, shape, strict=False)
        ):
            return False
    return True


def schedule(func: tirx.PrimFunc, machine: Machine) -> tuple[s_tir.Schedule, list[SBlockRV]] | None:
    """The schedule with all that runs over rows done, and the blocks behind it, which are not yet scheduled.
    Declines functions without rows."""
    func = share(func)
    found = find_rows(func)
    if found is None or found.count < 1:
        return None
    values = sum(size(stage.iters) // found.count for stage in found.stages)
    if found.length <= SHORT_ROW and values <= SHORT_VALUES:
        short = _short(func, found, machine)
        if short is not None:
            return short
    return _long(func, machine) if len(found.stages) > 1 else None


# Short rows


def _short(func: tirx.PrimFunc, rows: Rows, machine: Machine) -> tuple[s_tir.Schedule, list[SBlockRV]] | None:
    """A vector of rows at a time, a row a lane."""
    lanes = machine.lanes(rows.stages[0].buffer.dtype)
    kept = _kept(func, rows)
    if any(stage.reduced and not _is_plain(stage) for stage in rows.stages):
        return None

    def code(index: Expr, straight: Straight) -> None:
        _row(rows, kept, unravelled(index, rows.shape), straight)

    parallel = _work(rows) >= PARALLEL_SHORT
    loops = steps(0, rows.count, _width(rows.count, lanes), parallel, code)
    nest = block_of("rows", sequence(loops))
    sch = common.start(with_nests(func, [nest, *(stage.loops for stage in rows.rest)]))
    return sch, common.stages(sch)[1:]


def _width(count: int, lanes: int) -> int:
    """Rows at a time: a vector, or half or a quarter of one where that leaves no remainder, which doubles the code."""
    exact = next((width for width in (lanes, lanes // 2, lanes // 4) if width >= 4 and count % width == 0), None)
    return exact or min(lanes, count)


def _kept(func: tirx.PrimFunc, rows: Rows) -> set[Any]:
    """The buffers that the rows' stages must store."""
    read = {load.source for stage in rows.rest for load in stage.loads()}
    return {s.buffer for s in rows.stages if s.buffer in func.params or s.buffer in read}


def _work(rows: Rows) -> int:
    """Simple operations of the rows' stages."""
    return sum(size(s.iters) * common.operations(s.value) for s in rows.stages)


def _is_plain(stage: Stage) -> bool:
    """Whether a reduction adds terms to what it has, or the like."""
    value = stage.value
    own = isinstance(value, _COMBINING) and isinstance(value.a, ir.TensorLoad)
    return own and value.a.source.same_as(stage.buffer)


def _row(rows: Rows, kept: set[Any], row: list[Expr], straight: Straight) -> None:
    """All stages of a row, without a loop."""
    rank = len(row)
    known: dict[tuple[Any, tuple[int, ...]], Expr] = {}
    inside = {stage.buffer for stage in rows.stages}

    def of_row(load: Expr) -> Expr | None:
        if load.source not in inside:
            return None
        return known[load.source, tuple(int(index) for index in load.indices[rank:])]

    for stage in rows.stages:
        columns = stage.spatial[rank:]
        for position in product(*map(range, extents(columns))):
            terms = []
            for term in product(*map(range, extents(stage.reduced))):
                names = {v.var: index for v, index in zip(stage.spatial, row, strict=False)}
                for v, number in zip([*columns, *stage.reduced], [*position, *term], strict=True):
                    names[v.var] = tirx.const(number, "int32")
                one = stage.value.b if stage.reduced else stage.value
                terms.append(straight.value(straight.evaluate(one, names, of_row)))
            if stage.reduced and len(terms) == 1:
                terms.insert(0, stage.init)
            while len(terms) > 1:  # by pairs: additions wait less for each other, and round less
                pairs = zip(terms[::2], terms[1::2], strict=False)
                terms = [straight.value(type(stage.value)(a, b)) for a, b in pairs] + terms[len(terms) & ~1 :]
            known[stage.buffer, position] = terms[0]
            if stage.buffer in kept:
                straight.store(stage.buffer, terms[0], [*row, *position])


# Long rows


def _long(func: tirx.PrimFunc, machine: Machine) -> tuple[s_tir.Schedule, list[SBlockRV]] | None:
    """A row at a time, in as few passes along it as its reductions allow, each along vectors."""
    sch = common.start(func)
    common.inline_spatial(sch)
    func = next(iter(sch.mod.functions.values()))
    rows = find_rows(func)
    if rows is None or rows.length < 2:
        return None
    plan = _passes(rows)
    if plan is None:
        return None
    nest = block_of("rows", _LongRows(rows, plan, _kept(func, rows), machine).nest())
    sch = common.start(with_nests(func, [nest, *(stage.loops for stage in rows.rest)]))
    return sch, common.stages(sch)[1:]


@dataclass(frozen=True)
class _Pass:
    """Once along the row.

    Attributes:
        before: stages of one number a row, which it may need.
        along: pointwise stages and reductions along the row.
    """

    before: list[Stage]
    along: list[Stage]


def _passes(rows: Rows) -> list[_Pass] | None:
    """The stages in passes: what needs a reduction's result is in a later one. None for stages of other lengths."""
    rank, ready = len(rows.shape), dict[Any, int]()  # the pass in which a buffer can be read
    found: list[_Pass] = []
    for stage in rows.stages:
        columns = [v for v in (*stage.spatial[rank:], *stage.reduced) if int(v.dom.extent) > 1]
        numbers = size(stage.spatial[rank:])
        if stage.reduced:
            fits = numbers == 1 and size(stage.reduced) == rows.length and _is_plain(stage)
        else:
            fits = numbers in (1, rows.length)
        if (
            not fits
            or len(columns) > 1
            or not all(_in_row(load, rank, columns, ready) for load in stage.loads())
        ):
            return None
        number = max((ready[load.source] for load in stage.loads() if load.source in ready), default=0)
        while len(found) <= number:
            found.append(_Pass([], []))
        ready[stage.buffer] = number + 1 if stage.reduced else number
        (found[number].along if columns else found[number].before).append(stage)
    return found


def _in_row(load: Expr, rank: int, columns: list[tirx.IterVar], inside: Any) -> bool:
    """Whether what is loaded from another stage lies at the column being computed, or is one number a row."""
    if load.source not in inside:
        return True
    return all(
        int(extent) == 1 or (columns and index.same_as(columns[0].var))
        for index, extent in zip(load.indices[rank:], list(load.source.shape)[rank:], strict=True)
    )


class _LongRows:
    """The code of long rows."""

    def __init__(self, rows: Rows, passes: list[_Pass], kept: set[Any], machine: Machine) -> None:
        self.rows = rows
        self.passes = passes
        self.kept = kept
        lanes = machine.lanes(rows.stages[0].buffer.dtype)
        self.lanes = min(lanes, rows.length)
        self.parallel = _work(rows) >= PARALLEL_WORK and rows.count > 1
        self.arrays: dict[Any, Any] = {}  # where a stage's row lies, by the stage's buffer

    def nest(self) -> tirx.Stmt:
        """Shares of the rows, each with its arrays, and the rows of a share in turn."""
        count = self.rows.count
        share = -(-count // SHARES) if self.parallel else count
        number, row = tirx.Var("share", "int32"), tirx.Var("row", "int32")
        allocated = self._allocate()
        code = sequence(self._row(unravelled(number * share + row, self.rows.shape)))
        extent = share if count % share == 0 else tirx.min(share, count - number * share)
        body = sequence([*allocated, tirx.For(row, 0, extent, tirx.ForKind.SERIAL, code)])
        kind = tirx.ForKind.PARALLEL if self.parallel else tirx.ForKind.SERIAL
        return tirx.For(number, 0, -(-count // share), kind, body)

    def _allocate(self) -> list[tirx.Stmt]:
        """Arrays for what a later pass reads: one number, or a row where it is no result."""
        found: list[tirx.Stmt] = []
        for one in self.passes:
            for stage in (*one.before, *one.along):
                row = stage in one.along and not stage.reduced
                if row and (stage.buffer in self.kept or stage.buffer not in self._later(stage)):
                    continue
                shape = (self.rows.length if row else 1,)
                self.arrays[stage.buffer] = tirx.decl_buffer(shape, str(stage.buffer.dtype), stage.name)
                found.append(tirx.AllocBuffer(self.arrays[stage.buffer]))
        return found

    def _later(self, stage: Stage) -> set[Any]:
        """What the passes behind that of a stage read."""
        number = next(i for i, one in enumerate(self.passes) if stage in one.along)
        return {
            x.source
            for one in self.passes[number + 1 :]
            for s in (*one.before, *one.along)
            for x in s.loads()
        }

    def _row(self, row: list[Expr]) -> list[tirx.Stmt]:
        code: list[tirx.Stmt] = []
        for one in self.passes:
            for stage in one.before:
                straight = Straight(1)
                value = straight.value(
                    straight.evaluate(stage.value, self._names(stage, row, 0), self._number)
                )
                self._keep_number(stage, value, row, straight)
                code.append(straight.loop())
            if one.along:
                code += self._along(one, row)
        return code

    def _names(self, stage: Stage, row: list[Expr], column: Expr) -> dict[Any, Expr]:
        names = {v.var: index for v, index in zip(stage.spatial, row, strict=False)}
        for v in (*stage.spatial[len(row) :], *stage.reduced):
            names[v.var] = column if int(v.dom.extent) > 1 else tirx.const(0, "int32")
        return names

    def _number(self, load: Expr) -> Expr | None:
        """What is read of another stage's number."""
        array = self.arrays.get(load.source)
        return None if array is None else tirx.BufferLoad(array, [0])

    def _keep_number(self, stage: Stage, value: Expr, row: list[Expr], straight: Straight) -> None:
        straight.store(self.arrays[stage.buffer], value, [0])
        if stage.buffer in self.kept:
            straight.store(stage.buffer, value, [*row, *[0] * len(stage.spatial[len(row) :])])

    def _along(self, one: _Pass, row: list[Expr]) -> list[tirx.Stmt]:
        """One pass: sums in vectors, which are added up behind it."""
        costly = any(common.is_costly_code(stage.value) for stage in one.along)
        most = COSTLY_VECTORS if costly else ACCUMULATORS
        width = self.lanes * min(most, self.rows.length // self.lanes)
        sums = {
            s.buffer: tirx.decl_buffer((width,), str(s.buffer.dtype), s.name) for s in one.along if s.reduced
        }
        code: list[tirx.Stmt] = []
        for stage in one.along:
            if stage.reduced:
                lane = tirx.Var("lane", "int32")
                clear = tirx.BufferStore(sums[stage.buffer], stage.init, [lane])
                code += [tirx.AllocBuffer(sums[stage.buffer]), vectors(lane, width, clear)]

        def step(column: Expr, straight: Straight) -> None:
            values: dict[Any, Expr] = {}

            def known(load: Expr) -> Expr | None:
                if load.source in values:
                    return values[load.source]
                array = self.arrays.get(load.source)
                if array is None:
                    return None
                return tirx.BufferLoad(array, [column if int(array.shape[0]) > 1 else 0])

            for stage in one.along:
                names = self._names(stage, row, column)
                if stage.reduced:
                    term = straight.value(straight.evaluate(stage.value.b, names, known))
                    straight.add_to(sums[stage.buffer], type(stage.value), term)
                    continue
                value = straight.value(straight.evaluate(stage.value, names, known))
                values[stage.buffer] = value
                if stage.buffer in self.kept:
                    straight.store(stage.buffer, value, [names[v.var] for v in stage.spatial])
                elif stage.buffer in self.arrays:
                    straight.store(self.arrays[stage.buffer], value, [column])

        code += steps(0, self.rows.length, width, False, step)
        for stage in one.along:
            if stage.reduced:
                code += self._total(stage, sums[stage.buffer], row)
        return code

    def _total(self, stage: Stage, sums: Any, row: list[Expr]) -> list[tirx.Stmt]:
        """Adds up a vector's sums, by halves."""
        code: list[tirx.Stmt] = []
        width = int(sums.shape[0])
        while width > 1:
            half = width - self.lanes if width > self.lanes else (width + 1) // 2
            half = max(half, width - half)
            lane = tirx.Var("lane", "int32")
            pair = type(stage.value)(tirx.BufferLoad(sums, [lane]), tirx.BufferLoad(sums, [lane + half]))
            code.append(vectors(lane, width - half, tirx.BufferStore(sums, pair, [lane])))
            width = half
        straight = Straight(1)
        self._keep_number(stage, tirx.BufferLoad(sums, [0]), row, straight)
        return [*code, straight.loop()]
