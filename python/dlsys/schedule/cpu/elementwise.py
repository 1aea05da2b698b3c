"""Elementwise functions: no sum, every value from its index alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from .. import common
from ..codegen import VectorCode, block_of, sequence, steps, unravelled
from ..common import COSTLY_VECTORS, PARALLEL_WORK, VECTORS, Access, LoopGroup
from ..squares import SIDE
from ..stages import Expr, Stage, domains, extents, read_stages, size, with_nests
from ..strided import STRIDES
from ..target import Machine, Rule
from . import prefetch
from .sharing import least_divisor, least_parts, outermost, share_out

UNROLLED_ROWS = 32  # rows of some vectors; LLVM unrolls somewhat more too, and takes a second for it
TOGETHER = 8  # results of the same vectors, each in a register
BRANCHED_VECTORS = 2  # where branches choose what is read: LLVM takes all branches before it computes
CHUNK = 16  # steps of a thread's share when a ragged loop is cut: some 2 KiB of float32


def schedule(func: tirx.PrimFunc, machine: Machine) -> s_tir.Schedule | None:
    """A loop nest for each result, or one for all results of one shape: vectorized, parallel where large. Such a nest
    reads all inputs of an index before it stores, so an output may be an input."""
    sch = common.start(func)
    common.inline_spatial(sch)  # one pass over memory
    if len(common.stages(sch)) == 2 and common.reads_windows(sch, common.stages(sch)[0]):
        return sch if _after_windows(sch, machine) else None
    if len(common.stages(sch)) > 1:
        sch, blocks = _joined(sch, machine)
    else:
        blocks = common.stages(sch)
    for block in blocks:
        if common.domain(sch, block) > 0:
            stage(sch, block, machine, common.work(sch, block) >= PARALLEL_WORK)
    return common.start(prefetch.insert(common.function_of(sch)))


def _after_windows(sch: s_tir.Schedule, machine: Machine) -> bool:
    """Schedules windows of images and what is computed of them, vector by vector; False where they are not as many."""
    windows, result = common.stages(sch)
    if common.domain(sch, windows) != common.domain(sch, result):
        return False
    stage(sch, result, machine, common.work(sch, windows) >= PARALLEL_WORK, by_row=True)
    sch.compute_at(windows, sch.get_loops(result)[-2], preserve_unit_loops=True)
    sch.set_scope(windows, 0, "local")
    sch.vectorize(sch.get_loops(windows)[-1])
    return True


def _joined(sch: s_tir.Schedule, machine: Machine) -> tuple[s_tir.Schedule, list[SBlockRV]]:
    """The schedule with stages of one domain joined and done, where what they read allows it, and its other blocks."""
    func = common.function_of(sch)
    stages = read_stages(func)
    if stages is None or any(size(stage.iters) == 0 for stage in stages):
        return sch, common.stages(sch)
    reads = [common.accesses(sch, block) for block in common.stages(sch)]
    found = dict(zip((stage.buffer for stage in stages), reads, strict=True))
    groups = domains(stages)
    nests = []
    for group in groups:
        if len(group) == 1:
            nests.append(group[0].loops)
            continue
        own = {stage.buffer for stage in group}
        outside = {load.source for s in stages if s.buffer not in own for load in s.loads()}
        accesses = [access for stage in group for access in found[stage.buffer]]
        nest = _nest(group, own & {*func.params, *outside}, accesses, machine)
        nests.append(block_of(group[-1].name, nest))
    joined = common.start(with_nests(func, nests))
    blocks = zip(groups, common.stages(joined), strict=True)
    return joined, [block for group, block in blocks if len(group) == 1]


def _nest(group: Sequence[Stage], kept: set[Any], accesses: list[Access], machine: Machine) -> tirx.Stmt:
    """The loops over a group's domain, which store the buffers `kept`."""
    shape = extents(group[0].iters)
    axes = common.contiguous(dict(enumerate(shape)), accesses)
    *outer, inner = [math.prod(shape[axis] for axis in part) for part in axes] or [1]
    lanes = min(_lanes([stage.value for stage in group], machine), machine.lanes(group[0].buffer.dtype))
    straight_on = all(a.strides is not None and (not axes or a.strides[axes[-1][-1]] in (0, 1)) for a in accesses)
    costly = any(common.is_costly(stage.value) for stage in group)
    width = lanes * (COSTLY_VECTORS if costly else VECTORS) if straight_on else 1
    work = sum(common.operations(stage.value) for stage in group)
    parallel = math.prod(shape) * work >= PARALLEL_WORK
    row = tirx.Var("row", "int32")

    def code(index: Expr, vector: VectorCode) -> None:
        parts = [*unravelled(row, outer), index]
        position = [
            i for part, at in zip(axes, parts, strict=False) for i in unravelled(at, [shape[x] for x in part])
        ]
        values: dict[Any, Expr] = {}

        def known(load: Expr) -> Expr | None:
            return values.get(load.source)

        for stage in group:
            names = {v.var: at for v, at in zip(stage.iters, position, strict=True)}
            value = vector.evaluate(stage.value, names, known)
            value = vector.value(value)
            values[stage.buffer] = value
            if stage.buffer in kept:
                vector.store(stage.buffer, value, position[: len(stage.indices)])

    rows = math.prod(outer)
    within = parallel and rows < least_parts(machine) and inner * work >= PARALLEL_WORK
    loops = sequence(steps(0, inner, min(width, inner), within or (parallel and not outer), code))
    if not outer:
        return loops
    kind = tirx.ForKind.PARALLEL if parallel and not within else tirx.ForKind.SERIAL
    return tirx.For(row, 0, rows, kind, loops)


