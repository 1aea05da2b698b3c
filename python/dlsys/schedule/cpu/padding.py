"""Taps of a convolution that meet only the zeros around the images are left out of its loops.

Of 3 x 3 filters over images of 14 x 14 a tenth of the products are with zeros, over 2 x 2 more than half. Where a tile
lies in one row of the result, the loop over a filter's rows runs over those that meet the image. Where it is a whole
row, the loop over a filter's columns is unrolled, and each is multiplied into those of the tile's rows that it meets.
With both the images are read where they lie; else they are still set into zeros before.

An infinity or NaN in a filter is then not multiplied with such a zero, as in PyTorch for most shapes.

A schedule marks the two loops (`mark`); `insert` gives them their bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import ir, s_tir, sym, tirx
from tvm.s_tir.schedule import LoopRV

from ..common import anew, renamed, rewritten
from ..roles import Roles

MARK = "padding"
INSIDE = "padding.inside"  # a nest of loops that reads no zeros around images
CHANNELS = 16  # with fewer, the loop over them is too short to stand inside those over taps


@dataclass(frozen=True)
class Padding:
    """Where windows meet images: start <= scale * position + step * tap < stop."""

    position: int  # an axis of the contraction, as is `tap`
    tap: int
    scale: int
    step: int
    start: int
    stop: int

    def meets(self, position: int, tap: int) -> bool:
        """Whether a tap of the window at a position lies within the image."""
        return self.start <= self.scale * position + self.step * tap < self.stop


def paddings(block: s_tir.SBlock, read: int, padded: s_tir.SBlock) -> tuple[list[Padding], bool]:
    """The padding of images that `padded` sets into zeros and a contraction reads through windows, as factor `read`;
    and whether nothing else in `padded` is zero."""
    value = padded.body.value
    if not (isinstance(value, ir.Call) and _is_set_into_zeros(value)):
        return [], False
    product = block.body.value.b
    load = (product.a, product.b)[read]
    variables = [v.var for v in block.iter_vars]
    summed = [v.iter_type == tirx.IterVar.CommReduce for v in block.iter_vars]
    parts = _conjuncts(value.args[0])
    own = [v.var for v in padded.iter_vars]
    whole = all(sum(_reads(part, v) for v in own) == 1 for part in parts)
    found = []
    for index, iterator in zip(load.indices, padded.iter_vars, strict=True):
        inside = _inside([part for part in parts if _reads(part, iterator.var)], iterator)
        if len(inside) == int(iterator.dom.extent):
            continue
        terms = sym.detect_linear_equation(index, variables)
        one = _padding(inside, terms, summed)
        if one is None:
            whole = False
        else:
            found.append(one)
            whole = whole and len(inside) == one.stop - one.start
    return found, whole


def _padding(inside: Sequence[int], terms: Sequence[Any], summed: Sequence[bool]) -> Padding | None:
    """The padding that windows meet at an index that is the sum of `terms`, a factor for each axis and a constant;
    None where that is not a position and a tap."""
    if not inside or len(terms) != len(summed) + 1 or not all(isinstance(term, tirx.IntImm) for term in terms):
        return None
    *factors, first = map(int, terms)
    used = sorted((i for i, factor in enumerate(factors) if factor), key=lambda i: summed[i])
    if [summed[i] for i in used] != [False, True] or min(factors[i] for i in used) < 0:
        return None
    position, tap = used
    return Padding(position, tap, factors[position], factors[tap], inside[0] - first, inside[-1] + 1 - first)


def skipped(found: Sequence[Padding], r: Roles, rows: int) -> list[Padding]:
    """Those of the paddings that tiles of so many rows leave out. None where rows of the product are more than
    positions of windows: in a filter's gradient, whose positions are its taps."""
    if any(r.extents[i] > 1 and not any(i in window for window in r.windows[r.a]) for i in r.m):
        return []
    across, width = r.m[-1], r.extents[r.m[-1]]
    channels = max((r.extents[i] for i in r.k if all(i != one.tap for one in found)), default=1)
    in_row = [one for one in found if one.position in r.m[-2:-1] and width % rows == 0]
    return [*in_row, *(b for b in found if b.position == across and rows == width and channels >= CHANNELS)]


def ordered(r: Roles, skips: Sequence[Padding]) -> Roles:
    """With the loops over taps outside of those over channels, where the former are unrolled."""
    if all(one.position != r.m[-1] for one in skips):
        return r
    taps = [one.tap for one in skips]
    return replace(r, k=(*taps, *(i for i in r.k if i not in taps)))


def share(found: Sequence[Padding], r: Roles, rows: int) -> float:
    """The part of all products that tiles of so many rows do not leave out."""
    part = 1.0
    for one in skipped(found, r, rows):
        positions, taps = range(r.extents[one.position]), range(r.extents[one.tap])
        part *= sum(one.meets(p, t) for p in positions for t in taps) / (len(positions) * len(taps))
    return part


def mark(
    sch: s_tir.Schedule, skips: Sequence[Padding], r: Roles, taps: Mapping[int, LoopRV], staged: bool
) -> None:
    """Has the loops over taps, given by their axes, leave out the padding; all of them where no images are staged."""
    if not staged:
        sch.annotate(taps[r.k[0]], INSIDE, 1)
    for one in skips:
        numbers = [one.scale, one.step, one.start, one.stop]
        if one.position != r.m[-1]:
            numbers += [r.extents[r.m[-1]], r.extents[one.position]]
        sch.annotate(taps[one.tap], MARK, numbers)


