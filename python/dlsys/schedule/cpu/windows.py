"""Convolutions without a sum over channels: each plane of images by itself, with few multiply-adds an element.

A plane with its border of zeros is made where it is used, and stays in L1. A row of the result, or of the gradient that
meets the images, is a few vectors; a window's elements are unrolled, so that sums stay in registers.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx
from tvm.tirx import PrimFunc

from ...compute.loops import ravelled
from .. import common
from ..codegen import UNROLLED, array, block_of, each, lanes, loop, sequence, unravelled
from ..common import PARALLEL_WORK, VECTORS, renamed
from ..stages import Expr
from ..target import Machine, Rule
from . import reduction
from .contraction import cut, described, missing_parts, one_sum, parts_of, written
from .tile_code import Fused
from .tiles import LIES, WINDOWS, Tile, wanted

TAPS = 64  # elements of a window that are unrolled: 7 x 7 and less


def schedule(func: PrimFunc, machine: Machine) -> tirx.PrimFunc | None:
    """The schedule of a convolution of planes, of its gradient, or of its filters' gradient; None for others."""
    found = one_sum(func)
    if found is None or 0 in found[0].extents or found[0].size(found[0].m) != 1 or not found[0].b.windows:
        return None
    p, stages, number = found
    if list(p.batch) != [i for i in range(len(p.extents)) if i not in p.k and i < p.n[0]]:
        return None
    vectors = machine.lanes(p.dtype)
    parallel = math.prod(p.extents) >= PARALLEL_WORK
    if p.size(p.k) <= TAPS:
        width = _width(p.extents[p.n[-1]], vectors, VECTORS)
        if width is None:
            return None
        by_batch = parallel and wanted(machine) <= p.size(p.batch)
        tile = Tile(1, width, width, LIES, WINDOWS, 1, 1, parallel, by_batch)
        return reduction.finish(func, machine, written(p, stages, number, tile, machine, func.params))
    width = _width(p.extents[p.k[-1]], vectors, 1) or _width(p.extents[p.k[-1]], vectors, VECTORS)
    if p.size(p.n) > TAPS or width is None or len(p.k) < 2:
        return None
    if parts := parts_of(p, missing_parts(p, machine)):
        stages, p = cut(stages, number, parts)
    fused, _, rest = described(p, stages, number, p.b)
    return reduction.finish(func, machine, [*_filters(fused, width, VECTORS * vectors, parallel), *rest])


def _width(extent: int, vector: int, most: int) -> int | None:
    """Elements of a row that are taken at once, at most so many vectors; None where that is not about a vector long."""
    if extent <= most * vector:
        return extent
    part = common.divisor(extent, vector, most * vector) or common.divisor(extent, 1, most * vector) or 1
    return part if 2 * part > vector else None


def _filters(fused: Fused, width: int, most: int, parallel: bool) -> list[tirx.Stmt]:
    """The loops of the filters' gradient: a sum for each element of the windows and each place in a row, down all rows
    of all planes, then their total. `most`: elements of an image that are copied at a time."""
    p, images = fused.product, fused.images
    stage, taps, (first, *within) = p.stage, p.shape(p.n), p.k
    before: list[tirx.Stmt] = []
    if images is not None:
        own = images.of_batch((*p.batch, first), p) or images.of_batch(p.batch, p)
        images, p = own or (images, p)
        before = [] if own else [block_of(stage.name, images.laid(loop, {}, most, parallel))]
    *rows, across = (p.extents[axis] for axis in within)
    sums = array((math.prod(taps), width), p.dtype, "sums")

    def of_batch(number: Expr) -> tirx.Stmt:
        batch = dict(zip(p.batch, unravelled(number, p.shape(p.batch)), strict=True))

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
            held, start = array((taps[-1], width), p.dtype, "held"), ravelled(outer, taps[:-1]) * taps[-1]

            def step(row: list[Expr], part: Expr) -> tirx.Stmt:
                def add(tap: Expr, lane: Expr) -> tirx.Stmt:
                    places = [*outer, tap, *row, part * width + lane]
                    at = {**names, **dict(zip([*p.n, *within], places, strict=True))}
                    values = {v.var: at[i] for i, v in enumerate(stage.iters) if i in at}
                    a, b = (renamed(one.value, values) for one in (p.a, p.b))
                    return tirx.BufferStore(held, tirx.BufferLoad(held, [tap, lane]) + a * b, [tap, lane])

                return loop(taps[-1], lambda tap: lanes(width, lambda lane: add(tap, lane)), kind=UNROLLED)

            def copied(to: Any, source: Any, shift_to: Expr, shift: Expr) -> tirx.Stmt:
                one = lambda x, i: tirx.BufferStore(to, tirx.BufferLoad(source, [shift + x, i]), [shift_to + x, i])  # noqa: E731
                return loop(taps[-1], lambda tap: lanes(width, lambda lane: one(tap, lane)), kind=UNROLLED)

            terms = each(rows, lambda row: loop(across // width, lambda part: step(row, part)))
            return sequence([tirx.AllocBuffer(held), copied(held, sums, 0, start), terms, copied(sums, held, start, 0)])

        def total(tap: list[Expr]) -> tirx.Stmt:
            one, place = array((1,), p.dtype, "total"), ravelled(tap, taps)
            so_far, names = tirx.BufferLoad(one, [0]), {**batch, **dict(zip(p.n, tap, strict=True))}
            adding = loop(width, lambda x: tirx.BufferStore(one, so_far + tirx.BufferLoad(sums, [place, x]), [0]))
            store = lanes(1, lambda _: fused.stored(names, so_far))
            return sequence([tirx.AllocBuffer(one), tirx.BufferStore(one, stage.init, [0]), adding, store])

        clear = loop(math.prod(taps), lambda i: lanes(width, lambda x: tirx.BufferStore(sums, stage.init, [i, x])))
        planes = loop(p.extents[first], plane)
        return sequence([*laid(batch), tirx.AllocBuffer(sums), clear, planes, each(taps, total)])

    return [*before, block_of(stage.name, loop(p.size(p.batch), of_batch, parallel=parallel))]


RULE = Rule("windows", "llvm", schedule, sums=True)
