"""The code of a product's launch: tiles through shared memory to registers, and what is done with the results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from .. import common
from ..codegen import sequence, unravelled
from ..stages import Expr, Stage
from .reduction import Sum
from .threads import ThreadCode, barrier, ceil_div, index, lanes, launch, local, shared, unrolled

DEPTH = 16  # steps of k between two barriers
GROUP = 4  # neighbouring rows or columns of a thread, read as one vector


@dataclass(frozen=True)
class Tile:
    """A block's part of C, and a thread's part of that."""

    rows: int
    columns: int
    own_rows: int
    own_columns: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.rows // self.own_rows * (self.columns // self.own_columns)


@dataclass(frozen=True)
class Product:
    """A stage that is a product: its factors, and what its iterators are for, as positions among them."""

    stage: Stage
    a: Expr
    b: Expr
    batch: tuple[int, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]

    def shape(self, axes: Sequence[int]) -> tuple[int, ...]:
        """The extents of some iterators."""
        return tuple(int(self.stage.iters[i].dom.extent) for i in axes)

    def size(self, axes: Sequence[int]) -> int:
        """Their product."""
        return math.prod(self.shape(axes))


class Operand:
    """How a factor's tile comes from memory to shared memory.

    Attributes:
        side: rows of the tile of A, or columns of that of B.
        width: elements that a thread loads at once, along k or along the side.
        along_k: whether neighbouring threads take neighbours along k.
        count: vectors that a thread loads.
        copied: whether they go to shared memory without passing through registers (cp.async): vectors of 16 bytes that
            lie there as in memory. Such a tile has two halves, one of which is filled while the other is read.
    """

    def __init__(self, product: Product, factor: Expr, axes: tuple[int, ...], side: int, threads: int) -> None:
        self.factor, self.axes, self.side = factor, axes, side
        stage = product.stage
        steps = _steps(stage, factor)
        last_k = [i for i in product.k if int(stage.iters[i].dom.extent) > 1][-1:]
        last = [i for i in axes if int(stage.iters[i].dom.extent) > 1][-1:]
        self.along_k = bool(last_k) and steps[last_k[0]] == 1 and not (last and steps[last[0]] == 1)
        run = product.size(last_k if self.along_k else last)
        found: list[Any] = []
        tvm_ffi.structural_walk(factor, (ir.TensorLoad, found.append))
        width = lanes([load.source.dtype for load in found])
        plain = isinstance(factor, ir.TensorLoad) and run % width == 0
        self.width = width if plain and (side * DEPTH // width) % threads == 0 else 1
        self.count = ceil_div(side * DEPTH // self.width, threads)
        self.exact = self.count * threads * self.width == side * DEPTH
        whole = self.width > 1 and self.exact and not self.along_k and _is_aligned(stage, factor, last[0], self.width)
        self.copied = whole and str(factor.ty) == "float32"

    def place(self, number: Expr) -> tuple[Expr, Expr]:
        """The k and the row or column of a vector's first element within the tile."""
        first = number * self.width
        if self.along_k:
            return tirx.floormod(first, DEPTH), tirx.floordiv(first, DEPTH)
        return tirx.floordiv(first, self.side), tirx.floormod(first, self.side)


def _is_aligned(stage: Stage, factor: Expr, last: int, width: int) -> bool:
    """Whether the vectors of a factor along an iterator lie at multiples of their size."""
    code, index_of = ThreadCode(width), {v.var: index(v.var.name) for v in stage.iters}
    index_of[stage.iters[last].var] = index("vector") * width + code.lane
    return code.is_vector(factor.source, [common.renamed(i, index_of) for i in factor.indices])


def _steps(stage: Stage, factor: Expr) -> dict[int, int | None]:
    """Elements stepped over in the factor's memory when an iterator advances; None where that varies."""
    found: list[Any] = []
    tvm_ffi.structural_walk(factor, (ir.TensorLoad, found.append))
    strides = common.strides_of(stage.block, found[0].source, found[0].indices) if len(found) == 1 else None
    return {i: None if strides is None else strides[i] for i in range(len(stage.iters))}


def _call(name: str, *arguments: Any) -> tirx.Stmt:
    """A call of one of `nvrtc.HELPERS`."""
    return tirx.Evaluate(tirx.call_extern("int32", name, *arguments))


def _copy(tile: ir.Var, place: Expr, factor: Expr, names: dict[Any, Expr], guards: list[Expr]) -> tirx.Stmt:
    """The asynchronous copy of a vector of a factor to a place in shared memory; of zeros where a guard fails."""
    indices = [common.renamed(i, names) for i in factor.indices]
    source = tirx.address_of(tirx.BufferLoad(factor.source, indices))
    inside: Expr = tirx.const(1, "int32")
    for guard in guards:
        inside = tirx.Select(guard, inside, tirx.const(0, "int32"))
    return _call("dlsys_copy", tirx.address_of(tirx.BufferLoad(tile, [place])), source, inside)


