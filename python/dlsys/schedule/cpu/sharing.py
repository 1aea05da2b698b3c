"""Enough parts of a contraction for many threads.

Few threads share out blocks of rows, or panels of columns. A product of 32 rows, or the convolution of one image, has
too few of either for many: they share out both, in smaller tiles if need be, and a long sum of a small result, as the
gradient of a few filters is. With twice as many parts as threads none waits long for another.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace

from tvm import tirx

from ...device.panels import boxes
from .. import sums
from ..products import Product
from ..stages import extents, read_stages, with_nests
from ..target import Machine
from .tiles import GRID, MANY, PACKED, PANELS, WINDOWS, Tile

PARTS = 2  # for each thread
MANY_FLOP = 10_000_000  # of a contraction: with less, more regions for all of them take longer than they spare
LEAST_ROWS = 3  # of a tile: with fewer, a vector's multiply-adds wait for each other
FINER = 4  # times as many blocks as needed are looked at, for threads to have equal parts
GOOD_ROWS = 8  # of a tile of one vector that keeps the multiply-adds busy
LEAST_TERMS = 64  # of a part of a sum over one axis
FAR = 4  # times as many parts of a sum as needed, beyond which what they store is too much


def wanted(machine: Machine) -> int:
    """The parts that a contraction should have; 1 for few threads."""
    return PARTS * machine.threads if machine.threads >= MANY else 1


def least_parts(machine: Machine) -> int:
    """The parts that any work for threads should have."""
    return max(wanted(machine), machine.threads)


def few_tiles(p: Product, machine: Machine) -> int:
    """How many times as many good tiles a contraction should have."""
    return -(-wanted(machine) // _tiles(p, GOOD_ROWS, machine.lanes(p.dtype))) if _is_large(p) else 1


def missing_parts(p: Product, tile: Tile, machine: Machine) -> int:
    """How many times as many parts a contraction should have."""
    return -(-wanted(machine) // _parts(p, tile)) if _is_large(p) else 1


def parts_of(p: Product, missing: int) -> dict[int, int]:
    """Into how many parts axes of a product's sum are cut, to have about so many times as many parts; none where an
    operand lies in panels.

    Cut is the sum's first axis, in a gradient of filters the images, and where those are too few the second too, their
    rows.
    """
    if missing == 1 or p.a.panel or p.b.panel:
        return {}
    first, *others = (axis for axis in p.k if p.extents[axis] > 1)
    parts = least_divisor(p.extents[first], missing if others else min(missing, p.extents[first] // LEAST_TERMS))
    whole = parts == p.extents[first]
    rows = least_divisor(p.extents[others[0]], -(-missing // parts)) if whole and others[:1] == [first + 1] else 1
    found = {first: parts, **({others[0]: rows} if rows > 1 else {})}
    return found if parts * rows > 1 else {}


def in_parts(func: tirx.PrimFunc, number: int, parts: Mapping[int, int]) -> tirx.PrimFunc:
    """The function whose stage of that number, a sum, is cut into so many parts along some of its axes
    (`sums.in_parts`)."""
    stages = read_stages(func)
    assert stages is not None
    sizes = extents(stages[number].iters)
    found = sums.in_parts(stages[number], {i: sizes[i] // count for i, count in parts.items()})
    nests = [one.loops for one in (*stages[:number], *found, *stages[number + 1 :])]
    return with_nests(func, nests, [found[0].buffer])


def least_divisor(extent: int, least: int) -> int:
    """The least divisor of an extent that is no less than that: all of a short extent, 1 where those that there are lie
    far beyond."""
    near = range(max(least, 1), min(extent, FAR * least) + 1)
    return extent if extent <= least else next((d for d in near if extent % d == 0), 1)


def shared_out(p: Product, tile: Tile, machine: Machine) -> Tile:
    """The tile, where it has parts enough; else the largest of which there are enough for blocks of rows and panels."""
    if not _is_large(p) or _parts(p, tile) >= wanted(machine):
        return tile
    sizes = itertools.product(_rows(p, tile), _columns(p, tile))
    rows, columns = max(sizes, key=lambda size: (min(_tiles(p, *size), wanted(machine)), size[0] * size[1], size[1]))
    panels, whole = -(-p.size(p.n) // columns) * p.size(p.batch), p.size(p.n) % columns == 0
    line = max(p.extents[p.m[-1]] // rows, 1) if tile.a == WINDOWS else 1
    return replace(
        tile,
        rows=rows,
        columns=columns,
        b=tile.b if whole or p.b.panel else PACKED,
        order=GRID,
        panels=1,
        block=_block(-(-p.size(p.m) // rows), panels, line, machine),
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


def _is_large(p: Product) -> bool:
    return 2 * math.prod(p.extents) >= MANY_FLOP


def _parts(p: Product, tile: Tile) -> int:
    """The parts among which threads share out the work."""
    if tile.by_batch:
        return p.size(p.batch)
    if tile.order == GRID:
        blocks = -(-p.size(p.m) // (tile.rows * tile.block))
        return p.size(p.batch) * blocks * -(-p.size(p.n) // tile.columns)
    own = p.size(p.n) / tile.columns if tile.order == PANELS else p.size(p.m) / (tile.rows * tile.block)
    return p.size(p.batch) * -int(-own // 1)


def _tiles(p: Product, rows: int, columns: int) -> int:
    return p.size(p.batch) * -(-p.size(p.m) // rows) * -(-p.size(p.n) // columns)


def _rows(p: Product, tile: Tile) -> list[int]:
    """Rows that tiles may have: where A is read as it lies, those that divide its own, or are boxes of windows."""
    fitting = boxes(p.extents[axis] for axis in p.m) if tile.a == WINDOWS else range(1, tile.rows + 1)
    divides = tile.a in (PACKED, WINDOWS)
    found = [rows for rows in fitting if LEAST_ROWS <= rows < tile.rows and (divides or p.size(p.m) % rows == 0)]
    return [tile.rows, *sorted(found, reverse=True)]


def _columns(p: Product, tile: Tile) -> list[int]:
    """Columns that tiles may have: a panel's, where B lies in panels."""
    return [tile.columns] if p.b.panel else list(range(tile.columns, 0, -tile.lanes))
