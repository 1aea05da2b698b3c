"""Sums, maxima and the like: the threads of a block share a sum's terms or stand side by side over its results.

Where neighbouring results lie side by side in memory (columns), so do their threads, and further threads of the block
take every so many-th term. Where a result's terms do (rows), a warp or a block takes them together. Terms of too few
results are cut into parts, whose sums a second launch adds up. A result is the same in every run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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

Launches = Callable[[Sum], list[tirx.Stmt]]


def schedule(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc | None:
    """A launch or two for each sum, with what is computed of it alone. Declines other reductions."""
    stages = inlined(func)
    if stages is None or not all(stage.is_plain for stage in stages if stage.reduced):
        return None
    return with_nests(func, nests(stages, stages, set(func.params), machine.gpu))


def nests(
    own: Sequence[Stage], stages: Sequence[Stage], results: set[Any], gpu: Gpu, product: Launches | None = None
) -> list[tirx.Stmt]:
    """The launches of some of the function's stages, in order; `product` has those of the one sum that is a product."""
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
            whole = sum_of(stage, after, stages, results)
            found += _launches(whole, gpu) if product is None else product(whole)
    return found


def _launches(whole: Sum, gpu: Gpu) -> list[tirx.Stmt]:
    """The launch of a sum, or those of its parts and of their sum."""
    columns, deep, width = _threads_of(whole)
    blocks = ceil_div(math.prod(whole.results), WARP if columns else 1)
    least = 16 * deep * width  # terms of a part: its threads take so many steps
    parts = min(ceil_div(2 * gpu.multiprocessors, blocks), whole.count // least)
    if parts < 2 or whole.count <= 4 * least:  # what that takes is not worth a second launch
        return [launch_of(whole)]
    *stages, total = in_parts(whole.stage, parts_along(whole.stage, parts))
    return list(map(launch_of, [*(Sum(part, (), {part.buffer}) for part in stages), replace(whole, stage=total)]))


def _threads_of(whole: Sum) -> tuple[bool, int, int]:
    """Whether threads stand side by side over results, as they do for columns and where each takes a short sum; how
    many threads share the terms of a result; and how many terms each reads at once, of rows a vector."""
    if whole.count <= WARP and math.prod(whole.results) > 1:
        return True, 1, 1
    if whole.count > WARP and whole.columns:
        return True, BLOCK // WARP, 1
    width = lanes([whole.stage])
    fits = whole.count % width == 0 and whole.count >= width * WARP
    return False, BLOCK if whole.count > 32 * WARP else WARP, width if fits else 1  # 32 terms a thread are many


def launch_of(whole: Sum) -> tirx.Stmt:
    """The launch of a sum: the threads that share a result stand above each other for columns, else side by side."""
    (columns, deep, width), total = _threads_of(whole), math.prod(whole.results)
    side = min(BLOCK // deep, total)  # results of a block
    block, x, y = index("block"), index("x"), threads.axis("y", deep if columns else side)
    thread, own = (y, x) if columns else (x, y)
    result = block * side + own
    place = unravelled(result, whole.results)
    inside = [result < total] if total % side else []
    sums, body = local(whole.dtype, whole.stage.init, width)
    body.append(guarded(inside, _adding(whole, width, place, thread, deep, sums)))
    one, more = threads.all_of(sums, whole.combine, x, 1 if columns else deep)
    body += more
    value: Expr = tirx.BufferLoad(one, [0])
    if columns and deep > 1:
        both = threads.shared((deep, side), whole.dtype, f"{whole.stage.name}_shared")
        body += [tirx.AllocBuffer(both), tirx.BufferStore(both, value, [y, x]), threads.barrier()]
        value = folded([tirx.BufferLoad(both, [i, x]) for i in range(deep)], whole.combine)
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
