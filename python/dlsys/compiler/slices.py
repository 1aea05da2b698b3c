"""Slices: what is taken apart and put together again, along any axis."""

from __future__ import annotations

from collections.abc import Sequence

from ..graph import Node, Shape
from ..ops import reshape_op, slice_op
from ..ops.joining import Stack
from ..ops.shape import Reshape
from ..ops.slicing import Region, Slice, SliceGradient, region_of
from .base import Change, TypedGraph, rewrite


def join_slices(graph: TypedGraph) -> TypedGraph:
    """One sweep, inputs first. A slice of a slice, or of a concat, reads the source; a concat of neighbouring slices is
    a slice."""
    return rewrite(graph, _rule, name="slices")


def _rule(node: Node, graph: TypedGraph) -> Change | None:
    if isinstance(node.op, Slice):
        return _slice(node, graph)
    if isinstance(node.op, SliceGradient):
        return _slice_gradient(node, graph)
    return _join(node, graph) if node.op.kind == "join" else None


def located(node: Node, graph: TypedGraph) -> tuple[Node, int]:
    """The node that this one reads, by reshapes and slices, as a run of neighbouring elements, and the number of the
    first of them there."""
    first = 0
    while isinstance(node.op, (Reshape, Slice)):
        (x,) = node.inputs
        if isinstance(node.op, Slice):
            found = region_of(node, graph.shapes[x]).run(graph.shapes[x])
            if found is None:
                break
            first += found
        node = x
    return node, first


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


def taken(x: Node, first: int, shape: Shape, graph: TypedGraph) -> Node:
    """The elements of x from number `first` on, as an array of `shape`."""
    count, size = 1, graph.size(x)
    for extent in shape:
        count *= extent
    wide = graph.shapes[x]
    row = size // wide[0] if wide else 1
    if count == size:
        return reshape_op(x, shape)
    if first % row == 0 and count % row == 0:
        return reshape_op(slice_op(x, slice(first // row, (first + count) // row)), shape)
    return reshape_op(slice_op(reshape_op(x, (size,)), slice(first, first + count)), shape)


def _key(
    starts: Sequence[int], counts: Sequence[int], steps: Sequence[int] | None = None
) -> tuple[slice, ...]:
    """Of each axis `count` elements, from `start` on; steps are positive."""
    steps = steps or (1,) * len(starts)
    return tuple(slice(a, a + (n - 1) * s + 1, s) for a, n, s in zip(starts, counts, steps, strict=True))


def _is_plain(region: Region) -> bool:
    """Whether neighbours are read, and something."""
    return 0 not in region.counts and all(
        step == 1 or count == 1 for step, count in zip(region.steps, region.counts, strict=True)
    )


def _slice(node: Node, graph: TypedGraph) -> Change | None:
    """A slice of all is a reshape; of a slice one slice; of a concat, where one input is read, a slice of that."""
    (x,), shape = node.inputs, graph.shapes[node]
    wide = graph.shapes[x]
    region = region_of(node, wide)
    if 0 in shape or min(region.steps, default=1) < 1:
        return None
    if region.counts == wide:
        return reshape_op(x, shape), "a slice of all is a reshape"
    if isinstance(x.op, Slice):
        (source,) = x.inputs
        inner = region_of(x, graph.shapes[source])
        # else it is one kernel, and what is behind it mostly none
        alone = graph.uses[x] == 1 or inner.run(graph.shapes[source]) is not None
        if not alone or min(inner.steps, default=1) < 1:
            return None
        counts, starts, steps = list(inner.counts), list(inner.starts), list(inner.steps)
        for place, axis in enumerate(inner.axes):
            if axis is not None:
                starts[axis] += region.starts[place] * steps[axis]
                steps[axis] *= region.steps[place]
                counts[axis] = region.counts[place]
        return reshape_op(slice_op(source, _key(starts, counts, steps)), shape), "a slice of a slice is one"
    if x.op.kind == "join" and _is_plain(region):
        return _slice_of_join(x, region, shape, graph)
    return None


def _slice_of_join(x: Node, region: Region, shape: Shape, graph: TypedGraph) -> Change | None:
    """Of one input, where no other is read."""
    axis = joined_axis(x, graph)
    start, count = region.starts[axis], region.counts[axis]
    starts, counts = list(region.starts), list(region.counts)
    if isinstance(x.op, Stack):
        if count != 1:
            return None
        part = x.inputs[start]
        del starts[axis], counts[axis]
    else:
        for part in x.inputs:
            extent = graph.shapes[part][axis]
            if start < extent:
                break
            start -= extent
        if start + count > extent:
            return None
        starts[axis] = start
    if tuple(counts) == graph.shapes[part]:
        return reshape_op(part, shape), "a slice of a concat is its input"
    return reshape_op(slice_op(part, _key(starts, counts)), shape), "a slice of a concat is one of its input"


def _slice_gradient(node: Node, graph: TypedGraph) -> Change | None:
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
    base, start = located(found[0][0], graph)
    for value, first in found:
        other, place = located(value, graph)
        if other is not base or place != start + first:
            return None
    return taken(base, start, graph.shapes[node], graph), "a concat of neighbouring slices is a slice"
