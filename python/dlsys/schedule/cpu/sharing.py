"""Sums cut for many threads.

A long sum of a small result, as the gradient of a few filters is, has too few tiles for many threads. Its parts are
sums by themselves, which are added up. With twice as many parts as threads none waits long for another.
"""

from __future__ import annotations

from ...devices.panels import LATENCY
from ..products import Product
from ..target import Machine
from .tiles import FINER, Tile, wanted

LEAST_TERMS = 64  # of a part of a sum over one axis


def least_parts(machine: Machine) -> int:
    """The parts that any work for threads should have."""
    return max(wanted(machine), machine.threads)


def missing_parts(p: Product, machine: Machine, tile: Tile | None = None) -> int:
    """How many times as many parts a product should have as its tile gives, and as there are tiles of one vector that
    keep the multiply-adds busy."""
    rows, columns = int(LATENCY / machine.fma), machine.lanes(p.dtype)
    good = p.size(p.batch) * -(-p.size(p.m) // rows) * -(-p.size(p.n) // columns)
    return -(-wanted(machine, p) // min(good, tile.parts(p) if tile is not None else good))


def parts_of(p: Product, missing: int) -> dict[int, int]:
    """How many indices of axes of a product's sum a part has, to have about so many times as many parts; none where it
    is not cut, as where an operand lies in panels.

    Cut is the sum's first axis, in a gradient of filters the images, and where those are too few the second too, their
    rows.
    """
    if missing == 1 or p.a.panel or p.b.panel:
        return {}
    first, *others = (axis for axis in p.k if p.extents[axis] > 1)
    parts = least_divisor(p.extents[first], missing if others else min(missing, p.extents[first] // LEAST_TERMS))
    whole = parts == p.extents[first]
    rows = least_divisor(p.extents[others[0]], -(-missing // parts)) if whole and others[:1] == [first + 1] else 1
    counts = {first: parts, **({others[0]: rows} if rows > 1 else {})}
    return {axis: p.extents[axis] // count for axis, count in counts.items()} if parts * rows > 1 else {}


def least_divisor(extent: int, least: int) -> int:
    """The least divisor of an extent that is no less than that: all of a short extent, 1 where those that there are lie
    far beyond."""
    near = range(max(least, 1), min(extent, FINER * least) + 1)
    return extent if extent <= least else next((d for d in near if extent % d == 0), 1)
