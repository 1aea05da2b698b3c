"""Sums, maxima and the like: the threads of a block share a sum's terms or stand side by side over its results.

Where neighbouring results lie side by side in memory (columns), so do their threads, and further threads of the block
take every so many-th term. Where a result's terms do (rows), a warp or a block takes them together. Where there are too
few results to fill the device, their terms are cut into parts, whose sums a second launch adds up. The order of
additions hangs on the shapes alone, so a result is the same in every run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tvm import ir, s_tir, tirx

from .. import common
from ..codegen import sequence, unravelled
from ..levels import is_plain
from ..stages import Expr, Stage, inlined, size, with_nests
from ..sums import Sum, epilogue, parts_of, sum_of
from ..target import Machine, Rule
from . import pointwise
from .threads import (
    BLOCK,
    MULTIPROCESSORS,
    WARP,
    ThreadCode,
    all_of,
    axis,
    barrier,
    ceil_div,
    folded,
    guarded,
    index,
    lanes,
    launch,
    local,
    shared,
)

FEW_TERMS = 32  # of a sum that one thread adds up
LONG_ROW = 1024  # terms of a sum that a whole block adds up
STEPS = 16  # terms, or vectors of them, of a thread, where a sum is cut into parts
MOST_STEPS = 64  # of a sum that is not cut: what they take is not worth a second launch
BLOCKS = 2 * MULTIPROCESSORS  # that fill the device


def schedule(func: tirx.PrimFunc, machine: Machine) -> s_tir.Schedule | None:
    """A launch or two for each sum, with what is computed of it alone. Declines reductions that do
    more than combine terms."""
    read = inlined(func)
    if read is None or not all(is_plain(stage) for stage in read[1] if stage.reduced):
        return None
    func, stages = read
    found, arrays = nests(stages, stages, set(func.params))
    return common.start(with_nests(func, found, arrays))


def nests(
    own: Sequence[Stage], stages: Sequence[Stage], results: set[Any]
) -> tuple[list[tirx.Stmt], list[ir.Var]]:
    """The launches of some of the function's stages, in order, and the arrays between them."""
    found: list[tirx.Stmt] = []
    arrays: list[ir.Var] = []
    left = [stage for stage in own if size(stage.iters) or stage.reduced]
    while left:
        stage = left.pop(0)
        if not stage.reduced:
            plain = [stage]
            while left and not left[0].reduced:
                plain.append(left.pop(0))
            found += pointwise.nests(plain, stages, results)
        elif size(stage.spatial):
            after = epilogue(stage, left)
            left = [other for other in left if other not in after]
            made, more = _launches(sum_of(stage, after, stages, results))
            found += made
            arrays += more
    return found, arrays


def _launches(whole: Sum) -> tuple[list[tirx.Stmt], list[ir.Var]]:
    """The launches of a sum, and the array of its parts' sums."""
    count = math.prod(whole.results)
    if whole.count <= FEW_TERMS:
        whole = replace(whole, columns=count > 1)
    launch_of: Callable[[Sum], tirx.Stmt] = columns_launch
    step = _deep(whole)
    if not whole.columns:
        width = _width(whole)
        launch_of, step = partial(_rows_launch, width=width), _side(whole) * width
    blocks = ceil_div(count, WARP) if whole.columns else count
    parts = min(ceil_div(BLOCKS, blocks), whole.count // (step * STEPS))
    if parts < 2 or whole.count <= step * MOST_STEPS:
        return [launch_of(whole)], []
    length = ceil_div(ceil_div(whole.count, parts), step) * step
    first, last, array = parts_of(whole, ceil_div(whole.count, length), length)
    return [launch_of(first), columns_launch(last)], [array]


def _deep(whole: Sum) -> int:
    """Threads that share the terms of each result of columns."""
    return 1 if whole.count <= FEW_TERMS else BLOCK // WARP


def columns_launch(whole: Sum) -> tirx.Stmt:
    """The launch of columns: a thread, or a column of threads, for each result."""
    deep, total = _deep(whole), math.prod(whole.results)
    side = min(BLOCK if deep == 1 else WARP, total)
    block, x, y = index("block"), index("x"), axis("y", deep)
    result = block * side + x
    place = unravelled(result, whole.results)
    sums, body = local(whole.dtype, whole.stage.init)
    inside = [result < total] if total % side else []
    body.append(guarded(inside, _adding(whole, 1, place, y, deep, sums)))
    mine: Expr = tirx.BufferLoad(sums, [0])
    if deep > 1:
        both = shared((deep, side), whole.dtype, f"{whole.name}_shared")
        body += [tirx.AllocBuffer(both), tirx.BufferStore(both, mine, [y, x]), barrier()]
        mine = folded([tirx.BufferLoad(both, [i, x]) for i in range(deep)], whole.combine)
        inside = [y == 0, *inside]
    code = ThreadCode(1)
    whole.store(code, place, code.value(mine))
    body.append(tirx.IfThenElse(tirx.all(*inside), code.loop(), None) if inside else code.loop())
    return launch(whole.name, [(block, ceil_div(total, side))], [(x, side), (y, deep)], sequence(body))


def _side(whole: Sum) -> int:
    """Threads that share the terms of a row."""
    return BLOCK if whole.count > LONG_ROW else WARP


def _width(whole: Sum) -> int:
    """Terms of a row that a thread reads at once."""
    width = lanes([*whole.dtypes, whole.dtype])
    return width if whole.count % width == 0 and whole.count >= width * WARP else 1


def _rows_launch(whole: Sum, width: int) -> tirx.Stmt:
    """The launch of rows: a warp for each result, or a block for long sums."""
    total, threads = math.prod(whole.results), _side(whole)
    rows = min(BLOCK // WARP, total) if threads == WARP else 1
    block, x, y = index("block"), index("x"), axis("y", rows)
    result = block * rows + y
    place = unravelled(result, whole.results)
    sums, body = local(whole.dtype, whole.stage.init, width)
    inside = [result < total] if total % rows else []
    body.append(guarded(inside, _adding(whole, width, place, x, threads, sums)))
    one, more = local(whole.dtype, folded([tirx.BufferLoad(sums, [i]) for i in range(width)], whole.combine))
    body += [*more, *all_of(one, whole.combine, x, threads)]
    code = ThreadCode(1)
    whole.store(code, place, tirx.BufferLoad(one, [0]))
    body.append(tirx.IfThenElse(tirx.all(x == 0, *inside), code.loop(), None))
    return launch(whole.name, [(block, ceil_div(total, rows))], [(x, threads), (y, rows)], sequence(body))


def _adding(whole: Sum, width: int, place: list[Expr], thread: Expr, threads: int, sums: ir.Var) -> tirx.Stmt:
    """The loop in which a thread adds up its terms: vectors of them, each so many threads after the last."""
    code, step, stride = ThreadCode(width), index("step"), threads * width
    number = step * stride + thread * width
    code.add_to(sums, whole.combine, whole.term(code, place, number + code.lane))
    guards = [number < whole.count] if whole.count % stride else []
    guards += [whole.exists(place, number)] if whole.exists else []
    return tirx.For(step, 0, ceil_div(whole.count, stride), tirx.ForKind.SERIAL, guarded(guards, code.loop()))


RULE = Rule("reduction", "cuda", schedule, sums=True)
