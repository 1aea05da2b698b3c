"""Products on tensor cores: a warp multiplies pieces of 16 x 8 and 8 x 8 words with one instruction, of float32
numbers that are rounded before, and adds the products up in float32. A word is one number in TF32, which keeps 10 of
the 23 bits behind the point, or two of neighbouring k: in bfloat16, which keeps 7, or float16, which keeps 10 and has a
smaller range.

What a thread holds of a piece is fixed by the instructions mma.m16n8k8 and m16n8k16 (PTX ISA, "Matrix fragments for
mma"). With g = lane / 4 and t = lane % 4 these are of A the words (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4), of B
(t, g), (t + 4, g), of C the numbers (g, 2 t), (g, 2 t + 1) and those 8 rows below.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tvm import tirx

from ...devices.machine import TENSOR_INSTRUCTION
from ..codegen import sequence
from ..products import Product
from ..stages import Expr
from ..sums import Sum
from .product_code import DEPTH, Code, SharedTile, Step, Tile
from .threads import WARP, ThreadCode, index, unrolled

ROWS, COLUMNS, WORDS = 16, 8, 8  # of the pieces that an instruction multiplies
LANE_ROWS, LANE_COLUMNS = 8, 4  # of a warp's lanes, which each have results of its part of a tile

TILES = (Tile(128, 128, 8, 16), Tile(64, 64, 8, 8))
"""A warp has 64 x 64 of the first: its lanes read a word of shared memory for each instruction, where of 64 x 32 they
read one and a half."""


@dataclass(frozen=True)
class Rounding:
    """To what numbers are rounded: its name in `nvrtc.HELPERS`, and how many of neighbouring k are a word."""

    name: str
    numbers: int


ROUNDINGS = {"tf32": Rounding("tf32", 1), "bfloat16": Rounding("bf16", 2), "float16": Rounding("f16", 2)}
"""By what a machine's tensor cores round to."""


def serve(product: Product) -> bool:
    """Whether tensor cores serve for a product: of float32, and not of less than a tile."""
    dtypes = {str(one.value.ty) for one in (product.a, product.b)} | {product.dtype}
    least = min(product.size(product.m), product.size(product.n))
    return dtypes == {"float32"} and least >= TILES[-1].rows // 2 and product.size(product.k) >= DEPTH


def _of_warp(tile: Tile) -> tuple[int, int]:
    """Rows and columns of a warp's part of a tile."""
    return tile.own_rows * LANE_ROWS, tile.own_columns * LANE_COLUMNS


def _pieces(tile: Tile) -> tuple[int, int]:
    """Pieces of A and of B of a warp's part of a tile."""
    rows, columns = _of_warp(tile)
    return rows // ROWS, columns // COLUMNS


def step_of(tile: Tile, rounding: Rounding) -> Step:
    """A step of tensor cores: a warp multiplies each of its pieces of A by each of B. The numbers do not come by
    themselves: each is loaded, rounded and stored."""
    depth, warps = WORDS * rounding.numbers, tile.threads // WARP
    brought = 3 * depth * (tile.rows + tile.columns) // tile.threads
    instructions = math.prod(_pieces(tile)) * TENSOR_INSTRUCTION + brought
    return Step(tile, instructions, sum(_of_warp(tile)) * WORDS * 4 * warps, depth)


