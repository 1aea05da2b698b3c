"""Products: C[m, n] = sum over k of A(m, k) B(k, n), with A and B read through whatever expressions the function has.
So all four transposes, batches, convolutions and both their gradients are one schedule.

A block of threads computes a tile of C. Step by step along k its threads bring a tile of A and one of B into shared
memory, both with k outermost, while they hold the next step's elements in registers: loads are on their way during the
arithmetic. Each thread computes some rows times some columns of the tile in registers, reads of shared memory being
vectors; rows and columns are taken in groups of four that lie apart, so that a warp's reads fall into different banks.
What is computed of the product alone follows in registers. Where there are too few tiles to fill the device, k is cut
into parts, which a second launch adds up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx

from .. import common
from ..codegen import sequence, unravelled
from ..stages import Expr, Stage, read_stages, with_nests
from ..target import Machine, Rule
from . import reduction
from .model import SHARED_BYTES, WARPS_A_CYCLE
from .reduction import Sum, behind, parts_of, sum_of
from .threads import (
    MULTIPROCESSORS,
    WARP,
    ThreadCode,
    barrier,
    ceil_div,
    index,
    lanes,
    launch,
    local,
    shared,
    unrolled,
)

DEPTH = 16  # steps of k between two barriers
GROUP = 4  # neighbouring rows or columns of a thread, read as one vector
PAD = 4  # elements behind each row of a tile: its columns are stored to different banks
LEAST = 8  # rows and columns of a product; of fewer each result is a sum of its own
PART = 256  # terms of a part, at least, where k is cut


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


TILES = (Tile(128, 128, 8, 8), Tile(128, 64, 8, 8), Tile(64, 64, 8, 4), Tile(64, 32, 4, 4), Tile(32, 32, 4, 4))
"""Of the first two a thread computes 16 multiply-adds for each vector that it reads of shared memory, then 10 and 8."""
SECOND = 6000  # cycles of the launch that adds up parts


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


def schedule(func: tirx.PrimFunc, machine: Machine) -> s_tir.Schedule | None:
    """The launches of a function with one product. Declines others, and products with few rows or columns."""
    sch = common.start(func)
    if not any(common.is_reduction(sch, block) for block in common.stages(sch)):
        return None
    common.inline_spatial(sch)
    func = common.function_of(sch)
    stages = read_stages(func)
    if stages is None:
        return None
    sums = [stage for stage in stages if stage.reduced]
    product = product_of(sums[0]) if len(sums) == 1 else None
    if product is None or min(product.size(product.m), product.size(product.n)) < LEAST:
        return None
    at = stages.index(sums[0])
    after = behind(stages[at], stages[at + 1 :])
    rest = [stage for stage in stages[at + 1 :] if stage not in after]
    results = set(func.params)
    before, _ = reduction.nests(stages[:at], stages, results)
    own, arrays = _launches(product, sum_of(stages[at], after, stages, results))
    last, more = reduction.nests(rest, stages, results)
    return common.start(with_nests(func, [*before, *own, *last], [*arrays, *more]))


def product_of(stage: Stage) -> Product | None:
    """The stage as a product whose columns run along the last axis of its result; None where it is none."""
    value, iters = stage.value, stage.iters
    if not isinstance(value, tirx.Add) or not isinstance(value.b, tirx.Mul):
        return None
    if not isinstance(value.a, ir.TensorLoad) or not value.a.source.same_as(stage.buffer):
        return None
    reads = [set(tirx.analysis.undefined_vars(factor)) for factor in (value.b.a, value.b.b)]
    spatial = [i for i, v in enumerate(iters) if v.iter_type == tirx.IterVar.DataPar]
    k = tuple(i for i, v in enumerate(iters) if v.iter_type != tirx.IterVar.DataPar)
    used = [tuple(iters[i].var in read for read in reads) for i in spatial]
    wide = [i for i in spatial if int(iters[i].dom.extent) > 1]
    if not wide:
        return None
    last = used[spatial.index(wide[-1])]
    if last == (True, True) or last == (False, False):
        return None
    a, b = (value.b.a, value.b.b) if last == (False, True) else (value.b.b, value.b.a)
    n = tuple(i for i, of in zip(spatial, used, strict=True) if of == last)
    m = tuple(i for i, of in zip(spatial, used, strict=True) if of == last[::-1])
    batch = tuple(i for i in spatial if i not in m and i not in n)
    return Product(stage, a, b, batch, m, n, k)


def _tiling(product: Product) -> tuple[Tile, int]:
    """The tile and the number of parts of k that take the fewest cycles, by the model."""
    m, n, terms = product.size(product.m), product.size(product.n), product.size(product.k)
    found = []
    for tile in TILES:
        blocks = product.size(product.batch) * ceil_div(m, tile.rows) * ceil_div(n, tile.columns)
        most = max(1, min(ceil_div(2 * MULTIPROCESSORS, blocks), terms // PART))
        for parts in {1, ceil_div(most, 2), most}:
            found.append((_cycles(tile, blocks, terms, parts), -tile.rows, parts, tile))
    _, _, parts, tile = min(found, key=lambda one: one[:3])
    return tile, parts


def _cycles(tile: Tile, blocks: int, terms: int, parts: int) -> float:
    """Cycles of a product's launches: of the busiest multiprocessor, whose arithmetic or shared memory is the limit."""
    busiest = ceil_div(blocks * parts, MULTIPROCESSORS)
    length = ceil_div(terms, parts)
    arithmetic = tile.own_rows * tile.own_columns * tile.threads / (WARP * WARPS_A_CYCLE)
    reading = (tile.own_rows + tile.own_columns) * 4 * tile.threads / SHARED_BYTES
    alone = tile.own_rows * tile.own_columns * 1.5 + 20  # a block's steps, where no other fills the gaps
    return max(busiest * max(arithmetic, reading), alone) * length + (SECOND if parts > 1 else 0)


