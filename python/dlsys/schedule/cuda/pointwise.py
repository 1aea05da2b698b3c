"""Functions of an index alone: a thread computes some neighbouring results of all stages, in one launch. Parts of a
function that have nothing to do with each other share a launch too, each by blocks of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import tirx

from ..codegen import unravelled
from ..stages import Expr, Stage, domains, extents, inlined, kept, size, with_nests
from ..target import Gpu, Machine, Rule
from .threads import BLOCK, ThreadCode, ceil_div, guarded, index, lanes, launch


def schedule(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc | None:
    """A launch for all results of one shape. It reads all inputs of an index before it stores, so an output may be an
    input."""
    if (stages := inlined(func)) is None:
        return None
    return with_nests(func, nests([s for s in stages if size(s.iters)], stages, set(func.params), machine.gpu))


def nests(own: Sequence[Stage], stages: Sequence[Stage], results: set[Any], gpu: Gpu) -> list[tirx.Stmt]:
    """The launches of stages without sums, which keep what is a result or another stage of the function reads."""
    launches: list[list[tuple[Sequence[Stage], set[Any]]]] = []
    home: dict[Any, int] = {}  # a buffer, and the launch that writes it
    for group in domains(own):
        written = {stage.buffer for stage in group}
        loads = {load.source for stage in group for load in stage.loads()} - written
        level = 1 + max((home[source] for source in loads if source in home), default=-1)
        if group[0].part is None or level == len(launches):
            level = len(launches)
            launches.append([])
        launches[level].append((group, kept(group, stages, results)))
        home.update(dict.fromkeys(written, level))
    return [_launch(parts, gpu) for parts in launches]


def _launch(parts: Sequence[tuple[Sequence[Stage], set[Any]]], gpu: Gpu) -> tirx.Stmt:
    """The launch of stages, one domain a part, each with the buffers that it stores."""
    block, thread = index("block"), index("thread")
    widths = [_width(group, extents(group[0].iters), gpu) for group, _ in parts]
    totals = [math.prod(extents(group[0].iters)) for group, _ in parts]
    threads = min(BLOCK, max(ceil_div(total, width) for total, width in zip(totals, widths, strict=True)))
    ends = [0]
    bodies = []
    for (group, stored), width, total in zip(parts, widths, totals, strict=True):
        bodies.append(_body(group, stored, width, ((block - ends[-1]) * threads + thread) * width, threads))
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


def _body(group: Sequence[Stage], stored: set[Any], width: int, first: Expr, threads: int) -> tirx.Stmt:
    """A thread's code for the stages of one domain from the index `first` on, of which it stores some buffers."""
    shape = extents(group[0].iters)
    total, code = math.prod(shape), ThreadCode(width)
    code.compute(group, unravelled(first + code.lane, shape), {}, stored)
    return guarded([first < total] if total % (threads * width) else [], code.loop())


def _width(group: Sequence[Stage], shape: Sequence[int], gpu: Gpu) -> int:
    """Results of a thread: a vector where rows are whole vectors and the device is filled without more threads."""
    found = [str(stage.buffer.dtype) for stage in group]
    found += [str(load.source.dtype) for stage in group for load in stage.loads()]
    width, total = lanes(found), math.prod(shape)
    inner = total if len(shape) < 2 else shape[-1]
    fills = total // width >= gpu.multiprocessors * BLOCK
    return width if fills and inner % width == 0 else 1


RULE = Rule("pointwise", "cuda", schedule, sums=False)
