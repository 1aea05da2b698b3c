"""Pointwise functions: no sum, every value from its index alone."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from . import common
from .common import PARALLEL_WORK, VECTORS, Group
from .target import Machine

TILE = 16  # rows and columns of a transposed tile: a cache line of float32 each way
CHUNK = 16  # steps of a thread's share when a ragged loop is cut: some 2 KiB of float32


def schedule(func: tirx.PrimFunc, machine: Machine) -> s_tir.Schedule | None:
    """Every result in one loop nest over its memory, vectorized, parallel where large. Declines sums."""
    if machine.kind != "llvm":
        return None
    sch = common.start(func)
    if not all(common.is_spatial(sch, block) for block in common.stages(sch)):
        return None
    common.inline_spatial(sch)  # one pass over memory
    for block in common.stages(sch):
        stage(sch, block, machine, common.work(sch, block) >= PARALLEL_WORK)
    return sch


def stage(sch: s_tir.Schedule, block: SBlockRV, machine: Machine, parallel: bool) -> None:
    """Schedules a spatial block, whose loops must be those of its iterators."""
    loops = sch.get_loops(block)
    if not loops or len(sch.get(block).iter_vars) != len(loops):
        return  # a scalar
    found = common.accesses(sch, block)
    groups = common.fuse_contiguous(sch, loops, found, range(len(loops)))
    inner, lanes = groups[-1], common.bits_lanes(sch, block, machine)
    crossing = next((g for g in groups[:-1] if _crosses(g, inner)), None)
    if crossing is not None:
        _transpose(sch, groups, crossing, parallel)
        return
    if any(s not in (0, 1) for s in inner.strides) or "tirx.if_then_else" in common.calls(sch, block):
        if parallel:  # strided, or a branch an element: LLVM's choice
            sch.parallel(groups[0].loop)
        return
    if parallel and len(groups) == 1:
        width = lanes * VECTORS
        exact = common.divisor(inner.extent, lanes, width)
        if exact is None:
            chunk, rest = sch.split(inner.loop, [None, width * CHUNK])  # each thread's steps in order
            sch.parallel(chunk)
            _, vector = sch.split(rest, [None, width])
            sch.annotate(sch.get_loops(block)[-2], "pragma_loop_partition_hint", 1)
        else:
            outer, vector = sch.split(inner.loop, [None, exact])
            sch.parallel(outer)
        sch.vectorize(vector)
        return
    if parallel:
        sch.parallel(sch.fuse(*(g.loop for g in groups[:-1])))  # rows to threads
    _, vector = common.split_vector(sch, inner.loop, inner.extent, lanes, VECTORS)
    if inner.extent > 1:
        sch.vectorize(vector)


def _crosses(group: Group, inner: Group) -> bool:
    """Whether some access runs along `group` where the output runs along `inner`."""
    return any(g == 1 and i not in (0, 1, None) for g, i in zip(group.strides, inner.strides, strict=True))


def _transpose(sch: s_tir.Schedule, groups: list[Group], crossing: Group, parallel: bool) -> None:
    """Goes by square tiles, whose lines of both arrays stay in cache until they are used up."""
    inner = groups[-1]
    rows, row = sch.split(crossing.loop, [None, min(TILE, crossing.extent)])
    columns, column = sch.split(inner.loop, [None, min(TILE, inner.extent)])
    sch.reorder(rows, columns, row, column)
    for loop, group in ((rows, crossing), (columns, inner)):
        if group.extent % min(TILE, group.extent):
            sch.annotate(loop, "pragma_loop_partition_hint", 1)  # whole tiles without conditions
    if parallel:
        sch.parallel(groups[0].loop if groups[0] is not crossing else rows)
