"""The graph with its fused groups as a picture: a box a kernel, inside it the nodes that it computes, or a box a loop,
inside it the kernels of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..compiler import Group, Plan, value_inputs
from ..errors import GraphError
from ..graph import Node
from .layout import Box, Drawing, Edge, layered
from .picture import CHARACTER, COLOURS, FONT, LINE, MARGIN, Picture, checked_path
from .text import extents, in_step, labels_of

MOST_NODES = 400  # beyond, nobody finds anything in the picture
PADDING = 5.0
HEADER = LINE + 6.0
EDGES = ("#33475b", "#9a4d1f", "#2d6a4f", "#6b3e75", "#8a6d0b", "#1f5fa0", "#a02c4a")
"""Colours of the values that cross between kernels, in turn: which line is which where they cross."""
GREY = "#555555"


@dataclass(eq=False)
class Item(Box):
    """A box with a text, in a kernel: a node, or what is read or written there."""

    lines: tuple[str, ...] = ()
    kind: str = "node"


@dataclass(eq=False)
class Cluster(Box):
    """A kernel, or a view, with its nodes; where values enter above and leave below, beside its left edge.

    Attributes:
        parts, edges: the boxes inside, of nodes and of the values on its borders, and what joins them.
        inner: their drawing.
    """

    title: str = ""
    kind: str = "view"
    parts: list[Box] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    inner: Drawing = field(default_factory=Drawing)
    enters: dict[Node, Box] = field(default_factory=dict)
    leaves: dict[Node, Box] = field(default_factory=dict)

    def item(self, kind: str, *lines: str) -> Item:
        """A box more, with these lines."""
        width = max(map(len, lines)) * CHARACTER + 2 * PADDING
        self.parts.append(found := Item(width, len(lines) * LINE + PADDING, lines=lines, kind=kind))
        return found

    def border(self, pin: str) -> Box:
        """The end of a value's line at the border, "first" above, "last" below."""
        self.parts.append(found := Box(pin=pin))
        return found

    def lay_out(self) -> None:
        """Place what is inside, and find the size."""
        self.inner = layered(self.parts, self.edges, gap_x=10.0, gap_y=14.0)
        self.width = max(self.inner.width, len(self.title) * CHARACTER * 1.12) + 2 * PADDING
        self.height = bool(self.title) * HEADER + self.inner.height + 3 * PADDING

    def beside(self, port: Box) -> float:
        """How far to the right of the cluster's middle a value's line ends."""
        return port.x - self.inner.width / 2


def draw_graph(plan: Plan, path: Any) -> None:
    """Write the picture. Raises GraphError for an unknown suffix or more than MOST_NODES nodes."""
    file = checked_path(path, "draw")
    program = plan.program
    count = sum(len(group.nodes) for group in program.groups) + len(program.aliases.uncomputed)
    if count > MOST_NODES:
        raise GraphError(
            f"draw: the graph has {count} nodes, and a picture of more than {MOST_NODES} cannot be read; "
            "print groups() or graph(optimized=True)"
        )
    clusters, between = lay_out(plan)
    _paint(plan, clusters, between).save(file)


def lay_out(plan: Plan) -> tuple[list[Cluster], Drawing]:
    """Kernels and views in their places, and the lines between them."""
    program = plan.program
    views = {node: value_inputs(node) for node in program.aliases.uncomputed}
    read = {value for group in program.groups for value in group.inputs}.union(*views.values())
    made: dict[Node, Cluster] = {}
    for number, group in enumerate(program.groups):
        cluster = _cluster(plan, Cluster(title=f"{number}  {group.name}", kind=group.kind), group, number, read)
        made |= dict.fromkeys(group.outputs, cluster)
    for node, values in views.items():
        made[node] = _cluster(plan, Cluster(), Group((node,), tuple(values), (node,), "view"), -1, read)
    clusters = list(dict.fromkeys(made.values()))
    edges = [
        Edge(made[value], cluster, made[value].beside(made[value].leaves[value]), cluster.beside(port))
        for cluster in clusters
        for value, port in cluster.enters.items()
    ]
    return clusters, layered(clusters, edges, gap_x=22.0, gap_y=30.0)


