"""The arena as a picture: kernels across in the order of running, bytes up, and who lives where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..compiler import Plan
from ..errors import GraphError
from ..planner import MemoryPlan
from .picture import CHARACTER, COLOURS, FONT, LINE, MARGIN, Picture, checked_path

MOST_STEPS = 400  # beyond, nobody finds anything in the picture
HEIGHT = 430.0  # of the arena, in points, as all lengths
WIDTH = 900.0  # of the time, if that leaves every kernel a column of NARROWEST to WIDEST
NARROWEST, WIDEST = 26.0, 70.0
ASLANT = 0.71  # of a length at 45 degrees
NAME = 34  # characters of a kernel's name
FILLS = ("#dbe9f8", "#e0f1ea", "#efe7f7", "#fbf0dc", "#e6e6f7", "#eef3d6", "#f7e3ee", "#dff1f6")
UNITS = (("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1))


@dataclass(frozen=True)
class Rectangle:
    """A buffer: from step `left` up to step `right` without it, from byte `low` up to `high` without it."""

    left: int
    right: int
    low: int
    high: int
    names: tuple[str, ...]
    is_result: bool

    @property
    def note(self) -> str:
        """The text beside the picture: the names, or the first and last of many; when, how much."""
        names = self.names if len(self.names) <= 3 else (self.names[0], "…", self.names[-1])
        when = f"{self.left} to the end" if self.is_result else f"{self.left}-{self.right - 1}"
        return f"{', '.join(names)}: steps {when}, {_bytes(self.high - self.low)}"


def rectangles(plan: MemoryPlan, steps: int) -> list[Rectangle]:
    """Where every buffer is, from the top down. No two overlap; a result lasts one column longer than the steps."""
    found = [
        Rectangle(b.first, b.last + 1, b.offset, b.offset + b.nbytes,
                  tuple(str(getattr(value.id, "name", value.id)) for value in b.values), b.last >= steps)
        for b in plan.buffers if b.nbytes
    ]  # fmt: skip
    return sorted(found, key=lambda r: (-r.low, -r.left))


def draw_memory(plan: Plan, path: Any) -> None:
    """Write the picture. Raises GraphError for an unknown suffix or more than MOST_STEPS kernels."""
    file = checked_path(path, "draw_memory")
    groups = plan.program.groups
    if len(groups) > MOST_STEPS:
        raise GraphError(
            f"draw_memory: there are {len(groups)} kernels, and a picture of more than {MOST_STEPS} cannot be read; "
            "print plan()"
        )
    _paint(plan.memory, [group.name for group in groups]).save(file)


def _paint(memory: MemoryPlan, kernels: Sequence[str]) -> Picture:
    found, columns, planned = rectangles(memory, len(kernels)), len(kernels) + 1, max(memory.bytes_planned, 1)
    column, per_byte = min(WIDEST, max(NARROWEST, WIDTH / columns)), HEIGHT / planned
    names = [name if len(name) <= NAME else f"{name[: NAME - 1]}…" for name in kernels]
    names = [*(f"{number}  {name}" for number, name in enumerate(names)), "results"]
    aslant = [ASLANT * len(name) * CHARACTER for name in names]
    left = max(62.0, *(MARGIN + length - i * column for i, length in enumerate(aslant)))
    top, end = 5 * LINE + MARGIN, left + columns * column
    bottom = top + HEIGHT

    def fits(r: Rectangle) -> bool:
        width, height = (r.right - r.left) * column, (r.high - r.low) * per_byte
        return len(", ".join(r.names)) * CHARACTER < width and height > LINE

    def middle(r: Rectangle) -> float:
        return bottom - (r.low + r.high) / 2 * per_byte

    notes: list[tuple[Rectangle, float]] = []  # each at its rectangle's height, or below the note above
    for r in found:
        if not fits(r):
            notes.append((r, max(middle(r), notes[-1][1] + LINE) if notes else middle(r)))
    right = max((len(r.note) for r, _ in notes), default=0) * CHARACTER + 3 * MARGIN
    lowest = max([bottom + max(aslant) + MARGIN, *(y + LINE for _, y in notes)])
    picture = Picture(end + right, lowest + MARGIN)
    title = (
        f"arena {_bytes(memory.bytes_planned)}, lower bound {_bytes(memory.lower_bound)}, "
        f"a buffer for every node {_bytes(memory.bytes_unplanned)}"
    )
    picture.text(left, MARGIN + LINE / 2, title, ha="left", fontsize=1.25 * FONT, fontweight="bold")
    _scale(picture, planned, left, end, bottom)
    for i, name in enumerate(names):
        x = left + i * column
        picture.line([(x, bottom), (x, top)], edgecolor="#e4e4e4", linewidth=0.5, zorder=0)
        picture.text(x + 0.65 * column, bottom + 7, name, ha="right", va="top", rotation=45)
    for i, r in enumerate(found):
        fill, edge = COLOURS["result"] if r.is_result else (FILLS[i % len(FILLS)], "#4a6076")
        x, width, height = left + r.left * column, (r.right - r.left) * column, (r.high - r.low) * per_byte
        picture.box(x, bottom - r.high * per_byte, width, height, facecolor=fill, edgecolor=edge)
        if fits(r):
            picture.text(x + width / 2, middle(r), ", ".join(r.names), zorder=5)
    for r, y in notes:
        points = [(left + r.right * column, middle(r)), (end, middle(r)), (end + MARGIN, y)]
        picture.line(points, edgecolor="#8a8a8a", linewidth=0.5, zorder=3)
        picture.text(end + MARGIN + 3, y, r.note, ha="left", fontsize=0.9 * FONT)
    x = left
    for nbytes, colour, style, label in (
        (memory.bytes_planned, "#1f3d5a", "-", "arena"),
        (memory.lower_bound, "#b03a32", (0, (4, 3)), "lower bound: most bytes alive at once"),
    ):
        for points in ([(left, bottom - nbytes * per_byte), (end, bottom - nbytes * per_byte)],
                       [(x, MARGIN + 2.2 * LINE), (x + MARGIN, MARGIN + 2.2 * LINE)]):  # fmt: skip
            picture.line(points, edgecolor=colour, linestyle=style, linewidth=1.3, zorder=4)
        picture.text(x + 1.3 * MARGIN, MARGIN + 2.2 * LINE, label, ha="left")
        x += 3 * MARGIN + len(label) * CHARACTER
    return picture


def _scale(picture: Picture, planned: int, left: float, right: float, bottom: float) -> None:
    """The axis of bytes, with four to eight marks at multiples of a power of two, and that of time."""
    step = 1 << max(planned.bit_length() - 3, 0)
    picture.line([(left, bottom - HEIGHT), (left, bottom), (right, bottom)], edgecolor="#111111")
    for offset in range(0, planned + 1, step):
        y = bottom - offset * HEIGHT / planned
        picture.line([(left - 3, y), (left, y)], edgecolor="#111111")
        picture.text(left - 5, y, _bytes(offset), ha="right")


def _bytes(count: int) -> str:
    """A number of bytes in the largest unit of which there is one."""
    unit, size = next((name, size) for name, size in UNITS if count >= size or size == 1)
    return f"{count} B" if size == 1 else f"{count / size:.4g} {unit}"
