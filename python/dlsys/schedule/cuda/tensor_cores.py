"""Products on tensor cores: a warp multiplies pieces of two matrices with one instruction (`mma` declares them)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from tvm import tirx

from ...devices.machine import TENSOR_INSTRUCTION
from ..intrinsics import Intrinsic, Warp
from ..stages import Expr
from ..sums import Sum
from ..target import Machine
from . import mma
from .product_code import DEPTH, Code, SharedTile, Step, Tile
from .products import Product
from .threads import WARP, ThreadCode

TILES = ((128, 128, 8, 16), (64, 64, 8, 8))
"""As of `Tile`. A warp has 64 x 64 of the first: its lanes read a word of shared memory for each instruction, where of
64 x 32 they read one and a half."""


@dataclass(frozen=True)
class WarpTile(Tile):
    """A tile of which each warp multiplies its part by an instruction."""

    intrinsic: Intrinsic

    @property
    def part(self) -> tuple[int, int]:
        """Rows and columns of a warp, whose lanes stand 8 by 4."""
        return self.own_rows * 8, self.own_columns * 4

    @property
    def pieces(self) -> tuple[int, int]:
        """Pieces of A and of B of a warp."""
        (rows, columns), piece = self.part, self.intrinsic.piece
        return rows // piece[0], columns // piece[1]

    @property
    def step(self) -> Step:
        """A warp multiplies each of its pieces of A by each of B. Numbers do not come by themselves: each is loaded,
        rounded and stored."""
        words, warps = self.intrinsic.piece[2], self.threads // WARP
        depth = words * self.intrinsic.terms
        brought = 3 * depth * (self.rows + self.columns) // self.threads
        return Step(math.prod(self.pieces) * TENSOR_INSTRUCTION + brought, sum(self.part) * words * 4 * warps, depth)


def tiles_of(product: Product, machine: Machine) -> list[WarpTile]:
    """The tiles for a product by tensor cores: of float32, and of not much less than a tile; none for others."""
    intrinsic = mma.instruction(machine.tensor_cores, machine.features)
    dtypes = {str(one.value.ty) for one in (product.a, product.b)} | {product.dtype}
    least = min(product.size(product.m), product.size(product.n))
    if intrinsic is None or dtypes != {"float32"} or least < 32 or product.size(product.k) < DEPTH:
        return []
    return [WarpTile(*sizes, intrinsic) for sizes in TILES]


class TensorCode(Code):
    """The code of a product's launch, by instructions of warps on words, which lie in shared memory as float32. Each
    load and store of a warp meets all 32 banks once, by 8 words more behind each fourth row."""

    copies = False  # the numbers are rounded on their way
    pad = skew = 8

    tile: WarpTile

    def __init__(self, product: Product, tile: WarpTile, whole: Sum, parts: int, length: int) -> None:
        assert tile.intrinsic.warp is not None
        self.intrinsic: Intrinsic = tile.intrinsic
        self.warp: Warp = tile.intrinsic.warp
        self.pieces: tuple[int, int] = tile.pieces
        self.pair = tile.intrinsic.terms
        super().__init__(product, tile, whole, parts, length)
        lane = tirx.floormod(self.thread, WARP)
        self.group: Expr = tirx.floordiv(lane, 4)
        self.lane: Expr = tirx.floormod(lane, 4)

    def shares(self) -> list[tuple[Expr, int]]:
        (rows, columns), warp = self.tile.part, tirx.floordiv(self.thread, WARP)
        across = self.tile.columns // columns
        at = (tirx.floordiv(warp, across) * rows, tirx.floormod(warp, across) * columns)
        return [(at[0], len(self.warp.a) * self.pieces[0]), (at[1], len(self.warp.b) * self.pieces[1])]

    def _word(self, operand: SharedTile, first: int, apart: int) -> Expr:
        """Of held elements one word."""
        return self.warp.word(*(tirx.BufferLoad(operand.held, [first + n * apart]) for n in range(self.pair)))

    def rounded(self, operand: SharedTile, vector: int) -> list[tirx.Stmt]:
        width = operand.width
        places = range(vector * width, (vector + 1) * width)
        return [tirx.BufferStore(operand.held, self._word(operand, at, width), [at]) for at in places]

    def share(self, operand: SharedTile) -> list[tirx.Stmt]:
        width, found = operand.width, list[tirx.Stmt]()
        if not operand.along_k or width == 1:
            return super().share(operand)
        for first in range(0, operand.count * width, self.pair):  # a vector's words go to different rows
            code, place = ThreadCode(1), operand.place(first // width, tirx.const(first % width, "int32"))
            code.store(operand.tile, self._word(operand, first, 1), [operand.in_shared(*place, self.step)])
            found.append(code.loop())
        return found

    def reads(self, operand: SharedTile, k: Expr) -> Iterator[tuple[Expr, Expr, int]]:
        which = self.operands.index(operand)
        for piece, (side, word) in product(range(self.pieces[which]), (self.warp.a, self.warp.b)[which]):
            row = operand.at + piece * self.intrinsic.piece[which] + self.group + side
            yield (k * self.intrinsic.piece[2] + self.lane + word) * self.pair, row, 1

    def products(self) -> list[tirx.Stmt]:
        found, (a, b) = list[tirx.Stmt](), (operand.own for operand in self.operands)
        for i, j in product(*map(range, self.pieces)):
            total = len(self.warp.total) * (i * self.pieces[1] + j)
            starts = ((self.sums, total), (a, len(self.warp.a) * i), (b, len(self.warp.b) * j))
            pointers = [tirx.address_of(tirx.BufferLoad(buffer, [start])) for buffer, start in starts]
            found.append(tirx.Evaluate(self.intrinsic.lowering(WARP, *pointers)))
        return found

    def places(self) -> Iterator[tuple[list[Expr], int, int]]:
        (a, b), (rows, columns, _) = self.operands, self.intrinsic.piece
        width = 2 if b.total % 2 == 0 else 1
        for i, j, number in product(*map(range, self.pieces), range(0, len(self.warp.total), width)):
            below, right = self.warp.total[number]
            row = a.first + a.at + i * rows + below + self.group
            column = b.first + b.at + j * columns + 2 * self.lane
            yield [row, column + right], len(self.warp.total) * (i * self.pieces[1] + j) + number, width
