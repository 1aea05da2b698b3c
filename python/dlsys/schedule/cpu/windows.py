"""Convolutions without a sum over channels: each plane of images by itself, with few multiply-adds an element.

A plane with its border of zeros is made where it is used, and stays in L1. A row of the result, or of the gradient that
meets the images, is a few vectors; a window's elements are unrolled, so that sums stay in registers.
"""

from __future__ import annotations

from tvm import s_tir
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import PrimFunc

from .. import common
from ..common import PARALLEL_WORK
from ..roles import Roles, roles
from ..target import Machine, Rule
from . import k_blocks, pointwise
from .sharing import few_tiles, least_divisor, split_sum, wanted

TAPS = 64  # elements of a window that are unrolled: 7 x 7 and less
VECTORS = 4  # in a row that is taken at once


def schedule(func: PrimFunc, machine: Machine) -> s_tir.Schedule | None:
    """The schedule of a convolution of planes, of its gradient, or of its filters' gradient; None for others."""
    sch = common.start(func)
    blocks = common.stages(sch)
    sums = [block for block in blocks if common.is_reduction(sch, block)]
    if len(sums) != 1 or len(sch.get_output_blocks(sch.get_sblock("root"))) != 1:
        return None
    c = sums[0]
    r = roles(sch.get(c))
    if r is None or 0 in r.extents or r.size(r.m) != 1 or not r.windows[1 - r.a] or list(r.batch) != _first(r):
        return None
    lanes = machine.lanes(sch.get(c).writes[0].source.dtype)
    parallel = common.work(sch, c) >= PARALLEL_WORK
    if r.size(r.k) <= TAPS:
        return sch if _planes(sch, c, r, lanes, wanted(machine) if parallel else 0) else None
    if r.size(r.n) > TAPS:
        return None
    part, own = split_sum(sch, c, r, few_tiles(r, machine, lanes))
    if not _taps(sch, part, own, lanes, parallel):
        return None
    if part is not c:
        k_blocks.add_up(sch, c, machine)
    return common.start(pointwise.finish(common.function_of(sch), machine))


def _first(r: Roles) -> list[int]:
    """The axes of results before those of n."""
    return [i for i in range(len(r.extents)) if i not in r.k and i < r.n[0]]


def _planes(sch: s_tir.Schedule, c: SBlockRV, r: Roles, lanes: int, parts: int) -> bool:
    """Row by row of a plane of results, all elements of the windows at once. Threads share out planes, and their rows
    too where that gives too few `parts`; 0 for one thread."""
    vector = _vector(r.extents[r.n[-1]], lanes, VECTORS)
    if vector is None:
        return False
    images = _inlined(sch, c, r)
    after = common.behind(sch, c)
    store = sch.cache_write(c, 0, "local")
    for block in after[:-1]:
        sch.compute_inline(block)
    for block in after[-1:]:
        sch.reverse_compute_inline(block)
    loops = sch.get_loops(c)
    spatial = len(loops) - len(r.k)
    plane = common.fused(sch, loops[: len(r.batch)])
    if parts > common.extent_of(sch, plane) and spatial - len(r.batch) == 2:
        pieces = least_divisor(r.extents[r.n[0]], -(-parts // common.extent_of(sch, plane)))
        plane = sch.fuse(plane, sch.split(loops[spatial - 2], [pieces, None])[0])
    across, vectors = sch.split(loops[spatial - 1], [None, vector])
    terms = loops[spatial:]
    sch.reorder(across, *terms, vectors)
    sch.reverse_compute_at(store, across)
    if images is not None:
        sch.compute_at(images, plane, preserve_unit_loops=True)
        common.lay(sch, images, VECTORS * lanes)
    if parts:
        sch.parallel(plane)
    for term in terms:
        sch.unroll(term)
    sch.vectorize(vectors)
    sch.vectorize(sch.get_loops(store)[-1])
    sch.vectorize(sch.get_loops(sch.decompose_reduction(c, terms[0]))[-1])
    return True


def _taps(sch: s_tir.Schedule, c: SBlockRV, r: Roles, lanes: int, parallel: bool) -> bool:
    """A sum for each element of the windows and each place in a row of vectors, down all rows of all planes; then those
    are added up."""
    vector = _vector(r.extents[r.k[-1]], lanes, 1) or _vector(r.extents[r.k[-1]], lanes, VECTORS)
    if vector is None or len(r.k) < 2:
        return False
    images = _inlined(sch, c, r)
    after = common.behind(sch, c)
    for block in after[:-1]:
        sch.compute_inline(block)
    _, place = sch.split(sch.get_loops(c)[r.k[-1]], [None, vector])
    partial = sch.rfactor(place, len(r.extents) - len(r.k))
    loops = sch.get_loops(partial)
    spatial = len(r.extents) - len(r.k)
    results, (*terms, across), place = loops[:spatial], loops[spatial:-1], loops[-1]
    channel, taps = results[: len(r.batch)], results[len(r.batch) :]
    sch.reorder(*channel, terms[0], *taps[:-1], *terms[1:], across, taps[-1], place)
    outer = common.fused(sch, channel)
    if images is not None:
        sch.compute_at(images, terms[0] if len(terms) > 1 else outer, preserve_unit_loops=True)
        common.lay(sch, images, VECTORS * lanes)
    whole = common.fused(sch, sch.get_loops(c)[: len(r.batch)])
    for block in after[-1:]:
        sch.reverse_compute_at(block, whole)
    if parallel:
        sch.parallel(outer)
        sch.parallel(whole)
    sch.unroll(taps[-1])
    sch.vectorize(place)
    sch.vectorize(sch.get_loops(sch.decompose_reduction(partial, terms[0]))[-1])
    return True


def _vector(extent: int, lanes: int, most: int) -> int | None:
    """Elements of a row of so many that are taken at once, at most so many vectors: all, or a part that divides them;
    None where that is not about a vector long."""
    if extent <= most * lanes:
        return extent
    part = common.divisor(extent, lanes, most * lanes) or common.divisor(extent, 1, most * lanes) or 1
    return part if 2 * part > lanes else None


def _inlined(sch: s_tir.Schedule, c: SBlockRV, r: Roles) -> SBlockRV | None:
    """The block that the windows are read from, if it is made on the way; all else before the sums is computed in
    place."""
    source = sch.get(c).reads[1 - r.a].source
    images = None
    for block in common.stages(sch):
        if sch.get(block).name_hint == sch.get(c).name_hint:
            break
        if sch.get(block).writes[0].source.same_as(source):
            images = block
        else:
            sch.compute_inline(block)
    return images


RULE = Rule("windows", "llvm", schedule, sums=True)
