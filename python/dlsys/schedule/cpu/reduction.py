"""Sums and maxima, one or a chain of them (softmax and its loss), with what is elementwise around them.

A sum is added up in arrays of its own, which lie in registers or in L1: of neighbouring results where memory runs along
them (columns), else of vectors along the terms (rows). Long ones are cut in levels, and in parts where results are too
few for threads. A matrix times a vector is such a sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import tvm
from tvm import tirx

from ...compute import IN_ORDER
from .. import common
from ..codegen import block_of, cut, in_steps, lanes, loop, sequence, unravelled
from ..common import COSTLY_VECTORS, MANY, MAX_VECTORS, PARALLEL_WORK, SHORT, VECTORS, axes_of, renamed
from ..squares import STRIDES
from ..stages import Expr, Stage, extents, inlined, nests_of, size, with_nests
from ..sums import LEVEL, PARTS, Accumulators, Levels, in_parts, is_float_sum, parts_along
from ..target import Machine, Rule
from . import pointwise, rows
from .images import Images
from .tiles import least_parts

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

    def __init__(self, stage: Stage, machine: Machine, taps: Iterable[int] = ()) -> None:
        """`taps`: axes of the results, the last ones, that are places in windows: then rows are summed."""
        self.stage, self.machine, self.taps = stage, machine, frozenset(taps)
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
        self.by_columns = bool(sizes) and sizes[-1] > 1 and not taps and all(s in (0, 1) for s in strides[-1])
        in_order = self.by_columns and self.count <= IN_ORDER
        self.every = LEVEL if is_float_sum(stage) and not in_order else 0  # additions between two levels

    def parts(self) -> int:
        """In how many parts the sum is made: columns as many as are summed in order, rows as threads need."""
        if not self.parallel or not self.stage.is_plain or isinstance(self.stage.value, tirx.Mul):
            return 1
        if self.by_columns:
            return 1 if self.count <= IN_ORDER else -(-self.count // (IN_ORDER // 2))
        return min(-(-PARTS * self._together(self.results.sizes) // math.prod(self.results.sizes)), self.count // LEVEL)

    def nest(self) -> tirx.Stmt:
        """The loops, by what memory runs along."""
        return self._columns() if self.by_columns else self.rows()

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
        parts = -(-least_parts(self.machine) // math.prod(rest)) if self.parallel else 1
        held = self.machine.l1 * (2 if self.every else 4) // tvm.DataType(str(self.stage.buffer.dtype)).bits
        return step, step * (1 if few else max(min(held, width // parts) // step, 1))

    def rows(self, images: Images | None = None) -> tirx.Stmt:
        """A sum a result, of some vectors of sums where memory runs along the terms. `images`: those of the leading
        results, made before these."""
        shape, parts = self.results.sizes or (1,), self.results.parts
        lead = next((i for i, part in enumerate(parts) if not self.taps.isdisjoint(part)), len(shape) - 1)
        width, together = self._width(), self._together(shape[lead:])
        width = min(width, self.lanes * COSTLY_VECTORS) if together > 1 else width
        levels = Levels(self.terms.sizes, width, self.every, self.index)
        count = math.prod(shape[lead:]) // together

        def body(index: Expr) -> tirx.Stmt:
            """The sums of so many neighbouring results, whose rows are read side by side."""
            *first, last = unravelled(index, [*shape[:lead], count])
            neighbours = [unravelled(last * together + r, shape[lead:]) for r in range(together)]
            results = [[*first, *places] if self.results.sizes else [] for places in neighbours]
            own = [Accumulators(self.stage, width, levels.count, self.lanes, self.index) for _ in results]

            def step(term: Sequence[Expr], many: int) -> tirx.Stmt:
                def add(result: Sequence[Expr], array: Any, lane: Expr) -> tirx.Stmt:
                    return self._add(array, lane, self._at(result, [*term[:-1], term[-1] + lane]))

                both = zip(results, own, strict=True)
                return sequence([self.vector(many, partial(add, result, one.arrays[0])) for result, one in both])

            code = [statement for one in own for statement in one.before()]
            code.append(levels.nest(step, lambda level: [x for one in own for x in one.moved(level)]))
            for result, one in zip(results, own, strict=True):
                total, value = one.total()
                code += [*total, self._store(value, result)]
            return sequence(code)

        if images is None:
            return self.loop(math.prod(shape[:lead]) * count, body, parallel=self.parallel)

        def of_images(index: Expr) -> tirx.Stmt:
            first = self.results.index([*unravelled(index, shape[:lead]), *[0] * (len(shape) - lead)])
            made = images.laid(self.loop, first, VECTORS * self.lanes)
            sums = self.loop(count, lambda i: body(index * count + i))
            return sequence([tirx.AllocBuffer(images.buffer), made, sums])

        return self.loop(math.prod(shape[:lead]), of_images, parallel=self.parallel)

    def _together(self, neighbours: Sequence[int]) -> int:
        """How many neighbouring results are summed at once, as all read the same vector: of a matrix times a vector,
        and of windows, which have most of their elements in common too."""
        if self.taps:
            return common.divisor(math.prod(neighbours), 1, self.machine.registers // 2) or 1
        if self._width() == 1 or not self.results.sizes:
            return 1
        strides = zip(self.results.strides[-1], self.terms.strides[-1], strict=True)
        shared = any(result == 0 and term == 1 for result, term in strides)
        last = self.results.sizes[-1]
        return math.gcd(last, VECTORS) if shared else 1

    def _width(self) -> int:
        """How many sums of a row are made side by side; 1 where memory does not run along the terms."""
        inner = self.terms.sizes[-1]
        known = (0, 1, *STRIDES) if self.taps else (0, 1)
        if not self.stage.is_plain or not all(s in known for s in self.terms.strides[-1]):
            return 1
        if inner >= 2 * self.lanes:
            return self.lanes * min(VECTORS, inner // self.lanes)
        # rows of small images: short, but many are added up, so a part of a vector is better than none
        width = common.divisor(inner, self.lanes, self.lanes) or common.divisor(inner, 1, self.lanes) or 1
        return width if width >= SHORT and self.count >= MANY * inner else 1


RULE = Rule("reduction", "llvm", schedule, sums=True)