def _launches(product: Product, whole: Sum) -> tuple[list[tirx.Stmt], list[ir.Var]]:
    """The launch of a product, or those of its parts and of their sum."""
    tile, parts = _tiling(product)
    terms = product.size(product.k)
    if parts < 2:
        return [_Code(product, tile, whole, 1, terms).nest()], []
    length = ceil_div(ceil_div(terms, parts), DEPTH) * DEPTH
    first, last, array = parts_of(whole, ceil_div(terms, length), length)
    return [_Code(product, tile, first, ceil_div(terms, length), length).nest(), last], [array]


class _Operand:
    """How a factor's tile comes from memory to shared memory.

    Attributes:
        side: rows of the tile of A, or columns of that of B.
        width: elements that a thread loads at once, along k or along the side.
        along_k: whether neighbouring threads take neighbours along k.
        count: vectors that a thread loads.
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

    def place(self, number: Expr) -> tuple[Expr, Expr]:
        """The k and the row or column of a vector's first element within the tile."""
        first = number * self.width
        if self.along_k:
            return tirx.floormod(first, DEPTH), tirx.floordiv(first, DEPTH)
        return tirx.floordiv(first, self.side), tirx.floormod(first, self.side)


def _steps(stage: Stage, factor: Expr) -> dict[int, int | None]:
    """Elements stepped over in the factor's memory when an iterator advances; None where that varies."""
    found: list[Any] = []
    tvm_ffi.structural_walk(factor, (ir.TensorLoad, found.append))
    strides = common.strides_of(stage.block, found[0].source, found[0].indices) if len(found) == 1 else None
    return {i: None if strides is None else strides[i] for i in range(len(stage.iters))}


def _in_tile(operand: _Operand, k: Expr, side: Expr) -> Expr:
    """Where an element of a tile lies in shared memory."""
    return k * (operand.side + PAD) + side


