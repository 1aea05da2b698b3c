"""The arena as a picture: kernels across in the order of running, bytes up, and who lives where."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..compiler import Plan
from ..errors import GraphError
from ..planner import MemoryPlan
from .draw import COLOURS, MARGIN, checked_path, printable, save

MOST_STEPS = 400  # beyond, nobody finds anything in the picture
HEIGHT = 430.0  # of the arena, in points, as all lengths
WIDTH = 900.0  # of the time, if that leaves every kernel a column of NARROWEST to WIDEST
NARROWEST, WIDEST = 26.0, 70.0
FONTS = (8.0, 7.0, 6.0)  # the largest in which a label fits
CHARACTER = 0.62  # mean width, in font sizes
LINE = 1.2  # height, in font sizes
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


def rectangles(plan: MemoryPlan, steps: int) -> list[Rectangle]:
    """Where every buffer lies. No two overlap; a result lasts one column longer than the steps."""
    return [
        Rectangle(
            buffer.first,
            buffer.last + 1,
            buffer.offset,
            buffer.offset + buffer.nbytes,
            tuple(str(getattr(value.id, "name", value.id)) for value in buffer.values),
            buffer.last >= steps,
        )
        for buffer in plan.buffers
        if buffer.nbytes
    ]


def draw_memory(plan: Plan, path: Any) -> None:
    """Write the picture. Raises GraphError for an unknown suffix or more than MOST_STEPS kernels."""
    file = checked_path(path, "draw_memory")
    groups = plan.program.groups
    if len(groups) > MOST_STEPS:
        raise GraphError(
            f"draw_memory: there are {len(groups)} kernels, and a picture of more than {MOST_STEPS} cannot be read; "
            "print plan()"
        )
    _paint(plan.memory, [group.name for group in groups], file)


def _paint(memory: MemoryPlan, kernels: Sequence[str], file: Path) -> None:
    from matplotlib.figure import Figure  # here: importing it takes as long as all else of dlsys
    from matplotlib.patches import Rectangle as Patch

    found = rectangles(memory, len(kernels))
    columns = len(kernels) + 1
    unit, size = next((name, size) for name, size in UNITS if memory.bytes_planned >= 2 * size or size == 1)
    column = min(WIDEST, max(NARROWEST, WIDTH / columns))
    top = 1.08 * max(memory.bytes_planned, 1)
    per_byte = HEIGHT / top

    names = [name if len(name) <= NAME else f"{name[: NAME - 1]}…" for name in kernels]
    names = [*(f"{number}  {printable(name)}" for number, name in enumerate(names)), "results"]
    below = 0.71 * max(map(len, names)) * CHARACTER * FONTS[0] + MARGIN
    labels = {i: _fitted(r, column, per_byte) for i, r in enumerate(found)}
    outside = sorted(
        (i for i, label in labels.items() if label is None), key=lambda i: (found[i].low, found[i].left)
    )
    notes = [_note(found[i]) for i in outside]
    aslant = [0.71 * len(name) * CHARACTER * FONTS[0] - (i + 0.65) * column for i, name in enumerate(names)]
    left, above = max(62.0, *(MARGIN / 2 + length for length in aslant)), 3.4 * MARGIN
    right = max([0.0, *(len(note) for note in notes)]) * 0.9 * CHARACTER * FONTS[1] + 3 * MARGIN
    width, height = left + columns * column + right, above + HEIGHT + below

    figure = Figure(figsize=(width / 72, height / 72))
    axes = figure.add_axes((left / width, below / height, columns * column / width, HEIGHT / height))
    axes.set(xlim=(0, columns), ylim=(0, top / size), ylabel=f"offset in the arena, {unit}")
    axes.set_xticks([i + 0.5 for i in range(columns)], [])
    axes.tick_params(labelsize=FONTS[0], length=3)
    axes.yaxis.label.set_fontsize(FONTS[0] + 1)
    axes.spines[["top", "right"]].set_visible(False)
    for i, name in enumerate(names):
        _write(axes, i + 0.65, -7 / HEIGHT * top / size, name, FONTS[0], ha="right", va="top", rotation=45)
        axes.axvline(i, color="#e4e4e4", linewidth=0.5, zorder=0)

    for i, r in enumerate(found):
        fill, edge = COLOURS["result"] if r.is_result else (FILLS[i % len(FILLS)], "#4a6076")
        corner = (r.left, r.low / size)
        patch = Patch(
            corner, r.right - r.left, (r.high - r.low) / size, facecolor=fill, edgecolor=edge, linewidth=0.8
        )
        axes.add_patch(patch)
        if (fitted := labels[i]) is not None:
            text, font = fitted
            _write(
                axes,
                (r.left + r.right) / 2,
                (r.low + r.high) / 2 / size,
                text,
                font,
                ha="center",
                va="center",
            )
    heights = _apart(
        [found[i].low / size for i in outside], LINE * FONTS[1] / per_byte / size * 1.1, top / size
    )
    for i, note, y in zip(outside, notes, heights, strict=True):
        r = found[i]
        middle = (r.low + r.high) / 2 / size
        path = [r.right, columns, columns + 1.2 * MARGIN / column]
        axes.plot(path, [middle, middle, y], color="#8a8a8a", linewidth=0.5, clip_on=False, zorder=3)
        _write(axes, path[-1] + 3 / column, y, note, FONTS[1], ha="left", va="center")

    for nbytes, style, colour, label in (
        (memory.bytes_planned, "-", "#1f3d5a", "arena"),
        (memory.lower_bound, (0, (4, 3)), "#b03a32", "lower bound: most bytes alive at once"),
    ):
        axes.axhline(nbytes / size, linestyle=style, color=colour, linewidth=1.3, label=label, zorder=4)
    figure.legend(
        loc="upper left",
        bbox_to_anchor=(left / width, 1 - 2.0 * MARGIN / height),
        ncols=2,
        fontsize=FONTS[0],
        frameon=False,
        borderpad=0,
        borderaxespad=0,
    )
    title = (
        f"arena {_bytes(memory.bytes_planned)}, lower bound {_bytes(memory.lower_bound)}, "
        f"a buffer for every node {_bytes(memory.bytes_unplanned)}"
    )
    figure.text(left / width, 1 - 1.4 * MARGIN / height, title, fontsize=FONTS[0] + 2, fontweight="bold")
    save(figure, file)


def _fitted(r: Rectangle, column: float, per_byte: float) -> tuple[str, float] | None:
    """The names in as many lines as fit, and the font's size; None where they do not fit."""
    width, height = (r.right - r.left) * column - 4, (r.high - r.low) * per_byte - 2
    for font in FONTS:
        across = int(width / (CHARACTER * font))
        if across < max(map(len, r.names)):
            continue
        lines = textwrap.wrap(printable(", ".join(r.names)), across, break_long_words=False)
        if len(lines) * LINE * font <= height:
            return "\n".join(lines), font
    return None


