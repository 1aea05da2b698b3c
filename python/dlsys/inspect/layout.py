"""Layered drawing of a directed acyclic graph: boxes in rows, edges downwards. Pure geometry.

The method of Sugiyama, Tagawa and Toda, "Methods for visual understanding of hierarchical system structures" (1981):
rows by the longest path; edges that span rows pass through points of their own in between, so that they run beside
boxes; in sweeps down and up, each row is ordered by the mean place of what its boxes are joined with, and set as near
to it as the boxes' widths allow. Edges that leave one port share their points: a value of many readers is one line that
forks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

SWEEPS = 24
STRAIGHT = 8.0  # the weight of a line between two points of a long edge: it stays upright, and its ends bend


@dataclass(eq=False)
class Box:
    """A box; without a size, a point of a long edge, or an end of edges on the drawing's border.

    Attributes:
        x, y: the middle, and the upper edge; found by `layered`, as `row` is.
        pin: "first" or "last" for what is on the drawing's upper or lower border.
    """

    width: float = 0.0
    height: float = 0.0
    pin: str = ""
    row: int = 0
    x: float = 0.0
    y: float = 0.0


@dataclass(frozen=True)
class Edge:
    """From one box to another; the ends are `start` and `end` beside the boxes' middles."""

    source: Box
    target: Box
    start: float = 0.0
    end: float = 0.0

    @property
    def port(self) -> tuple[Box, float]:
        """Where it begins."""
        return self.source, self.start

    @property
    def weight(self) -> float:
        """How strongly it pulls its ends below each other."""
        return 1.0 if self.source.height or self.target.height else STRAIGHT


@dataclass(frozen=True)
class Line:
    """A drawn piece of an edge: straight down from `top` to `bend`, at one x, and curved from there to `end`; `headed`
    where that is at a box."""

    port: tuple[Box, float]
    top: tuple[float, float]
    bend: tuple[float, float]
    end: tuple[float, float]
    headed: bool


@dataclass(frozen=True)
class Drawing:
    """The lines between boxes that have their places, from (0, 0) on, and the size of it all."""

    lines: Sequence[Line] = ()
    width: float = 0.0
    height: float = 0.0


def layered(boxes: Sequence[Box], edges: Sequence[Edge], gap_x: float, gap_y: float) -> Drawing:
    """Place the boxes, and route the edges; `gap_x` and `gap_y` are the least distances between boxes."""
    if not boxes:
        return Drawing()
    _find_rows(boxes, edges)
    rows: list[list[Box]] = [[] for _ in range(1 + max(box.row for box in boxes))]
    for box in boxes:
        rows[box.row].append(box)
    pieces = _through_points(rows, edges)
    _place(rows, [piece for piece, _ in pieces], gap_x)
    return _route(rows, pieces, gap_y)


def _find_rows(boxes: Sequence[Box], edges: Sequence[Edge]) -> None:
    """Each box's row: the length of the longest path from above; what nothing leads to is just above its readers."""
    moved = True
    while moved:
        moved = False
        for edge in edges:
            if edge.target.row <= edge.source.row:
                edge.target.row, moved = edge.source.row + 1, True
    entered = {edge.target for edge in edges}
    below: dict[Box, int] = {}
    for edge in edges:
        below[edge.source] = min(edge.target.row - 1, below.get(edge.source, edge.target.row - 1))
    last = max(box.row for box in boxes)
    for box in boxes:
        if box.pin:
            box.row = 0 if box.pin == "first" else last
        elif box not in entered:
            box.row = below.get(box, box.row)


def _through_points(rows: list[list[Box]], edges: Sequence[Edge]) -> list[tuple[Edge, tuple[Box, float]]]:
    """The edges' pieces between neighbouring rows, each with its edge's port. Adds the points of long edges, one a row
    for each port."""
    pieces: dict[Edge, tuple[Box, float]] = {}
    points: dict[tuple[tuple[Box, float], int], Box] = {}
    for edge in edges:
        upper, start = edge.port
        for row in range(edge.source.row + 1, edge.target.row):
            point = points.get((edge.port, row))
            if point is None:
                point = points[edge.port, row] = Box(row=row)
                rows[row].append(point)
            pieces[Edge(upper, point, start)] = edge.port
            upper, start = point, 0.0
        pieces[Edge(upper, edge.target, start, edge.end)] = edge.port
    return list(pieces.items())


def _place(rows: list[list[Box]], pieces: Sequence[Edge], gap: float) -> None:
    """Order the rows and set each box's x, in sweeps down and up: the first half of them finds the order, by what is
    on one side, the second half straightens, by both."""
    above: dict[Box, list[Edge]] = {box: [] for row in rows for box in row}
    below: dict[Box, list[Edge]] = {box: [] for row in rows for box in row}
    for piece in pieces:
        above[piece.target].append(piece)
        below[piece.source].append(piece)

    def wanted(box: Box, up: bool, down: bool) -> float:
        ends = [(p.source.x + p.start - p.end, p.weight) for p in above[box] if up]
        ends += [(p.target.x + p.end - p.start, p.weight) for p in below[box] if down]
        return sum(x * weight for x, weight in ends) / sum(weight for _, weight in ends) if ends else box.x

    for row in rows:
        _spread(row, [0.0] * len(row), gap)
    for sweep in range(SWEEPS):
        down, straighten = sweep % 2 == 0, sweep >= SWEEPS / 2
        for row in rows if down else rows[::-1]:
            where = {box: wanted(box, down or straighten, straighten or not down) for box in row}
            if not straighten:
                row.sort(key=where.__getitem__)
            _spread(row, [where[box] for box in row], gap)
    left = min(box.x - box.width / 2 for row in rows for box in row)
    for row in rows:
        for box in row:
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


def _route(rows: list[list[Box]], pieces: Sequence[tuple[Edge, tuple[Box, float]]], gap: float) -> Drawing:
    """Heights, and the lines of the edges. Where a row's edges go far sideways the next one is lower."""
    aslant = [0.0] * len(rows)
    for piece, _ in pieces:
        sideways = abs(piece.target.x + piece.end - piece.source.x - piece.start)
        aslant[piece.source.row] = max(aslant[piece.source.row], sideways)
    bottoms: list[float] = []
    y = 0.0
    for row, sideways in zip(rows, aslant, strict=True):
        for box in row:
            box.y = y
        bottoms.append(y + max((box.height for box in row), default=0.0))
        y = bottoms[-1] + gap * (1.0 + min(1.0, sideways / (20 * gap)))
    lines = []
    for (upper, lower, start, end), port in (((p.source, p.target, p.start, p.end), port) for p, port in pieces):
        x, bottom = upper.x + start, bottoms[upper.row]
        top = (x, upper.y + upper.height)
        lines.append(Line(port, top, (x, bottom), (lower.x + end, lower.y), lower.height > 0))
    return Drawing(lines, max(box.x + box.width / 2 for row in rows for box in row), bottoms[-1])
