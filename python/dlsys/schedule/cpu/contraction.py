"""The rule for contractions: C[b, m, n] += A[b, m, k] * B[b, k, n], with A and B read through index expressions.

Matmul in its four transposes, conv2d and both its gradients are contractions; which loops are m, n and k follows
from who reads what (`roles`), the numbers from shape and machine (`tiles`, `sharing`), and the loops are written by
`product`.

Of a convolution's operands one is read through windows, several times each element. Where tiles fit into the rows of
the images it is A: its elements are broadcast from the padded images where they lie, vectors run over the filters, and
the tile is stored along its rows. Else it is B, and packing it makes the columns of im2col.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tvm import s_tir, tirx
from tvm.tirx import PrimFunc

from .. import common
from ..roles import Roles, factors_of, roles, turned
from ..stages import Stage, in_place, plain_stages, read_stages, size, with_nests
from ..target import Machine, Rule
from . import padding, pointwise, reduction
from .padding import Images
from .product import Product, Writer
from .sharing import blocks_of, far_parts, few_tiles, in_parts, missing_parts, parts_of, shared_out
from .tiles import LIES, PANELS, WINDOWS, Tile, choose


def schedule(func: PrimFunc, machine: Machine) -> s_tir.Schedule | None:
    """The schedule of a function with one contraction and elementwise stages around it; None for others."""
    found = one_sum(func)
    r = roles(found[0][found[1]]) if found else None
    if found is None or r is None or 0 in r.extents or min(map(r.size, (r.m, r.n, r.k))) < 2:
        return None
    stages, number = found
    dtype = str(stages[number].buffer.dtype)
    lanes = machine.lanes(dtype)
    own = turned(r, lanes)
    tile: Tile | None = None
    parts = blocks_of(own, dtype)
    turn = bool(parts) and own.m != r.m
    parts = parts or parts_of(r, max(few_tiles(r, machine, lanes), far_parts(r, machine)))
    if not parts:
        r, tile = _chosen(stages, number, r, machine)
        parts = parts_of(r, missing_parts(r, tile, machine))
    if not parts:
        assert tile is not None
        return common.start(pointwise.finish(written(*with_one_result(func, number), number, r, tile), machine))
    func, stages, r = of_parts(func, number, parts)
    r, tile = _chosen(stages, number, replace(r, m=r.n, n=r.m, a=1 - r.a) if turn else r, machine)
    func = written(func, stages, number, r, tile)
    return common.start(pointwise.finish(reduction.finish(func, plain_stages(func), [], machine), machine))


def one_sum(func: PrimFunc) -> tuple[Sequence[Stage], int] | None:
    """The stages of a function with one sum and one result, which has as many elements, and the number of the sum; None
    for others, as a row of a product."""
    stages = read_stages(func) or []
    sums = [i for i, stage in enumerate(stages) if stage.reduced]
    results = sum(stage.buffer in func.params for stage in stages)
    if len(sums) != 1 or results != 1 or size(stages[-1].spatial) != size(stages[sums[0]].spatial):
        return None
    return stages, sums[0]


def with_one_result(func: PrimFunc, number: int) -> tuple[PrimFunc, Sequence[Stage]]:
    """The function whose stages after its sum are one, which reads each sum at an index of its own; its stages."""
    func, stages = _ending(func, number + 1)
    if len(stages) == number + 1 or _is_pointwise(stages[-1], stages[number]):
        return func, stages
    sch = common.start(func)  # what turns its index around, as one that spreads phases over an image
    c, result = list(sch.get_child_blocks(sch.get_sblock("root")))[number:]
    sch.reindex(c, ("write", 0))
    sch.reverse_compute_inline(result)
    func = common.function_of(sch)
    return func, _stages(func)


def _is_pointwise(result: Stage, total: Stage) -> bool:
    """Whether a stage reads each element of another one at one index of its own."""
    loads = [load for load in result.loads() if load.source.same_as(total.buffer)]
    wide = {v.var for v in result.iters if int(v.dom.extent) > 1}
    shape = list(total.buffer.shape)
    own = [index for index, extent in zip(loads[0].indices, shape, strict=True) if int(extent) > 1]
    same = all(all(i.same_as(j) for i, j in zip(load.indices, loads[0].indices, strict=True)) for load in loads)
    return same and len(own) == len(wide) and all(index in wide for index in own) and len({*own}) == len(own)


def of_parts(func: PrimFunc, number: int, parts: Mapping[int, int]) -> tuple[PrimFunc, Sequence[Stage], Roles]:
    """The function whose contraction is of parts of its terms, which are then added up (`sharing.in_parts`); its
    stages, and what the contraction's iterators are for."""
    func, stages = _ending(in_parts(func, number, parts), number + 2)
    r = roles(stages[number])
    assert r is not None
    return func, stages, r


