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

import tvm
from tvm import tirx

from ...device.panels import VECTORS, boxes
from .. import sums
from ..common import near_divisor
from ..roles import Roles
from ..stages import extents, read_stages, with_nests
from ..target import Machine
from .tiles import GRID, NEAR_BYTES, PACKED, PANELS, RESIDENT_BYTES, WINDOWS, Tile

MANY = 8  # threads, from which on there are so many; with fewer, what `tiles` chooses is fast
PARTS = 2  # for each thread
MANY_FLOP = 10_000_000  # of a contraction: with less, more regions for all of them take longer than they spare
LEAST_ROWS = 3  # of a tile: with fewer, a vector's multiply-adds wait for each other
FINER = 4  # times as many blocks as needed are looked at, for threads to have equal parts
GOOD_ROWS = 8  # of a tile of one vector that keeps the multiply-adds busy
LEAST_TERMS = 64  # of a part of a sum over one axis
FAR_BYTES = 1536 * 1024  # of a panel: to cut one of 1.2 MB lost 1 to 4 %, of 2.4 MB won 10 %, of 3.2 MB 27 %
SPLIT_TERMS = 256  # of k in a product of its own: their lines, with a panel's, fill L1
PARTIAL_BYTES = 8 * 1024 * 1024  # of those products, which are read again: what stays in L3
FAR = 4  # times as many parts of a sum as needed, beyond which what they store is too much


def wanted(machine: Machine) -> int:
    """The parts that a contraction should have; 1 for few threads."""
    return PARTS * machine.threads if machine.threads >= MANY else 1


def least_parts(machine: Machine) -> int:
    """The parts that any work for threads should have."""
    return max(wanted(machine), machine.threads)


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


def parts_of(r: Roles, missing: int) -> dict[int, int]:
    """Into how many parts axes of a product's sum are cut, to have about so many times as many parts; none where an
    operand lies in panels.

    Cut is the sum's first axis, in a gradient of filters the images, and where those are too few the second too, their
    rows.
    """
    if missing == 1 or any(r.panels):
        return {}
    first, *others = (axis for axis in r.k if r.extents[axis] > 1)
    parts = least_divisor(r.extents[first], missing if others else min(missing, r.extents[first] // LEAST_TERMS))
    whole = parts == r.extents[first]
    rows = least_divisor(r.extents[others[0]], -(-missing // parts)) if whole and others[:1] == [first + 1] else 1
    found = {first: parts, **({others[0]: rows} if rows > 1 else {})}
    return found if parts * rows > 1 else {}


def blocks_of(r: Roles, dtype: str) -> dict[int, int]:
    """Into how many blocks the k of A^T B is cut, a gradient of weights. A tile reads a cache line of such an A in each
    step of k. The lines of some hundred steps stay in L1 until the next panel of B needs them; those of thousands would
    be fetched anew for each panel."""
    itemsize, (m, n, k) = tvm.DataType(dtype).bits // 8, map(r.size, (r.m, r.n, r.k))
    terms = near_divisor(k, SPLIT_TERMS) if k > 2 * SPLIT_TERMS else None
    if terms is None or len(r.k) > 1 or r.batch or any(r.panels) or any(r.windows):
        return {}
    by_rows_of_k = (r.contiguous[r.a], r.contiguous[1 - r.a]) == (r.last(r.m), r.last(r.n))
    far = m * k * itemsize > RESIDENT_BYTES
    return {r.k[0]: k // terms} if by_rows_of_k and far and k // terms * m * n * itemsize <= PARTIAL_BYTES else {}


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


def shared_out(r: Roles, tile: Tile, machine: Machine) -> Tile:
    """The tile, where it has parts enough; else the largest of which there are enough for blocks of rows and panels."""
    if not _is_large(r) or _parts(r, tile) >= wanted(machine):
        return tile
    sizes = itertools.product(_rows(r, tile), _columns(r, tile))
    rows, columns = max(sizes, key=lambda size: (min(_tiles(r, *size), wanted(machine)), size[0] * size[1], size[1]))
    panels, whole = -(-r.size(r.n) // columns) * r.size(r.batch), r.size(r.n) % columns == 0
    line = max(r.extents[r.m[-1]] // rows, 1) if tile.a == WINDOWS else 1
    return replace(
        tile,
        rows=rows,
        columns=columns,
        b=tile.b if whole or r.panels[1 - r.a] else PACKED,
        order=GRID,
        block=_block(-(-r.size(r.m) // rows), panels, line, machine),
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
    if tile.order == GRID:
        blocks = -(-r.size(r.m) // (tile.rows * tile.block))
        return r.size(r.batch) * blocks * -(-r.size(r.n) // tile.columns)
    own = r.size(r.n) / tile.columns if tile.order == PANELS else r.size(r.m) / (tile.rows * tile.block)
    return r.size(r.batch) * -int(-own // 1)


def _tiles(r: Roles, rows: int, columns: int) -> int:
    return r.size(r.batch) * -(-r.size(r.m) // rows) * -(-r.size(r.n) // columns)


def _rows(r: Roles, tile: Tile) -> list[int]:
    """Rows that tiles may have: where A is read as it lies, those that divide its own, or are boxes of windows."""
    fitting = boxes(r.extents[axis] for axis in r.m) if tile.a == WINDOWS else range(1, tile.rows + 1)
    divides = tile.a in (PACKED, WINDOWS)
    found = [rows for rows in fitting if LEAST_ROWS <= rows < tile.rows and (divides or r.size(r.m) % rows == 0)]
    return [tile.rows, *sorted(found, reverse=True)]


def _columns(r: Roles, tile: Tile) -> list[int]:
    """Columns that tiles may have: a panel's, where B lies in panels."""
    return [tile.columns] if r.panels[1 - r.a] else list(range(tile.columns, 0, -tile.lanes))
