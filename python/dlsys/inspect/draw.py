"""Two pictures, which matplotlib draws: the kernels of a run with the values between them, and the arena."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..compiler import Group, Plan
from ..compiler.aliases import behind
from ..compiler.listing import extents, term
from ..errors import DataError, GraphError
from ..graph import Node
from .text import labels_of, loop_rows

MOST = 600  # nodes or kernels of a picture; beyond, nobody finds anything in it
FONT = 8.0
CHARACTER = 0.65 * FONT  # the width of one, in points, as all lengths
LINE = 1.4 * FONT
GAP = 2 * FONT  # between boxes
LANE = FONT  # between the lines of values
FACE: dict[str, Any] = {"fontsize": FONT, "family": "monospace", "parse_math": False}
LONG = 72  # characters of a text; longer ones are cut
LEGEND: dict[str, Any] = {"frameon": False, "fontsize": FONT, "loc": "lower left", "bbox_to_anchor": (0.0, 1.0)}

# Fill and line of the kinds of kernel, and of what is not computed.
COLOURS = {
    "contraction": ("#e3edf9", "#2f6db5"),
    "reduction": ("#efe7f7", "#7a56a5"),
    "rows": ("#ddf1ee", "#23857a"),
    "elementwise": ("#fbf0dc", "#c0792a"),
    "single": ("#ececec", "#666666"),
    "loop": ("#f1f1e4", "#6b6b2f"),
    "feed": ("#cfe6c8", "#3b7d2f"),
    "parameter": ("#fde0a6", "#a8720b"),
    "result": ("#f6cbc8", "#b03a32"),
}
DARK = "#33475b"


Row = tuple[str, tuple[str, str, str], Node | None]
"""A row of a kernel's box: the kind that colours it, its texts (a value's name, what it is, its shape), and the value
whose line begins or ends there."""


def draw_graph(plan: Plan, path: Any) -> None:
    """Write the picture of the kernels, one below the other in the order in which they run: in each what it reads and
    the nodes that it computes, in a loop the kernels of its steps. A line leads from each value to its readers. Raises
    GraphError for an unknown suffix or more than MOST nodes."""
    graph, groups = plan.graph, plan.groups
    count = sum(len(group.nodes) for group in groups) + len(plan.views)
    file = _checked(path, f"draw: the graph has {count} nodes", count, "groups() or graph(optimized=True)")
    titles = [f"{i}  {group.name}" for i, group in enumerate(groups)]
    boxes = [list(_rows(plan, group, i)) for i, group in enumerate(groups)]
    texts = [texts for rows in boxes for _, texts, _ in rows] or [("", "", "")]
    columns = [(max(map(len, column)) + 2) * CHARACTER for column in zip(*texts, strict=True)]
    width = max([sum(columns), *((len(title) + 2) * CHARACTER for title in titles)])
    height = max(sum((len(rows) + 1) * LINE + GAP for rows in boxes), LINE)
    figure, axes = _axes(width + GAP, height)
    axes.set(xlim=(0, width + GAP), ylim=(height, 0))
    axes.axis("off")
    y, lanes = 0.0, dict[Node, list[float]]()  # heights of the rows of each value
    for group, title, rows in zip(groups, titles, boxes, strict=True):
        computed = set(group.nodes)
        axes.add_patch(_box((0, y), width, (len(rows) + 1) * LINE, COLOURS[group.kind]))
        axes.add_patch(_box((0, y), width, LINE, COLOURS[group.kind][1:] * 2))
        _text(axes, CHARACTER, y + LINE / 2, title, color="white", fontweight="bold")
        for line, (kind, texts_of_row, value) in enumerate(rows, 1):
            middle, left = y + (line + 0.5) * LINE, CHARACTER
            if kind:
                axes.add_patch(_box((2, y + line * LINE + 1), width - 4, LINE - 2, COLOURS[kind], linewidth=0))
            for text, column in zip(texts_of_row, columns, strict=True):
                _text(axes, left, middle, text)
                left += column
            if value is not None and (value in computed or value in lanes):
                lanes.setdefault(value, []).append(middle)
        y += (len(rows) + 1) * LINE + GAP
    _draw_lanes(axes, [lane for lane in lanes.values() if len(lane) > 1], width)
    shown = {group.kind for group in groups} | {kind for rows in boxes for kind, *_ in rows}
    legend = [_box((0, 0), 1, 1, colours, label=kind) for kind, colours in COLOURS.items() if kind in shown]
    _save(figure, file, f"{len(groups)} kernels of {len(graph.nodes)} nodes", legend)


def _rows(plan: Plan, group: Group, position: int) -> Iterator[Row]:
    """The rows of a kernel's box: what it reads, with the views through which it reads it; what it computes; which of
    its values are results, or are written into a parameter."""
    name, loop = labels_of(plan.graph), group.kind == "loop"
    for value in group.inputs:
        views, source = [], value
        while source in plan.views:
            views.append(source)
            source = source.inputs[0]
        kind = "" if source not in plan.graph.fed else "parameter" if source.op.leaf else "feed"
        yield kind, (name[source], "" if kind else "read", extents(source)), source
        for node in reversed(views):
            yield "", (name[node], term(node, name), extents(node)), None
    for inner, what, _, *reads in loop_rows(group, str(position), name):
        yield "", (f"{inner} {what}", _cut(" ".join(["reads", *reads])), ""), None
    for node in group.outputs if loop else group.nodes:
        yield "", (name[node], "" if loop else _cut(term(node, name)), extents(node)), node
    for node in group.outputs:
        for i, result in enumerate(plan.results):
            if result is not None and behind(result, plan.views) is node:
                yield "result", (f"result {i}", f"is {name[result]}", ""), None
        if (parameter := plan.memory.values[node].into) is not None:
            yield "parameter", (f"writes {name[parameter]}", "", ""), None


def _draw_lanes(axes: Any, lanes: Sequence[Sequence[float]], right: float) -> None:
    """Draw a line to the right of the boxes for each value, from the row that computes it, as near to them as the lines
    beside it allow."""
    ends: list[float] = []  # of the lowest line at each distance
    style = {"color": DARK, "linewidth": 0.8, "clip_on": False}
    for first, *read in lanes:
        at = next((i for i, end in enumerate(ends) if end < first), len(ends))
        ends[at : at + 1] = [read[-1]]
        x = right + (at + 1.5) * LANE
        axes.plot([right, x, x], [first, first, read[-1]], **style)
        for y in read:
            axes.plot([x, right + 2], [y, y], marker="<", markevery=[1], markersize=3, **style)


def draw_memory(plan: Plan, path: Any) -> None:
    """Write the picture of the arena: kernels across, in the order in which they run, bytes up, a box for each buffer;
    on the right those that are too small for their names. Raises GraphError for an unknown suffix or more than
    MOST kernels."""
    names = [f"{number}  {_cut(group.name, 34)}" for number, group in enumerate(plan.groups)]
    steps, memory, planned = len(names), plan.memory, max(plan.memory.bytes_planned, 1)
    file = _checked(path, f"draw_memory: there are {steps} kernels", steps, "plan()")
    column, height = min(70.0, max(26.0, 900.0 / (steps + 1))), 430.0
    figure, axes = _axes((steps + 1) * column, height)
    axes.set(xlim=(0, steps + 1), ylim=(0, planned))
    axes.spines[["top", "right"]].set_visible(False)
    slanted = {"rotation": 45, "ha": "right", "fontsize": FONT, "parse_math": False}
    axes.set_xticks([i + 0.7 for i in range(steps + 1)], [*names, "results"], **slanted)
    marks = range(0, planned + 1, 1 << max(planned.bit_length() - 3, 0))
    axes.set_yticks(marks, [_bytes(mark) for mark in marks], fontsize=FONT)
    small = []
    for buffer in sorted((b for b in memory.buffers if b.nbytes), key=lambda b: (-b.offset, -b.first)):
        length, colours = buffer.last + 1 - buffer.first, COLOURS["result" if buffer.last >= steps else "contraction"]
        axes.add_patch(_box((buffer.first, buffer.offset), length, buffer.nbytes, colours))
        text = ", ".join(str(getattr(value.id, "name", value.id)) for value in buffer.values)
        if (len(text) + 2) * CHARACTER < length * column and LINE * planned / height < buffer.nbytes:
            _text(axes, buffer.first + length / 2, buffer.offset + buffer.nbytes / 2, text, ha="center")
        else:
            small.append(f"{buffer.offset}: {text}, steps {buffer.first}-{buffer.last}, {_bytes(buffer.nbytes)}")
    for i, text in enumerate(["from byte", *small] if small else []):
        _text(axes, steps + 1.3, planned * (1 - i * LINE / height), text)
    axes.axhline(memory.lower_bound, color=COLOURS["result"][1], linestyle="--")
    sizes = [_bytes(size) for size in (memory.bytes_planned, memory.lower_bound, memory.bytes_unplanned)]
    _save(figure, file, "arena {}, lower bound {} (dashed), a buffer for every node {}".format(*sizes))


def _bytes(count: int) -> str:
    """A number of bytes in the largest unit that it reaches."""
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"


def _cut(text: str, most: int = LONG) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _checked(path: Any, what: str, count: int, instead: str) -> Any:
    """The path, or the stream, of a picture that is not too large to be read. Raises GraphError otherwise."""
    if count > MOST:
        raise GraphError(f"{what}, and a picture of more than {MOST} cannot be read; print {instead}")
    if isinstance(path, io.BytesIO):
        return path
    if not isinstance(path, (str, os.PathLike)):
        raise GraphError(f"{what}: the path must be text or a pathlib.Path, not {type(path).__name__}")
    if Path(path).suffix.lower() not in (".svg", ".png"):
        raise GraphError(f"{what}: a picture is .svg or .png, not {Path(path).name!r}")
    return Path(path)


def _axes(width: float, height: float) -> tuple[Any, Any]:
    """A figure whose axes have a size in points. What is beside them, `_save` makes room for."""
    from matplotlib.figure import Figure  # here: importing it takes as long as all else of dlsys

    figure = Figure(figsize=(width / 72, height / 72))
    return figure, figure.add_axes((0.0, 0.0, 1.0, 1.0))


def _box(corner: tuple[float, float], width: float, height: float, colours: tuple[str, str], **style: Any) -> Any:
    """A rectangle, filled with the first colour and drawn with the second."""
    from matplotlib.patches import Rectangle

    given = {"facecolor": colours[0], "edgecolor": colours[1], "linewidth": 0.8, "zorder": 2, "clip_on": False}
    return Rectangle(corner, width, height, **{**given, **style})


def _text(axes: Any, x: float, y: float, text: str, **style: Any) -> None:
    """A text, no part of which is a formula, without characters that a file of XML cannot hold."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    if shown:
        axes.text(x, y, shown, **{"va": "center", "zorder": 5, **FACE, **style})


def _save(figure: Any, file: Any, title: str, handles: Sequence[Any] = ()) -> None:
    """Write the picture with a title above the axes, and below it what each colour means; as SVG with its texts as
    text, and the same bytes for the same picture. Raises DataError where it cannot be written."""
    import matplotlib

    (axes,) = figure.axes
    axes.set_title(title, loc="left", pad=24.0, fontsize=1.25 * FONT, fontweight="bold")
    if handles:
        axes.legend(handles=handles, ncols=len(handles), **LEGEND)
    kind = file.suffix.lower()[1:] if isinstance(file, Path) else "svg"
    style = {"format": kind, "dpi": 140, "bbox_inches": "tight"}
    with warnings.catch_warnings(), matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "dlsys"}):
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a name in a script the font lacks
        try:
            figure.savefig(file, metadata={"Date": None} if kind == "svg" else None, pad_inches=0.25, **style)
        except OSError as error:
            raise DataError(f"{file} cannot be written: {error.strerror or error}") from None
