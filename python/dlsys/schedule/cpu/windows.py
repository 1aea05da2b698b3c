"""Convolutions without a sum over channels: each plane of images by itself, with few multiply-adds an element.

A plane with its border of zeros is made where it is used, and stays in L1. A row of the result, or of the gradient that
meets the images, is a few vectors; a window's elements are unrolled, so that sums stay in registers.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import s_tir, tirx
from tvm.tirx import PrimFunc

from .. import common
from ..codegen import UNROLLED, block_of, each, lanes, loop, sequence, unravelled
from ..common import PARALLEL_WORK, renamed
from ..roles import roles
from ..stages import Expr, Stage, plain_stages, with_nests
from ..target import Machine, Rule
from . import pointwise, reduction
from .contraction import described, of_parts, one_sum, with_one_result, written
from .product import Product
from .sharing import few_tiles, parts_of, wanted
from .tiles import LIES, PANELS, WINDOWS, Tile

TAPS = 64  # elements of a window that are unrolled: 7 x 7 and less
VECTORS = 4  # in a row that is taken at once


def schedule(func: PrimFunc, machine: Machine) -> s_tir.Schedule | None:
    """The schedule of a convolution of planes, of its gradient, or of its filters' gradient; None for others."""
    found = one_sum(func)
    r = roles(found[0][found[1]]) if found else None
    if found is None or r is None or 0 in r.extents or r.size(r.m) != 1 or not r.windows[1 - r.a]:
        return None
    if list(r.batch) != [i for i in range(len(r.extents)) if i not in r.k and i < r.n[0]]:
        return None
    stages, number = found
    vectors = machine.lanes(stages[number].buffer.dtype)
    parallel = math.prod(r.extents) >= PARALLEL_WORK
    if r.size(r.k) <= TAPS:
        width = _width(r.extents[r.n[-1]], vectors, VECTORS)
        if width is None:
            return None
        by_batch = parallel and wanted(machine) <= r.size(r.batch)
        tile = Tile(1, width, width, LIES, WINDOWS, PANELS, 1, parallel, by_batch)
        return common.start(written(*with_one_result(func, number), number, r, tile))
    width = _width(r.extents[r.k[-1]], vectors, 1) or _width(r.extents[r.k[-1]], vectors, VECTORS)
    if r.size(r.n) > TAPS or width is None or len(r.k) < 2:
        return None
    if parts := parts_of(r, few_tiles(r, machine, vectors)):
        func, stages, r = of_parts(func, number, parts)
    else:
        func, stages = with_one_result(func, number)
    product, _, rest = described(stages, number, r, 1 - r.a)
    func = with_nests(func, [*_filters(product, width, VECTORS * vectors, parallel), *rest])
    return common.start(pointwise.finish(reduction.finish(func, plain_stages(func), [], machine), machine))


def _width(extent: int, vector: int, most: int) -> int | None:
    """Elements of a row of so many that are taken at once, at most so many vectors: all, or a part that divides them;
    None where that is not about a vector long."""
    if extent <= most * vector:
        return extent
    part = common.divisor(extent, vector, most * vector) or common.divisor(extent, 1, most * vector) or 1
    return part if 2 * part > vector else None


