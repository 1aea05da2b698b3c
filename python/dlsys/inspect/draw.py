"""Two pictures, which matplotlib draws: the graph's kernels as boxes with lines between them, and the arena."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..compiler import Group, Plan, value_inputs
from ..errors import DataError, GraphError
from ..graph import Node
from .layout import Box, Edge, layered
from .text import extents, labels_of, loop_rows, term

SUFFIXES = (".svg", ".png")
MOST_NODES = 600  # of the graph; beyond, nobody finds anything in the picture
MOST_STEPS = 400  # kernels of the arena's picture
FONT = 8.0
CHARACTER = 0.65 * FONT  # the width of one, in points, as all lengths
LINE = 1.4 * FONT
FACE: dict[str, Any] = {"fontsize": FONT, "family": "monospace", "parse_math": False}
PADDING = 5.0
LONG = 72  # characters of a text; longer ones are cut
DPI = 140
MOST_PIXELS = 20000  # along a side of a PNG: a sheet of that size is 140 inches

# Fill and line of the kinds of group, and of what is not computed.
COLOURS = {
    "contraction": ("#e3edf9", "#2f6db5"),
    "reduction": ("#efe7f7", "#7a56a5"),
    "rows": ("#ddf1ee", "#23857a"),
    "elementwise": ("#fbf0dc", "#c0792a"),
    "single": ("#ececec", "#666666"),
    "loop": ("#f1f1e4", "#6b6b2f"),
    "view": ("#ffffff", "#888888"),
    "feed": ("#cfe6c8", "#3b7d2f"),
    "parameter": ("#fde0a6", "#a8720b"),
    "result": ("#f6cbc8", "#b03a32"),
}
FILLS = ("contraction", "reduction", "rows", "elementwise", "loop", "feed")  # of the arena's buffers, in turn
GREY = "#8a8a8a"
EDGES = ("#33475b", "#9a4d1f", "#2d6a4f", "#6b3e75", "#8a6d0b", "#1f5fa0", "#a02c4a")
"""Colours of the values between kernels, in turn: which line is which where they cross."""


@dataclass(eq=False)
class Kernel(Box):
    """A kernel's box: its title, and rows of a kind and three texts: a node's name, what it is, and its shape. A view
    has no title."""

    title: str = ""
    kind: str = "view"
    rows: list[tuple[str, str, str, str]] = field(default_factory=list)

    @property
    def columns(self) -> list[float]:
        """Where each column of texts begins, from the left edge, and where the last one ends."""
        widths = [(max(map(len, texts)) + 2) * CHARACTER for texts in list(zip(*self.rows, strict=True))[1:]]
        return [*itertools.accumulate(widths, initial=PADDING)]


def draw_graph(plan: Plan, path: Any) -> None:
    """Write the picture of the kernels: in each the nodes that it computes, in a loop the kernels of its steps. Raises
    GraphError for an unknown suffix or more than MOST_NODES nodes."""
    program = plan.program
    count = sum(len(group.nodes) for group in program.groups) + len(program.aliases.views)
    file = _checked(path, f"draw: the graph has {count} nodes", count, MOST_NODES, "groups() or graph(optimized=True)")
    kernels, edges = _kernels(plan)
    width, height = (max(size, LINE) for size in layered(kernels, edges, gap_x=16.0, gap_y=24.0))
    figure, axes = _axes(width, height)
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    number = {value: i for i, value in enumerate(dict.fromkeys(edge.value for edge in edges))}
    for edge in edges:
        _draw_edge(axes, edge, EDGES[number[edge.value] % len(EDGES)])
    for kernel in kernels:
        _draw_kernel(axes, kernel)
    shown = {kernel.kind for kernel in kernels} | {row[0] for kernel in kernels for row in kernel.rows}
    dtypes = ", ".join(sorted({program.graph.dtypes[node] for node in program.graph.nodes}))
    heading = f"{len(program.groups)} kernels of {len(program.graph.nodes)} nodes, {dtypes}"
    _save(figure, file, heading, [_box((0, 0), 1, 1, kind, label=kind) for kind in COLOURS if kind in shown])


def _kernels(plan: Plan) -> tuple[list[Kernel], list[Edge]]:
    """The boxes of kernels and views, and the values between them."""
    program, name = plan.program, labels_of(plan.program.graph)
    graph, aliases = program.graph, program.aliases
    views = [Group((node,), tuple(value_inputs(node)), (node,), "view") for node in aliases.views]
    groups = [*program.groups, *views]
    made: dict[Node, Kernel] = {}
    for number, group in enumerate(groups):
        loop, outputs = group.kind == "loop", set(group.outputs)
        steps = f", {group.loop.length} steps" if loop else ""
        title = "" if group.kind == "view" else f"{number}  {group.name}{steps}"
        rows = [
            ("feed" if value.cell is None else "parameter", name[value], "", extents(graph.shapes[value]))
            for value in group.inputs
            if value in graph.fed
        ]
        for own, what, _, *reads in loop_rows(program, group, str(number), name):
            rows.append(("", f"{own} {what}", _cut(" ".join(["reads", *reads])), ""))
        for node in group.nodes:
            if not loop or node in outputs:
                rows.append(("", name[node], "" if loop else _cut(term(node, name)), extents(graph.shapes[node])))
        for node in group.outputs:
            numbers = [i for i, result in enumerate(program.results) if result is node]
            rows += [("result", f"result {i}", f"is {name[node]}", "") for i in numbers]
            if (parameter := aliases.taken(node)) is not None:
                rows.append(("parameter", f"writes {name[parameter]}", "", ""))
        kernel = Kernel(title=title, kind=group.kind, rows=rows)
        kernel.width = max(kernel.columns[-1] - 2 * CHARACTER, (len(title) + 1) * CHARACTER) + PADDING
        kernel.height = (len(rows) + bool(title)) * LINE + 3.0
        made.update(dict.fromkeys(group.outputs, kernel))
    pairs = [(made[group.outputs[0]], value) for group in groups for value in group.inputs if value in made]
    return list(dict.fromkeys(made.values())), [Edge(made[value], kernel, value) for kernel, value in pairs]


def _cut(text: str, most: int = LONG) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _draw_kernel(axes: Any, kernel: Kernel) -> None:
    """Draws a kernel as a box: its title, and a row for each value that it reads, computes or writes."""
    left, y = kernel.x - kernel.width / 2, kernel.y
    axes.add_patch(_box((left, y), kernel.width, kernel.height, kernel.kind))
    if kernel.title:
        axes.add_patch(_box((left, y), kernel.width, LINE, kernel.kind, facecolor=COLOURS[kernel.kind][1], zorder=3))
        _text(axes, kernel.x, y + LINE / 2, kernel.title, ha="center", color="white", fontweight="bold")
        y += LINE
    for kind, *texts in kernel.rows:
        if kind:
            axes.add_patch(_box((left + 2, y + 2), kernel.width - 4, LINE - 1, kind, linewidth=0, zorder=3))
        for x, text, colour in zip(kernel.columns, texts, ("#111111", "#555555", "#555555"), strict=False):
            _text(axes, left + x, y + LINE / 2 + 1.5, text, color=colour)
        y += LINE


def _draw_edge(axes: Any, edge: Edge, colour: str) -> None:
    """Straight beside boxes, curved between rows, with a head at its end."""
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path as Outline

    points, codes = edge.points[:1], [Outline.MOVETO]
    for (x, bend), (end, top) in zip(edge.points[1::2], edge.points[2::2], strict=True):
        points += [(x, bend), (x, (bend + top) / 2), (end, (bend + top) / 2), (end, top)]
        codes += [Outline.LINETO, *[Outline.CURVE4] * 3]
    style: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 7, "linewidth": 0.9, "color": colour}
    axes.add_patch(FancyArrowPatch(path=Outline(points, codes), shrinkA=0, shrinkB=0, zorder=1, **style))


def draw_memory(plan: Plan, path: Any) -> None:
    """Write the picture of the arena: kernels across, in the order in which they run, bytes up, a box for each buffer.
    Raises GraphError for an unknown suffix or more than MOST_STEPS kernels."""
    names = [f"{number}  {_cut(group.name, 34)}" for number, group in enumerate(plan.program.groups)]
    steps, memory, planned = len(names), plan.memory, max(plan.memory.bytes_planned, 1)
    file = _checked(path, f"draw_memory: there are {steps} kernels", steps, MOST_STEPS, "plan()")
    column, height = min(70.0, max(26.0, 900.0 / (steps + 1))), 430.0
    figure, axes = _axes((steps + 1) * column, height)
    axes.set(xlim=(0, steps + 1), ylim=(0, planned))
    axes.spines[["top", "right"]].set_visible(False)
    turned = {"rotation": 45, "ha": "right", "fontsize": FONT, "parse_math": False}
    axes.set_xticks([i + 0.7 for i in range(steps + 1)], [*names, "results"], **turned)
    marks = range(0, planned + 1, 1 << max(planned.bit_length() - 3, 0))
    axes.set_yticks(marks, [_bytes(mark) for mark in marks], fontsize=FONT)
    axes.vlines(range(1, steps + 1), 0, planned, color="#e4e4e4", linewidth=0.5, zorder=0)
    note_y = 2.0 * planned  # of the note above
    found = sorted((b for b in memory.buffers if b.nbytes), key=lambda b: (-b.offset, -b.first))
    for i, buffer in enumerate(found):
        kept, length, middle = buffer.last >= steps, buffer.last + 1 - buffer.first, buffer.offset + buffer.nbytes / 2
        fill, edge = COLOURS["result"] if kept else (COLOURS[FILLS[i % len(FILLS)]][0], "#4a6076")
        corner = (buffer.first, buffer.offset)
        axes.add_patch(_box(corner, length, buffer.nbytes, "", facecolor=fill, edgecolor=edge))
        values = [str(getattr(value.id, "name", value.id)) for value in buffer.values]
        text = ", ".join(values)
        if (len(text) + 2) * CHARACTER < length * column and LINE * planned / height < buffer.nbytes:
            _text(axes, buffer.first + length / 2, middle, text, ha="center")
            continue
        note_y = min(middle, note_y - LINE * planned / height)  # beside the picture, or below the note above
        axes.hlines(middle, buffer.last + 1, steps + 1, color=GREY, linewidth=0.5, zorder=1)
        text = text if len(values) <= 3 else f"{values[0]}, …, {values[-1]}"
        when = f"{buffer.first} to the end" if kept else f"{buffer.first}-{buffer.last}"
        line = {"arrowstyle": "-", "color": GREY, "linewidth": 0.5, "relpos": (0, 0.5), "shrinkB": 0}
        note = _shown(f"{text}: steps {when}, {_bytes(buffer.nbytes)}"), (steps + 1, middle), (steps + 1.3, note_y)
        axes.annotate(*note, va="center", arrowprops=line, annotation_clip=False, **FACE)
    bound = {"color": COLOURS["result"][1], "linestyle": "--", "label": "lower bound: most bytes live at once"}
    lines = [
        axes.axhline(memory.bytes_planned, color="#1f3d5a", label="arena", linewidth=1.3, clip_on=False),
        axes.axhline(memory.lower_bound, **bound, linewidth=1.3, clip_on=False),
    ]
    heading = (
        f"arena {_bytes(memory.bytes_planned)}, lower bound {_bytes(memory.lower_bound)}, "
        f"a buffer for every node {_bytes(memory.bytes_unplanned)}"
    )
    _save(figure, file, heading, lines)


def _bytes(count: int) -> str:
    """A number of bytes in the largest unit that it reaches."""
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"


def _checked(path: Any, what: str, count: int, most: int, instead: str) -> Path:
    """The path, if its suffix is known and the picture not too large to be read. Raises GraphError otherwise."""
    if not isinstance(path, (str, os.PathLike)):
        raise GraphError(f"{what}: the path must be text or a pathlib.Path, not {type(path).__name__}")
    file = Path(path)
    if file.suffix.lower() not in SUFFIXES:
        raise GraphError(f"{what}: a picture is {' or '.join(SUFFIXES)}, not {file.name!r}")
    if count > most:
        raise GraphError(f"{what}, and a picture of more than {most} cannot be read; print {instead}")
    return file


def _axes(width: float, height: float) -> tuple[Any, Any]:
    """A figure whose axes have a size in points. What is beside them, `_save` makes room for."""
    from matplotlib.figure import Figure  # here: importing it takes as long as all else of dlsys

    figure = Figure(figsize=(width / 72, height / 72))
    return figure, figure.add_axes((0.0, 0.0, 1.0, 1.0))


def _box(corner: tuple[float, float], width: float, height: float, kind: str, **style: Any) -> Any:
    """A rectangle in the colours of a kind; `style` replaces them."""
    from matplotlib.patches import Rectangle

    fill, edge = COLOURS.get(kind, ("", ""))
    given = {"facecolor": fill, "edgecolor": edge, "linestyle": "--" if kind == "view" else "-"}
    return Rectangle(corner, width, height, **{"linewidth": 0.8, "zorder": 2, "clip_on": False, **given, **style})


def _shown(text: str) -> str:
    """The text without characters that a file of XML cannot hold."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _text(axes: Any, x: float, y: float, text: str, **style: Any) -> None:
    """A text, no part of which is a formula."""
    if text:
        axes.text(x, y, _shown(text), **{"va": "center", "zorder": 5, **FACE, **style})


def _save(figure: Any, file: Path, title: str, handles: Sequence[Any]) -> None:
    """Write the picture with a title above the axes, and below it what each colour means; as SVG with its texts as
    text, and the same bytes for the same picture. Raises DataError where it cannot be written."""
    import matplotlib

    (axes,) = figure.axes
    axes.set_title(title, loc="left", pad=24.0, fontsize=1.25 * FONT, fontweight="bold")
    if handles:
        place = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "borderaxespad": 0.4}
        axes.legend(handles=handles, ncols=len(handles), frameon=False, fontsize=FONT, **place)
    dpi = min(DPI, MOST_PIXELS / max(figure.get_size_inches()))
    metadata = {"Date": None} if file.suffix.lower() == ".svg" else None
    with warnings.catch_warnings(), matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "dlsys"}):
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a name in a script the font lacks
        try:
            figure.savefig(file, dpi=dpi, metadata=metadata, bbox_inches="tight", pad_inches=0.25)
        except OSError as error:
            raise DataError(f"{file} cannot be written: {error.strerror or error}") from None