def _ending(func: PrimFunc, first: int) -> tuple[PrimFunc, Sequence[Stage]]:
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


def _chosen(stages: Sequence[Stage], number: int, r: Roles, machine: Machine) -> tuple[Roles, Tile]:
    """The roles and the tile that fit shape and machine."""
    stage, made = stages[number], {one.buffer for one in stages[:number]}
    computed = [factor.source in made for factor in factors_of(stage)]
    r, tile = choose(r, machine, str(stage.buffer.dtype), computed, _paddings(stages, number, r)[0])
    return r, shared_out(r, tile, machine)


def _paddings(stages: Sequence[Stage], number: int, r: Roles) -> tuple[list[padding.Padding], bool]:
    """The padding of the images that a contraction reads through windows, and whether the images that are given have no
    other zeros around or within them."""
    stage, made = stages[number], {one.buffer: one for one in stages[:number]}
    for read, factor in enumerate(factors_of(stage)):
        if r.windows[read] and factor.source in made:
            images = made[factor.source]
            found, whole = padding.paddings(factor, stage, images)
            return found, whole and not any(load.source in made for load in images.loads())
    return [], False


def written(func: PrimFunc, stages: Sequence[Stage], number: int, r: Roles, tile: Tile) -> PrimFunc:
    """The function with the loops of its contraction; the stages after its result are left as they are."""
    found, whole = _paddings(stages, number, r)
    skips = padding.skipped(found, r, tile.rows) if tile.a == WINDOWS else []
    r = padding.ordered(r, skips)
    inside = tile.a == WINDOWS and whole and len(skips) == len(found)  # no zero around the images is read
    reader = None if inside else r.a if tile.a == WINDOWS else 1 - r.a if r.batch and tile.order == PANELS else None
    product, before, rest = described(stages, number, r, reader, r.a if tile.a == LIES else None)
    if inside:
        factors = [padding.without_zeros(x) if i == r.a else x for i, x in enumerate(product.factors)]
        product = replace(product, factors=tuple(factors))
    writer = Writer(replace(product, paddings=found), tile, func.params)
    return with_nests(func, [*before, *writer.nests(), *rest], writer.arrays)


def described(
    stages: Sequence[Stage], number: int, r: Roles, reader: int | None = None, whole: int | None = None
) -> tuple[Product, list[tirx.Stmt], list[tirx.Stmt]]:
    """The contraction with what is computed before it in the place of what it reads; the loops before and behind it.
    `reader`: the factor whose stage the product makes as images; `whole`: the one whose stage is made before."""
    stage, made = stages[number], {one.buffer: one for one in stages[:number]}
    last = number + 1 < len(stages) and not stages[number + 1].reduced
    loads, images, before = factors_of(stage), None, list[tirx.Stmt]()
    factors = [in_place(factor, made) for factor in loads]
    for i in (reader, whole):
        one = made.get(loads[i].source) if i is not None else None
        if i is None or one is None or len(one.iters) < 2:
            continue
        factors[i], one = loads[i], one.with_value(in_place(one.value, made))
        if i == reader:
            images = Images(one, one.buffer, {})
        elif images is None or not images.buffer.same_as(one.buffer):  # else both factors read the images
            before.append(one.loops)
    product = Product(stage, r, (factors[0], factors[1]), stages[number + 1] if last else None, images)
    return product, before, [one.loops for one in stages[number + 1 + last :]]


RULE = Rule("contraction", "llvm", schedule, sums=True)
