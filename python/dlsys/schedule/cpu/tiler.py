"""The rule for sums of products: matrices, batches, convolutions, their gradients, a matrix times a vector.

`nest` finds how memory is stepped through, `plan` lists the tiles that registers allow, `cost` chooses one, `shares`
writes the loops around the tiles, `packing` and `tile` what they do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import tvm_ffi
from tvm import ir, sym, tirx
from tvm.sym.iter_affine_map import IterMapLevel

from .. import common
from ..common import renamed
from ..intrinsics import term_of
from ..stages import Stage, extents, read_stages, size
from ..sums import LEVEL, in_parts
from ..target import Machine, Rule
from . import reduction
from .cost import choose, parts, wanted
from .dots import grouped
from .nest import Nest
from .plan import Plan
from .shares import Loops

FINER = 4  # times as many parts of a sum as needed are looked at, for all to be alike


def schedule(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc | None:
    """The schedule of a function with one sum of products and elementwise stages around it; None for others."""
    if (found := sum_of(func, grouped(read_stages(func) or [], machine))) is None:
        return None
    before, stage, result = found
    made = {one.buffer: one for one in before}
    if (planned := _planned(stage, machine, made)) is None:
        return None
    after = [] if result is None else [result]
    if lengths := _parts_of(*planned):
        stage, total = in_parts(stage, lengths)
        after, result = [total, *after], None
        planned = _planned(stage, machine, made)
        assert planned is not None
    nest, plan = planned
    if plan.along < nest.results:
        nest.order_terms(plan.groups)
    return reduction.finish(func, machine, [*Loops(nest, plan, result, made).nests(), *after[result is not None :]])


def _planned(stage: Stage, machine: Machine, made: Mapping[Any, Stage]) -> tuple[Nest, Plan] | None:
    """A sum and its plan; None where it has none, and where every element of an operand is read once, row by row: that
    is a sum down columns."""
    nest = Nest(stage, machine)
    plan = choose(nest, made) if nest.is_linear else None
    if plan is None or (not plan.rows and plan.along < nest.results and nest.is_read_once):
        return None
    return nest, plan


def sum_of(func: tirx.PrimFunc, stages: Sequence[Stage]) -> tuple[Sequence[Stage], Stage, Stage | None] | None:
    """The stages before a function's one sum of products of arrays, the sum, and what is computed of each of its
    results, at the same index; None for other functions, and for several results."""
    sums = [i for i, stage in enumerate(stages) if stage.reduced]
    results = sum(stage.buffer in func.params for stage in stages)
    if len(sums) != 1 or results != 1 or size(stages[-1].spatial) != size(stages[sums[0]].spatial):
        return None
    number, last = sums[0], stages[-1]
    stage, before = stages[number], stages[:number]
    if not _is_product(stage) or 0 in extents(stage.iters) or str(stage.iters[0].var.ty) != "int32":
        return None
    if last.reduced:
        return before, stage, None
    result = _at_index_of(stage, last.with_made({one.buffer: one for one in stages[:-1] if not one.reduced}))
    return None if result is None else (before, stage, result)


def _is_product(stage: Stage) -> bool:
    """Whether a sum adds up products of two arrays, or what an instruction makes of them."""
    if not stage.is_plain or not isinstance(stage.value, tirx.Add):
        return False
    term = stage.value.b
    _, *factors = (None, term.a, term.b) if isinstance(term, tirx.Mul) else term_of(term) or (None,)
    return bool(factors) and all(isinstance(factor, ir.TensorLoad) for factor in factors)


def _at_index_of(total: Stage, result: Stage) -> Stage | None:
    """A stage that reads each element of another one once, with that one's indices; None for other stages."""
    reads = [load for load in result.loads() if load.source.same_as(total.buffer)]
    if not reads or not all(tvm_ffi.structural_equal(load, reads[0]) for load in reads):
        return None
    ranges = {v.var: ir.Range(0, v.dom.extent) for v in result.iters}
    found = sym.detect_iter_map(reads[0].indices, ranges, check_level=IterMapLevel.Bijective).indices
    if not found:
        return None
    iters = tuple(tirx.IterVar(v.dom, tirx.Var(v.var.name, v.var.ty), v.iter_type) for v in total.spatial)
    at, places = [v.var for v in iters], {v.var: tirx.IntImm(v.var.ty, 0) for v in result.iters}  # of one value
    places |= sym.inverse_affine_iter_map(found, at)
    own = tirx.BufferLoad(total.buffer, at)
    value = common.with_loads(result.value, lambda load: own if load.source.same_as(total.buffer) else None)
    value, *indices = (renamed(code, places) for code in (value, *result.indices))
    return replace(result, iters=iters, indices=tuple(indices), value=value)


def _parts_of(nest: Nest, plan: Plan) -> dict[int, int]:
    """How many indices of axes of a sum a part has, so that many threads have parts enough; none where it is not cut. A
    long sum of a small result, as the gradient of a few filters, is. Cut are the first axis, and where that is too
    short the second."""
    missing = -(-wanted(nest) // parts(nest, plan))
    iters = nest.whole.iters
    axes = [i for i, v in enumerate(iters) if v.iter_type == tirx.IterVar.CommReduce and int(v.dom.extent) > 1]
    if missing == 1 or not axes or nest.whole is not nest.stage:
        return {}
    first, *others = axes
    sizes = extents(iters)
    count = _least_divisor(sizes[first], missing if others else min(missing, sizes[first] // LEVEL))
    whole = count == sizes[first]
    rows = _least_divisor(sizes[others[0]], -(-missing // count)) if whole and others[:1] == [first + 1] else 1
    counts = {first: count, **({others[0]: rows} if rows > 1 else {})}
    return {axis: sizes[axis] // count for axis, count in counts.items()} if count * rows > 1 else {}


def _least_divisor(extent: int, least: int) -> int:
    """The least divisor of an extent, no less than that; all of a short extent, 1 where others lie far beyond."""
    near = range(max(least, 1), min(extent, FINER * least) + 1)
    return extent if extent <= least else next((d for d in near if extent % d == 0), 1)


RULE = Rule("contraction", "llvm", schedule, sums=True)
