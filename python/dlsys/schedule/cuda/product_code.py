"""The code of a product's launch: tiles through shared memory to registers, and what is done with the results."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tvm import ir, tirx

from ..codegen import UNROLLED, loop, sequence, unravelled
from ..common import renamed
from ..stages import Expr
from ..sums import Sum
from .products import Axes, Operand, Product
from .threads import ThreadCode, barrier, ceil_div, guarded, index, lanes, launch, local, shared, unrolled

DEPTH = 16  # steps of k between two barriers
GROUP = 4  # neighbouring rows or columns of a thread, read as one vector
ZERO: Expr = tirx.const(0, "int32")


class Step(NamedTuple):
    """A block's work at each step along k: instructions of a warp, each in the time of a multiply-add; bytes that all
    threads read of shared memory; terms that it multiplies."""

    instructions: int
    nbytes: int
    depth: int = 1


@dataclass(frozen=True)
class Tile:
    """A block's part of C, and a thread's part of that. DEPTH terms of a side are whole vectors for each thread."""

    rows: int
    columns: int
    own_rows: int
    own_columns: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.rows // self.own_rows * (self.columns // self.own_columns)

    @property
    def step(self) -> Step:
        """A step of CUDA cores: a thread multiplies each of its rows by each of its columns."""
        return Step(self.own_rows * self.own_columns, (self.own_rows + self.own_columns) * 4 * self.threads)


class SharedTile:
    """A factor of the product, and how its tile, of `side` rows or columns of `total`, comes to shared memory: a thread
    loads `count` vectors of `width`, along k or along the side.

    Attributes:
        first, at: the row or column where the block's tile begins, and the thread's part of the tile.
        copied: whether they go to shared memory without passing through registers (cp.async): vectors of 16 bytes that
            lie there as in memory. Such a tile has two halves, one of which is filled while the other is read.
        tile, held, own: in shared memory; what a thread has loaded of the next one; what it multiplies at a time.
    """

    def __init__(
        self, code: Code, name: str, operand: Operand, axes: Axes, side: int, number: Expr, at: Expr, own: int
    ) -> None:
        """`number`: of the block's tile; `own`: how many elements a thread multiplies at a time."""
        self.code: Code = code
        self.axes: Axes = axes
        self.side: int = side
        product, threads, factor, steps = code.product, code.tile.threads, operand.value, operand.strides
        self.factor: Expr = factor
        self.total: int = product.size(axes)
        self.dtype: str = str(factor.ty)
        last_k, last = product.last(product.k), product.last(axes)
        self.along_k: bool = steps is not None and steps[last_k] == 1 != steps[last]
        width = lanes([product.stage])
        run = product.extents[last_k if self.along_k else last]
        self.width: int = width if isinstance(factor, ir.TensorLoad) and run % width == 0 else 1
        self.count: int = side * DEPTH // (self.width * threads)
        whole = self.width > 1 and not self.along_k and self.dtype == "float32"
        self.copied: bool = code.copies and whole and self._is_aligned(last)
        self.first: Expr = number * side
        self.at: Expr = at
        rows = DEPTH // code.pair * (1 + self.copied)
        size = rows * (side + code.pad) + rows // 4 * code.skew
        self.tile: ir.Var = shared((size,), self.dtype, name)  # of two axes TVM would cut off what pads rows
        self.held: ir.Var = tirx.decl_buffer((self.count * self.width,), self.dtype, f"{name}_next", scope="local")
        self.own: ir.Var = tirx.decl_buffer((own,), self.dtype, f"{name}_own", scope="local")

    def _is_aligned(self, last: int) -> bool:
        """Whether vectors along an iterator lie at multiples of their size."""
        code, iters = ThreadCode(self.width), self.code.product.stage.iters
        names = {v.var: index(v.var.name) for v in iters}
        names[iters[last].var] = index("vector") * self.width + code.lane
        return code.is_vector(self.factor.source, [renamed(i, names) for i in self.factor.indices])

    def place(self, vector: int, lane: Expr) -> tuple[Expr, Expr]:
        """The k and the row or column, within the tile, of an element of a thread's vector of that number."""
        pair = self.code.pair if self.width == 1 or not self.along_k else 1
        first = (vector // pair * self.code.tile.threads + self.code.thread) * self.width
        if self.along_k:
            run = DEPTH // pair
            return tirx.floormod(first, run) * pair + vector % pair + lane, tirx.floordiv(first, run)
        return tirx.floordiv(first, self.side) * pair + vector % pair, tirx.floormod(first, self.side) + lane

    def in_shared(self, k: Expr, side: Expr, step: Expr) -> Expr:
        """Where an element of a step's tile lies in shared memory."""
        row = tirx.floordiv(k, self.code.pair) + (tirx.floormod(step, 2) * DEPTH if self.copied else 0)
        return row * (self.side + self.code.pad) + tirx.floordiv(row, 4) * self.code.skew + side

    def group(self, number: int) -> Expr:
        """Where in the tile a group of the thread's rows or columns begins: they lie apart."""
        return number * (self.side * GROUP // int(self.own.shape[0])) + self.at * GROUP

    def load(self, vector: int, step: Expr) -> tirx.Stmt:
        """A vector of a step into the thread's registers, or on its way to shared memory; zeros beyond the edges."""
        whole, product, code = self.code, self.code.product, ThreadCode(self.width)
        (k, side), terms = self.place(vector, ZERO), product.size(product.k)
        first_k = whole.part * whole.length + step * DEPTH
        guards = [self.first + side < self.total] if self.total % self.side else []
        if whole.parts * whole.length != terms or whole.length % DEPTH:
            guards.append(first_k + k < terms)
        at_k, at = self.place(vector, ZERO if self.copied else code.lane)
        names = product.at({product.batch: whole.batch, self.axes: self.first + at, product.k: first_k + at_k})
        if self.copied:
            source = tirx.BufferLoad(self.factor.source, [renamed(i, names) for i in self.factor.indices])
            inside: Expr = tirx.const(1, "int32")
            for guard in guards:
                inside = tirx.Select(guard, inside, ZERO)
            target = tirx.BufferLoad(self.tile, [self.in_shared(k, side, step)])
            return _call("dlsys_copy", *map(tirx.address_of, (target, source)), inside)
        value = code.value(code.evaluate(self.factor, names, lambda load: None))
        zero, first = tirx.const(0, self.dtype), vector * self.width
        code.store(self.held, value, [first + code.lane])
        zeros = loop(self.width, lambda i: tirx.BufferStore(self.held, zero, [first + i]), kind=UNROLLED, name="lane")
        return tirx.IfThenElse(tirx.all(*guards), code.loop(), zeros) if guards else code.loop()


def _call(name: str, *arguments: Any) -> tirx.Stmt:
    """A call of one of `nvrtc.COPIES`."""
    return tirx.Evaluate(tirx.call_extern("int32", name, *arguments))


class Code:
    """The code of a product's launch; `parts` of `length` terms each, whose number is the first index of results."""

    pad = 4  # elements behind each row of a tile in shared memory: its columns are stored to different banks
    skew = 0  # more of them behind each fourth row
    pair = 1  # neighbours along k that a word of shared memory holds
    copies = True  # of operands, see `SharedTile`, where they can be
    sums: Any

    def __init__(self, product: Product, tile: Tile, whole: Sum, parts: int, length: int) -> None:
        self.product: Product = product
        self.tile: Tile = tile
        self.whole: Sum = whole
        self.parts: int = parts
        self.length: int = length
        self.block: Any = index("block")
        self.thread: Any = index("thread")
        self.step: Any = index("step")
        self.dtype: str = whole.dtype
        sides = (("a", product.a, product.m, tile.rows), ("b", product.b, product.n, tile.columns))
        counts = (parts, product.size(product.batch), *(ceil_div(product.size(axes), side) for *_, axes, side in sides))
        self.blocks: int = math.prod(counts)
        self.part, self.batch, *numbers = unravelled(self.block, counts)
        every = zip(sides, numbers, self.shares(), strict=True)
        self.operands: list[SharedTile] = [SharedTile(self, *side, number, *share) for side, number, share in every]

    def shares(self) -> list[tuple[Expr, int]]:
        """Of A and of B the thread's part of the tile, and how many elements of it the thread holds."""
        own, across = (self.tile.own_rows, self.tile.own_columns), self.tile.columns // self.tile.own_columns
        return list(zip((tirx.floordiv(self.thread, across), tirx.floormod(self.thread, across)), own, strict=True))

    def nest(self) -> tirx.Stmt:
        """The launch."""
        tile, steps = self.tile, ceil_div(self.length, DEPTH)
        self.sums, zeros = local(self.dtype, self.whole.stage.init, tile.own_rows * tile.own_columns)
        both, more = self.operands, sequence(self._load(self.step + 1))
        held = [one for one in both if not one.copied]
        inner = [_call("dlsys_wait")] if len(held) < len(both) else []
        inner += [*(code for one in held for code in self.share(one)), barrier()]
        inner += [tirx.IfThenElse(self.step + 1 < steps, more, None)] if steps > 1 else []
        inner += [self.multiply(), *([barrier()] if held else [])]  # one tile for all steps: it has been read
        arrays = [*(one.tile for one in both), *(one.held for one in held), *(one.own for one in both)]
        along = tirx.For(self.step, 0, steps, tirx.ForKind.SERIAL, sequence(inner))
        body = [*map(tirx.AllocBuffer, arrays), *zeros, *self._load(ZERO), along, *self._results()]
        return launch(self.whole.stage.name, [(self.block, self.blocks)], [(self.thread, tile.threads)], sequence(body))

    def _load(self, step: Expr) -> list[tirx.Stmt]:
        """A step's elements into registers, or on their way to shared memory."""
        commits = [_call("dlsys_commit")] if any(one.copied for one in self.operands) else []
        return [*(one.load(vector, step) for one in self.operands for vector in range(one.count)), *commits]

    def share(self, operand: SharedTile) -> list[tirx.Stmt]:
        """The held elements of an operand into shared memory, k outermost."""
        found, width = [], operand.width
        for i in range(0, operand.count, self.pair):
            code = ThreadCode(width)
            value = tirx.BufferLoad(operand.held, [i * width + code.lane])
            code.store(operand.tile, value, [operand.in_shared(*operand.place(i, code.lane), self.step)])
            found += [*self.rounded(operand, i), code.loop()]
        return found

    def rounded(self, operand: SharedTile, vector: int) -> list[tirx.Stmt]:
        """Statements that round a held vector before it is stored; none here."""
        return []

    def multiply(self) -> tirx.Stmt:
        """A step's multiply-adds: what the thread needs of each operand into registers, and its products."""
        k, found = index("k"), []
        for operand in self.operands:
            number = 0
            for at_k, side, width in self.reads(operand, k):
                code = ThreadCode(width)
                where = operand.in_shared(at_k, side + code.lane if width > 1 else side, self.step)
                code.store(operand.own, tirx.BufferLoad(operand.tile, [where]), [number + code.lane])
                found.append(code.loop())
                number += width
        return unrolled(k, DEPTH // self.tile.step.depth, sequence([*found, *self.products()]))

    def reads(self, operand: SharedTile, k: Expr) -> Iterator[tuple[Expr, Expr, int]]:
        """Of what the thread multiplies at a time some neighbours: their k, first row or column, and count."""
        for group in range(int(operand.own.shape[0]) // GROUP):
            yield k, operand.group(group), GROUP

    def products(self) -> list[tirx.Stmt]:
        """The products of what the thread has in registers, added to its sums."""
        i, j = index("i"), index("j")
        pairs = zip(self.operands, (i, j), strict=True)
        a, b = (tirx.Cast(self.dtype, tirx.BufferLoad(one.own, [number])) for one, number in pairs)
        place = [i * self.tile.own_columns + j]
        adding = tirx.BufferStore(self.sums, tirx.BufferLoad(self.sums, place) + a * b, place)
        return [unrolled(i, self.tile.own_rows, unrolled(j, self.tile.own_columns, adding))]

    def places(self) -> Iterator[tuple[list[Expr], int, int]]:
        """Of the thread's results, some neighbours in a row: row and first column, number of the first sum, count."""
        own_columns = self.tile.own_columns
        width = GROUP if self.operands[1].total % GROUP == 0 else 1
        for row in range(self.tile.own_rows):
            for column in range(0, own_columns, width):
                pairs = zip(self.operands, (row, column), strict=True)
                place = [one.first + one.group(number // GROUP) + number % GROUP for one, number in pairs]
                yield place, row * own_columns + column, width

    def _results(self) -> list[tirx.Stmt]:
        """The stores of the thread's results, each after its epilogue."""
        product, (a, b), found = self.product, self.operands, []
        for (row, column), number, width in self.places():
            code = ThreadCode(width)
            names = product.at({product.batch: self.batch, product.m: row, product.n: column + code.lane})
            result = [names[v.var] for v in product.stage.spatial]
            total = tirx.BufferLoad(self.sums, [number + code.lane])
            self.whole.store(code, [self.part, *result] if self.parts > 1 else result, total)
            edges = [place < one.total for place, one in ((column, b), (row, a)) if one.total % one.side]
            found.append(guarded(edges, code.loop()))
        return found
