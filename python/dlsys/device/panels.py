"""The tiles of a product on a CPU, as far as its registers decide them: how many rows and vectors, and so how wide the
panels are in which a matrix of weights or filters is best stored. What changes a graph asks this too, without TVM.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from ..scopes import scopes
from .machine import Machine, host_machine

MOST_VECTORS = 4  # in a row of a tile
RAGGED = 1.04  # times as long takes a product whose last tile has fewer rows, whose code is other code
DIRECT_ROWS = 4  # up to so many rows packing B costs more than it saves

# Where the time of a step of k goes, in cycles; measured on Zen 5, with AVX-512 and with AVX2.
LOAD = 0.6  # loading a vector, or an element into all lanes
LATENCY = 4.0  # of an addition, which a tile's accumulators wait for
STREAM = 32  # bytes a cycle from L2, where a panel lies
OVERHEAD = 0.3  # of what counts the steps
VECTOR = 0.1  # of a vector of B besides, whose line may be on its way


def panel_columns(m: int, n: int, dtype: str, machine: Machine | None = None) -> int:
    """Columns of the panels that a product of (m, k) and (k, n) reads best, on this CPU or a machine; 0 where it packs
    none."""
    if m <= DIRECT_ROWS or not scopes.own_schedules:
        return 0
    machine = machine or host_machine()
    lanes = machine.lanes(dtype)

    def cost(tile: tuple[int, int]) -> float:
        return matrix_cycles(m, n, tile[0], tile[1] * lanes, lanes, machine)

    tiles = tiles_of(row_counts(m, machine), machine)
    whole = [tile for tile in tiles if n % (tile[1] * lanes) == 0]  # a graph packs whole panels
    return min(whole or tiles, key=cost)[1] * lanes


def filter_columns(space: tuple[int, int], filters: int, dtype: str, machine: Machine | None = None) -> int:
    """Columns of the panels of filters that a convolution to images of `space` reads best, on this CPU or a machine; 0
    where none divides them."""
    if not scopes.own_schedules:
        return 0
    machine = machine or host_machine()
    lanes = machine.lanes(dtype)
    tiles = [tile for tile in tiles_of(boxes(space), machine) if filters % (tile[1] * lanes) == 0]

    def cost(tile: tuple[int, int]) -> float:
        rows, vectors = tile
        return step_cycles(rows, vectors, machine) / (rows * vectors * lanes)

    return min(tiles, key=cost, default=(0, 0))[1] * lanes


def tiles_of(rows: Iterable[int], machine: Machine) -> list[tuple[int, int]]:
    """Numbers of rows, of those, and of vectors in a row, of all tiles whose accumulators, row of B and element of A
    the registers hold."""
    most = machine.registers * 7 // 16  # of more the addresses fill the other registers
    found = itertools.product((count for count in rows if count <= most), range(1, MOST_VECTORS + 1))
    return [(count, vectors) for count, vectors in found if count * vectors + vectors + 1 <= machine.registers]


def row_counts(m: int, machine: Machine) -> range:
    """Numbers of rows of a tile of matrices of m rows: with many, two vectors each fill the registers. The largest come
    first."""
    return range(min(m, machine.registers * 3 // 8), 0, -1)


def boxes(extents: Iterable[int]) -> list[int]:
    """Sizes of the blocks of several axes, in row-major order, that are boxes: 4 x 6 has 1, 2, 3, 6, 12 and 24."""
    found, inner = set(), 1
    for extent in reversed(list(extents)):
        found |= {inner * part for part in range(1, extent + 1) if extent % part == 0}
        inner *= extent
    return sorted(found, reverse=True)


def step_cycles(rows: int, vectors: int, machine: Machine) -> float:
    """Cycles of a step of k in one tile of so many rows, and vectors in each."""
    streamed = vectors * machine.vector_bits / 8 / STREAM
    bounds = (rows * vectors * machine.fma, (rows + vectors) * LOAD, streamed, LATENCY)
    return max(bounds) + OVERHEAD + VECTOR * vectors


def matrix_cycles(m: int, n: int, rows: int, columns: int, lanes: int, machine: Machine) -> float:
    """Cycles of a step of k in all tiles of an m x n product; the last of each side have what rows and columns are
    left."""
    found = 0.0
    for own_rows, count in ((rows, m // rows), (m % rows, 1)):
        for own_columns, panels in ((columns, n // columns), (n % columns, 1)):
            if own_rows and own_columns:
                found += count * panels * step_cycles(own_rows, -(-own_columns // lanes), machine)
    return found * (RAGGED if m % rows and m > rows else 1.0)
