"""Layered drawing of a directed acyclic graph: boxes in rows, edges downwards. Pure geometry.

Sugiyama's method in its four steps: rows by the longest path; edges that span rows pass through points of their own in
between, so that they run beside boxes; an order within each row with few crossings, by sweeps of barycentres; x
coordinates as close to the mean of the neighbours as order and widths allow. Edges that leave one port share their
points, so a value that many read is one line that forks.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

SWEEPS = 16  # of ordering; more changed nothing in the graphs tried
STRAIGHTENINGS = 60
STRENGTHS = (1.0, 2.0, 8.0)  # of a piece with so many points at its ends: long edges are kept straight
STIFF = 2.0  # of a piece that is as far from upright, the strength is halved


@dataclass
class Box:
    """A box, or a point of a long edge, which has no size.

    Attributes:
        x, y: the middle, and the upper edge; found by `layered`.
        row: found by `layered`.
        pin: "first" or "last" for an end of edges on the drawing's upper or lower border.
    """

    width: float = 0.0
    height: float = 0.0
    pin: str = ""
    row: int = 0
    x: float = 0.0
    y: float = 0.0
    is_point: bool = False


@dataclass(frozen=True)
class Edge:
    """From one box to another, by their numbers; the ends lie `start` and `end` beside the boxes' middles."""

    source: int
    target: int
    start: float = 0.0
    end: float = 0.0


@dataclass(frozen=True)
class Line:
    """A drawn piece of an edge: straight down from `top` to `bend`, at one x, and curved from there to `end`."""

    port: tuple[int, float]
    top: tuple[float, float]
    bend: tuple[float, float]
    end: tuple[float, float]
    is_last: bool


@dataclass
class Drawing:
    """The result of `layered`: boxes in their places, from (0, 0) on."""

    lines: list[Line] = field(default_factory=list)
    width: float = 0.0
    height: float = 0.0


@dataclass(frozen=True)
class _Piece:
    """Of an edge, between neighbouring rows."""

    port: tuple[int, float]
    upper: Box
    lower: Box
    start: float
    end: float

    @property
    def aslant(self) -> float:
        """How far to the right it goes."""
        return self.lower.x + self.end - self.upper.x - self.start

    @property
    def strength(self) -> float:
        """How strongly it pulls its ends below each other: the more the nearer they are to it, so that a long edge has
        one bend and not a small one in every row."""
        return STRENGTHS[self.upper.is_point + self.lower.is_point] / (1.0 + abs(self.aslant) / STIFF)


def layered(boxes: Sequence[Box], edges: Sequence[Edge], gap_x: float, gap_y: float) -> Drawing:
    """Place the boxes, and route the edges; `gap_x` and `gap_y` are the least distances between boxes."""
    if not boxes:
        return Drawing()
    _find_rows(boxes, edges)
    rows, pieces = _through_points(boxes, edges)
    above: dict[int, list[_Piece]] = {id(box): [] for row in rows for box in row}
    below: dict[int, list[_Piece]] = {id(box): [] for row in rows for box in row}
    for piece in pieces:
        above[id(piece.lower)].append(piece)
        below[id(piece.upper)].append(piece)
    rows = _order(rows, above, below)
    _straighten(rows, above, below, gap_x)
    return _route(rows, pieces, gap_y)


def _find_rows(boxes: Sequence[Box], edges: Sequence[Edge]) -> None:
    """Each box's row: the length of the longest path from above, or just above its readers if nothing holds it higher;
    pinned boxes lie on the border."""
    inner = [edge for edge in edges if not (boxes[edge.source].pin or boxes[edge.target].pin)]
    targets: list[list[int]] = [[] for _ in boxes]
    waiting = [0] * len(boxes)
    for edge in inner:
        targets[edge.source].append(edge.target)
        waiting[edge.target] += 1
    found = [0] * len(boxes)
    ready = [i for i, count in enumerate(waiting) if count == 0]
    while ready:
        i = ready.pop()
        for target in targets[i]:
            found[target] = max(found[target], found[i] + 1)
            waiting[target] -= 1
            if waiting[target] == 0:
                ready.append(target)
    for i in _late(targets, found):
        found[i] = min(found[target] for target in targets[i]) - 1
    free = [row for row, box in zip(found, boxes, strict=True) if not box.pin] or [0]
    ends = [(boxes[edge.source].pin, boxes[edge.target].pin, edge) for edge in edges]
    heads = [found[edge.target] - 1 for above, below, edge in ends if above and not below]
    tails = [found[edge.source] + 1 for above, below, edge in ends if below and not above]
    rows = {"first": min([*free, *heads]), "last": max([*free, *tails])}
    for box, row in zip(boxes, found, strict=True):
        box.row = rows.get(box.pin, row) - rows["first"]


def _late(targets: Sequence[Sequence[int]], row: Sequence[int]) -> list[int]:
    """The boxes that can move down to just above their readers: those with nothing above them but boxes that only they
    read. Lowest first."""
    held = [0] * len(row)
    found = []
    for i in sorted(range(len(row)), key=row.__getitem__):
        late = held[i] == 0
        if late and targets[i]:
            found.append(i)
        for target in targets[i]:
            held[target] += not (late and len(targets[i]) == 1)
    return found[::-1]


def _through_points(boxes: Sequence[Box], edges: Sequence[Edge]) -> tuple[list[list[Box]], list[_Piece]]:
    """The rows with the points of long edges, one a row for each port."""
    rows: list[list[Box]] = [[] for _ in range(1 + max(box.row for box in boxes))]
    for box in boxes:
        rows[box.row].append(box)
    pieces = []
    points: dict[tuple[int, float, int], Box] = {}
    for edge in edges:
        port = (edge.source, edge.start)
        upper, start, target = boxes[edge.source], edge.start, boxes[edge.target]
        for row in range(upper.row + 1, target.row):
            key = (*port, row)
            known = points.get(key)
            if known is None:
                known = points[key] = Box(row=row, is_point=True)
                rows[row].append(known)
                pieces.append(_Piece(port, upper, known, start, 0.0))
            upper, start = known, 0.0
        pieces.append(_Piece(port, upper, target, start, edge.end))
    return rows, pieces


