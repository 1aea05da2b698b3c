"""Sums, maxima and the like, for both targets: how their terms are combined, and how they are cut in parts.

A sum in parts is a sum of each part, stored to an array between, and the sum of these: enough work for threads where
results are few. Where it is cut depends on shapes alone.

In levels a sum has accumulators of accumulators, for accuracy: n equal terms added one after another in float32 are off
by up to n / 8 units in the last place; with 64 additions between two levels by less than 4 log2(n). See Higham, "The
accuracy of floating point summation" (1993), on blocked and pairwise sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tvm import ir, tirx

from . import common
from .codegen import SERIAL, UNROLLED, VectorCode, array, in_steps, lanes, loop, sequence, unravelled
from .stages import Expr, Stage, at_own_index, extents, iterator, kept, size

PARTS = 64  # results, or parts, that are enough for threads
LEVEL = 64  # additions to an accumulator before it is added to one of the next level


def is_float_sum(stage: Stage) -> bool:
    """Whether a reduction adds up floats."""
    return isinstance(stage.value, tirx.Add) and stage.is_plain and str(stage.buffer.dtype).startswith("float")


def parts_along(stage: Stage, wanted: int) -> dict[int, int]:
    """How many indices of some of a reduction's axes a part has, where there are to be about so many parts; fewer than
    half of the terms. One of each outer axis but the last."""
    lengths: dict[int, int] = {}
    for i, extent in enumerate(extents(stage.iters)):
        if extent == 1 or wanted < 2 or stage.iters[i].iter_type != tirx.IterVar.CommReduce:
            continue
        about = -(-extent // wanted)
        whole = common.divisor(extent, 1, about) or 1
        lengths[i] = whole if 2 * whole > about else about
        wanted = -(-wanted // extent) if about == 1 else 1
    return lengths


def in_parts(stage: Stage, lengths: Mapping[int, int]) -> list[Stage]:
    """A reduction as those of its parts, which have so many indices of some axes, and the one that combines the parts'
    results. What is left of the last of these axes behind the whole parts is reduced by a second stage."""
    sizes = extents(stage.iters)
    *outer, last = lengths
    counts = [sizes[i] // lengths[i] for i in outer]
    whole, left = divmod(sizes[last], lengths[last])
    own_parts, total = of_parts(stage, math.prod(counts) * (whole + (left > 0)))

    def parts(first: int, count: int, length: int) -> Stage:
        """Some parts along the last axis."""
        own = {**lengths, last: length}
        number = iterator("part", stage.iters[0], math.prod(counts) * count, tirx.IterVar.DataPar)
        wide = ((i, v) for i, v in enumerate(stage.iters) if own.get(i) != 1)
        iters = {i: iterator(v.var.name, v, own.get(i, sizes[i]), v.iter_type) for i, v in wide}
        values: dict[Any, Expr] = {stage.iters[i].var: v.var for i, v in iters.items()}
        for i, at in zip(lengths, unravelled(number.var, [*counts, count]), strict=True):
            start = (at + (first if i == last else 0)) * lengths[i]
            values[stage.iters[i].var] = start + values.get(stage.iters[i].var, 0)
        made = replace(stage, name=own_parts.name, iters=(number, *iters.values()), buffer=own_parts)
        place = (number.var + math.prod(counts) * first, *(v.var for v in made.spatial[1:]))
        value = type(stage.value)(tirx.BufferLoad(own_parts, place), common.renamed(stage.value.b, values))
        return replace(made, indices=place, value=value)

    return [parts(0, whole, lengths[last]), *([parts(whole, 1, left)] if left else []), total]


def of_parts(stage: Stage, count: int) -> tuple[ir.Var, Stage]:
    """An array for the results of parts of a reduction, along its first axis, and the stage that combines them."""
    shape, own = (count, *extents(stage.spatial)), [v.var for v in stage.spatial]
    made = array(shape, stage.buffer.dtype, f"{stage.name}_parts")
    part = iterator("part", stage.iters[0], count, tirx.IterVar.CommReduce)
    value = type(stage.value)(stage.value.a, tirx.BufferLoad(made, [part.var, *own]))
    return made, replace(stage, iters=(*stage.spatial, part), value=value)


@dataclass(frozen=True)
class Sum:
    """A reduction that combines terms, as a function of places, whatever loops a rule makes of it. `after`: what is
    computed of each result at its own index; `stored`: the buffers, of these stages, that are kept."""

    stage: Stage
    after: tuple[Stage, ...]
    stored: set[Any]

    @property
    def dtype(self) -> str:
        """Of the results."""
        return str(self.stage.buffer.dtype)

    @property
    def results(self) -> tuple[int, ...]:
        """The shape of the results."""
        return extents(self.stage.spatial)

    @property
    def count(self) -> int:
        """Terms of each result."""
        return size(self.stage.reduced)

    @property
    def columns(self) -> bool:
        """Whether more of what is read lies side by side for neighbouring results than for neighbouring terms."""
        wide = [(i, v.iter_type) for i, v in enumerate(self.stage.iters) if int(v.dom.extent) > 1]
        spatial = [i for i, kind in wide if kind == tirx.IterVar.DataPar]
        terms = [i for i, kind in wide if kind != tirx.IterVar.DataPar]
        if not spatial or not terms:
            return bool(spatial)
        reads = [strides for strides in common.accesses_of(self.stage.block) if strides is not None]
        return sum(s[spatial[-1]] == 1 for s in reads) > sum(s[terms[-1]] == 1 for s in reads)

    def combine(self, a: Expr, b: Expr) -> Expr:
        """Of two partial sums one."""
        return type(self.stage.value)(a, b)

    def term(self, code: VectorCode, result: Sequence[Expr], number: Expr) -> Expr:
        """The term of a result and a number, at the lanes of a code."""
        own, terms = self.stage.spatial, self.stage.reduced
        places = [*result, *unravelled(number, extents(terms))]
        names = {v.var: at for v, at in zip([*own, *terms], places, strict=True)}
        return code.value(code.evaluate(self.stage.value.b, names, lambda load: None))

    def store(self, code: VectorCode, result: Sequence[Expr], total: Expr) -> None:
        """Adds what is done with a result to a code."""
        code.compute([self.stage, *self.after], result, {self.stage.buffer: total}, self.stored)


def sum_of(stage: Stage, after: Sequence[Stage], stages: Sequence[Stage], results: set[Any]) -> Sum:
    """A stage of a function as its sum; `after`: what is done with each result."""
    return Sum(stage, tuple(after), kept([stage, *after], stages, results))


def parts_of(whole: Sum, parts: int) -> tuple[Sum, Sum]:
    """The sums of the parts of a sum, whose number is the first index of each result, and that of these."""
    sums, total = of_parts(whole.stage, parts)
    number = iterator("part", whole.stage.iters[0], parts, tirx.IterVar.DataPar)
    own = (number.var, *(v.var for v in whole.stage.spatial))
    part = replace(whole.stage, iters=(number, *whole.stage.iters), buffer=sums, indices=own)
    return Sum(part, (), {sums}), replace(whole, stage=total)


def epilogue(stage: Stage, later: Sequence[Stage]) -> list[Stage]:
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


class Levels:
    """Loops over a sum's terms, outermost first, the last axis in steps of a width. After so many additions the sums
    are added to those of the next level, after LEVEL times as many these to the third's; 0 for one level."""

    def __init__(self, extents: Sequence[int], width: int, additions: int, dtype: str = "int32") -> None:
        self.outer, self.inner = [*extents[:-1]], extents[-1]
        self.width: int = width
        self.dtype: str = dtype
        steps = -(-self.inner // width)
        self.by_row: bool = 2 * steps <= additions  # short rows are counted, else steps along them
        self.steps: int = 1 if self.by_row else steps
        rows = additions // max(steps, 1)
        self.every: int = 1 << rows.bit_length() - 1 if self.by_row and rows else additions  # whose rest is soon found
        self.count: int = 1  # of levels
        while additions and self.every * LEVEL ** (self.count - 1) < self.steps * math.prod(self.outer):
            self.count += 1

    def nest(self, body: Callable[[list[Expr], int], tirx.Stmt], moved: Callable[[int], list[tirx.Stmt]]) -> tirx.Stmt:
        """`body` of the place and width of each step; `moved`, of a level, adds its sums to the next."""

        def behind(steps: Expr, level: int = 0) -> list[tirx.Stmt]:
            """The moves from level to level that are due behind so many steps."""
            if level == self.count - 1:
                return []
            code = sequence([*moved(level), *behind(steps, level + 1)])
            return [tirx.IfThenElse(tirx.floormod(steps, self.every * LEVEL**level) == 0, code, None)]

        def over(index: list[Expr], number: Expr) -> tirx.Stmt:
            """The loops within an index of the outer axes, which has a number."""
            if (axis := len(index)) < len(self.outer):
                extent = self.outer[axis]
                return loop(extent, lambda i: over([*index, i], number * extent + i), dtype=self.dtype)

            def step(start: Expr, many: int) -> tirx.Stmt:
                done = number * self.steps + tirx.floordiv(start, self.width) + 1
                return sequence([body([*index, start], many), *([] if self.by_row else behind(done))])

            row = in_steps(self.inner, self.width, step, self.dtype)
            return sequence([row, *(behind(number + 1) if self.by_row else [])])

        return sequence([over([], tirx.IntImm(self.dtype, 0)), *(x for i in range(self.count - 1) for x in moved(i))])


class Accumulators:
    """So many accumulators side by side in an array for each level of a sum, of which the last one holds the result."""

    def __init__(self, stage: Stage, width: int, levels: int, lanes: int, dtype: str = "int32") -> None:
        """`lanes`: of a vector. `dtype`: of an index."""
        self.stage: Stage = stage
        self.width: int = width
        self.lanes: int = lanes
        self.dtype: str = dtype
        name, own = stage.name, str(stage.buffer.dtype)
        self.arrays: list[tirx.Buffer] = [
            tirx.decl_buffer((width,), own, name, data_alignment=4) for _ in range(levels)
        ]

    def _each(self, code: Callable[[Expr], tirx.Stmt]) -> tirx.Stmt:
        """The code for each accumulator, along vectors; as sums are added to, if registers hold them."""
        most = common.MAX_VECTORS * self.lanes
        width, kind = (self.lanes, UNROLLED) if self.width <= most else (most, SERIAL)
        return in_steps(self.width, width, lambda at, n: lanes(n, lambda i: code(at + i), self.dtype), self.dtype, kind)

    def before(self) -> list[tirx.Stmt]:
        """Allocates and clears them."""
        return [*map(tirx.AllocBuffer, self.arrays), *map(self._cleared, range(len(self.arrays)))]

    def _cleared(self, level: int) -> tirx.Stmt:
        return self._each(lambda at: tirx.BufferStore(self.arrays[level], self.stage.init, [at]))

    def moved(self, level: int) -> list[tirx.Stmt]:
        """Adds those of a level to those of the next, and clears them."""
        below, own = self.arrays[level : level + 2]
        return [self._each(lambda at: self._combined(own, at, below, at)), self._cleared(level)]

    def _combined(self, to: ir.Var, at: Expr, array: ir.Var, place: Expr) -> tirx.Stmt:
        both = type(self.stage.value)(tirx.BufferLoad(to, [at]), tirx.BufferLoad(array, [place]))
        return tirx.BufferStore(to, both, [at])

    def _folded(self, half: int, at: Expr) -> tirx.Stmt:
        """Adds the accumulator half the width further on."""
        return self._combined(self.arrays[-1], at, self.arrays[-1], at + half)

    def total(self) -> tuple[list[tirx.Stmt], Expr]:
        """The sum of all accumulators, by halves: its code, and the value."""
        code, width = list[tirx.Stmt](), self.width
        while width > 1:
            half = 1 << (width - 1).bit_length() - 1
            code.append(lanes(width - half, partial(self._folded, half), self.dtype))
            width = half
        return code, tirx.BufferLoad(self.arrays[-1], [0])

    def results(self, store: Callable[[Expr, Expr], tirx.Stmt]) -> tirx.Stmt:
        """Stores each by itself: `store`, of its place and its value."""
        return self._each(lambda at: store(at, tirx.BufferLoad(self.arrays[-1], [at])))
