"""One tile of a sum: some rows of vectors, which lie in registers while the terms pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import tirx

from ..codegen import SERIAL, UNROLLED, array, cut, in_steps, sequence, unravelled
from ..common import VECTORS, is_costly, renamed, with_loads
from ..intrinsics import term_of
from ..squares import SIDE, turned
from ..stages import Expr, Stage
from . import prefetch
from .cost import Cost
from .nest import ZERO, Nest, placed
from .packing import Place, Read, each_term
from .plan import Plan, run_of

FEW_TERMS = 49  # of a filter of 7 x 7: they are straight-line code where a tile has one row
AHEAD = 40  # steps of the terms: some 250 ns, the latency of memory, at 6 ns a step


class TileCode:
    """The code of a plan's tiles. By the numbers of their loads `reads` has how packed operands are read, `images` the
    array, and the axes that it has, of what a share computes. `total`: where sums lie between two parts of the
    terms."""

    def __init__(self, nest: Nest, plan: Plan, result: Stage | None) -> None:
        """`result`: the stage of what is computed of each sum, at its index; None where that is the sum itself."""
        self.nest, self.plan, self.result = nest, plan, result
        self.summed: bool = plan.along >= nest.results
        self.reads: dict[int, Read] = {}
        self.images: dict[int, tuple[Any, Sequence[int]]] = {}
        self.total: Any | None = None
        self.instruction = term_of(nest.stage.value.b)

    def code(self, place: Place) -> tirx.Stmt:
        """A tile, which at the end of a group may be narrower: its sums whole, or those of a part of the terms added to
        their total."""
        nest, plan = self.nest, self.plan

        def of(counts: tuple[int, ...]) -> tirx.Stmt:
            if len(counts) < len(plan.rows):
                g, n = plan.rows[len(counts)]
                return cut(place.spatial[g], nest.sizes[g], n, lambda count: of((*counts, count)))
            if self.summed:
                return self._tile(place, counts, plan.width)
            size = nest.sizes[plan.along]
            return cut(place.spatial[plan.along], size, plan.width, lambda width: self._tile(place, counts, width))

        return of(())

    # Places

    def index(self, place: Place, row: Sequence[Expr], column: Expr) -> list[Expr]:
        """The index of each group of results of a row and a column of a tile."""
        found = [*place.spatial]
        for (g, n), x in zip(self.plan.rows, row, strict=True):
            found[g] = found[g] * n + x
        if not self.summed:
            found[self.plan.along] = found[self.plan.along] * self.plan.width + column
        return found

    def over(self, counts: Sequence[int], width: int, body: Callable[[list[Expr], Expr, int], tirx.Stmt]) -> tirx.Stmt:
        """`body` of each row of a tile, the first column and the width of each vector."""
        lanes = self.nest.lanes
        whole, rest = divmod(width, lanes)

        def row(r: list[Expr]) -> tirx.Stmt:
            full = [self.nest.loop(whole, lambda x: body(r, x * lanes, lanes), UNROLLED, "vector")] if whole else []
            return sequence([*full, *([body(r, tirx.IntImm("int32", whole * lanes), rest)] if rest else [])])

        def rows(left: Sequence[int], r: list[Expr]) -> tirx.Stmt:
            if not left:
                return row(r)
            return self.nest.loop(left[0], lambda i: rows(left[1:], [*r, i]), UNROLLED, "row")

        return rows(counts, [])

    def lanes(self, counts: Sequence[int], width: int, body: Callable[[list[Expr], Expr], tirx.Stmt]) -> tirx.Stmt:
        """`body` of each row and column, as vectors."""
        of = lambda r, c, n: self.nest.vector(n, lambda x: body(r, c + x))  # noqa: E731
        return self.over(counts, width, of)

    # Sums

    def _tile(self, place: Place, counts: tuple[int, ...], width: int) -> tirx.Stmt:
        """The code of a tile of so many rows and columns."""
        nest, final = self.nest, 1 if self.summed else width
        sums = array((*counts, width), nest.dtype, "sums", "local")

        def each(value: Callable[[list[Expr], Expr], Expr], columns: int) -> tirx.Stmt:
            """The sums with other values."""
            return self.lanes(counts, columns, lambda r, c: tirx.BufferStore(sums, value(r, c), [*r, c]))

        if self.total is not None and place.part is None:
            total = self.total
            return self._stored(place, counts, final, lambda r, c: tirx.BufferLoad(total, [*place.slot, *r, c]))
        clear = each(lambda r, c: nest.stage.init, width)

        def step(terms: list[Expr], k: Expr, many: int) -> tirx.Stmt:
            add = self._add(place, sums, counts, many if self.summed else width, terms, k)
            return sequence([*self._later_row(place, terms, k), add])

        axis = self.plan.along - nest.results if self.summed else -1
        kind = UNROLLED if not self.plan.rows and nest.terms <= FEW_TERMS else SERIAL
        steps = each_term(nest, step, axis, self.plan.width if self.summed else 1, place.part, nest.order, kind)
        folds, left = list[tirx.Stmt](), width
        while self.summed and left > 1:  # sums of terms side by side are added up, by halves
            half = 1 << (left - 1).bit_length() - 1
            both = lambda r, c, half=half: tirx.BufferLoad(sums, [*r, c]) + tirx.BufferLoad(sums, [*r, c + half])  # noqa: E731
            folds.append(each(both, left - half))
            left = half
        if self.total is None:
            put = self._stored(place, counts, final, lambda r, c: tirx.BufferLoad(sums, [*r, c]))
        else:
            put = self.lanes(counts, final, lambda r, c: self._to_total(place, r, c, tirx.BufferLoad(sums, [*r, c])))
        return sequence([tirx.AllocBuffer(sums), clear, steps, *folds, put])

    def _to_total(self, place: Place, row: list[Expr], column: Expr, value: Expr) -> tirx.Stmt:
        """Adds a part's sum to its total."""
        at = [*place.slot, *row, column]
        return tirx.BufferStore(self.total, tirx.BufferLoad(self.total, at) + value, at)

    def cleared(self, place: Place) -> tirx.Stmt:
        """Clears the totals of a tile."""
        width = 1 if self.summed else self.plan.width
        put = lambda r, c: tirx.BufferStore(self.total, self.nest.stage.init, [*place.slot, *r, c])  # noqa: E731
        return self.lanes(self.plan.counts, width, put)

    def _add(
        self, place: Place, sums: Any, counts: Sequence[int], width: int, terms: list[Expr], k: Expr
    ) -> tirx.Stmt:
        """A step of the terms: one for each sum."""
        stage = self.nest.stage
        if self.instruction is not None:
            return self.over(counts, width, lambda r, c, n: self._by_instruction(place, sums, r, c, n, terms, k))

        def put(r: list[Expr], c: Expr) -> tirx.Stmt:
            names, known = self._operands(place, r, c, terms, k)
            of = lambda load: tirx.BufferLoad(sums, [*r, c]) if load.source.same_as(stage.buffer) else known(load)  # noqa: E731
            return tirx.BufferStore(sums, renamed(with_loads(stage.value, of), names), [*r, c])

        return self.lanes(counts, width, put)

    def _operands(
        self, place: Place, row: list[Expr], column: Expr, terms: list[Expr], k: Expr
    ) -> tuple[Mapping[Any, Expr], Callable[[Expr], Expr]]:
        """The value of each axis at a term of a row and a column, and how loads are read there."""
        nest, own = self.nest, terms
        if self.summed:
            own = [t + column if g + nest.results == self.plan.along else t for g, t in enumerate(terms)]
        names = nest.at(self.index(place, row, column), own)

        def known(load: Expr) -> Expr:
            number = next(n for n, one in enumerate(nest.loads) if one.same_as(load))
            if number in self.reads:
                return self.reads[number](place, column, k)
            if number in self.images:
                to, free = self.images[number]
                return tirx.BufferLoad(to, [nest.simple(renamed(load.indices[d], names)) for d in free])
            return placed(load, names, nest.simple)

        return names, known

    def _by_instruction(
        self, place: Place, sums: Any, row: list[Expr], first: Expr, width: int, terms: list[Expr], k: Expr
    ) -> tirx.Stmt:
        """A step of some neighbouring columns by the declared instruction of the product."""
        assert self.instruction is not None
        instruction, *factors = self.instruction
        column = tirx.Ramp(first, 1, width) if width > 1 else first
        found = list[Expr]()
        for factor in factors:
            number = next(n for n, one in enumerate(self.nest.loads) if one.same_as(factor))
            moves = number in self.plan.packed
            _, known = self._operands(place, row, column if moves else first, terms, k)
            value = known(factor)
            found.append(value if moves or width == 1 else tirx.Broadcast(value, width))
        value = instruction.lowered(width, tirx.BufferLoad(sums, [*row, column]), *found)
        return tirx.BufferStore(sums, value, [*row, column])

    def _later_row(self, place: Place, terms: list[Expr], k: Expr) -> list[tirx.Stmt]:
        """The fetch of a line in a step, which the processor does not foresee: of rows that lie along the terms those
        of the next tile, else of some steps on. A Transformer's training step takes 1.05 to 1.07 of the time without
        it."""
        nest, plan = self.nest, self.plan
        if self.summed or len(plan.rows) != 1 or len(nest.reduced.sizes) > 1:
            return []
        (group, rows), = plan.rows
        for n, strides in enumerate(nest.strides[:-1]):
            if strides[plan.along] or not strides[group] or n in self.reads:
                continue
            at = self.index(place, [ZERO], ZERO)
            if strides[-1] == 1:
                if place.part is not None or strides[group] != nest.terms:
                    continue
                at[group], own = at[group] + rows, [terms[-1] * rows]
            else:
                own = [terms[-1] + AHEAD]
            return [prefetch.of(placed(nest.loads[n], nest.at(at, own), nest.simple))]
        return []

    # What is stored

    def _result(self, place: Place, row: Sequence[Expr], column: Expr, total: Expr) -> tirx.Stmt:
        """The store of what is computed of a sum."""
        nest, stage = self.nest, self.nest.stage
        names = nest.at(self.index(place, row, column))
        if self.result is None:
            return tirx.BufferStore(stage.buffer, total, [nest.neighbour(renamed(i, names)) for i in stage.indices])
        own = (nest.simple(renamed(nest.names[v.var], names)) for v in nest.whole.spatial)
        values = {v.var: at for v, at in zip(self.result.iters, own, strict=True)}
        value = placed(self.result.value, values, nest.neighbour)
        value = with_loads(value, lambda load: total if load.source.same_as(stage.buffer) else None)
        indices = [nest.neighbour(renamed(i, values)) for i in self.result.indices]
        return tirx.BufferStore(self.result.buffer, value, indices)

    def _stored(
        self, place: Place, counts: tuple[int, ...], width: int, total: Callable[[Sequence[Expr], Expr], Expr]
    ) -> tirx.Stmt:
        """The stores of a tile's results, of their totals."""
        nest, plan, rows = self.nest, self.plan, math.prod(counts)
        costly = self.result is not None and is_costly(self.result.value)
        apart = not self.summed and nest.strides[-1][plan.along] != 1
        by_columns = apart and run_of(nest, plan, counts) == rows > 1
        if not costly and not apart:
            return self.lanes(counts, width, lambda r, c: self._result(place, r, c, total(r, c)))
        # loops over a copied tile, or its squares, whose rows behind the tile's are not stored
        squares = by_columns and Cost(nest).stores_squares(plan, rows, width)
        copied = array((SIDE if squares else rows, width), nest.dtype, "copied", "local")

        def flat(r: Sequence[Expr]) -> Expr:
            found: Expr = ZERO
            for x, count in zip(r, counts, strict=True):
                found = found * count + x
            return nest.simple(found)

        def put(r: Expr, c: Expr) -> tirx.Stmt:
            return self._result(place, unravelled(r, counts), c, tirx.BufferLoad(copied, [r, c]))

        copy = self.lanes(counts, width, lambda r, c: tirx.BufferStore(copied, total(r, c), [flat(r), c]))
        made = [tirx.AllocBuffer(copied), copy]
        if squares:
            return sequence([*made, *(self._square(place, counts, first, copied) for first in range(0, width, SIDE))])
        if by_columns:
            along = lambda c: nest.vector(rows, lambda r: put(r, c))  # noqa: E731
            return sequence([*made, nest.loop(width, along, name="column")])
        step = 1 if apart else VECTORS * nest.lanes
        row = lambda r: in_steps(width, step, lambda c, n: nest.vector(n, lambda x: put(r, c + x)))  # noqa: E731
        return sequence([*made, nest.loop(rows, row, name="row")])

    def _square(self, place: Place, counts: tuple[int, ...], first: int, copied: Any) -> tirx.Stmt:
        """The stores of a copied tile's columns from a first one on, along the rows."""
        made, read = turned(lambda r, c: tirx.BufferLoad(copied, [r, first + c]), SIDE, SIDE, self.nest.dtype, "int32")

        def column(c: Expr) -> tirx.Stmt:
            put = lambda r: self._result(place, unravelled(r, counts), first + c, read(r, c))  # noqa: E731
            return self.nest.vector(math.prod(counts), put)

        return sequence([made, self.nest.loop(SIDE, column, UNROLLED, "column")])
