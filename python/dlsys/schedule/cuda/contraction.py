"""Products: C[m, n] = sum over k of A(m, k) B(k, n), with A and B read through whatever expressions the function has.
So all four transposes, batches, convolutions and both their gradients are one schedule.

A block of threads computes a tile of C. Step by step along k its threads bring a tile of A and one of B into shared
memory, both with k outermost, while the next step's elements are on their way: by asynchronous copies where they lie in
memory as they will lie there, else in registers. Each thread computes some rows times some columns of the tile in
registers, reads of shared memory being vectors; rows and columns are taken in groups of four that lie apart, so that a
warp's reads fall into different banks. What is computed of the product alone follows in registers. Where there are too
few tiles to fill the device, k is cut into parts, which a second launch adds up.
"""

from __future__ import annotations

from tvm import ir, s_tir, tirx

from ..common import start
from ..stages import Stage, inlined, with_nests
from ..target import Machine, Rule
from . import reduction, tensor_cores
from .product_code import DEPTH, Code, Product, Tile
from .reduction import Sum, behind, parts_of, sum_of
from .threads import MULTIPROCESSORS, SHARED_BYTES, WARP, WARPS_A_CYCLE, ceil_div

LEAST = 8  # rows and columns of a product; of fewer each result is a sum of its own
PART = 256  # terms of a part, at least, where k is cut

TILES = (Tile(128, 128, 8, 8), Tile(128, 64, 8, 8), Tile(64, 64, 8, 4), Tile(64, 32, 4, 4), Tile(32, 32, 4, 4))
"""Of the first two a thread computes 16 multiply-adds for each vector that it reads of shared memory, then 10 and 8."""
SECOND = 6000  # cycles of the launch that adds up parts


def schedule(func: tirx.PrimFunc, machine: Machine) -> s_tir.Schedule | None:
    """The launches of a function with one product. Declines others, and products with few rows or columns."""
    if (found := inlined(func)) is None:
        return None
    func, stages = found
    sums = [stage for stage in stages if stage.reduced]
    product = product_of(sums[0]) if len(sums) == 1 else None
    if product is None or min(product.size(product.m), product.size(product.n)) < LEAST:
        return None
    at = stages.index(sums[0])
    after = behind(stages[at], stages[at + 1 :])
    rest = [stage for stage in stages[at + 1 :] if stage not in after]
    results = set(func.params)
    before, _ = reduction.nests(stages[:at], stages, results)
    own, arrays = _launches(product, sum_of(stages[at], after, stages, results), machine)
    last, more = reduction.nests(rest, stages, results)
    return start(with_nests(func, [*before, *own, *last], [*arrays, *more]))


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


def _launches(product: Product, whole: Sum, machine: Machine) -> tuple[list[tirx.Stmt], list[ir.Var]]:
    """The launch of a product, or those of its parts and of their sum."""
    terms = product.size(product.k)
    found = tensor_cores.tiling(product, MULTIPROCESSORS, terms // PART) if machine.tensor_cores else None
    kind = Code if found is None else tensor_cores.CODES[machine.tensor_cores]
    tile, parts = found or _tiling(product)
    if parts < 2:
        return [kind(product, tile, whole, 1, terms).nest()], []
    length = ceil_div(ceil_div(terms, parts), DEPTH) * DEPTH
    first, last, array = parts_of(whole, ceil_div(terms, length), length)
    return [kind(product, tile, first, ceil_div(terms, length), length).nest(), last], [array]


RULE = Rule("contraction", "cuda", schedule, sums=True)
