"""The numbers of the contraction schedule, by shape and machine: which operand is A, sizes of tiles, what is packed."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm

from ...device.panels import step_cycles, tile_rows, tile_vectors, tiles_cycles, tiles_of
from ..products import Operand, Product
from ..target import Machine
from .padding import Padding, share

LONG_SUM = 64  # additions beside which storing a tile by its columns weighs little
CONFLICT = 512  # elements; rows a multiple of that apart share few lines of L1, so turning many of them is slow
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
    p: Product, machine: Machine, made: Container[Any] = (), paddings: Sequence[Padding] = ()
) -> tuple[Product, Tile]:
    """The product or its transposed one, and its tile. `made`: the buffers of what is computed on the way, and so has
    to be stored somewhere before it is read again; `paddings` are those of a convolution's images."""
    if p.a.panel or p.b.panel or (p.a.windows and not p.b.windows):
        packed, direct = _packed(p, machine, made), None
        if p.a.windows or (packed.a == PACKED and len(p.m) > 1):
            direct = _direct(p, machine, paddings)
        if direct is None:
            return p, packed
        copied = _packed_cost(p, packed, machine) + p.size(p.m) * TURNED  # where extents have no divisors
        return (p, packed) if copied < _direct_cost(p, direct, machine, paddings) else (p, direct)
    if not p.b.windows and not _per_image(p):
        p = turned(p, machine.lanes(p.dtype))
        return p, _packed(p, machine, made)
    packed, windows = _packed(p, machine, made), over_windows(p)
    direct = _direct(windows, machine, paddings)
    more = 1.0 if p.b.windows else ONE_TAP
    if direct is None or more * _direct_cost(windows, direct, machine, paddings) > _packed_cost(p, packed, machine):
        return p, packed
    return windows, direct


