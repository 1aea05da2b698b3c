"""The graph with its fused groups as a picture: a box a kernel, inside it the nodes that it computes, or a box a loop,
inside it the kernels of a step."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..compiler import Group, Plan, value_inputs
from ..errors import DataError, GraphError
from ..graph import Node
from .layout import Box, Drawing, Edge, layered
from .text import extents, in_step, labels_of

SUFFIXES = (".svg", ".png")
MOST_NODES = 400  # beyond, nobody finds anything in the picture
FONT = 8.0  # all lengths are in points, 1/72 inch
CHARACTER = 0.62 * FONT  # the mean width of one, as wide as fonts have it
LINE = 1.25 * FONT
PADDING = 5.0
MARGIN = 18.0
HEADER = LINE + 6.0
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
    "view": ("#ffffff", "#666666"),
    "feed": ("#cfe6c8", "#3b7d2f"),
    "parameter": ("#fde0a6", "#a8720b"),
    "result": ("#f6cbc8", "#b03a32"),
}
EDGES = ("#33475b", "#9a4d1f", "#2d6a4f", "#6b3e75", "#8a6d0b", "#1f5fa0", "#a02c4a")
"""Colours of the values that cross between kernels, in turn: which line is which where they cross."""


@dataclass
class Item:
    """A box with a text, in a kernel: a node, or what is read or written there."""

    box: Box
    lines: tuple[str, ...] = ()
    kind: str = "node"


@dataclass
class Cluster:
    """A kernel, or a view: its nodes, placed; where values enter above and leave below, beside its middle."""

    title: str
    kind: str
    items: list[Item] = field(default_factory=list)
    inner: Drawing = field(default_factory=Drawing)
    box: Box = field(default_factory=Box)
    enters: dict[Node, Box] = field(default_factory=dict)
    leaves: dict[Node, Box] = field(default_factory=dict)

    @property
    def header(self) -> float:
        """The height of the title's bar."""
        return HEADER if self.title else 0.0

    @property
    def shift(self) -> float:
        """From the inner drawing's left edge to the cluster's middle."""
        return self.inner.width / 2


@dataclass(frozen=True)
class Picture:
    """The graph laid out: clusters, the lines between them, and the size of it all."""

    clusters: list[Cluster]
    between: Drawing


def draw_graph(plan: Plan, path: Any) -> None:
    """Write the picture. Raises GraphError for an unknown suffix or more than MOST_NODES nodes."""
    file = checked_path(path, "draw")
    program = plan.program
    count = sum(len(group.nodes) for group in program.groups) + len(program.aliases.viewed)
    if count > MOST_NODES:
        raise GraphError(
            f"draw: the graph has {count} nodes, and a picture of more than {MOST_NODES} cannot be read; "
            "print groups() or graph(optimized=True)"
        )
    _paint(plan, lay_out(plan), file)


def lay_out(plan: Plan) -> Picture:
    """Everything placed, in points from the upper left corner."""
    program = plan.program
    parts: list[tuple[str, str, Sequence[Node], Sequence[Node], Sequence[Node]]] = [
        (f"{number}  {group.name}{_times(group)}", group.kind, group.nodes, group.inputs, group.outputs)
        for number, group in enumerate(program.groups)
    ]
    parts += [("", "view", (node,), (source,), (node,)) for node, source in program.aliases.viewed.items()]
    joins = dict.fromkeys(program.aliases.parts.values())
    parts += [("", "view", (node,), tuple(value_inputs(node)), (node,)) for node in joins]
    owner = {node: number for number, part in enumerate(parts) for node in part[4]}
    name = labels_of(program.graph)
    read = {value for part in parts for value in part[3]}
    clusters = [_cluster(plan, part, name, read) for part in parts]
    edges = [
        Edge(
            owner[value],
            number,
            clusters[owner[value]].leaves[value].x - clusters[owner[value]].shift,
            port.x - cluster.shift,
        )
        for number, cluster in enumerate(clusters)
        for value, port in cluster.enters.items()
    ]
    between = layered([cluster.box for cluster in clusters], edges, gap_x=22.0, gap_y=30.0)
    return Picture(clusters, between)


def _times(group: Group) -> str:
    return f", {group.loop.steps}" if group.kind == "loop" else ""


