"""Functions of an index alone: a thread computes some neighbouring results of all stages, in one launch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import ir, s_tir, tirx

from ..codegen import unravelled
from ..common import renamed, start
from ..stages import Expr, Stage, domains, extents, inlined, size, with_nests
from ..target import Machine, Rule
from .threads import BLOCK, MULTIPROCESSORS, ThreadCode, ceil_div, index, lanes, launch


def schedule(func: tirx.PrimFunc, machine: Machine) -> s_tir.Schedule | None:
    """A launch for all results of one shape. It reads all inputs of an index before it stores, so an output may be an
    input. Declines sums."""
    if (found := inlined(func, sums=False)) is None:
        return None
    func, stages = found
    return start(with_nests(func, nests([s for s in stages if size(s.iters)], stages, set(func.params))))


def nests(own: Sequence[Stage], stages: Sequence[Stage], results: set[Any]) -> list[tirx.Stmt]:
    """The launches of stages without sums, which keep what is a result or another stage of the function reads."""
    found = []
    for group in domains(own):
        written = {stage.buffer for stage in group}
        outside = {load.source for stage in stages if stage.buffer not in written for load in stage.loads()}
        found.append(nest(group, written & {*results, *outside}))
    return found


def nest(group: Sequence[Stage], kept: set[Any]) -> tirx.Stmt:
    """The launch of stages of one domain, which stores the buffers `kept`."""
    shape = extents(group[0].iters)
    total = math.prod(shape)
    width = _width(group, shape)
    threads = min(BLOCK, ceil_div(total, width))
    block, thread, code = index("block"), index("thread"), ThreadCode(width)
    first = (block * threads + thread) * width
    position = unravelled(first + code.lane, shape)
    values: dict[Any, Expr] = {}

    def known(load: ir.TensorLoad) -> Expr | None:
        return values.get(load.source)

    for stage in group:
        names = {v.var: at for v, at in zip(stage.iters, position, strict=True)}
        values[stage.buffer] = value = code.value(code.evaluate(stage.value, names, known))
        if stage.buffer in kept:
            at = [renamed(i, names) for i in stage.indices]
            code.store(stage.buffer, value, at)
    blocks = ceil_div(total, width * threads)
    body = code.loop()
    if blocks * threads * width > total:
        body = tirx.IfThenElse(first < total, body, None)
    return launch(group[-1].name, [(block, blocks)], [(thread, threads)], body)


def _width(group: Sequence[Stage], shape: Sequence[int]) -> int:
    """Results of a thread: a vector where rows are whole vectors and the device is filled without more threads."""
    found = [str(stage.buffer.dtype) for stage in group]
    found += [str(load.source.dtype) for stage in group for load in stage.loads()]
    width, total = lanes(found), math.prod(shape)
    inner = total if len(shape) < 2 else shape[-1]
    fills = total // width >= MULTIPROCESSORS * BLOCK
    return width if fills and inner % width == 0 else 1


RULE = Rule("pointwise", "cuda", schedule)
