"""The rule for contractions: C[b, m, n] += A[b, m, k] * B[b, k, n], with A and B read through index expressions.

Which loops are m, n and k follows from who reads what (`products`), the numbers from shape and machine (`tiles`), and
the loops are written by `product`. Of a convolution's operands one is read through windows. Where tiles fit into the
rows of the images it is A: its elements are broadcast from the padded images where they lie, and vectors run over the
filters. Else it is B, and packing it makes the columns of im2col.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import tvm_ffi
from tvm import ir, sym, tirx
from tvm.sym.iter_affine_map import IterMapLevel
from tvm.tirx import PrimFunc

from ...devices.panels import LATENCY
from .. import common
from ..products import Operand, Product, product_of
from ..stages import Stage, in_place, read_stages, size
from ..sums import LEVEL, in_parts
from ..target import Machine, Rule
from . import reduction
from .dots import grouped
from .images import Images
from .product import Loops
from .tiles import FINER, LIES, PACKED, WINDOWS, Tile, choose, wanted


@dataclass(frozen=True)
class Contraction:
    """A product of two arrays, and the stages of its function before and after it: of these the first may be of the
    product's results, each at its own index."""

    product: Product
    before: Sequence[Stage]
    after: Sequence[Stage]

    @cached_property
    def made(self) -> dict[ir.Var, Stage]:
        """The stages before it, by their buffers."""
        return {one.buffer: one for one in self.before}

    def in_parts(self, parts: Mapping[int, int]) -> Contraction:
        """That of parts of its terms, which are added up after it. `parts`: how many indices of axes a part has."""
        first, *others = in_parts(self.product.stage, parts)
        of_parts = _of_arrays(first)
        assert of_parts is not None
        return Contraction(of_parts, self.before, [*others, *self.after])

    def fused(
        self, p: Product, reader: Operand | None, whole: Operand | None = None
    ) -> tuple[Product, Images | None, list[Stage]]:
        """The product, as it is or transposed, with what is computed before it in place. `reader`: the factor whose
        stage the product makes as images, which are returned; `whole`: the one whose stage, returned, is made before.
        """
        images, before = None, list[Stage]()
        values = {one: in_place(one.value, self.made) for one in (p.a, p.b)}
        for operand in (reader, whole):
            one = self.made.get(operand.value.source) if operand is not None else None
            if operand is None or one is None or len(one.iters) < 2:
                continue
            values[operand], one = operand.value, replace(one, value=in_place(one.value, self.made))
            if operand is reader:
                images = Images(one, one.buffer, {})
            elif images is None or not images.buffer.same_as(one.buffer):  # else both factors read the images
                before.append(one)
        a, b = (replace(one, value=values[one]) for one in (p.a, p.b))
        return replace(p, a=a, b=b), images, before

    def written(self, p: Product, tile: Tile, machine: Machine) -> list[Stage | tirx.Stmt]:
        """The loops of the product, as it is or transposed, and the others."""
        by_batch = p.batch and tile.b in (LIES, PACKED, WINDOWS)
        reader = p.a if tile.a == WINDOWS else p.b if by_batch else None
        p, images, before = self.fused(p, reader, p.a if tile.a == LIES else None)
        result = next((one for one in self.after[:1] if not one.reduced), None)
        nests = Loops(p, images, result, tile, machine).nests()
        return [*before, *nests, *self.after[result is not None :]]


def schedule(func: PrimFunc, machine: Machine) -> tirx.PrimFunc | None:
    """The schedule of a function with one contraction and elementwise stages around it; None for others."""
    if (found := contraction_of(func, grouped(read_stages(func) or [], machine))) is None:
        return None
    p = found.product
    if min(p.extents) < 1 or min(map(p.size, (p.m, p.n, p.k))) < 2:
        return None
    q, tile = choose(p, machine, found.made)
    if parts := parts_of(p, missing_parts(q, machine, tile)):
        found = found.in_parts(parts)
        q, tile = choose(found.product, machine, found.made)
    return reduction.finish(func, machine, found.written(q, tile, machine))


def contraction_of(func: PrimFunc, stages: Sequence[Stage]) -> Contraction | None:
    """The contraction of a function with one sum and one result, each of whose elements is made of one of the sum's.
    None for others."""
    sums = [i for i, stage in enumerate(stages) if stage.reduced]
    results = sum(stage.buffer in func.params for stage in stages)
    if len(sums) != 1 or results != 1 or size(stages[-1].spatial) != size(stages[sums[0]].spatial):
        return None
    number, last = sums[0], stages[-1]
    if (p := _of_arrays(stages[number])) is None or last.reduced:
        return None if p is None else Contraction(p, stages[:number], [])
    result = _at_index_of(stages[number], last.with_made({one.buffer: one for one in stages[:-1] if not one.reduced}))
    return None if result is None else Contraction(p, stages[:number], [result])


def _of_arrays(stage: Stage) -> Product | None:
    """The stage as a product of two arrays as they are."""
    p = product_of(stage, in_runs=True)
    return p if p and all(isinstance(one.value, ir.TensorLoad) for one in (p.a, p.b)) else None


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
    value, *indices = (common.renamed(code, places) for code in (value, *result.indices))
    return replace(result, iters=iters, indices=tuple(indices), value=value)


def missing_parts(p: Product, machine: Machine, tile: Tile | None = None) -> int:
    """How many times as many parts a product should have as its tile gives, and as there are tiles of one vector: a
    long sum of a small result, as the gradient of a few filters, has too few for many threads, and is cut in parts."""
    rows, columns = int(LATENCY / machine.fma), machine.lanes(p.dtype)
    good = p.size(p.batch) * -(-p.size(p.m) // rows) * -(-p.size(p.n) // columns)
    return -(-wanted(machine, p) // min(good, tile.parts(p) if tile is not None else good))


def parts_of(p: Product, missing: int) -> dict[int, int]:
    """How many indices of axes of a product's sum a part has, to have about so many times as many parts; none where it
    is not cut, as where an operand lies in panels. Cut are the first axis, and where that is too short the second."""
    if missing == 1 or p.a.panel or p.b.panel:
        return {}
    first, *others = (axis for axis in p.k if p.extents[axis] > 1)
    parts = least_divisor(p.extents[first], missing if others else min(missing, p.extents[first] // LEVEL))
    whole = parts == p.extents[first]
    rows = least_divisor(p.extents[others[0]], -(-missing // parts)) if whole and others[:1] == [first + 1] else 1
    counts = {first: parts, **({others[0]: rows} if rows > 1 else {})}
    return {axis: p.extents[axis] // count for axis, count in counts.items()} if parts * rows > 1 else {}


def least_divisor(extent: int, least: int) -> int:
    """The least divisor of an extent, no less than that; all of a short extent, 1 where others lie far beyond."""
    near = range(max(least, 1), min(extent, FINER * least) + 1)
    return extent if extent <= least else next((d for d in near if extent % d == 0), 1)


RULE = Rule("contraction", "llvm", schedule, sums=True)