def _cluster(
    plan: Plan,
    part: tuple[str, str, Sequence[Node], Sequence[Node], Sequence[Node]],
    name: dict[Node, str],
    read: set[Node],
) -> Cluster:
    """A kernel's nodes with what they read and write. `read` is what any kernel reads."""
    title, kind, nodes, inputs, outputs = part
    program = plan.program
    graph = program.graph
    cluster = Cluster(title, kind)
    boxes: list[Box] = []
    of: dict[Node, int] = {}

    def add(box: Box) -> int:
        boxes.append(box)
        return len(boxes) - 1

    def item(lines: tuple[str, ...], kind: str) -> int:
        width = max(map(len, lines)) * CHARACTER + 2 * PADDING
        cluster.items.append(Item(Box(width, len(lines) * LINE + PADDING), lines, kind))
        return add(cluster.items[-1].box)

    for value in inputs:
        if value in graph.fed:
            style = "parameter" if value.op.name == "parameter" else "feed"
            of[value] = item((name[value], extents(graph.shapes[value])), style)
        else:
            of[value] = add(Box(pin="first"))
            cluster.enters[value] = boxes[-1]
    edges = _steps(plan, nodes, name, of, item) if kind == "loop" else []
    for node in nodes if kind != "loop" else ():
        of[node] = item(
            (name[node], _detail(node, extents(graph.shapes[node]))), kind if kind == "view" else "node"
        )
        values = value_inputs(node)
        spread = min(16.0, boxes[of[node]].width / (len(values) + 1))
        for i, value in enumerate(values):
            edges.append(Edge(of[value], of[node], end=(i - (len(values) - 1) / 2) * spread))
    for node in outputs:
        if node not in of:
            continue  # the memory of a loop's steps
        results = [f"result {i}" for i, result in enumerate(program.results) if result is node]
        for text in results:
            edges.append(Edge(of[node], item((text,), "result")))
        if node in program.aliases.placed:
            edges.append(Edge(of[node], item((f"writes {name[program.aliases.placed[node]]}",), "parameter")))
        if node in read:
            edges.append(Edge(of[node], add(Box(pin="last"))))
            cluster.leaves[node] = boxes[-1]
    cluster.inner = layered(boxes, edges, gap_x=10.0, gap_y=14.0)
    width = max(cluster.inner.width + 2 * PADDING, len(title) * CHARACTER * 1.12 + 2 * PADDING)
    cluster.box = Box(width, cluster.header + cluster.inner.height + 3 * PADDING)
    return cluster


def _steps(
    plan: Plan,
    results: Sequence[Node],
    name: dict[Node, str],
    of: dict[Node, int],
    item: Callable[[tuple[str, ...], str], int],
) -> list[Edge]:
    """Adds the kernels of a loop's step and its results to a cluster; returns the edges between them. What is carried
    is told by a kernel's text: it comes from the step before."""
    position = next(i for i, group in enumerate(plan.program.groups) if group.nodes is results)
    loop, (_, step) = plan.program.groups[position], plan.loops[position]
    edges, made = [], {}  # type: tuple[list[Edge], dict[Node, int]]
    for number, group in enumerate(step.program.groups):
        given = dict.fromkeys(node for value in group.inputs for node in step.program.aliases.computed(value))
        where = {node: loop.loop.where[node] for node in given if node in loop.loop.where}
        carried = [in_step(plan, loop, node, name) for node, at in where.items() if at.is_result]
        lines = (f"{position}.{number} {group.name}", *(f"reads {text}" for text in sorted(carried)))
        own = item(lines, group.kind if group.kind in COLOURS else "node")
        inputs = [loop.nodes[0].inputs[at.number] for at in where.values() if not at.is_result]
        edges += [Edge(of[value], own) for value in inputs]
        edges += [Edge(made[node], own) for node in given if node in made]
        made |= dict.fromkeys(group.outputs, own)
    for node in results[: loop.loop.memory]:
        shape = extents(plan.program.graph.shapes[node])
        of[node] = item((name[node], shape), "node")
    for node, place in step.program.aliases.placed.items():
        edges.append(Edge(made[node], of[results[loop.loop.where[place].number]]))
    for group in loop.loop.start.groups:
        for first, node in zip(group.inputs, group.outputs, strict=True):
            place = loop.loop.start.aliases.placed[node]
            at = loop.nodes[0].inputs[loop.loop.where[first].number]
            edges.append(Edge(of[at], of[results[loop.loop.where[place].number]]))
    return edges


