"""Transposes: what runs along one axis in memory and along another in the result goes through shared memory, tile by
tile, so that both are touched line by line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx

from .. import common
from ..codegen import sequence, unravelled
from ..stages import Expr, Stage, extents, inlined, with_nests
from ..target import Gpu, Machine, Rule
from .threads import ThreadCode, barrier, ceil_div, guarded, index, launch, shared

TILE = 32  # rows and columns of a tile
ROWS = 8  # of a tile that a block's threads take at once
PAD = 1  # elements behind each row: a column's elements lie in different banks


def schedule(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc | None:
    """A launch for one result of which an input is read across. Declines all others, and small tiles."""
    read = inlined(func)
    if read is None or len(read[1]) != 1:
        return None
    func, (stage,) = read
    if common.BRANCH in common.calls_of(stage.value) or (found := _crossing(stage, machine.gpu)) is None:
        return None
    return with_nests(func, [_nest(stage, *found)])


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


def _nest(stage: Stage, axis: int, across: list[ir.TensorLoad]) -> tirx.Stmt:
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

    def held(load: ir.TensorLoad, mutator: Any) -> Expr:
        own = next((tile for other, tile in tiles.items() if tvm_ffi.structural_equal(load, other)), None)
        return mutator.default_mutate(load) if own is None else tirx.BufferLoad(own, [place])

    return stage.with_value(common.mutated(stage.value, {ir.TensorLoad: held}))


RULE = Rule("transpose", "cuda", schedule, sums=False)