class TensorCode(Code):
    """The code of a product's launch, by instructions of warps on words, which lie in shared memory as float32.

    Each load and store of a warp meets all 32 banks once. Of a piece the lanes read 4 rows of 8 words, which begin 8
    banks apart. Elements that lie along k are stored to 8 words of every other or every fourth row at once: so behind
    each fourth row there are 8 words more.
    """

    copies = False  # the numbers are rounded on their way
    pad = 8

    def __init__(
        self, product: Product, tile: Tile, whole: Sum, parts: int, length: int, rounding: Rounding
    ) -> None:
        self.rounding = rounding
        self.pieces: tuple[int, int] = _pieces(tile)
        super().__init__(product, tile, whole, parts, length)
        for operand in self.operands:
            operand.pair = rounding.numbers
        lane = tirx.floormod(self.thread, WARP)
        self.group: Expr = tirx.floordiv(lane, 4)
        self.lane: Expr = tirx.floormod(lane, 4)

    def shares(self) -> list[tuple[Expr, int]]:
        (rows, columns), warp = _of_warp(self.tile), tirx.floordiv(self.thread, WARP)
        across = self.tile.columns // columns
        at = (tirx.floordiv(warp, across) * rows, tirx.floormod(warp, across) * columns)
        return [(at[0], 4 * self.pieces[0]), (at[1], 2 * self.pieces[1])]

    def size(self, operand: SharedTile) -> int:
        rows = DEPTH // self.rounding.numbers
        return rows * (operand.side + self.pad) + rows // 4 * 8

    def in_tile(self, operand: SharedTile, k: Expr, side: Expr, step: Expr) -> Expr:
        row = tirx.floordiv(k, self.rounding.numbers)
        return row * (operand.side + self.pad) + tirx.floordiv(row, 4) * 8 + side

    def share(self, operand: SharedTile) -> list[tirx.Stmt]:
        numbers, width, held, found = self.rounding.numbers, operand.width, operand.held, list[tirx.Stmt]()

        def word(first: int, apart: int) -> Expr:
            """Of held elements one word."""
            own = [tirx.BufferLoad(held, [first + n * apart]) for n in range(numbers)]
            return tirx.call_extern("float32", f"dlsys_{self.rounding.name}", *own)

        def to(code: ThreadCode, value: Expr, vector: int, lane: Expr) -> None:
            place = self.place(operand, vector, lane)
            code.store(operand.tile, value, [self.in_tile(operand, *place, self.step)])
            found.append(code.loop())

        if operand.along_k and width > 1:
            for first in range(0, operand.count * width, numbers):
                to(ThreadCode(1), word(first, 1), first // width, tirx.const(first % width, "int32"))
            return found
        for i in range(0, operand.count, numbers):  # rounded in registers, and stored as a vector
            for first in range(i * width, (i + 1) * width):
                found.append(tirx.BufferStore(held, word(first, width), [first]))
            code = ThreadCode(width)
            to(code, tirx.BufferLoad(held, [i * width + code.lane]), i, code.lane)
        return found

    def multiply(self) -> tirx.Stmt:
        """A step's instructions."""
        k, found, numbers = index("k"), [], self.rounding.numbers
        sizes = ((ROWS, (0, 8)), (COLUMNS, (0,)))
        for operand, pieces, (size, parts) in zip(self.operands, self.pieces, sizes, strict=True):
            for piece in range(pieces):
                places = [(step, side) for step in (0, 4) for side in parts]  # of A rows change first
                for number, (step, side) in enumerate(places):
                    row = operand.at + piece * size + self.group + side
                    where = self.in_tile(operand, (k * WORDS + self.lane + step) * numbers, row, self.step)
                    code = ThreadCode(1)
                    code.store(operand.own, tirx.BufferLoad(operand.tile, [where]), [piece * len(places) + number])
                    found.append(code.loop())
        a, b = (operand.own for operand in self.operands)
        for i in range(self.pieces[0]):
            for j in range(self.pieces[1]):
                starts = ((self.sums, 4 * (i * self.pieces[1] + j)), (a, 4 * i), (b, 2 * j))
                pointers = [tirx.address_of(tirx.BufferLoad(buffer, [start])) for buffer, start in starts]
                found.append(tirx.Evaluate(tirx.call_extern("int32", f"dlsys_mma_{self.rounding.name}", *pointers)))
        return unrolled(k, DEPTH // (WORDS * numbers), sequence(found))

    def places(self) -> Iterator[tuple[list[Expr], int, int]]:
        a, b = self.operands
        width = 2 if b.total % 2 == 0 else 1
        for i in range(self.pieces[0]):
            for j in range(self.pieces[1]):
                for half in range(2):
                    row = a.first + a.at + i * ROWS + half * 8 + self.group
                    column = b.first + b.at + j * COLUMNS + 2 * self.lane
                    for one in range(0, 2, width):
                        yield [row, column + one], 4 * (i * self.pieces[1] + j) + 2 * half + one, width
