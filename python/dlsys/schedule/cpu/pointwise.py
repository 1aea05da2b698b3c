"""Functions of an index alone: no sum, every value from its index. The loops are written here, one nest for all results
of one shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import tvm
from tvm import ir, tirx

from .. import common
from ..codegen import VectorCode, block_of, cut, each, in_steps, lanes, loop, sequence, unravelled
from ..common import COSTLY_VECTORS, MAX_VECTORS, PARALLEL_WORK, VECTORS, Axes, Strides, axes_of, renamed
from ..squares import SIDE, STRIDES, turned
from ..stages import Expr, Stage, domains, extents, inlined, kept, loads_of, size, with_nests
from ..target import Machine, Rule
from .prefetch import next_row

CHUNK = 16  # steps of a thread's share when a ragged loop is cut: some 2 KiB of float32


def schedule(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc | None:
    """A loop nest for each result, or one for all results of one shape: vectorized, parallel where large. Such a nest
    reads all inputs of an index before it stores, so an output may be an input. Declines what is no stage."""
    if (stages := inlined(func)) is None:  # one pass over memory
        return None
    groups = [group for group in domains(stages) if size(group[0].iters)]
    stored = [kept(group, stages, set(func.params)) for group in groups]
    cheap = not any(common.is_costly(stage.value) for stage in stages)  # others have more to do than to wait for memory
    vectors = step_vectors(func, machine) if cheap else VECTORS
    return with_nests(func, [block(*one, machine, vectors) for one in zip(groups, stored, strict=True)])


def step_vectors(func: tirx.PrimFunc, machine: Machine) -> int:
    """Vectors of a step; fewer where the arrays of a function take more than half of L3, so that they lie in memory: of
    four lines then, two of an array, as 16 take 1.6 times as long (a layer norm's gradients)."""
    sizes = [*map(common.nbytes_of, func.params)]
    if 2 * sum(sizes) <= machine.l3:
        return VECTORS
    far = max(sum(size >= machine.l2 for size in sizes), 2)
    return min(VECTORS, max(4 * machine.line * 8 // (far * machine.vector_bits), 1))


def block(group: Sequence[Stage], stored: set[Any], machine: Machine, vectors: int = VECTORS) -> tirx.Stmt:
    """The loops of stages of one domain, which store some of their buffers; so many `vectors` a step."""
    return block_of(group[-1].name, _Loops(group, stored, machine, vectors).nest())


class _Loops:
    """The loops over a domain, which compute stages of it and store the buffers `stored`."""

    def __init__(self, group: Sequence[Stage], stored: set[Any], machine: Machine, vectors: int) -> None:
        self.group, self.stored, self.machine, self.vectors = group, stored, machine, vectors
        self.index = next((str(v.var.ty) for v in group[0].iters), "int32")
        self.loop, self.each, self.vector = (partial(function, dtype=self.index) for function in (loop, each, lanes))
        self.shape = extents(group[0].iters)
        places = [(s, *place) for s in group for place in common.places_of(s.block.body)]
        strides = [(array, common.strides_of(stage.block, array, indices)) for stage, array, indices in places]
        self.accesses = list(dict.fromkeys(access for _, access in strides))
        self.branching = any(common.branching_of(stage.block) for stage in group)
        self.spans = self._spans() if self.branching else []
        self.by_row = bool(self.spans)  # branches are taken for all of a span
        self.axes = self._axes()
        *self.outer, self.inner = self.axes.sizes or (1,)
        written = {stage.buffer for stage in group}
        self.side, self.several = self._side({load for load in strides if load[0] not in written})
        self.rows = math.prod(self.outer) // self.several
        self.lanes = min(min(_lanes(s.value, machine), machine.lanes(s.buffer.dtype)) for s in group)
        self.work = sum(common.operations(stage.value) for stage in group)
        large = math.prod(self.shape) * self.work >= PARALLEL_WORK
        self.parts = common.least_parts(machine.threads) if large else 0

    def _axes(self) -> Axes:
        """The axes of the loops, joined where all accesses allow it; `by_row` keeps the last one apart."""
        last = len(self.shape) - 1
        if not self.by_row:
            return axes_of(self.shape, range(last + 1), self.accesses)
        rows, row = (axes_of(self.shape, part, self.accesses) for part in (range(last), [last]))
        return Axes(self.shape, (*rows.parts, *row.parts), (*rows.strides, *row.strides))

    def _spans(self) -> list[tuple[int, int]]:
        """The first index and the end of spans of the last axis within which no condition changes: what lies between an
        image's borders is loaded as vectors then. None where a condition has another form."""
        extent = self.shape[-1]
        first, end = 0, extent
        for stage in self.group:
            calls = [call for call in common.found_in(stage.value, ir.Call) if common.is_branch(call)]
            conditions = [part for call in calls for part in common.conjuncts(call.args[0])]
            own = [part for part in conditions if common.reads(part, stage.iters[-1].var)]
            low, high, others = common.bounds_of(own, stage.iters[-1])
            if others:
                return []
            if own:
                first, end = max(first, low), min(end, high)
        cuts = [0, first, max(first, end), extent]
        return [(low, high) for low, high in pairwise(cuts) if low < high]

    def _side(self, loads: Iterable[tuple[Any, Strides]]) -> tuple[int, int]:
        """A group of axes, and how many of its indices are computed side by side, so that vectors along the last axis
        are loaded once for all: those that do not move along the group, and leave L1 before its next index. Winograd's
        six sums of the same six rows are such a group. Of no group it is one."""
        moving = [(array, s) for array, s in loads if s is None or (s and s[-1] != 0)]
        nbytes = self.inner * sum(-(-tvm.DataType(str(array.dtype)).bits // 8) for array, _ in moving)
        for group, extent in enumerate(self.outer):
            still = all(s and s[-1] == 1 and not any(s[x] for x in self.axes.parts[group]) for _, s in moving)
            several = common.divisor(extent, 1, MAX_VECTORS) or 1
            if still and several > 1 and nbytes * math.prod(self.outer[group + 1 :]) > self.machine.l1 // 2:
                return group, several
        return 0, 1

    def nest(self) -> tirx.Stmt:
        """The loops in the order that suits what they read."""
        alone = len(self.group) == 1
        across = next((i for i in range(len(self.outer)) if alone and self._crossing(i)), None)
        if across is not None:
            return self._in_tiles(across)
        steps = (0, 1, *STRIDES) if alone else (0, 1)
        return self._in_rows(bool(self.shape) and any(s not in steps for s in self.axes.strides[-1]))

    def at(self, parts: Sequence[Expr]) -> list[Expr]:
        """The index of the domain at an index of each group of axes."""
        found = self.axes.index(parts) if self.shape else {}
        return [found[x] for x in range(len(self.shape))]

    # Along memory

    def _in_rows(self, apart: bool) -> tirx.Stmt:
        """Rows, and along each some vectors a step; elements that lie `apart` one by one, with the next row fetched."""

        def steps(row: Expr, first: Expr, count: int) -> tirx.Stmt:
            """`count` elements of a row from `first` on."""
            width = 1 if apart else self._width(count)
            return in_steps(count, width, lambda start, n: self._vector(row, first + start, n), self.index)

        def whole(row: Expr) -> tirx.Stmt:
            spans = [steps(row, low, high - low) for low, high in self.spans or [(0, self.inner)]]
            return sequence([*(self._next_row(row) if apart else []), *spans])

        width, many = self._width(self.inner), self.rows >= self.parts and (apart or bool(self.outer))
        if not self.parts or many or (not apart and (self.by_row or self.inner <= width)):
            return self.loop(self.rows, whole, parallel=self.parts > 0)
        if apart:
            return self._shared(-(-self.inner // -(-self.parts // self.rows)), steps)
        return self._shared(width if self.inner % width == 0 else width * CHUNK, steps)

    def _width(self, extent: int) -> int:
        """Elements of some vectors, which divide so many of a row where that can be."""
        whole = extent % (COSTLY_VECTORS * self.lanes) == 0
        most = self.vectors if not self.by_row else COSTLY_VECTORS if whole else 1
        most = most if self.several == 1 else 1  # the results side by side fill the registers
        width = min(extent, self.lanes * most)
        return width if width == extent else common.divisor(extent, self.lanes, width) or width

    def _next_row(self, row: Expr) -> list[tirx.Stmt]:
        """Statements that fetch the next row into the cache; none where rows are not whole."""
        whole = self.outer and self.rows >= max(self.parts, 1) and len(self.axes.parts) == len(self.shape)
        if not whole or len(self.group) > 1:
            return []
        return next_row(self.group[0], unravelled(row, self.outer), self.machine)

    def _vector(self, row: Expr, first: Expr, width: int) -> tirx.Stmt:
        """Some neighbours in a row, from its element `first` on; in as many rows as are computed side by side."""
        if len(self.group) == 1 and self.several == 1:
            return self.vector(width, lambda lane: self._element(self.at([*unravelled(row, self.outer), first + lane])))
        vector = VectorCode(width, self.index)
        for place in self._places(row):
            vector.compute(self.group, self.at([*place, first + vector.lane]), {}, self.stored)
        return vector.loop()

    def _places(self, row: Expr) -> list[list[Expr]]:
        """The rows that are computed side by side with one, as indices of the groups of axes but the last."""
        if self.several == 1:
            return [unravelled(row, self.outer)]
        before, size, after = self.outer[: self.side], self.outer[self.side], self.outer[self.side + 1 :]
        place = unravelled(row, [*before, size // self.several, *after])
        first = place[self.side] * self.several
        return [[*place[: self.side], first + n, *place[self.side + 1 :]] for n in range(self.several)]

    def _shared(self, share: int, steps: Callable[[Expr, Expr, int], tirx.Stmt]) -> tirx.Stmt:
        """Rows, few of them, cut into shares of so many elements, which threads take; what is left of a row follows."""
        whole, rest = divmod(self.inner, share)

        def body(part: Expr) -> tirx.Stmt:
            row, number = unravelled(part, (self.rows, whole))
            return steps(row, number * share, share)

        last = self.loop(self.rows, lambda row: steps(row, whole * share, rest)) if rest else None
        return sequence([self.loop(self.rows * whole, body, parallel=True), *([last] if last else [])])

    # Across memory

    def _crossing(self, part: int) -> list[Strides]:
        """The accesses that run along a group of axes where the output runs along the last."""
        steps = zip(self.accesses, self.axes.strides[part], self.axes.strides[-1], strict=True)
        return [access for access, along, last in steps if along == 1 and last not in (0, 1, None)]

    def _in_tiles(self, across: int) -> tirx.Stmt:
        """Square tiles, whose lines of both arrays stay in cache until they are used up. Where tiles divide the array,
        what crosses is first copied, line by line: rows a power of two apart would drive each other out of L1."""
        sizes = self.axes.sizes
        exact = [common.divisor(sizes[i], 1, SIDE) or 1 for i in (across, -1)]
        copied = self._crossing_loads(across) if min(exact) >= SIDE // 2 else []
        high, wide = exact if copied else [min(SIDE, sizes[i]) for i in (across, -1)]

        counts = (*sizes[:across], -(-sizes[across] // high), -(-sizes[-1] // wide))
        outer = common.enough(counts, self.parts)

        def tile(index: Sequence[Expr], inside: Sequence[Expr]) -> tirx.Stmt:
            *lead, up, right = index

            def at(row: Expr, column: Expr) -> list[Expr]:
                return self.at([*lead, up * high + row, *inside, right * wide + column])

            def of_row(row: Expr, columns: int) -> tirx.Stmt:
                return self.loop(columns, lambda c: self.vector(1, lambda _: self._element(at(row, c))))

            if copied:
                return self._turned(copied, high, wide, at)
            ends = (up, sizes[across], high), (right, sizes[-1], wide)
            part = partial(cut, *ends[1])
            return cut(*ends[0], lambda rows: part(lambda columns: self.loop(rows, lambda r: of_row(r, columns))))

        def body(index: Expr) -> tirx.Stmt:
            lead, inner = unravelled(index, counts[:outer]), sizes[across + 1 : -1]
            return self.each(counts[outer:], lambda rest: self.each(inner, lambda one: tile([*lead, *rest], one)))

        return self.loop(math.prod(counts[:outer]), body, parallel=self.parts > 0)

    def _crossing_loads(self, across: int) -> list[Expr]:
        """The loads that run along a group of axes where the output runs along the last, if they can be copied."""
        (stage,) = self.group
        dtypes = [str(load.source.dtype) for load in stage.loads()]
        if self.branching or "bool" in [*dtypes, str(stage.buffer.dtype)]:
            return []
        crossing = self._crossing(across)
        return [x for x in stage.loads() if common.strides_of(stage.block, x.source, x.indices) in crossing]

    def _turned(self, loads: Sequence[Expr], high: int, wide: int, at: Callable[[Expr, Expr], list[Expr]]) -> tirx.Stmt:
        """A tile whose crossing loads are copied to the stack first, as they lie: vectors along both arrays."""

        def element(load: Expr, column: Expr, row: Expr) -> Expr:
            return renamed(load, self._names(at(row, column)))

        copies = (turned(partial(element, x), wide, high, str(x.source.dtype), self.index) for x in loads)
        made, reads = zip(*copies, strict=True)

        def one(row: Expr, column: Expr) -> tirx.Stmt:
            copied = [(load, read(column, row)) for load, read in zip(loads, reads, strict=True)]
            return self._element(at(row, column), copied)

        line = self.loop(high, lambda r: self.vector(wide, lambda c: one(r, c)), kind=tirx.ForKind.UNROLLED)
        return sequence([*made, line])

    def _names(self, index: Sequence[Expr]) -> dict[Any, Expr]:
        return {v.var: at for v, at in zip(self.group[0].iters, index, strict=True)}

    def _element(self, index: Sequence[Expr], copied: Sequence[tuple[Expr, Expr]] = ()) -> tirx.Stmt:
        """The store of one element; in the place of loads that were copied are those of the copies."""
        (stage,) = self.group
        names, value = self._names(index), stage.value
        if copied:
            value = common.with_loads(value, lambda load: next((x for one, x in copied if load.same_as(one)), None))
        return tirx.BufferStore(stage.buffer, renamed(value, names), [renamed(i, names) for i in stage.indices])


def _lanes(code: Any, machine: Machine) -> int:
    """Elements in a vector register of the widest that the code loads: of booleans many more would go into one."""
    return min((machine.lanes(load.source.dtype) for load in loads_of([code])), default=machine.lanes("bool"))


RULE = Rule("elementwise", "llvm", schedule, sums=False)
