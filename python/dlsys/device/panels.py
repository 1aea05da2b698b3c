"""The tiles of a product on a CPU, as far as its registers decide them: how many rows and vectors, and so how wide the
panels are in which a matrix of weights or filters is best stored. What changes a graph asks this too, without TVM.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from ..scopes import scopes
from .machine import Machine, host_machine

ROWS = {16: 6, 32: 12}  # rows of a tile by number of vector registers: 6 x 2 accumulators, 2 of B, 1 of A
VECTORS = 2  # vectors in a row of the tile
MOST_VECTORS = 4
RAGGED = 1.04  # times as long takes a last tile with fewer rows, whose code is other code
DIRECT_ROWS = 4  # up to so many rows packing B costs more than it saves

# Where the time of a step of k goes, in cycles; measured on Zen 5, with AVX-512 and with AVX2.
LOAD = 0.6  # loading a vector, or an element into all lanes
LATENCY = 4.0  # of an addition, which a tile's accumulators wait for
STREAM = 32  # bytes a cycle from L2, where a panel lies
OVERHEAD = 0.5  # of what counts the steps


def panel_columns(m: int, n: int, dtype: str, machine: Machine | None = None) -> int:
    """Columns of the panels that a product of (m, k) and (k, n) reads best, on this CPU or a machine; 0 where it packs
    none."""
    if m <= DIRECT_ROWS or not scopes.own_schedules:
        return 0
    machine = machine or host_machine()
    lanes = machine.lanes(dtype)
    return tile_vectors(tile_rows(m, machine), n, lanes, machine, False) * lanes


def filter_columns(space: tuple[int, int], filters: int, dtype: str, machine: Machine | None = None) -> int:
    """Columns of the panels of filters that a convolution to images of `space` reads best, on this CPU or a machine; 0
    where none divides them."""
    if not scopes.own_schedules:
        return 0
    machine = machine or host_machine()
    lanes = machine.lanes(dtype)
    tiles = [tile for tile in tiles_of(space, machine) if filters % (tile[1] * lanes) == 0]

    def cost(tile: tuple[int, int]) -> float:
        rows, vectors = tile
        return step_cycles(rows, vectors, machine) / (rows * vectors * lanes)

    return min(tiles, key=cost, default=(0, 0))[1] * lanes


def most_rows(machine: Machine) -> int:
    """The most rows of a tile of two vectors."""
    return ROWS.get(machine.registers, 6)


def tiles_of(extents: Iterable[int], machine: Machine) -> list[tuple[int, int]]:
    """The rows, which are boxes of those extents, and vectors in a row of all tiles whose accumulators, row of B and
    element of A the registers hold."""
    found = itertools.product(boxes(extents), range(1, MOST_VECTORS + 1))
    return [(rows, vectors) for rows, vectors in found if rows * vectors + vectors + 1 <= machine.registers]


def boxes(extents: Iterable[int]) -> set[int]:
    """Sizes of the blocks of several axes, in row-major order, that are boxes: 4 x 6 has 1, 2, 3, 6, 12 and 24."""
    found, inner = set(), 1
    for extent in reversed(list(extents)):
        found |= {inner * part for part in range(1, extent + 1) if extent % part == 0}
        inner *= extent
    return found


def step_cycles(rows: int, vectors: int, machine: Machine) -> float:
    """Cycles of a step of k in one tile of so many rows, and vectors in each."""
    streamed = vectors * machine.vector_bits / 8 / STREAM
    bounds = (rows * vectors * machine.fma, (rows + vectors) * LOAD, streamed, LATENCY)
    return max(bounds) + OVERHEAD


def tile_rows(m: int, machine: Machine) -> int:
    """Rows of a tile of two vectors: least time over m."""
    most = most_rows(machine)
    return min(range(min(m, most), most // 2, -1), key=lambda rows: tiles_cycles(m, rows, machine), default=m)


def tiles_cycles(m: int, rows: int, machine: Machine) -> float:
    """Cycles of a step of k in all tiles of so many rows; the last has those that are left."""
    whole, rest = divmod(m, rows)
    cycles = whole * step_cycles(rows, VECTORS, machine)
    return (cycles + step_cycles(rest, VECTORS, machine)) * RAGGED if rest else cycles


def tile_vectors(rows: int, n: int, lanes: int, machine: Machine, narrower: bool) -> int:
    """Vectors in a row of the tile: as many as keep the accumulators in registers, without much beyond the edge, or
    where the last panel may be `narrower` in the least time."""
    most = min(max(VECTORS, (machine.registers - 4) // rows), MOST_VECTORS)
    if narrower and n > lanes:

        def cost(count: int) -> float:
            panels, rest = divmod(n, count * lanes)
            own = panels * step_cycles(rows, count, machine)
            return own + (step_cycles(rows, -(-rest // lanes), machine) if rest else 0)

        return min(range(most, 0, -1), key=cost)
    padded = {count: -(-n // (count * lanes)) * count for count in range(1, most + 1)}
    least = min(padded.values())
    return max(
        count for count, total in padded.items() if total <= least * (1.05 if count > VECTORS else 1.15)
    )