def _detail(node: Node, shape: str) -> str:
    """The second line of a node: its operator unless the name says it, what else tells it apart, its shape."""
    words = [] if node.name.startswith(f"{node.op.name}_") else [node.op.name]
    for key, value in node.attrs.items():
        if value is not None and value is not False and key not in ("shape", "dtype"):
            text = (
                key
                if value is True
                else f"{key}={value:.6g}"
                if isinstance(value, float)
                else f"{key}={value}"
            )
            words.append(text if len(text) <= 24 else f"{text[:23]}…")
    return " ".join([*words, shape])


def checked_path(path: Any, what: str) -> Path:
    """The path, if its suffix is known. Raises GraphError."""
    if not isinstance(path, (str, os.PathLike)):
        raise GraphError(f"{what}: the path must be text or a pathlib.Path, not {type(path).__name__}")
    file = Path(path)
    if file.suffix.lower() not in SUFFIXES:
        raise GraphError(f"{what}: a picture is {' or '.join(SUFFIXES)}, not {file.name!r}")
    return file


def printable(text: str) -> str:
    """The text without characters that a file of XML cannot hold."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def sheet(width: float, height: float) -> tuple[Any, Any]:
    """An empty figure of so many points, and axes that measure in points from the upper left corner."""
    from matplotlib.figure import Figure  # here: importing it takes as long as all else of dlsys

    figure = Figure(figsize=(width / 72, height / 72))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    return figure, axes


def save(figure: Any, file: Path) -> None:
    """Write the figure; as SVG with its texts as text, and the same bytes for the same picture. Raises DataError where
    it cannot be written."""
    import matplotlib

    side = max(figure.get_size_inches())
    with warnings.catch_warnings(), matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "dlsys"}):
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a name in a script the font lacks
        metadata = {"Date": None} if file.suffix.lower() == ".svg" else None
        try:
            figure.savefig(file, dpi=min(DPI, MOST_PIXELS / side), metadata=metadata)
        except OSError as error:
            raise DataError(f"{file} cannot be written: {error.strerror or error}") from None


def write(axes: Any, x: float, y: float, text: str, **options: Any) -> None:
    """A text with its middle at (x, y); no part of it is a formula."""
    settings = {"ha": "center", "va": "center", "fontsize": FONT, **options}
    axes.text(x, y, printable(text), parse_math=False, **settings)


def _rounded(axes: Any, box: tuple[float, float, float, float], kind: str, **options: Any) -> None:
    from matplotlib.patches import FancyBboxPatch

    x, y, width, height = box
    fill, line = COLOURS.get(kind, ("#ffffff", "#555555"))
    settings = {"facecolor": fill, "edgecolor": line, "linewidth": 0.8, **options}
    size = min(options.pop("rounding", 4.0), height / 2)
    settings.pop("rounding", None)
    axes.add_patch(FancyBboxPatch((x, y), width, height, f"round,pad=0,rounding_size={size}", **settings))


def _paint(plan: Plan, picture: Picture, file: Path) -> None:
    top = MARGIN + 3.6 * LINE
    kinds = [kind for kind in COLOURS if kind in _kinds(picture.clusters)]
    legend = sum(len(kind) * CHARACTER + 4 * PADDING for kind in kinds)
    heading = _heading(plan)
    widest = max(picture.between.width, legend, len(heading) * CHARACTER * 1.3)
    figure, axes = sheet(widest + 2 * MARGIN, picture.between.height + top + MARGIN)
    write(axes, MARGIN, MARGIN + LINE / 2, heading, ha="left", fontsize=1.2 * FONT, fontweight="bold")
    x = MARGIN
    for kind in kinds:
        width = len(kind) * CHARACTER + 2 * PADDING
        style = {"linestyle": (0, (3, 2))} if kind == "view" else {}
        _rounded(axes, (x, MARGIN + 1.6 * LINE, width, LINE + 2), kind, **style)
        write(axes, x + width / 2, MARGIN + 2.1 * LINE + 1, kind)
        x += width + 2 * PADDING
    left = MARGIN + (widest - picture.between.width) / 2
    ports = dict.fromkeys(line.port for line in picture.between.lines)
    colours = {port: EDGES[i % len(EDGES)] for i, port in enumerate(ports)}
    _lines(axes, picture.between, left, top, [colours[line.port] for line in picture.between.lines], 1)
    for cluster in picture.clusters:
        _paint_cluster(axes, cluster, left, top)
    save(figure, file)


def _kinds(clusters: Iterable[Cluster]) -> set[str]:
    return {cluster.kind for cluster in clusters} | {i.kind for c in clusters for i in c.items}


def _heading(plan: Plan) -> str:
    graph = plan.program.graph
    dtypes = ", ".join(sorted({graph.dtypes[node] for node in graph.nodes}))
    return f"{len(plan.program.groups)} kernels of {len(graph.nodes)} nodes, {dtypes}"


def _paint_cluster(axes: Any, cluster: Cluster, left: float, top: float) -> None:
    box, is_view = cluster.box, cluster.kind == "view"
    x, y = left + box.x - box.width / 2, top + box.y
    _rounded(
        axes, (x, y, box.width, box.height), cluster.kind, zorder=2, linestyle=(0, (3, 2)) if is_view else "-"
    )
    if cluster.title:
        line = COLOURS[cluster.kind][1]
        _rounded(axes, (x, y, box.width, HEADER), cluster.kind, zorder=4, facecolor=line)
        write(
            axes, x + box.width / 2, y + HEADER / 2, cluster.title, color="white", fontweight="bold", zorder=5
        )
    inner_x, inner_y = left + box.x - cluster.shift, y + cluster.header + 1.5 * PADDING
    for port in cluster.enters.values():
        axes.plot([inner_x + port.x] * 2, [y, inner_y + port.y], color="#555555", linewidth=0.9, zorder=3)
    for port in cluster.leaves.values():
        below = y + box.height
        axes.plot([inner_x + port.x] * 2, [inner_y + port.y, below], color="#555555", linewidth=0.9, zorder=3)
    ends = {(port.x, port.y) for port in cluster.leaves.values()}
    _lines(axes, cluster.inner, inner_x, inner_y, ["#555555"] * len(cluster.inner.lines), 3, ends)
    for item in cluster.items:
        x, y = inner_x + item.box.x - item.box.width / 2, inner_y + item.box.y
        if item.kind != "view":  # its cluster's box is enough
            rounding = 2.0 if item.kind == "node" else 9.0
            _rounded(axes, (x, y, item.box.width, item.box.height), item.kind, zorder=5, rounding=rounding)
        for i, text in enumerate(item.lines):
            height = y + (item.box.height - len(item.lines) * LINE) / 2 + (i + 0.5) * LINE
            plain = i > 0 or item.kind == "result"
            write(axes, inner_x + item.box.x, height, text, zorder=6, color="#555555" if plain else "#111111")


def _lines(
    axes: Any,
    drawing: Drawing,
    left: float,
    top: float,
    colours: Sequence[str],
    order: int,
    open_ends: Iterable[tuple[float, float]] = (),
) -> None:
    """The edges, with a head where one ends at a box."""
    from matplotlib.patches import PathPatch, Polygon
    from matplotlib.path import Path as Outline

    codes = [Outline.MOVETO, Outline.LINETO, Outline.CURVE4, Outline.CURVE4, Outline.CURVE4]
    for line, colour in zip(drawing.lines, colours, strict=True):
        (x, y), (_, bend), (end, last) = line.top, line.bend, line.end
        headed = line.is_last and line.end not in open_ends
        stop = last - (4.0 if headed else 0.0)
        half = (bend + stop) / 2
        points = [(x, y), (x, bend), (x, half), (end, half), (end, stop)]
        moved = [(left + px, top + py) for px, py in points]
        axes.add_patch(
            PathPatch(Outline(moved, codes), fill=False, edgecolor=colour, linewidth=0.9, zorder=order)
        )
        if headed:
            tip = [(end, last), (end - 2.2, last - 5.0), (end + 2.2, last - 5.0)]
            axes.add_patch(
                Polygon([(left + px, top + py) for px, py in tip], color=colour, linewidth=0, zorder=order)
            )
