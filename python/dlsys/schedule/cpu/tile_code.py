"""One tile of a product: some rows by some vectors of C, which lie in registers while k runs. A step takes one row of
B's panel, as vectors, and an element of A for each of the tile's rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import tirx

from ..codegen import SERIAL, UNROLLED, cut, in_steps, sequence, unravelled
from ..common import VECTORS, is_costly, near_divisor, renamed, with_loads
from ..products import Product
from ..squares import SIDE, turned
from ..stages import Expr, Stage
from ..target import Machine
from . import prefetch
from .indices import Indices, Names, Part, Place, Read, Term, placed
from .tiles import LIES, TERMS, WINDOWS, Tile

AHEAD = 40  # steps of k: some 250 ns, the latency of memory, at 6 ns a step
CHANNELS = 16  # fewer are too short a loop to stand inside those over taps, and are unrolled where side by side


class TileCode(Indices):
    """The code of a product's tiles, so many along the rows. Between two parts of the terms they lie in an array."""

    def __init__(self, product: Product, result: Stage | None, tile: Tile, machine: Machine) -> None:
        """`result`: the stage of what is made of each sum, at the same index; None where that is the sum itself."""
        super().__init__(product)
        self.result: Stage | None = result
        self.tile: Tile = tile
        self.machine: Machine = machine
        self.tiles: int = -(-self.m // tile.rows)
        self.terms: _Terms = _Terms(self)
        shape = (tile.panels, tile.block, tile.rows, tile.columns)
        self.between: Any | None = self.array(shape, "between") if self.terms.count > 1 else None

    def padded(self, width: int) -> int:
        """Columns that are computed for so many: a vector for those beyond the last whole one, the narrowest that holds
        them; just these where B is read where it lies."""
        rest = width % self.tile.lanes
        if self.tile.b in (LIES, WINDOWS) or not rest:
            return width
        return width - rest + min(self.tile.lanes, 1 << (rest - 1).bit_length())

    def code(self, place: Place, width: int, read_a: Read, read_b: Read) -> tirx.Stmt:
        """A part of the terms of a tile of so many columns; of the last tile what rows are left."""
        rows = self.tile.rows
        return cut(place.tile, self.m, rows, lambda rows: self._rows(place, rows, width, read_a, read_b))

    def _rows(self, place: Place, rows: int, width: int, read_a: Read, read_b: Read) -> tirx.Stmt:
        """The code of some rows of a tile: clear the sums, add the terms, store them, or keep them between parts."""
        computed, between = self.padded(width), self.between
        sums = self.array((rows, computed), "sums", "local")

        def all_of(value: Callable[[Expr, Expr], Expr]) -> tirx.Stmt:
            """The sums with other values."""
            return self._over(rows, computed, lambda r, c: tirx.BufferStore(sums, value(r, c), [r, c]))

        def add(term: Term) -> tirx.Stmt:
            def one(r: Expr, c: Expr) -> tirx.Stmt:
                value = read_a(place, r, term) * read_b(place, c, term)
                return tirx.BufferStore(sums, tirx.BufferLoad(sums, [r, c]) + value, [r, c])

            def group(r: Expr, c: Expr, lanes: int) -> tirx.Stmt:
                return self._by_intrinsic(sums, r, c, lanes, read_a(place, r, term), lambda at: read_b(place, at, term))

            step = self._over(rows, computed, one, group if self.product.intrinsic else None)
            return sequence([*self._later_row(place, term), step])

        clear, terms = all_of(lambda r, c: self.product.stage.init), self.terms.code(place.part, add)
        stored = self._stored(place, rows, width, sums)
        if between is None:
            return sequence([tirx.AllocBuffer(sums), clear, terms, stored])

        keep = lambda r, c: tirx.BufferStore(between, tirx.BufferLoad(sums, [r, c]), [*place.local, r, c])  # noqa: E731
        earlier = lambda r, c: tirx.BufferLoad(between, [*place.local, r, c])  # noqa: E731
        both = all_of(lambda r, c: earlier(r, c) + tirx.BufferLoad(sums, [r, c]))
        added = tirx.IfThenElse(place.part.number > 0, both, None)
        is_last = place.part.number == self.number(self.terms.count - 1)
        kept = tirx.IfThenElse(is_last, stored, self._over(rows, computed, keep))
        return sequence([tirx.AllocBuffer(sums), clear, terms, added, kept])

    def _by_intrinsic(
        self, sums: Any, row: Expr, column: Expr, lanes: int, a: Expr, b: Callable[[Expr], Expr]
    ) -> tirx.Stmt:
        """A step of some neighbouring columns by the product's instruction."""
        p = self.product
        assert p.intrinsic is not None
        at, a = (tirx.Ramp(column, 1, lanes), tirx.Broadcast(a, lanes)) if lanes > 1 else (column, a)
        factors = (a, b(at)) if p.a.place == 0 else (b(at), a)
        value = p.intrinsic.lowered(lanes, tirx.BufferLoad(sums, [row, at]), *factors)
        return tirx.BufferStore(sums, value, [row, at])

    def _over(
        self,
        rows: int,
        width: int,
        body: Callable[[Expr, Expr], tirx.Stmt],
        vector: Callable[[Expr, Expr, int], tirx.Stmt] | None = None,
    ) -> tirx.Stmt:
        """`body` of each row and column of a tile, as vectors; or `vector` of each row, first column and width."""
        own = self.tile.lanes
        whole, rest = divmod(width, own)
        lanes = vector or (lambda r, c, count: self.vector(count, lambda x: body(r, c + x)))

        def row(r: Expr) -> tirx.Stmt:
            full = [self.loop(whole, lambda v: lanes(r, v * own, own), UNROLLED, "vector")] if whole else []
            return sequence([*full, *([lanes(r, self.number(whole * own), rest)] if rest else [])])

        return self.loop(rows, row, UNROLLED, "row")

    # Operands where they lie

    def row_where_it_lies(self, place: Place, row: Expr, term: Term) -> Expr:
        """An element of A."""
        names = self.at(self.product.m, place.tile * self.tile.rows + row)
        return self.element(self.product.a, {**place.batch, **names, **term.names})

    def column_where_it_lies(self, place: Place, column: Expr, term: Term) -> Expr:
        """An element of B."""
        names = self.at(self.product.n, place.panel * self.tile.columns + column)
        return self.element(self.product.b, {**place.batch, **names, **term.names})

    def _later_row(self, place: Place, term: Term) -> list[tirx.Stmt]:
        """The fetch of a line of A in a step, which the processor does not foresee: where rows run along k, of one row
        after another behind the tile, else of some steps on. A Transformer's training step takes 1.05 to 1.07 of the
        time without it."""
        p, rows = self.product, self.tile.rows
        if self.tile.a != LIES or self.tile.b == WINDOWS or p.a.windows:
            return []
        if p.a.contiguous != p.last(p.k):
            names = {**self.at(p.m, place.tile * rows), **self.at(p.k, term.number + AHEAD)}
            return [prefetch.of(self.element(p.a, {**place.batch, **names}))]
        inner = p.run(p.a, p.k)
        if any(self.terms.length_of[axis] < p.size((axis,)) for axis in inner):
            return []
        steps = {axis: self.number(0) if axis in inner else i for axis, i in term.names.items()}
        steps[p.last(p.k)] = self.flat(inner, term.names) * rows
        later = {**place.batch, **self.at(p.m, place.tile * rows + rows), **steps}
        return [prefetch.of(self.element(p.a, later))]

    # What is stored

    def _result(self, place: Place, row: Expr, column: Expr, total: Expr) -> tirx.Stmt:
        """The store of what is made of a sum."""
        p, tile, result = self.product, self.tile, self.result
        rows = self.indices(p.m, place.tile * tile.rows + row)
        names = {**place.batch, **rows, **self.indices(p.n, place.panel * tile.columns + column)}
        own = [names.get(i, 0) for i in range(len(p.stage.iters)) if i not in p.k]
        if result is None:
            return tirx.BufferStore(p.stage.buffer, total, list(map(self.neighbour, own)))
        values = {v.var: at for v, at in zip(result.iters, own, strict=True)}
        value = placed(result.value, values, self.neighbour)
        value = with_loads(value, lambda load: total if load.source.same_as(p.stage.buffer) else None)
        return tirx.BufferStore(result.buffer, value, [self.neighbour(renamed(i, values)) for i in result.indices])

    @property
    def _by_columns(self) -> bool:
        """Whether C is contiguous along the rows of tiles."""
        p = self.product
        return max(i for i, extent in enumerate(p.extents) if i not in p.k and extent > 1) in p.m

    def _stored(self, place: Place, rows: int, width: int, sums: Any) -> tirx.Stmt:
        """The stores of a tile's elements, as far as C has them."""
        own, made = self.tile.lanes, list[tirx.Stmt]()
        costly = self.result is not None and is_costly(self.result.value)
        apart, computed = costly or self._by_columns, self.padded(width)
        squares = self._by_columns and self.tile.stores_squares(self.product, self.machine, rows, width)
        if apart:  # a loop over a copied tile, or its squares, whose rows behind the tile's are not stored
            copied = self.array((SIDE if squares else rows, computed), "copied", "local")
            copy = lambda r, c: tirx.BufferStore(copied, tirx.BufferLoad(sums, [r, c]), [r, c])  # noqa: E731
            made = [tirx.AllocBuffer(copied), self._over(rows, computed, copy)]

        def put(r: Expr, c: Expr) -> tirx.Stmt:
            return self._result(place, r, c, tirx.BufferLoad(copied if apart else sums, [r, c]))

        def row(r: Expr) -> tirx.Stmt:
            return in_steps(width, VECTORS * own, lambda s, n: self.vector(n, lambda x: put(r, s + x)), self.index)

        if squares:
            parts = range(0, width, SIDE)
            return sequence([*made, *(self._square_stored(place, rows, first, copied) for first in parts)])
        if self._by_columns:
            return sequence([*made, self.loop(width, lambda c: self.vector(rows, lambda r: put(r, c)), name="column")])
        return sequence([*made, self.loop(rows, row, name="row") if costly else self._over(rows, width, put)])

    def _square_stored(self, place: Place, rows: int, first: int, copied: Any) -> tirx.Stmt:
        """The stores of a copied tile's columns from a first one on, which are rows of C."""
        made, element = turned(
            lambda r, c: tirx.BufferLoad(copied, [r, first + c]), SIDE, SIDE, self.dtype, self.index
        )
        store = lambda c: self.vector(rows, lambda r: self._result(place, r, first + c, element(r, c)))  # noqa: E731
        return sequence([made, self.loop(SIDE, store, UNROLLED, "column")])


class _Terms:
    """The loops over k of one tile, in `count` parts of `depth` terms, each added up by itself."""

    def __init__(self, code: TileCode) -> None:
        self.of, p, tile = code, code.product, code.tile
        self.sizes, self.apart = p.shape(p.k), WINDOWS in (tile.a, tile.b)  # in a loop for each axis, else in one
        self.lengths = self._cut()
        self.length_of = dict(zip(p.k, self.lengths, strict=True))
        self.counts = [-(-size // length) for size, length in zip(self.sizes, self.lengths, strict=True)]
        self.count, self.depth = math.prod(self.counts), math.prod(self.lengths)
        few = tile.a == WINDOWS and p.a.contiguous == p.k[-1] and self.sizes[-1] < CHANNELS
        unrolled = len(p.k) if tile.b == WINDOWS else int(few)  # of the innermost loops
        self.kinds = [SERIAL] * (len(p.k) - unrolled) + [UNROLLED] * unrolled

    def _cut(self) -> list[int]:
        """Indices of each axis that a part has."""
        inner = 1
        for i, size in reversed([*enumerate(self.sizes)]):
            if inner * size > 2 * TERMS:
                most = max(TERMS // inner, 1)
                whole = min(near_divisor(size, most) or most, size)
                return [*[1] * i, whole, *self.sizes[i + 1 :]]
            inner *= size
        return list(self.sizes)

    def part(self, number: Expr) -> Part:
        """The part of that number."""
        k, numbers = self.of.product.k, unravelled(number, self.counts)
        starts = {axis: self.of.simple(n * length) for axis, n, length in zip(k, numbers, self.lengths, strict=True)}
        return Part(number, starts, self.of.flat(k, starts))

    def ends(self, part: Part) -> list[Expr]:
        """How many indices of each axis the part has: the last may have fewer."""
        found = zip(part.starts.values(), self.sizes, self.lengths, strict=True)
        return [tirx.min(length, size - start) if size % length else length for start, size, length in found]

    def code(self, part: Part, add: Callable[[Term], tirx.Stmt]) -> tirx.Stmt:
        """The terms of a part of a tile's sums; `add` adds one of them."""
        code, k = self.of, self.of.product.k
        starts, ends = list(part.starts.values()), self.ends(part)

        def loops(i: int, names: Names) -> tirx.Stmt:
            """Those from number `i` on."""
            if i == len(k):
                return add(Term(names, code.flat(k, names)))
            step = lambda at: loops(i + 1, {**names, k[i]: code.simple(starts[i] + at)})  # noqa: E731
            return code.loop_to(ends[i], self.lengths[i], step, self.kinds[i], "k")

        def term(number: Expr) -> tirx.Stmt:
            """One of all axes."""
            own = zip(k, starts, unravelled(number, self.lengths), strict=True)
            names = {axis: code.simple(start + at) for axis, start, at in own}
            return add(Term(names, code.simple(part.first + number)))

        if self.apart:
            return loops(0, {})
        return code.loop_to(math.prod(ends), self.depth, term, name="k")
