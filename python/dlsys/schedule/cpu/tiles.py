"""The tile of a product: of all that are legal the one of the fewest `cycles` on a machine."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm

from ...device.panels import boxes, matrix_cycles, row_counts, tiles_of
from ..products import Operand, Product
from ..squares import SIDE
from ..target import Machine
from .padding import Padding, share

STREAMING = 4  # times L2: a block of A so large is still fetched in time
MANY = 8  # threads, from which on tiles are made smaller until there are enough for all
PARALLEL_FLOP = 2_000_000  # about 20 us on one core; below, a parallel region costs more than it gives

# In cycles; measured on Zen 3 and Zen 5, with AVX-512 and with AVX2.
COPY = 2.0  # copying an element, or a vector of neighbours, into a panel
VECTOR = 4  # fewest neighbours that are copied as one
TURN = 1.0  # copying an element of rows along k, square by square
TURNED = 17.0  # copying an element of images into rows that lie side by side, k by k
ALONG = 0.3  # storing an element of a tile along its rows, once for all steps
REGION = 17_000  # starting and ending a parallel region
ONE_TAP = 1.1  # times as long take steps that read rows of pixels of one image
SHARED = 0.8  # reading an element of a panel that another core has packed
TERMS = 512  # of k in a part: to add up a tile of 12 x 2 vectors takes some 40 cycles, so many steps of k 6,000
FAR = 1.3  # times as long takes a step that reads a line of L3 for each element of A
REREAD = 0.01  # reading a byte again that lies in L3

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
        panels: that a block passes one part of k after another; 0 for all.
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
    panels: int = 0
    parallel: bool = False
    by_batch: bool = False


def choose(
    p: Product, machine: Machine, made: Container[Any] = (), paddings: Sequence[Padding] = ()
) -> tuple[Product, Tile]:
    """The product or its transposed one, and its tile. `made`: the buffers of what is computed on the way, and so has
    to be stored somewhere before it is read again; `paddings` are those of a convolution's images."""
    found = [(q, tile) for q in ways(p) for tile in legal(q, machine, made)]
    return min(found, key=lambda one: cycles(one[0], one[1], machine, paddings))


def ways(p: Product) -> Iterator[Product]:
    """The product, and its transposed one where that can be read."""
    yield p
    if p.b.panel or p.a.panel or p.a.windows:
        return
    if p.b.windows or _per_image(p):
        yield _over_windows(p)
    elif not p.batch:
        yield p.transposed()


def _per_image(p: Product) -> bool:
    """Whether one A, filters of one tap, meets the B of each batch, pixels that are contiguous."""
    shared = not any(axis in p.a.axes for axis in p.batch)
    return p.size(p.batch) > 1 and shared and p.run(p.b, p.n) == p.size(p.n) and len(p.n) > 1


def _over_windows(p: Product) -> Product:
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


