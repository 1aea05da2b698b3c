"""Products on tensor cores: a warp multiplies pieces of 16 x 8 and 8 x 8 words with one instruction, of float32
numbers that are rounded before, and adds the products up in float32. A word is one number in TF32, which keeps 10 of
the 23 bits behind the point, or two of neighbouring k: in bfloat16, which keeps 7, or float16, which keeps 10 and has a
smaller range.

What a thread holds of a piece is fixed by the instructions mma.m16n8k8 and m16n8k16 (PTX ISA, "Matrix fragments for
mma"). With g = lane / 4 and t = lane % 4 these are of A the words (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4), of B
(t, g), (t + 4, g), of C the numbers (g, 2 t), (g, 2 t + 1) and those 8 rows below.
"""

from __future__ import annotations

from collections.abc import Iterator

from tvm import tirx

from ..codegen import sequence
from ..stages import Expr
from .product_code import DEPTH, Code, Operand, Product, Tile
from .reduction import Sum
from .threads import WARP, ThreadCode, ceil_div, index, unrolled

ROWS, COLUMNS, WORDS = 16, 8, 8  # of the pieces that an instruction multiplies
LANE_ROWS, LANE_COLUMNS = 8, 4  # of a warp's lanes, which each have results of its part of a tile

TILES = (Tile(128, 128, 8, 16), Tile(64, 64, 8, 8))
"""Best first. A warp has 64 x 64 of the first: its lanes read a word of shared memory for each instruction, where of
64 x 32 they read one and a half."""


def tiling(product: Product, blocks: int, most: int) -> tuple[Tile, int] | None:
    """The tile and the number of parts of k, at most `most`, that fill so many blocks; None where tensor cores do not
    serve: for other dtypes than float32, and for less than a tile."""
    dtypes = {str(part.ty) for part in (product.a, product.b)} | {str(product.stage.buffer.dtype)}
    m, n, batch = product.size(product.m), product.size(product.n), product.size(product.batch)
    if dtypes != {"float32"} or min(m, n) < TILES[-1].rows // 2 or product.size(product.k) < DEPTH:
        return None
    for tile in TILES:
        count = batch * ceil_div(m, tile.rows) * ceil_div(n, tile.columns)
        parts = max(1, min(ceil_div(blocks, count), most))
        if count * parts >= blocks or tile is TILES[-1]:
            return tile, parts
    return None


class TensorCode(Code):
    """The code of a product's launch, by instructions of warps on numbers in TF32.

    Attributes:
        numbers: of neighbouring k in a word.
        instruction: the function that a warp calls.
    """

    copies = False  # the numbers are rounded on their way
    numbers, instruction = 1, "dlsys_mma_tf32"
    pad = 8  # the lanes of a warp read 4 rows of 8 elements each: from 32 banks

    def __init__(self, product: Product, tile: Tile, whole: Sum, parts: int, length: int) -> None:
        super().__init__(product, tile, whole, parts, length)
        of_warp = (tile.own_rows * LANE_ROWS, tile.own_columns * LANE_COLUMNS)
        self.pieces = (of_warp[0] // ROWS, of_warp[1] // COLUMNS)
        self.fragments = (4 * self.pieces[0], 2 * self.pieces[1])
        warp, lane = tirx.floordiv(self.thread, WARP), tirx.floormod(self.thread, WARP)
        self.group, self.place = tirx.floordiv(lane, 4), tirx.floormod(lane, 4)
        across = tile.columns // of_warp[1]
        self.at = (tirx.floordiv(warp, across) * of_warp[0], tirx.floormod(warp, across) * of_warp[1])

    def _rounded(self, value: Expr) -> Expr:
        return tirx.call_extern("float32", "dlsys_tf32", value)

    def _multiply(self) -> tirx.Stmt:
        """A step's instructions."""
        k, found = index("k"), []
        first = k * WORDS + self.place
        for operand, both, own, at, pieces, part in zip(
            self.operands, self.tiles, self.own, self.at, self.pieces, ((0, 8), (0,)), strict=True
        ):
            size = ROWS if len(part) == 2 else COLUMNS
            for piece in range(pieces):
                places = [(step, side) for step in (0, 4) for side in part]  # of A rows change first
                for number, (step, side) in enumerate(places):
                    row = at + piece * size + self.group + side
                    where = self._in_tile(operand, (first + step) * self.numbers, row, self.step)
                    code = ThreadCode(1)
                    code.store(own, self._word(both, where), [piece * len(places) + number])
                    found.append(code.loop())
        a, b = self.own
        for i in range(self.pieces[0]):
            for j in range(self.pieces[1]):
                starts = ((self.sums, 4 * (i * self.pieces[1] + j)), (a, 4 * i), (b, 2 * j))
                pointers = [tirx.address_of(tirx.BufferLoad(buffer, [start])) for buffer, start in starts]
                found.append(tirx.Evaluate(tirx.call_extern("int32", self.instruction, *pointers)))
        return unrolled(k, DEPTH // (WORDS * self.numbers), sequence(found))

    def _word(self, tile: tirx.Var, where: Expr) -> Expr:
        return tirx.BufferLoad(tile, [where])

    def _places(self) -> Iterator[tuple[Expr, Expr, int, int]]:
        width = 2 if self.columns % 2 == 0 else 1
        for i in range(self.pieces[0]):
            for j in range(self.pieces[1]):
                for half in range(2):
                    row = self.first[0] + self.at[0] + i * ROWS + half * 8 + self.group
                    column = self.first[1] + self.at[1] + j * COLUMNS + 2 * self.place
                    for one in range(0, 2, width):
                        yield row, column + one, 4 * (i * self.pieces[1] + j) + 2 * half + one, width


class HalfCode(TensorCode):
    """The same on numbers in bfloat16, two in a word of shared memory."""

    numbers, instruction, rounding = 2, "dlsys_mma_bf16", "dlsys_bf16"
    tile_dtype = "uint16"

    def _in_tile(self, operand: Operand, k: Expr, side: Expr, step: Expr) -> Expr:
        word = tirx.floordiv(k, 2) * (operand.side + self.pad) + side
        return word * 2 + tirx.floormod(k, 2)

    def _rounded(self, value: Expr) -> Expr:
        return tirx.call_extern("uint16", self.rounding, value)

    def _word(self, tile: tirx.Var, where: Expr) -> Expr:
        return tirx.call_extern("float32", "dlsys_word", tirx.address_of(tirx.BufferLoad(tile, [where])))


class Float16Code(HalfCode):
    """The same in float16."""

    instruction, rounding = "dlsys_mma_f16", "dlsys_f16"


CODES = {"tf32": TensorCode, "bfloat16": HalfCode, "float16": Float16Code}
"""By what a machine's tensor cores round to."""
