"""The tiles of a product that a CPU's registers allow, how many cycles each takes, and the best width of the panels in
which weights and filters are stored. The compiler's passes use it too, so it needs no TVM.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from ..scopes import scopes
from .machine import Machine, host_machine

MOST_VECTORS = 4  # in a row of a tile
RAGGED = 1.04  # factor of a product's time if its last tile has fewer rows, and so code of its own
DIRECT_ROWS = 4  # with this many rows or fewer, packing B costs more than it saves

# Where the time of a step of k goes, in cycles; measured on Zen 5, with AVX-512 and with AVX2.
LOAD = 0.6  # loading a vector, or an element into all lanes
LATENCY = 4.0  # of an addition: an accumulator waits for the last one
STREAM = 32  # bytes per cycle from L2, where a panel is
OVERHEAD = 0.3  # of the loop's counter and branch
VECTOR = 0.1  # more for each vector of B, whose cache line may not be there yet


def panel_columns(m: int, n: int, dtype: str) -> int:
    """The best number of columns of B's panels for a product of (m, k) and (k, n) on this CPU; 0 if B should not be
    packed."""
    if m <= DIRECT_ROWS or not scopes.own_schedules:
        return 0
    machine = host_machine()
    lanes = machine.lanes(dtype)

    def cost(tile: tuple[int, int]) -> float:
        return matrix_cycles(m, n, tile[0], tile[1] * lanes, lanes, machine)

    tiles = tiles_of(row_counts(m, machine), machine)
    whole = [tile for tile in tiles if n % (tile[1] * lanes) == 0]  # a graph packs whole panels
    return min(whole or tiles, key=cost)[1] * lanes


def filter_columns(space: tuple[int, int], filters: int, dtype: str) -> int:
    """The best number of columns of the filters' panels for a convolution with results of `space` (height, width) on
    this CPU; 0 if no number divides the filters."""
    if not scopes.own_schedules:
        return 0
    machine = host_machine()
    lanes = machine.lanes(dtype)
    tiles = [tile for tile in tiles_of(boxes(space), machine) if filters % (tile[1] * lanes) == 0]

    def cost(tile: tuple[int, int]) -> float:
        rows, vectors = tile
        return step_cycles(rows, vectors, machine) / (rows * vectors * lanes)

    return min(tiles, key=cost, default=(0, 0))[1] * lanes


def tiles_of(rows: Iterable[int], machine: Machine) -> list[tuple[int, int]]:
    """All tiles (rows, vectors per row) with a number of `rows` whose accumulators, row of B and element of A fit into
    the registers."""
    most = machine.registers * 7 // 16  # the addresses of more rows would not fit into registers
    found = itertools.product((count for count in rows if count <= most), range(1, MOST_VECTORS + 1))
    return [(count, vectors) for count, vectors in found if count * vectors + vectors + 1 <= machine.registers]


def row_counts(m: int, machine: Machine) -> range:
    """The possible numbers of rows of a tile, largest first, for a matrix of m rows: up to as many as fill the
    registers with two vectors per row."""
    return range(min(m, machine.registers * 3 // 8), 0, -1)


def boxes(extents: Iterable[int]) -> list[int]:
    """Numbers of consecutive elements, in row-major order, that form boxes, largest first: 4 x 6 has 24, 12, 6, 3, 2,
    1.
    """
    found, inner = set(), 1
    for extent in reversed(list(extents)):
        found |= {inner * part for part in range(1, extent + 1) if extent % part == 0}
        inner *= extent
    return sorted(found, reverse=True)


def step_cycles(rows: int, vectors: int, machine: Machine) -> float:
    """Cycles of a step of k in one tile of this many rows and vectors per row."""
    streamed = vectors * machine.vector_bits / 8 / STREAM
    bounds = (rows * vectors * machine.fma, (rows + vectors) * LOAD, streamed, LATENCY)
    return max(bounds) + OVERHEAD + VECTOR * vectors


def matrix_cycles(m: int, n: int, rows: int, columns: int, lanes: int, machine: Machine) -> float:
    """Cycles of a step of k in all tiles of an m x n product; the last tiles have the rows and columns that are
    left."""
    found = 0.0
    for own_rows, count in ((rows, m // rows), (m % rows, 1)):
        for own_columns, panels in ((columns, n // columns), (n % columns, 1)):
            if own_rows and own_columns:
                found += count * panels * step_cycles(own_rows, -(-own_columns // lanes), machine)
    return found * (RAGGED if m % rows and m > rows else 1.0)
