"""Products on tensor cores: a warp multiplies pieces of two matrices with one instruction (`mma` declares them)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

from tvm import tirx

from ...devices.machine import TENSOR_INSTRUCTION
from ..codegen import sequence
from ..intrinsics import Intrinsic, Warp
from ..products import Product
from ..stages import Expr
from ..sums import Sum
from .product_code import DEPTH, Code, SharedTile, Step, Tile
from .threads import WARP, ThreadCode, index, unrolled

LANE_ROWS, LANE_COLUMNS = 8, 4  # of a warp's lanes, which each have results of its part of a tile

TILES = (Tile(128, 128, 8, 16), Tile(64, 64, 8, 8))
"""A warp has 64 x 64 of the first: its lanes read a word of shared memory for each instruction, where of 64 x 32 they
read one and a half."""


def serve(product: Product) -> bool:
    """Whether tensor cores serve for a product: of float32, and not of less than a tile."""
    dtypes = {str(one.value.ty) for one in (product.a, product.b)} | {product.dtype}
    least = min(product.size(product.m), product.size(product.n))
    return dtypes == {"float32"} and least >= TILES[-1].rows // 2 and product.size(product.k) >= DEPTH


def _of_warp(tile: Tile) -> tuple[int, int]:
    """Rows and columns of a warp's part of a tile."""
    return tile.own_rows * LANE_ROWS, tile.own_columns * LANE_COLUMNS


def _pieces(tile: Tile, intrinsic: Intrinsic) -> tuple[int, int]:
    """Pieces of A and of B of a warp's part of a tile."""
    rows, columns = _of_warp(tile)
    return rows // intrinsic.piece[0], columns // intrinsic.piece[1]


def step_of(tile: Tile, intrinsic: Intrinsic) -> Step:
    """A step of tensor cores: a warp multiplies each of its pieces of A by each of B. The numbers do not come by
    themselves: each is loaded, rounded and stored."""
    words = intrinsic.piece[2]
    depth, warps = words * intrinsic.terms, tile.threads // WARP
    brought = 3 * depth * (tile.rows + tile.columns) // tile.threads
    instructions = math.prod(_pieces(tile, intrinsic)) * TENSOR_INSTRUCTION + brought
    return Step(tile, instructions, sum(_of_warp(tile)) * words * 4 * warps, depth)


class TensorCode(Code):
    """The code of a product's launch, by instructions of warps on words, which lie in shared memory as float32. Each
    load and store of a warp meets all 32 banks once, by 8 words more behind each fourth row."""

    copies = False  # the numbers are rounded on their way
    pad = 8

    def __init__(self, product: Product, tile: Tile, whole: Sum, parts: int, length: int, intrinsic: Intrinsic) -> None:
        assert intrinsic.warp is not None
        self.intrinsic: Intrinsic = intrinsic
        self.warp: Warp = intrinsic.warp
        self.pieces: tuple[int, int] = _pieces(tile, intrinsic)
        self.pair = intrinsic.terms
        super().__init__(product, tile, whole, parts, length)
        lane = tirx.floormod(self.thread, WARP)
        self.group: Expr = tirx.floordiv(lane, 4)
        self.lane: Expr = tirx.floormod(lane, 4)

    def shares(self) -> list[tuple[Expr, int]]:
        (rows, columns), warp = _of_warp(self.tile), tirx.floordiv(self.thread, WARP)
        across = self.tile.columns // columns
        at = (tirx.floordiv(warp, across) * rows, tirx.floormod(warp, across) * columns)
        return [(at[0], len(self.warp.a) * self.pieces[0]), (at[1], len(self.warp.b) * self.pieces[1])]

    def size(self, operand: SharedTile) -> int:
        rows = DEPTH // self.intrinsic.terms
        return rows * (operand.side + self.pad) + rows // 4 * 8

    def in_tile(self, operand: SharedTile, k: Expr, side: Expr, step: Expr) -> Expr:
        row = tirx.floordiv(k, self.intrinsic.terms)
        return row * (operand.side + self.pad) + tirx.floordiv(row, 4) * 8 + side

    def share(self, operand: SharedTile) -> list[tirx.Stmt]:
        numbers, width, held, found = self.intrinsic.terms, operand.width, operand.held, list[tirx.Stmt]()

        def word(first: int, apart: int) -> Expr:
            """Of held elements one word."""
            own = [tirx.BufferLoad(held, [first + n * apart]) for n in range(numbers)]
            return self.warp.word(*own)

        def to(code: ThreadCode, value: Expr, vector: int, lane: Expr) -> None:
            place = operand.place(vector, lane)
            code.store(operand.tile, value, [self.in_tile(operand, *place, self.step)])
            found.append(code.loop())

        if operand.along_k and width > 1:
            for first in range(0, operand.count * width, numbers):
                to(ThreadCode(1), word(first, 1), first // width, tirx.const(first % width, "int32"))
            return found
        for i in range(0, operand.count, numbers):  # rounded in registers, and stored as a vector
            firsts = range(i * width, (i + 1) * width)
            found += [tirx.BufferStore(held, word(first, width), [first]) for first in firsts]
            code = ThreadCode(width)
            to(code, tirx.BufferLoad(held, [i * width + code.lane]), i, code.lane)
        return found

    def multiply(self) -> tirx.Stmt:
        """A step's instructions."""
        k, found, numbers, words = index("k"), [], self.intrinsic.terms, self.intrinsic.piece[2]
        held = self.warp.a, self.warp.b
        for operand, pieces, size, offsets in zip(self.operands, self.pieces, self.intrinsic.piece, held, strict=False):
            for piece, (number, (side, step)) in product(range(pieces), enumerate(offsets)):
                row = operand.at + piece * size + self.group + side
                where = self.in_tile(operand, (k * words + self.lane + step) * numbers, row, self.step)
                code = ThreadCode(1)
                code.store(operand.own, tirx.BufferLoad(operand.tile, [where]), [piece * len(offsets) + number])
                found.append(code.loop())
        a, b = (operand.own for operand in self.operands)
        for i, j in product(*map(range, self.pieces)):
            total = len(self.warp.total) * (i * self.pieces[1] + j)
            starts = ((self.sums, total), (a, len(held[0]) * i), (b, len(held[1]) * j))
            pointers = [tirx.address_of(tirx.BufferLoad(buffer, [start])) for buffer, start in starts]
            found.append(tirx.Evaluate(self.intrinsic.lowering(WARP, *pointers)))
        return unrolled(k, DEPTH // (words * numbers), sequence(found))

    def places(self) -> Iterator[tuple[list[Expr], int, int]]:
        (a, b), (rows, columns, _) = self.operands, self.intrinsic.piece
        width = 2 if b.total % 2 == 0 else 1
        for i, j, number in product(*map(range, self.pieces), range(0, len(self.warp.total), width)):
            below, right = self.warp.total[number]
            row = a.first + a.at + i * rows + below + self.group
            column = b.first + b.at + j * columns + 2 * self.lane
            yield [row, column + right], len(self.warp.total) * (i * self.pieces[1] + j) + number, width
