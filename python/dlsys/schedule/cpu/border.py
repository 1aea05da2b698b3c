"""Images with their borders of zeros, which a convolution reads through windows, laid by the share that reads them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from tvm import ir, sym, tirx

from .. import common
from ..codegen import lanes, loop, unravelled
from ..common import SHORT, divisor, is_branch, reads, renamed
from ..stages import Expr, Stage, extents


def laid(
    stage: Stage, array: Any, free: Sequence[int], fixed: Mapping[Any, Expr], most: int, parallel: bool = False
) -> tirx.Stmt:
    """The loops that compute a stage's images, in an array of those of its axes that are `free`; `fixed`: the values of
    the others. Of images set into zeros each plane, of the last two axes, is cleared, and what is within its borders is
    copied, up to `most` elements at a time; others are computed one by one."""
    sizes, borders = extents(stage.iters), _borders(stage)

    def store(what: Any, at: Mapping[int, Expr]) -> tirx.Stmt:
        names = {stage.iters[i].var: place for i, place in at.items()}
        return tirx.BufferStore(array, renamed(what, {**fixed, **names}), [at[i] for i in free])

    def over(axes: Sequence[int], body: Callable[[dict[int, Expr]], tirx.Stmt], at: Mapping[int, Expr]) -> tirx.Stmt:
        """`body` of all indices of some axes."""
        if not axes:
            return body({**at})
        return loop(sizes[axes[0]], lambda i: over(axes[1:], body, {**at, axes[0]: i}), parallel and not at)

    if borders is None or len(free) < 2:
        return over(free, lambda at: store(stage.value, at), {})
    *outer, y, x = free
    value, zero = stage.value.args[1], tirx.const(0, str(array.dtype))
    (top, bottom), (left, right) = (borders.get(i, (0, sizes[i])) for i in (y, x))
    step = divisor(right - left, 1, most) or 1
    step = step if step >= SHORT else 1

    def part(at: Mapping[int, Expr], i: Expr, start: Expr) -> tirx.Stmt:
        return lanes(step, lambda lane: store(value, {**at, y: top + i, x: left + start + lane}))

    def plane(at: dict[int, Expr]) -> tirx.Stmt:
        clear = over([y, x], lambda place: store(zero, place), at)
        copy = loop(bottom - top, lambda i: loop((right - left) // step, lambda j: part(at, i, j * step)))
        places = {i: at[i] if i in at else fixed[stage.iters[i].var] for i in borders if i not in (y, x)}
        within = [borders[i][0] <= place for i, place in places.items() if borders[i][0] > 0]
        within += [place < borders[i][1] for i, place in places.items() if borders[i][1] < sizes[i]]
        return tirx.SeqStmt([clear, tirx.IfThenElse(tirx.all(*within), copy, None) if within else copy])

    shape = [sizes[i] for i in outer]  # joined, for threads to have parts where the first is short
    of = lambda number: plane(dict(zip(outer, unravelled(number, shape), strict=True)))  # noqa: E731
    return loop(math.prod(shape), of, parallel)


@lru_cache(8)
def _borders(stage: Stage) -> dict[int, tuple[int, int]] | None:
    """For each iterator of a stage that sets something into zeros, within what it has that; None where conditions hang
    on several iterators, and for other stages."""
    if not (isinstance(stage.value, ir.Call) and _is_set_into_zeros(stage.value)):
        return None
    parts, simplify = common.conjuncts(stage.value.args[0]), sym.Analyzer().simplify
    if any(len(tirx.analysis.undefined_vars(part)) != 1 for part in parts):
        return None
    found = dict[int, tuple[int, int]]()
    for i, v in enumerate(stage.iters):
        first, end, others = common.bounds_of([part for part in parts if reads(part, v.var)], v)
        at = partial(tirx.IntImm, v.var.ty)
        inside = [n for n in range(first, end) if all(simplify(renamed(part, {v.var: at(n)})) for part in others)]
        if not inside or inside[-1] - inside[0] + 1 != len(inside):
            return None
        found[i] = (inside[0], inside[-1] + 1)
    return found


def has_borders(stage: Stage) -> bool:
    """Whether a stage sets images into zeros."""
    return _borders(stage) is not None


def _is_set_into_zeros(call: ir.Call) -> bool:
    zero = call.args[2] if is_branch(call) else None
    return isinstance(zero, (tirx.IntImm, tirx.FloatImm)) and float(zero.value) == 0
