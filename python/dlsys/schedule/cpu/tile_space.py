"""The space of a product's tiles, by the names of their knobs: `tiles.choose` takes one of it by its model of cycles, a
search by measurements."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..knobs import Knobs, Space
from ..products import Product
from ..target import Machine
from .padding import Padding
from .tiles import BEFORE, GIVEN, LIES, PACKED, TERMS, WINDOWS, Tile, arithmetic, cycles, legal, part_of, ways

READS = (LIES, PACKED, BEFORE, GIVEN, WINDOWS)
NAMES = ("transposed", "rows", "vectors", "a", "b")  # of what a tile is, but for its shares


def space(
    own: tuple[Product, Tile], p: Product, machine: Machine, made: Container[Any], paddings: Sequence[Padding]
) -> Space:
    """The tiles of a product and of its transposed one (`tiles.choose`). Knobs: `transposed`; `rows` of a tile,
    `vectors` of a panel; how `a` and `b` are read; `blocks` of the rows' tiles, `groups` of panels; the terms' `depth`;
    `threads` (0: one, 1: by shares, 2: by batches); `fetches`."""
    products = {int(q is not p): q for q in ways(p)}
    turned = int(own[0] is not p)
    products[turned] = own[0]
    whole = {key: tile for number, q in products.items() for key, tile in _tiles(number, q, machine, made).items()}
    chosen = _knobs(turned, *own)
    whole.setdefault(_key(chosen), own[1])
    columns = {name: {key[at] for key in whole} for at, name in enumerate(NAMES)}
    tiles = max(-(-q.size(q.m) // key[1]) for key in whole for q in [products[key[0]]])
    panels = max(-(-q.size(q.n) // tile.columns) for key, tile in whole.items() for q in [products[key[0]]])
    several = machine.threads > 1 and any(tile.parallel for tile in whole.values())
    counts = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128)
    depths = (64, 96, 128, 192, 256, 384, TERMS)
    domains: dict[str, set[Any]] = {
        **columns,
        "blocks": {count for count in counts if count <= tiles},
        "groups": {count for count in counts if count <= panels},
        "depth": {*depths} if len(p.k) == 1 and p.sizes[3] > 2 * depths[0] else set(),
        "threads": {0, 1, *([2] if p.sizes[0] > 1 else [])} if several else {0},
        "fetches": {0, 1},
    }
    for name, value in chosen.items():
        domains[name].add(value)

    def make(knobs: Knobs) -> tuple[Product, Tile] | None:
        if knobs == chosen:
            return own
        if (base := whole.get(_key(knobs))) is None:
            return None
        numbers = (int(knobs[name]) for name in ("transposed", "blocks", "groups", "depth", "threads", "fetches"))
        turned, blocks, groups, depth, threads, fetches = numbers
        q = products[turned]
        all_tiles, all_panels = -(-q.size(q.m) // base.rows), -(-q.size(q.n) // base.columns)
        if blocks > all_tiles or groups > all_panels:
            return None
        tile = replace(
            base, a=str(knobs["a"]), b=str(knobs["b"]), depth=depth, block=-(-all_tiles // blocks),
            panels=-(-all_panels // groups), fetches=fetches > 0, parallel=threads > 0, by_batch=threads == 2,
        )  # fmt: skip
        return None if tile.shares(q) != (blocks, groups) else (q, tile)  # other knobs have this tile

    def features(knobs: Knobs) -> Sequence[float]:
        found = make(knobs)
        assert found is not None
        return _features(*found, machine, paddings)

    ordered = {name: tuple(sorted(values, key=_order)) for name, values in domains.items()}
    return Space("product", chosen, ordered, make, features, 2.0 * math.prod(p.sizes))


def _order(value: int | str) -> int:
    return READS.index(value) if isinstance(value, str) else value


def _key(knobs: Knobs) -> tuple[Any, ...]:
    return tuple(knobs[name] for name in NAMES)


def _knobs(turned: int, p: Product, tile: Tile) -> dict[str, int | str]:
    """The knobs of a tile."""
    blocks, groups = tile.shares(p)
    return {
        "transposed": turned, "rows": tile.rows, "vectors": -(-tile.columns // tile.lanes), "a": tile.a, "b": tile.b,
        "blocks": blocks, "groups": groups, "depth": tile.depth,
        "threads": 2 * tile.by_batch or int(tile.parallel), "fetches": int(tile.fetches),
    }  # fmt: skip


def _tiles(number: int, p: Product, machine: Machine, made: Container[Any]) -> Mapping[tuple[Any, ...], Tile]:
    """The tiles of a product by key: what is packed may be packed before, B be read where it lies."""
    found: dict[tuple[Any, ...], Tile] = {}
    readable = p.b.contiguous == p.last(p.n) and p.b.value.source not in made and not p.b.panel
    for tile in legal(p, machine, made):
        ways_of_a = [PACKED, BEFORE] if tile.a in (PACKED, BEFORE) else [tile.a]
        ways_of_b = [PACKED, BEFORE] if tile.b in (PACKED, BEFORE) else [tile.b]
        if readable and tile.a != WINDOWS and LIES not in ways_of_b:
            ways_of_b.append(LIES)
        for a in ways_of_a:
            for b in ways_of_b:
                found[number, tile.rows, -(-tile.columns // tile.lanes), a, b] = tile
    return found


def _features(p: Product, tile: Tile, machine: Machine, paddings: Sequence[Padding]) -> list[float]:
    """Numbers that may say how long a tile's loops take: sizes, knobs, terms of `cycles`, working sets against
    the caches and registers; logarithms, but for what is a yes or no."""
    batch, m, n, k = p.sizes
    work = arithmetic(p, tile, machine, paddings)
    depth = part_of(p, tile)
    a_part, b_part = tile.rows * tile.block * depth * p.itemsize, tile.columns * depth * p.itemsize
    rows, vectors, panels = -(-m // tile.rows), -(-tile.columns // tile.lanes), -(-n // tile.columns)
    sizes = (batch, m, n, k, tile.rows, vectors, tile.block, tile.panels, depth, *tile.shares(p))
    flop = 2.0 * math.prod(p.sizes)
    costs = (cycles(p, tile, machine, work) / flop, work / flop, cycles(p, tile, machine, 0.0) / flop)
    ragged = (m / (rows * tile.rows), n / (panels * tile.columns), n % tile.lanes / tile.lanes)
    held = (a_part / machine.l2, b_part / machine.l1, (b_part + tile.rows * depth * p.itemsize) / machine.l1,
            tile.panels * b_part / machine.l2, n * k * p.itemsize / machine.l2, n * k * p.itemsize / machine.l3,
            m * k * p.itemsize / machine.l2, m * n * p.itemsize / machine.l2)  # fmt: skip
    used = (tile.rows * vectors + vectors + 1) / machine.registers
    read = [float(way == one) for way in (tile.a, tile.b) for one in READS]
    along = [float(p.n[-1] < p.m[-1]), float(p.a.contiguous == p.last(p.k)), float(p.b.contiguous == p.last(p.n))]
    logs = [round(math.log2(max(value, 1e-9)), 2) for value in (*costs, flop, *sizes, *held)]
    others = [*read, *along, float(tile.parallel), float(tile.fetches), float(tile.lanes)]
    return [*logs, *(round(value, 3) for value in (*ragged, used)), *others]
