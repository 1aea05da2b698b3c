"""Long sums in blocks, the blocks' sums in blocks again, so that rounding grows with the logarithm of the length.

Up to 512 rows are added to their columns' sums one after another, which gives NumPy's bits; more in blocks of rows.

n equal terms added one after another in float32 are off by up to n / 8 units in the last place; a sum of ones stops at
2^24. With blocks of some 128 terms at each level the error stays below 4 log2(n) units. The blocks depend on the shape
and the vector width alone, so the number of threads does not change a result.

See Higham, "The accuracy of floating point summation" (1993), on blocked and pairwise sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import ir, s_tir, tirx
from tvm.s_tir.analysis import get_sblock_access_region

from . import common
from .stages import Expr, Stage, buffers, extents, read_stages, size, with_nests
from .target import Machine

TERMS = 128  # added in turn to one accumulator, about; a sum of up to twice as many is not cut
IN_ORDER = 512  # rows whose sum down the columns is made row after row, as NumPy makes it: the bits are the same


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


def _is_long(stage: Stage, machine: Machine | None) -> bool:
    value = stage.value
    if not stage.reduced or not isinstance(value, tirx.Add) or not str(value.ty).startswith("float"):
        return False
    own = isinstance(value.a, ir.TensorLoad) and value.a.source.same_as(stage.buffer)
    return own and size(stage.reduced) > 2 * _block_terms(stage.block, machine)[0]


def _block_terms(block: s_tir.SBlock, machine: Machine | None) -> tuple[int, bool]:
    """How many terms of a sum are a block, and whether neighbouring results are computed together (columns)."""
    iters, found = block.iter_vars, common.accesses_of(block)
    wide = {i: int(v.dom.extent) for i, v in enumerate(iters) if int(v.dom.extent) > 1}
    results = [i for i in wide if iters[i].iter_type == tirx.IterVar.DataPar]
    terms = {i: extent for i, extent in wide.items() if i not in results}

    def runs_along(axis: int) -> bool:
        return all(a.strides is not None and a.strides[axis] in (0, 1) for a in found)

    if results and runs_along(results[-1]):
        return IN_ORDER // 2, True  # a sum of up to twice as many is not cut
    if not terms or not runs_along(max(terms)):
        return TERMS, False
    row = math.prod(terms[i] for i in common.contiguous(terms, found)[-1])
    width = common.row_width(row, math.prod(terms.values()), _lanes(block, machine))
    return TERMS * max(width // 2, 1), False  # a vector's sums are added up besides


def _lanes(block: s_tir.SBlock, machine: Machine | None) -> int:
    return 1 if machine is None else machine.lanes(block.writes[0].source.dtype)


@dataclass(frozen=True)
class _Sum:
    """The sum of `term`, of a place among the results and one among the terms, for all places of the results."""

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

        whole = _Sum(
            stage.name,
            extents(stage.spatial),
            extents(stage.reduced),
            lambda result, term: copy(stage.value.b, [*result, *term]),
        )
        if parts is not None:
            rows = (int(parts.shape[0]),)
            whole = replace(whole, terms=rows, term=lambda r, term: tirx.BufferLoad(parts, [*term, r[-1]]))
        self._store(whole, stage.buffer, lambda result: [copy(i, result) for i in stage.indices], stage.init)

    def _store(
        self, whole: _Sum, buffer: ir.Var, place: Callable[[Sequence[Expr]], list[Expr]], init: Expr
    ) -> None:
        """Adds the nests that store a sum."""
        nest, block = _nest(whole, buffer, place, init)
        most, columns = _block_terms(block, self.machine)
        dtype = str(buffer.dtype)
        if math.prod(whole.terms) <= 2 * most:
            self.nests.append(nest)
            return
        axis, inner = len(whole.terms) - 1, 1
        while inner * whole.terms[axis] <= most:
            inner *= whole.terms[axis]
            axis -= 1
        outer, extent, within = whole.terms[:axis], whole.terms[axis], whole.terms[axis + 1 :]
        length = _length(extent, max(most // inner, 1), 1 if within else _lanes(block, self.machine))
        count, rest = divmod(extent, length)
        lead = axis + 1

        def of_block(place: Sequence[Expr], term: Sequence[Expr]) -> Expr:
            number, result = (place[:lead], place[lead:]) if columns else (place[-lead:], place[:-lead])
            return whole.term(result, [*number[:-1], number[-1] * length + term[0], *term[1:]])

        def of_rest(result: Sequence[Expr], term: Sequence[Expr]) -> Expr:
            return whole.term(result, [*term[:axis], count * length + term[axis], *term[axis + 1 :]])

        shape = (*outer, count, *whole.results) if columns else (*whole.results, *outer, count)
        sums = self._stored(_Sum(f"{whole.name}_blocks", shape, (length, *within), of_block), dtype)
        total = _Sum(
            whole.name,
            whole.results,
            (*outer, count),
            lambda result, term: sums([*term, *result] if columns else [*result, *term]),
        )
        if not rest:
            self._store(total, buffer, place, init)
            return
        parts = [
            self._stored(total, dtype),
            self._stored(_Sum(f"{whole.name}_rest", whole.results, (*outer, rest, *within), of_rest), dtype),
        ]
        both = _Sum(whole.name, whole.results, (), lambda result, _: parts[0](result) + parts[1](result))
        self.nests.append(_nest(both, buffer, place, init)[0])

    def _stored(self, whole: _Sum, dtype: str) -> Callable[[Sequence[Expr]], Expr]:
        """Adds the nests that store a sum in an array of its own; the result reads it."""
        buffer = tirx.decl_buffer(whole.results, dtype, whole.name, data_alignment=4, layout=None)
        self.arrays.append(buffer)
        self._store(whole, buffer, list, tirx.const(0, dtype))
        return lambda place: tirx.BufferLoad(buffer, list(place))


def _length(extent: int, most: int, lanes: int) -> int:
    """The length of a block: about `most`, a divisor of the extent where there is one, best one of whole vectors."""
    near = sorted(range(max(most // 2, 1), min(2 * most, extent) + 1), key=lambda n: abs(math.log(n / most)))
    whole = (n for n in near if extent % n == 0 and n % lanes == 0)
    return next(whole, None) or next((n for n in near if extent % n == 0), None) or min(most, extent)


def _nest(
    whole: _Sum, buffer: ir.Var, place: Callable[[Sequence[Expr]], list[Expr]], init: Expr
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
        value, first = tirx.BufferLoad(buffer, at) + value, tirx.BufferStore(buffer, init, at)
    store = tirx.BufferStore(buffer, value, at)
    used = {x: x for x in buffers(store)}
    reads, writes, _ = get_sblock_access_region(s_tir.SBlock(iters, [], [], whole.name, store, first), used)
    reads = [region for region in reads if not (term and region.source.same_as(buffer))]
    block = s_tir.SBlock(iters, reads, writes, whole.name, store, first)
    nest: Any = s_tir.SBlockRealize(loops, True, block)
    for variable, count in reversed(list(zip(loops, counts, strict=True))):
        nest = tirx.For(variable, 0, count, tirx.ForKind.SERIAL, nest)
    return nest, block