class _Code:
    """The code of a product's launch; `parts` of `length` terms each, the number of a part being the first index of
    each result where there are several."""

    def __init__(self, product: Product, tile: Tile, whole: Sum, parts: int, length: int) -> None:
        self.product, self.tile, self.whole, self.parts, self.length = product, tile, whole, parts, length
        self.dtype = whole.dtype
        self.operands = (
            _Operand(product, product.a, product.m, tile.rows, tile.threads),
            _Operand(product, product.b, product.n, tile.columns, tile.threads),
        )
        self.block, self.thread = index("block"), index("thread")
        self.rows, self.columns = product.size(product.m), product.size(product.n)
        tiles = (ceil_div(self.rows, tile.rows), ceil_div(self.columns, tile.columns))
        counts = (parts, product.size(product.batch), *tiles)
        self.blocks = math.prod(counts)
        self.part, self.batch, row, column = unravelled(self.block, counts)
        self.first = (row * tile.rows, column * tile.columns)
        across = tile.columns // tile.own_columns
        self.at = (tirx.floordiv(self.thread, across), tirx.floormod(self.thread, across))

    def nest(self) -> tirx.Stmt:
        """The launch."""
        tile = self.tile
        # of one axis: of two TVM would cut off what pads the rows
        self.tiles = [
            shared((DEPTH * (o.side + PAD),), self._dtype_of(o), name)
            for o, name in zip(self.operands, "ab", strict=True)
        ]
        self.held = [
            tirx.decl_buffer((o.count * o.width,), self._dtype_of(o), f"{name}_next", scope="local")
            for o, name in zip(self.operands, "ab", strict=True)
        ]
        self.own = [
            tirx.decl_buffer((width,), self._dtype_of(o), f"{name}_own", scope="local")
            for o, name, width in zip(self.operands, "ab", (tile.own_rows, tile.own_columns), strict=True)
        ]
        self.sums, zeros = local(self.dtype, self.whole.stage.init, tile.own_rows * tile.own_columns)
        steps = ceil_div(self.length, DEPTH)
        step = index("step")
        more = [*self._load((step + 1) * DEPTH)]
        body = [
            *map(tirx.AllocBuffer, [*self.tiles, *self.held, *self.own]),
            *zeros,
            *self._load(tirx.const(0, "int32")),
            tirx.For(
                step,
                0,
                steps,
                tirx.ForKind.SERIAL,
                sequence(
                    [
                        *self._share(),
                        barrier(),
                        *([tirx.IfThenElse(step + 1 < steps, sequence(more), None)] if steps > 1 else []),
                        self._multiply(),
                        barrier(),
                    ]
                ),
            ),
            *self._results(),
        ]
        return launch(self.whole.name, [(self.block, self.blocks)], [(self.thread, tile.threads)], sequence(body))

    def _dtype_of(self, operand: _Operand) -> str:
        return str(operand.factor.ty)

    def _load(self, start: Expr) -> list[tirx.Stmt]:
        """A step's elements into registers; zeros beyond the edges."""
        product, found = self.product, []
        iters = product.stage.iters
        for operand, held, first in zip(self.operands, self.held, self.first, strict=True):
            total = product.size(operand.axes)
            for i in range(operand.count):
                code = ThreadCode(operand.width)
                k, side = operand.place(i * self.tile.threads + self.thread)
                lane = code.lane if operand.width > 1 else 0
                number, k = first + side, self.part * self.length + start + k
                k_lane, number_lane = (k + lane, number) if operand.along_k else (k, number + lane)
                names: dict[Any, Expr] = {}
                for axes, at in ((product.batch, self.batch), (operand.axes, number_lane), (product.k, k_lane)):
                    places = unravelled(at, product.shape(axes))
                    names |= {iters[axis].var: place for axis, place in zip(axes, places, strict=True)}
                value = code.value(code.evaluate(operand.factor, names, lambda load: None))
                code.store(held, value, [i * operand.width + code.lane])
                guards = []
                if not operand.exact:
                    guards.append((i * self.tile.threads + self.thread) * operand.width < operand.side * DEPTH)
                if total % operand.side:
                    guards.append(number < total)
                if self.parts * self.length != product.size(product.k) or self.length % DEPTH:
                    guards.append(k < product.size(product.k))
                found.append(self._or_zeros(guards, code.loop(), held, i * operand.width, operand.width))
        return found

    def _or_zeros(self, guards: list[Expr], body: tirx.Stmt, held: ir.Var, start: int, width: int) -> tirx.Stmt:
        """The body where all guards hold, else zeros in a part of an array."""
        if not guards:
            return body
        guard = guards[0]
        for other in guards[1:]:
            guard = tirx.And(guard, other)
        lane = index("lane")
        zero = tirx.BufferStore(held, tirx.const(0, str(held.dtype)), [start + lane])
        return tirx.IfThenElse(guard, body, tirx.For(lane, 0, width, tirx.ForKind.UNROLLED, zero))

    def _share(self) -> list[tirx.Stmt]:
        """The held elements into shared memory, k outermost."""
        found = []
        for operand, held, tile in zip(self.operands, self.held, self.tiles, strict=True):
            for i in range(operand.count):
                number = i * self.tile.threads + self.thread
                k, side = operand.place(number)
                code = ThreadCode(operand.width)
                lane = code.lane if operand.width > 1 else 0
                at = _in_tile(operand, k + lane, side) if operand.along_k else _in_tile(operand, k, side + lane)
                code.store(tile, tirx.BufferLoad(held, [i * operand.width + code.lane]), [at])
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
                value = tirx.BufferLoad(both, [_in_tile(operand, k, first + code.lane)])
                code.store(own, value, [group * GROUP + code.lane])
                loads.append(code.loop())
        i, j = index("i"), index("j")
        place = i * tile.own_columns + j
        a, b = (tirx.Cast(self.dtype, tirx.BufferLoad(own, [x])) for own, x in zip(self.own, (i, j), strict=True))
        adding = tirx.BufferStore(self.sums, tirx.BufferLoad(self.sums, [place]) + a * b, [place])
        product = unrolled(i, tile.own_rows, unrolled(j, tile.own_columns, adding))
        return unrolled(k, DEPTH, sequence([*loads, product]))

    def _results(self) -> list[tirx.Stmt]:
        """What is done with each result of the thread, a vector of columns at a time."""
        tile, product, found = self.tile, self.product, []
        width = GROUP if self.columns % GROUP == 0 else 1
        for row in range(tile.own_rows):
            for column in range(0, tile.own_columns, width):
                code = ThreadCode(width)
                places = []
                for number, at, count, side, first in (
                    (row, self.at[0], tile.own_rows, tile.rows, self.first[0]),
                    (column, self.at[1], tile.own_columns, tile.columns, self.first[1]),
                ):
                    group, rest = divmod(number, GROUP)
                    places.append(first + group * (side * GROUP // count) + at * GROUP + rest)
                lane = code.lane if width > 1 else 0
                names: dict[int, Expr] = {}
                for axes, at in (
                    (product.batch, self.batch),
                    (product.m, places[0]),
                    (product.n, places[1] + lane),
                ):
                    names |= dict(zip(axes, unravelled(at, product.shape(axes)), strict=True))
                result = [names[i] for i in range(len(product.stage.spatial))]
                total = tirx.BufferLoad(self.sums, [row * tile.own_columns + column + lane])
                self.whole.store(code, [self.part, *result] if self.parts > 1 else result, total)
                body = code.loop()
                for place, count, side in (
                    (places[0], self.rows, tile.rows),
                    (places[1], self.columns, tile.columns),
                ):
                    if count % side:
                        body = tirx.IfThenElse(place < count, body, None)
                found.append(body)
        return found


RULE = Rule("contraction", "cuda", schedule)
