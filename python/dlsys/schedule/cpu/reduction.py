"""Sums and maxima, one or a chain of them (softmax and its loss), with what is elementwise around them.

Long sums are cut into blocks (`blocked`), whose sums are independent results for vectors and threads. A sum is added
up in an array of its own, which lies in registers or in L1: of neighbouring results where memory runs along them
(columns), else of vectors along the terms (rows).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx

from .. import blocked, common
from ..codegen import block_of, cut, each, in_steps, lanes, loop, sequence, unravelled
from ..common import ACCUMULATORS, MAX_VECTORS, PARALLEL_WORK, axes_of, renamed
from ..row_stages import is_plain
from ..stages import Expr, Stage, extents, plain_stages, size, with_nests
from ..target import Machine, Rule
from . import pointwise, prefetch, rows
from .sharing import least_parts, wanted

FAR = 2048  # columns, from which on rows lie so far apart that ROWS of them are read at once
ROWS, FEW_VECTORS = 8, 2  # of each of them so many vectors
HELD = 4096  # sums that are held in L1
HUGE_ACCUMULATORS = 2  # vectors in which a row from memory is summed: four took a tenth longer (Zen 4)


def schedule(func: tirx.PrimFunc, machine: Machine) -> s_tir.Schedule:
    """Each row through all its stages at once where the stages share rows; else a stage at a time."""
    found = rows.schedule(func, machine)
    if found is None:
        sch = common.start(func)
        common.inline_spatial(sch)
        found = blocked.blocked(common.function_of(sch), machine)
    return common.start(pointwise.finish(finish(found, machine), machine))


def finish(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc:
    """The function with the loops of its sums that were not touched yet."""
    nests, changed = plain_stages(func), False
    for i, (_, stage) in enumerate(nests):
        if stage is not None and stage.reduced and size(stage.spatial):
            nests[i], changed = (block_of(stage.name, _Sum(stage, machine).nest(), whole=True), None), True
    return with_nests(func, [nest for nest, _ in nests]) if changed else func


class _Sum:
    """The loops of one sum, or of another reduction."""

    def __init__(self, stage: Stage, machine: Machine) -> None:
        self.stage, self.machine = stage, machine
        self.shape = extents(stage.iters)
        self.index = next((str(v.var.ty) for v in stage.iters), "int32")
        self.loop, self.each, self.vector = (partial(function, dtype=self.index) for function in (loop, each, lanes))
        self.dtype = str(stage.buffer.dtype)
        self.lanes = machine.lanes(self.dtype)
        found = common.accesses_of(stage.block)
        kinds = [v.iter_type for v in stage.iters]
        spatial = [i for i, kind in enumerate(kinds) if kind == tirx.IterVar.DataPar]
        self.results = axes_of(self.shape, spatial, found)
        self.terms = axes_of(self.shape, [i for i in range(len(kinds)) if i not in spatial], found)
        self.parallel = math.prod(self.shape) * common.operations(stage.block.body) >= PARALLEL_WORK

    def nest(self) -> tirx.Stmt:
        """The loops, by what memory runs along."""
        if self.results.sizes and self.results.sizes[-1] > 1 and all(s in (0, 1) for s in self.results.strides[-1]):
            return self._columns()
        return self._rows()

    def _at(self, result: Sequence[Expr], term: Sequence[Expr]) -> dict[Any, Expr]:
        """The values of the iterators at a result and a term, given as indices of the groups of axes."""
        found = {**self.results.index(result), **self.terms.index(term)}
        return {v.var: found[i] for i, v in enumerate(self.stage.iters) if i in found}

    def _add(self, sums: Any, at: Expr, names: dict[Any, Expr]) -> tirx.Stmt:
        """Takes one term into the sum that lies at a place of the array of sums."""

        def load(item: ir.TensorLoad, mutator: Any) -> Expr:
            own = item.source.same_as(self.stage.buffer)
            return tirx.BufferLoad(sums, [at]) if own else mutator.default_mutate(item)

        value = tvm_ffi.structural_mutate(self.stage.value, [(ir.TensorLoad, load)])
        return tirx.BufferStore(sums, renamed(value, names), [at])

    def _array(self, count: int) -> Any:
        return tirx.decl_buffer((count,), self.dtype, "sums", data_alignment=4)

    def _store(self, value: Expr, result: Sequence[Expr]) -> tirx.Stmt:
        names = self._at(result, [tirx.IntImm(self.index, 0)] * len(self.terms.parts))
        return tirx.BufferStore(self.stage.buffer, value, [renamed(i, names) for i in self.stage.indices])

    # Columns

    def _columns(self) -> tirx.Stmt:
        """Sums down columns, some blocks of them. Rows are read from end to end, some at once where they lie far apart,
        and added to an array of sums."""
        *rest, width = self.results.sizes
        parts, step, block, together = self._cut()

        def sums(row: Sequence[Expr], first: Expr, many: int) -> tirx.Stmt:
            """The sums of so many neighbouring columns."""
            array = self._array(many)

            def add(term: Sequence[Expr], start: Expr, number: int) -> tirx.Stmt:
                def at(lane: Expr) -> tirx.Stmt:
                    return self._add(array, start + lane, self._at([*row, first + start + lane], term))

                return self.vector(number, at)

            def some_rows(outer: Sequence[Expr]) -> tirx.Stmt:
                def row_of(number: Expr) -> Sequence[Expr]:
                    return [*outer[:-1], outer[-1] * together + number]

                def of_step(begin: Expr, number: int) -> tirx.Stmt:
                    return self.loop(together, lambda r: add(row_of(r), begin, number), kind=tirx.ForKind.UNROLLED)

                return in_steps(many, step, of_step, self.index)

            counts = [*self.terms.sizes[:-1], self.terms.sizes[-1] // together]
            terms = self.each(counts, some_rows)

            def clear(start: Expr, number: int) -> tirx.Stmt:
                return self.vector(number, lambda lane: self._clear(array, start + lane))

            def put(start: Expr, number: int) -> tirx.Stmt:
                return self.vector(number, lambda lane: self._put(array, start + lane, [*row, first + start + lane]))

            before, behind = (in_steps(many, MAX_VECTORS * self.lanes, code, self.index) for code in (clear, put))
            return sequence([tirx.AllocBuffer(array), before, terms, behind])

        def body(index: Expr) -> tirx.Stmt:
            *row, number = unravelled(index, [*rest, -(-width // block)])
            return cut(number, width, block, lambda many: sums(row, number * block, many))

        return self.loop(math.prod(rest) * -(-width // block), body, parallel=parts > 0)

    def _cut(self) -> tuple[int, int, int, int]:
        """How sums of columns are cut: the parts that threads should have, 0 for one thread; the columns of a step, and
        of a block of steps, whose sums are held; the rows that are read at once."""
        columns, width, lanes, vectors = math.prod(self.results.sizes), self.results.sizes[-1], self.lanes, MAX_VECTORS
        large = math.prod(self.shape) >= blocked.LEAST
        parts = (least_parts(self.machine) if large else wanted(self.machine)) if self.parallel else 0

        def step() -> int:
            return width if width <= vectors * lanes else common.divisor(width, lanes, vectors * lanes) or 0

        even = math.gcd(width, lanes)
        halves = not step() and 4 * even >= lanes  # no vectors divide the columns, but halves of them do, or quarters
        if halves:
            lanes, vectors = even, 1
        together = common.divisor(self.terms.sizes[-1], 1, ROWS) or 1 if halves or width >= FAR else 1
        vectors = vectors if together == 1 else min(vectors, FEW_VECTORS)
        if parts > 1:
            vectors = max(1, min(vectors, (columns if step() else width) // (parts * lanes)))
        own = step() or vectors * lanes
        most = max(1, min(HELD, columns // max(parts, 1)) // own)
        if step():
            return parts, own, own * (common.divisor(width // own, 1, most) or 1), together
        # the last step is narrower: sums stay in registers, but of an array that must be read from end to end
        huge = any(map(prefetch.is_huge, self.stage.loads()))
        return parts, own, own * most if huge else own, together

    def _clear(self, array: Any, at: Expr) -> tirx.Stmt:
        return tirx.BufferStore(array, self.stage.init, [at])

    def _put(self, array: Any, at: Expr, result: Sequence[Expr]) -> tirx.Stmt:
        return self._store(tirx.BufferLoad(array, [at]), result)

    # Rows

    def _rows(self) -> tirx.Stmt:
        """A sum a result: along vectors where memory runs along the terms, as many sums as fill some vectors, which are
        added up to one vector, and that to the result."""
        width = self._width()
        *outer, inner = self.terms.sizes
        count = math.prod(self.results.sizes)

        def row(index: Expr) -> tirx.Stmt:
            result = unravelled(index, self.results.sizes)
            array = self._array(width)

            def add(term: Sequence[Expr]) -> tirx.Stmt:
                def step(first: Expr, number: int) -> tirx.Stmt:
                    def at(lane: Expr) -> tirx.Stmt:
                        return self._add(array, lane, self._at(result, [*term, first + lane]))

                    return sequence([*self._ahead(result, term, first, number), self.vector(number, at)])

                return in_steps(inner, width, step, self.index)

            clear = self.vector(width, lambda lane: self._clear(array, lane))
            terms = self.each(outer, add)
            return sequence([tirx.AllocBuffer(array), clear, terms, *self._folded(array, width, result)])

        return self.loop(count, row, parallel=self.parallel)

    def _width(self) -> int:
        """How many sums of a row are made side by side; 1 where memory does not run along the terms."""
        inner = self.terms.sizes[-1]
        if not is_plain(self.stage) or not all(s in (0, 1) for s in self.terms.strides[-1]):
            return 1
        width = common.row_width(inner, math.prod(self.terms.sizes), self.lanes)
        huge = any(map(prefetch.is_huge, self.stage.loads()))
        if width == self.lanes * ACCUMULATORS and huge and inner % (self.lanes * HUGE_ACCUMULATORS) == 0:
            return self.lanes * HUGE_ACCUMULATORS
        if inner % width and inner >= 2 * self.lanes:
            return self.lanes * ACCUMULATORS
        return width if inner % width == 0 else 1

    def _ahead(self, result: Sequence[Expr], term: Sequence[Expr], first: Expr, number: int) -> list[tirx.Stmt]:
        """The fetches of what later steps read of arrays that no cache holds."""
        found: list[tirx.Stmt] = []
        if number > 1:
            for load in filter(prefetch.is_huge, self.stage.loads()):
                *lead, last = (renamed(i, self._at(result, [*term, first])) for i in load.indices)
                found += prefetch.lines_from(load.source, [*lead, last + prefetch.AHEAD], number)
        return found

    def _folded(self, array: Any, width: int, result: Sequence[Expr]) -> list[tirx.Stmt]:
        """Adds up the sums of a row, and stores the result."""
        made: list[tirx.Stmt] = []
        if width > self.lanes and width % self.lanes == 0:
            vector = self._array(self.lanes)
            made += [tirx.AllocBuffer(vector), self.vector(self.lanes, lambda lane: self._clear(vector, lane))]
            made.append(
                self.loop(
                    width // self.lanes,
                    lambda i: self.vector(self.lanes, lambda x: self._joined(vector, x, array, i * self.lanes + x)),
                    kind=tirx.ForKind.UNROLLED,
                )
            )
            array, width = vector, self.lanes
        if width > 1:
            total = self._array(1)
            zero = tirx.IntImm(self.index, 0)
            made += [tirx.AllocBuffer(total), self._clear(total, zero)]
            made.append(self.loop(width, lambda i: self._joined(total, zero, array, i), kind=tirx.ForKind.UNROLLED))
            array = total
        return [*made, self._put(array, tirx.IntImm(self.index, 0), result)]

    def _joined(self, to: Any, at: Expr, array: Any, place: Expr) -> tirx.Stmt:
        combine = type(self.stage.value)
        return tirx.BufferStore(to, combine(tirx.BufferLoad(to, [at]), tirx.BufferLoad(array, [place])), [at])


RULE = Rule("reduction", "llvm", schedule, sums=True)
