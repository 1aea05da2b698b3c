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

SWEEPS = 24
STRAIGHT = 8.0  # the weight of a line between two boxes, or two points of a long edge, whose ends bend
ENDS = 12.0  # the distance of edges that end at one box, if it is wide enough


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
    rows: list[list[Box]] = [[] for _ in range(1 + max((box.row for box in boxes), default=0))]
    for box in boxes:
        rows[box.row].append(box)
    points: dict[tuple[Box, Hashable, int], Box] = {}
    chains = []
    for edge in edges:
        between = range(edge.source.row + 1, edge.target.row)
        inner = [points.setdefault((edge.source, edge.value, row), Box(row=row)) for row in between]
        chains.append([edge.source, *inner, edge.target])
    for point in points.values():
        rows[point.row].append(point)
    _place(rows, dict.fromkeys(pair for chain in chains for pair in pairwise(chain)), gap_x)
    bottoms: list[float] = []
    for row in rows:
        y = bottoms[-1] + gap_y if bottoms else 0.0
        for box in row:
            box.y = y
        bottoms.append(y + max((box.height for box in row), default=0.0))
    _route(edges, chains, bottoms)
    return max((box.x + box.width / 2 for row in rows for box in row), default=0.0), bottoms[-1]


def _find_rows(boxes: Sequence[Box], edges: Sequence[Edge]) -> None:
    """Each box's row: the length of the longest path from above; what nothing leads to is just above its readers."""
    moved = True
    while moved:
        moved = False
        for edge in edges:
            if edge.target.row <= edge.source.row:
                edge.target.row, moved = edge.source.row + 1, True
    for box in boxes:
        below = [edge.target.row for edge in edges if edge.source is box]
        if below and all(edge.target is not box for edge in edges):
            box.row = min(below) - 1


def _place(rows: list[list[Box]], links: dict[tuple[Box, Box], None], gap: float) -> None:
    """Order the rows and set each box's x, in sweeps down and up: the first half of them finds the order, by what is
    on one side, the second half straightens, by both."""
    above: dict[Box, list[Box]] = {box: [] for row in rows for box in row}
    below: dict[Box, list[Box]] = {box: [] for row in rows for box in row}
    for upper, lower in links:
        below[upper].append(lower)
        above[lower].append(upper)

    def barycentre(box: Box, others: list[Box]) -> float:
        weights = [STRAIGHT if bool(box.height) is bool(other.height) else 1.0 for other in others]
        total = sum(other.x * weight for other, weight in zip(others, weights, strict=True))
        return total / sum(weights) if others else box.x

    for row in rows:
        _spread(row, [0.0] * len(row), gap)
    for sweep in range(SWEEPS):
        down, straighten = sweep % 2 == 0, sweep >= SWEEPS / 2
        for row in rows if down else rows[::-1]:
            where = {box: barycentre(box, above[box] * (down or straighten) + below[box] * (straighten or not down))
                     for box in row}  # fmt: skip
            if not straighten:
                row.sort(key=where.__getitem__)
            _spread(row, [where[box] for box in row], gap)
    left = min((box.x - box.width / 2 for row in rows for box in row), default=0.0)
    for box in above:
        box.x -= left


def _spread(row: Sequence[Box], wanted: Sequence[float], gap: float) -> None:
    """Set the boxes of a row near the places wanted, in their order and at their distance: in the middle of where they
    are if each is pushed to the right by those before it, and to the left by those behind it."""
    apart = [(a.width + b.width) / 2 + (gap if a.height or b.height else gap / 2) for a, b in pairwise(row)]
    right, left = list(wanted), list(wanted)
    for i, distance in enumerate(apart):
        right[i + 1] = max(right[i + 1], right[i] + distance)
    for i, distance in reversed(list(enumerate(apart))):
        left[i] = min(left[i], left[i + 1] - distance)
    for box, a, b in zip(row, left, right, strict=True):
        box.x = (a + b) / 2


def _route(edges: Sequence[Edge], chains: Sequence[list[Box]], bottoms: Sequence[float]) -> None:
    """The edges' points. Those that leave or enter a box do so side by side, in the order of where they lead."""
    leave: dict[Box, dict[Hashable, float]] = {}
    enter: dict[Box, dict[Hashable, float]] = {}
    for edge, chain in zip(edges, chains, strict=True):
        leave.setdefault(edge.source, {}).setdefault(edge.value, chain[1].x)
        enter.setdefault(edge.target, {})[edge.source, edge.value] = chain[-2].x
    starts = {box: _ends(box, leads) for box, leads in leave.items()}
    stops = {box: _ends(box, leads) for box, leads in enter.items()}
    for edge, chain in zip(edges, chains, strict=True):
        start = starts[edge.source][edge.value]
        edge.points = [(start, edge.source.y + edge.source.height), (start, bottoms[edge.source.row])]
        for point in chain[1:-1]:
            edge.points += [(point.x, point.y), (point.x, bottoms[point.row])]
        edge.points.append((stops[edge.target][edge.source, edge.value], edge.target.y))


def _ends(box: Box, leads: dict[Hashable, float]) -> dict[Hashable, float]:
    """The x of each end at a box; they lead to an x elsewhere."""
    apart, middle = min(ENDS, box.width / (len(leads) + 1)), (len(leads) - 1) / 2
    return {end: box.x + (i - middle) * apart for i, end in enumerate(sorted(leads, key=leads.__getitem__))}
