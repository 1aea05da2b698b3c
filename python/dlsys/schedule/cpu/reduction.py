"""Sums and maxima, one or a chain of them (softmax and its loss), with what is elementwise around them.

A sum is added up in arrays of its own, which lie in registers or in L1: of neighbouring results where memory runs along
them (columns), else of vectors along the terms (rows). Long ones are cut in levels, and in parts where results are too
few for threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import tvm
from tvm import tirx

from ...compute import IN_ORDER
from .. import common
from ..codegen import block_of, cut, in_steps, lanes, loop, sequence, unravelled
from ..common import COSTLY_VECTORS, MANY, MAX_VECTORS, PARALLEL_WORK, SHORT, VECTORS, axes_of, renamed
from ..stages import Expr, Stage, extents, inlined, nests_of, size, with_nests
from ..sums import LEVEL, PARTS, Accumulators, Levels, in_parts, is_float_sum, parts_along
from ..target import Machine, Rule
from . import pointwise, rows

ROWS = 8  # that are read at once where registers hold no row's sums


def schedule(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc:
    """Each row through all its stages at once where the stages share rows; else a stage at a time."""
    if found := rows.schedule(func, machine):
        return finish(func, machine, found)
    return finish(func, machine, inlined(func))


def finish(
    func: tirx.PrimFunc, machine: Machine, nests: Sequence[Stage | tirx.Stmt] | None = None
) -> tirx.PrimFunc:
    """The function with the loops of its stages, each by itself; or of other ones, and of loops that are written."""
    made: list[tirx.Stmt] = []
    for one in nests_of(func) if nests is None else nests:
        if not isinstance(one, Stage):
            made.append(one)
        elif not one.reduced and size(one.spatial):
            made.append(pointwise.block([one], {one.buffer}, machine))
        elif size(one.spatial):
            sums = _whole_or_in_parts(one, machine)
            made += [block_of(part.stage.name, part.nest()) for part in sums]
    return with_nests(func, made)


def _whole_or_in_parts(stage: Stage, machine: Machine) -> list[Sum]:
    """A sum, or those of its parts and of these."""
    whole = Sum(stage, machine)
    if not (lengths := parts_along(stage, whole.parts())):
        return [whole]
    *parts, total = in_parts(stage, lengths)
    return [*(Sum(part, machine) for part in parts), *_whole_or_in_parts(total, machine)]


class Sum:
    """The loops of one sum or other reduction: `by_columns` where memory runs along the results."""

    def __init__(self, stage: Stage, machine: Machine) -> None:
        self.stage, self.machine = stage, machine
        shape = extents(stage.iters)
        self.index = next((str(v.var.ty) for v in stage.iters), "int32")
        self.loop, self.vector = (partial(function, dtype=self.index) for function in (loop, lanes))
        self.lanes, self.costly = machine.lanes(stage.buffer.dtype), common.is_costly(stage.value)
        found = common.accesses_of(stage.block)
        spatial = [i for i, v in enumerate(stage.iters) if v.iter_type == tirx.IterVar.DataPar]
        self.results = axes_of(shape, spatial, found)
        self.terms = axes_of(shape, [i for i in range(len(shape)) if i not in spatial], found)
        self.count = math.prod(self.terms.sizes)  # of terms
        self.work = math.prod(shape) * common.operations(stage.block.body)
        self.parallel = self.work >= PARALLEL_WORK
        sizes, strides = self.results.sizes, self.results.strides
        self.by_columns = bool(sizes) and sizes[-1] > 1 and all(s in (0, 1) for s in strides[-1])
        in_order = self.by_columns and self.count <= IN_ORDER
        self.every = LEVEL if is_float_sum(stage) and not in_order else 0  # additions between two levels

    def parts(self) -> int:
        """In how many parts the sum is made: columns as many as are summed in order, rows as threads need."""
        if not self.parallel or not self.stage.is_plain or isinstance(self.stage.value, tirx.Mul):
            return 1
        if self.by_columns:
            return 1 if self.count <= IN_ORDER else -(-self.count // (IN_ORDER // 2))
        return min(-(-PARTS // math.prod(self.results.sizes)), self.count // LEVEL)

    def nest(self) -> tirx.Stmt:
        """The loops, by what memory runs along."""
        return self._columns() if self.by_columns else self._rows()

    def _at(self, result: Sequence[Expr], term: Sequence[Expr]) -> dict[Any, Expr]:
        """The values of the iterators at a result and a term, given as indices of the groups of axes."""
        found = {**self.results.index(result), **self.terms.index(term)}
        return {v.var: found[i] for i, v in enumerate(self.stage.iters) if i in found}

    def _add(self, sums: Any, at: Expr, names: dict[Any, Expr]) -> tirx.Stmt:
        """Takes one term into the sum that lies at a place of the array of sums."""
        own, so_far = self.stage.buffer, tirx.BufferLoad(sums, [at])
        value = common.with_loads(self.stage.value, lambda load: so_far if load.source.same_as(own) else None)
        return tirx.BufferStore(sums, renamed(value, names), [at])

    def _store(self, value: Expr, result: Sequence[Expr]) -> tirx.Stmt:
        """Stores a result."""
        names = self._at(result, [tirx.IntImm(self.index, 0)] * len(self.terms.parts))
        return tirx.BufferStore(self.stage.buffer, value, [renamed(i, names) for i in self.stage.indices])

    def _columns(self) -> tirx.Stmt:
        """Sums down columns, some blocks of them: rows are added to an array of sums, some at once where far apart."""
        *rest, width = self.results.sizes
        few = self.count == self.terms.sizes[-1] <= 2 * ROWS  # registers hold their sums from the first to the last
        step, block = self._block(few)
        one_row = step == width or self.costly
        together = self.count if few else 1 if one_row else min(ROWS, self.terms.sizes[-1])
        lanes = self.lanes * (VECTORS if self.costly else 1)
        levels = Levels(self.terms.sizes, max(together, 1), self.every // max(together, 1), self.index)

        def sums(row: Sequence[Expr], first: Expr, columns: int) -> tirx.Stmt:
            """The sums of so many neighbouring columns."""
            own = Accumulators(self.stage, columns, levels.count, self.lanes, self.index)

            def some_rows(term: Sequence[Expr], many: int) -> tirx.Stmt:
                def of_step(begin: Expr, number: int) -> tirx.Stmt:
                    def add(r: Expr, column: Expr) -> tirx.Stmt:
                        names = self._at([*row, first + column], [*term[:-1], term[-1] + r])
                        return self._add(own.arrays[0], column, names)

                    def vector(r: Expr, start: Expr, width: int) -> tirx.Stmt:
                        return self.vector(width, lambda x: add(r, begin + start + x))

                    rows = partial(in_steps, number, lanes, dtype=self.index, kind=tirx.ForKind.UNROLLED)
                    return self.loop(many, lambda r: rows(partial(vector, r)), kind=tirx.ForKind.UNROLLED)

                return in_steps(columns, step, of_step, self.index)

            put = own.results(lambda at, value: self._store(value, [*row, first + at]))
            return sequence([*own.before(), levels.nest(some_rows, own.moved), put])

        def body(index: Expr) -> tirx.Stmt:
            *row, number = unravelled(index, [*rest, -(-width // block)])
            return cut(number, width, block, lambda columns: sums(row, number * block, columns))

        return self.loop(math.prod(rest) * -(-width // block), body, parallel=self.parallel)

    def _block(self, few: bool) -> tuple[int, int]:
        """The columns of a step, and of a block of steps, whose sums take half of L1: enough blocks for threads."""
        *rest, width = self.results.sizes
        most = VECTORS if self.costly else COSTLY_VECTORS
        step = width if width <= MAX_VECTORS * self.lanes else most * self.lanes
        step = common.divisor(width, self.lanes, step) or step
        parts = -(-common.least_parts(self.machine.threads) // math.prod(rest)) if self.parallel else 1
        held = self.machine.l1 * (2 if self.every else 4) // tvm.DataType(str(self.stage.buffer.dtype)).bits
        return step, step * (1 if few else max(min(held, width // parts) // step, 1))

    def _rows(self) -> tirx.Stmt:
        """A sum a result, of some vectors of sums where memory runs along the terms."""
        shape, width = self.results.sizes or (1,), self._width()
        levels = Levels(self.terms.sizes, width, self.every, self.index)

        def body(index: Expr) -> tirx.Stmt:
            result = unravelled(index, shape) if self.results.sizes else []
            own = Accumulators(self.stage, width, levels.count, self.lanes, self.index)

            def step(term: Sequence[Expr], many: int) -> tirx.Stmt:
                def add(lane: Expr) -> tirx.Stmt:
                    return self._add(own.arrays[0], lane, self._at(result, [*term[:-1], term[-1] + lane]))

                return self.vector(many, add)

            total, value = own.total()
            return sequence([*own.before(), levels.nest(step, own.moved), *total, self._store(value, result)])

        return self.loop(math.prod(shape), body, parallel=self.parallel)

    def _width(self) -> int:
        """How many sums of a row are made side by side; 1 where memory does not run along the terms."""
        inner = self.terms.sizes[-1]
        if not self.stage.is_plain or not all(s in (0, 1) for s in self.terms.strides[-1]):
            return 1
        if inner >= 2 * self.lanes:
            return self.lanes * min(VECTORS, inner // self.lanes)
        # rows of small images: short, but many are added up, so a part of a vector is better than none
        width = common.divisor(inner, self.lanes, self.lanes) or common.divisor(inner, 1, self.lanes) or 1
        return width if width >= SHORT and self.count >= MANY * inner else 1


RULE = Rule("reduction", "llvm", schedule, sums=True)