def _note(r: Rectangle) -> str:
    """A label beside the picture: the names, or the first and last of many; when, how much."""
    names = r.names if len(r.names) <= 3 else (r.names[0], "…", r.names[-1])
    when = f"{r.left} to the end" if r.is_result else f"{r.left}-{r.right - 1}"
    return printable(f"{', '.join(names)}: steps {when}, {_bytes(r.high - r.low)}")


def _apart(wanted: Sequence[float], distance: float, top: float) -> list[float]:
    """Heights not below those wanted, in ascending order, so far apart; moved down together if they leave the top."""
    found: list[float] = []
    for height in wanted:
        found.append(max(height, found[-1] + distance) if found else height)
    for i in range(len(found) - 1, -1, -1):
        found[i] = min(found[i], top - (len(found) - 1 - i) * distance)
    return found


def _bytes(count: int) -> str:
    """A number of bytes in the largest unit of which there is one."""
    unit, size = next((name, size) for name, size in UNITS if count >= size or size == 1)
    return f"{count} B" if size == 1 else f"{count / size:.4g} {unit}"


def _write(axes: Any, x: float, y: float, text: str, font: float, **options: Any) -> None:
    axes.text(
        x, y, text, fontsize=font, parse_math=False, clip_on=False, linespacing=1.1, zorder=5, **options
    )
