"""Long sums in blocks, the blocks' sums in blocks again, so that rounding grows with the logarithm of the length; and
maxima, minima and sums of integers in parts for threads, where there are few of them.

n equal terms added one after another in float32 are off by up to n / 8 units in the last place; a sum of ones stops at
2^24. With blocks of some 128 terms at each level the error stays below 4 log2(n) units. Up to 512 rows are added to the
sums of their columns one after another, as NumPy does; more are added in blocks of some 256. The blocks depend on the
shape and the vector width alone, so the number of threads does not change a result.

See Higham, "The accuracy of floating point summation" (1993), on blocked and pairwise sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import ir, s_tir, tirx
from tvm.s_tir.analysis import get_sblock_access_region

from ..compute import IN_ORDER
from . import common
from .row_stages import is_plain
from .stages import Expr, Stage, buffers, extents, read_stages, size, with_nests
from .target import Machine

LEAST = 4 * common.PARALLEL_WORK  # terms in all: fewer are combined while threads start
PARTS = 64  # results, or vectors of them, that are enough for threads
TERMS = 128  # added in turn to one accumulator, about; a sum of up to twice as many is not cut


def blocked(func: tirx.PrimFunc, machine: Machine | None) -> tirx.PrimFunc:
    """The function with its long sums in blocks. `machine`: whose vectors it uses, if any."""
    stages = read_stages(func)
    if stages is None or not any(_is_long(stage, machine) for stage in stages):
        return func
    return with_nests(func, *nests(stages, machine))


def nests(
    stages: Sequence[Stage], machine: Machine | None, parts: Mapping[ir.Var, ir.Var] | None = None
) -> tuple[list[tirx.Stmt], list[ir.Var]]:
    """The stages' loop nests, long sums in blocks, and the arrays that hold the blocks' sums. `parts`: for the buffers
    of some sums an array that holds the sums of parts, row by row."""
    found = _Nests(machine)
    for stage in stages:
        if parts and stage.buffer in parts:
            found.add(stage, parts[stage.buffer])
        elif _is_long(stage, machine):
            found.add(stage)
        else:
            found.nests.append(stage.loops)
    return found.nests, found.arrays


def is_exact(stage: Stage) -> bool:
    """Whether a reduction has the same result in any order: a maximum, a minimum or a sum of integers."""
    return is_plain(stage) and not isinstance(stage.value, tirx.Mul) and not _is_float_sum(stage.value)


def _is_float_sum(value: Expr) -> bool:
    return isinstance(value, tirx.Add) and str(value.ty).startswith("float")


def _is_long(stage: Stage, machine: Machine | None) -> bool:
    """Whether a reduction is cut."""
    if not stage.reduced or not is_plain(stage) or isinstance(stage.value, tirx.Mul):
        return False
    return size(stage.reduced) > _cut(stage.block, machine).most


@dataclass(frozen=True)
class _Cut:
    """How a reduction is cut into blocks: about how many terms a block has, and how many at most, best a multiple of
    `unit`. A reduction of no more than `most` is not cut. `columns`: neighbouring results are computed together."""

    about: int
    most: int
    unit: int
    columns: bool


def _cut(block: s_tir.SBlock, machine: Machine | None) -> _Cut:
    """How a reduction is cut: sums of floats as accuracy needs it, all else where its results are few for threads."""
    iters, found = block.iter_vars, common.accesses_of(block)
    wide = {i: int(v.dom.extent) for i, v in enumerate(iters) if int(v.dom.extent) > 1}
    results = [i for i in wide if iters[i].iter_type == tirx.IterVar.DataPar]
    terms = {i: extent for i, extent in wide.items() if i not in results}
    lanes = 1 if machine is None else machine.lanes(block.writes[0].source.dtype)

    def runs_along(axis: int) -> bool:
        return all(a.strides is not None and a.strides[axis] in (0, 1) for a in found)

    columns = bool(results) and runs_along(results[-1])
    if not _is_float_sum(block.body.value):
        length, unit = math.prod(terms.values()), 1 if columns else lanes * common.ACCUMULATORS
        together = math.prod(wide[i] for i in results)  # what threads share out without parts
        if columns:
            width = wide[results[-1]]
            together = max(together // lanes if width % lanes == 0 else max(together // width, width // lanes), 1)
        parts = -(-PARTS // together)
        if parts > 1 and math.prod(wide.values()) >= LEAST:
            length = max(length // parts // unit, 1) * unit
        return _Cut(length, length, unit, columns)
    if columns:
        return _Cut(IN_ORDER // 2, IN_ORDER, lanes, True)
    if not terms or not runs_along(max(terms)):
        return _Cut(TERMS, 2 * TERMS, lanes, False)
    row = math.prod(terms[i] for i in common.contiguous(terms, found)[-1])
    width = common.row_width(row, math.prod(terms.values()), lanes)
    about = TERMS * max(width // 2, 1)  # a vector's sums are added up besides
    return _Cut(about, 2 * about, lanes, False)


@dataclass(frozen=True)
class Sum:
    """The sum of `term`, of a place among the results and one among the terms, for all places of the results; or what
    `combine` makes of them, from `init` on."""

    combine: Callable[[Expr, Expr], Expr]
    init: Expr
    name: str
    results: tuple[int, ...]
    terms: tuple[int, ...]
    term: Callable[[Sequence[Expr], Sequence[Expr]], Expr]


class _Nests:
    """Loop nests, in order, and the arrays that they use between them."""

    def __init__(self, machine: Machine | None) -> None:
        self.machine = machine
        self.nests: list[tirx.Stmt] = []
        self.arrays: list[ir.Var] = []

    def add(self, stage: Stage, parts: ir.Var | None = None) -> None:
        """Adds the nests of a sum that may be long, of its terms or of the rows of `parts`."""
        results, terms = [v.var for v in stage.spatial], [v.var for v in stage.reduced]

        def copy(code: Expr, places: Sequence[Expr]) -> Expr:
            return common.renamed(code, dict(zip([*results, *terms], places, strict=False)))

        whole = Sum(
            type(stage.value),
            stage.init,
            stage.name,
            extents(stage.spatial),
            extents(stage.reduced),
            lambda result, term: copy(stage.value.b, [*result, *term]),
        )
        if parts is not None:
            rows = (int(parts.shape[0]),)
            whole = replace(whole, terms=rows, term=lambda r, term: tirx.BufferLoad(parts, [*term, r[-1]]))
        self._store(whole, stage.buffer, lambda result: [copy(i, result) for i in stage.indices])

    def _store(self, whole: Sum, buffer: ir.Var, place: Callable[[Sequence[Expr]], list[Expr]]) -> None:
        """Adds the nests that store a sum."""
        nest, block = nest_of(whole, buffer, place)
        cut, dtype = _cut(block, self.machine), str(buffer.dtype)
        if math.prod(whole.terms) <= cut.most:
            self.nests.append(nest)
            return
        axis, inner = len(whole.terms) - 1, 1
        while inner * whole.terms[axis] <= cut.about:
            inner *= whole.terms[axis]
            axis -= 1
        outer, extent, within = whole.terms[:axis], whole.terms[axis], whole.terms[axis + 1 :]
        length = _length(extent, max(cut.about // inner, 1), max(cut.most // inner, 1), 1 if within else cut.unit)
        count, rest = divmod(extent, length)
        lead = axis + 1

        def of_block(place: Sequence[Expr], term: Sequence[Expr]) -> Expr:
            number, result = (place[:lead], place[lead:]) if cut.columns else (place[-lead:], place[:-lead])
            return whole.term(result, [*number[:-1], number[-1] * length + term[0], *term[1:]])

        def of_rest(result: Sequence[Expr], term: Sequence[Expr]) -> Expr:
            return whole.term(result, [*term[:axis], count * length + term[axis], *term[axis + 1 :]])

        shape = (*outer, count, *whole.results) if cut.columns else (*whole.results, *outer, count)
        blocks = replace(
            whole, name=f"{whole.name}_blocks", results=shape, terms=(length, *within), term=of_block
        )
        sums = self._stored(blocks, dtype)
        total = replace(
            whole,
            terms=(*outer, count),
            term=lambda result, term: sums([*term, *result] if cut.columns else [*result, *term]),
        )
        if not rest:
            self._store(total, buffer, place)
            return
        last = replace(whole, name=f"{whole.name}_rest", terms=(*outer, rest, *within), term=of_rest)
        parts = [self._stored(total, dtype), self._stored(last, dtype)]
        both = replace(whole, terms=(), term=lambda result, _: whole.combine(*(part(result) for part in parts)))
        self.nests.append(nest_of(both, buffer, place)[0])

    def _stored(self, whole: Sum, dtype: str) -> Callable[[Sequence[Expr]], Expr]:
        """Adds the nests that store a sum in an array of its own; the result reads it."""
        buffer = tirx.decl_buffer(whole.results, dtype, whole.name, data_alignment=4, layout=None)
        self.arrays.append(buffer)
        self._store(whole, buffer, list)
        return lambda place: tirx.BufferLoad(buffer, list(place))


def _length(extent: int, about: int, most: int, unit: int) -> int:
    """The length of a block: near `about`, a divisor of the extent where there is one, best a multiple of `unit`."""
    near: Sequence[int] = range(max(about // 2, 1), min(most, extent) + 1)
    near = near[::-1] if most == about else sorted(near, key=lambda n: abs(math.log(n / about)))
    whole = (n for n in near if extent % n == 0 and n % unit == 0)
    return next(whole, None) or next((n for n in near if extent % n == 0), None) or min(about, extent)


def nest_of(
    whole: Sum, buffer: ir.Var, place: Callable[[Sequence[Expr]], list[Expr]]
) -> tuple[tirx.Stmt, s_tir.SBlock]:
    """The loops that store a sum as it is, and their block."""
    kinds = [tirx.IterVar.DataPar] * len(whole.results) + [tirx.IterVar.CommReduce] * len(whole.terms)
    counts = (*whole.results, *whole.terms)
    own = [tirx.Var(f"v{i}", "int32") for i in range(len(counts))]
    loops = [tirx.Var(f"i{i}", "int32") for i in range(len(counts))]
    iters = [tirx.IterVar(ir.Range(0, n), v, kind) for n, v, kind in zip(counts, own, kinds, strict=True)]
    result, term = own[: len(whole.results)], own[len(whole.results) :]
    at, value, first = place(result), whole.term(result, term), None
    if term:
        value = whole.combine(tirx.BufferLoad(buffer, at), value)
        first = tirx.BufferStore(buffer, whole.init, at)
    store = tirx.BufferStore(buffer, value, at)
    used = {x: x for x in buffers(store)}
    reads, writes, _ = get_sblock_access_region(s_tir.SBlock(iters, [], [], whole.name, store, first), used)
    reads = [region for region in reads if not (term and region.source.same_as(buffer))]
    block = s_tir.SBlock(iters, reads, writes, whole.name, store, first)
    nest: Any = s_tir.SBlockRealize(loops, True, block)
    for variable, count in reversed(list(zip(loops, counts, strict=True))):
        nest = tirx.For(variable, 0, count, tirx.ForKind.SERIAL, nest)
    return nest, block
