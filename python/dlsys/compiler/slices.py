"""Slices: what is taken apart and put together again, along any axis."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..graph import Node, Shape
from ..ops import reshape_op, slice_op
from ..ops.slicing import Region, Slice, SliceGradient, region_of
from ..ops.views import View
from .base import Change, TypedGraph, rewrite


def join_slices(graph: TypedGraph) -> TypedGraph:
    """One sweep, inputs first. A slice of a slice, a transpose or a concat reads the source; a concat of neighbouring
    slices is a slice."""
    return rewrite(graph, _rule, name="slices")


def _rule(node: Node, graph: TypedGraph) -> Change | None:
    """The change of a slice, of the gradient of one, or of a join; None where there is none."""
    if isinstance(node.op, Slice):
        return _slice(node, graph)
    if isinstance(node.op, SliceGradient):
        return _slice_gradient(node, graph)
    return _join(node, graph) if node.op.kind == "join" else None


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


def _slice(node: Node, graph: TypedGraph) -> Change | None:
    """A slice of all is a reshape; of a slice or of what else was moved a slice of the source; of a concat, where one
    input is read, a slice of that."""
    (x,), shape = node.inputs, graph.shapes[node]
    region = region_of(node, graph.shapes[x])
    alone, found = True, None
    for inner, base, view in _sources(node, graph):
        if base is x and view.run is not None and view.size == graph.size(x):
            return reshape_op(x, shape), "a slice of all is a reshape"
        # else the inner one is a kernel that others read too, and what reads it mostly none
        alone = alone and (inner is node or graph.uses[inner] == 1)
        if inner.op.kind != "view" and inner is not node:
            if not alone and inner.op.view(inner, View.of(graph.shapes[base])).run is None:
                break
            if view.run is not None or view.key(graph.shapes[base]) is not None:
                found = base, view
    if found is not None:
        return _taken(*found, graph), "a slice of what was moved reads it where it was"
    if x.op.kind == "join" and _is_plain(region):
        return _slice_of_join(x, region, shape, graph)
    return None


def _slice_of_join(x: Node, region: Region, shape: Shape, graph: TypedGraph) -> Change | None:
    """Of one input, or what that is a view of, where no other is read."""
    axis = joined_axis(x, graph)
    start, count = region.starts[axis], region.counts[axis]
    for part in x.inputs:
        extent = graph.shapes[part][axis]
        if start < extent:
            break
        start -= extent
    if start + count > extent:
        return None
    starts = (*region.starts[:axis], start, *region.starts[axis + 1 :])
    view = View.of(graph.shapes[part]).sliced(region.counts, starts, region.steps).reshaped(shape)
    assert view is not None, "axes of one element alone go"
    while part.op.kind == "view" and view.key(graph.shapes[part.inputs[0]]) is not None:
        part = part.inputs[0]
    return _taken(part, view, graph), "a slice of a concat is one of its input"


def _slice_gradient(node: Node, graph: TypedGraph) -> Change | None:
    """A reshape in place of the gradient of a slice that reads all; else None."""
    grad, shape = node.inputs[0], graph.shapes[node]
    region = region_of(node, shape)
    whole = _is_plain(region) and region.counts == shape
    return (reshape_op(grad, shape), "a slice of all is a reshape") if whole else None


def _join(node: Node, graph: TypedGraph) -> Change | None:
    """Of one input, that; of runs of elements that lie one behind another, the whole run."""
    some = [value for value in node.inputs if graph.size(value)]
    if 0 < len(some) < len(node.inputs):
        return Node(node.op, some, node.attrs), "what is empty joins nothing"
    found = pieces(node, graph)
    if found is None:
        return None
    if len(found) == 1:
        return reshape_op(node.inputs[0], graph.shapes[node]), "a concat of one is it"
    base, start = _run_of(found[0][0], graph)
    for value, first in found:
        other, place = _run_of(value, graph)
        if other is not base or place != start + first:
            return None
    view = replace(View.of(graph.shapes[node]), offset=start)
    return _taken(base, view, graph), "a concat of neighbouring slices is a slice"
