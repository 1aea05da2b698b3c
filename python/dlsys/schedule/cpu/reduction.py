"""Sums and maxima, one or a chain of them (softmax and its loss), with what is elementwise around them.

A sum is added up in an array of its own, which lies in registers or in L1: of neighbouring results where memory runs
along them (columns), else of vectors along the terms (rows). Long ones are cut, see `levels`: columns of floats in
parts, whose sums are added up by another nest, rows in levels; and all in parts where results are too few for threads.
A matrix times a vector is such a sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx

from ...compute import IN_ORDER
from .. import common
from ..codegen import block_of, cut, each, in_steps, lanes, loop, sequence, unravelled
from ..common import ACCUMULATORS, MANY, MAX_VECTORS, PARALLEL_WORK, SHORT, axes_of, renamed
from ..levels import IN_TURN, PARTS, Accumulators, Levels, is_float_sum, is_plain, of_array
from ..stages import Expr, Stage, extents, inlined, plain_stages, size, with_nests
from ..target import Machine, Rule
from . import pointwise, prefetch, rows
from .sharing import least_parts

ROWS = 8  # of columns that are read at once, where registers hold no row's sums
FEW_VECTORS = 2  # of each of them in a step
HELD = 512  # vectors of sums that are held in L1
HUGE_ACCUMULATORS = 2  # vectors in which a row from memory is summed: four took a tenth longer (Zen 4)


def schedule(func: tirx.PrimFunc, machine: Machine) -> s_tir.Schedule:
    """Each row through all its stages at once where the stages share rows; else a stage at a time."""
    found = rows.schedule(func, machine)
    if found is None:
        func, _ = inlined(func) or (func, None)
        found = func, plain_stages(func), []
    return common.start(pointwise.finish(finish(*found, machine), machine))


def finish(
    func: tirx.PrimFunc,
    nests: Sequence[tuple[tirx.Stmt, Stage | None]],
    arrays: Sequence[ir.Var],
    machine: Machine,
) -> tirx.PrimFunc:
    """The function with the loops of those of its nests that are sums; `arrays` are those that they use besides."""
    made: list[tirx.Stmt] = []
    own = list(arrays)
    for nest, stage in nests:
        if stage is None or not stage.reduced or not size(stage.spatial):
            made.append(nest)
            continue
        found, more = _nests(stage, machine)
        made += found
        own += more
    return with_nests(func, made, own)


def _nests(stage: Stage, machine: Machine) -> tuple[list[tirx.Stmt], list[ir.Var]]:
    """The loops of a sum; in parts those of the parts, then of the sum of these, and the array between."""
    whole = _Sum(stage, machine)
    nest = block_of(stage.name, whole.nest(), whole=True)
    if whole.array is None:
        return [nest], []
    nests, arrays = _nests(of_array(stage, whole.array, whole.by_columns), machine)
    return [nest, *nests], [whole.array, *arrays]


class _Sum:
    """The loops of one sum, or of another reduction.

    In parts it is a sum for each index of the first `lead` groups of the terms' axes, and for each `length` indices of
    the next.

    Attributes:
        by_columns: whether memory runs along the results.
        array: where the parts' sums are stored; None where there is one part.
    """

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
        self.float = is_float_sum(stage)
        self.parallel = math.prod(self.shape) * common.operations(stage.block.body) >= PARALLEL_WORK
        sizes, strides = self.results.sizes, self.results.strides
        self.by_columns = bool(sizes) and sizes[-1] > 1 and all(s in (0, 1) for s in strides[-1])
        self.lead, self.length = self._part()
        *outer, extent = self.terms.sizes[: self.lead + 1]
        self.counts = (*outer, -(-extent // self.length))
        self.array: ir.Var | None = None
        if (parts := math.prod(self.counts)) > 1:
            own = extents(stage.spatial)
            shape = (parts, *own) if self.by_columns else (*own, parts)
            self.array = tirx.decl_buffer(shape, self.dtype, f"{stage.name}_parts", data_alignment=4, layout=None)

    def _part(self) -> tuple[int, int]:
        """The first groups of the terms' axes each of whose indices is a part, and how many indices of the next are:
        some 256 terms of a column of floats, for accuracy; else parts where results are too few for threads."""
        sizes, count = self.terms.sizes, math.prod(self.terms.sizes)
        plain = is_plain(self.stage) and not isinstance(self.stage.value, tirx.Mul)
        if not plain or (self.by_columns and count <= IN_ORDER):
            return 0, sizes[0]
        if self.by_columns and self.float:
            parts = -(-count // (IN_ORDER // 2))
        else:
            *rest, width = self.results.sizes or (1,)
            blocks = -(-width // (HELD * self.lanes)) if self.by_columns else width // self._together()
            parts = -(-PARTS // (math.prod(rest) * blocks)) if self.parallel else 1
        lead = 0
        if self.float and not self.by_columns and sizes[-1] > IN_TURN * self.lanes and sizes[-1] % self.lanes:
            lead, parts = len(sizes) - 1, -(-parts // math.prod(sizes[:-1]))  # what is left of a row then comes last
        while lead < len(sizes) - 1 and sizes[lead] <= parts:
            parts, lead = parts // sizes[lead], lead + 1
        last = lead == len(sizes) - 1
        unit = 1 if not last else ROWS if self.by_columns else self.lanes * ACCUMULATORS  # so that vectors lie alike
        about = max(-(-sizes[lead] // max(parts * unit, 1)), 1)
        whole = common.divisor(sizes[lead] // unit, 1, about) if sizes[lead] % unit == 0 else None
        return lead, min((whole if whole and 2 * whole > about else about) * unit, sizes[lead])

    def nest(self) -> tirx.Stmt:
        """The loops, by what memory runs along."""
        return self._columns() if self.by_columns else self._rows()

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

    def _accumulators(self, width: int, levels: int = 1) -> Accumulators:
        return Accumulators(self.stage, width, levels, self.lanes, self.index)

    def _store(self, value: Expr, result: Sequence[Expr], part: Sequence[Expr]) -> tirx.Stmt:
        """Stores a result, or that of a part."""
        names = self._at(result, [tirx.IntImm(self.index, 0)] * len(self.terms.parts))
        if self.array is None:
            return tirx.BufferStore(self.stage.buffer, value, [renamed(i, names) for i in self.stage.indices])
        number, own = _ravelled(part, self.counts), [names[v.var] for v in self.stage.spatial]
        return tirx.BufferStore(self.array, value, [number, *own] if self.by_columns else [*own, number])

    def _of_part(self, part: Sequence[Expr], many: int) -> tuple[list[int], Callable[[Sequence[Expr]], list[Expr]]]:
        """The shape of a part's terms, and from an index of it to that of a term."""
        *outer, number = part
        shape = [many, *self.terms.sizes[self.lead + 1 :]]
        return shape, lambda index: [*outer, number * self.length + index[0], *index[1:]]

    # Columns

    def _columns(self) -> tirx.Stmt:
        """Sums down columns, some blocks of them. Rows are read from end to end, some at once where they lie far apart,
        and added to an array of sums."""
        *rest, width = self.results.sizes
        threads, step, block, most = self._cut()

        def sums(row: Sequence[Expr], part: Sequence[Expr], first: Expr, columns: int, many: int) -> tirx.Stmt:
            """The sums of so many neighbouring columns, over so many indices."""
            shape, term_of = self._of_part(part, many)
            own = self._accumulators(columns)
            together = common.divisor(shape[-1], 1, most) or 1

            def add(term: Sequence[Expr], start: Expr, number: int) -> tirx.Stmt:
                def at(lane: Expr) -> tirx.Stmt:
                    return self._add(own.arrays[0], start + lane, self._at([*row, first + start + lane], term_of(term)))

                if number & (number - 1) == 0:
                    return self.vector(number, at)
                # LLVM takes vectors of other lengths apart
                return in_steps(number, self.lanes, vector_of(at), self.index, tirx.ForKind.UNROLLED)

            def vector_of(at: Callable[[Expr], tirx.Stmt]) -> Callable[[Expr, int], tirx.Stmt]:
                return lambda begin, n: self.vector(n, lambda lane: at(begin + lane))

            def some_rows(outer: Sequence[Expr]) -> tirx.Stmt:
                def row_of(number: Expr) -> Sequence[Expr]:
                    return [*outer[:-1], outer[-1] * together + number]

                def of_step(begin: Expr, number: int) -> tirx.Stmt:
                    return self.loop(together, lambda r: add(row_of(r), begin, number), kind=tirx.ForKind.UNROLLED)

                return in_steps(columns, step, of_step, self.index)

            put = own.results(lambda at, value: self._store(value, [*row, first + at], part))
            return sequence([*own.before(), self.each([*shape[:-1], shape[-1] // together], some_rows), put])

        def body(index: Expr) -> tirx.Stmt:
            *at, number = unravelled(index, [*self.counts, *rest, -(-width // block)])
            part, row = at[: len(self.counts)], at[len(self.counts) :]

            def of_block(columns: int) -> tirx.Stmt:
                whole = self.terms.sizes[self.lead]
                return cut(part[-1], whole, self.length, lambda many: sums(row, part, number * block, columns, many))

            return cut(number, width, block, of_block)

        count = math.prod([*self.counts, *rest]) * -(-width // block)
        return self.loop(count, body, parallel=threads > 0)

    def _cut(self) -> tuple[int, int, int, int]:
        """How sums of columns are cut: the parts that threads should have, 0 for one thread; the columns of a step, and
        of a block of steps, whose sums are held; the rows that are read at once."""
        columns = math.prod([*self.counts, *self.results.sizes])
        width, lanes, vectors = self.results.sizes[-1], self.lanes, MAX_VECTORS
        registers = self.machine.registers * 2 // 3
        parts = least_parts(self.machine) if self.parallel else 0

        def step() -> int:
            return width if width <= registers * lanes else common.divisor(width, lanes, vectors * lanes) or 0

        inner = self.length if self.lead == len(self.terms.sizes) - 1 else self.terms.sizes[-1]
        together = common.divisor(inner, 1, max(ROWS // self._streams(), 1)) or 1 if width > vectors * lanes else 1
        if inner == math.prod(self.terms.sizes) <= 2 * ROWS:
            together = inner  # registers hold the sums of a step from the first row to the last
        vectors = vectors if together == 1 else min(vectors, FEW_VECTORS)
        if parts > 1:
            vectors = max(1, min(vectors, (columns if step() else width) // (parts * lanes)))
        own = step() or vectors * lanes
        most = max(1, min(HELD * self.lanes, columns // max(parts, 1)) // own)
        if together == math.prod(self.terms.sizes):
            return parts, own, own, together
        if step():
            sizes = (own * n for n in range(most, 0, -1) if width // own % n == 0)

            def longest(size: int) -> int:
                """The work of the busiest thread, in columns; to begin a block takes as long as some steps."""
                return -(-columns // size // max(parts, 1)) * (size + ROWS * own)

            return parts, own, min(sizes, key=longest), together
        # the last step is narrower: sums stay in registers, but of an array that must be read from end to end
        huge = any(map(prefetch.is_huge, self.stage.loads()))
        return parts, own, own * most if huge or together > 1 else own, together

    def _streams(self) -> int:
        """The arrays that columns are read of; at least one."""
        loads = {a for a in common.accesses_of(self.stage.block) if a.strides and not a.is_write}
        found = sum(a.strides is not None and a.strides[self.results.parts[-1][-1]] == 1 for a in loads)
        return max(found - 1, 1)  # the sums themselves are another

    # Rows

    def _rows(self) -> tirx.Stmt:
        """A sum a result: along vectors where memory runs along the terms, as many sums as fill some vectors, which are
        added up to one vector, and that to the result."""
        width, together = self._width(), self._together()
        width = min(width, self.lanes * ACCUMULATORS // 2) if together > 1 else width
        *lines, last_line = self.results.sizes or (1,)

        def sums(row: Sequence[Expr], part: Sequence[Expr], many: int) -> tirx.Stmt:
            """The sums of so many neighbouring results, whose rows are read side by side."""
            results = [[*row[:-1], row[-1] * together + r] for r in range(together)] if row else [[]]
            shape, term_of = self._of_part(part, many)
            *outer, inner = shape
            whole, left = divmod(inner, width)
            # what is left of the one row comes last; of several rows each has its own
            loops, once = (outer, whole + 1) if left and outer else ([*outer, whole], 1)
            levels = Levels(loops, IN_TURN // once if self.float else 0, self.index)
            own = [self._accumulators(width, levels.count) for _ in results]

            def add(lead: Sequence[Expr], first: Expr, number: int, level: int) -> tirx.Stmt:
                def of(result: Sequence[Expr], array: Any) -> tirx.Stmt:
                    def at(lane: Expr) -> tirx.Stmt:
                        return self._add(array, lane, self._at(result, term_of([*lead, first + lane])))

                    return sequence([*self._ahead(result, term_of([*lead, first]), number), self.vector(number, at)])

                return sequence([of(result, one.arrays[level]) for result, one in zip(results, own, strict=True)])

            def step(term: Sequence[Expr]) -> tirx.Stmt:
                if once > 1:
                    return in_steps(inner, width, lambda first, n: add(term, first, n, 0), self.index)
                return add(term[:-1], term[-1] * width, width, 0)

            def moved(level: int) -> list[tirx.Stmt]:
                return [code for one in own for code in one.moved(level)]

            code = [statement for one in own for statement in one.before()]
            code += [levels.nest(step, moved)] if whole or outer else []
            code += [add([], tirx.IntImm(self.index, whole * width), left, -1)] if left and not outer else []
            for result, one in zip(results, own, strict=True):
                total, value = one.total()
                code += [*total, self._store(value, result, part)]
            return sequence(code)

        counts = [*lines, last_line // together] if self.results.sizes else []

        def body(index: Expr) -> tirx.Stmt:
            at = unravelled(index, [*counts, *self.counts])
            row, part = at[: len(counts)], at[len(counts) :]
            return cut(part[-1], self.terms.sizes[self.lead], self.length, lambda many: sums(row, part, many))

        return self.loop(math.prod([*counts, *self.counts]), body, parallel=self.parallel)

    def _together(self) -> int:
        """How many neighbouring results are summed at once, as they read a vector of terms that is the same for all: of
        a matrix times a vector."""
        if self._width() == 1 or not self.results.sizes:
            return 1
        strides = zip(self.results.strides[-1], self.terms.strides[-1], strict=True)
        shared = any(result == 0 and term == 1 for result, term in strides)
        return math.gcd(self.results.sizes[-1], ACCUMULATORS) if shared else 1

    def _width(self) -> int:
        """How many sums of a row are made side by side; 1 where memory does not run along the terms."""
        inner, terms = self.terms.sizes[-1], math.prod(self.terms.sizes)
        if not is_plain(self.stage) or not all(s in (0, 1) for s in self.terms.strides[-1]):
            return 1
        if inner >= 2 * self.lanes:
            huge = any(map(prefetch.is_huge, self.stage.loads()))
            most = self.lanes * min(HUGE_ACCUMULATORS if huge else ACCUMULATORS, inner // self.lanes)
            whole = common.divisor(inner, self.lanes, most) or 0
            return whole if 2 * whole >= most else most
        # rows of small images: short, but many are added up, so a part of a vector is better than none
        width = common.divisor(inner, self.lanes, self.lanes) or common.divisor(inner, 1, self.lanes) or 1
        return width if width >= SHORT and terms >= MANY * inner else 1

    def _ahead(self, result: Sequence[Expr], term: Sequence[Expr], number: int) -> list[tirx.Stmt]:
        """The fetches of what later steps read of arrays that no cache holds."""
        found: list[tirx.Stmt] = []
        if number > 1:
            for load in filter(prefetch.is_huge, self.stage.loads()):
                *lead, last = (renamed(i, self._at(result, term)) for i in load.indices)
                found += prefetch.lines_from(load.source, [*lead, last + prefetch.AHEAD], number)
        return found


def _ravelled(index: Sequence[Expr], shape: Sequence[int]) -> Expr:
    """The number of an index in row-major order."""
    number: Expr = 0
    for at, extent in zip(index, shape, strict=True):
        number = number * extent + at
    return number


RULE = Rule("reduction", "llvm", schedule, sums=True)