class Code:
    """The code of a product's launch; `parts` of `length` terms each, the number of a part being the first index of
    each result where there are several.

    Attributes:
        pad: elements behind each row of a tile in shared memory: its columns are stored to different banks.
        fragments: elements of A and of B that a thread holds.
        tile_dtype: of the numbers in shared memory; the factors' for None.
        copies: whether operands are copied, see `Operand`, where they can be.
        step: the number of the step along k.
    """

    pad = 4
    tile_dtype: str | None = None
    copies = True

    def __init__(self, product: Product, tile: Tile, whole: Sum, parts: int, length: int) -> None:
        self.product, self.tile, self.whole, self.parts, self.length = product, tile, whole, parts, length
        self.dtype = whole.dtype
        self.operands = (
            Operand(product, product.a, product.m, tile.rows, tile.threads),
            Operand(product, product.b, product.n, tile.columns, tile.threads),
        )
        for operand in self.operands:
            operand.copied = operand.copied and self.copies
        self.block, self.thread, self.step = index("block"), index("thread"), index("step")
        self.rows, self.columns = product.size(product.m), product.size(product.n)
        tiles = (ceil_div(self.rows, tile.rows), ceil_div(self.columns, tile.columns))
        counts = (parts, product.size(product.batch), *tiles)
        self.blocks = math.prod(counts)
        self.part, self.batch, row, column = unravelled(self.block, counts)
        self.first = (row * tile.rows, column * tile.columns)
        across = tile.columns // tile.own_columns
        self.at = (tirx.floordiv(self.thread, across), tirx.floormod(self.thread, across))
        self.fragments = (tile.own_rows, tile.own_columns)

    def nest(self) -> tirx.Stmt:
        """The launch."""
        tile = self.tile
        # of one axis: of two TVM would cut off what pads the rows
        self.tiles = [
            shared((DEPTH * (o.side + self.pad) * (1 + o.copied),), self.tile_dtype or self._dtype_of(o), name)
            for o, name in zip(self.operands, "ab", strict=True)
        ]
        self.held = [
            tirx.decl_buffer((o.count * o.width,), self._dtype_of(o), f"{name}_next", scope="local")
            for o, name in zip(self.operands, "ab", strict=True)
        ]
        self.own = [
            tirx.decl_buffer((width,), self._dtype_of(o), f"{name}_own", scope="local")
            for o, name, width in zip(self.operands, "ab", self.fragments, strict=True)
        ]
        self.sums, zeros = local(self.dtype, self.whole.stage.init, tile.own_rows * tile.own_columns)
        steps = ceil_div(self.length, DEPTH)
        more = sequence(self._load(self.step + 1))
        inner = [*self._share(), barrier()]
        inner += [tirx.IfThenElse(self.step + 1 < steps, more, None)] if steps > 1 else []
        inner.append(self._multiply())
        if not all(operand.copied for operand in self.operands):  # one tile for all steps: it has been read
            inner.append(barrier())
        held = [held for operand, held in zip(self.operands, self.held, strict=True) if not operand.copied]
        body = [
            *map(tirx.AllocBuffer, [*self.tiles, *held, *self.own]),
            *zeros,
            *self._load(tirx.const(0, "int32")),
            tirx.For(self.step, 0, steps, tirx.ForKind.SERIAL, sequence(inner)),
            *self._results(),
        ]
        return launch(self.whole.name, [(self.block, self.blocks)], [(self.thread, tile.threads)], sequence(body))

    def _in_tile(self, operand: Operand, k: Expr, side: Expr, step: Expr) -> Expr:
        """Where an element of a step's tile lies in shared memory."""
        row = k + tirx.floormod(step, 2) * DEPTH if operand.copied else k
        return row * (operand.side + self.pad) + side

    def _rounded(self, value: Expr) -> Expr:
        """A factor's element as it is multiplied."""
        return value

    def _dtype_of(self, operand: Operand) -> str:
        """The dtype of a factor's elements."""
        return str(operand.factor.ty)

    def _load(self, step: Expr) -> list[tirx.Stmt]:
        """A step's elements into registers, or on their way to shared memory; zeros beyond the edges."""
        product, found = self.product, []
        iters = product.stage.iters
        for operand, held, tile, first in zip(self.operands, self.held, self.tiles, self.first, strict=True):
            total = product.size(operand.axes)
            for i in range(operand.count):
                code = ThreadCode(operand.width)
                k, side = operand.place(i * self.tile.threads + self.thread)
                lane = code.lane if operand.width > 1 else 0
                place = self._in_tile(operand, k, side, step)
                number, k = first + side, self.part * self.length + step * DEPTH + k
                k_lane, number_lane = (k + lane, number) if operand.along_k else (k, number + lane)
                names: dict[Any, Expr] = {}
                for axes, at in ((product.batch, self.batch), (operand.axes, number_lane), (product.k, k_lane)):
                    places = unravelled(at, product.shape(axes))
                    names |= {iters[axis].var: place for axis, place in zip(axes, places, strict=True)}
                guards = []
                if not operand.exact:
                    guards.append((i * self.tile.threads + self.thread) * operand.width < operand.side * DEPTH)
                if total % operand.side:
                    guards.append(number < total)
                if self.parts * self.length != product.size(product.k) or self.length % DEPTH:
                    guards.append(k < product.size(product.k))
                if operand.copied:
                    names = {v: common.renamed(at, {code.lane: tirx.const(0, "int32")}) for v, at in names.items()}
                    found.append(_copy(tile, place, operand.factor, names, guards))
                    continue
                value = code.value(code.evaluate(operand.factor, names, lambda load: None))
                code.store(held, value, [i * operand.width + code.lane])
                found.append(self._or_zeros(guards, code.loop(), held, i * operand.width, operand.width))
        if any(operand.copied for operand in self.operands):
            found.append(_call("dlsys_commit"))
        return found

    def _or_zeros(self, guards: list[Expr], body: tirx.Stmt, held: ir.Var, start: int, width: int) -> tirx.Stmt:
        """The body where all guards hold, else zeros in a part of an array."""
        if not guards:
            return body
        lane = index("lane")
        zero = tirx.BufferStore(held, tirx.const(0, str(held.dtype)), [start + lane])
        return tirx.IfThenElse(tirx.all(*guards), body, tirx.For(lane, 0, width, tirx.ForKind.UNROLLED, zero))

    def _share(self) -> list[tirx.Stmt]:
        """The held elements into shared memory, k outermost; what is on its way there arrives."""
        found = [_call("dlsys_wait")] if any(operand.copied for operand in self.operands) else []
        for operand, held, tile in zip(self.operands, self.held, self.tiles, strict=True):
            if operand.copied:
                continue
            for i in range(operand.count):
                number = i * self.tile.threads + self.thread
                k, side = operand.place(number)
                code = ThreadCode(operand.width)
                lane = code.lane if operand.width > 1 else 0
                place = (k + lane, side) if operand.along_k else (k, side + lane)
                value = self._rounded(tirx.BufferLoad(held, [i * operand.width + code.lane]))
                code.store(tile, value, [self._in_tile(operand, *place, self.step)])
                body = code.loop()
                inside = number * operand.width < operand.side * DEPTH
                found.append(body if operand.exact else tirx.IfThenElse(inside, body, None))
        return found

    def _multiply(self) -> tirx.Stmt:
        """A step's multiply-adds."""
        tile, k = self.tile, index("k")
        loads = []
        for operand, both, own, at in zip(self.operands, self.tiles, self.own, self.at, strict=True):
            count = int(own.shape[0])
            for group in range(count // GROUP):
                code = ThreadCode(GROUP)
                first = group * (operand.side * GROUP // count) + at * GROUP
                value = tirx.BufferLoad(both, [self._in_tile(operand, k, first + code.lane, self.step)])
                code.store(own, value, [group * GROUP + code.lane])
                loads.append(code.loop())
        i, j = index("i"), index("j")
        place = i * tile.own_columns + j
        a, b = (tirx.Cast(self.dtype, tirx.BufferLoad(own, [x])) for own, x in zip(self.own, (i, j), strict=True))
        adding = tirx.BufferStore(self.sums, tirx.BufferLoad(self.sums, [place]) + a * b, [place])
        product = unrolled(i, tile.own_rows, unrolled(j, tile.own_columns, adding))
        return unrolled(k, DEPTH, sequence([*loads, product]))

    def _places(self) -> Iterator[tuple[Expr, Expr, int, int]]:
        """Of the thread's results, some neighbouring columns at a time: row, first column, number of the first sum, and
        how many."""
        tile = self.tile
        width = GROUP if self.columns % GROUP == 0 else 1
        for row in range(tile.own_rows):
            for column in range(0, tile.own_columns, width):
                places = []
                for number, at, count, side, first in (
                    (row, self.at[0], tile.own_rows, tile.rows, self.first[0]),
                    (column, self.at[1], tile.own_columns, tile.columns, self.first[1]),
                ):
                    group, rest = divmod(number, GROUP)
                    places.append(first + group * (side * GROUP // count) + at * GROUP + rest)
                yield places[0], places[1], row * tile.own_columns + column, width

    def _results(self) -> list[tirx.Stmt]:
        """The stores of the thread's results, each after its epilogue."""
        tile, product, found = self.tile, self.product, []
        for row, column, number, width in self._places():
            code = ThreadCode(width)
            lane = code.lane if width > 1 else 0
            names: dict[int, Expr] = {}
            for axes, at in ((product.batch, self.batch), (product.m, row), (product.n, column + lane)):
                names |= dict(zip(axes, unravelled(at, product.shape(axes)), strict=True))
            result = [names[i] for i in range(len(product.stage.spatial))]
            total = tirx.BufferLoad(self.sums, [number + lane])
            self.whole.store(code, [self.part, *result] if self.parts > 1 else result, total)
            body = code.loop()
            for place, count, side in ((row, self.rows, tile.rows), (column, self.columns, tile.columns)):
                if count % side:
                    body = tirx.IfThenElse(place < count, body, None)
            found.append(body)
        return found
