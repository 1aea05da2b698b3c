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

from tvm import ir, s_tir, tirx
from tvm.tirx import PrimFunc

from .. import common
from ..knobs import Space, pick
from ..products import Operand, Product, product_of
from ..stages import Stage, in_place, read_stages, size, with_nests
from ..sums import in_parts
from ..target import Machine, Rule
from . import padding, reduction
from .padding import Images
from .product import Loops
from .sharing import missing_parts, parts_of
from .tile_code import Fused
from .tile_space import space
from .tiles import LIES, PACKED, WINDOWS, Tile, choose


def schedule(func: PrimFunc, machine: Machine) -> tirx.PrimFunc | None:
    """The schedule of a function with one contraction and elementwise stages around it; None for others."""
    found = one_sum(func)
    if found is None or min(found[0].extents) < 1 or min(map(found[0].size, (found[0].m, found[0].n, found[0].k))) < 2:
        return None
    p, stages, number = found
    q, tile = _chosen(p, stages, number, machine)
    func, stages, p, is_cut = ending(func, number, p, missing_parts(q, machine, tile))
    if is_cut:
        q, tile = _chosen(p, stages, number, machine)
    q, tile = pick((q, tile), lambda: _space((q, tile), p, stages, number, machine))
    func = written(q, func, stages, number, tile, machine)
    return reduction.finish(func, machine)


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


def ending(func: PrimFunc, number: int, p: Product, missing: int) -> tuple[PrimFunc, Sequence[Stage], Product, bool]:
    """The function with one stage after its product, the stages, the product, and whether it is that of parts of its
    terms, which are then added up, as many as are missing."""
    if not (parts := parts_of(p, missing)):
        func, stages = with_one_result(func, number)
        return func, stages, p, False
    whole = _stages(func)
    cut = in_parts(whole[number], parts)
    func = with_nests(func, [one.loops for one in (*whole[:number], *cut, *whole[number + 1 :])], [cut[0].buffer])
    func, stages = _as_one(func, number + 2)
    of_parts = _of_arrays(stages[number])
    assert of_parts is not None
    return func, stages, of_parts, True


def with_one_result(func: PrimFunc, number: int) -> tuple[PrimFunc, Sequence[Stage]]:
    """The function whose stages after its sum are one, which reads each sum at an index of its own; its stages."""
    func, stages = _as_one(func, number + 1)
    if len(stages) == number + 1 or _is_pointwise(stages[-1], stages[number]):
        return func, stages
    sch = s_tir.Schedule(func, error_render_level="none")  # what turns its index around, as one that spreads phases
    c, result = list(sch.get_child_blocks(sch.get_sblock("root")))[number:]
    sch.reindex(c, ("write", 0))
    sch.reverse_compute_inline(result)
    (made,) = sch.mod.functions.values()
    func = func.with_body(common.bound_once(made.body))
    return func, _stages(func)


def _is_pointwise(result: Stage, total: Stage) -> bool:
    """Whether a stage reads each element of another one at one index of its own."""
    loads = [load for load in result.loads() if load.source.same_as(total.buffer)]
    wide = {v.var for v in result.iters if int(v.dom.extent) > 1}
    shape = list(total.buffer.shape)
    own = [index for index, extent in zip(loads[0].indices, shape, strict=True) if int(extent) > 1]
    same = all(all(i.same_as(j) for i, j in zip(load.indices, loads[0].indices, strict=True)) for load in loads)
    return same and len(own) == len(wide) and all(index in wide for index in own) and len({*own}) == len(own)


def _as_one(func: PrimFunc, first: int) -> tuple[PrimFunc, Sequence[Stage]]:
    """The function with its stages from a number on as one, which reads no other stage than sums; and its stages."""
    stages = _stages(func)
    made = {one.buffer: one for one in stages[:-1] if not one.reduced}
    if len(stages) > first and any(load.source in made for load in stages[-1].loads()):
        last = stages[-1].with_value(in_place(stages[-1].value, made))
        func = with_nests(func, [one.loops for one in (*stages[:first], last)])
    return func, _stages(func)


def _stages(func: PrimFunc) -> Sequence[Stage]:
    stages = read_stages(func)
    assert stages is not None
    return stages


def _chosen(p: Product, stages: Sequence[Stage], number: int, machine: Machine) -> tuple[Product, Tile]:
    """The product, or its transposed one, and the tile that fit shape and machine."""
    made = {one.buffer for one in stages[:number]}
    return choose(p, machine, made, _paddings(p, stages, number)[0])


def _space(own: tuple[Product, Tile], p: Product, stages: Sequence[Stage], number: int, machine: Machine) -> Space:
    """The products and tiles among which `_chosen` has taken one."""
    made = {one.buffer for one in stages[:number]}
    return space(own, p, machine, made, _paddings(p, stages, number)[0])


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
    p: Product, func: PrimFunc, stages: Sequence[Stage], number: int, tile: Tile, machine: Machine
) -> PrimFunc:
    """The function with the loops of its contraction; the stages after its result are left as they are."""
    p = p.of(stages[number])
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
    loops = Loops(replace(fused, paddings=found), tile, machine, func.params)
    return with_nests(func, [*before, *loops.nests(), *rest], loops.arrays)


def described(
    p: Product, stages: Sequence[Stage], number: int, reader: Operand | None = None, whole: Operand | None = None
) -> tuple[Fused, list[tirx.Stmt], list[tirx.Stmt]]:
    """The contraction with what is computed before it in the place of what it reads; the loops before and behind it.
    `reader`: the factor whose stage the product makes as images; `whole`: the one whose stage is made before."""
    made = {one.buffer: one for one in stages[:number]}
    last = number + 1 < len(stages) and not stages[number + 1].reduced
    images, before = None, list[tirx.Stmt]()
    values = {one: in_place(one.value, made) for one in (p.a, p.b)}
    for operand in (reader, whole):
        one = made.get(operand.value.source) if operand is not None else None
        if operand is None or one is None or len(one.iters) < 2:
            continue
        values[operand], one = operand.value, one.with_value(in_place(one.value, made))
        if operand is reader:
            images = Images(one, one.buffer, {})
        elif images is None or not images.buffer.same_as(one.buffer):  # else both factors read the images
            before.append(one.loops)
    a, b = (replace(one, value=values[one]) for one in (p.a, p.b))
    fused = Fused(replace(p, a=a, b=b), stages[number + 1] if last else None, images)
    return fused, before, [one.loops for one in stages[number + 1 + last :]]


RULE = Rule("contraction", "llvm", schedule, sums=True)