def insert(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with bounds in the loops that were marked."""
    return func.with_body(rewritten(func.body, tirx.For, _bounded))


def _bounded(loop: tirx.For) -> tirx.Stmt:
    """A marked loop with bounds that leave out its zeros, and with its other marks."""
    mark, body = loop.annotations.get(MARK), loop.body
    rest = {name: value for name, value in loop.annotations.items() if name not in (INSIDE, MARK)}
    if INSIDE in loop.annotations:
        body = rewritten(body, ir.Call, _without_zeros)
    if len(rest) < len(loop.annotations):
        loop = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, annotations=rest)
    if mark is None:
        return loop
    scale, step, start, stop, *rows = map(int, mark)
    if not rows:
        return _by_tap(loop, scale, step, start, stop)
    width, height = rows
    first_row = _first_row(body)
    if first_row is None:
        return body
    row = tirx.floormod(tirx.floordiv(first_row, width), height)
    first = tirx.max(tirx.floordiv(start - scale * row + step - 1, step), 0)
    last = tirx.min(tirx.floordiv(stop - scale * row + step - 1, step), loop.extent)
    if not rest:
        return tirx.For(loop.loop_var, first, tirx.max(last - first, 0), loop.kind, body)
    # to be cut into blocks. Their accumulators would be allocated outside of all loops that a loop's bounds hang on
    inside = tirx.IfThenElse(tirx.all(loop.loop_var >= first, loop.loop_var < last), body, None)
    return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, inside, annotations=rest)


def _without_zeros(call: ir.Call) -> Any:
    """The read of an image without the condition that the place lies within."""
    return call.args[1] if _is_set_into_zeros(call) else call


def _by_tap(loop: tirx.For, scale: int, step: int, start: int, stop: int) -> tirx.Stmt:
    """The loop as one of its own for each step, without the rows of the tile whose windows lie beyond the image
    there."""
    copies = []
    for tap in range(int(loop.extent)):
        first, last = -((step * tap - start) // scale), -((step * tap - stop) // scale)
        body = _over_rows(loop.body, first, last)
        if body is not None:
            at = tirx.IntImm("int32", tap)
            copy = tirx.For(loop.loop_var, at, 1, loop.kind, body, annotations=loop.annotations)
            copies.append(renamed(copy, anew(copy)))
    return tirx.SeqStmt(copies) if len(copies) > 1 else copies[0] if copies else tirx.Evaluate(0)


def _over_rows(body: tirx.Stmt, first: int, last: int) -> tirx.Stmt | None:
    """A nest of loops with the one over a tile's rows, the first that is unrolled, from `first` to before `last`."""
    if body.kind != tirx.ForKind.UNROLLED:
        inner = _over_rows(body.body, first, last)
        if inner is None:
            return None
        return tirx.For(body.loop_var, body.min, body.extent, body.kind, inner, annotations=body.annotations)
    first, last = max(first, 0), min(last, int(body.extent))
    if first >= last:
        return None
    return tirx.For(body.loop_var, first, last - first, body.kind, body.body, annotations=body.annotations)


def _first_row(nest: tirx.Stmt) -> Any:
    """The index, among the rows of the product, of a tile's first; None where no tap meets the image."""
    zero: dict[Any, Any] = {}
    while not isinstance(nest, s_tir.SBlockRealize):
        if isinstance(nest, tirx.SeqStmt):  # by taps: their tiles are the same
            nest = nest.seq[0]
        if isinstance(nest, tirx.Evaluate):
            return None
        if nest.kind == tirx.ForKind.UNROLLED:
            zero[nest.loop_var] = tirx.IntImm("int32", 0)
        nest = nest.body
    return renamed(nest.iter_values[-3], zero)  # (batch..., m, n, k)


def _conjuncts(condition: Any) -> list[Any]:
    """The terms of a conjunction."""
    if isinstance(condition, tirx.And):
        return [*_conjuncts(condition.a), *_conjuncts(condition.b)]
    return [condition]


def _reads(code: Any, var: Any) -> bool:
    return any(v.same_as(var) for v in tirx.analysis.undefined_vars(code))


def _inside(parts: Sequence[Any], iterator: tirx.IterVar) -> list[int]:
    """The values of an iterator for which terms may hold that are all to hold, as far as those tell that read it
    alone."""
    analyzer = sym.Analyzer()
    own = [part for part in parts if len(tirx.analysis.undefined_vars(part)) == 1]

    def holds(part: Any, value: int) -> bool:
        return bool(analyzer.simplify(renamed(part, {iterator.var: tirx.IntImm("int32", value)})))

    return [value for value in range(int(iterator.dom.extent)) if all(holds(part, value) for part in own)]


def _is_set_into_zeros(call: ir.Call) -> bool:
    return str(getattr(call.op, "name", "")).endswith("if_then_else") and _is_zero(call.args[2])


def _is_zero(value: Any) -> bool:
    return isinstance(value, (tirx.IntImm, tirx.FloatImm)) and float(value.value) == 0
