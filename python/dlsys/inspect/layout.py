"""Layered drawing of a directed acyclic graph: boxes in rows, edges downwards. Pure geometry.

The method of Sugiyama, Tagawa and Toda, "Methods for visual understanding of hierarchical system structures" (1981):
rows by the longest path; an edge that spans rows passes through a point in each row between, so that it runs beside
boxes; in sweeps down and up each row is ordered by the mean place of its neighbours. Edges of one value from one box
share their points: a value of many readers is one line that forks.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean

SWEEPS = 24


@dataclass(eq=False)
class Box:
    """A box, without a size a point of a long edge. `layered` finds its row, its middle x, and its upper edge y."""

    width: float = 0.0
    height: float = 0.0
    row: int = 0
    x: float = 0.0
    y: float = 0.0


@dataclass(eq=False)
class Edge:
    """An edge of a value. `layered` finds its points: from each even one it runs straight down to the next, and then
    aslant, between two rows."""

    source: Box
    target: Box
    value: Hashable = None
    points: list[tuple[float, float]] = field(default_factory=list)


def layered(boxes: Sequence[Box], edges: Sequence[Edge], gap_x: float, gap_y: float) -> tuple[float, float]:
    """Place the boxes from (0, 0) on and route the edges; returns the size. `gap_x` and `gap_y` are the least distances
    between boxes."""
    _find_rows(boxes, edges)
    points: dict[tuple[Box, Hashable, int], Box] = {}
    chains = []
    for edge in edges:
        between = range(edge.source.row + 1, edge.target.row)
        inner = [points.setdefault((edge.source, edge.value, row), Box(row=row)) for row in between]
        chains.append([edge.source, *inner, edge.target])
    rows: list[list[Box]] = [[] for _ in range(1 + max((box.row for box in boxes), default=0))]
    for box in [*boxes, *points.values()]:
        rows[box.row].append(box)
    _place(rows, chains, gap_x)
    bottom, bottoms = -gap_y, []
    for row in rows:
        for box in row:
            box.y = bottom + gap_y
        bottom += gap_y + max((box.height for box in row), default=0.0)
        bottoms.append(bottom)
    for edge, (*chain, target) in zip(edges, chains, strict=True):
        upright = [[(box.x, box.y + box.height), (box.x, bottoms[box.row])] for box in chain]
        edge.points = [*(point for pair in upright for point in pair), (target.x, target.y)]
    return max((box.x + box.width / 2 for row in rows for box in row), default=0.0), bottom


def _find_rows(boxes: Sequence[Box], edges: Sequence[Edge]) -> None:
    """Each box's row: the length of the longest path from above; what nothing leads to is just above its readers."""
    moved = True
    while moved:
        moved = False
        for edge in edges:
            if edge.target.row <= edge.source.row:
                edge.target.row, moved = edge.source.row + 1, True
    for box in {edge.source for edge in edges} - {edge.target for edge in edges}:
        box.row = min(edge.target.row for edge in edges if edge.source is box) - 1


def _place(rows: Sequence[list[Box]], chains: Sequence[Sequence[Box]], gap: float) -> None:
    """Order the rows and set each box's x, in sweeps down and up. In a row the boxes are near the places wanted, in
    order and at their distance: in the middle of where they are if each is pushed to the right by those before it, and
    to the left by those behind it."""
    beside: dict[Box, dict[Box, None]] = {box: {} for row in rows for box in row}
    for upper, lower in (pair for chain in chains for pair in pairwise(chain)):
        beside[upper][lower] = beside[lower][upper] = None
    for sweep in range(SWEEPS):
        for row in rows[::-1] if sweep % 2 else rows:
            wanted = {box: fmean(other.x for other in beside[box]) if beside[box] else box.x for box in row}
            row.sort(key=wanted.__getitem__)
            apart = [(a.width + b.width) / 2 + (gap if a.height or b.height else gap / 2) for a, b in pairwise(row)]
            right = [wanted[box] for box in row]
            left = right[:]
            for i, distance in enumerate(apart):
                right[i + 1] = max(right[i + 1], right[i] + distance)
            for i, distance in reversed(list(enumerate(apart))):
                left[i] = min(left[i], left[i + 1] - distance)
            for box, a, b in zip(row, left, right, strict=True):
                box.x = (a + b) / 2
    first = min((box.x - box.width / 2 for box in beside), default=0.0)
    for box in beside:
        box.x -= first
