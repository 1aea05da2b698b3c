"""Taps of a convolution that meet only the zeros around the images are left out of its loops.

Of 3 x 3 filters over images of 14 x 14 a tenth of the products are with zeros, over 2 x 2 more than half. Where a tile
lies in one row of the result, the loop over a filter's rows runs over those that meet the image. Where it is a whole
row, the loop over a filter's columns is unrolled, and each is multiplied into those of the tile's rows that it meets.
With both the images are read where they lie; else they are still set into zeros before.

An infinity or NaN in a filter is then not multiplied with such a zero, as in PyTorch for most shapes.

"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from tvm import ir, sym, tirx

from ..codegen import PARALLEL, SERIAL, array, lanes, unravelled
from ..common import SHORT, accesses_of, divisor, mutated, renamed, rewritten
from ..products import Operand, Product
from ..stages import Stage, extents, loads_of

CHANNELS = 16  # fewer are too short a loop to stand inside those over taps, and are unrolled where side by side


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

    def rows_met(self, tap: int, first: int, last: int) -> tuple[int, int]:
        """Of the positions from a first to a last one those at which a tap lies within the image."""
        low, high = (-((self.step * tap - edge) // self.scale) for edge in (self.start, self.stop))
        return max(first, low), min(last, high)

    def taps_met(self, position: Any) -> tuple[Any, Any]:
        """The first tap that lies within the image at a position, and the end of those that do."""
        low, high = (
            tirx.floordiv(edge - self.scale * position + self.step - 1, self.step) for edge in (self.start, self.stop)
        )
        return low, high


def paddings(load: Any, reader: Stage, padded: Stage) -> tuple[list[Padding], bool]:
    """The padding of images that `padded` sets into zeros and a product reads through windows by `load`; and whether
    nothing else in `padded` is zero."""
    borders, whole = _borders(padded)
    variables = [v.var for v in reader.iters]
    summed = [v.iter_type == tirx.IterVar.CommReduce for v in reader.iters]
    found = []
    for i, (low, high) in borders.items():
        if (low, high) != (0, int(padded.iters[i].dom.extent)):
            one = _padding(low, high, sym.detect_linear_equation(load.indices[i], variables), summed)
            whole = whole and one is not None
            found += [one] if one is not None else []
    return found, whole


def _padding(low: int, high: int, terms: Sequence[Any], summed: Sequence[bool]) -> Padding | None:
    """The padding that windows meet at an index that is the sum of `terms`, a factor for each axis and a constant;
    None where that is not a position and a tap."""
    if len(terms) != len(summed) + 1 or not all(isinstance(term, tirx.IntImm) for term in terms):
        return None
    *factors, first = map(int, terms)
    used = sorted((i for i, factor in enumerate(factors) if factor), key=lambda i: summed[i])
    if [summed[i] for i in used] != [False, True] or min(factors[i] for i in used) < 0:
        return None
    position, tap = used
    return Padding(position, tap, factors[position], factors[tap], low - first, high - first)


def skipped(found: Sequence[Padding], p: Product, rows: int) -> list[Padding]:
    """Those of the paddings that tiles of so many rows leave out. None where rows of the product are more than
    positions of windows: in a filter's gradient, whose positions are its taps."""
    if any(p.extents[i] > 1 and not any(i in window for window in p.a.windows) for i in p.m):
        return []
    across, width = p.m[-1], p.extents[p.m[-1]]
    channels = max((p.extents[i] for i in p.k if all(i != one.tap for one in found)), default=1)
    in_row = [one for one in found if one.position in p.m[-2:-1] and width % rows == 0]
    return [*in_row, *(b for b in found if b.position == across and rows == width and channels >= CHANNELS)]


def ordered(p: Product, skips: Sequence[Padding]) -> Product:
    """With the loops over taps outside of those over channels, where the former are unrolled."""
    if all(one.position != p.m[-1] for one in skips):
        return p
    taps = [one.tap for one in skips]
    return replace(p, k=(*taps, *(i for i in p.k if i not in taps)))


def share(found: Sequence[Padding], p: Product, rows: int) -> float:
    """The part of all products that tiles of so many rows do not leave out."""
    part = 1.0
    for one in skipped(found, p, rows):
        positions, taps = range(p.extents[one.position]), range(p.extents[one.tap])
        part *= sum(one.meets(place, t) for place in positions for t in taps) / (len(positions) * len(taps))
    return part


@dataclass(frozen=True)
class Images:
    """Images that are made before a product reads them: all, or those of one batch at a time.

    Attributes:
        stage: that makes them.
        buffer: where they lie.
        fixed: the axes of the product at which some of the stage's iterators stand, where the images at one index of
            those lie in the buffer.
    """

    stage: Stage
    buffer: Any
    fixed: Mapping[int, int]

    def of_batch(self, axes: Sequence[int], reader: Product) -> tuple[Images, Product] | None:
        """The images at one index of some axes of a product, and the product that reads them; None where a place in
        them hangs on those and on more."""
        iters, sides = reader.stage.iters, (reader.a, reader.b)
        unit = {v.var: tirx.IntImm(v.var.ty, 0) for v in iters if int(v.dom.extent) == 1}
        simple = sym.Analyzer().simplify
        loads = [load for load in loads_of(one.value for one in sides) if load.source.same_as(self.buffer)]
        places = [[simple(renamed(index, unit)) for index in load.indices] for load in loads]
        batch = {axis: iters[axis].var for axis in axes}
        fixed: dict[int, int] = {}
        for i in range(len(self.stage.iters)):
            for axis, var in batch.items():
                if all(place[i].same_as(var) for place in places):
                    fixed[i] = axis
            if i not in fixed and any(_reads(place[i], var) for place in places for var in batch.values()):
                return None
        free = [i for i in range(len(self.stage.iters)) if i not in fixed]
        shape = [int(self.stage.iters[i].dom.extent) for i in free]
        own = array(shape, self.buffer.dtype, self.buffer.name)

        def load(item: ir.TensorLoad, mutator: Any) -> Any:
            if not item.source.same_as(self.buffer):
                return mutator.default_mutate(item)
            return tirx.BufferLoad(own, [mutator.mutate(item.indices[i]) for i in free])

        def read(operand: Operand) -> Operand:
            return replace(operand, value=mutated(operand.value, {ir.TensorLoad: load}))

        if not fixed or len(free) < 2:
            return None
        return Images(self.stage, own, fixed), replace(reader, a=read(reader.a), b=read(reader.b))

    def laid(self, loop: Any, at: Mapping[int, Any], most: int, parallel: bool = False) -> tirx.Stmt:
        """The loops that make the images: planes of zeros, and within their borders what is set into them, up to `most`
        elements at a time. `at`: the index of those axes."""
        names = {i: at[axis] for i, axis in self.fixed.items()}
        return _laid(self.stage, self.buffer, names, loop, most, parallel)


