"""The loops of a product: C[b, m, n] = sum over k of A[b, m, k] * B[b, k, n], with A and B read through expressions.

A tile of C, some rows by some vectors, lies in accumulators while k runs: a step takes one row of B's panel and an
element of A for each of the tile's rows. B is packed in panels, [n // columns, k, n % columns], or read where it lies,
or given in panels; A is packed so or read where it lies. The loops around tiles come in three orders:

    panels   a panel of B is packed, and all rows pass it
    blocks   all panels are packed before; blocks of A's rows, which stay in the cache, pass one panel after the other
    grid     as blocks, but threads share out the panels besides

and threads share out the steps of the order, or batches where there are enough.

The blocking follows Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008): the panel of B
stays in L1 or L2 while a block of A's rows passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, sym, tirx

from ..codegen import PARALLEL, SERIAL, UNROLLED, block_of, cut, in_steps, lanes, loop, sequence, unravelled
from ..common import is_costly, near_divisor, renamed
from ..roles import Roles
from ..squares import SIDE, turned
from ..stages import Expr, Stage
from . import padding, prefetch
from .padding import Images
from .tiles import GIVEN, GRID, IN_BLOCKS, LIES, PACKED, PANELS, WINDOWS, Tile, group

TERMS = 512  # of k in a block: to add up a tile of 12 x 2 vectors takes some 40 cycles, so many steps of k 6,000
PARALLEL_PACK = 32_768  # elements of B; below, a parallel region costs more than packing them
FEW_CHANNELS = 16  # side by side: fewer are an unrolled loop

Names = Mapping[int, Expr]
"""A value for each of some axes of a product."""


@dataclass(frozen=True)
class Place:
    """Where a tile is: its batch, its number along the rows, in all and in a packed block of A, and its panel."""

    batch: Names
    tile: Expr
    local: Expr
    panel: Expr


@dataclass(frozen=True)
class Term:
    """A step of k: the index of each axis, and the number of the step."""

    names: Names
    number: Expr


Read = Callable[[Place, Expr, Term], Expr]
"""An operand's element in a row of a tile, or in a column of a panel, at a step of k."""


@dataclass(frozen=True)
class Product:
    """A product as it is to be computed.

    Attributes:
        stage: the sum.
        r: which of its iterators are m, n, k and batch.
        factors: the two expressions that are multiplied, of the stage's iterators.
        result: the stage that stores what is made of the sum; None where that is the sum itself.
        images: that are made before, for a factor to read.
        paddings: those of the images that A reads through windows.
    """

    stage: Stage
    r: Roles
    factors: tuple[Expr, Expr]
    result: Stage | None = None
    images: Images | None = None
    paddings: Sequence[padding.Padding] = ()

    def stored(self, names: Names, total: Expr, place: Callable[[Expr], Expr] = lambda index: index) -> tirx.Stmt:
        """The store of what is made of a sum at an index of the results; `place` simplifies an index."""
        own = [names.get(i, 0) for i in range(len(self.stage.iters)) if i not in self.r.k]
        if self.result is None:
            return tirx.BufferStore(self.stage.buffer, total, list(map(place, own)))
        read = next(load for load in self.result.loads() if load.source.same_as(self.stage.buffer))
        unit = {v.var: tirx.IntImm(v.var.ty, 0) for v in self.result.iters if int(v.dom.extent) == 1}
        values = unit | dict(zip(read.indices, own, strict=True))

        def load(item: ir.TensorLoad, mutator: Any) -> Expr:
            return total if item.source.same_as(self.stage.buffer) else mutator.default_mutate(item)

        value = tvm_ffi.structural_mutate(placed(self.result.value, values, place), [(ir.TensorLoad, load)])
        places = [place(renamed(index, values)) for index in self.result.indices]
        return tirx.BufferStore(self.result.buffer, value, places)


def placed(code: Expr, values: Mapping[Any, Expr], place: Callable[[Expr], Expr]) -> Expr:
    """An expression with values for its iterators; `place` simplifies an index."""

    def load(item: ir.TensorLoad, mutator: Any) -> Expr:
        return tirx.BufferLoad(item.source, [place(renamed(mutator.mutate(i), values)) for i in item.indices])

    return renamed(tvm_ffi.structural_mutate(code, [(ir.TensorLoad, load)]), values)


