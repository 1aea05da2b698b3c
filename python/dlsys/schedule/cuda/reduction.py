"""Sums, maxima and the like: the threads of a block share a sum's terms or stand side by side over its results.

Where neighbouring results lie side by side in memory (columns), so do their threads, and further threads of the block
take every so many-th term. Where a result's terms do (rows), a warp or a block takes them together. Terms of too few
results are cut into parts, whose sums a second launch adds up. A result is the same in every run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from tvm import ir, tirx

from ..codegen import sequence, unravelled
from ..stages import Expr, Stage, inlined, size, with_nests
from ..sums import Sum, epilogue, in_parts, parts_along, sum_of
from ..target import Gpu, Machine, Rule
from . import pointwise, threads
from .threads import BLOCK, WARP, ThreadCode, ceil_div, folded, guarded, index, lanes, launch, local

FEW_TERMS = 32  # of a sum that one thread adds up
LONG_ROW = 1024  # terms of a sum that a whole block adds up
STEPS = 16  # terms, or vectors of them, of a thread, where a sum is cut into parts


def schedule(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc | None:
    """A launch or two for each sum, with what is computed of it alone. Declines other reductions."""
    stages = inlined(func)
    if stages is None or not all(stage.is_plain for stage in stages if stage.reduced):
        return None
    return with_nests(func, nests(stages, stages, set(func.params), machine.gpu))


def nests(own: Sequence[Stage], stages: Sequence[Stage], results: set[Any], gpu: Gpu) -> list[tirx.Stmt]:
    """The launches of some of the function's stages, in order."""
    found: list[tirx.Stmt] = []
    left = [stage for stage in own if size(stage.iters) or stage.reduced]
    while left:
        stage = left.pop(0)
        if not stage.reduced:
            plain = [stage, *takewhile(lambda one: not one.reduced, left)]
            left = left[len(plain) - 1 :]
            found += pointwise.nests(plain, stages, results, gpu)
        elif size(stage.spatial):
            after = epilogue(stage, left)
            left = [other for other in left if other not in after]
            found += _launches(sum_of(stage, after, stages, results), gpu)
    return found


def _launches(whole: Sum, gpu: Gpu) -> list[tirx.Stmt]:
    """The launch of a sum, or those of its parts and of their sum."""
    step, results = _sharing(whole) * _width(whole), math.prod(whole.results)
    blocks = ceil_div(results, WARP) if _by_columns(whole) else results
    parts = min(ceil_div(2 * gpu.multiprocessors, blocks), whole.count // (step * STEPS))
    if parts < 2 or whole.count <= 4 * step * STEPS:  # what that takes is not worth a second launch
        return [launch_of(whole)]
    *stages, total = in_parts(whole.stage, parts_along(whole.stage, parts))
    return list(map(launch_of, [*(Sum(part, (), {part.buffer}) for part in stages), replace(whole, stage=total)]))


def _by_columns(whole: Sum) -> bool:
    """Whether threads stand side by side over results: of short sums each is that of one thread."""
    return math.prod(whole.results) > 1 if whole.count <= FEW_TERMS else whole.columns


def _sharing(whole: Sum) -> int:
    """Threads that share the terms of a result: of columns some, of rows a warp, or a block."""
    if _by_columns(whole):
        return 1 if whole.count <= FEW_TERMS else BLOCK // WARP
    return BLOCK if whole.count > LONG_ROW else WARP


def _width(whole: Sum) -> int:
    """Terms that a thread reads at once: of rows a vector."""
    width = lanes([whole.stage])
    fits = whole.count % width == 0 and whole.count >= width * WARP
    return width if fits and not _by_columns(whole) else 1


def launch_of(whole: Sum) -> tirx.Stmt:
    """The launch of a sum: the threads that share a result stand above each other for columns, else side by side."""
    columns, deep, width, total = _by_columns(whole), _sharing(whole), _width(whole), math.prod(whole.results)
    side = min(BLOCK // deep, total)  # results of a block
    block, x, y = index("block"), index("x"), threads.axis("y", deep if columns else side)
    thread, own = (y, x) if columns else (x, y)
    result = block * side + own
    place = unravelled(result, whole.results)
    inside = [result < total] if total % side else []
    sums, body = local(whole.dtype, whole.stage.init, width)
    body.append(guarded(inside, _adding(whole, width, place, thread, deep, sums)))
    one, more = local(whole.dtype, folded([tirx.BufferLoad(sums, [i]) for i in range(width)], whole.combine))
    body += more
    value: Expr = tirx.BufferLoad(one, [0])
    if columns and deep > 1:
        both = threads.shared((deep, side), whole.dtype, f"{whole.stage.name}_shared")
        body += [tirx.AllocBuffer(both), tirx.BufferStore(both, value, [y, x]), threads.barrier()]
        value = folded([tirx.BufferLoad(both, [i, x]) for i in range(deep)], whole.combine)
    elif deep > 1:
        body += threads.all_of(one, whole.combine, x, deep)
    code = ThreadCode(1)
    whole.store(code, place, code.value(value))
    inside = [thread == 0, *inside] if deep > 1 else inside
    body.append(tirx.IfThenElse(tirx.all(*inside), code.loop(), None) if inside else code.loop())
    own_threads = [(x, side), (y, deep)] if columns else [(x, deep), (y, side)]
    return launch(whole.stage.name, [(block, ceil_div(total, side))], own_threads, sequence(body))


def _adding(whole: Sum, width: int, place: list[Expr], thread: Expr, many: int, sums: ir.Var) -> tirx.Stmt:
    """The loop in which a thread adds up its terms: vectors of them, each so many threads after the last."""
    code, step, stride = ThreadCode(width), index("step"), many * width
    number = step * stride + thread * width
    code.add_to(sums, whole.combine, whole.term(code, place, number + code.lane))
    guards = [number < whole.count] if whole.count % stride else []
    return tirx.For(step, 0, ceil_div(whole.count, stride), tirx.ForKind.SERIAL, guarded(guards, code.loop()))


RULE = Rule("reduction", "cuda", schedule, sums=True)
