"""Rules for slices: what is taken apart and put together again, along any axis."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..graph import Node
from ..ops import reshape_op, slice_op
from ..ops.slicing import Region, region_of
from ..ops.views import View
from .base import TypedGraph
from .patterns import Match, Pattern, Rule, p


def _sources(node: Node, graph: TypedGraph) -> Iterator[tuple[Node, Node, View]]:
    """The nodes of which this one is a view, the nearest first: what of the node reads it, it itself, and the view."""
    path = [node]
    while path[-1].inputs and (base := path[-1].inputs[0]).op.kind != "scan":  # whose value is several arrays
        view = View.of(graph.shapes[base])
        for passed in reversed(path):
            if (view := passed.op.view(passed, view)) is None:
                return
        yield path[-1], base, view
        path.append(base)


def _run_of(node: Node, graph: TypedGraph) -> tuple[Node, int]:
    """The furthest node of which this one is a run of neighbouring elements, and the number of the first of them."""
    runs = [(base, view.run) for _, base, view in _sources(node, graph) if view.run is not None]
    return runs[-1] if runs else (node, 0)


def _taken(base: Node, view: View, graph: TypedGraph) -> Node:
    """A view of a node, of which it is a slice or a run, as a slice."""
    key = view.key(graph.shapes[base])
    if key is None:
        base = reshape_op(base, (graph.size(base),))
        key = view.key((graph.size(base.inputs[0]),))
    return reshape_op(slice_op(base, key), view.shape)


def joined_axis(node: Node, graph: TypedGraph) -> int:
    """The axis along which a node that joins puts its inputs together, not negative."""
    return node.attrs["axis"] % len(graph.shapes[node])


def pieces(node: Node, graph: TypedGraph) -> list[tuple[Node, int]] | None:
    """The inputs of a node that joins, each with the number of its first element, where they lie one behind another in
    its memory; None where they do not."""
    shape = graph.shapes[node]
    if graph.size(node) == 0 or any(extent != 1 for extent in shape[: joined_axis(node, graph)]):
        return None
    found, first = [], 0
    for value in node.inputs:
        found.append((value, first))
        first += graph.size(value)
    return found


def _is_plain(region: Region) -> bool:
    """Whether neighbours are read, and something."""
    return 0 not in region.counts and all(
        step == 1 or count == 1 for step, count in zip(region.steps, region.counts, strict=True)
    )


def _takes_all(m: Match) -> bool:
    """Whether a slice reads all, in order."""
    same = m.graph.size(m.node) == m.graph.size(m.x)
    return same and m.node.op.view(m.node, View.of(m.shapes[m.x])).run is not None


def _read_at_source(m: Match) -> Node | None:
    """A slice of a slice, or of what else was moved, as a slice of the source."""
    alone, found = True, None
    for inner, base, view in _sources(m.node, m.graph):
        # else the inner one is a kernel that others read too, and what reads it mostly none
        alone = alone and (inner is m.node or m.graph.uses[inner] == 1)
        if inner.op.kind != "view" and inner is not m.node:
            if not alone and inner.op.view(inner, View.of(m.shapes[base])).run is None:
                break
            if view.run is not None or view.key(m.shapes[base]) is not None:
                found = base, view
    return None if found is None else _taken(*found, m.graph)


def _slice_of_join(m: Match) -> Node | None:
    """A slice of a concat of which it reads one input, as one of that, or of what that is a view of."""
    region = region_of(m.node, m.shapes[m.x])
    if not _is_plain(region):
        return None
    axis = joined_axis(m.x, m.graph)
    start, count = region.starts[axis], region.counts[axis]
    for part in m.x.inputs:
        extent = m.shapes[part][axis]
        if start < extent:
            break
        start -= extent
    if start + count > extent:
        return None
    starts = (*region.starts[:axis], start, *region.starts[axis + 1 :])
    view = View.of(m.shapes[part]).sliced(region.counts, starts, region.steps).reshaped(m.shape)
    assert view is not None, "axes of one element alone go"
    while part.op.kind == "view" and view.key(m.shapes[part.inputs[0]]) is not None:
        part = part.inputs[0]
    return _taken(part, view, m.graph)


def _places_all(m: Match) -> bool:
    """Whether it is the gradient of a slice that reads all."""
    region = region_of(m.node, m.shape)
    return _is_plain(region) and region.counts == m.shape


def _without_empty(m: Match) -> Node | None:
    some = [value for value in m.node.inputs if m.graph.size(value)]
    return Node(m.node.op, some, m.node.attrs) if 0 < len(some) < len(m.node.inputs) else None


def _neighbours(m: Match) -> Node | None:
    """A concat of runs of elements that lie one behind another, as the whole run."""
    found = pieces(m.node, m.graph)
    if found is None:
        return None
    base, start = _run_of(found[0][0], m.graph)
    for value, first in found:
        other, place = _run_of(value, m.graph)
        if other is not base or place != start + first:
            return None
    return _taken(base, replace(View.of(m.shape), offset=start), m.graph)


SLICE_OF_X = p.slice("x")
OF_JOIN = replace(SLICE_OF_X, test=lambda op, read: read[0].kind == "join")
JOIN = Pattern(test=lambda op, read: op.kind == "join")
RESHAPED = p.reshape("x", shape=lambda m: m.shape)

SLICES = [
    Rule("a slice of all is a reshape", SLICE_OF_X, RESHAPED, _takes_all),
    Rule("a slice of what was moved reads it where it was", SLICE_OF_X, _read_at_source),
    Rule("a slice of a concat is one of its input", OF_JOIN, _slice_of_join),
    Rule("a slice of all is a reshape", p.slice_gradient("x"), RESHAPED, _places_all),
    Rule("what is empty joins nothing", JOIN, _without_empty),
    Rule("a concat of one is it", JOIN, lambda m: m.node.inputs[0], lambda m: len(m.node.inputs) == 1),
    Rule("a concat of neighbouring slices is a slice", JOIN, _neighbours),
]  # fmt: skip
