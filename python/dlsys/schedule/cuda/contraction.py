"""Products: C[m, n] = sum over k of A(m, k) B(k, n), with A and B read through whatever expressions the function has.

A block of threads computes a tile of C. Step by step along k its threads bring a tile of A and one of B into shared
memory, both with k outermost, while the next step's elements are on their way: by asynchronous copies, or in registers.
Each thread computes some rows times some columns of the tile in registers, in groups of four that lie apart, so that a
warp's reads fall into different banks. Where there are too few tiles, k is cut into parts, which a second launch adds
up. Of all tiles and numbers of parts the rule takes those of the fewest `cycles`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tvm import tirx

from ..stages import inlined, with_nests
from ..sums import Sum, parts_of
from ..target import Gpu, Machine, Rule
from . import reduction
from .product_code import DEPTH, Code, Tile
from .products import Product, product_of
from .tensor_cores import TensorCode, tiles_of
from .threads import WARP, ceil_div

TILES = (Tile(128, 128, 8, 8), Tile(128, 64, 8, 8), Tile(64, 64, 8, 4), Tile(64, 32, 4, 4), Tile(32, 32, 4, 4))
"""Of the first two a thread computes 16 multiply-adds for each vector that it reads of shared memory, then 10 and 8."""


def schedule(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc | None:
    """The launches of a function with one product. Declines others, and products with few rows or columns."""
    if (stages := inlined(func)) is None:
        return None
    sums = [stage for stage in stages if stage.reduced]
    product = product_of(sums[0]) if len(sums) == 1 else None
    if product is None or min(product.size(product.m), product.size(product.n)) < 8:  # each result is a sum of its own
        return None
    own = partial(_launches, product, machine)
    return with_nests(func, reduction.nests(stages, stages, set(func.params), machine.gpu, own))


def _launches(product: Product, machine: Machine, whole: Sum) -> list[tirx.Stmt]:
    """The launch of a product, or those of its parts and of their sum."""
    rounded, terms = tiles_of(product, machine), product.size(product.k)
    candidates = [(tile, parts) for tile in rounded or TILES for parts in _parts(product, tile, machine.gpu)]
    tile, parts = min(candidates, key=lambda one: cycles(product, one[0], one[1], machine.gpu))
    code: Callable[..., Code] = TensorCode if rounded else Code
    if parts < 2:
        return [code(product, tile, whole, 1, terms).nest()]
    length = ceil_div(ceil_div(terms, parts), DEPTH) * DEPTH
    parts = ceil_div(terms, length)
    first, last = parts_of(whole, parts)
    return [code(product, tile, first, parts, length).nest(), reduction.launch_of(last)]


def _blocks(product: Product, tile: Tile) -> int:
    """Tiles of C."""
    batch, m, n, _ = product.sizes
    return batch * ceil_div(m, tile.rows) * ceil_div(n, tile.columns)


def _parts(product: Product, tile: Tile, gpu: Gpu) -> list[int]:
    """In how many parts k may be cut: up to as many as give each multiprocessor two blocks."""
    fill, least = ceil_div(2 * gpu.multiprocessors, _blocks(product, tile)), 16 * DEPTH  # terms of a part
    most = max(1, min(fill, product.size(product.k) // least))
    return sorted({1, ceil_div(most, 2), most})


def cycles(product: Product, tile: Tile, parts: int, gpu: Gpu) -> float:
    """Cycles of a product's launches: of the busiest multiprocessor, whose arithmetic or reads of shared memory are the
    limit, or of a block's steps where no other block fills the gaps."""
    busiest = ceil_div(_blocks(product, tile) * parts, gpu.multiprocessors)
    instructions, nbytes, depth = tile.step
    steps = ceil_div(product.size(product.k), parts) / depth
    arithmetic = instructions * tile.threads / (WARP * gpu.warps)
    longest = max(busiest * arithmetic, busiest * nbytes / gpu.shared_bandwidth, instructions * 1.5 + 20)
    return longest * steps + (6000 if parts > 1 else 0)  # cycles of the launch that adds up the parts


RULE = Rule("contraction", "cuda", schedule, sums=True)
