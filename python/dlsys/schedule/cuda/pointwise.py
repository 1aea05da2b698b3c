"""Functions of an index alone: a thread computes some neighbouring results of all stages, in one launch. Parts of a
function that have nothing to do with each other share a launch too, each by blocks of its own.

Transposes, what runs along one axis in memory and along another in the result, go through shared memory, tile by tile,
so that both are touched line by line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx

from .. import common
from ..codegen import sequence, unravelled
from ..stages import Expr, Stage, domains, extents, inlined, kept, size, unrelated, with_nests
from ..target import Gpu, Machine, Rule
from . import threads
from .threads import BLOCK, WARP, ThreadCode, ceil_div, guarded, index, lanes

PITCH = WARP + 1  # elements from row to row of a tile of WARP x WARP: those of a column lie in different banks


def schedule(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc | None:
    """A launch for all results of one shape. It reads before it stores: an output may be an input."""
    if (stages := inlined(func)) is None:
        return None
    if len(stages) == 1 and (found := _crossing(stages[0], machine.gpu)) is not None:
        return with_nests(func, [_in_tiles(stages[0], *found)])
    return with_nests(func, nests([s for s in stages if size(s.iters)], stages, set(func.params), machine.gpu))


def nests(own: Sequence[Stage], stages: Sequence[Stage], results: set[Any], gpu: Gpu) -> list[tirx.Stmt]:
    """The launches of stages without sums, which keep what is a result or another stage of the function reads."""
    levels = zip_longest(*map(domains, unrelated(own)))
    launches = [[(group, kept(group, stages, results)) for group in level if group] for level in levels]
    names = [parts[0][0][-1].name if len(parts) == 1 else "side_by_side" for parts in launches]
    codes = [[_part(*one, gpu) for one in parts] for parts in launches]
    return list(map(threads.launch_over, names, codes))


def _part(group: Sequence[Stage], stored: set[Any], gpu: Gpu) -> threads.Part:
    """Stages of one domain, with the buffers that they store. A thread takes a vector where rows are whole vectors and
    the device is filled without more threads."""
    shape, width = extents(group[0].iters), lanes(group)
    total = size(group[0].iters)
    if total // width < gpu.multiprocessors * BLOCK or shape[-1] % width:
        width = 1

    def code(first: Expr) -> tirx.Stmt:
        own = ThreadCode(width)
        own.compute(group, unravelled(first + own.lane, shape), {}, stored)
        return own.loop()

    return total, width, code


def _crossing(stage: Stage, gpu: Gpu) -> tuple[int, list[ir.TensorLoad]] | None:
    """The axis of the result along which loads run in memory, other than its last, and as many of those loads as shared
    memory holds tiles of; None where there is none, it or the last is short, or one side of a choice alone loads."""
    if common.BRANCH in common.calls_of(stage.value):
        return None
    shape = extents(stage.iters)
    strides = {load: common.strides_of(stage.block, load.source, load.indices) for load in stage.loads()}
    for axis in range(len(shape) - 1):
        across = [load for load, s in strides.items() if s is not None and s[axis] == 1 and s[-1] not in (0, 1)]
        if across and min(shape[axis], shape[-1]) >= WARP // 2:
            widest = max(tvm.DataType(str(load.source.dtype)).bits for load in across) // 8
            return axis, across[: gpu.block_shared // (WARP * PITCH * widest)]
    return None


def _in_tiles(stage: Stage, axis: int, across: list[ir.TensorLoad]) -> tirx.Stmt:
    """The launch: tiles of the axis and the last one, of which a block's threads take some rows at once."""
    shape = extents(stage.iters)
    rest = [i for i in range(len(shape) - 1) if i != axis]
    order = [*rest, axis, len(shape) - 1]
    counts = [*(shape[i] for i in rest), ceil_div(shape[axis], WARP), ceil_div(shape[-1], WARP)]
    block, x, y = index("block"), index("x"), index("y")
    *others, row, column = unravelled(block, counts)
    tiles = {load: threads.shared((WARP * PITCH,), str(load.source.dtype), "tile") for load in across}
    body: list[tirx.Stmt] = [tirx.AllocBuffer(tile) for tile in tiles.values()]
    steps = range(0, WARP, BLOCK // WARP)

    def at(on_axis: Expr, on_last: Expr) -> list[Expr]:
        places = [*others, row * WARP + on_axis, column * WARP + on_last]
        return [places[order.index(i)] for i in range(len(shape))]

    def inside(place: list[Expr], done: tirx.Stmt) -> tirx.Stmt:
        return guarded([place[i] < shape[i] for i in (axis, -1) if shape[i] % WARP], done)

    def held(load: ir.TensorLoad, place: Expr) -> Expr | None:
        same = (tile for other, tile in tiles.items() if tvm_ffi.structural_equal(load, other))
        return next((tirx.BufferLoad(tile, [place]) for tile in same), None)

    for step in steps:
        code, place = ThreadCode(1), at(x, y + step)
        names = {v.var: i for v, i in zip(stage.iters, place, strict=True)}
        for load, tile in tiles.items():
            value = code.value(code.evaluate(load, names, lambda load: None))
            code.store(tile, value, [(y + step) * PITCH + x])
        body.append(inside(place, code.loop()))
    body.append(threads.barrier())
    for step in steps:
        code, place = ThreadCode(1), at(y + step, x)
        value = common.with_loads(stage.value, partial(held, place=x * PITCH + y + step))
        code.compute([replace(stage, value=value)], place, {}, {stage.buffer})
        body.append(inside(place, code.loop()))
    return threads.launch(stage.name, [(block, math.prod(counts))], [(x, WARP), (y, BLOCK // WARP)], sequence(body))


RULE = Rule("pointwise", "cuda", schedule, sums=False)