def _order(
    rows: list[list[Box]], above: dict[int, list[_Piece]], below: dict[int, list[_Piece]]
) -> list[list[Box]]:
    """The best order that sweeps up and down find."""
    best, fewest = [list(row) for row in rows], _crossings(rows, above)
    for sweep in range(SWEEPS):
        downwards = sweep % 2 == 0
        near = above if downwards else below
        for row in rows[1:] if downwards else rows[-2::-1]:
            place = _places(rows)
            key = {}
            for i, box in enumerate(row):
                ends = [_end(place, piece, downwards) for piece in near[id(box)]]
                key[id(box)] = (sum(ends) / len(ends) if ends else float(i), i)
            row.sort(key=lambda box: key[id(box)])
        count = _crossings(rows, above)
        if count < fewest:
            best, fewest = [list(row) for row in rows], count
    return best


def _places(rows: list[list[Box]]) -> dict[int, float]:
    return {id(box): float(i) for row in rows for i, box in enumerate(row)}


def _end(place: dict[int, float], piece: _Piece, upper: bool) -> float:
    """Where a piece meets its upper or lower box, in places of the row; ports spread within a box's place."""
    box, shift = (piece.upper, piece.start) if upper else (piece.lower, piece.end)
    return place[id(box)] + (0.9 * shift / box.width if box.width else 0.0)


def _crossings(rows: list[list[Box]], above: dict[int, list[_Piece]]) -> int:
    """How many pairs of lines cross."""
    place = _places(rows)
    count = 0
    for row in rows[1:]:
        pieces = [piece for box in row for piece in above[id(box)]]
        ends = sorted((_end(place, piece, True), _end(place, piece, False)) for piece in pieces)
        seen: list[float] = []
        for _, lower in ends:
            count += len(seen) - bisect_right(seen, lower)
            insort(seen, lower)
    return count


def _straighten(
    rows: list[list[Box]], above: dict[int, list[_Piece]], below: dict[int, list[_Piece]], gap: float
) -> None:
    """Set the x of all boxes, in sweeps up and down, near the mean of what they are joined with."""
    for row in rows:
        _spread(row, [0.0] * len(row), [1.0] * len(row), gap)
    for sweep in range(STRAIGHTENINGS):
        downwards, both = sweep % 2 == 0, sweep >= STRAIGHTENINGS / 2
        for row in rows if downwards else rows[::-1]:
            wanted, weights = [], []
            for box in row:
                ends = []  # (where it would hang straight, how strongly it does)
                if downwards or both:
                    ends += [(p.upper.x + p.start - p.end, p.strength) for p in above[id(box)]]
                if both or not downwards:
                    ends += [(p.lower.x + p.end - p.start, p.strength) for p in below[id(box)]]
                weight = sum(strength for _, strength in ends)
                wanted.append(sum(x * strength for x, strength in ends) / weight if ends else box.x)
                weights.append(weight or 0.1)
            _spread(row, wanted, weights, gap)
    left = min(box.x - box.width / 2 for row in rows for box in row)
    for row in rows:
        for box in row:
            box.x -= left


def _spread(row: list[Box], wanted: Sequence[float], weights: Sequence[float], gap: float) -> None:
    """The places nearest to those wanted, in weighted least squares, in which boxes keep their order and distance: an
    isotonic regression, by pooling of neighbours that violate it."""
    offsets = [0.0]
    for left, right in pairwise(row):
        both_points = left.is_point and right.is_point
        offsets.append(offsets[-1] + (left.width + right.width) / 2 + (gap / 2 if both_points else gap))
    pools: list[tuple[float, float, int]] = []  # mean, weight, count
    for place, weight, offset in zip(wanted, weights, offsets, strict=False):
        mean, count = place - offset, 1
        while pools and pools[-1][0] > mean:
            other, other_weight, other_count = pools.pop()
            mean = (mean * weight + other * other_weight) / (weight + other_weight)
            weight, count = weight + other_weight, count + other_count
        pools.append((mean, weight, count))
    means = [mean for mean, _, count in pools for _ in range(count)]
    for box, mean, offset in zip(row, means, offsets, strict=False):
        box.x = mean + offset


def _route(rows: list[list[Box]], pieces: Sequence[_Piece], gap: float) -> Drawing:
    """Heights, and the lines of the edges. Where a row's edges go far sideways the next one lies lower."""
    bottoms: list[float] = []
    y = 0.0
    for number, row in enumerate(rows):
        for box in row:
            box.y = y
        bottoms.append(y + max((box.height for box in row), default=0.0))
        leaving = [p for p in pieces if p.upper.row == number]
        aslant = max((abs(piece.aslant) for piece in leaving), default=0.0)
        to_border = number + 2 == len(rows) and all(box.pin for box in rows[-1])
        y = bottoms[-1] + gap * (0.3 if to_border else 1.0 + min(1.0, aslant / (20 * gap)))
    width = max(box.x + box.width / 2 for row in rows for box in row)
    drawing = Drawing([], width, bottoms[-1])
    for piece in pieces:
        x, end = piece.upper.x + piece.start, piece.lower.x + piece.end
        top, bend = piece.upper.y + piece.upper.height, bottoms[piece.upper.row]
        line = Line(piece.port, (x, top), (x, bend), (end, piece.lower.y), not piece.lower.is_point)
        drawing.lines.append(line)
    return drawing