def _laid(stage: Stage, buffer: Any, fixed: Mapping[int, Any], loop: Any, most: int, parallel: bool) -> tirx.Stmt:
    """The loops of a stage that sets images into zeros, of two axes at least: of all its elements, or of those at
    `fixed` values of some iterators. Each plane, of the last two axes, is cleared, and what is within its borders
    copied; what is zero for other reasons is computed element by element."""
    *outer, y, x = free = [i for i in range(len(stage.iters)) if i not in fixed]
    sizes, (borders, exact) = extents(stage.iters), _borders(stage)
    inside = {i: borders[i] if exact else (0, sizes[i]) for i in free}
    (top, height), (left, width) = ((low, high - low) for low, high in (inside[y], inside[x]))
    zero, value = tirx.const(0, str(buffer.dtype)), stage.value.args[1] if exact else stage.value

    def store(what: Any, at: Mapping[int, Any]) -> tirx.Stmt:
        names = {stage.iters[i].var: place for i, place in {**fixed, **at}.items()}
        return tirx.BufferStore(buffer, renamed(what, names), [at[i] for i in free])

    def copied(at: Mapping[int, Any]) -> tirx.Stmt:
        flat = exact and width == sizes[x]  # rows lie beside each other: it does not matter where one ends
        flat = flat and all(s is not None and s[y] == s[x] * width for s in accesses_of(stage.block))
        rows, row = (1, height * width) if flat else (height, width)
        step = (divisor(row, 1, most) or 1) if exact else 1
        step = step if step >= SHORT else 1

        def part(i: Any, start: Any) -> tirx.Stmt:
            index = str(stage.iters[x].var.ty)
            return lanes(step, lambda lane: store(value, {**at, y: top + i, x: left + start + lane}), index)

        return loop(rows, lambda i: loop(row // step, lambda j: part(i, j * step)))

    def plane(number: Any) -> tirx.Stmt:
        at = dict(zip(outer, unravelled(number, [sizes[i] for i in outer]), strict=True))
        if not exact:
            return copied(at)
        clear = loop(sizes[y], lambda i: loop(sizes[x], lambda j: store(zero, {**at, y: i, x: j})))
        within = [low <= at[i] for i, (low, _) in inside.items() if i in at and low > 0]
        within += [at[i] < high for i, (_, high) in inside.items() if i in at and high < sizes[i]]
        copy = copied(at)
        return tirx.SeqStmt([clear, tirx.IfThenElse(tirx.all(*within), copy, None) if within else copy])

    return loop(math.prod(sizes[i] for i in outer), plane, PARALLEL if parallel else SERIAL)


@lru_cache(8)
def _borders(stage: Stage) -> tuple[dict[int, tuple[int, int]], bool]:
    """Within what a stage that sets something into zeros has it, for each iterator, as far as conditions tell that read
    that iterator alone; and whether all is told. Nothing of other stages."""
    if not (isinstance(stage.value, ir.Call) and _is_set_into_zeros(stage.value)):
        return {}, False
    parts, found = _conjuncts(stage.value.args[0]), dict[int, tuple[int, int]]()
    exact = all(sum(_reads(part, v.var) for v in stage.iters) == 1 for part in parts)
    for i, iterator in enumerate(stage.iters):
        own = _inside([part for part in parts if _reads(part, iterator.var)], iterator)
        exact = exact and bool(own) and own[-1] - own[0] + 1 == len(own)
        if own:
            found[i] = (own[0], own[-1] + 1)
    return found, exact


def without_zeros(code: Any) -> Any:
    """An expression that reads images without the condition that the place lies within."""
    return rewritten(code, ir.Call, lambda call: call.args[1] if _is_set_into_zeros(call) else call)


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
    own = [part for part in parts if len(tirx.analysis.undefined_vars(part)) == 1]
    simplify, extent = sym.Analyzer().simplify, int(iterator.dom.extent)

    def holds(value: int) -> bool:
        at = {iterator.var: tirx.IntImm(iterator.var.ty, value)}
        return all(bool(simplify(renamed(part, at))) for part in own)

    return [value for value in range(extent) if holds(value)] if own else list(range(extent))


def _is_set_into_zeros(call: ir.Call) -> bool:
    return str(getattr(call.op, "name", "")).endswith("if_then_else") and _is_zero(call.args[2])


def _is_zero(value: Any) -> bool:
    return isinstance(value, (tirx.IntImm, tirx.FloatImm)) and float(value.value) == 0
