"""Sums, maxima and the like, for both targets: how their terms are combined, and how they are cut in parts.

A sum in parts is a sum of each part, stored to an array between, and the sum of these: enough work for threads where
results are few. Where it is cut depends on shapes alone. (In levels, for accuracy: see `levels`.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import ir, tirx

from . import common
from .codegen import VectorCode, array, unravelled
from .stages import Expr, Stage, at_own_index, extents, kept, size

PARTS = 64  # results, or parts, that are enough for threads


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
        number = _axis("part", stage.iters[0], math.prod(counts) * count, tirx.IterVar.DataPar)
        iters = {
            i: _axis(v.var.name, v, own.get(i, sizes[i]), v.iter_type)
            for i, v in enumerate(stage.iters)
            if own.get(i) != 1
        }
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
    """An array for the results of so many parts of a reduction, a part along its first axis, and the stage that
    combines these."""
    shape, own = (count, *extents(stage.spatial)), [v.var for v in stage.spatial]
    made = array(shape, stage.buffer.dtype, f"{stage.name}_parts")
    part = _axis("part", stage.iters[0], count, tirx.IterVar.CommReduce)
    value = type(stage.value)(stage.value.a, tirx.BufferLoad(made, [part.var, *own]))
    return made, replace(stage, iters=(*stage.spatial, part), value=value)


def _axis(name: str, like: tirx.IterVar, extent: int, kind: int) -> tirx.IterVar:
    """An iterator of a new variable of the same dtype as another's."""
    dtype = like.var.ty
    return tirx.IterVar(ir.Range(tirx.IntImm(dtype, 0), tirx.IntImm(dtype, extent)), tirx.Var(name, dtype), kind)


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
    """A sum whose terms a rule cuts by itself: the sums of the parts, whose number is the first index of each result,
    and that of these."""
    sums, total = of_parts(whole.stage, parts)
    number = _axis("part", whole.stage.iters[0], parts, tirx.IterVar.DataPar)
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