def _cluster(plan: Plan, cluster: Cluster, group: Group, number: int, read: set[Node]) -> Cluster:
    """The cluster with a kernel's nodes, and what they read and write. `read` is what any kernel reads."""
    program, graph, name = plan.program, plan.program.graph, labels_of(plan.program.graph)
    of: dict[Node, Box] = {}
    for value in group.inputs:
        if value in graph.fed:
            style = "feed" if value.cell is None else "parameter"
            of[value] = cluster.item(style, name[value], extents(graph.shapes[value]))
        else:
            of[value] = cluster.enters[value] = cluster.border("first")
    if group.kind == "loop":
        cluster.title += f", {group.loop.steps}"
        _steps(plan, cluster, group, number, name, of)
    for node in group.nodes if group.kind != "loop" else ():
        kind = "view" if group.kind == "view" else "node"
        of[node] = cluster.item(kind, name[node], _detail(node, extents(graph.shapes[node])))
        values = value_inputs(node)
        spread = min(16.0, of[node].width / (len(values) + 1))
        for i, value in enumerate(values):
            cluster.edges.append(Edge(of[value], of[node], end=(i - (len(values) - 1) / 2) * spread))
    for node in group.outputs:
        if node not in of:
            continue  # the memory of a loop's steps
        numbers = [i for i, result in enumerate(program.results) if result is node]
        ends: list[Box] = [cluster.item("result", f"result {i}") for i in numbers]
        if (parameter := program.aliases.taken(node)) is not None:
            ends.append(cluster.item("parameter", f"writes {name[parameter]}"))
        if node in read:
            cluster.leaves[node] = cluster.border("last")
            ends.append(cluster.leaves[node])
        cluster.edges += [Edge(of[node], end) for end in ends]
    cluster.lay_out()
    return cluster


def _steps(
    plan: Plan, cluster: Cluster, group: Group, position: int, name: dict[Node, str], of: dict[Node, Box]
) -> None:
    """Adds the kernels of a loop's step and its results to a cluster. What is carried is told by a kernel's text: it
    comes from the step before."""
    loop, results, (_, step) = group.loop, group.nodes, plan.loops[position]
    made: dict[Node, Box] = {}
    for number, inner in enumerate(step.program.groups):
        given = dict.fromkeys(node for value in inner.inputs for node in step.program.aliases.computed(value))
        where = {node: loop.where[node] for node in given if node in loop.where}
        carried = sorted(in_step(plan, group, node, name) for node, at in where.items() if at.is_result)
        kind = inner.kind if inner.kind in COLOURS else "node"
        own = cluster.item(kind, f"{position}.{number} {inner.name}", *(f"reads {text}" for text in carried))
        inputs = [of[results[0].inputs[at.number]] for at in where.values() if not at.is_result]
        cluster.edges += [Edge(box, own) for box in [*inputs, *(made[node] for node in given if node in made)]]
        made |= dict.fromkeys(inner.outputs, own)
    for node in results[: loop.memory]:
        of[node] = cluster.item("node", name[node], extents(plan.program.graph.shapes[node]))
    for inner in step.program.groups:
        for node in inner.outputs:
            if (place := step.program.aliases.taken(node)) is not None:
                cluster.edges.append(Edge(made[node], of[results[loop.where[place].number]]))
    for begin in loop.start.groups:
        for first, node in zip(begin.inputs, begin.outputs, strict=True):
            place = loop.where[loop.start.aliases.lies_in[node][0]]
            cluster.edges.append(Edge(of[results[0].inputs[loop.where[first].number]], of[results[place.number]]))


def _detail(node: Node, shape: str) -> str:
    """The second line of a node: its operator unless the name says it, what else tells it apart, its shape."""
    words = [] if node.name.startswith(f"{node.op.name}_") else [node.op.name]
    for key, value in node.attrs.items():
        if value is not None and value is not False and key not in ("shape", "dtype"):
            text = key if value is True else f"{key}={value:.6g}" if isinstance(value, float) else f"{key}={value}"
            words.append(text if len(text) <= 24 else f"{text[:23]}…")
    return " ".join([*words, shape])


