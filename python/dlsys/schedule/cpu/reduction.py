"""Sums and maxima, one or a chain of them (softmax and its loss), with what is elementwise around them.

Long sums are cut into blocks (`blocked`), whose sums are independent results for vectors and threads.
"""

from __future__ import annotations

import math

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from .. import blocked, common
from ..common import ACCUMULATORS, MAX_VECTORS, PARALLEL_WORK
from ..target import Machine, Rule
from . import pointwise, prefetch, rows
from .sharing import least_parts, wanted

FAR = 2048  # columns, from which on rows lie so far apart that ROWS of them are read at once
ROWS, FEW_VECTORS = 8, 2  # of each of them so many vectors
HELD = 4096  # sums that are held in L1
HUGE_ACCUMULATORS = 2  # vectors in which a row from memory is summed: four took a tenth longer (Zen 4)


def schedule(func: tirx.PrimFunc, machine: Machine) -> s_tir.Schedule | None:
    """Each row through all its stages at once where the stages share rows; else a stage at a time."""
    sch = common.start(func)
    found = rows.schedule(func, machine)
    if found is not None:
        sch, behind = found
    else:
        common.inline_spatial(sch)
        sch = common.start(blocked.blocked(common.function_of(sch), machine))
        behind = common.stages(sch)
    for block in behind:
        if not sch.get_loops(block):  # of a result of shape (): rfactor of another block fails beside one without
            sch.add_unit_loop(block)
    for block in behind:
        if common.is_reduction(sch, block):
            _reduce(sch, block, machine, common.work(sch, block) >= PARALLEL_WORK)
    return common.start(pointwise.finish(prefetch.insert(common.function_of(sch)), machine))


# One sum


def _reduce(sch: s_tir.Schedule, block: SBlockRV, machine: Machine, parallel: bool) -> None:
    """Schedules one sum, whose loops must be those of its iterators: vectorized along the results where
    memory runs along them (columns), else along the terms (rows)."""
    loops = sch.get_loops(block)
    if len(sch.get(block).iter_vars) != len(loops):
        return
    found, lanes = common.accesses(sch, block), machine.lanes(sch.get(block).writes[0].source.dtype)
    results = common.fuse_contiguous(sch, loops, found, _axes(sch, block, tirx.IterVar.DataPar))
    terms = common.fuse_contiguous(sch, loops, found, _axes(sch, block, tirx.IterVar.CommReduce))
    columns = bool(results) and results[-1].extent > 1 and all(s in (0, 1) for s in results[-1].strides)
    outer = [g.loop for g in results]
    inner = sch.get_loops(block)[len(outer) :]
    if columns:
        iters = sch.get(block).iter_vars
        wide = [i for i in _axes(sch, block, tirx.IterVar.DataPar) if int(iters[i].dom.extent) > 1]
        hold = len(wide) == len([x for x in outer if common.extent_of(sch, x) > 1])  # each loop is one axis
        parts = least_parts(machine) if common.domain(sch, block) >= blocked.LEAST else wanted(machine)
        _columns(sch, block, outer, inner, lanes, parts if parallel else 0, hold)
        return
    along = all(s in (0, 1) for s in terms[-1].strides)
    vectors = _row_vectors(sch, block, lanes) if along else []
    if along and not vectors and terms[-1].extent >= 2 * lanes:
        _ragged_rows(sch, block, lanes, parallel and bool(outer))
        return
    row = common.fused(sch, outer) if outer else sch.add_unit_loop(sch.get_loops(block)[0])
    for partial in reversed(vectors):
        sch.compute_at(partial, row, preserve_unit_loops=True)
    if parallel and outer:
        sch.parallel(row)
    for number, partial in enumerate(vectors):
        _vectorize(sch, partial, row, stream=number == 0)


def _axes(sch: s_tir.Schedule, block: SBlockRV, kind: int) -> list[int]:
    return [i for i, v in enumerate(sch.get(block).iter_vars) if v.iter_type == kind]


