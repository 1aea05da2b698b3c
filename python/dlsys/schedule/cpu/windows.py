"""Convolutions without a sum over channels: each plane of images by itself, with few multiply-adds an element.

A plane with its border of zeros is made where it is used, and stays in L1. A row of the result is a few vectors, and a
window's elements are unrolled. The gradient of filters is a sum (see `reduction`) over the planes of one channel.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tvm import tirx
from tvm.tirx import PrimFunc

from .. import common
from ..codegen import block_of
from ..common import PARALLEL_WORK, VECTORS
from ..stages import read_stages
from ..target import Machine, Rule
from . import reduction
from .contraction import contraction_of, missing_parts, parts_of
from .tiles import LIES, WINDOWS, Tile, wanted


def schedule(func: PrimFunc, machine: Machine) -> tirx.PrimFunc | None:
    """The schedule of a convolution of planes, of its gradient, or of its filters' gradient; None for others."""
    if (found := contraction_of(func, read_stages(func) or [])) is None:
        return None
    p = found.product
    if 0 in p.extents or p.size(p.m) != 1 or not p.b.windows:
        return None
    if list(p.batch) != [i for i in range(len(p.extents)) if i not in p.k and i < p.n[0]]:
        return None
    vectors = machine.lanes(p.dtype)
    parallel, few = math.prod(p.extents) >= PARALLEL_WORK, 64  # elements of a window: 7 x 7 and less
    if p.size(p.k) <= few:
        row, most = p.extents[p.n[-1]], VECTORS * vectors
        width = row if row <= most else common.divisor(row, vectors, most) or common.divisor(row, 1, most) or 1
        if width < row and 2 * width <= vectors:
            return None
        by_batch = parallel and wanted(machine) <= p.size(p.batch)
        tile = Tile(1, width, width, LIES, WINDOWS, 1, 1, parallel, by_batch)
        return reduction.finish(func, machine, found.written(p, tile, machine))
    if p.size(p.n) > few:
        return None
    if parts := parts_of(p, missing_parts(p, machine)):
        found = found.in_parts(parts)
        p = found.product
    q, images, _ = found.fused(p, p.b)
    if images is not None:
        if (own := images.of_batch(q)) is None:
            return None
        images, q = own
    total = replace(p.stage, value=p.stage.value.a + q.a.value * q.b.value)
    sums = reduction.Sum(total, machine, taps=[axis for axis in p.n if p.extents[axis] > 1])
    nest = block_of(p.stage.name, sums.rows(images))
    return reduction.finish(func, machine, [nest, *found.after])


RULE = Rule("windows", "llvm", schedule, sums=True)
