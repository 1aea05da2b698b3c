"""Sums, maxima and the like: the threads of a block share a sum's terms or stand side by side over its results.

Where neighbouring results lie side by side in memory (columns), so do their threads, and further threads of the block
take every so many-th term. Where a result's terms do (rows), a warp or a block takes them together. Where there are too
few results to fill the device, their terms are cut into parts, whose sums a second launch adds up. The order of
additions hangs on the shapes alone, so a result is the same in every run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import ir, s_tir, tirx

from .. import common
from ..codegen import sequence, unravelled
from ..common import renamed
from ..stages import Expr, Stage, at_own_index, extents, inlined, size, with_nests
from ..sums import is_plain
from ..target import Machine, Rule
from . import pointwise
from .threads import (
    BLOCK,
    MULTIPROCESSORS,
    WARP,
    ThreadCode,
    all_of_block,
    all_of_warp,
    barrier,
    ceil_div,
    folded,
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


@dataclass(frozen=True)
class Sum:
    """Sums of `count` terms each: `term` gives the one of a result and a number, at the lanes of a thread's code.

    Attributes:
        stage: where it stands in the function; tells how terms are combined, and what an empty sum is.
        results: the shape of the results.
        columns: whether neighbouring results lie side by side in what is read.
        dtypes: of what is read.
        store: adds what is done with a result to a thread's code.
        exists: whether there is a term, of a result and a number; None where all are there.
    """

    stage: Stage
    results: tuple[int, ...]
    count: int
    columns: bool
    dtypes: tuple[str, ...]
    term: Callable[[ThreadCode, list[Expr], Expr], Expr]
    store: Callable[[ThreadCode, list[Expr], Expr], None]
    exists: Callable[[list[Expr], Expr], Expr] | None = None

    @property
    def name(self) -> str:
        """The stage's."""
        return self.stage.name

    @property
    def dtype(self) -> str:
        """Of the results."""
        return str(self.stage.buffer.dtype)

    def combine(self, a: Expr, b: Expr) -> Expr:
        """Of two partial sums one."""
        return type(self.stage.value)(a, b)


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
            continue
        if not size(stage.spatial):
            continue
        after = behind(stage, left)
        left = [other for other in left if other not in after]
        made, more = _launches(sum_of(stage, after, stages, results))
        found += made
        arrays += more
    return found, arrays


def behind(stage: Stage, later: Sequence[Stage]) -> list[Stage]:
    """The stages right behind a sum that are computed of its results, each of the one at its own index."""
    found: list[Stage] = []
    inside = {stage.buffer}
    unknown = {other.buffer for other in later}
    for other in later:
        reads = [load for load in other.loads() if load.source in inside]
        at_own = all(at_own_index(load, other) for load in reads)
        apart = any(load.source in unknown - inside for load in other.loads())
        if other.reduced or not reads or not at_own or apart or extents(other.iters) != extents(stage.spatial):
            break
        inside.add(other.buffer)
        found.append(other)
    return found


def sum_of(stage: Stage, after: Sequence[Stage], stages: Sequence[Stage], results: set[Any]) -> Sum:
    """A stage as its sum; `after`: what is done with each result."""
    shape, terms = extents(stage.spatial), extents(stage.reduced)
    group = [stage, *after]
    written = {one.buffer for one in group}
    outside = {load.source for other in stages if other not in group for load in other.loads()}
    kept = written & {*results, *outside}

    def term(code: ThreadCode, result: list[Expr], number: Expr) -> Expr:
        places = [*result, *unravelled(number, terms)]
        names = {v.var: at for v, at in zip([*stage.spatial, *stage.reduced], places, strict=True)}
        return code.value(code.evaluate(stage.value.b, names, lambda load: None))

    def store(code: ThreadCode, result: list[Expr], total: Expr) -> None:
        values = {stage.buffer: total}

        def known(load: ir.TensorLoad) -> Expr | None:
            return values.get(load.source)

        for one in group:
            names = {v.var: at for v, at in zip(one.spatial, result, strict=True)}
            if one is not stage:
                values[one.buffer] = code.value(code.evaluate(one.value, names, known))
            if one.buffer in kept:
                code.store(one.buffer, values[one.buffer], [renamed(i, names) for i in one.indices])

    dtypes = tuple(str(load.source.dtype) for load in stage.loads())
    return Sum(stage, shape, math.prod(terms), _columns(stage), dtypes, term, store)


def _columns(stage: Stage) -> bool:
    """Whether threads side by side read what lies side by side, if each has a result of its own."""
    wide = [i for i, v in enumerate(stage.iters) if int(v.dom.extent) > 1]
    spatial = [i for i in wide if stage.iters[i].iter_type == tirx.IterVar.DataPar]
    terms = [i for i in wide if i not in spatial]
    if not spatial or not terms or size(stage.reduced) <= FEW_TERMS:
        return bool(spatial)
    reads = [a.strides for a in common.accesses_of(stage.block) if not a.is_write and a.strides is not None]
    return sum(s[spatial[-1]] == 1 for s in reads) > sum(s[terms[-1]] == 1 for s in reads)


