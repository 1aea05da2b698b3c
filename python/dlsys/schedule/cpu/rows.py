"""Stages that share rows: softmax, norms, losses, their gradients. Each row runs through all of them at once.

Short rows become straight-line code over as many rows as a vector has lanes, everything in between in registers. Long
ones run along vectors, in as few passes as their reductions allow, with what is in between in the first cache; sums
down the columns are added to row by row, in an array for each share of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from tvm import tirx

from .. import common
from ..codegen import PARALLEL, SERIAL, VectorCode, block_of, in_steps, loop, sequence, unravelled
from ..common import PARALLEL_WORK, renamed
from ..rows import Rows, find_rows, with_down
from ..stages import Expr, Stage, extents, inlined, loads_of, share, size
from ..sums import LEVEL, PARTS, Accumulators, Levels, is_float_sum, of_parts
from ..target import Machine
from . import prefetch
from .pointwise import step_vectors

SHORT_ROW = 16  # elements of a row that runs as straight-line code: its registers spill, and code grows


def schedule(func: tirx.PrimFunc, machine: Machine) -> list[Stage | tirx.Stmt] | None:
    """The loops of all of a function that runs over rows, and the stages behind it. None where there are no rows."""
    found = find_rows(share(func) or [])
    if found is None or found.count < 1 or _is_for_parts(found):
        return None
    values = sum(size(stage.iters) // found.count for stage in found.stages)
    plain = all(stage.is_plain for stage in found.stages if stage.reduced)
    few = found.length <= SHORT_ROW
    straight = plain and values <= 10 * SHORT_ROW  # of some stages
    if straight and few:
        return [_short(found, found.kept(func.params), machine), *found.rest]
    return _long(func, machine) if len(found.stages) > 1 else None


def _is_for_parts(rows: Rows) -> bool:
    """Whether rows are too few for threads, each long enough for several, and reductions are exact in parts."""
    exact = all(stage.is_plain and not is_float_sum(stage) for stage in rows.stages if stage.reduced)
    return exact and rows.count < PARTS and rows.work >= max(rows.count, 4) * PARALLEL_WORK


# Short rows


def _short(rows: Rows, kept: set[Any], machine: Machine) -> tirx.Stmt:
    """A vector of rows at a time, a row a lane."""

    def code(start: Expr, many: int) -> tirx.Stmt:
        vector = VectorCode(many)
        _short_row(rows, kept, unravelled(start + vector.lane, rows.shape), vector)
        return vector.loop()

    width = min(machine.lanes(rows.stages[0].buffer.dtype), rows.count)
    large = rows.work >= 4 * PARALLEL_WORK  # without memory to wait for, operations take less time
    kind = PARALLEL if large else SERIAL
    return block_of("rows", in_steps(rows.count, width, code, kind=kind))


def _short_row(rows: Rows, kept: set[Any], row: list[Expr], vector: VectorCode) -> None:
    """All stages of a row, without a loop."""
    rank = len(row)
    held: dict[tuple[Any, tuple[int, ...]], Expr] = {}  # by a stage's buffer and a place in the row
    inside = {stage.buffer for stage in rows.stages}

    def of_row(load: Expr) -> Expr | None:
        return held[load.source, tuple(map(int, load.indices[rank:]))] if load.source in inside else None

    for stage in rows.stages:
        columns, own = stage.spatial[rank:], {v.var: at for v, at in zip(stage.spatial, row, strict=False)}
        for place in product(*map(range, extents(columns))):
            terms = []
            for term in product(*map(range, extents(stage.reduced))):
                pairs = zip([*columns, *stage.reduced], [*place, *term], strict=True)
                names = own | {v.var: tirx.const(number, "int32") for v, number in pairs}
                one = stage.value.b if stage.reduced else stage.value
                terms.append(vector.value(vector.evaluate(one, names, of_row)))
            if stage.reduced and len(terms) == 1:
                terms.insert(0, stage.init)
            while len(terms) > 1:  # by pairs: additions wait less for each other, and round less
                pairs = zip(terms[::2], terms[1::2], strict=False)
                terms = [vector.value(type(stage.value)(a, b)) for a, b in pairs] + terms[len(terms) & ~1 :]
            held[stage.buffer, place] = terms[0]
            if stage.buffer in kept:
                vector.store(stage.buffer, terms[0], [*row, *place])


# Long rows


def _long(func: tirx.PrimFunc, machine: Machine) -> list[Stage | tirx.Stmt] | None:
    """A row at a time, in passes along it; None for rows of one element, and for stages of other lengths."""
    rows = find_rows(inlined(func) or [])
    if rows is None or rows.length < 2:
        return None
    rows = with_down(_without_last(rows))
    passes = _in_passes(rows)
    if passes is None:
        return None
    code = _LongRows(rows, passes, rows.kept(func.params), machine, step_vectors(func, machine))
    rest = (code.parts[stage.buffer][1] if stage in rows.down else stage for stage in rows.rest)
    return [block_of("rows", code.nest()), *rest]


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
    return replace(rows, stages=tuple(stages), rest=(*last, *rows.rest))


def _in_passes(rows: Rows) -> list[list[Stage]] | None:
    """The stages in as few passes along the row as can be: what needs a reduction's result is in a later one. A stage
    is in the last pass that will do, so that the last one stores all results. None for stages of other lengths."""
    if not rows.fit() or any(len(rows.along(stage)) > 1 for stage in rows.stages):
        return None
    ready: dict[Any, int] = {}  # the pass in which a buffer can be read
    for stage in rows.stages:
        ready[stage.buffer] = _first(stage, ready) + bool(stage.reduced)
    stages = [*rows.stages, *rows.down]
    found: list[list[Stage]] = [[] for _ in range(1 + max(_first(stage, ready) for stage in stages))]
    last: dict[Any, int] = {}  # the pass in which a buffer has to be read
    for stage in reversed(stages):
        most = len(found) - 1
        if stage.reduced and stage.buffer not in last:  # beside the results' stores there is no room in L1
            most = max(most - 1, _first(stage, ready))
        number = min(most, last.get(stage.buffer, most + 1) - 1) if stage.reduced else last.get(stage.buffer, most)
        for load in stage.loads():
            last[load.source] = min(number, last.get(load.source, number))
        found[number].insert(0, stage)
    return [sorted(one, key=lambda stage: bool(rows.along(stage))) for one in found]


def _first(stage: Stage, ready: Mapping[Any, int]) -> int:
    """The first pass in which all can be read that a stage reads."""
    return max((ready[load.source] for load in stage.loads() if load.source in ready), default=0)


class _LongRows:
    """The code of long rows. By a stage's buffer `held` has the array in which later passes find it, `again` the stage
    that they compute again, `down` the sums down the columns of a share of the rows, `parts` the array of the shares'
    sums and the stage that adds them up."""

    def __init__(self, rows: Rows, passes: list[list[Stage]], kept: set[Any], machine: Machine, vectors: int) -> None:
        self.rows, self.passes, self.kept, self.machine, self.vectors = rows, passes, kept, machine, vectors
        along = [one for one in passes if any(map(rows.along, one))]
        self.fetching = along[-2] if len(along) > 2 else None  # the next row, while none is stored
        self.lanes = min(machine.lanes(rows.stages[0].buffer.dtype), rows.length)
        self.parallel = rows.work >= PARALLEL_WORK and rows.count > 1
        share = -(-rows.count // PARTS) if self.parallel else rows.count
        self.share = min(share, LEVEL) if rows.down else share
        self.down = {s.buffer: Accumulators(s, rows.length, 1, self.lanes) for s in rows.down}
        self.parts = {s.buffer: of_parts(s, -(-rows.count // self.share)) for s in rows.down}
        self.held: dict[Any, Any] = {}
        self.again: dict[Any, Stage] = {}
        for number, one in enumerate(passes):
            later = {x.source for other in passes[number + 1 :] for s in other for x in s.loads()}
            for stage in (stage for stage in one if stage not in rows.down):
                is_row = rows.along(stage) and not stage.reduced
                if is_row and (stage.buffer not in later or stage.buffer in kept):
                    continue
                if is_row and rows.is_cheap(stage):
                    self.again[stage.buffer] = stage
                else:
                    shape = (rows.length if is_row else 1,)
                    self.held[stage.buffer] = tirx.decl_buffer(shape, str(stage.buffer.dtype), stage.name)
        known = {*self.held, *self.again, *self.parts, *kept}
        loads = [(s, x) for one in passes for s in one if rows.along(s) for x in s.loads() if x.source not in known]
        self.far = [(s, x) for s, x in loads if len(loads_of([x])) == 1 and prefetch.is_far(x.source, machine)]

    def nest(self) -> tirx.Stmt:
        """Shares of the rows, each with its arrays, and the rows of a share in turn."""
        count, share, most = self.rows.count, self.share, tirx.IntImm("int32", self.share)

        def body(number: Expr) -> tirx.Stmt:
            row = tirx.Var("row", "int32")
            code = sequence(self._row(unravelled(number * most + row, self.rows.shape)))
            extent = most if count % share == 0 else tirx.min(most, count - number * most)
            before = [code for own in self.down.values() for code in own.before()]
            rows = tirx.For(row, 0, extent, tirx.ForKind.SERIAL, code)
            return sequence([*map(tirx.AllocBuffer, self.held.values()), *before, rows, *self._parts(number)])

        return loop(-(-count // share), body, parallel=self.parallel)

    def _parts(self, number: Expr) -> list[tirx.Stmt]:
        """Stores the sums down the columns of a share."""

        def store(array: Any, at: Expr, value: Expr) -> tirx.Stmt:
            return tirx.BufferStore(array, value, [number, *[0] * (len(array.shape) - 2), at])

        return [own.results(partial(store, self.parts[buffer][0])) for buffer, own in self.down.items()]

    def _row(self, row: list[Expr]) -> list[tirx.Stmt]:
        """The code of one row: its passes, each behind the numbers that it needs."""
        code: list[tirx.Stmt] = []
        for one in self.passes:
            for stage in (stage for stage in one if not self.rows.along(stage)):
                vector, first = VectorCode(1), tirx.const(0, "int32")
                known = self._known({}, first)
                value = vector.evaluate(stage.value, self.rows.names(stage, row, first), known)
                code.append(self._keep(stage, vector.value(value), row, first, vector).loop())
            if any(map(self.rows.along, one)):
                code += self._along(one, row)
        return code

    def _known(self, values: Mapping[Any, Expr], column: Expr) -> Callable[[Expr], Expr | None]:
        """The function that gives the value of a load at a column: one of the `values`, or from the array held."""

        def known(load: Expr) -> Expr | None:
            array = self.held.get(load.source)
            if load.source in values or array is None:
                return values.get(load.source)
            return tirx.BufferLoad(array, [column if int(array.shape[0]) > 1 else 0])

        return known

    def _keep(self, stage: Stage, value: Expr, row: list[Expr], column: Expr, vector: VectorCode) -> VectorCode:
        """Stores a value where it is a result, or where later passes find it; returns the code."""
        if stage.buffer in self.held:
            vector.store(self.held[stage.buffer], value, [column])
        if stage.buffer in self.kept:
            names = self.rows.names(stage, row, column)
            vector.store(stage.buffer, value, [renamed(index, names) for index in stage.indices])
        return vector

    def _along(self, one: list[Stage], row: list[Expr]) -> list[tirx.Stmt]:
        """One pass: sums in vectors, which are added up behind it."""
        along = [stage for stage in one if self.rows.along(stage)]
        width = self.lanes * min(self.vectors, self.rows.length // self.lanes)
        across = [s for s in along if s.reduced and s not in self.rows.down]
        long = [s for s in across if is_float_sum(s)]
        levels = Levels([self.rows.length], width, LEVEL if long else 0)
        sums = {s.buffer: Accumulators(s, width, levels.count if s in long else 1, self.lanes) for s in across}

        def step(index: Sequence[Expr], many: int) -> tirx.Stmt:
            """So many columns, whose terms go to the sums' first level."""
            vector, values = VectorCode(many), dict[Any, Expr]()
            column = index[0] + vector.lane
            held = self._known(values, column)

            def known(load: Expr) -> Expr | None:
                if load.source in self.again and load.source not in values:
                    values[load.source] = of(self.again[load.source].value, self.again[load.source])
                return held(load)

            def of(expression: Expr, stage: Stage) -> Expr:
                return vector.value(vector.evaluate(expression, self.rows.names(stage, row, column), known))

            if one is self.fetching:
                vector.before += self._of_next_row(row, column, vector)
            for stage in along:
                value = of(stage.value.b if stage.reduced else stage.value, stage)
                if stage.buffer in self.down:
                    own = self.down[stage.buffer].arrays[0]
                    vector.store(own, tirx.BufferLoad(own, [column]) + value, [column])
                elif stage.reduced:
                    vector.add_to(sums[stage.buffer].arrays[0], type(stage.value), value)
                else:
                    values[stage.buffer] = value
                    self._keep(stage, value, row, column, vector)
            return vector.loop()

        code = [statement for own in sums.values() for statement in own.before()]
        code.append(levels.nest(step, lambda level: [x for s in long for x in sums[s.buffer].moved(level)]))
        for stage in across:
            total, value = sums[stage.buffer].total()
            code += [*total, self._keep(stage, value, row, tirx.const(0, "int32"), VectorCode(1)).loop()]
        return code

    def _of_next_row(self, row: list[Expr], column: Expr, vector: VectorCode) -> list[tirx.Stmt]:
        """The fetches of what the passes over the next row read of large arrays, beyond the processor's own fetches."""
        found: dict[Any, Sequence[Expr]] = {}
        for stage, load in self.far:
            names = self.rows.names(stage, [*row[:-1], row[-1] + 1], column)
            found.setdefault(load.source, [renamed(index, names) for index in load.indices])
        return [one for array, at in found.items() for one in prefetch.lines(array, at, vector, self.machine)]

