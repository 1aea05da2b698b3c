"""Sums, maxima and the like as functions of places, whatever loops a rule makes of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import ir, tirx

from . import common
from .codegen import VectorCode, unravelled
from .stages import Expr, Stage, at_own_index, extents, kept


@dataclass(frozen=True)
class Sum:
    """Sums of `count` terms each: `term` gives the one of a result and a number, at the lanes of a code.

    Attributes:
        stage: where it stands in the function; tells how terms are combined, and what an empty sum is.
        results: the shape of the results.
        columns: whether neighbouring results lie side by side in what is read, and neighbouring terms do not.
        dtypes: of what is read.
        store: adds what is done with a result to a code.
        exists: whether there is a term, of a result and a number; None where all are there.
    """

    stage: Stage
    results: tuple[int, ...]
    count: int
    columns: bool
    dtypes: tuple[str, ...]
    term: Callable[[VectorCode, list[Expr], Expr], Expr]
    store: Callable[[VectorCode, list[Expr], Expr], None]
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


def sum_of(stage: Stage, after: Sequence[Stage], stages: Sequence[Stage], results: set[Any]) -> Sum:
    """A stage as its sum; `after`: what is done with each result."""
    shape, terms = extents(stage.spatial), extents(stage.reduced)
    group = [stage, *after]
    stored = kept(group, stages, results)

    def term(code: VectorCode, result: list[Expr], number: Expr) -> Expr:
        places = [*result, *unravelled(number, terms)]
        names = {v.var: at for v, at in zip([*stage.spatial, *stage.reduced], places, strict=True)}
        return code.value(code.evaluate(stage.value.b, names, lambda load: None))

    def store(code: VectorCode, result: list[Expr], total: Expr) -> None:
        code.compute(group, result, {stage.buffer: total}, stored)

    dtypes = tuple(str(load.source.dtype) for load in stage.loads())
    return Sum(stage, shape, math.prod(terms), _in_columns(stage), dtypes, term, store)


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


def _in_columns(stage: Stage) -> bool:
    """Whether more of what is read lies side by side for neighbouring results than for neighbouring terms."""
    wide = [i for i, v in enumerate(stage.iters) if int(v.dom.extent) > 1]
    spatial = [i for i in wide if stage.iters[i].iter_type == tirx.IterVar.DataPar]
    terms = [i for i in wide if i not in spatial]
    if not spatial or not terms:
        return bool(spatial)
    reads = [a.strides for a in common.accesses_of(stage.block) if not a.is_write and a.strides is not None]
    return sum(s[spatial[-1]] == 1 for s in reads) > sum(s[terms[-1]] == 1 for s in reads)


def parts_of(whole: Sum, parts: int, length: int) -> tuple[Sum, Sum, ir.Var]:
    """A sum in parts of `length` terms each: the sums of the parts, whose number is the first index of each result; the
    sum of these; and the array that lies between."""
    array = tirx.decl_buffer((parts, *whole.results), whole.dtype, f"{whole.name}_parts", layout=None)

    def term(code: VectorCode, result: list[Expr], number: Expr) -> Expr:
        return whole.term(code, result[1:], result[0] * length + number)

    def exists(result: list[Expr], number: Expr) -> Expr:
        return result[0] * length + number < whole.count

    def keep(code: VectorCode, result: list[Expr], total: Expr) -> None:
        code.store(array, total, result)

    def part(code: VectorCode, result: list[Expr], number: Expr) -> Expr:
        return code.value(tirx.BufferLoad(array, [number, *result]))

    cut = None if parts * length == whole.count else exists
    first = replace(whole, results=(parts, *whole.results), count=length, term=term, store=keep, exists=cut)
    last = replace(whole, count=parts, columns=True, dtypes=(whole.dtype,), term=part)
    return first, last, array