def turned(p: Product, lanes: int) -> Product:
    """The transposed product, C^T = B^T A^T, where A too lies ready for vectors and fewer of them are needed, or where
    both lie row by row of k, so that one has to be turned for vectors, and A is the smaller one.

    The tile is then stored column by column, which is little work beside a long sum.
    """
    m, n = p.size(p.m), p.size(p.n)
    if p.batch or p.size(p.k) < LONG_SUM:
        return p
    by_row = (p.a.contiguous, p.b.contiguous) == (p.last(p.k), p.last(p.k))
    if by_row and m < n and (m <= 2 * lanes or p.size(p.k) % CONFLICT == 0):
        return p.transposed()
    if p.a.contiguous != p.m[-1]:
        return p

    def waste(columns: int) -> float:
        return -(-columns // lanes) * lanes / columns

    if waste(n) <= 1.02 * waste(m):
        return p
    return p.transposed()


def over_windows(p: Product) -> Product:
    """The transposed product of a convolution: m runs over the windows, n over the operand that has none.

    The axis of k that shares an index with m's last one does not come last: two of its steps read the same
    elements for two rows, and the compiler, to load them once, would keep more of them than there are registers.
    """
    p = p.transposed()
    beside = {i for window in p.a.windows if p.m[-1] in window for i in window}
    k = [i for i in p.k if i not in beside]
    at = k.index(p.last(tuple(k))) if k else 0
    k[at:at] = [i for i in p.k if i in beside]
    return replace(p, k=tuple(k))


def _per_image(p: Product) -> bool:
    """Whether one A, filters of one tap, meets the B of each batch, pixels that are contiguous."""
    shared = not any(axis in p.a.axes for axis in p.batch)
    return p.size(p.batch) > 1 and shared and p.run(p.b, p.n) == p.size(p.n) and len(p.n) > 1


def _packed(p: Product, machine: Machine, made: Container[Any]) -> Tile:
    """A tile for B in panels, read as vectors; A is read as it lies where that goes."""
    m, n, k = p.size(p.m), p.size(p.n), p.size(p.k)
    lanes, itemsize = machine.lanes(p.dtype), tvm.DataType(p.dtype).bits // 8
    rows, pack_a = tile_rows(m, machine), False
    if p.a.contiguous != p.last(p.k):
        along_rows = p.a.contiguous == p.last(p.m) and m == p.extents[p.last(p.m)] and p.a.value.source not in made
        slower = tiles_cycles(m, rows, machine) * (FAR - 1) if m * k * itemsize > NEAR_BYTES else 0.0
        pack_a = not along_rows or slower > m * TURN_COLUMNS / n
    parallel, by_batch = _is_parallel(p, machine), _by_batch(p, machine)
    split = not parallel or by_batch  # a loop that runs in parallel is not, so it has no narrower panel at its end
    few, own = m <= rows, p.b.panel > 0
    readable = p.b.contiguous == p.last(p.n) and p.b.value.source not in made
    readable = readable and (few or k * n * itemsize <= SMALL_BYTES)
    columns = p.b.panel or tile_vectors(rows, n, lanes, machine, readable and split) * lanes
    whole = n % columns == 0 or split
    resident = m * k * itemsize <= RESIDENT_BYTES and _are_own(p, columns, whole, lanes, machine)
    panels = resident and -(-n // columns) * p.size(p.batch) >= machine.threads
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


def _are_own(p: Product, columns: int, whole: bool, lanes: int, machine: Machine) -> bool:
    """Whether threads share out the panels, each packing those that it reads, though the last is narrower than its
    tiles; else they share out the rows, after all have packed all panels."""
    m, n, k = p.size(p.m), p.size(p.n), p.size(p.k)
    if whole or p.size(p.batch) > 1:
        return whole or m < 2 * tile_rows(m, machine) * machine.threads
    rounds = -(-n // (columns * machine.threads))
    idle = m * k * (rounds * columns - n / machine.threads) * machine.fma / lanes
    return idle <= REGION + SHARED * n * k


def _direct(p: Product, machine: Machine, paddings: Sequence[Padding]) -> Tile | None:
    """The cheapest tile whose rows are read from images where they lie: at addresses that differ by constants."""
    lanes, tiles = machine.lanes(p.dtype), []
    parallel, by_batch = _is_parallel(p, machine), _by_batch(p, machine)
    blocks = 1 if by_batch or not parallel else machine.threads
    for rows, vectors in tiles_of((p.extents[axis] for axis in p.m), machine):
        line = max(p.extents[p.m[-1]] // rows, 1)  # tiles of a row of C; a block has whole rows, else TVM finds each
        block = -(-p.size(p.m) // (rows * line * blocks)) * line  # element's place by a division of its own
        columns, own = vectors * lanes, p.b.panel
        if own in (0, columns):  # many panels are read once, each by one thread; few by all, for other rows
            whole = own > 0 and not by_batch and p.size(p.n) >= MANY_COLUMNS * p.size(p.m)
            b, order = GIVEN if own else PACKED, PANELS if whole else IN_BLOCKS
            tiles.append(Tile(rows, columns, lanes, WINDOWS, b, order, block, parallel, parallel and by_batch))
    row = p.extents[p.m[-1]]  # of C: of several, taps share elements, and LLVM keeps more than there are registers
    return min(tiles, key=lambda t: (round(_direct_cost(p, t, machine, paddings)), t.rows > row, -t.rows), default=None)


def _direct_cost(p: Product, tile: Tile, machine: Machine, paddings: Sequence[Padding]) -> float:
    m, columns = p.size(p.m), -(-p.size(p.n) // tile.columns) * tile.columns
    step = step_cycles(tile.rows, tile.vectors, machine) / (tile.rows * tile.columns) * share(paddings, p, tile.rows)
    return m * columns * (step + TURN / p.size(p.k))


def _packed_cost(p: Product, tile: Tile, machine: Machine) -> float:
    m, n = p.size(p.m), p.size(p.n)
    tiles = -(-m // tile.rows) * -(-n // tile.columns)
    copied = n * COPY / min(tile.lanes, group(p, p.b, tile.columns))
    return tiles * step_cycles(tile.rows, tile.vectors, machine) + copied


def group(p: Product, operand: Operand, width: int) -> int:
    """Neighbouring elements in a panel of an operand, for one k, at addresses that run on."""
    axes = p.m if operand is p.a else p.n
    run = p.run(operand, axes)
    return width if run == p.size(axes) else math.gcd(width, run)


def _is_parallel(p: Product, machine: Machine) -> bool:
    return machine.threads > 1 and 2 * math.prod(p.extents) >= PARALLEL_FLOP


def _by_batch(p: Product, machine: Machine) -> bool:
    return p.size(p.batch) >= 4 * machine.threads




def _block(tiles: int, most: int, threads: int) -> int:
    """Tiles of rows in a block: at most `most`, blocks of about one size, as many for one thread as for another."""
    blocks = -(-tiles // max(most, 1))
    blocks = -(-blocks // threads) * threads
    return -(-tiles // blocks)
