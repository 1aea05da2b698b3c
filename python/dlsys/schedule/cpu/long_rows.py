"""Long rows, that share stages: along vectors, with what is in between in the first cache.

Sums down the columns of what the rows are computed of are added to row by row, in an array for each share of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from ...system import lazy
from .. import common
from ..codegen import VectorCode, block_of, sequence, steps, unravelled, vectors
from ..common import ACCUMULATORS, COSTLY_VECTORS, PARALLEL_WORK, renamed
from ..row_stages import Rows, find_rows, kept_buffers, work
from ..stages import Expr, Nests, Stage, extents, size
from ..sums import IN_TURN as TERMS
from ..sums import is_plain, of_array
from ..target import Machine
from . import prefetch
from .row_passes import Pass, in_passes, is_costly

STEPS = 64  # along a row to a block of a long sum (see `blocked`)
SHARES = 64  # of the rows for threads: each allocates its arrays once
FAR_VECTORS = (
    1  # a step along rows from memory: with four of them a layer norm's gradients took a fifth longer (Zen 4)
)


def schedule(func: tirx.PrimFunc, machine: Machine) -> Nests | None:
    """A row at a time, in as few passes along it as its reductions allow, each along vectors."""
    sch = common.start(func)
    common.inline_spatial(sch)
    func = common.function_of(sch)
    rows = find_rows(func)
    if rows is None or rows.length < 2:
        return None
    rows = _without_last(rows)
    columns = [stage for stage in rows.rest if _is_down_columns(stage, rows)]
    plan = in_passes(rows, columns)
    if plan is None:
        return None
    code = _LongRows(rows, plan, kept_buffers(func, rows, columns), machine, columns)
    nest = block_of("rows", code.nest())
    nests: list[tuple[tirx.Stmt, Stage | None]] = [(nest, None)]
    for stage in rows.rest:
        own = of_array(stage, code.parts[stage.buffer], first=True) if stage.buffer in code.parts else stage
        nests.append((own.loops, own))
    return func, nests, [*code.parts.values()]


def _without_last(rows: Rows) -> Rows:
    """The rows without their last stages, if a log or its like is among those: stages of one number a row that no other
    stage of the row reads. They are computed at the end for all rows, along vectors."""
    stages, last = list(rows.stages), list[Stage]()
    for stage in reversed(rows.stages):
        read = {load.source for other in stages for load in other.loads()}
        if not stage.reduced and size(stage.iters) == rows.count and stage.buffer not in read:
            stages.remove(stage)
            last.insert(0, stage)
    if not any(common.is_costly(stage.value) for stage in last):
        return rows
    return Rows(rows.shape, tuple(stages), (*last, *rows.rest))


def _is_down_columns(stage: Stage, rows: Rows) -> bool:
    """Whether a stage sums all rows of what their stages compute, or of what these are given."""
    others = {other.buffer for other in rows.rest}
    inside = {other.buffer for other in rows.stages}
    terms = [v.var for v in stage.reduced]

    def at_row(load: Expr) -> bool:
        own = zip(load.indices, terms, list(load.source.shape), strict=False)
        return load.source not in inside or all(i.same_as(v) or int(extent) == 1 for i, v, extent in own)

    whole = extents(stage.reduced) == rows.shape and size(stage.spatial) == rows.length
    plain = whole and is_plain(stage) and isinstance(stage.value, tirx.Add)
    last = plain and int(stage.spatial[-1].dom.extent) == rows.length  # a row is one axis
    return last and all(at_row(load) and load.source not in others for load in stage.loads())


class _LongRows:
    """The code of long rows.

    Attributes:
        parts: for the buffers of sums down the columns the array of the shares' sums.
    """

    def __init__(
        self, rows: Rows, passes: list[Pass], kept: set[Any], machine: Machine, down: Sequence[Stage]
    ) -> None:
        self.rows = rows
        self.passes = passes
        self.kept = kept
        along = [one for one in passes if one.along]
        self.fetching = along[-2] if len(along) > 2 else None  # the next row, while no result is stored
        lanes = machine.lanes(rows.stages[0].buffer.dtype)
        self.lanes = min(lanes, rows.length)
        self.parallel = work(rows) >= PARALLEL_WORK and rows.count > 1
        self.again: dict[Any, Stage] = {}  # by its buffer a stage that each pass computes for itself
        self.arrays: dict[Any, Any] = {}  # where a stage's row lies, by the stage's buffer
        share = -(-rows.count // SHARES) if self.parallel else rows.count
        self.share = min(share, TERMS) if down else share
        self.down = list(down)
        count, like = -(-rows.count // self.share), {"data_alignment": 4, "layout": None}
        self.parts = {
            s.buffer: tirx.decl_buffer((count, *extents(s.spatial)), str(s.buffer.dtype), s.name, **like) for s in down
        }

    def nest(self) -> tirx.Stmt:
        """Shares of the rows, each with its arrays, and the rows of a share in turn."""
        count, share = self.rows.count, self.share
        number, row = tirx.Var("share", "int32"), tirx.Var("row", "int32")
        allocated = self._allocate()
        code = sequence(self._row(unravelled(number * share + row, self.rows.shape)))
        extent = share if count % share == 0 else tirx.min(share, count - number * share)
        rows = tirx.For(row, 0, extent, tirx.ForKind.SERIAL, code)
        body = sequence([*allocated, *self._of_columns(None), rows, *self._of_columns(number)])
        kind = tirx.ForKind.PARALLEL if self.parallel else tirx.ForKind.SERIAL
        return tirx.For(number, 0, -(-count // share), kind, body)

    def _of_columns(self, number: Expr | None) -> list[tirx.Stmt]:
        """Begins the sums down the columns, or stores them as those of a share."""

        def code(column: Expr, vector: VectorCode) -> None:
            for stage in self.down:
                array = self.arrays[stage.buffer]
                if number is None:
                    vector.store(array, stage.init, [column])
                else:
                    unit = [0] * (len(stage.spatial) - 1)
                    vector.store(self.parts[stage.buffer], tirx.BufferLoad(array, [column]), [number, *unit, column])

        width = self.lanes * min(ACCUMULATORS, self.rows.length // self.lanes)
        return steps(tirx.const(0, "int32"), self.rows.length, width, False, code) if self.down else []

    def _allocate(self) -> list[tirx.Stmt]:
        """Arrays for what a later pass reads: one number, or a row where it is no result."""
        found: list[tirx.Stmt] = []
        for one in self.passes:
            for stage in (*one.before, *one.along):
                row = stage in one.along and not stage.reduced
                if row and (stage.buffer in self.kept or stage.buffer not in self._later(stage)):
                    continue
                if row and self._is_cheap(stage):
                    self.again[stage.buffer] = stage
                    continue
                shape = (self.rows.length if row or stage.buffer in self.parts else 1,)
                self.arrays[stage.buffer] = tirx.decl_buffer(shape, str(stage.buffer.dtype), stage.name)
                found.append(tirx.AllocBuffer(self.arrays[stage.buffer]))
        return found

    def _is_cheap(self, stage: Stage) -> bool:
        """Whether a stage takes less time than its row's way to L1 and back: arithmetic of one other row."""
        column = self._column(stage)
        rows = {load.source for load in stage.loads() if any(index.same_as(column) for index in load.indices)}
        return len(rows) == 1 and not is_costly(stage, column)

    def _column(self, stage: Stage) -> Any:
        """The iterator along the row of a stage that runs along it."""
        return (
            stage.reduced[0].var
            if stage.reduced and stage.buffer not in self.parts
            else stage.spatial[-1].var
        )

    def _later(self, stage: Stage) -> set[Any]:
        """The stages that passes behind that of a stage read."""
        number = next(i for i, one in enumerate(self.passes) if stage in one.along)
        return {
            x.source
            for one in self.passes[number + 1 :]
            for s in (*one.before, *one.along)
            for x in s.loads()
        }

    def _row(self, row: list[Expr]) -> list[tirx.Stmt]:
        """The code of one row: its passes, each behind the numbers that it needs."""
        code: list[tirx.Stmt] = []
        for one in self.passes:
            for stage in one.before:
                vector = VectorCode(1)
                value = vector.value(vector.evaluate(stage.value, self._names(stage, row, 0), self._number))
                self._keep_number(stage, value, row, vector)
                code.append(vector.loop())
            if one.along:
                code += self._along(one, row)
        return code

    def _names(self, stage: Stage, row: list[Expr], column: Expr) -> dict[Any, Expr]:
        over = (
            (*stage.reduced, *stage.spatial)
            if stage.buffer in self.parts
            else (*stage.spatial, *stage.reduced)
        )
        names = {v.var: index for v, index in zip(over, row, strict=False)}
        for v in over[len(row) :]:
            names[v.var] = column if int(v.dom.extent) > 1 else tirx.const(0, "int32")
        return names

    def _number(self, load: Expr) -> Expr | None:
        """The expression that reads another stage's number."""
        array = self.arrays.get(load.source)
        return None if array is None else tirx.BufferLoad(array, [0])

    def _keep_number(self, stage: Stage, value: Expr, row: list[Expr], vector: VectorCode) -> None:
        vector.store(self.arrays[stage.buffer], value, [0])
        if stage.buffer in self.kept:
            vector.store(stage.buffer, value, [*row, *[0] * len(stage.spatial[len(row) :])])

    def _along(self, one: Pass, row: list[Expr]) -> list[tirx.Stmt]:
        """One pass: sums in vectors, which are added up behind it."""
        costly = any(is_costly(stage, self._column(stage)) for stage in one.along)
        most = COSTLY_VECTORS if costly else FAR_VECTORS if self._far else ACCUMULATORS
        width = self.lanes * min(most, self.rows.length // self.lanes)
        across = [s for s in one.along if s.reduced and s.buffer not in self.parts]
        sums = {s.buffer: self._accumulators(s, width) for s in across}
        code: list[tirx.Stmt] = []
        for stage in one.along:
            for array in sums.get(stage.buffer, ()):
                code += [tirx.AllocBuffer(array), _filled(array, stage.init)]

        def step(column: Expr, vector: VectorCode) -> None:
            values: dict[Any, Expr] = {}

            def known(load: Expr) -> Expr | None:
                source = load.source
                if source in self.again and source not in values:
                    again = self.again[source]
                    values[source] = vector.value(
                        vector.evaluate(again.value, self._names(again, row, column), known)
                    )
                if source in values:
                    return values[source]
                array = self.arrays.get(source)
                if array is None:
                    return None
                return tirx.BufferLoad(array, [column if int(array.shape[0]) > 1 else 0])

            if one is self.fetching:
                vector.before += self._of_next_row(row, column, vector)
            for stage in one.along:
                names = self._names(stage, row, column)
                if stage.reduced:
                    term = vector.value(vector.evaluate(stage.value.b, names, known))
                if stage.buffer in self.parts:
                    own = self.arrays[stage.buffer]
                    vector.store(own, tirx.BufferLoad(own, [column]) + term, [column])
                    continue
                if stage.reduced:
                    vector.add_to(sums[stage.buffer][0], type(stage.value), term)
                    continue
                value = vector.value(vector.evaluate(stage.value, names, known))
                values[stage.buffer] = value
                if stage.buffer in self.kept:
                    vector.store(stage.buffer, value, [names[v.var] for v in stage.spatial])
                elif stage.buffer in self.arrays:
                    vector.store(self.arrays[stage.buffer], value, [column])

        long = [(stage, sums[stage.buffer]) for stage in one.along if len(sums.get(stage.buffer, ())) > 1]
        level = len(long[0][1]) - 1 if long else 0
        code += _blocks(tirx.const(0, "int32"), self.rows.length, width, level, long, step)
        for stage in across:
            code += self._total(stage, sums[stage.buffer][-1], row)
        return code

    @lazy
    def _far(self) -> list[tuple[Stage, Expr]]:
        """The loads of large arrays along the row, with their stages; for when arrays are allocated."""
        known = {*self.arrays, *self.again, *self.parts, *self.kept}
        stages = [stage for one in self.passes for stage in one.along]
        return [(s, x) for s in stages for x in s.loads() if x.source not in known and prefetch.is_far(x)]

    def _of_next_row(self, row: list[Expr], column: Expr, vector: VectorCode) -> list[tirx.Stmt]:
        """The fetches of what the passes over the next row read of large arrays, while one over this row finds all in
        L1: a row is a page or so, beyond which the processor's own fetches do not go."""
        found: dict[Any, list[Expr]] = {}
        for stage, load in self._far:
            names = self._names(stage, [*row[:-1], row[-1] + 1], column)
            found.setdefault(load.source, [renamed(index, names) for index in load.indices])
        return [
            one for array, at in found.items() for one in prefetch.lines(array, at, vector.lane, vector.width)
        ]

    def _accumulators(self, stage: Stage, width: int) -> list[Any]:
        """Arrays of partial results: one for the steps along the row, and, of a long sum, one for its blocks' sums, one
        for the sums of so many blocks, and so on."""
        levels, terms = 1, self.rows.length // width
        while isinstance(stage.value, tirx.Add) and terms > TERMS:
            levels, terms = levels + 1, terms // STEPS
        return [tirx.decl_buffer((width,), str(stage.buffer.dtype), stage.name) for _ in range(levels)]

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
        vector = VectorCode(1)
        self._keep_number(stage, tirx.BufferLoad(sums, [0]), row, vector)
        return [*code, vector.loop()]


def _filled(array: Any, value: Expr) -> tirx.Stmt:
    lane = tirx.Var("lane", "int32")
    return vectors(lane, int(array.shape[0]), tirx.BufferStore(array, value, [lane]))


def _blocks(
    start: Expr,
    extent: int,
    width: int,
    level: int,
    long: Sequence[tuple[Stage, list[Any]]],
    step: Callable[[Expr, VectorCode], None],
) -> list[tirx.Stmt]:
    """Steps along a part of a row. At a level above 0 it goes by blocks, whose sums are added to those of the level."""
    if level == 0:
        return steps(start, extent, width, False, step)
    length = width * STEPS**level
    whole, rest = divmod(extent, length)
    code: list[tirx.Stmt] = []
    if whole:
        block = tirx.Var("block", "int32")
        body = [*_blocks(start + block * length, length, width, level - 1, long, step), *_moved(level, long)]
        code.append(tirx.For(block, 0, whole, tirx.ForKind.SERIAL, sequence(body)))
    if rest:
        begin = start + whole * length
        code += [*_blocks(begin, rest, width, level - 1, long, step), *_moved(level, long)]
    return code


def _moved(level: int, long: Sequence[tuple[Stage, list[Any]]]) -> list[tirx.Stmt]:
    """Adds the sums of the level below to those of this one, and clears them."""
    code = []
    for stage, sums in long:
        below, own, lane = sums[level - 1], sums[level], tirx.Var("lane", "int32")
        both = tirx.BufferLoad(own, [lane]) + tirx.BufferLoad(below, [lane])
        code.append(vectors(lane, int(own.shape[0]), tirx.BufferStore(own, both, [lane])))
        code.append(_filled(below, stage.init))
    return code