def _launches(whole: Sum) -> tuple[list[tirx.Stmt], list[ir.Var]]:
    """The launches of a sum, and the array of its parts' sums."""
    count = math.prod(whole.results)
    width = 1 if whole.columns else _width(whole)
    step = width * (_split(whole)[1] if whole.columns else WARP if whole.count <= LONG_ROW else BLOCK)
    blocks = ceil_div(count, WARP) if whole.columns else count
    parts = min(ceil_div(BLOCKS, blocks), whole.count // (step * STEPS))
    if parts < 2 or whole.count <= step * MOST_STEPS:
        return [_launch(whole, width)], []
    length = ceil_div(ceil_div(whole.count, parts), step) * step
    parts = ceil_div(whole.count, length)
    first, last, array = parts_of(whole, parts, length)
    return [_launch(first, width), last], [array]


def parts_of(whole: Sum, parts: int, length: int) -> tuple[Sum, tirx.Stmt, ir.Var]:
    """A sum as those of its parts, of `length` terms each, kept in an array, and the launch that adds them up."""
    array = tirx.decl_buffer((parts, *whole.results), whole.dtype, f"{whole.name}_parts", layout=None)

    def term(code: ThreadCode, result: list[Expr], number: Expr) -> Expr:
        return whole.term(code, result[1:], result[0] * length + number)

    def exists(result: list[Expr], number: Expr) -> Expr:
        return result[0] * length + number < whole.count

    def keep(code: ThreadCode, result: list[Expr], total: Expr) -> None:
        code.store(array, total, result)

    def part(code: ThreadCode, result: list[Expr], number: Expr) -> Expr:
        return code.value(tirx.BufferLoad(array, [number, *result]))

    cut = None if parts * length == whole.count else exists
    first = replace(whole, results=(parts, *whole.results), count=length, term=term, store=keep, exists=cut)
    last = replace(whole, count=parts, columns=True, dtypes=(whole.dtype,), term=part)
    return first, _columns_launch(last), array


def _width(whole: Sum) -> int:
    """Terms that a thread reads at once."""
    width = lanes([*whole.dtypes, whole.dtype])
    return width if whole.count % width == 0 and whole.count >= width * WARP else 1


def _split(whole: Sum) -> tuple[int, int]:
    """Threads of a block side by side over the results of columns, and those that share each one's terms."""
    results = math.prod(whole.results)
    if whole.count <= FEW_TERMS:
        return min(BLOCK, results), 1
    return min(WARP, results), BLOCK // WARP


def _launch(whole: Sum, width: int) -> tirx.Stmt:
    """The launch that computes the sums, of rows or columns."""
    return _columns_launch(whole) if whole.columns else _rows_launch(whole, width)


def _columns_launch(whole: Sum) -> tirx.Stmt:
    """A thread, or a column of threads, for each result."""
    side, deep = _split(whole)
    total = math.prod(whole.results)
    block, x, y = index("block"), index("x"), index("y")
    result = block * side + x
    place = unravelled(result, whole.results)
    sums, body = local(whole.dtype, whole.stage.init)
    adding = _adding(whole, ThreadCode(1), place, y if deep > 1 else 0, deep, sums)
    mine: Expr = tirx.BufferLoad(sums, [0])
    guard: Expr = None
    if total % side:
        guard = result < total
        adding = tirx.IfThenElse(guard, adding, None)
    body.append(adding)
    if deep > 1:
        both = shared((deep, side), whole.dtype, f"{whole.name}_shared")
        body += [tirx.AllocBuffer(both), tirx.BufferStore(both, mine, [y, x]), barrier()]
        mine = folded([tirx.BufferLoad(both, [i, x]) for i in range(deep)], whole.combine)
        guard = y == 0 if guard is None else tirx.And(y == 0, guard)
    code = ThreadCode(1)
    whole.store(code, place, code.value(mine))
    storing = code.loop()
    body.append(storing if guard is None else tirx.IfThenElse(guard, storing, None))
    threads = [(x, side), (y, deep)] if deep > 1 else [(x, side)]
    return launch(whole.name, [(block, ceil_div(total, side))], threads, sequence(body))


def _rows_launch(whole: Sum, width: int) -> tirx.Stmt:
    """A warp for each result, or a block for long sums."""
    total = math.prod(whole.results)
    long = whole.count > LONG_ROW
    threads, rows = (BLOCK, 1) if long else (WARP, min(BLOCK // WARP, total))
    block, x, y = index("block"), index("x"), index("y")
    result = block * rows + y if rows > 1 else block
    place = unravelled(result, whole.results)
    sums, body = local(whole.dtype, whole.stage.init, width)
    adding = _adding(whole, ThreadCode(width), place, x, threads, sums)
    inside = result < total if total % rows else None
    body.append(adding if inside is None else tirx.IfThenElse(inside, adding, None))
    mine = folded([tirx.BufferLoad(sums, [i]) for i in range(width)], whole.combine)
    one, more = local(whole.dtype, mine)
    body += more + (all_of_block(one, whole.combine, x, threads) if long else all_of_warp(one, whole.combine))
    code = ThreadCode(1)
    whole.store(code, place, tirx.BufferLoad(one, [0]))
    guard = x == 0 if inside is None else tirx.And(x == 0, inside)
    body.append(tirx.IfThenElse(guard, code.loop(), None))
    axes = [(x, threads), (y, rows)] if rows > 1 else [(x, threads)]
    return launch(whole.name, [(block, ceil_div(total, rows))], axes, sequence(body))


def _adding(
    whole: Sum, code: ThreadCode, place: list[Expr], thread: Expr, threads: int, sums: ir.Var
) -> tirx.Stmt:
    """The loop in which a thread adds up its terms: vectors of them, each so many threads after the last."""
    step, stride = index("step"), threads * code.width
    number = step * stride + thread * code.width
    code.add_to(sums, whole.combine, whole.term(code, place, number + code.lane))
    body = code.loop()
    guards = [number < whole.count] if whole.count % stride else []
    guards += [whole.exists(place, number)] if whole.exists else []
    for guard in guards:
        body = tirx.IfThenElse(guard, body, None)
    return tirx.For(step, 0, ceil_div(whole.count, stride), tirx.ForKind.SERIAL, body)


RULE = Rule("reduction", "cuda", schedule, sums=True)