def _columns(
    sch: s_tir.Schedule,
    block: SBlockRV,
    results: list[LoopRV],
    terms: list[LoopRV],
    lanes: int,
    parts: int,
    hold: bool,
) -> None:
    """Sums down columns, in at least `parts` blocks for threads; 0 for one thread. Rows are read from end to end, some
    at once where they lie far apart, and added to an array of sums. Without `hold`, where a block of columns is no box
    of the result, there is no such array, and columns are taken as many at once as registers hold."""
    *rest, column = results
    width, columns = common.extent_of(sch, column), math.prod(common.extent_of(sch, loop) for loop in results)
    even, vectors = math.gcd(width, lanes), MAX_VECTORS
    ragged = width > vectors * lanes and common.divisor(width, lanes, vectors * lanes) is None and 4 * even >= lanes
    if hold and ragged:  # no vectors divide the columns, but halves of them do, or quarters
        lanes, vectors = even, 1
    far = hold and (ragged or width >= FAR)
    together = common.divisor(common.extent_of(sch, terms[-1]), 1, ROWS) or 1 if far else 1
    vectors = vectors if together == 1 else min(vectors, FEW_VECTORS)
    if parts > 1:
        uneven = width > vectors * lanes and common.divisor(width, lanes, vectors * lanes) is None
        vectors = max(1, min(vectors, (width if uneven else columns) // (parts * lanes)))
    outer, vector = common.split_vector(sch, column, width, lanes, vectors)
    inside = outer  # the loop that the sums of a step are held in
    if outer is None:
        sch.reorder(*terms, vector)
        inside = outer = sch.add_unit_loop(terms[0])
    else:
        count, wide = common.extent_of(sch, outer), common.extent_of(sch, vector)
        exact = width == count * wide
        if hold and exact:
            most = max(1, min(HELD, columns // max(parts, 1)) // wide)
            outer, step = sch.split(outer, [None, common.divisor(count, 1, most) or 1])
            inside = outer
            *terms, last = terms
            last, row = sch.split(last, [None, together])
            terms = [*terms, last]
            sch.reorder(outer, *terms, step, row, vector)
            sch.unroll(row)
        else:
            sch.reorder(outer, *terms, vector)
        if parts > 1 and rest and exact:
            inside = outer = sch.fuse(*rest, outer)
            rest = []
        elif rest and columns // width < min(parts, count):  # not fused: the last step of columns is split off
            sch.reorder(outer, *rest)
            inside, rest = rest[-1], []
    # the sums stay in L1: TVM puts a small "global" array on the stack, any "local" one in a workspace
    held = sch.cache_write(block, 0, "global") if hold else None
    if held is not None:
        sch.reverse_compute_at(held, inside)
    if parts:
        sch.parallel(common.fused(sch, rest) if rest else outer)
    if held is not None:
        loop = sch.get_loops(held)[-1]
        sch.vectorize(common.split_vector(sch, loop, common.extent_of(sch, loop), lanes, MAX_VECTORS)[1])
    sch.vectorize(vector)
    first = sch.decompose_reduction(block, terms[0])  # last: TVM takes no primitive on an outer loop after it
    sch.vectorize(sch.get_loops(first)[-1])


def _row_vectors(sch: s_tir.Schedule, block: SBlockRV, lanes: int) -> list[SBlockRV]:
    """Cuts the sum along its last loop: into as many sums as fill some vectors, those into one vector, and
    that into the result. The new blocks; none for a loop that is short, or that no such width divides:
    `compute_at` would lose the condition of a partial vector."""
    term = sch.get_loops(block)[-1]
    extent = common.extent_of(sch, term)
    iters = sch.get(block).iter_vars
    terms = math.prod(int(iters[i].dom.extent) for i in _axes(sch, block, tirx.IterVar.CommReduce))
    width = common.row_width(extent, terms, lanes)
    if width == lanes * ACCUMULATORS and prefetch.reads_huge(sch, block):
        width = lanes * HUGE_ACCUMULATORS
    if width == 1 or extent % width:
        return []
    _, position = sch.split(term, [None, width])
    partials = [_rfactor(sch, block, position)]
    if width > lanes and width % lanes == 0:
        _, lane = sch.split(sch.get_loops(block)[-1], [None, lanes])
        partials.append(_rfactor(sch, block, lane))
    return partials


def _ragged_rows(sch: s_tir.Schedule, block: SBlockRV, lanes: int, parallel: bool) -> None:
    """Sums rows whose length no vectors divide: first all of them into vectors, then those."""
    _, position = sch.split(sch.get_loops(block)[-1], [None, lanes * ACCUMULATORS])
    partial = sch.rfactor(position, len(sch.get(block).writes[0].source.shape))
    loops, kinds = sch.get_loops(partial), [v.iter_type for v in sch.get(partial).iter_vars]
    terms = loops[-1 - kinds.count(tirx.IterVar.CommReduce) : -1]
    sch.annotate(terms[-1], "pragma_loop_partition_hint", 1)  # whole vectors without conditions
    if parallel:
        sch.parallel(loops[0])
    sch.vectorize(loops[-1])
    first = sch.decompose_reduction(partial, terms[0])
    sch.vectorize(sch.get_loops(first)[-1])


def _rfactor(sch: s_tir.Schedule, block: SBlockRV, loop: LoopRV) -> SBlockRV:
    return sch.rfactor(loop, len(sch.get(block).writes[0].source.shape))


def _vectorize(sch: s_tir.Schedule, partial: SBlockRV, row: LoopRV, stream: bool) -> None:
    """Vectorizes partial sums, placed at a row: their first iterator is the position in the vector."""
    outer, loops = sch.get_sref(row), sch.get_loops(partial)
    depth = next(i for i, loop in enumerate(loops) if sch.get_sref(loop).same_as(outer)) + 1
    vector, *rest = loops[depth:]
    kinds = [v.iter_type for v in sch.get(partial).iter_vars][1:]
    terms = [x for x, kind in zip(rest, kinds, strict=True) if kind == tirx.IterVar.CommReduce]
    results = [x for x, kind in zip(rest, kinds, strict=True) if kind == tirx.IterVar.DataPar]
    sch.reorder(*results, *terms, vector)
    sch.vectorize(vector)
    if stream:
        prefetch.mark_stream(sch, terms[-1])
    first = sch.decompose_reduction(partial, terms[0])
    sch.vectorize(sch.get_loops(first)[-1])


RULE = Rule("reduction", "llvm", schedule, sums=True)