def legal(p: Product, machine: Machine, made: Container[Any]) -> Iterator[Tile]:
    """All tiles by which the loops of a product can be written, those of more rows first."""
    m, lanes, itemsize = p.size(p.m), machine.lanes(p.dtype), tvm.DataType(p.dtype).bits // 8
    parallel = machine.threads > 1 and 2 * math.prod(p.extents) >= PARALLEL_FLOP
    by_batch = parallel and p.size(p.batch) >= 4 * machine.threads
    near = p.size(p.n) * p.size(p.k) * itemsize <= 1.25 * machine.l1
    readable = p.b.contiguous == p.last(p.n) and p.b.value.source not in made
    for a in _ways_of_a(p, made):
        counts = boxes(p.shape(p.m)) if a == WINDOWS else row_counts(m, machine)
        sizes = tiles_of(counts, machine)
        if p.b.panel:  # for which the registers may hold one row alone, or none
            given = -(-p.b.panel // lanes)
            sizes = [(rows, given) for rows, vectors in sizes if vectors == given] or [(1, given)]
        else:
            sizes = [(rows, vectors) for rows, vectors in sizes if (vectors - 1) * lanes < p.size(p.n)]
        for rows, vectors in sizes:
            ways_of_b = [GIVEN] if p.b.panel else [PACKED]
            if readable and not p.b.panel and a != WINDOWS and (near or m <= rows):
                ways_of_b.append(LIES)
            for b in ways_of_b:
                columns = p.b.panel or vectors * lanes
                panels = _panels(p, columns, machine) if parallel and not by_batch else 0
                tile = Tile(rows, columns, lanes, a, b, PANELS, 1, panels, parallel, by_batch)
                if a != WINDOWS or b == GIVEN:
                    yield tile
                if a == WINDOWS or b != GIVEN:
                    yield replace(tile, order=IN_BLOCKS, panels=0, block=_block(p, tile, machine))


def _panels(p: Product, columns: int, machine: Machine) -> int:
    """Panels of a share, so that threads have about as many."""
    panels, parts = -(-p.size(p.n) // columns), machine.threads // math.gcd(p.size(p.batch), machine.threads)
    return -(-panels // parts) if machine.threads < MANY else 1


def _ways_of_a(p: Product, made: Container[Any]) -> list[str]:
    """How A can be read: rows along k where they lie, rows along m too where no other axis is theirs; through windows;
    any from a copy."""
    if p.a.contiguous == p.last(p.k) and not p.a.windows:
        return [LIES]
    along_m = p.a.contiguous == p.last(p.m) and p.size(p.m) == p.extents[p.last(p.m)] and p.a.value.source not in made
    windows = [WINDOWS] if p.a.windows or (not along_m and len(p.m) > 1) else []
    return [*([LIES] if along_m else []), PACKED, *windows]


def _block(p: Product, tile: Tile, machine: Machine) -> int:
    """Tiles of rows in a block, whose part of A comes from L3 in time, as many for one thread as for another.
    Of images a block has whole lines of tiles: else TVM finds each element's place by a division of its own."""
    threads, tiles = machine.threads if tile.parallel and not tile.by_batch else 1, -(-p.size(p.m) // tile.rows)
    if tile.a == WINDOWS:
        line = max(p.extents[p.m[-1]] // tile.rows, 1)
        return -(-tiles // (line * threads)) * line
    nbytes = tile.rows * min(p.size(p.k), 2 * TERMS) * tvm.DataType(p.dtype).bits // 8
    blocks = -(-tiles // max(STREAMING * machine.l2 // nbytes, 1))
    return -(-tiles // (-(-blocks // threads) * threads))


def cycles(p: Product, tile: Tile, machine: Machine, paddings: Sequence[Padding] = ()) -> float:
    """Cycles that a product takes: the arithmetic of its tiles, what is read again from beyond L2, the stores along
    columns and the copies of operands; of the busiest thread, with what parallel regions cost."""
    (m, n, k), batch, itemsize = map(p.size, (p.m, p.n, p.k)), p.size(p.batch), tvm.DataType(p.dtype).bits // 8
    many = tile.parallel and machine.threads >= MANY  # which share out the tiles of any order evenly, see `sharing`
    a_bytes, b_bytes, by_panels = m * k * itemsize, n * k * itemsize, tile.order == PANELS and not many
    a_part = a_bytes if k <= 2 * TERMS else m * TERMS * itemsize
    panels, blocks = -(-n // tile.columns), 1 if by_panels or many else -(-m // (tile.rows * tile.block))
    step = matrix_cycles(m, n, tile.rows, tile.columns, tile.lanes, machine)
    if tile.a == WINDOWS:
        step *= share(paddings, p, tile.rows) * (1.0 if p.a.windows else ONE_TAP)
    if tile.a == LIES and p.a.contiguous != p.last(p.k) and a_bytes > machine.l2 and 3 * a_part > machine.l2:
        step *= FAR
    again = 0.0
    if by_panels and tile.a != WINDOWS and a_part > machine.l2:
        again = a_bytes * (panels - 1)
    if not by_panels and b_bytes > machine.l2:
        again = b_bytes * (blocks - (tile.b != PACKED))
    along = ALONG * m * n if p.n[-1] < p.m[-1] else 0.0
    work = batch * (step * k + REREAD * again + along)
    copied, shared, regions = 0.0, 0.0, 1
    if tile.a == PACKED:
        copied += _copied(p, p.a, tile.rows)
    if tile.b == PACKED:
        copied += _copied(p, p.b, tile.columns) * (batch / _own_batch(p, p.b) if by_panels else 1)
        shared, regions = (0.0, 1) if by_panels else (SHARED * n * k * _own_batch(p, p.b), 2)
    if not tile.parallel:
        return work + copied
    parts = machine.threads if many else batch * (1 if tile.by_batch else panels if by_panels else blocks)
    return work * -(-parts // machine.threads) / parts + shared + copied / machine.threads + regions * REGION


def _copied(p: Product, operand: Operand, width: int) -> float:
    """Cycles of copying an operand, once, into panels of a width."""
    elements = p.size(p.m if operand is p.a else p.n) * p.size(p.k) * _own_batch(p, operand)
    if operand is p.a:
        return elements * (TURNED if p.a.windows else COPY)
    if operand.contiguous == p.last(p.k) and not operand.windows:
        return elements * (TURN if width % SIDE == 0 else 2 * COPY)
    own = group(p, operand, width)
    return elements * COPY / (own if own >= VECTOR else 1)


def _own_batch(p: Product, operand: Operand) -> int:
    """How many matrices an operand has."""
    return p.size(tuple(axis for axis in p.batch if axis in operand.axes))


def group(p: Product, operand: Operand, width: int) -> int:
    """Neighbouring elements in a panel of an operand, for one k, at addresses that run on."""
    axes = p.m if operand is p.a else p.n
    run = p.run(operand, axes)
    return width if run == p.size(axes) else math.gcd(width, run)