def _paint(plan: Plan, clusters: Sequence[Cluster], between: Drawing) -> Picture:
    graph = plan.program.graph
    dtypes = ", ".join(sorted({graph.dtypes[node] for node in graph.nodes}))
    heading = f"{len(plan.program.groups)} kernels of {len(graph.nodes)} nodes, {dtypes}"
    shown = {c.kind for c in clusters} | {part.kind for c in clusters for part in c.parts if isinstance(part, Item)}
    kinds = [kind for kind in COLOURS if kind in shown]
    legend = sum(len(kind) * CHARACTER + 4 * PADDING for kind in kinds)
    widest, top = max(between.width, legend, len(heading) * CHARACTER * 1.3), MARGIN + 3.6 * LINE
    picture = Picture(widest + 2 * MARGIN, between.height + top + MARGIN)
    picture.text(MARGIN, MARGIN + LINE / 2, heading, ha="left", fontsize=1.2 * FONT, fontweight="bold")
    x = MARGIN
    for kind in kinds:
        width = len(kind) * CHARACTER + 2 * PADDING
        picture.box(x, MARGIN + 1.6 * LINE, width, LINE + 2, 4.0, kind=kind, linestyle=_outline(kind))
        picture.text(x + width / 2, MARGIN + 2.1 * LINE + 1, kind)
        x += width + 2 * PADDING
    left = MARGIN + (widest - between.width) / 2
    ports = list(dict.fromkeys(line.port for line in between.lines))
    _lines(picture, between, left, top, [EDGES[ports.index(line.port) % len(EDGES)] for line in between.lines], 1)
    for cluster in clusters:
        _paint_cluster(picture, cluster, left + cluster.x, top + cluster.y)
    return picture


def _outline(kind: str) -> Any:
    return (0, (3, 2)) if kind == "view" else "-"


def _paint_cluster(picture: Picture, cluster: Cluster, middle: float, y: float) -> None:
    left, width = middle - cluster.width / 2, cluster.width
    picture.box(left, y, width, cluster.height, 4.0, kind=cluster.kind, zorder=2, linestyle=_outline(cluster.kind))
    if cluster.title:
        picture.box(left, y, width, HEADER, 4.0, facecolor=COLOURS[cluster.kind][1], zorder=4)
        picture.text(middle, y + HEADER / 2, cluster.title, color="white", fontweight="bold", zorder=5)
    inner_x, inner_y = middle - cluster.inner.width / 2, y + bool(cluster.title) * HEADER + 1.5 * PADDING
    for ports, border in ((cluster.enters, y), (cluster.leaves, y + cluster.height)):
        for port in ports.values():
            x = inner_x + port.x
            picture.line([(x, border), (x, inner_y + port.y)], edgecolor=GREY, zorder=3)
    _lines(picture, cluster.inner, inner_x, inner_y, [GREY] * len(cluster.inner.lines), 3)
    for item in (part for part in cluster.parts if isinstance(part, Item)):
        x, top = inner_x + item.x, inner_y + item.y
        if item.kind != "view":  # its cluster's box is enough
            corner = 2.0 if item.kind == "node" else 9.0
            picture.box(x - item.width / 2, top, item.width, item.height, corner, kind=item.kind, zorder=5)
        for i, text in enumerate(item.lines):
            colour = GREY if i > 0 or item.kind == "result" else "#111111"
            picture.text(x, top + PADDING / 2 + (i + 0.5) * LINE, text, zorder=6, color=colour)


def _lines(
    picture: Picture, drawing: Drawing, left: float, top: float, colours: Sequence[str], zorder: float
) -> None:
    """The edges, with a head where one ends at a box."""
    for line, colour in zip(drawing.lines, colours, strict=True):
        x, y, bend = left + line.top[0], top + line.top[1], top + line.bend[1]
        end, last = left + line.end[0], top + line.end[1]
        stop = last - (4.0 if line.headed else 0.0)
        half = (bend + stop) / 2
        points = [(x, y), (x, bend), (x, half), (end, half), (end, stop)]
        picture.line(points, curved=True, edgecolor=colour, zorder=zorder)
        if line.headed:
            picture.head(end, last, colour, zorder)
