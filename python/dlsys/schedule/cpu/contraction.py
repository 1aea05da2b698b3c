"""The one contraction schedule: C[b, m, n] += A[b, m, k] * B[b, k, n], with A and B read through index expressions.

Matmul in its four transposes, conv2d and both its gradients are contractions; which loops are m, n and k follows
from who reads what (`roles`), the numbers from shape and machine (`tiles`). The schedule brings them all to the same
five stages:

    pack A    rows padded to whole tiles, read through A's index expression (skipped where A can be read as it lies)
    pack B    panels of NR columns, [n // NR, k, n % NR]; skipped where one tile of rows reads them
    clear     an MR x NR tile of accumulators, which stay in vector registers
    update    the micro-kernel: per k one row of the panel, MR broadcasts, MR * NR / lanes fused multiply-adds
    store     the tile, with whatever elementwise epilogue followed the contraction applied to it

Of a convolution's operands one is read through windows, several times each element. Where tiles fit into the rows of
the images it is A: its elements are broadcast from the padded images where they lie, vectors run over the filters, and
the tile is stored along its rows. Else it is B, and packing it makes the columns of im2col.

The blocking follows Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008): the panel
of B stays in L1/L2 while a block of A's rows passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import PrimFunc

from .. import common
from ..common import extent_of, is_costly, is_reduction
from ..roles import CONFLICT, Roles, apart, axes_of, index_map, joined, roles
from ..squares import SIDE
from ..target import Machine, Rule
from . import k_blocks, last_step, padding, pointwise, prefetch
from .sharing import far_parts, few_tiles, missing_parts, shared_out, split_sum
from .tiles import Tile, choose, group

PARALLEL_PACK = 32_768  # elements of B; below, a parallel region costs more than packing them
FEW_CHANNELS = 16  # side by side: fewer are an unrolled loop
PARTITION = "pragma_loop_partition_hint"  # the steps of a loop where a condition fails get loops of their own


def schedule(func: PrimFunc, machine: Machine) -> s_tir.Schedule | None:
    """The schedule of a function with one contraction and elementwise stages around it; None for others."""
    func, again = apart(func)
    sch = _schedule(func, machine)
    return common.start(joined(common.function_of(sch), again)) if sch is not None and again else sch


def _schedule(func: PrimFunc, machine: Machine) -> s_tir.Schedule | None:
    """`schedule`, of a product of two arrays."""
    sch = common.start(func)
    reductions = [block for block in common.stages(sch) if is_reduction(sch, block)]
    if len(reductions) != 1 or len(sch.get_output_blocks(sch.get_sblock("root"))) != 1:
        return None
    found = roles(sch.get(reductions[0]))
    if found is None or 0 in found.extents or min(map(found.size, (found.m, found.n, found.k))) < 2:
        return None
    c, found = k_blocks.split(sch, whole := reductions[0], found, machine)
    if c is whole:
        lanes = machine.lanes(sch.get(c).writes[0].source.dtype)
        c, found = split_sum(sch, whole, found, max(few_tiles(found, machine, lanes), far_parts(found, machine)))
    r, tile, images = _chosen(sch, c, found, machine)
    if c is whole and (missing := missing_parts(r, tile, machine)) > 1:
        c, found = split_sum(sch, whole, found, missing)
        r, tile, images = _chosen(sch, c, found, machine)
    _tile(sch, c, r, tile, images)
    if c is not whole:
        k_blocks.add_up(sch, whole, machine)
    func = common.function_of(sch)
    func = k_blocks.insert(prefetch.insert(padding.insert(last_step.insert(func))))
    return common.start(pointwise.finish(func, machine))


def _chosen(sch: s_tir.Schedule, c: SBlockRV, r: Roles, machine: Machine) -> tuple[Roles, Tile, Images]:
    """The roles and the tile that fit shape and machine, and the images that it reads."""
    dtype = str(sch.get(c).writes[0].source.dtype)
    computed = [any(_feeds(sch, block, c, read) for block in sch.get_producers(c)) for read in (0, 1)]
    images = _images(sch, c, r)
    r, tile = choose(r, machine, dtype, computed, images.paddings)
    return r, shared_out(r, tile, machine), images


@dataclass(frozen=True)
class Images:
    """The images that a convolution reads through windows: its padding, whether nothing else in it is zero, and
    whether it is made from what is given to the function as it is."""

    paddings: list[padding.Padding]
    whole: bool
    given: bool


def _images(sch: s_tir.Schedule, c: SBlockRV, r: Roles) -> Images:
    """The images of a contraction; without padding where it has none."""
    for read in (0, 1):
        for block in sch.get_producers(c) if r.windows[read] else ():
            if _feeds(sch, block, c, read):
                found, whole = padding.paddings(sch.get(c), read, sch.get(block))
                return Images(found, whole, not sch.get_producers(block))
    return Images([], False, False)


def _feeds(sch: s_tir.Schedule, block: SBlockRV, reader: SBlockRV, read: int) -> bool:
    """Whether `reader` reads what `block` writes as its operand `read`."""
    return sch.get(reader).reads[read].source.same_as(sch.get(block).writes[0].source)


def _tile(sch: s_tir.Schedule, c: SBlockRV, r: Roles, tile: Tile, images: Images) -> None:
    """Loops over tiles of C and panels of A and B, each stage where its data is used again; the micro-kernel inside."""
    skips = padding.skipped(images.paddings, r, tile.rows) if tile.direct else []
    r = padding.ordered(r, skips)
    staged = not (images.whole and images.given and len(skips) == len(images.paddings))
    a_read = sch.reindex(c, ("read", r.a))
    b_read = sch.reindex(c, ("read", 1 - r.a))
    store = sch.reindex(c, ("write", 0))
    stages = _inline_others(sch, r, tile, (a_read, b_read, store), staged)
    a, b = _as_product(sch, c, r, tile, a_read, b_read, store)
    sources = [region.source for region in sch.get(b).reads]

    *batch, m, n, k = sch.get_loops(c)
    m0, m1 = sch.split(m, [None, tile.rows])
    n0, n1 = sch.split(n, [None, tile.columns])
    ks = sch.split(k, [r.extents[axis] for axis in r.k]) if tile.direct else [k]
    if tile.panels:
        sch.reorder(*batch, n0, m0, *ks, m1, n1)
    else:
        mo, m0 = sch.split(m0, [None, tile.block])
        sch.reorder(*batch, mo, n0, m0, *ks, m1, n1)

    # Each stage where its data is reused.
    outer = n0 if tile.panels else mo
    if tile.pack_a:
        _pack_a(sch, a, tile, None if tile.panels or tile.grid else outer, r)
    else:
        sch.compute_inline(a)
    if tile.pack_b:
        _pack_b(sch, b, tile, outer if tile.panels else None, r)
    else:
        sch.compute_inline(b)

    # The accumulators are the tile's own; the whole tile is unrolled, so they stay in registers.
    sch.set_scope(c, 0, "local")
    spilled, one_row = None, tile.rows == 1  # whose loop is kept: of what is stored the last two are looked at
    if is_costly(sch.get(store).body):  # too long for one copy of it a vector: the store is a loop over a copied tile
        sums = sch.get(c).writes[0].source
        read = next(i for i, region in enumerate(sch.get(store).reads) if region.source.same_as(sums))
        spilled = sch.cache_read(store, read, "local")
        sch.reverse_compute_at(spilled, m0, preserve_unit_loops=one_row)
        rows, columns = sch.get_loops(spilled)[-2:]
        _unroll(sch, rows, columns, tile)
    sch.reverse_compute_at(store, m0, preserve_unit_loops=one_row)
    for block in stages:
        _place(sch, block, batch, tile)
    _unroll(sch, m1, n1, tile)
    shared = [] if not tile.parallel else batch if tile.by_batch else [*batch, outer, *[n0] * tile.grid]
    if shared:  # before the update loses its initialisation, which is what shows it to be safe
        shared = [common.fused(sch, shared)]
        sch.parallel(shared[0])
    if r.size(r.n) % tile.columns and not tile.grid:  # the ragged panel gets loops of its own
        if not shared or tile.by_batch or not tile.panels:
            sch.annotate(n0, PARTITION, 1)
        elif r.size(r.batch) == 1:
            last_step.mark(sch, shared[0])
    few = tile.direct and r.contiguous[r.a] == r.k[-1] and r.extents[r.k[-1]] < FEW_CHANNELS
    if few and not any(one.tap == r.k[-1] or one.position == r.m[-1] for one in skips):
        sch.unroll(ks[-1])  # few channels, which lie side by side: the loop would take longer than its steps
    sch.decompose_reduction(c, ks[0])
    if not tile.direct and not tile.pack_a and not any(r.windows[r.a]):
        prefetch.mark(sch, ks[-1], r.a, tile.rows if r.contiguous[r.a] == r.last(r.k) else 0)
    by_panel = tile.panels or tile.block * tile.rows >= r.size(r.m)
    if r.panels[1 - r.a] and by_panel and r.size((*r.batch, *r.n, *r.k)) >= prefetch.COLD:
        prefetch.mark_next_panel(sch, ks[-1], 1 - r.a, (tile.rows, tile.columns), r)
    if tile.panels and not any(r.windows) and not any(r.panels) and r.size((*r.n, *r.k)) >= prefetch.BEYOND_L1:
        prefetch.mark_next_source(sch, ks[-1], sources, (tile.rows, tile.columns), r)
    k_blocks.mark(sch, r, dict(zip(r.k, ks, strict=False)))
    padding.mark(sch, skips, r, dict(zip(r.k, ks, strict=False)), staged or not tile.direct)
    rows, columns = sch.get_loops(store)[-2:]
    last = max(i for i in range(len(r.extents)) if i not in r.k and r.extents[i] > 1)
    if last in r.m:  # C is contiguous along the rows
        sch.reorder(columns, rows)
        if spilled is None:
            sch.unroll(columns)
        sch.vectorize(rows)
    elif spilled is not None:
        sch.vectorize(sch.split(columns, [None, tile.lanes])[1])
    else:
        _unroll(sch, rows, columns, tile)
    if r.size(r.m) * r.size(r.n) >= prefetch.FAR:
        prefetch.mark_store(sch, columns if last in r.m else rows)


def _inline_others(
    sch: s_tir.Schedule, r: Roles, tile: Tile, own: tuple[SBlockRV, SBlockRV, SBlockRV], staged: bool
) -> list[SBlockRV]:
    """Inlines what comes before the contraction and after it; returns the stages that are left: what a windowed
    operand is read from, as padded images, so that reading it need not ask for bounds."""
    a_read, b_read, store = own
    after, stages = common.behind(sch, store), []
    for block in common.stages(sch):
        if is_reduction(sch, block):
            break
        if sch.get(block).name_hint in (sch.get(a_read).name_hint, sch.get(b_read).name_hint):
            continue
        reader = a_read if tile.direct else b_read
        if ((tile.direct and staged) or (r.batch and tile.panels)) and _feeds(sch, block, reader, 0):
            stages.append(block)
        else:
            sch.compute_inline(block)
    for block in after[:-1]:
        sch.compute_inline(block)  # into those made of it, until one value is left,
    for block in after[-1:]:
        sch.reverse_compute_inline(block)  # which is what is stored
    return stages


def _as_product(
    sch: s_tir.Schedule,
    c: SBlockRV,
    r: Roles,
    tile: Tile,
    a_read: SBlockRV,
    b_read: SBlockRV,
    store: SBlockRV,
) -> tuple[SBlockRV, SBlockRV]:
    """One matrix product in whole tiles: operands and result get an intermediate each, indexed by (batch..., m, k)
    and so on, with zeros beyond the edge of A and B. Returns the blocks that write A and B."""
    spatial = [i for i in range(len(r.extents)) if i not in r.k]
    for block, read, own in ((a_read, r.a, r.m), (b_read, 1 - r.a, r.n)):
        layout = index_map(r, axes_of(sch.get(c), read), [own, r.k])
        sch.transform_layout(block, ("write", 0), layout)
        sch.transform_block_layout(block, layout)
    sums = sch.get(c).writes[0].source
    read = next(i for i, region in enumerate(sch.get(store).reads) if region.source.same_as(sums))
    sch.transform_layout(store, ("read", read), index_map(r, spatial, [r.m, r.n]))
    sch.transform_block_layout(store, index_map(r, spatial, [r.m, r.n]))
    sch.transform_block_layout(c, index_map(r, list(range(len(r.extents))), [r.m, r.n, r.k]))

    sch.pad_einsum(c, [1] * len(r.batch) + [tile.rows, tile.edge, 1])
    a, b = (next(p for p in sch.get_producers(c) if _feeds(sch, p, c, read)) for read in (r.a, 1 - r.a))
    for packed, read_block in ((a, a_read), (b, b_read)):
        if not sch.get(packed).same_as(sch.get(read_block)):
            sch.compute_inline(read_block)
    result = sch.get_consumers(c)[0]
    if not sch.get(result).same_as(sch.get(store)):
        sch.compute_inline(result)  # what lies beyond the edge of C is not stored
    return a, b


def _place(sch: s_tir.Schedule, block: SBlockRV, batch: list[LoopRV], tile: Tile) -> None:
    """A stage of images: for one batch at a time, or all before where batches do not run one after another."""
    together = len(batch) if batch and (tile.by_batch or not tile.parallel) else 0
    if together:
        sch.compute_at(block, batch[-1], preserve_unit_loops=True)  # its last two loops are looked at below
    loops = sch.get_loops(block)
    if tile.parallel and not together:
        loops = [sch.fuse(*loops[:-2]), *loops[-2:]]
        sch.parallel(loops[0])
    common.lay(sch, block, 2 * tile.lanes)


def _unroll(sch: s_tir.Schedule, rows: LoopRV, columns: LoopRV, tile: Tile) -> None:
    """A tile as straight-line code: rows and vectors unrolled, lanes vectorized; fewer of them beyond an edge."""
    vectors, lanes = sch.split(columns, [None, tile.lanes])
    sch.unroll(rows)
    sch.unroll(vectors)
    sch.vectorize(lanes)
    for loop in (vectors, lanes) if tile.edge < tile.columns else ():
        sch.annotate(loop, PARTITION, 1)


def _panels(sch: s_tir.Schedule, block: SBlockRV, width: int) -> tirx.IndexMap:
    """From (batch..., i, k) of what a block writes to (batch..., i // width, k, i % width)."""

    def panel(*i: Any) -> tuple[Any, ...]:
        return (*i[:-2], i[-2] // width, i[-1], i[-2] % width)

    return tirx.IndexMap.from_func(panel, ndim=len(sch.get(block).writes[0].source.shape), index_dtype="int32")


def _pack_a(sch: s_tir.Schedule, a: SBlockRV, tile: Tile, at: LoopRV | None, r: Roles) -> None:
    """A's rows, padded to whole tiles. Where k is contiguous they are copied as they lie: fast, and the
    micro-kernel reads MR streams. Else the rows of a tile lie side by side, k by k."""
    rows = tile.rows
    as_it_lies = r.contiguous[r.a] == r.last(r.k)
    if not as_it_lies:
        sch.transform_layout(a, ("write", 0), _panels(sch, a, rows))
    if at is not None:
        sch.compute_at(a, at)
    if as_it_lies:
        if r.size(r.k) % CONFLICT == 0:  # the tile's rows would share the lines of L1
            sch.storage_align(a, 0, -2, CONFLICT, tile.lanes)
        sch.vectorize(sch.split(sch.get_loops(a)[-1], [None, tile.lanes])[1])
        if tile.grid:
            sch.parallel(common.fused(sch, sch.get_loops(a)[:-2]))
        return
    m, k = sch.get_loops(a)[-2:]
    m0, m1 = sch.split(m, [None, rows])
    sch.reorder(m0, k, m1)
    if at is None and tile.parallel:
        sch.parallel(common.fused(sch, sch.get_loops(a)[:-2]))
    if r.contiguous[r.a] == r.m[-1]:
        sch.vectorize(m1)
    else:
        sch.unroll(m1)


def _pack_b(sch: s_tir.Schedule, b: SBlockRV, tile: Tile, at: LoopRV | None, r: Roles) -> None:
    """B in panels of NR columns, k by k."""
    columns = tile.columns
    # "injective" lets the last panel be wider than what is left for it: beyond that it is neither written nor read.
    sch.transform_layout(b, ("write", 0), _panels(sch, b, columns), assume_injective_transform=True)
    if at is not None:
        sch.compute_at(b, at)
    alone = at is None and tile.parallel and r.size(r.batch) * r.size(r.n) * r.size(r.k) >= PARALLEL_PACK
    n, k = sch.get_loops(b)[-2:]
    if _is_turned(sch, b, r, n):
        _pack_turned(sch, b, n, k, alone)
        return
    n0, n1 = sch.split(n, [None, columns])
    sch.reorder(n0, k, n1)
    # Lanes of a group lie in one row of C, so B's addresses run on: one vector, and divisions once a group.
    width = group(r, columns)
    n1, lanes = sch.split(n1, [None, width])
    ks = sch.split(k, [r.extents[axis] for axis in r.k]) if len(r.k) > 1 else [k]  # needs no division
    ks = [loop for _, loop in sorted(zip(r.k, ks, strict=False), key=lambda pair: pair[0])]
    if width >= 4:
        sch.reorder(n1, *ks, lanes)
    else:
        sch.reorder(*ks, n1)
        sch.unroll(n1)
    if width > 1:
        sch.vectorize(lanes)
    if alone:
        _share(sch, b, n0)


def _is_turned(sch: s_tir.Schedule, b: SBlockRV, r: Roles, n: LoopRV) -> bool:
    """Whether B's columns are rows of memory, in whole squares, which are turned in registers (see `squares`)."""
    if len(r.k) > 1 or len(r.n) > 1 or r.contiguous[1 - r.a] != r.k[0]:
        return False
    if r.size(r.k) % SIDE or r.size(r.n) <= SIDE:
        return False
    return r.size(r.n) % SIDE == extent_of(sch, n) % SIDE == 0  # nothing lies beyond the last column


def _pack_turned(sch: s_tir.Schedule, b: SBlockRV, n: LoopRV, k: LoopRV, parallel: bool) -> None:
    """B by squares: each is copied to the stack row by row of memory, and turned in registers."""
    n0, n1 = sch.split(n, [None, SIDE])
    k0, k1 = sch.split(k, [None, SIDE])
    sch.reorder(n0, k0, k1, n1)
    square = sch.cache_read(b, 0, "local", [b])
    sch.compute_at(square, k0)
    sch.vectorize(sch.get_loops(square)[-1])
    sch.unroll(k1)
    sch.vectorize(n1)
    if parallel:
        _share(sch, b, n0)


def _share(sch: s_tir.Schedule, b: SBlockRV, panel: LoopRV) -> None:
    """Lets threads pack panels, those of all batches in one region."""
    loops = sch.get_loops(b)
    own = next(i for i, loop in enumerate(loops) if sch.get_sref(loop).same_as(sch.get_sref(panel)))
    sch.parallel(common.fused(sch, loops[: own + 1]))


RULE = Rule("contraction", "llvm", schedule, sums=True)
