"""The numbers of the contraction schedule, by shape and machine: which operand is A, sizes of tiles, what is packed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import tvm

from ...device.panels import step_cycles, tile_rows, tile_vectors, tiles_cycles, tiles_of
from ..roles import Roles, over_windows, turned
from ..target import Machine
from .padding import Padding, share

BLOCK_BYTES = 2 * 1024 * 1024  # of A's rows between two passes over B: what still streams well from L3
RESIDENT_BYTES = 1024 * 1024  # up to here all of A stays near, and panels of B are packed one at a time
TURN_COLUMNS = 64  # the same where A lies row by row of k, so that a line that is fetched holds a tile's rows only
NEAR_BYTES = 512 * 1024  # of such an A, whose lines are then found in L2 again for the next panel of B
FAR = 1.3  # times as slow as that are steps that read more of A where it lies
MANY_COLUMNS = 4  # for each row of a product: then threads share out the panels of B, not the rows
SMALL_BYTES = 40 * 1024  # of B, which all stays in L1: it is read where it lies, by rows of panels
PARALLEL_FLOP = 2_000_000  # about 20 us on one core; below, a parallel region costs more than it gives

# In cycles; measured on Zen 5, with AVX-512 and with AVX2.
TURNED = 17.0  # copying an element of images into rows that lie side by side, k by k
COPY = 2.0  # copying a group of neighbouring elements into a panel of windows
REGION = 17_000  # starting and ending a parallel region
SHARED = 0.8  # reading an element of a panel that another core has packed
ONE_TAP = 1.1  # times as much as predicted take tiles along the pixels of one image, whose filters have to be turned
TURN = 0.3  # storing an element of a tile along its rows, once for all steps


LIES, PACKED, GIVEN, WINDOWS = "lies", "packed", "given", "windows"
"""How an operand is read: where it lies; from a copy in panels; from panels that are given; through windows of images,
which are read where they lie, an axis of k at a time."""
PANELS, IN_BLOCKS, GRID = "panels", "blocks", "grid"
"""The order of tiles: see `product`."""


@dataclass(frozen=True)
class Tile:
    """How a product is computed.

    Attributes:
        rows: of C in a tile.
        columns: of a panel.
        lanes: of a vector.
        a: how A is read: where it lies, packed, or through windows.
        b: how B is: where it lies, packed, or from panels that are given.
        order: of tiles.
        block: tiles of rows in a block.
        parallel: threads share out the steps of the order,
        by_batch: or batches, of which there are enough.
    """

    rows: int
    columns: int
    lanes: int
    a: str
    b: str
    order: str
    block: int = 1
    parallel: bool = False
    by_batch: bool = False

    @property
    def vectors(self) -> int:
        """Vectors in a row."""
        return self.columns // self.lanes


def choose(
    r: Roles, machine: Machine, dtype: str, computed: Sequence[bool], paddings: Sequence[Padding] = ()
) -> tuple[Roles, Tile]:
    """Roles, tile sizes and packing by shape, vector width and number of registers. `computed` tells which
    reads are of a value that is made on the way, and so has to be stored somewhere before it is read again; `paddings`
    are those of a convolution's images."""
    lanes = machine.lanes(dtype)
    if any(r.panels) or (r.windows[r.a] and not r.windows[1 - r.a]):
        packed, direct = _packed(r, machine, dtype, computed), None
        if r.windows[r.a] or (packed.a == PACKED and len(r.m) > 1):
            direct = _direct(r, machine, dtype, paddings)
        if direct is None:
            return r, packed
        copied = _packed_cost(r, packed, machine) + r.size(r.m) * TURNED  # where extents have no divisors
        return (r, packed) if copied < _direct_cost(r, direct, machine, paddings) else (r, direct)
    if not r.windows[1 - r.a] and not _per_image(r):
        r = turned(r, lanes)
        return r, _packed(r, machine, dtype, computed)
    packed, windows = _packed(r, machine, dtype, computed), over_windows(r)
    direct = _direct(windows, machine, dtype, paddings)
    more = 1.0 if r.windows[1 - r.a] else ONE_TAP
    if direct is None or more * _direct_cost(windows, direct, machine, paddings) > _packed_cost(r, packed, machine):
        return r, packed
    return windows, direct


def _per_image(r: Roles) -> bool:
    """Whether one A, filters of one tap, meets the B of each batch, pixels that are contiguous."""
    shared = not any(axis in r.axes[r.a] for axis in r.batch)
    return r.size(r.batch) > 1 and shared and r.run(1 - r.a, r.n) == r.size(r.n) and len(r.n) > 1