def stage(
    sch: s_tir.Schedule, block: SBlockRV, machine: Machine, parallel: bool, by_row: bool = False
) -> None:
    """Schedules a spatial block, whose loops must be those of its iterators; `by_row`: with a loop of its own over the
    last axis, as where branches are taken for a row."""
    loops = sch.get_loops(block)
    if not loops or len(sch.get(block).iter_vars) != len(loops):
        return  # a scalar
    found, branching = common.accesses(sch, block), common.branching(sch, block)
    if _share_reads(sch, block, found):
        _together(sch, block, machine, parallel)
        return
    by_row = by_row or (bool(branching) and len(loops) - 1 not in branching)
    groups = common.fuse_contiguous(sch, loops, found, range(len(loops) - by_row))
    groups += common.fuse_contiguous(sch, loops, found, [len(loops) - 1]) if by_row else []
    inner = groups[-1]
    lanes = min(_lanes(sch.get(block).body, machine), machine.lanes(sch.get(block).writes[0].source.dtype))
    crossing = next((g for g in groups[:-1] if _crosses(g, inner)), None)
    if crossing is not None:
        node = sch.get(block)
        whole = len(groups) == len(loops) and not branching
        plain = all(str(region.source.dtype) != "bool" for region in [*node.reads, *node.writes])
        _transpose(sch, block, groups, crossing, least_parts(machine) if parallel else 0, staged=whole and plain)
        return
    rows, parts = [g.loop for g in groups[:-1]], least_parts(machine)
    count = math.prod(g.extent for g in groups[:-1])
    if any(s not in (0, 1, *STRIDES) for s in inner.strides):  # far strides: LLVM's choice
        if parallel and count < parts:
            missing = -(-parts // count)
            even = least_divisor(inner.extent, missing)
            part, _ = sch.split(inner.loop, [even if even > 1 else missing, None])
            share_out(sch, [*rows, part], parts)
            return
        if parallel:
            share_out(sch, rows or [inner.loop], parts)
        if rows:
            prefetch.mark_picked(sch, block)
        return
    if parallel and not by_row and (count < parts or not rows):
        width = lanes * VECTORS
        exact = common.divisor(inner.extent, lanes, width)
        if exact is None:
            chunk, rest = sch.split(inner.loop, [None, width * CHUNK])  # each thread's steps in order
            _, vector = sch.split(rest, [None, width])
            sch.annotate(sch.get_loops(block)[-2], "pragma_loop_partition_hint", 1)
        else:
            chunk, vector = sch.split(inner.loop, [None, exact])
        sch.parallel(common.fused(sch, [*rows, chunk]))
        sch.vectorize(vector)
        return
    few = len(groups) > 2 and inner.extent <= lanes * VECTORS and UNROLLED_ROWS < groups[-2].extent <= 4 * UNROLLED_ROWS
    if parallel or few:
        row = common.fused(sch, rows)
        if parallel:
            sch.parallel(row)  # to threads
    wide = VECTORS if not by_row else BRANCHED_VECTORS if inner.extent % (BRANCHED_VECTORS * lanes) == 0 else 1
    _, vector = common.split_vector(sch, inner.loop, inner.extent, lanes, wide)
    if inner.extent > 1:
        sch.vectorize(vector)


def _share_reads(sch: s_tir.Schedule, block: SBlockRV, found: Sequence[Access]) -> bool:
    """Whether the few results along the first axis are computed of the same several vectors."""
    loads: list[Any] = []
    tvm_ffi.structural_walk(sch.get(block).body, (ir.TensorLoad, loads.append))
    extents = [int(v.dom.extent) for v in sch.get(block).iter_vars]
    vectors = [a.strides for a in found if not a.is_write and (a.strides is None or a.strides[-1])]
    few = len(extents) > 2 and 1 < extents[0] <= TOGETHER and len(loads) >= 2 * common.WINDOW
    return few and bool(vectors) and all(s is not None and s[0] == 0 and s[-1] == 1 for s in vectors)


def _together(sch: s_tir.Schedule, block: SBlockRV, machine: Machine, parallel: bool) -> None:
    """Schedules a block vector by vector: what is read once serves all results along the first axis."""
    first, *rows, last = sch.get_loops(block)
    lanes = machine.lanes(sch.get(block).writes[0].source.dtype)
    steps, vector = common.split_vector(sch, last, common.extent_of(sch, last), lanes, 1)
    row = common.fused(sch, rows)
    sch.reorder(row, *([] if steps is None else [steps]), first, vector)
    if parallel:
        sch.parallel(row)
    sch.unroll(first)
    sch.vectorize(vector)


def _lanes(code: Any, machine: Machine) -> int:
    """Elements in a vector register of the widest that the code loads: of booleans many more would go into one."""
    found: list[Any] = []
    tvm_ffi.structural_walk(code, (ir.TensorLoad, lambda load: found.append(load.source.dtype)))
    return min((machine.lanes(dtype) for dtype in found), default=machine.lanes("bool"))


def _crosses(group: LoopGroup, inner: LoopGroup) -> bool:
    """Whether some access runs along `group` where the output runs along `inner`."""
    return any(g == 1 and i not in (0, 1, None) for g, i in zip(group.strides, inner.strides, strict=True))


def _transpose(
    sch: s_tir.Schedule, block: SBlockRV, groups: list[LoopGroup], crossing: LoopGroup, parts: int, staged: bool
) -> None:
    """Goes by square tiles, whose lines of both arrays stay in cache until they are used up. They are shared out to
    threads in at least so many `parts`; 0 for one thread.

    `staged`: where tiles divide the array, what crosses is first copied, line by line, into a tile of its own. Rows
    that are a large power of two apart share few lines of L1, and would drive each other out.
    """
    inner = groups[-1]
    sizes = [min(SIDE, group.extent) for group in (crossing, inner)]
    exact = [common.divisor(group.extent, 1, SIDE) or 1 for group in (crossing, inner)]
    staged = staged and min(exact) >= SIDE // 2
    crossed = _crossing_reads(sch, block, groups.index(crossing)) if staged else []
    rows, row = sch.split(crossing.loop, [None, (exact if crossed else sizes)[0]])
    columns, column = sch.split(inner.loop, [None, (exact if crossed else sizes)[1]])
    sch.reorder(rows, columns, row, column)
    if crossed:
        tiles = [sch.cache_read(block, read, "global", [block]) for read in crossed]  # on the stack, as it is small
        for tile in tiles:
            sch.compute_at(tile, columns)
            sch.vectorize(sch.get_loops(tile)[-1])
        sch.unroll(row)
        sch.vectorize(column)
    around = sch.get_loops(block)[:-2]
    shared = outermost(sch, around, parts) if parts else []
    fused = [sch.get_sref(loop) for loop in shared] if len(shared) > 1 else []
    for loop, group in () if crossed else ((rows, crossing), (columns, inner)):
        ragged = group.extent % min(SIDE, group.extent) > 0
        if ragged and not any(sch.get_sref(loop).same_as(one) for one in fused):
            sch.annotate(loop, "pragma_loop_partition_hint", 1)  # whole tiles without conditions
    if shared:
        sch.parallel(common.fused(sch, shared))


def _crossing_reads(sch: s_tir.Schedule, block: SBlockRV, axis: int) -> list[int]:
    """Which of the block's reads run along `axis` where the output runs along the last."""
    node, found = sch.get(block), []
    for number, read in enumerate(node.reads):
        strides = common.strides_of(node, read.source, [r.min for r in read.region])
        if strides is not None and strides[axis] == 1 and strides[-1] not in (0, 1):
            found.append(number)
    return found


RULE = Rule("elementwise", "llvm", schedule, sums=False)
