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

from ..products import Product, product_of
from ..stages import inlined, with_nests
from ..sums import Sum, epilogue, parts_of, sum_of
from ..target import Gpu, Machine, Rule
from . import mma, reduction, tensor_cores
from .product_code import DEPTH, Code, Step, Tile, step_of
from .threads import WARP, ceil_div

LEAST = 8  # rows and columns of a product; of fewer each result is a sum of its own
PART = 256  # terms of a part, at least, where k is cut

TILES = (Tile(128, 128, 8, 8), Tile(128, 64, 8, 8), Tile(64, 64, 8, 4), Tile(64, 32, 4, 4), Tile(32, 32, 4, 4))
"""Of the first two a thread computes 16 multiply-adds for each vector that it reads of shared memory, then 10 and 8."""
SECOND = 6000  # cycles of the launch that adds up parts


def schedule(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc | None:
    """The launches of a function with one product. Declines others, and products with few rows or columns."""
    if (stages := inlined(func)) is None:
        return None
    sums = [stage for stage in stages if stage.reduced]
    product = product_of(sums[0]) if len(sums) == 1 else None
    if product is None or min(product.size(product.m), product.size(product.n)) < LEAST:
        return None
    at = stages.index(sums[0])
    after = epilogue(stages[at], stages[at + 1 :])
    rest = [stage for stage in stages[at + 1 :] if stage not in after]
    results = set(func.params)
    before, last = (reduction.nests(some, stages, results, machine.gpu) for some in (stages[:at], rest))
    own = _launches(product, sum_of(stages[at], after, stages, results), machine)
    return with_nests(func, [*before, *own, *last])


def _launches(product: Product, whole: Sum, machine: Machine) -> list[tirx.Stmt]:
    """The launch of a product, or those of its parts and of their sum."""
    code: Callable[..., Code] = Code
    steps = [step_of(tile) for tile in TILES]
    intrinsic = mma.instruction(machine.tensor_cores, machine.features)
    if intrinsic is not None and tensor_cores.serve(product):
        code = partial(tensor_cores.TensorCode, intrinsic=intrinsic)
        steps = [tensor_cores.step_of(tile, intrinsic) for tile in tensor_cores.TILES]
    candidates = [(step, parts) for step in steps for parts in _parts(product, step.tile, machine.gpu)]
    step, parts = min(candidates, key=lambda one: cycles(product, one[0], one[1], machine.gpu))
    tile, terms = step.tile, product.size(product.k)
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
    most = max(1, min(ceil_div(2 * gpu.multiprocessors, _blocks(product, tile)), product.size(product.k) // PART))
    return sorted({1, ceil_div(most, 2), most})


def cycles(product: Product, step: Step, parts: int, gpu: Gpu) -> float:
    """Cycles of a product's launches: of the busiest multiprocessor, whose arithmetic or reads of shared memory are the
    limit, or of a block's steps where no other block fills the gaps."""
    busiest = ceil_div(_blocks(product, step.tile) * parts, gpu.multiprocessors)
    steps = ceil_div(product.size(product.k), parts) / step.depth
    arithmetic = step.instructions * step.tile.threads / (WARP * gpu.warps)
    alone = step.instructions * 1.5 + 20
    longest = max(busiest * arithmetic, busiest * step.nbytes / gpu.shared_bandwidth, alone)
    return longest * steps + (SECOND if parts > 1 else 0)


RULE = Rule("contraction", "cuda", schedule, sums=True)
