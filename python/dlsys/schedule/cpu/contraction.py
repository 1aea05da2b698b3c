"""The rule for contractions: C[b, m, n] += A[b, m, k] * B[b, k, n], with A and B read through index expressions.

Matmul in its four transposes, conv2d and both its gradients are contractions; which loops are m, n and k follows
from who reads what (`products`), the numbers from shape and machine (`tiles`), and the loops are written by `product`.

Of a convolution's operands one is read through windows, several times each element. Where tiles fit into the rows of
the images it is A: its elements are broadcast from the padded images where they lie, vectors run over the filters, and
the tile is stored along its rows. Else it is B, and packing it makes the columns of im2col.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tvm import ir, sym, tirx
from tvm.tirx import PrimFunc

from ...device.panels import LATENCY
from .. import common
from ..products import Operand, Product, product_of
from ..stages import Stage, in_place, read_stages, size
from ..sums import in_parts
from ..target import Machine, Rule
from . import padding, reduction
from .padding import Images
from .product import Loops
from .tile_code import Fused
from .tiles import FINER, LIES, PACKED, WINDOWS, Tile, choose, wanted

LEAST_TERMS = 64  # of a part of a sum over one axis


def schedule(func: PrimFunc, machine: Machine) -> tirx.PrimFunc | None:
    """The schedule of a function with one contraction and elementwise stages around it; None for others."""
    found = one_sum(func)
    if found is None or min(found[0].extents) < 1 or min(map(found[0].size, (found[0].m, found[0].n, found[0].k))) < 2:
        return None
    p, stages, number = found
    q, tile = _chosen(p, stages, number, machine)
    stages, p, is_cut = ending(stages, number, p, missing_parts(q, machine, tile))
    if is_cut:
        q, tile = _chosen(p, stages, number, machine)
    return reduction.finish(func, machine, written(q, stages, number, tile, machine, func.params))


def one_sum(func: PrimFunc) -> tuple[Product, Sequence[Stage], int] | None:
    """The product of two arrays of a function with that one sum and one result, which has as many elements; its stages,
    and the number of the sum. None for others, as a row of a product."""
    stages = read_stages(func) or []
    sums = [i for i, stage in enumerate(stages) if stage.reduced]
    results = sum(stage.buffer in func.params for stage in stages)
    if len(sums) != 1 or results != 1 or size(stages[-1].spatial) != size(stages[sums[0]].spatial):
        return None
    p = _of_arrays(stages[sums[0]])
    return None if p is None else (p, stages, sums[0])


def _of_arrays(stage: Stage) -> Product | None:
    """The stage as a product of two arrays as they are."""
    p = product_of(stage, in_runs=True)
    return p if p and all(isinstance(one.value, ir.TensorLoad) for one in (p.a, p.b)) else None


def ending(stages: Sequence[Stage], number: int, p: Product, missing: int) -> tuple[Sequence[Stage], Product, bool]:
    """The stages with one after their product, the product, and whether it is that of parts of its terms, which are
    then added up, as many as are missing."""
    if not (parts := parts_of(p, missing)):
        return with_one_result(stages, number), p, False
    stages = _as_one([*stages[:number], *in_parts(stages[number], parts), *stages[number + 1 :]], number + 2)
    of_parts = _of_arrays(stages[number])
    assert of_parts is not None
    return stages, of_parts, True


def missing_parts(p: Product, machine: Machine, tile: Tile | None = None) -> int:
    """How many times as many parts a product should have as its tile gives, and as there are tiles of one vector that
    keep the multiply-adds busy: a long sum of a small result, as the gradient of a few filters is, has too few for many
    threads, and is cut in sums of parts, which are added up."""
    rows, columns = int(LATENCY / machine.fma), machine.lanes(p.dtype)
    good = p.size(p.batch) * -(-p.size(p.m) // rows) * -(-p.size(p.n) // columns)
    return -(-wanted(machine, p) // min(good, tile.parts(p) if tile is not None else good))


def parts_of(p: Product, missing: int) -> dict[int, int]:
    """How many indices of axes of a product's sum a part has, to have about so many times as many parts; none where it
    is not cut, as where an operand lies in panels. Cut is the sum's first axis, in a gradient of filters the images,
    and where those are too few the second too, their rows."""
    if missing == 1 or p.a.panel or p.b.panel:
        return {}
    first, *others = (axis for axis in p.k if p.extents[axis] > 1)
    parts = least_divisor(p.extents[first], missing if others else min(missing, p.extents[first] // LEAST_TERMS))
    whole = parts == p.extents[first]
    rows = least_divisor(p.extents[others[0]], -(-missing // parts)) if whole and others[:1] == [first + 1] else 1
    counts = {first: parts, **({others[0]: rows} if rows > 1 else {})}
    return {axis: p.extents[axis] // count for axis, count in counts.items()} if parts * rows > 1 else {}


def least_divisor(extent: int, least: int) -> int:
    """The least divisor of an extent that is no less than that: all of a short extent, 1 where those that there are lie
    far beyond."""
    near = range(max(least, 1), min(extent, FINER * least) + 1)
    return extent if extent <= least else next((d for d in near if extent % d == 0), 1)


def with_one_result(stages: Sequence[Stage], number: int) -> Sequence[Stage]:
    """The stages, of which those after the sum are one, which reads each sum at an index of its own."""
    stages = _as_one(stages, number + 1)
    if len(stages) == number + 1 or _is_pointwise(stages[-1], stages[number]):
        return stages
    result, total = stages[-1], stages[number]  # which turns the sum's index around, as one that spreads phases
    read = next(load for load in result.loads() if load.source.same_as(total.buffer))
    ranges = {v.var: ir.Range(0, v.dom.extent) for v in result.iters}
    iters = tuple(tirx.IterVar(v.dom, tirx.Var(v.var.name, v.var.ty), v.iter_type) for v in total.spatial)
    at, places = [v.var for v in iters], {v.var: tirx.IntImm(v.var.ty, 0) for v in result.iters}  # of one value
    places |= sym.inverse_affine_iter_map(sym.detect_iter_map(read.indices, ranges).indices, at)
    own = tirx.BufferLoad(total.buffer, at)
    value = common.with_loads(result.value, lambda load: own if load.source.same_as(total.buffer) else None)
    indices = tuple(common.renamed(index, places) for index in result.indices)
    return [*stages[:-1], replace(result, iters=iters, indices=indices, value=common.renamed(value, places))]


def _is_pointwise(result: Stage, total: Stage) -> bool:
    """Whether a stage reads each element of another one at one index of its own."""
    loads = [load for load in result.loads() if load.source.same_as(total.buffer)]
    wide = {v.var for v in result.iters if int(v.dom.extent) > 1}
    shape = list(total.buffer.shape)
    own = [index for index, extent in zip(loads[0].indices, shape, strict=True) if int(extent) > 1]
    same = all(all(i.same_as(j) for i, j in zip(load.indices, loads[0].indices, strict=True)) for load in loads)
    return same and len(own) == len(wide) and all(index in wide for index in own) and len({*own}) == len(own)


def _as_one(stages: Sequence[Stage], first: int) -> Sequence[Stage]:
    """The stages with those from a number on as one, which reads no other stage than sums."""
    made = {one.buffer: one for one in stages[:-1] if not one.reduced}
    if len(stages) > first and any(load.source in made for load in stages[-1].loads()):
        return [*stages[:first], replace(stages[-1], value=in_place(stages[-1].value, made))]
    return stages


def _chosen(p: Product, stages: Sequence[Stage], number: int, machine: Machine) -> tuple[Product, Tile]:
    """The product, or its transposed one, and the tile that fit shape and machine."""
    made = {one.buffer for one in stages[:number]}
    return choose(p, machine, made, _paddings(p, stages, number)[0])


def _paddings(p: Product, stages: Sequence[Stage], number: int) -> tuple[list[padding.Padding], bool]:
    """The padding of the images that a contraction reads through windows, and whether the images that are given have no
    other zeros around or within them."""
    made = {one.buffer: one for one in stages[:number]}
    for one in (p.a, p.b):
        if one.windows and one.value.source in made:
            images = made[one.value.source]
            found, whole = padding.paddings(one.value, p.stage, images)
            return found, whole and not any(load.source in made for load in images.loads())
    return [], False


def written(
    p: Product, stages: Sequence[Stage], number: int, tile: Tile, machine: Machine, given: Sequence[ir.Var]
) -> list[Stage | tirx.Stmt]:
    """The loops of a contraction, and the stages before and after it that are not within. `given`: the function's
    parameters."""
    found, whole = _paddings(p, stages, number)
    skips = padding.skipped(found, p, tile.rows) if tile.a == WINDOWS else []
    p = padding.ordered(p, skips)
    inside = tile.a == WINDOWS and whole and len(skips) == len(found)  # no zero around the images is read
    by_batch = p.batch and tile.b in (LIES, PACKED, WINDOWS)
    reader = None if inside else p.a if tile.a == WINDOWS else p.b if by_batch else None
    fused, before, rest = described(p, stages, number, reader, p.a if tile.a == LIES else None)
    if inside:
        a = replace(fused.product.a, value=padding.without_zeros(fused.product.a.value))
        fused = replace(fused, product=replace(fused.product, a=a))
    return [*before, *Loops(replace(fused, paddings=found), tile, machine, given).nests(), *rest]


def described(
    p: Product, stages: Sequence[Stage], number: int, reader: Operand | None = None, whole: Operand | None = None
) -> tuple[Fused, list[Stage], Sequence[Stage]]:
    """The contraction with what is computed before it in the place of what it reads; the stages before and behind it.
    `reader`: the factor whose stage the product makes as images; `whole`: the one whose stage is made before."""
    made = {one.buffer: one for one in stages[:number]}
    last = number + 1 < len(stages) and not stages[number + 1].reduced
    images, before = None, list[Stage]()
    values = {one: in_place(one.value, made) for one in (p.a, p.b)}
    for operand in (reader, whole):
        one = made.get(operand.value.source) if operand is not None else None
        if operand is None or one is None or len(one.iters) < 2:
            continue
        values[operand], one = operand.value, replace(one, value=in_place(one.value, made))
        if operand is reader:
            images = Images(one, one.buffer, {})
        elif images is None or not images.buffer.same_as(one.buffer):  # else both factors read the images
            before.append(one)
    a, b = (replace(one, value=values[one]) for one in (p.a, p.b))
    fused = Fused(replace(p, a=a, b=b), stages[number + 1] if last else None, images)
    return fused, before, stages[number + 1 + last :]


RULE = Rule("contraction", "llvm", schedule, sums=True)
