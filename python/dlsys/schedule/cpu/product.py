"""The loops of a product: C[b, m, n] = sum over k of A[b, m, k] * B[b, k, n], with A and B read through expressions.

Threads have shares of C: a block of rows and some panels of columns, or batches. In a share the loops are, from
outside, over the parts of a long k (what is added up so far lies in an array between), over panels of B, and over tiles
of the block's rows (`tile_code`). A and B are read where they lie, or in panels, [n // columns, k, n % columns], that
are given or packed: by the share, part by part, where no other one reads them, else before.

The blocking is that of Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008): the part of
B's panel stays in L1 or L2, and that of A's block in L2, while one passes the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from ..codegen import PARALLEL, SERIAL, UNROLLED, block_of, cut, sequence, unravelled
from ..common import PARALLEL_WORK, SHORT
from ..products import Axes, Operand, Product
from ..squares import SIDE, turned
from ..stages import Expr, Stage
from ..target import Machine
from .images import Images
from .indices import Names, Part, Place, Read
from .tile_code import TileCode
from .tiles import BEFORE, PACKED, Tile, group


class Loops(TileCode):
    """The loops of a product in tiles."""

    def __init__(
        self, p: Product, images: Images | None, result: Stage | None, tile: Tile, machine: Machine
    ) -> None:
        """`images`: those that are made before, for a factor to read. The others: see `TileCode`."""
        # a thread has one batch after another
        self.alone: bool = bool(p.batch) and (tile.by_batch or not tile.parallel)
        if images is not None and self.alone and (own := images.of_batch(p)):
            images, p = own
        super().__init__(p, result, tile, machine)
        self.batch: tuple[int, ...] = p.shape(p.batch)
        self.images = images
        self.shares: tuple[int, int] = tile.shares(p)
        depth = self.terms.depth  # of what is packed in a share, part by part
        self.panel: Any | None = self.array((depth, tile.columns), "panel") if tile.b == PACKED else None
        self.rows: Any | None = self.array((tile.block, depth, tile.rows), "rows") if tile.a == PACKED else None
        # allocated by a statement, since TVM would allocate `between` anew in each step that uses it
        arrays = [one for one in (self.panel, self.rows, self.between) if one is not None]
        self.own: list[tirx.AllocBuffer] = [tirx.AllocBuffer(one) for one in arrays]

    def nests(self) -> list[tirx.Stmt]:
        """The loop nests, one after another: what all tiles need, and the tiles."""
        p, tile, found = self.product, self.tile, list[tirx.Stmt]()
        own, before = (self.own, []) if tile.parallel else ([], self.own)  # a thread has arrays of its own
        read_a: Read = self.row_where_it_lies
        read_b: Read = self.column_where_it_lies
        if self.images is not None and not self.images.fixed:
            found.append(self.images.laid(self.loop, {}, 2 * tile.lanes, tile.parallel and not self.alone))
        if tile.b == BEFORE:
            nest, read_b = self._all_panels(p.b)
            found.append(nest)
        if tile.a == BEFORE:
            nest, read_a = self._all_panels(p.a)
            found.append(nest)

        outer, inner = (self.batch, self.shares) if self.alone else ((*self.batch, *self.shares), ())

        def step(index: Sequence[Expr]) -> tirx.Stmt:
            return self._step(dict(zip(p.batch, index, strict=False)), index[len(p.batch) :], read_a, read_b)

        def steps(number: Expr) -> tirx.Stmt:
            index, made = unravelled(number, outer), list[tirx.Stmt](own)
            if self.images is not None and self.images.fixed:
                laid = self.images.laid(self.loop, dict(zip(p.batch, index, strict=True)), 2 * tile.lanes)
                made += [tirx.AllocBuffer(self.images.buffer), laid]
            own_steps = self.loop(math.prod(inner), lambda i: step([*index, *unravelled(i, inner)]), name="step")
            return sequence([*made, own_steps])

        kind, name = PARALLEL if tile.parallel else SERIAL, "batch" if self.alone else "step"
        found.append(sequence([*before, self.loop(math.prod(outer), steps, kind, name)]))
        return [block_of(p.stage.name, nest) for nest in found]

    def _step(self, batch: Names, index: Sequence[Expr], read_a: Read, read_b: Read) -> tirx.Stmt:
        """A share: some panels, which a block of rows passes; part of k by part of k."""
        p, tile, packed, rows = self.product, self.tile, self.panel, self.rows
        block, first = index[0] * tile.block, index[1] * tile.panels

        def some(whole: int, start: Expr, most: int, body: Callable[[Expr], tirx.Stmt], name: str) -> tirx.Stmt:
            """`body` of some of a whole, from a start on: of as many as there are."""
            left = tirx.min(most, whole - start) if whole % most else self.number(most)
            return self.loop_to(left, most, body, name=name)

        def tiles(body: Callable[[Expr], tirx.Stmt]) -> tirx.Stmt:
            return some(self.tiles, block, tile.block, body, "tile")

        def of_part(number: Expr) -> tirx.Stmt:
            part = self.terms.part(number)
            of_a = read_a if rows is None else self._reader(rows, lambda place: [place.local[1]], part.first)
            of_b = read_b if packed is None else self._reader(packed, lambda place: [], part.first)

            def copy(i: Expr) -> tirx.Stmt:
                of = lambda many: self._pack(p.a, rows, [i], batch, block + i, many, part)  # noqa: E731
                return cut(block + i, self.m, tile.rows, of)

            def of_panel(local: Expr) -> tirx.Stmt:
                panel = self.simple(first + local)

                def of(width: int) -> tirx.Stmt:
                    made = [] if packed is None else [self._pack(p.b, packed, [], batch, panel, width, part)]
                    place = lambda i: Place(batch, block + i, panel, (local, i), part)  # noqa: E731
                    return sequence([*made, tiles(lambda i: self.code(place(i), width, of_a, of_b))])

                return cut(panel, self.n, tile.columns, of)

            made = [] if rows is None else [tiles(copy)]
            return sequence([*made, some(-(-self.n // tile.columns), first, tile.panels, of_panel, "panel")])

        return self.loop(self.terms.count, of_part, name="part")

    # Packing

    def _side(self, operand: Operand) -> tuple[Axes, int, int]:
        """The axes of an operand that k is not of, how many elements they have, and how many of these a panel has."""
        if operand is self.product.a:
            return self.product.m, self.m, self.tile.rows
        return self.product.n, self.n, self.tile.columns

    def _reader(self, packed: Any, lead: Callable[[Place], Sequence[Expr]], first: Expr) -> Read:
        """How an operand is read that is packed from a first step of k on; `lead`: the panel of a place."""
        return lambda place, at, term: tirx.BufferLoad(packed, [*lead(place), self.simple(term.number - first), at])

    def _all_panels(self, operand: Operand) -> tuple[tirx.Stmt, Read]:
        """The loops that pack all of an operand, and how it is read then."""
        p = self.product
        axes, (_, size, width) = [axis for axis in p.batch if axis in operand.axes], self._side(operand)
        shape = [*(p.extents[axis] for axis in axes), -(-size // width)]
        packed = self.array((*shape, self.k, width), "rows" if operand is p.a else "panels")
        whole = Part(self.number(0), dict.fromkeys(p.k, self.number(0)), self.number(0))
        by_squares = self._is_turned(operand, size, self.k) and size % SIDE == self.k % SIDE == 0
        loops = [*shape[:-1], size // SIDE] if by_squares else shape

        def panel(number: Expr) -> tirx.Stmt:
            *own, j = lead = unravelled(number, loops)
            batch = dict(zip(axes, own, strict=True))
            if not by_squares:
                return cut(j, size, width, lambda count: self._pack(operand, packed, lead, batch, j, count, whole))

            def place(k: Expr, at: Expr) -> list[Expr]:
                return [*own, tirx.floordiv(at, width), k, tirx.floormod(at, width)]

            return self._pack_turned(operand, packed, place, batch, j * SIDE, self.number(0), self.k, self.k)

        def own_panel(place: Place) -> list[Expr]:
            return [*(place.batch[axis] for axis in axes), place.tile if operand is p.a else place.panel]

        parallel = self.tile.parallel and p.size(p.batch) * size * self.k >= PARALLEL_WORK
        nest = self.loop(math.prod(loops), panel, PARALLEL if parallel else SERIAL, "panel")
        return nest, self._reader(packed, own_panel, self.number(0))

    def _pack(
        self, operand: Operand, packed: Any, lead: Sequence[Expr], batch: Names, panel: Expr, count: int, part: Part
    ) -> tirx.Stmt:
        """The copy of a part of a panel, of so many rows or columns, k by k; zeros beyond them as far as vectors go."""
        p, (axes, _, width) = self.product, self._side(operand)
        depth = self.terms.depth if packed is self.panel or packed is self.rows else self.k
        ends = dict(zip(p.k, self.terms.ends(part) if depth < self.k else self.terms.sizes, strict=True))
        lengths = dict(zip(p.k, self.terms.lengths if depth < self.k else self.terms.sizes, strict=True))

        def put(at: Expr, k: Expr, names: Names) -> tirx.Stmt:
            value = self.element(operand, {**batch, **self.at(axes, panel * width + at), **names})
            return tirx.BufferStore(packed, value, [*lead, k, at])

        def each_k(body: Callable[[Expr, Names], tirx.Stmt], names: Names, left: Sequence[int]) -> tirx.Stmt:
            if not left:
                return body(self.simple(self.flat(p.k, names) - part.first), names)
            of = lambda k: each_k(body, {**names, left[0]: part.starts[left[0]] + k}, left[1:])  # noqa: E731
            return self.loop_to(ends[left[0]], lengths[left[0]], of, name="k")

        made, order = list[tirx.Stmt](), sorted(p.k)  # as the operand lies
        if self._is_turned(operand, count, depth):
            first = panel * width
            place = lambda k, x: [*lead, k, x - first]  # noqa: E731
            of = lambda c: self._pack_turned(  # noqa: E731
                operand, packed, place, batch, first + c, part.first, depth, ends[p.k[0]]
            )
            made.append(self._squares(count, count, of))
        else:  # addresses run on within a group: one vector, and divisions once a group
            own = group(p, operand, width)
            own = count if own == width else math.gcd(own, count)

            def lane(start: Expr, k: Expr, names: Names) -> tirx.Stmt:
                return self.vector(own, lambda x: put(start + x, k, names))

            if own >= SHORT:
                groups = lambda g: each_k(lambda k, names: lane(g * own, k, names), {}, order)  # noqa: E731
                made.append(self.loop(count // own, groups))
            else:
                of_k = lambda k, names: self.loop(count // own, lambda g: lane(g * own, k, names), UNROLLED)  # noqa: E731
                made.append(each_k(of_k, {}, order))
        if operand is not p.a and (beyond := self.padded(count) - count):
            zero = tirx.const(0, self.dtype)
            clear = lambda k: self.vector(beyond, lambda x: tirx.BufferStore(packed, zero, [*lead, k, count + x]))  # noqa: E731
            made.append(self.loop(depth, clear))
        return sequence(made)

    def _is_turned(self, operand: Operand, count: int, depth: int) -> bool:
        """Whether so many rows of A, or columns of B, are rows of memory, which are turned in registers, square by
        square of the steps of a part of k (see `squares`). These are whole squares of elements that are not of 4
        bytes, and where the tile leaves few registers."""
        (axes, size, _), k = self._side(operand), self.product.k
        if len(k) > 1 or len(axes) > 1 or operand.contiguous != k[0]:
            return False
        if self.tile.turns(self.product, self.machine) and min(depth, self.k % depth or depth, count) >= SIDE:
            return size > SIDE
        return self.k % depth == depth % SIDE == count % SIDE == 0 and size > SIDE

    def _pack_turned(
        self,
        operand: Operand,
        packed: Any,
        place: Callable[[Expr, Expr], Sequence[Expr]],
        batch: Names,
        first: Expr,
        start: Expr,
        depth: int,
        steps: Expr,
    ) -> tirx.Stmt:
        """A square's width of an operand's rows or columns from a first on, over `steps` of k, at most so many, from a
        start on:
        squares are copied to the stack row by row of memory, and turned in registers. `place`: where the packed array
        has an element, of a step from the start and of one of those."""
        (axis,), ((across,), _, _) = self.product.k, self._side(operand)

        def square(k: Expr) -> tirx.Stmt:
            def copy(x: Expr, i: Expr) -> Expr:
                return self.element(operand, {**batch, across: first + x, axis: start + k + i})

            made, element = turned(copy, SIDE, SIDE, self.dtype, self.index)

            def store(i: Expr, x: Expr) -> tirx.Stmt:
                at = map(self.simple, place(k + i, first + x))
                return tirx.BufferStore(packed, element(x, i), list(at))

            columns = self.loop(SIDE, lambda i: self.vector(SIDE, lambda x: store(i, x)), UNROLLED)
            return sequence([made, columns])

        return self._squares(steps, depth, square)

    def _squares(self, size: Expr, most: int, square: Callable[[Expr], tirx.Stmt]) -> tirx.Stmt:
        """`square` at each start of those that cover a size, `most` at most. The last one, which would go beyond, lies
        over that before."""
        whole = self.loop_to(tirx.floordiv(size, SIDE), most // SIDE, lambda i: square(i * SIDE), name="square")
        ragged = not isinstance(size, int) or size % SIDE
        return sequence([whole, *([square(self.number(0) + size - SIDE)] if ragged else [])])