def _filters(product: Product, width: int, most: int, parallel: bool) -> list[tirx.Stmt]:
    """The loops of the filters' gradient: a sum for each element of the windows and each place in a row of vectors,
    down all rows of all planes; then those are added up. `most`: elements of an image that are copied at a time."""
    stage, r, factors, images = product.stage, product.r, product.factors, product.images
    taps, (first, *within) = [r.extents[axis] for axis in r.n], r.k
    before: list[tirx.Stmt] = []
    if images is not None:
        own = images.of_batch((*r.batch, first), stage, factors) or images.of_batch(r.batch, stage, factors)
        images, factors = own or (images, factors)
        before = [] if own else [block_of(stage.name, images.laid(loop, {}, most, parallel), whole=True)]
    *rows, across = (r.extents[axis] for axis in within)
    sums = _array(stage, (math.prod(taps), width), "sums")

    def of_batch(number: Expr) -> tirx.Stmt:
        batch = dict(zip(r.batch, unravelled(number, [r.extents[axis] for axis in r.batch]), strict=True))

        def laid(names: dict[int, Expr]) -> list[tirx.Stmt]:
            """The images, where they are those of just these axes."""
            if images is None or not images.fixed or (first in names) != (first in images.fixed.values()):
                return []
            return [tirx.AllocBuffer(images.buffer), images.laid(loop, names, most)]

        def plane(at: Expr) -> tirx.Stmt:
            names = {**batch, first: at}
            return sequence([*laid(names), each(taps[:-1], lambda outer: line(outer, names))])

        def line(outer: list[Expr], names: dict[int, Expr]) -> tirx.Stmt:
            """A row of a window's elements, which meets all rows of a plane."""
            held, start = _array(stage, (taps[-1], width), "held"), _flat(outer, taps[:-1]) * taps[-1]

            def step(row: list[Expr], part: Expr) -> tirx.Stmt:
                def add(tap: Expr, lane: Expr) -> tirx.Stmt:
                    places = [*outer, tap, *row, part * width + lane]
                    at = {**names, **dict(zip([*r.n, *within], places, strict=True))}
                    values = {v.var: at[i] for i, v in enumerate(stage.iters) if i in at}
                    a, b = (renamed(factor, values) for factor in factors)
                    return tirx.BufferStore(held, tirx.BufferLoad(held, [tap, lane]) + a * b, [tap, lane])

                return loop(taps[-1], lambda tap: lanes(width, lambda lane: add(tap, lane)), kind=UNROLLED)

            def copied(to: Any, source: Any, shift_to: Expr, shift: Expr) -> tirx.Stmt:
                def one(tap: Expr, lane: Expr) -> tirx.Stmt:
                    return tirx.BufferStore(to, tirx.BufferLoad(source, [shift + tap, lane]), [shift_to + tap, lane])

                return loop(taps[-1], lambda tap: lanes(width, lambda lane: one(tap, lane)), kind=UNROLLED)

            terms = each(rows, lambda row: loop(across // width, lambda part: step(row, part)))
            return sequence([tirx.AllocBuffer(held), copied(held, sums, 0, start), terms, copied(sums, held, start, 0)])

        def total(tap: list[Expr]) -> tirx.Stmt:
            one, place = _array(stage, (1,), "total"), _flat(tap, taps)

            def add(lane: Expr) -> tirx.Stmt:
                return tirx.BufferStore(one, tirx.BufferLoad(one, [0]) + tirx.BufferLoad(sums, [place, lane]), [0])

            store = product.stored({**batch, **dict(zip(r.n, tap, strict=True))}, tirx.BufferLoad(one, [0]))
            return sequence([tirx.AllocBuffer(one), tirx.BufferStore(one, stage.init, [0]), loop(width, add), store])

        clear = loop(math.prod(taps), lambda i: lanes(width, lambda x: tirx.BufferStore(sums, stage.init, [i, x])))
        planes = loop(r.extents[first], plane)
        return sequence([*laid(batch), tirx.AllocBuffer(sums), clear, planes, each(taps, total)])

    return [*before, block_of(stage.name, loop(r.size(r.batch), of_batch, parallel=parallel), whole=True)]


def _array(stage: Stage, shape: tuple[int, ...], name: str) -> Any:
    return tirx.decl_buffer(shape, str(stage.buffer.dtype), name, data_alignment=4, layout=None)


def _flat(index: list[Expr], shape: list[int]) -> Expr:
    """The number of an index in row-major order."""
    found: Expr = 0
    for at, extent in zip(index, shape, strict=True):
        found = found * extent + at
    return found


RULE = Rule("windows", "llvm", schedule, sums=True)