def _packed(r: Roles, machine: Machine, dtype: str, computed: Sequence[bool]) -> Tile:
    """A tile for B in panels, read as vectors; A is read as it lies where that goes."""
    m, n, k = r.size(r.m), r.size(r.n), r.size(r.k)
    lanes, itemsize = machine.lanes(dtype), tvm.DataType(dtype).bits // 8
    rows, pack_a = tile_rows(m, machine), False
    if r.contiguous[r.a] != r.last(r.k):
        along_rows = r.contiguous[r.a] == r.last(r.m) and m == r.extents[r.last(r.m)] and not computed[r.a]
        slower = tiles_cycles(m, rows, machine) * (FAR - 1) if m * k * itemsize > NEAR_BYTES else 0.0
        pack_a = not along_rows or slower > m * TURN_COLUMNS / n
    parallel, by_batch = _is_parallel(r, machine), _by_batch(r, machine)
    split = not parallel or by_batch  # a loop that runs in parallel is not, so it has no narrower panel at its end
    few, own = m <= rows, r.panels[1 - r.a] > 0
    readable = r.contiguous[1 - r.a] == r.last(r.n) and not computed[1 - r.a]
    readable = readable and (few or k * n * itemsize <= SMALL_BYTES)
    columns = r.panels[1 - r.a] or tile_vectors(rows, n, lanes, machine, readable and split) * lanes
    whole = n % columns == 0 or split
    resident = m * k * itemsize <= RESIDENT_BYTES and _are_own(r, columns, whole, lanes, machine)
    panels = resident and -(-n // columns) * r.size(r.batch) >= machine.threads
    panels = panels or own or (readable and few and whole)
    direct_b = own or (readable and (whole or not panels))
    return Tile(
        rows,
        columns,
        lanes,
        PACKED if pack_a else LIES,
        GIVEN if own else LIES if direct_b else PACKED,
        PANELS if panels else IN_BLOCKS,
        _block(-(-m // rows), BLOCK_BYTES // (rows * k * itemsize), machine.threads if parallel else 1),
        parallel,
        parallel and by_batch,
    )


def _are_own(r: Roles, columns: int, whole: bool, lanes: int, machine: Machine) -> bool:
    """Whether threads share out the panels, each packing those that it reads, though the last is narrower than its
    tiles; else they share out the rows, after all have packed all panels."""
    m, n, k = r.size(r.m), r.size(r.n), r.size(r.k)
    if whole or r.size(r.batch) > 1:
        return whole or m < 2 * tile_rows(m, machine) * machine.threads
    rounds = -(-n // (columns * machine.threads))
    idle = m * k * (rounds * columns - n / machine.threads) * machine.fma / lanes
    return idle <= REGION + SHARED * n * k


def _direct(r: Roles, machine: Machine, dtype: str, paddings: Sequence[Padding]) -> Tile | None:
    """The cheapest tile whose rows are read from images where they lie: at addresses that differ by constants."""
    lanes, tiles = machine.lanes(dtype), []
    parallel, by_batch = _is_parallel(r, machine), _by_batch(r, machine)
    blocks = 1 if by_batch or not parallel else machine.threads
    for rows, vectors in tiles_of((r.extents[axis] for axis in r.m), machine):
        line = max(r.extents[r.m[-1]] // rows, 1)  # tiles of a row of C; a block has whole rows, else TVM finds each
        block = -(-r.size(r.m) // (rows * line * blocks)) * line  # element's place by a division of its own
        columns, own = vectors * lanes, r.panels[1 - r.a]
        if own in (0, columns):  # many panels are read once, each by one thread; few by all, for other rows
            whole = own > 0 and not by_batch and r.size(r.n) >= MANY_COLUMNS * r.size(r.m)
            b, order = GIVEN if own else PACKED, PANELS if whole else IN_BLOCKS
            tiles.append(Tile(rows, columns, lanes, WINDOWS, b, order, block, parallel, parallel and by_batch))
    row = r.extents[r.m[-1]]  # of C: of several, taps share elements, and LLVM keeps more than there are registers
    return min(tiles, key=lambda t: (round(_direct_cost(r, t, machine, paddings)), t.rows > row, -t.rows), default=None)


def _direct_cost(r: Roles, tile: Tile, machine: Machine, paddings: Sequence[Padding]) -> float:
    m, columns = r.size(r.m), -(-r.size(r.n) // tile.columns) * tile.columns
    step = step_cycles(tile.rows, tile.vectors, machine) / (tile.rows * tile.columns) * share(paddings, r, tile.rows)
    return m * columns * (step + TURN / r.size(r.k))


def _packed_cost(r: Roles, tile: Tile, machine: Machine) -> float:
    m, n = r.size(r.m), r.size(r.n)
    tiles = -(-m // tile.rows) * -(-n // tile.columns)
    copied = n * COPY / min(tile.lanes, group(r, 1 - r.a, tile.columns))
    return tiles * step_cycles(tile.rows, tile.vectors, machine) + copied


def group(r: Roles, read: int, width: int) -> int:
    """Neighbouring elements in a panel of an operand, for one k, at addresses that run on."""
    axes = r.m if read == r.a else r.n
    run = r.run(read, axes)
    return width if run == r.size(axes) else math.gcd(width, run)


def _is_parallel(r: Roles, machine: Machine) -> bool:
    return machine.threads > 1 and 2 * math.prod(r.extents) >= PARALLEL_FLOP


def _by_batch(r: Roles, machine: Machine) -> bool:
    return r.size(r.batch) >= 4 * machine.threads




def _block(tiles: int, most: int, threads: int) -> int:
    """Tiles of rows in a block: at most `most`, blocks of about one size, as many for one thread as for another."""
    blocks = -(-tiles // max(most, 1))
    blocks = -(-blocks // threads) * threads
    return -(-tiles // blocks)
