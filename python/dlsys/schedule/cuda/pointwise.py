"""Functions of an index alone: a thread computes some neighbouring results of all stages, in one launch. Parts of a
function that have nothing to do with each other share a launch too, each by blocks of its own.

Transposes, what runs along one axis in memory and along another in the result, go through shared memory, tile by tile,
so that both are touched line by line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx

from .. import common
from ..codegen import sequence, unravelled
from ..stages import Expr, Stage, domains, extents, inlined, kept, size, unrelated, with_nests
from ..target import Gpu, Machine, Rule
from .threads import BLOCK, ThreadCode, barrier, ceil_div, guarded, index, lanes, launch, shared

TILE = 32  # rows and columns of a tile
ROWS = 8  # of a tile that a block's threads take at once
PAD = 1  # elements behind each row: a column's elements lie in different banks


def schedule(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc | None:
    """A launch for all results of one shape. It reads before it stores: an output may be an input."""
    if (stages := inlined(func)) is None:
        return None
    return with_nests(func, nests([s for s in stages if size(s.iters)], stages, set(func.params), machine.gpu))


def nests(own: Sequence[Stage], stages: Sequence[Stage], results: set[Any], gpu: Gpu) -> list[tirx.Stmt]:
    """The launches of stages without sums, which keep what is a result or another stage of the function reads."""
    levels = zip_longest(*map(domains, unrelated(own)))
    launches = [[(group, kept(group, stages, results)) for group in level if group] for level in levels]
    return [_launch(parts, gpu) for parts in launches]


def _launch(parts: Sequence[tuple[Sequence[Stage], set[Any]]], gpu: Gpu) -> tirx.Stmt:
    """The launch of stages, one domain a part, each with the buffers that it stores."""
    block, thread, ends, bodies = index("block"), index("thread"), [0], list[tirx.Stmt]()
    shapes = [extents(group[0].iters) for group, _ in parts]
    widths = [_width(group, shape, gpu) for (group, _), shape in zip(parts, shapes, strict=True)]
    threads = min(BLOCK, max(ceil_div(math.prod(shape), width) for shape, width in zip(shapes, widths, strict=True)))
    for (group, stored), width, shape in zip(parts, widths, shapes, strict=True):
        code, total, first = ThreadCode(width), math.prod(shape), ((block - ends[-1]) * threads + thread) * width
        code.compute(group, unravelled(first + code.lane, shape), {}, stored)
        bodies.append(guarded([first < total] if total % (threads * width) else [], code.loop()))
        ends.append(ends[-1] + ceil_div(total, width * threads))
    name = parts[-1][0][-1].name if len(parts) == 1 else "side_by_side"
    return launch(name, [(block, ends[-1])], [(thread, threads)], _chosen(block, ends[1:], bodies))


def _chosen(block: tirx.Var, ends: Sequence[int], bodies: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """The body of the part to which a block belongs, the first whose end is beyond it: found by halves."""
    if len(bodies) == 1:
        return bodies[0]
    half = len(bodies) // 2
    first, last = _chosen(block, ends[:half], bodies[:half]), _chosen(block, ends[half:], bodies[half:])
    return tirx.IfThenElse(block < ends[half - 1], first, last)


def _width(group: Sequence[Stage], shape: Sequence[int], gpu: Gpu) -> int:
    """Results of a thread: a vector where rows are whole vectors and the device is filled without more threads."""
    width, total = lanes(group), math.prod(shape)
    inner = total if len(shape) < 2 else shape[-1]
    fills = total // width >= gpu.multiprocessors * BLOCK
    return width if fills and inner % width == 0 else 1


RULE = Rule("pointwise", "cuda", schedule, sums=False)


def _transposed(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc | None:
    """A launch for one result of which an input is read across. Declines all others, and small tiles."""
    if len(stages := inlined(func) or []) != 1:
        return None
    (stage,) = stages
    if common.BRANCH in common.calls_of(stage.value) or (found := _crossing(stage, machine.gpu)) is None:
        return None
    return with_nests(func, [_in_tiles(stage, *found)])


def _crossing(stage: Stage, gpu: Gpu) -> tuple[int, list[ir.TensorLoad]] | None:
    """The axis of the result along which loads run in memory, other than its last, and as many of those loads as shared
    memory holds tiles of; None where there is none, or it or the last is short."""
    shape = extents(stage.iters)
    strides = {load: common.strides_of(stage.block, load.source, load.indices) for load in stage.loads()}
    for axis in range(len(shape) - 1):
        across = [load for load, s in strides.items() if s is not None and s[axis] == 1 and s[-1] not in (0, 1)]
        if across and min(shape[axis], shape[-1]) >= TILE // 2:
            widest = max(tvm.DataType(str(load.source.dtype)).bits for load in across) // 8
            return axis, across[: gpu.block_shared // (TILE * (TILE + PAD) * widest)]
    return None


def _in_tiles(stage: Stage, axis: int, across: list[ir.TensorLoad]) -> tirx.Stmt:
    """The launch: tiles of the axis and the last one."""
    shape = extents(stage.iters)
    long, wide = shape[axis], shape[-1]
    rest = [i for i in range(len(shape) - 1) if i != axis]
    counts = (math.prod(shape[i] for i in rest), ceil_div(long, TILE), ceil_div(wide, TILE))
    block, x, y = index("block"), index("x"), index("y")
    number, row, column = unravelled(block, counts)
    others = dict(zip(rest, unravelled(number, [shape[i] for i in rest]), strict=True))
    tiles = {load: shared((TILE * (TILE + PAD),), str(load.source.dtype), "tile") for load in across}
    body: list[tirx.Stmt] = [tirx.AllocBuffer(tile) for tile in tiles.values()]

    def names(on_axis: Expr, on_last: Expr) -> dict[ir.Var, Expr]:
        places = {**others, axis: row * TILE + on_axis, len(shape) - 1: column * TILE + on_last}
        return {v.var: places[i] for i, v in enumerate(stage.iters)}

    def inside(on_axis: Expr, on_last: Expr, done: tirx.Stmt) -> tirx.Stmt:
        places = ((on_last, wide, column), (on_axis, long, row))
        return guarded([first * TILE + at < extent for at, extent, first in places if extent % TILE], done)

    for part in range(0, TILE, ROWS):
        code = ThreadCode(1)
        for load, tile in tiles.items():
            value = code.value(code.evaluate(load, names(x, y + part), lambda load: None))
            code.store(tile, value, [(y + part) * (TILE + PAD) + x])
        body.append(inside(x, y + part, code.loop()))
    body.append(barrier())
    for part in range(0, TILE, ROWS):
        code, at = ThreadCode(1), names(y + part, x)
        own = _reading(stage, tiles, x * (TILE + PAD) + y + part)
        code.compute([own], [at[v.var] for v in stage.iters], {}, {stage.buffer})
        body.append(inside(y + part, x, code.loop()))
    return launch(stage.name, [(block, math.prod(counts))], [(x, TILE), (y, ROWS)], sequence(body))


def _reading(stage: Stage, tiles: Mapping[Any, ir.Var], place: Expr) -> Stage:
    """The stage with the element at a place of a tile for each load that has one."""

    def held(load: ir.TensorLoad) -> Expr | None:
        own = next((tile for other, tile in tiles.items() if tvm_ffi.structural_equal(load, other)), None)
        return None if own is None else tirx.BufferLoad(own, [place])

    return replace(stage, value=common.with_loads(stage.value, held))


TRANSPOSE = Rule("transpose", "cuda", _transposed, sums=False)
