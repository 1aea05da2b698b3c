"""Matrix times vector: bound by reading the matrix once, so what counts is to read it in the order it lies.

Rows that lie along the sum are summed a few at a time, in vector accumulators; where the columns lie along the sum's
other side, a few rows at a time are added to the whole result.
"""

from __future__ import annotations

import tvm
from tvm import s_tir
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import PrimFunc

from .. import common
from ..roles import Roles, roles
from ..stages import read_stages
from ..target import Machine, Rule
from . import k_blocks
from .sharing import wanted

ROWS = 4  # rows summed together: enough additions under way to hide their latency
FEW = 4  # sums of a row, made of its vector's at once, that are added up one after another
ROW_BITS = 512  # accumulators of a row: with more in all than 16 AVX2 registers hold, LLVM keeps them in memory
VECTORS = 2  # of the result, updated together
STREAMS = 4  # rows added to the result at a time: as many as the prefetcher follows
CHUNK = 4096  # columns of the result that stay in L1 while rows are added
PARALLEL_BYTES = 512 * 1024  # of the matrix: about 10 us at the speed of the last cache


def schedule(func: PrimFunc, machine: Machine) -> s_tir.Schedule | None:
    """The schedule of a matrix times a vector, on either side and transposed or not; None for others."""
    sch = common.start(func)
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    if len(blocks) != 1:
        return None
    stages = read_stages(func)
    found = roles(stages[0]) if stages else None
    if found is None or found.size(found.batch) != 1 or len(found.k) != 1 or 0 in found.extents:
        return None
    sizes = (found.size(found.m), found.size(found.n))
    if min(sizes) != 1 or max(sizes) == 1:
        return None
    wide = [i for i in (*found.m, *found.n) if found.extents[i] > 1]
    if len(wide) != 1:
        return None
    axis = wide[0]
    matrix = next(i for i in (0, 1) if axis in found.axes[i])
    dtype = str(sch.get(blocks[0]).writes[0].source.dtype)
    parallel = found.extents[axis] * found.size(found.k) * (4 if dtype == "float32" else 8) >= PARALLEL_BYTES
    arrange = _along_the_sum if found.contiguous[matrix] == found.k[0] else _across_the_sum
    shares = max(machine.threads, wanted(machine)) if parallel and machine.threads > 1 else 1
    if not arrange(sch, blocks[0], found, axis, machine.lanes(dtype), shares):
        return None
    return common.start(k_blocks.insert(common.function_of(sch)))


def _along_the_sum(
    sch: s_tir.Schedule, block: SBlockRV, r: Roles, axis: int, lanes: int, shares: int
) -> bool:
    """out[i] = sum_k A[i, k] * x[k], A's rows contiguous."""
    most = max(lanes, ROW_BITS // tvm.DataType(sch.get(block).writes[0].source.dtype).bits)
    width = common.divisor(r.extents[r.k[0]], lanes, most)
    if width is None:
        return False
    rows = max(count for count in (1, 2, ROWS) if r.extents[axis] % count == 0)
    term = sch.get_loops(block)[r.k[0]]
    _, lane = sch.split(term, [None, width])
    partial = sch.rfactor(lane, 0)  # a sum per lane, which `block` adds up
    sch.set_scope(partial, 0, "local")
    few = None
    if width % (2 * FEW) == 0:
        _, lane = sch.split(sch.get_loops(block)[-1], [None, FEW])
        few = sch.rfactor(lane, 0)
        sch.set_scope(few, 0, "local")
    outer, _ = sch.split(sch.get_loops(block)[axis], [None, rows])
    depth = len(sch.get_loops(block)[: axis + 1])
    for part in (few, partial) if few is not None else (partial,):
        sch.compute_at(part, outer, preserve_unit_loops=True)
    if shares > 1:
        sch.parallel(outer)
    lane, *others = sch.get_loops(partial)[depth:]  # its own iterators, the lane's first
    row, k = others[axis], others[r.k[0]]
    vector, lane = sch.split(lane, [None, lanes])
    sch.reorder(k, row, vector, lane)
    sch.unroll(row)
    sch.unroll(vector)
    sch.vectorize(lane)
    sch.decompose_reduction(partial, k)
    k_blocks.mark_loop(sch, k, r.extents[r.k[0]] // width, 1)
    if few is not None:
        lane, quarter, *own = sch.get_loops(few)[depth:]
        sch.reorder(*own, quarter, lane)
        for loop in (*own, quarter):
            sch.unroll(loop)
        sch.vectorize(lane)
        sch.vectorize(sch.get_loops(sch.decompose_reduction(few, quarter))[-1])
    for loop in sch.get_loops(block)[depth:]:
        sch.unroll(loop)  # the rows' last sums wait for each other no more
    return True


def _across_the_sum(
    sch: s_tir.Schedule, block: SBlockRV, r: Roles, axis: int, lanes: int, shares: int
) -> bool:
    """out[j] = sum_k x[k] * B[k, j], B's rows contiguous: each row is added, scaled, to the result."""
    extent = r.extents[axis]
    width = common.divisor(extent, lanes, VECTORS * lanes)
    if width is not None and extent // width < shares:
        width = lanes
    if width is None:
        return False
    loops = sch.get_loops(block)
    chunk = common.divisor(extent, width, min(CHUNK, max(width, extent // shares))) or width
    outer, column, vector = sch.split(loops[axis], [None, chunk // width, width])
    steps, stream = sch.split(loops[r.k[0]], [None, common.divisor(r.extents[r.k[0]], 1, STREAMS)])
    sch.reorder(outer, steps, column, stream, vector)
    if shares > 1:
        sch.parallel(outer)
    sch.unroll(stream)
    sch.vectorize(vector)
    first = sch.decompose_reduction(block, steps)
    k_blocks.mark_loop(sch, steps, common.extent_of(sch, steps), common.extent_of(sch, stream))
    sch.vectorize(sch.get_loops(first)[-1])
    return True


RULE = Rule("matvec", "llvm", schedule, sums=True)
