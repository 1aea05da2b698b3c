"""Enough parts for many threads: of any loops (`share_out`), and of a contraction.

Few threads share out blocks of rows, or panels of columns. A product of 32 rows, or the convolution of one image, has
too few of either for many: they share out both, in smaller tiles if need be, and a long sum of a small result, as the
gradient of a few filters is. With twice as many parts as threads none waits long for another.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tvm import s_tir
from tvm.s_tir.schedule import LoopRV, SBlockRV

from ...device.panels import VECTORS, boxes
from .. import common
from ..roles import Roles
from ..target import Machine
from .tiles import NEAR_BYTES, Tile

MANY = 8  # threads, from which on there are so many; with fewer, what `tiles` chooses is fast
PARTS = 2  # for each thread
MANY_FLOP = 10_000_000  # of a contraction: with less, more regions for all of them take longer than they spare
LEAST_ROWS = 3  # of a tile: with fewer, a vector's multiply-adds wait for each other
FINER = 4  # times as many blocks as needed are looked at, for threads to have equal parts
GOOD_ROWS = 8  # of a tile of one vector that keeps the multiply-adds busy
LEAST_TERMS = 64  # of a part of a sum over one axis
FAR_BYTES = 1536 * 1024  # of a panel: to cut one of 1.2 MB lost 1 to 4 %, of 2.4 MB won 10 %, of 3.2 MB 27 %
FAR = 4  # times as many parts of a sum as needed, beyond which what they store is too much


def wanted(machine: Machine) -> int:
    """The parts that a contraction should have; 1 for few threads."""
    return PARTS * machine.threads if machine.threads >= MANY else 1


def least_parts(machine: Machine) -> int:
    """The parts that any work for threads should have."""
    return max(wanted(machine), machine.threads)


def outermost(sch: s_tir.Schedule, loops: Sequence[LoopRV], parts: int) -> Sequence[LoopRV]:
    """The first of loops that lie directly within each other: as many as have so many steps together, or all."""
    count, steps = 1, common.extent_of(sch, loops[0])
    while steps < parts and count < len(loops):
        steps, count = steps * common.extent_of(sch, loops[count]), count + 1
    return loops[:count]


def share_out(sch: s_tir.Schedule, loops: Sequence[LoopRV], parts: int) -> None:
    """Gives threads the outermost of loops, fused, that have so many parts."""
    sch.parallel(common.fused(sch, outermost(sch, loops, parts)))


def few_tiles(r: Roles, machine: Machine, lanes: int) -> int:
    """How many times as many good tiles a contraction should have."""
    return -(-wanted(machine) // _tiles(r, GOOD_ROWS, lanes)) if _is_large(r) else 1


def far_parts(r: Roles, machine: Machine) -> int:
    """Into how many parts a convolution's long sum is cut, so that a part's panel lies in L2; 1 for a shorter sum."""
    panel = r.size(r.k) * VECTORS * machine.vector_bits // 8
    return -(-panel // NEAR_BYTES) if panel > FAR_BYTES and any((*r.windows[0], *r.windows[1])) else 1


def missing_parts(r: Roles, tile: Tile, machine: Machine) -> int:
    """How many times as many parts a contraction should have."""
    return -(-wanted(machine) // _parts(r, tile)) if _is_large(r) else 1


def split_sum(sch: s_tir.Schedule, c: SBlockRV, r: Roles, missing: int) -> tuple[SBlockRV, Roles]:
    """The block of a contraction over so many parts of the sum, about, which become batches, and its roles; `c` becomes
    the sum of the parts. As they were given for one part, and where an operand lies in panels.

    Shared out is the sum's first axis, in a gradient of filters the images, and where those are too few the second too,
    their rows.
    """
    if missing == 1 or any(r.panels):
        return c, r
    first, *others = (axis for axis in r.k if r.extents[axis] > 1)
    parts = least_divisor(r.extents[first], missing if others else min(missing, r.extents[first] // LEAST_TERMS))
    whole = parts == r.extents[first]
    rows = least_divisor(r.extents[others[0]], -(-missing // parts)) if whole and others[:1] == [first + 1] else 1
    if parts * rows == 1:
        return c, r
    loops = sch.get_loops(c)
    number = loops[first] if whole else sch.split(loops[first], [parts, None])[0]
    if rows > 1:
        number = sch.fuse(number, sch.split(loops[others[0]], [rows, None])[0])
    product = sch.rfactor(number, 0)
    loops = sch.get_loops(product)
    spatial = len(r.extents) - len(r.k)
    sch.reorder(loops[spatial], *loops[:spatial])
    return product, _of_parts(r, first, parts, rows)


def _of_parts(r: Roles, first: int, parts: int, rows: int) -> Roles:
    """The roles of a product whose axis 0 counts the parts of the sum: its axis `first` is parted, or, if that leaves
    nothing of it, gone, and the axis behind it is parted into `rows`."""
    extents = [parts * rows]
    place: dict[int, int] = {}
    for axis, extent in enumerate(r.extents):
        own = extent // (parts if axis == first else rows if axis == first + 1 and rows > 1 else 1)
        if axis == first and own == 1:
            place[axis] = 0
        else:
            place[axis] = len(extents)
            extents.append(own)

    def placed(axes: Iterable[int]) -> tuple[int, ...]:
        return tuple(place[axis] for axis in axes if place[axis])

    return Roles(
        (0, *placed(r.batch)),
        placed(r.m),
        placed(r.n),
        placed(r.k),
        r.a,
        tuple((0, *placed(axes)) for axes in r.axes),
        tuple(tuple(w for w in map(frozenset, map(placed, own)) if len(w) > 1) for own in r.windows),
        tuple(place.get(axis, -1) or -1 for axis in r.contiguous),
        tuple(extents),
    )


def least_divisor(extent: int, least: int) -> int:
    """The least divisor of an extent that is no less than that: all of a short extent, 1 where those that there are lie
    far beyond."""
    near = range(max(least, 1), min(extent, FAR * least) + 1)
    return extent if extent <= least else next((d for d in near if extent % d == 0), 1)


def shared_out(r: Roles, tile: Tile, machine: Machine) -> Tile:
    """The tile, where it has parts enough; else the largest of which there are enough for blocks of rows and panels."""
    if not _is_large(r) or _parts(r, tile) >= wanted(machine):
        return tile
    sizes = itertools.product(_rows(r, tile), _columns(r, tile))
    rows, columns = max(sizes, key=lambda size: (min(_tiles(r, *size), wanted(machine)), size[0] * size[1], size[1]))
    panels, whole = -(-r.size(r.n) // columns) * r.size(r.batch), r.size(r.n) % columns == 0
    line = max(r.extents[r.m[-1]] // rows, 1) if tile.direct else 1
    return replace(
        tile,
        rows=rows,
        columns=columns,
        edge=columns,
        block=_block(-(-r.size(r.m) // rows), panels, line, machine),
        panels=False,
        pack_b=tile.pack_b or not (whole or r.panels[1 - r.a]),
        grid=True,
    )


def _block(tiles: int, panels: int, line: int, machine: Machine) -> int:
    """Tiles of rows in a block, so that no thread has many more than others; the largest of equal ones. Of images a
    block has whole lines of tiles, or a part of one: else each element's place takes a division of its own."""
    least = min(-(-wanted(machine) // panels), tiles)  # blocks
    found = (tiles // count for count in range(least, min(FINER * least, tiles) + 1))
    sizes = {1, *(size - size % line if size > line else size for size in found)}
    sizes = {size for size in sizes if size % line == 0 or line % size == 0}

    def most(block: int) -> int:
        return -(-(-(-tiles // block) * panels) // machine.threads) * block

    return min(sorted(sizes, reverse=True), key=most)


def _is_large(r: Roles) -> bool:
    return 2 * math.prod(r.extents) >= MANY_FLOP


def _parts(r: Roles, tile: Tile) -> int:
    """The parts among which threads share out the work."""
    if tile.by_batch:
        return r.size(r.batch)
    if tile.grid:
        blocks = -(-r.size(r.m) // (tile.rows * tile.block))
        return r.size(r.batch) * blocks * -(-r.size(r.n) // tile.columns)
    own = r.size(r.n) / tile.columns if tile.panels else r.size(r.m) / (tile.rows * tile.block)
    return r.size(r.batch) * -int(-own // 1)


def _tiles(r: Roles, rows: int, columns: int) -> int:
    return r.size(r.batch) * -(-r.size(r.m) // rows) * -(-r.size(r.n) // columns)


def _rows(r: Roles, tile: Tile) -> list[int]:
    """Rows that tiles may have: where A is read as it lies, those that divide its own, or are boxes of windows."""
    fitting = boxes(r.extents[axis] for axis in r.m) if tile.direct else range(1, tile.rows + 1)
    divides = tile.pack_a or tile.direct
    found = [rows for rows in fitting if LEAST_ROWS <= rows < tile.rows and (divides or r.size(r.m) % rows == 0)]
    return [tile.rows, *sorted(found, reverse=True)]


def _columns(r: Roles, tile: Tile) -> list[int]:
    """Columns that tiles may have: a panel's, where B lies in panels."""
    return [tile.columns] if r.panels[1 - r.a] else list(range(tile.columns, 0, -tile.lanes))