class Writer:
    """The loops of a product in tiles.

    Attributes:
        arrays: that the loop nests have between them.
    """

    def __init__(self, product: Product, tile: Tile, given: Sequence[Any]) -> None:
        """`given`: the function's parameters."""
        self.product, self.tile, self.given = product, tile, given
        self.stage, self.r = product.stage, product.r
        r, self.factors = self.r, product.factors
        self.index, self.dtype = str(self.stage.iters[0].var.ty), str(self.stage.buffer.dtype)
        self.m, self.n, self.k = r.size(r.m), r.size(r.n), r.size(r.k)
        self.batch = [r.extents[axis] for axis in r.batch]
        self.tiles, self.panels = -(-self.m // tile.rows), -(-self.n // tile.columns)
        steps = {PANELS: (self.panels,), IN_BLOCKS: (self._blocks,), GRID: (self._blocks, self.panels)}
        self.steps = steps[tile.order]
        self.skips = padding.skipped(product.paddings, r, tile.rows) if tile.a == WINDOWS else []
        self.arrays: list[Any] = []
        alone = tile.b == PACKED and tile.order == PANELS
        self.panel = self.array((self.k, tile.columns), "panel") if alone else None  # where one is packed at a time
        self.analyzer = sym.Analyzer()
        self.alone = bool(self.batch) and (tile.by_batch or not tile.parallel)  # a thread has one batch after another
        self.images = product.images
        if self.images is not None and self.alone and (own := self.images.of_batch(r.batch, self.stage, self.factors)):
            self.images, self.factors = own

    # Places

    @property
    def _blocks(self) -> int:
        return -(-self.tiles // self.tile.block)

    def loop(
        self, extent: int, body: Callable[[Expr], tirx.Stmt], kind: int = SERIAL, name: str = "i"
    ) -> tirx.Stmt:
        """`codegen.loop`, of an index whose bounds are known where places are simplified."""
        return loop(extent, self._bound(extent, body), kind=kind, dtype=self.index, name=name)

    def vector(self, width: int, body: Callable[[Expr], tirx.Stmt]) -> tirx.Stmt:
        """`codegen.lanes`, likewise."""
        return lanes(width, self._bound(width, body), dtype=self.index)

    def _bound(self, extent: int, body: Callable[[Expr], tirx.Stmt]) -> Callable[[Expr], tirx.Stmt]:
        def of(index: Expr) -> tirx.Stmt:
            if isinstance(index, tirx.Var):
                self.analyzer.bind(index, ir.Range(0, self.number(extent)))
            return body(index)

        return of

    def number(self, value: int) -> Expr:
        """A number among the indices."""
        return tirx.IntImm(self.index, value)

    def at(self, axes: Sequence[int], number: Expr) -> dict[int, Expr]:
        """The index of each of some axes, at a number that counts through them in row-major order."""
        return {axis: self.simple(part) for axis, part in self._parts(axes, number).items()}

    def _parts(self, axes: Sequence[int], number: Expr) -> dict[int, Expr]:
        return dict(zip(axes, unravelled(number, [self.r.extents[axis] for axis in axes]), strict=True))

    def simple(self, index: Expr) -> Expr:
        """An index, simplified by what is known of the loops."""
        return self.analyzer.simplify(index)

    def neighbour(self, index: Expr) -> Expr:
        """An index, simplified if no divisions are left: else TVM finds, in the whole address, that they cancel out."""
        found, divisions = self.simple(index), list[Expr]()
        tvm_ffi.structural_walk(found, ((tirx.FloorDiv, tirx.FloorMod), divisions.append))
        return index if divisions else found

    def flat(self, axes: Sequence[int], names: Names) -> Expr:
        """The number of an index of some axes."""
        found: Expr = self.number(0)
        for axis in axes:
            found = found * self.r.extents[axis] + names[axis]
        return self.simple(found)

    def element(self, read: int, names: Names) -> Expr:
        """A factor at an index of the product."""
        own = {v.var: names.get(i, self.number(0)) for i, v in enumerate(self.stage.iters)}
        return placed(self.factors[read], own, self.simple)

    def array(self, shape: Sequence[int], name: str, scope: str = "global") -> Any:
        """An array of the product's numbers."""
        return tirx.decl_buffer(tuple(shape), self.dtype, name, scope=scope, data_alignment=4, layout=None)

    # The loops around tiles

    def nests(self) -> list[tirx.Stmt]:
        """The loop nests, one after another: what all tiles need, and the tiles."""
        tile, found = self.tile, list[tirx.Stmt]()
        own = [] if self.panel is None else [tirx.AllocBuffer(self.panel)]  # of a thread
        if own and not tile.parallel:
            self.arrays, own = [self.panel], []
        if self.images is not None and not self.images.fixed:
            found.append(self.images.laid(self.loop, {}, 2 * tile.lanes, tile.parallel and not self.alone))
        read_a: Read = self._row_where_it_lies
        read_b: Read = self._column_where_it_lies
        if tile.b == PACKED and tile.order != PANELS:
            nest, read_b = self._all_panels(1 - self.r.a)
            found.append(nest)
        if tile.a == PACKED and tile.order != IN_BLOCKS:
            nest, read_a = self._all_panels(self.r.a)
            found.append(nest)

        def step(batch: Sequence[Expr], own: Sequence[Expr]) -> tirx.Stmt:
            around = self._panel if tile.order == PANELS else self._block
            return around(dict(zip(self.r.batch, batch, strict=True)), own, read_a, read_b)

        def of_batch(number: Expr) -> tirx.Stmt:
            batch = unravelled(number, self.batch)
            name = "panel" if tile.order == PANELS else "block"
            steps = self.loop(math.prod(self.steps), lambda i: step(batch, unravelled(i, self.steps)), name=name)
            if self.images is None or not self.images.fixed:
                return sequence([*own, steps])
            made = self.images.laid(self.loop, dict(zip(self.r.batch, batch, strict=True)), 2 * tile.lanes)
            return sequence([*own, tirx.AllocBuffer(self.images.buffer), made, steps])

        def of_step(number: Expr) -> tirx.Stmt:
            index = unravelled(number, (*self.batch, *self.steps))
            return sequence([*own, step(index[: len(self.batch)], index[len(self.batch) :])])

        shape = self.batch if self.alone else (*self.batch, *self.steps)
        name = "batch" if self.alone else "step" if len(shape) > 1 else "panel" if tile.order == PANELS else "block"
        body = of_batch if self.alone else of_step
        found.append(self.loop(math.prod(shape), body, PARALLEL if tile.parallel else SERIAL, name))
        return [block_of(self.stage.name, nest, whole=True) for nest in found]

    def _panel(self, batch: Names, step: Sequence[Expr], read_a: Read, read_b: Read) -> tirx.Stmt:
        """A panel of B, and all tiles of rows."""
        (panel,), packed = step, self.panel

        def of(width: int) -> tirx.Stmt:
            read = read_b if packed is None else self._panels_of(1 - self.r.a, packed, None)
            made = [] if packed is None else [self._pack(1 - self.r.a, packed, [], batch, panel, width)]
            tiles = self.loop(
                self.tiles, lambda i: self._tile(Place(batch, i, i, panel), width, read_a, read), name="tile"
            )
            return sequence([*made, tiles])

        return cut(panel, self.n, self.tile.columns, of)

    def _block(self, batch: Names, step: Sequence[Expr], read_a: Read, read_b: Read) -> tirx.Stmt:
        """A block of rows, and all panels, or the one that the step has."""
        (block, *own), made, a = step, list[tirx.Stmt](), self.r.a
        count = min(self.tile.block, self.tiles)

        def tiles(body: Callable[[Place], tirx.Stmt], panel: Expr) -> tirx.Stmt:
            """Those of the block, of which the last may have fewer."""
            found = self.loop(count, lambda i: body(Place(batch, block * count + i, i, panel)), name="tile")
            if self.tiles % count == 0 or not isinstance(found, tirx.For):
                return found
            left = tirx.min(self.number(count), self.tiles - block * count)
            return tirx.For(found.loop_var, 0, left, found.kind, found.body)

        if self.tile.a == PACKED and self.tile.order == IN_BLOCKS:
            packed = self.array((count, self.k, self.tile.rows), "rows")
            read_a = self._panels_of(a, packed, [])

            def copy(at: Place) -> tirx.Stmt:
                def of(rows: int) -> tirx.Stmt:
                    return self._pack(a, packed, [at.local], batch, at.tile, rows)

                return cut(at.tile, self.m, self.tile.rows, of)

            made = [tirx.AllocBuffer(packed), tiles(copy, self.number(0))]

        def of_panel(panel: Expr) -> tirx.Stmt:
            def of(width: int) -> tirx.Stmt:
                return tiles(lambda place: self._tile(place, width, read_a, read_b), panel)

            return cut(panel, self.n, self.tile.columns, of)

        return sequence([*made, of_panel(own[0]) if own else self.loop(self.panels, of_panel, name="panel")])

    # Operands

    def _row_where_it_lies(self, place: Place, row: Expr, term: Term) -> Expr:
        names = self.at(self.r.m, place.tile * self.tile.rows + row)
        return self.element(self.r.a, {**place.batch, **names, **term.names})

    def _column_where_it_lies(self, place: Place, column: Expr, term: Term) -> Expr:
        names = self.at(self.r.n, place.panel * self.tile.columns + column)
        return self.element(1 - self.r.a, {**place.batch, **names, **term.names})

    def _side(self, read: int) -> tuple[tuple[int, ...], int, int]:
        """The axes of an operand that k is not of, how many elements they have, and how many of these a panel has."""
        if read == self.r.a:
            return self.r.m, self.m, self.tile.rows
        return self.r.n, self.n, self.tile.columns

    def _panels_of(self, read: int, packed: Any, batch: Sequence[int] | None) -> Read:
        """How an operand is read that lies in panels of the batch axes and of a number after these, or in one panel."""

        def element(place: Place, at: Expr, term: Term) -> Expr:
            if batch is None:
                return tirx.BufferLoad(packed, [term.number, at])
            panel = place.local if read == self.r.a else place.panel
            return tirx.BufferLoad(packed, [*(place.batch[axis] for axis in batch), panel, term.number, at])

        return element

    def _all_panels(self, read: int) -> tuple[tirx.Stmt, Read]:
        """The loops that pack all of an operand, and how it is read then."""
        axes, (_, size, width) = [axis for axis in self.r.batch if axis in self.r.axes[read]], self._side(read)
        lead, count = [self.r.extents[axis] for axis in axes], -(-size // width)
        packed = self.array((*lead, count, self.k, width), "panels" if read != self.r.a else "rows")
        self.arrays.append(packed)
        by_squares = self._is_turned(read, size)

        def panel(number: Expr) -> tirx.Stmt:
            *own, j = unravelled(number, (*lead, size // SIDE if by_squares else count))
            batch = dict(zip(axes, own, strict=True))
            if not by_squares:
                return cut(j, size, width, lambda count: self._pack(read, packed, [*own, j], batch, j, count))

            def place(k: Expr, at: Expr) -> list[Expr]:
                return [*own, tirx.floordiv(at, width), k, tirx.floormod(at, width)]

            return self._pack_turned(read, packed, place, batch, j * SIDE)

        parallel = self.tile.parallel and self.r.size(self.r.batch) * size * self.k >= PARALLEL_PACK
        nest = self.loop(
            math.prod(lead) * (size // SIDE if by_squares else count), panel, PARALLEL if parallel else SERIAL, "panel"
        )
        return nest, self._panels_of(read, packed, axes)

    def _pack(
        self, read: int, packed: Any, lead: Sequence[Expr], batch: Names, panel: Expr, count: int
    ) -> tirx.Stmt:
        """The copy of a panel, of so many rows or columns, k by k; zeros beyond them as far as vectors go."""
        r, (axes, _, width) = self.r, self._side(read)

        def put(at: Expr, k: Expr, names: Names) -> tirx.Stmt:
            value = self.element(read, {**batch, **self.at(axes, panel * width + at), **names})
            return tirx.BufferStore(packed, value, [*lead, k, at])

        def each_k(body: Callable[[Expr, Names], tirx.Stmt], names: Names, left: Sequence[int]) -> tirx.Stmt:
            if not left:
                return body(self.flat(r.k, names), names)
            return self.loop(r.extents[left[0]], lambda k: each_k(body, {**names, left[0]: k}, left[1:]), name="k")

        made, order = list[tirx.Stmt](), sorted(r.k)  # as the operand lies
        if self._is_turned(read, count):
            first = panel * width
            made.append(
                self.loop(
                    count // SIDE,
                    lambda c: self._pack_turned(
                        read, packed, lambda k, x: [*lead, k, x - first], batch, first + c * SIDE
                    ),
                )
            )
        else:  # addresses run on within a group: one vector, and divisions once a group
            own = math.gcd(group(r, read, width), count)

            def lane(start: Expr, k: Expr, names: Names) -> tirx.Stmt:
                return self.vector(own, lambda x: put(start + x, k, names))

            if own >= 4:
                groups = lambda g: each_k(lambda k, names: lane(g * own, k, names), {}, order)  # noqa: E731
                made.append(self.loop(count // own, groups))
            else:
                of_k = lambda k, names: self.loop(count // own, lambda g: lane(g * own, k, names), UNROLLED)  # noqa: E731
                made.append(each_k(of_k, {}, order))
        if read != r.a and (beyond := self._padded(count) - count):
            zero = tirx.const(0, self.dtype)
            clear = lambda k: self.vector(beyond, lambda x: tirx.BufferStore(packed, zero, [*lead, k, count + x]))  # noqa: E731
            made.append(self.loop(self.k, clear))
        return sequence(made)

    def _is_turned(self, read: int, count: int) -> bool:
        """Whether so many rows of A, or columns of B, are rows of memory, in whole squares, which are turned in
        registers (see `squares`)."""
        (axes, size, _), k = self._side(read), self.r.k
        if len(k) > 1 or len(axes) > 1 or self.r.contiguous[read] != k[0]:
            return False
        return self.k % SIDE == count % SIDE == 0 and size > SIDE

    def _pack_turned(
        self, read: int, packed: Any, place: Callable[[Expr, Expr], Sequence[Expr]], batch: Names, first: Expr
    ) -> tirx.Stmt:
        """A square's width of an operand's rows or columns from one on: squares are copied to the stack row by row of
        memory, and turned in registers. `place`: where the packed array has an element of k and one of those."""
        (axis,), ((across,), _, _) = self.r.k, self._side(read)

        def square(k: Expr) -> tirx.Stmt:
            def copy(x: Expr, i: Expr) -> Expr:
                return self.element(read, {**batch, across: first + x, axis: k * SIDE + i})

            made, element = turned(copy, SIDE, SIDE, self.dtype, self.index)

            def store(i: Expr, x: Expr) -> tirx.Stmt:
                at = map(self.simple, place(k * SIDE + i, first + x))
                return tirx.BufferStore(packed, element(x, i), list(at))

            columns = self.loop(SIDE, lambda i: self.vector(SIDE, lambda x: store(i, x)), UNROLLED)
            return sequence([made, columns])

        return self.loop(self.k // SIDE, square, name="k")

    # One tile

    def _padded(self, width: int) -> int:
        """Columns that are computed for so many: a vector for those beyond the last whole one, the narrowest that holds
        them; just these where B is read where it lies."""
        rest = width % self.tile.lanes
        if self.tile.b in (LIES, WINDOWS) or not rest:
            return width
        return width - rest + min(self.tile.lanes, 1 << (rest - 1).bit_length())

    def _over(self, first: int, last: int, width: int, body: Callable[[Expr, Expr], tirx.Stmt]) -> tirx.Stmt:
        """`body` of each row and column of a tile, as straight-line code of vectors."""
        whole, rest = divmod(width, self.tile.lanes)
        own = self.tile.lanes

        def row(r: Expr) -> tirx.Stmt:
            full = self.loop(whole, lambda v: self.vector(own, lambda x: body(r, v * own + x)), UNROLLED, "vector")
            left = [self.vector(rest, lambda x: body(r, whole * own + x))] if rest else []
            return sequence([*([full] if whole else []), *left])

        return self.loop(last - first, lambda r: row(first + r), UNROLLED, "row")

    def _tile(self, place: Place, width: int, read_a: Read, read_b: Read) -> tirx.Stmt:
        """A tile of C, of which the last has what rows are left."""
        return cut(place.tile, self.m, self.tile.rows, lambda rows: self._rows(place, rows, width, read_a, read_b))

    def _rows(self, place: Place, rows: int, width: int, read_a: Read, read_b: Read) -> tirx.Stmt:
        """So many rows and columns of C: accumulators, all steps of k, and what is stored."""
        computed = self._padded(width)
        sums = self.array((rows, computed), "sums", "local")

        def clear(array: Any) -> tirx.Stmt:
            zero = self.stage.init
            return self._over(0, rows, computed, lambda r, c: tirx.BufferStore(array, zero, [r, c]))

        def add(array: Any, first: int, last: int, term: Term) -> tirx.Stmt:
            def one(r: Expr, c: Expr) -> tirx.Stmt:
                pair = [read_a(place, r, term), read_b(place, c, term)]
                a, b = pair if self.r.a == 0 else pair[::-1]
                return tirx.BufferStore(array, tirx.BufferLoad(array, [r, c]) + a * b, [r, c])

            return sequence([*self._ahead(place, term), self._over(first, last, computed, one)])

        def block(terms: Callable[[Any], tirx.Stmt]) -> tirx.Stmt:
            """Terms that are added up by themselves before they are added to the tile."""
            own = self.array((rows, computed), "partial", "local")

            def join(r: Expr, c: Expr) -> tirx.Stmt:
                both = tirx.BufferLoad(sums, [r, c]) + tirx.BufferLoad(own, [r, c])
                return tirx.BufferStore(sums, both, [r, c])

            return sequence([tirx.AllocBuffer(own), clear(own), terms(own), self._over(0, rows, computed, join)])

        terms, fetches = _Terms(self, place, rows, add, block).code(sums), self._lines_to_store(place, rows, width)
        return sequence([tirx.AllocBuffer(sums), *fetches, clear(sums), terms, self._stored(place, rows, width, sums)])

    def _ahead(self, place: Place, term: Term) -> list[tirx.Stmt]:
        """The fetches of what later steps read."""
        r, tile = self.r, self.tile
        found = list[tirx.Stmt]()
        step = place.tile * self.k + term.number  # of all steps of a panel
        if tile.a == LIES and tile.b != WINDOWS and not any(r.windows[r.a]):
            found += prefetch.first_line(self._later_row(place, term))
        by_panel = tile.order == PANELS or tile.block * tile.rows >= self.m
        if tile.b == GIVEN and by_panel and r.size((*r.batch, *r.n, *r.k)) >= prefetch.COLD:
            first = self._column_where_it_lies(place, self.number(0), Term(dict.fromkeys(r.k, self.number(0)), 0))
            found.append(prefetch.line_of_panel(first, len(r.k), tile.columns, step, self.tiles))
        if tile.order == PANELS and not any(r.windows) and not any(r.panels) and self.n * self.k >= prefetch.BEYOND_L1:
            found += self._next_source(place, step)
        return found

    def _later_row(self, place: Place, term: Term) -> Expr:
        """The element of A whose line is fetched in a step: where rows run along k the steps of a run of neighbours
        fetch the next tile's rows there, else it is that of some steps on. (Divisions in a step's address took two
        thirds of the time of a filter's gradient.)"""
        r, rows = self.r, self.tile.rows
        if r.contiguous[r.a] != r.last(r.k):
            names = {**self.at(r.m, place.tile * rows), **self.at(r.k, term.number + prefetch.STEPS)}
            return self.element(r.a, {**place.batch, **names})
        run, inner = r.run(r.a, r.k), list[int]()
        while len(inner) < len(r.k) and r.size(tuple(inner)) < run:
            inner.insert(0, r.k[len(r.k) - 1 - len(inner)])
        steps = {axis: self.number(0) if axis in inner else i for axis, i in term.names.items()}
        steps[r.last(r.k)] = self.flat(inner, term.names) * rows
        return self.element(r.a, {**place.batch, **self.at(r.m, place.tile * rows + rows), **steps})

    def _next_source(self, place: Place, step: Expr) -> list[tirx.Stmt]:
        """The fetches of lines of what the next panel is made of, where B is made of a matrix that is given."""
        sources = prefetch.sources(self.factors[1 - self.r.a])
        if len(sources) != 1 or len(sources[0].shape) != 2 or not any(sources[0].same_as(x) for x in self.given):
            return []
        along_k = self.r.contiguous[1 - self.r.a] == self.r.last(self.r.k)
        columns = self.tile.columns
        first = (place.panel + 1) * columns
        size = (columns, self.k) if along_k else (self.k, columns)
        start = (first, self.number(0)) if along_k else (self.number(0), first)
        return prefetch.lines_of(sources[0], start, size, step, self.tiles * self.k, self.analyzer)

    # What is stored

    def _result(self, place: Place, row: Expr, column: Expr, total: Expr) -> tirx.Stmt:
        """The store of what is made of a sum."""
        names = {
            **place.batch,
            **self._parts(self.r.m, place.tile * self.tile.rows + row),
            **self._parts(self.r.n, place.panel * self.tile.columns + column),
        }
        return self.product.stored(names, total, self.neighbour)

    @property
    def _by_columns(self) -> bool:
        """Whether C is contiguous along the rows of tiles."""
        r = self.r
        return max(i for i in range(len(r.extents)) if i not in r.k and r.extents[i] > 1) in r.m

    def _stored(self, place: Place, rows: int, width: int, sums: Any) -> tirx.Stmt:
        """The stores of a tile's elements, as far as C has them."""
        own, made = self.tile.lanes, list[tirx.Stmt]()
        costly = self.product.result is not None and is_costly(self.product.result.value)
        if costly:  # too long for one copy of it a vector: a loop over a copied tile
            copied = self.array((rows, self._padded(width)), "copied", "local")

            def copy(r: Expr, c: Expr) -> tirx.Stmt:
                return tirx.BufferStore(copied, tirx.BufferLoad(sums, [r, c]), [r, c])

            made = [tirx.AllocBuffer(copied), self._over(0, rows, self._padded(width), copy)]
            sums = copied

        def put(r: Expr, c: Expr) -> tirx.Stmt:
            return self._result(place, r, c, tirx.BufferLoad(sums, [r, c]))

        def row(r: Expr) -> tirx.Stmt:
            return in_steps(width, own, lambda s, n: self.vector(n, lambda x: put(r, s + x)), self.index)

        if self._by_columns:
            kind = SERIAL if costly else UNROLLED
            columns = self.loop(width, lambda c: self.vector(rows, lambda r: put(r, c)), kind, "column")
            return sequence([*made, columns])
        return sequence([*made, self.loop(rows, row, name="row") if costly else self._over(0, rows, width, put)])

    def _lines_to_store(self, place: Place, rows: int, width: int) -> list[tirx.Stmt]:
        """The fetches of the lines that a tile is stored to, where L1 does not hold C and its rows lie apart."""
        if self.m * self.n < prefetch.FAR:
            return []
        zero = tirx.const(0, self.dtype)

        def line(r: Expr, c: Expr) -> tirx.Stmt:
            return prefetch.to_store(self._result(place, r, c, zero))

        if self._by_columns:
            return [self.loop(width, lambda c: line(self.number(0), c), UNROLLED, "column")]
        whole = -(-width // self.tile.lanes)
        columns = lambda r: self.loop(whole, lambda v: line(r, v * self.tile.lanes), UNROLLED, "vector")  # noqa: E731
        return [self.loop(rows, columns, UNROLLED, "row")]


class _Terms:
    """The loops over k of one tile: a long sum is cut into blocks, and taps that meet only the zeros around images are
    left out."""

    def __init__(
        self, writer: Writer, place: Place, rows: int, add: Callable[..., tirx.Stmt], block: Callable[..., tirx.Stmt]
    ) -> None:
        self.writer, self.place, self.rows, self.add, self.block = writer, place, rows, add, block
        r, tile = writer.r, writer.tile
        self.axes = [(axis,) for axis in r.k] if WINDOWS in (tile.a, tile.b) else [r.k]
        self.sizes = [r.size(axes) for axes in self.axes]
        self.cut, self.length = self._cut()
        few = tile.a == WINDOWS and r.contiguous[r.a] == r.k[-1] and self.sizes[-1] < FEW_CHANNELS
        few = few and not any(one.tap == r.k[-1] or one.position == r.m[-1] for one in writer.skips)
        self.kinds = [SERIAL] * (len(self.axes) - 1) + [UNROLLED if few else SERIAL]
        if tile.b == WINDOWS:
            self.kinds = [UNROLLED] * len(self.axes)

    def _cut(self) -> tuple[int, int]:
        """Which of the loops is cut into blocks, -1 for none, and their length."""
        inner = 1
        for i in range(len(self.sizes) - 1, -1, -1):
            if inner * self.sizes[i] > 2 * TERMS:
                most = max(TERMS // inner, 1)
                return i, min(near_divisor(self.sizes[i], most) or most, self.sizes[i])
            inner *= self.sizes[i]
        return -1, 0

    def code(self, sums: Any) -> tirx.Stmt:
        """All terms added to the sums."""
        return self._from(0, {}, 0, self.rows, sums)

    def _from(self, i: int, names: Names, first: int, last: int, sums: Any) -> tirx.Stmt:
        """The loops from number `i` on, for some rows of the tile."""
        if i == len(self.axes):
            return self.add(sums, first, last, Term(names, self.writer.flat(self.writer.r.k, names)))
        axes, extent = self.axes[i], self.sizes[i]
        skip = next((one for one in self.writer.skips if (one.tap,) == axes), None)
        if skip is not None and skip.position == self.writer.r.m[-1]:
            return self._by_tap(i, names, first, last, sums, skip)

        def step(k: Expr, array: Any) -> tirx.Stmt:
            return self._from(i + 1, {**names, **self.writer.at(axes, k)}, first, last, array)

        low, high = self._met(skip, extent) if skip is not None else (self.writer.number(0), self.writer.number(extent))
        if i != self.cut:
            first_k = 0 if skip is None else low
            found = self.writer.loop(extent, lambda k: step(k + first_k, sums), self.kinds[i], "k")
            if skip is None or not isinstance(found, tirx.For):
                return found
            count = self.writer.simple(tirx.max(high - low, 0))
            return tirx.For(found.loop_var, 0, count, found.kind, found.body)

        def terms(number: Expr, array: Any) -> tirx.Stmt:
            def inner(k: Expr) -> tirx.Stmt:
                at = number * self.length + k
                code = step(at, array)
                return code if skip is None else tirx.IfThenElse(tirx.all(at >= low, at < high), code, None)

            found = self.writer.loop(self.length, inner, self.kinds[i], "k")
            if extent % self.length == 0 or not isinstance(found, tirx.For):
                return found
            left = tirx.min(self.writer.number(self.length), extent - number * self.length)
            return tirx.For(found.loop_var, 0, left, found.kind, found.body)

        blocks = -(-extent // self.length)
        return self.writer.loop(blocks, lambda number: self.block(lambda array: terms(number, array)), name="part")

    def _by_tap(self, i: int, names: Names, first: int, last: int, sums: Any, skip: padding.Padding) -> tirx.Stmt:
        """Taps one by one, each without the rows of the tile whose windows lie beyond the image there."""
        made = []
        for tap in range(self.sizes[i]):
            low = max(first, -((skip.step * tap - skip.start) // skip.scale))
            high = min(last, -((skip.step * tap - skip.stop) // skip.scale))
            if low < high:
                own = {**names, skip.tap: self.writer.number(tap)}
                code = lambda array: self._from(i + 1, own, low, high, array)  # noqa: B023, E731
                made.append(self.block(code) if i == self.cut else code(sums))
        return sequence(made) if made else tirx.Evaluate(0)

    def _met(self, skip: padding.Padding, extent: int) -> tuple[Expr, Expr]:
        """The first tap that meets the image in the tile's row of results, and the end of those that do."""
        names = self.writer.at(self.writer.r.m, self.place.tile * self.writer.tile.rows)
        row = names[skip.position]

        def first_from(place: int) -> Expr:
            return tirx.floordiv(place - skip.scale * row + skip.step - 1, skip.step)

        low, high = tirx.max(first_from(skip.start), 0), tirx.min(first_from(skip.stop), extent)
        return self.writer.simple(low), self.writer.simple(high)
