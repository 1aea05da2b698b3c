"""The one contraction schedule: C[b, m, n] += A[b, m, k] * B[b, k, n], with A and B read through index expressions.

Matmul in its four transposes, conv2d and both its gradients are contractions; which loops are m, n and k follows
from who reads what (`roles`). The schedule brings them all to the same five stages:

    pack A    rows padded to whole tiles, read through A's index expression (skipped where A can be read as it lies)
    pack B    panels of NR columns, [n // NR, k, n % NR], zeros beyond the edge (im2col happens here)
    clear     an MR x NR tile of accumulators, which stay in vector registers
    update    the micro-kernel: per k one row of the panel, MR broadcasts, MR * NR / lanes fused multiply-adds
    store     the tile, with whatever elementwise epilogue followed the contraction applied to it

The blocking follows Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008): the panel
of B stays in L1/L2 while a block of A's rows passes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import PrimFunc

from .common import is_reduction
from .roles import Roles, index_map, roles, turned
from .target import Machine

ROWS = {16: 6, 32: 12}  # rows of a tile by number of vector registers: 6 x 2 accumulators, 2 of B, 1 of A
VECTORS = 2  # vectors in a row of the tile
BLOCK_BYTES = 2 * 1024 * 1024  # of A's rows between two passes over B: what still streams well from L3
RESIDENT_BYTES = 1024 * 1024  # up to here all of A stays near, and panels of B are packed one at a time
COPY_COLUMNS = 6  # copying an element of A costs as much as using it for so many columns of C
DIRECT_ROWS = 4  # up to so many rows packing B costs more than it saves
PARALLEL_FLOP = 2_000_000  # about 20 us on one core; below, a parallel region costs more than it gives


def schedule(func: PrimFunc, machine: Machine) -> s_tir.Schedule | None:
    """The schedule of a function with one contraction and elementwise stages around it; None for others."""
    if machine.kind != "llvm":
        return None
    sch = s_tir.Schedule(func, error_render_level="none")
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    reductions = [block for block in blocks if is_reduction(sch, block)]
    if len(reductions) != 1 or len(sch.get_output_blocks(sch.get_sblock("root"))) != 1:
        return None
    found = roles(sch.get(reductions[0]))
    if found is None or min(found.size(found.m), found.size(found.n)) < 2 or 0 in found.extents:
        return None
    dtype = str(sch.get(reductions[0]).writes[0].source.dtype)
    found = turned(found, machine.lanes(dtype))
    _tile(sch, reductions[0], found, choose(found, machine, dtype))
    return sch


@dataclass(frozen=True)
class Tile:
    """The numbers of one schedule."""

    rows: int  # MR
    columns: int  # NR
    lanes: int
    block: int  # tiles of rows between two passes over B
    panels: bool  # a panel of B at a time is packed, and all rows pass; else blocks of rows, B packed before
    pack_a: bool
    pack_b: bool
    parallel: bool
    many: int  # so many batches keep all threads busy


def choose(r: Roles, machine: Machine, dtype: str) -> Tile:
    """Tile sizes and packing by shape, vector width and number of registers."""
    a_contiguous, b_contiguous = r.contiguous[r.a] == r.k[-1], r.contiguous[1 - r.a] == r.n[-1]
    m, n, k = r.size(r.m), r.size(r.n), r.size(r.k)
    lanes, itemsize = machine.lanes(dtype), tvm.DataType(dtype).bits // 8
    rows = _rows(m, n, ROWS.get(machine.registers, 6))
    columns = _vectors(rows, n, lanes, machine) * lanes
    direct_b = b_contiguous and m <= DIRECT_ROWS and n % columns == 0
    parallel = machine.threads > 1 and 2 * r.size(r.batch) * m * n * k >= PARALLEL_FLOP
    resident = m * k * itemsize <= RESIDENT_BYTES
    return Tile(
        rows,
        columns,
        lanes,
        block=_block(-(-m // rows), BLOCK_BYTES // (rows * k * itemsize), machine.threads if parallel else 1),
        panels=(resident and -(-n // columns) * r.size(r.batch) >= machine.threads) or direct_b,
        pack_a=not a_contiguous or m % rows != 0,
        pack_b=not direct_b,
        parallel=parallel,
        many=4 * machine.threads,
    )


def _rows(m: int, n: int, most: int) -> int:
    """Rows of a tile: fewest steps over m. A shorter tile hides the latency of its additions worse, and one
    that does not divide m has A copied and padded, which weighs the more the fewer columns use the copy."""
    if m <= most:
        return m

    def cost(rows: int) -> float:
        steps = -(-m // rows) * (rows + 0.25 * (most - rows))
        return steps + (m * COPY_COLUMNS / n if m % rows else 0)

    return min(range(most, most // 2, -1), key=cost)


def _block(tiles: int, most: int, threads: int) -> int:
    """Tiles of rows in a block: at most `most`, blocks of about one size, as many for one thread as for another."""
    blocks = -(-tiles // max(most, 1))
    blocks = -(-blocks // threads) * threads
    return -(-tiles // blocks)


def _vectors(rows: int, n: int, lanes: int, machine: Machine) -> int:
    """Vectors in a row of the tile: as many as keep the accumulators in registers, without much beyond the edge."""
    most = max(VECTORS, (machine.registers - 4) // rows)
    padded = {count: -(-n // (count * lanes)) * count for count in range(1, min(most, 4) + 1)}
    least = min(padded.values())
    return max(
        count for count, total in padded.items() if total <= least * (1.05 if count > VECTORS else 1.15)
    )


def _downstream(sch: s_tir.Schedule, block: SBlockRV) -> list[SBlockRV]:
    """The consumers of a block, theirs, and so on, in order. The chain must be one: an epilogue."""
    chain = []
    while consumers := sch.get_consumers(block):
        block = consumers[0]
        chain.append(block)
    return chain


def _feeds(sch: s_tir.Schedule, block: SBlockRV, reader: SBlockRV) -> bool:
    """Whether `reader` reads what `block` writes."""
    written = sch.get(block).writes[0].source
    return any(region.source.same_as(written) for region in sch.get(reader).reads)


def _producer(sch: s_tir.Schedule, block: SBlockRV, read: int) -> SBlockRV:
    """The block that writes what `block` reads as its operand `read`."""
    buffer = sch.get(block).reads[read].source
    return next(p for p in sch.get_producers(block) if sch.get(p).writes[0].source.same_as(buffer))


def _tile(sch: s_tir.Schedule, c: SBlockRV, r: Roles, tile: Tile) -> None:
    spatial = [i for i in range(len(r.extents)) if i not in r.k]
    before = [b for b in sch.get_child_blocks(sch.get_sblock("root")) if not is_reduction(sch, b)]
    after = _downstream(sch, c)

    # One matrix product: operands and result get an intermediate each, indexed by (batch..., m, k) and so on.
    a_read = sch.reindex(c, ("read", r.a))
    b_read = sch.reindex(c, ("read", 1 - r.a))
    store = sch.reindex(c, ("write", 0))
    stages = []  # what pads images for B is computed once a batch, so that packing need not ask for bounds
    for block in before:
        if any(sch.get(block).same_as(sch.get(x)) for x in after):
            continue
        if r.batch and tile.panels and _feeds(sch, block, b_read):
            stages.append(block)
        else:
            sch.compute_inline(block)
    for block in after:
        sch.reverse_compute_inline(block)  # the epilogue, into the store
    sch.transform_layout(a_read, ("write", 0), index_map(r, list(r.axes[r.a]), [r.m, r.k]))
    sch.transform_layout(b_read, ("write", 0), index_map(r, list(r.axes[1 - r.a]), [r.n, r.k]))
    sch.transform_block_layout(a_read, index_map(r, list(r.axes[r.a]), [r.m, r.k]))
    sch.transform_block_layout(b_read, index_map(r, list(r.axes[1 - r.a]), [r.n, r.k]))
    sch.transform_layout(store, ("read", 0), index_map(r, spatial, [r.m, r.n]))
    sch.transform_block_layout(store, index_map(r, spatial, [r.m, r.n]))
    sch.transform_block_layout(c, index_map(r, list(range(len(r.extents))), [r.m, r.n, r.k]))

    # Whole tiles only: zeros beyond the edge of A and B, results beyond the edge of C are not stored.
    sch.pad_einsum(c, [1] * len(r.batch) + [tile.rows, tile.columns, 1])
    a, b = _producer(sch, c, r.a), _producer(sch, c, 1 - r.a)
    for packed, read in ((a, a_read), (b, b_read)):
        if not sch.get(packed).same_as(sch.get(read)):
            sch.compute_inline(read)
    result = sch.get_consumers(c)[0]
    if not sch.get(result).same_as(sch.get(store)):
        sch.compute_inline(result)

    *batch, m, n, k = sch.get_loops(c)
    m0, m1 = sch.split(m, [None, tile.rows])
    n0, n1 = sch.split(n, [None, tile.columns])
    if tile.panels:
        sch.reorder(*batch, n0, m0, k, m1, n1)
    else:
        mo, m0 = sch.split(m0, [None, tile.block])
        sch.reorder(*batch, mo, n0, m0, k, m1, n1)

    # Each stage where its data is reused.
    outer = n0 if tile.panels else mo
    if tile.pack_a:
        _pack_a(sch, a, tile, None if tile.panels else outer, r)
    else:
        sch.compute_inline(a)
    if tile.pack_b:
        _pack_b(sch, b, tile, outer if tile.panels else None, r)
    else:
        sch.compute_inline(b)

    for block in stages:
        sch.compute_at(block, batch[-1])
        own = sch.get_loops(block)[len(batch)]
        if sch.can_decompose_padding(block, own):
            sch.decompose_padding(block, own)  # zeros, then a copy without conditions

    # The accumulators are the tile's own; the whole tile is unrolled, so they stay in registers.
    sch.set_scope(c, 0, "local")
    sch.reverse_compute_at(store, m0)
    _unroll(sch, m1, n1, tile)
    if r.size(r.n) % tile.columns:
        sch.annotate(n0, "pragma_loop_partition_hint", 1)  # the ragged panel gets loops of its own
    if tile.parallel:  # before the update loses its initialisation, which is what shows it to be safe
        sch.parallel(_outermost(sch, batch, outer, tile))
    sch.decompose_reduction(c, k)
    rows, columns = sch.get_loops(store)[-2:]
    _unroll(sch, rows, columns, tile)


def _outermost(sch: s_tir.Schedule, batch: list[LoopRV], outer: LoopRV, tile: Tile) -> LoopRV:
    """The loop to run in parallel: all batches where there are enough of them, else also the blocks in each."""
    if not batch:
        return outer
    count = math.prod(int(sch.get(loop).extent) for loop in batch)
    return sch.fuse(*batch) if count >= tile.many else sch.fuse(*batch, outer)


def _unroll(sch: s_tir.Schedule, rows: LoopRV, columns: LoopRV, tile: Tile) -> None:
    """A tile as straight-line code: rows and vectors unrolled, lanes vectorized."""
    vectors, lanes = sch.split(columns, [None, tile.lanes])
    sch.unroll(rows)
    sch.unroll(vectors)
    sch.vectorize(lanes)


def _pack_a(sch: s_tir.Schedule, a: SBlockRV, tile: Tile, at: LoopRV | None, r: Roles) -> None:
    """A's rows, padded to whole tiles. Where k is contiguous they are copied as they lie: fast, and the
    micro-kernel reads MR streams. Else the rows of a tile lie side by side, k by k."""
    rows = tile.rows
    as_it_lies = r.contiguous[r.a] == r.k[-1]
    if not as_it_lies:
        layout = tirx.IndexMap.from_func(
            lambda *i: (*i[:-2], i[-2] // rows, i[-1], i[-2] % rows), ndim=_rank(sch, a), index_dtype="int32"
        )
        sch.transform_layout(a, ("write", 0), layout)
    if at is not None:
        sch.compute_at(a, at)
    if as_it_lies:
        sch.vectorize(sch.split(sch.get_loops(a)[-1], [None, tile.lanes])[1])
        return
    m, k = sch.get_loops(a)[-2:]
    m0, m1 = sch.split(m, [None, rows])
    sch.reorder(m0, k, m1)
    if r.contiguous[r.a] == r.m[-1]:
        sch.vectorize(m1)
    else:
        sch.unroll(m1)


def _pack_b(sch: s_tir.Schedule, b: SBlockRV, tile: Tile, at: LoopRV | None, r: Roles) -> None:
    """B in panels of NR columns, k by k."""
    columns = tile.columns
    layout = tirx.IndexMap.from_func(
        lambda *i: (*i[:-2], i[-2] // columns, i[-1], i[-2] % columns),
        ndim=_rank(sch, b),
        index_dtype="int32",
    )
    sch.transform_layout(b, ("write", 0), layout)
    if at is not None:
        sch.compute_at(b, at)
    n, k = sch.get_loops(b)[-2:]
    n0, n1 = sch.split(n, [None, columns])
    sch.reorder(n0, k, n1)
    # Lanes of a group lie in one row of C, so B's addresses run on: one vector, and divisions once a group.
    group = math.gcd(columns, r.extents[r.n[-1]]) if len(r.n) > 1 else columns
    n1, lanes = sch.split(n1, [None, group])
    ks = sch.split(k, [r.extents[axis] for axis in r.k]) if len(r.k) > 1 else [k]  # needs no division
    if group >= 4:
        sch.reorder(n1, *ks, lanes)
    else:
        sch.unroll(n1)
    if group > 1:
        sch.vectorize(lanes)
    if at is None and tile.parallel:
        sch.parallel(n0)


def _rank(sch: s_tir.Schedule, block: SBlockRV) -> int:
    return len(sch.get(block).writes[0].source.shape)
