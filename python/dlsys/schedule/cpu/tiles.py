"""The tile of a product: of all that are legal the one of the fewest `cycles` on a machine."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ...devices.panels import boxes, matrix_cycles, row_counts, tiles_of
from ..common import SHORT
from ..products import Operand, Product
from ..squares import CONSTANTS, SIDE
from ..target import Machine

MANY = 8  # threads, from which on all are given shares, and twice as many as there are: none waits long for another
PARALLEL_FLOP = 2_000_000  # about 20 us on one core; below, a parallel region costs more than it gives
FEW = 8  # tiles that pass a panel, up to which it is read where it lies
SETS = 64  # of lines in L1: rows at a distance of so many lines, or a multiple, share one
FINER = 4  # times as many blocks of rows as needed are looked at, for threads to have equal parts
TERMS = 512  # of k in a part: to add up a tile of 12 x 2 vectors takes some 40 cycles, so many steps of k 6,000

# In cycles; measured on Zen 3 and Zen 5, with AVX-512 and with AVX2.
COPY = 1.0  # copying an element, or a vector of neighbours, into a panel; twice that of several taps
TURN = 0.25  # copying an element of rows along k, or storing one of a tile along its rows, square by square
TURNED = 17.0  # copying an element of images into rows that lie side by side, k by k
ALONG = 0.5  # storing one of a tile along its rows column by column, once for all steps
REGION = 17_000  # starting and ending a parallel region
ONE_TAP = 1.1  # times as long take steps that read rows of pixels of one image
SHARED = 0.8  # reading an element of a panel that another core has packed
LINE = 16.0  # the least of a step that reads a line from beyond L1 for A; copying one from beyond L2 takes twice that
REREAD = 0.01  # reading a byte again that lies in L3
PIECE = 25.0  # the least of storing a row of a tile where C's rows share sets

LIES, PACKED, BEFORE, GIVEN, WINDOWS = "lies", "packed", "before", "given", "windows"
"""How an operand is read: where it lies; from panels that a share packs, a part of k at a time, that are packed before,
or that are given; through windows of images, which are read where they lie, an axis of k at a time."""


@dataclass(frozen=True)
class Tile:
    """How a product is computed: `rows` of C in a tile, `columns` of a panel, `lanes` of a vector; how A and B are
    read; a thread's share of C, `block` tiles along the rows and `panels` along the columns; whether threads compute
    shares (`parallel`), or whole batches (`by_batch`)."""

    rows: int
    columns: int
    lanes: int
    a: str
    b: str
    block: int
    panels: int
    parallel: bool = False
    by_batch: bool = False

    def turns(self, p: Product, machine: Machine) -> bool:
        """Whether the tile leaves registers for what exchanges of squares need. Else LLVM, which keeps that through all
        loops, does not keep the sums."""
        held = (self.rows + 1) * -(-self.columns // self.lanes) + 1
        return p.itemsize == 4 and held <= machine.registers - CONSTANTS

    def stores_squares(self, p: Product, machine: Machine, rows: int, columns: int) -> bool:
        """Whether so many rows and columns of the tile are turned square by square to be stored along the rows."""
        return 2 * rows >= SIDE and columns % SIDE == 0 and self.turns(p, machine)

    def shares(self, p: Product) -> tuple[int, int]:
        """How many there are of a batch, along the rows and along the columns."""
        return -(-p.size(p.m) // (self.rows * self.block)), -(-p.size(p.n) // (self.columns * self.panels))

    def parts(self, p: Product) -> int:
        """The parts among which threads share out the work."""
        return int(p.size(p.batch) * (1 if self.by_batch else math.prod(self.shares(p))))


def choose(p: Product, machine: Machine, made: Container[Any] = ()) -> tuple[Product, Tile]:
    """The product or its transposed one, and its tile. `made`: the buffers of what is computed on the way, and so has
    to be stored somewhere before it is read again."""
    least, best = wanted(machine, p), None
    sizes = ((way, whole) for way in ways(p) for whole in _sizes(way, machine, made))
    for q, whole in sizes:
        work = arithmetic(q, whole, machine)
        if best is not None and best[0] <= (0, work / machine.threads):
            continue
        for tile in _shared(q, whole, machine):
            cost = max(least - tile.parts(q), 0), cycles(q, tile, machine, work)
            if best is None or cost < best[0]:
                best = cost, (q, tile)
    assert best is not None
    return best[1]


def wanted(machine: Machine, p: Product | None = None) -> int:
    """The parts that many threads should have, of a product if more regions take less time than they spare; 1 for few
    threads."""
    small = p is not None and 2 * math.prod(p.extents) < 5 * PARALLEL_FLOP
    return 1 if small or machine.threads < MANY else 2 * machine.threads


def least_parts(machine: Machine) -> int:
    """The parts that any work for threads should have."""
    return max(wanted(machine), machine.threads)


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
    shared, contiguous = not any(axis in p.a.axes for axis in p.batch), p.run(p.b, p.n) == p.n
    return shared and len(p.n) > 1 and (p.size(p.batch) > 1 if contiguous else p.b.contiguous != p.last(p.n))


def _over_windows(p: Product) -> Product:
    """The transposed product of a convolution: m runs over the windows. The axis of k that shares an index with m's
    last one does not come last: the compiler would load its elements for two rows once, into more registers than there
    are."""
    p = p.transposed()
    beside = {i for window in p.a.windows if p.m[-1] in window for i in window}
    k = [i for i in p.k if i not in beside]
    at = k.index(p.last(tuple(k))) if k else 0
    k[at:at] = [i for i in p.k if i in beside]
    return replace(p, k=tuple(k))


def _sizes(p: Product, machine: Machine, made: Container[Any]) -> Iterator[Tile]:
    """All sizes of tiles and ways to read operands, those of more rows first; with one share of all."""
    (batch, m, n, k), lanes = p.sizes, machine.lanes(p.dtype)
    parallel = machine.threads > 1 and 2 * math.prod(p.extents) >= PARALLEL_FLOP
    by_batch = parallel and batch >= 4 * machine.threads
    near = n * k * p.itemsize <= 1.25 * machine.l1
    readable = p.b.contiguous == p.last(p.n) and p.b.value.source not in made
    for a in _ways_of_a(p, made):
        counts = boxes(p.shape(p.m)) if a == WINDOWS else row_counts(m, machine)
        sizes = tiles_of(counts, machine)
        if p.b.panel:  # for which the registers may hold one row alone, or none
            given = -(-p.b.panel // lanes)
            sizes = [(rows, given) for rows, vectors in sizes if vectors == given] or [(1, given)]
        else:
            sizes = [(rows, vectors) for rows, vectors in sizes if (vectors - 1) * lanes < n]
        for rows, vectors in sizes:
            columns = p.b.panel or vectors * lanes
            ways_of_b = [GIVEN] if p.b.panel else [PACKED]
            few = near or m <= (2 if _shares_a_set(p, machine) else FEW) * rows
            if readable and not p.b.panel and p.intrinsic is None and a != WINDOWS and few:
                ways_of_b.append(LIES)
            for b in ways_of_b:
                block, panels = -(-p.size(p.m) // rows), -(-p.size(p.n) // columns)
                yield Tile(rows, columns, lanes, a, b, block, panels, parallel, by_batch)


def _shares_a_set(p: Product, machine: Machine) -> bool:
    """Whether the rows of B, k by k, share a few lines of L1."""
    stride = 0 if p.b.strides is None else p.b.strides[p.last(p.k)] * p.itemsize
    return stride % (SETS * machine.line) == 0


def _is_across(p: Product, tile: Tile) -> bool:
    """Whether each step of k reads another line of A."""
    return tile.a == LIES and p.a.contiguous != p.last(p.k)


def _shared(p: Product, whole: Tile, machine: Machine) -> Iterator[Tile]:
    """The tile with shares: panels that all rows pass, blocks of rows that pass all panels, and for many threads blocks
    that pass one. Operands are packed before of which else several shares would pack the same."""
    threads, batch = machine.threads if whole.parallel and not whole.by_batch else 1, p.sizes[0]
    least = max(threads, wanted(machine, p)) if threads > 1 else 1
    shares = list[tuple[int, int]]()
    if whole.a != WINDOWS or whole.b == GIVEN:
        shares.append((whole.block, -(-whole.panels // (least // math.gcd(batch, least)))))
    if whole.a == WINDOWS or whole.b != GIVEN:
        shares.append((_block(p, whole, batch, least, machine), whole.panels))
    if threads >= MANY:
        shares.append((_block(p, whole, batch * whole.panels, least, machine), 1))
    for block, panels in dict.fromkeys(shares):
        many = panels < whole.panels or batch > p.matrices[0], block < whole.block or batch > p.matrices[1]
        ways = zip((whole.a, whole.b), many, strict=True)
        a, b = (BEFORE if way == PACKED and several else way for way, several in ways)
        yield replace(whole, a=a, b=b, block=block, panels=panels)


def _block(p: Product, whole: Tile, steps: int, least: int, machine: Machine) -> int:
    """Tiles of rows in a block, which passes so many steps: its part of A lies in L2, and no thread has many more tiles
    than others. Of images whole lines of tiles, or a part of one: else each element's place takes a division."""
    tiles, line, fitting = whole.block, 1, whole.block
    if whole.a == WINDOWS:
        line = max(p.extents[p.m[-1]] // whole.rows, 1)
    else:
        fitting = max(machine.l2 // (whole.rows * min(p.sizes[3], 2 * TERMS) * p.itemsize), 1)
    blocks = max(-(-tiles // fitting), min(-(-least // steps), tiles))
    threads = machine.threads if least > 1 else 1
    found = (-(-tiles // count) for count in range(blocks, min(FINER * blocks, tiles) + 1))
    sizes = {-(-size // line) * line if size > line else size for size in found}
    sizes = {size for size in sizes if line % size == 0 or size % line == 0} | ({1} if threads >= MANY else set())

    def most(block: int) -> int:
        return -(-(-(-tiles // block) * steps) // threads) * block

    return min(sorted(sizes, reverse=True), key=most)


def _ways_of_a(p: Product, made: Container[Any]) -> list[str]:
    """How A can be read: rows along k, or along m alone, where they lie; through windows; any from a copy."""
    if p.a.contiguous == p.last(p.k) and not p.a.windows:
        return [LIES]
    along_m = p.a.contiguous == p.last(p.m) and p.size(p.m) == p.extents[p.last(p.m)] and p.a.value.source not in made
    windows = [WINDOWS] if p.a.windows or (not along_m and len(p.m) > 1) else []
    return [*([LIES] if along_m else []), PACKED, *windows]


def arithmetic(p: Product, tile: Tile, machine: Machine) -> float:
    """Cycles of the multiply-adds of all tiles."""
    batch, m, n, k = p.sizes
    step = matrix_cycles(m, n, tile.rows, tile.columns, tile.lanes, machine)
    if tile.a == WINDOWS and not p.a.windows:
        step *= ONE_TAP
    if _is_across(p, tile):
        step = max(step, -(-m // tile.rows) * -(-n // tile.columns) * _line_cycles(p, tile, machine))
    return batch * step * k


def _line_cycles(p: Product, tile: Tile, machine: Machine) -> float:
    """The least cycles of a step of k that reads another line of A; some distances have few places in L1."""
    row, k = p.size(p.m) * p.itemsize, p.sizes[3]
    far = row * k > machine.l2 and 3 * row * min(k, 2 * TERMS) > machine.l2
    sets = machine.l1 // (machine.ways * machine.line)
    apart = math.gcd(row // machine.line, sets) if row % machine.line == 0 else 1
    return LINE if far or part_of(p) > machine.ways * sets // apart else 0.0


def part_of(p: Product) -> int:
    """Terms in a part of k."""
    return p.sizes[3] if p.sizes[3] <= 2 * TERMS else TERMS


def cycles(p: Product, tile: Tile, machine: Machine, work: float) -> float:
    """Cycles of a product whose multiply-adds take so many: with what is read again from beyond L2, stores along
    columns, copies of operands and parallel regions, of the busiest thread."""
    batch, m, n, k = p.sizes
    a_bytes, b_bytes, panels = m * k * p.itemsize, n * k * p.itemsize, -(-n // tile.columns)
    again, (blocks, groups) = 0.0, map(int, tile.shares(p))
    if p.n[-1] > p.m[-1] and n * p.itemsize % (SETS * machine.line // 2) == 0:
        work = max(work, PIECE * batch * m * panels)
    if tile.a != WINDOWS and min(tile.rows * tile.block, m) * part_of(p) * p.itemsize > machine.l2:
        again = a_bytes * (panels - 1)
    if b_bytes > machine.l2:
        again += b_bytes * (blocks - (tile.b != BEFORE))
    along = TURN if tile.stores_squares(p, machine, min(tile.rows, m), tile.columns) else ALONG
    work += batch * (REREAD * again + (along * m * n if p.n[-1] < p.m[-1] else 0.0))
    ways = ((p.a, tile.a), (p.b, tile.b))
    copied = sum(_copied(p, one, tile, machine) for one, way in ways if way in (PACKED, BEFORE))
    if not tile.parallel:
        return work + copied
    regions = 1 + (BEFORE in (tile.a, tile.b))
    shared = SHARED * n * k * p.matrices[1] if tile.b == BEFORE else 0.0
    if tile.by_batch:
        busiest = -(-batch // machine.threads) / batch
    else:
        own = min(tile.rows * tile.block / m, 1.0) * min(tile.panels / panels, 1.0)
        busiest = -(-batch * blocks * groups // machine.threads) * own / batch
    return work * busiest + shared + copied / machine.threads + regions * REGION


def _copied(p: Product, operand: Operand, tile: Tile, machine: Machine) -> float:
    """Cycles of copying an operand, once, into the tile's panels."""
    (_, m, n, k), width = p.sizes, tile.rows if operand is p.a else tile.columns
    elements = k * (m * p.matrices[0] if operand is p.a else n * p.matrices[1])
    if operand is p.a:
        each = TURNED if p.a.windows else 2 * COPY
    elif operand.contiguous == p.last(p.k) and not operand.windows:
        turns = tile.turns(p, machine) or n % SIDE == k % SIDE == 0
        each = TURN if turns and width % SIDE == 0 and n > SIDE else 4 * COPY
    else:
        own, step = group(p, operand, width), 0 if operand.strides is None else operand.strides[p.last(p.n)]
        each = (2 if operand.windows else 1) * COPY / (own if own >= SHORT else 1)
        if step * p.itemsize >= machine.line and elements * p.itemsize > machine.l2:
            each = 2 * LINE * p.itemsize / machine.line
    return elements * each


def group(p: Product, operand: Operand, width: int) -> int:
    """Neighbouring elements in a panel of an operand, for one k, at addresses that run on."""
    axes = p.m if operand is p.a else p.n
    run = p.size(p.run(operand, axes))
    return width if run == p.size(axes) else math.gcd(width, run)
