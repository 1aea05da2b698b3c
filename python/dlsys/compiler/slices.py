"""Slices: what is taken apart and put together again, along any axis; and the terms of sums, which are nested `add`s.

To the bit, but that the sign of a zero may change. Gradients of slices are arrays of zeros with something in one place:
their sum is one array put together of those, so a network that takes an array apart step by step, or part by part,
costs one pass over it backwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..graph import Node, Shape
from ..ops import add_op, concatenate_op, full_op, reshape_op, slice_op
from ..ops.slicing import Region, region_of, slice_gradient_op
from .base import TypedGraph, rewrite


class Terms:
    """The terms of a graph's sums, asked for by a rule of `rewrite`, which must be given these `origins`."""

    def __init__(self, graph: TypedGraph) -> None:
        self.origins: dict[Node, Node] = {}
        readers: dict[Node, Node] = {}
        for node in graph.nodes:
            if node.op.name == "add" and node.inputs[0] is not node.inputs[1]:
                readers.update((value, node) for value in node.inputs)
        self._inner = {
            value
            for value, reader in readers.items()
            if value.op.name == "add"
            and graph.uses[value] == 1
            and graph.shapes[value] == graph.shapes[reader]
        }

    def origin(self, node: Node) -> Node:
        """The node of the graph before, for one that stands for it."""
        return self.origins.get(node, node)

    def of(self, node: Node) -> list[Node]:
        """The terms of a sum, in order; none for what is no sum, or part of another."""
        if node.op.name != "add" or self.origin(node) in self._inner:
            return []
        found: list[Node] = []
        stack = [node]
        while stack:
            value = stack.pop()
            if value is node or (value.op.name == "add" and self.origin(value) in self._inner):
                stack += reversed(value.inputs)
            else:
                found.append(value)
        return found


def total(terms: list[Node]) -> Node:
    """The sum of one term or more, from the left."""
    found = terms[0]
    for term in terms[1:]:
        found = add_op(found, term)
    return found


def join_slices(graph: TypedGraph) -> TypedGraph:
    """One sweep, inputs first. A slice of a slice, or of a concat, reads the source; a concat of neighbouring slices is
    a slice; a sum of slices' gradients is a concat."""
    terms = Terms(graph)

    def rule(node: Node, typed: TypedGraph) -> Node | None:
        name = node.op.name
        if name == "slice":
            return _slice(node, typed, terms)
        if name == "slice_gradient":
            return _slice_gradient(node, typed)
        if node.op.joins:
            return _join(node, typed)
        return _sum(node, typed, terms.of(node)) if name == "add" else None

    return rewrite(graph, rule, terms.origins)


def located(node: Node, graph: TypedGraph) -> tuple[Node, int]:
    """The node that this one reads, by reshapes and slices, as a run of neighbouring elements, and the number of the
    first of them there."""
    first = 0
    while node.op.name in ("reshape", "slice"):
        (x,) = node.inputs
        if node.op.name == "slice":
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


def _slice(node: Node, graph: TypedGraph, terms: Terms) -> Node | None:
    """A slice of all is a reshape; of a slice one slice; of a concat, where one input is read, a slice of that."""
    (x,), shape = node.inputs, graph.shapes[node]
    wide = graph.shapes[x]
    region = region_of(node, wide)
    if 0 in shape or min(region.steps, default=1) < 1:
        return None
    if region.counts == wide:
        return reshape_op(x, shape)
    if x.op.name == "slice":
        (source,) = x.inputs
        inner = region_of(x, graph.shapes[source])
        # else it is one kernel, and what is behind it mostly none
        alone = graph.uses[terms.origin(x)] == 1 or inner.run(graph.shapes[source]) is not None
        if not alone or min(inner.steps, default=1) < 1:
            return None
        counts, starts, steps = list(inner.counts), list(inner.starts), list(inner.steps)
        for place, axis in enumerate(inner.axes):
            if axis is not None:
                starts[axis] += region.starts[place] * steps[axis]
                steps[axis] *= region.steps[place]
                counts[axis] = region.counts[place]
        return reshape_op(slice_op(source, _key(starts, counts, steps)), shape)
    if x.op.joins and _is_plain(region):
        return _slice_of_join(x, region, shape, graph)
    return None


def _slice_of_join(x: Node, region: Region, shape: Shape, graph: TypedGraph) -> Node | None:
    """Of one input, where no other is read."""
    axis = joined_axis(x, graph)
    start, count = region.starts[axis], region.counts[axis]
    starts, counts = list(region.starts), list(region.counts)
    if x.op.name == "stack":
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
        return reshape_op(part, shape)
    return reshape_op(slice_op(part, _key(starts, counts)), shape)


def _slice_gradient(node: Node, graph: TypedGraph) -> Node | None:
    grad, shape = node.inputs[0], graph.shapes[node]
    region = region_of(node, shape)
    whole = _is_plain(region) and region.counts == shape
    return reshape_op(grad, shape) if whole else None


def _join(node: Node, graph: TypedGraph) -> Node | None:
    """Of one input, that; of runs of elements that lie one behind another, the whole run."""
    found = pieces(node, graph)
    if found is None:
        return None
    if len(found) == 1:
        return reshape_op(node.inputs[0], graph.shapes[node])
    base, start = located(found[0][0], graph)
    for value, first in found:
        other, place = located(value, graph)
        if other is not base or place != start + first:
            return None
    return taken(base, start, graph.shapes[node], graph)


@dataclass(frozen=True, eq=False)
class _Box:
    """The gradient of a slice: `value`, of shape `counts`, at `starts`; zeros around it."""

    starts: tuple[int, ...]
    counts: tuple[int, ...]
    value: Node
    number: int  # of the first term in it


def _sum(node: Node, graph: TypedGraph, terms: list[Node]) -> Node | None:
    """A sum whose terms are gradients of slices: those of one slice are added, those of neighbours joined."""
    shape = graph.shapes[node]
    boxes: list[_Box] = []
    like = None
    for number, term in enumerate(terms):
        if term.op.name == "slice_gradient" and graph.shapes[term] == shape:
            region = region_of(term, shape)
            if _is_plain(region):
                value, like = reshape_op(term.inputs[0], region.counts), term.inputs[1]
                boxes.append(_Box(region.starts, region.counts, value, number))
    if like is None or len(boxes) < 2:
        return None
    fewer = _added(boxes)
    for axis in reversed(range(len(shape))):
        fewer = _side_by_side(fewer, axis, shape, graph.dtypes[node])
    if len(fewer) == len(boxes):
        return None
    joined = {}
    for box in fewer:
        whole = box.counts == shape
        joined[box.number] = (
            box.value if whole else slice_gradient_op(box.value, like, _key(box.starts, box.counts))
        )
    gone = {box.number for box in boxes}
    return total([joined.get(i, term) for i, term in enumerate(terms) if i in joined or i not in gone])


def _added(boxes: list[_Box]) -> list[_Box]:
    """With one box for those at the same place."""
    found: dict[tuple[Shape, Shape], _Box] = {}
    for box in boxes:
        key = (box.starts, box.counts)
        first = found.get(key)
        found[key] = box if first is None else replace(first, value=add_op(first.value, box.value))
    return list(found.values())


def _side_by_side(boxes: list[_Box], axis: int, shape: Shape, dtype: str) -> list[_Box]:
    """With one box for those that lie beside each other along the axis."""
    rows: dict[tuple[Shape, Shape], list[_Box]] = {}
    for box in boxes:
        others = tuple(x[:axis] + x[axis + 1 :] for x in (box.starts, box.counts))
        rows.setdefault((others[0], others[1]), []).append(box)
    found = []
    for row in rows.values():
        row.sort(key=lambda box: box.starts[axis])
        row = _filled(row, axis, shape, dtype)
        run = [row[0]]
        for box in row[1:]:
            if box.starts[axis] != run[-1].starts[axis] + run[-1].counts[axis]:
                found.append(_one(run, axis))
                run = []
            run.append(box)
        found.append(_one(run, axis))
    return found


def _filled(row: list[_Box], axis: int, shape: Shape, dtype: str) -> list[_Box]:
    """The boxes, in order, with zeros in the gaps between them where most of the array of `shape` is theirs."""
    extent = shape[axis]
    whole = (*shape[:axis], row[0].counts[axis], *shape[axis + 1 :]) == row[0].counts
    if not whole or len(row) < 2 or 2 * sum(box.counts[axis] for box in row) < extent:
        return row
    found, end = [], 0
    for box in (*row, None):
        start = extent if box is None else box.starts[axis]
        if start < end:
            return row  # they overlap
        if start > end:
            counts = (*shape[:axis], start - end, *shape[axis + 1 :])
            starts = tuple(end if i == axis else 0 for i in range(len(shape)))
            found.append(_Box(starts, counts, full_op(counts, 0.0, dtype), row[0].number))
        if box is not None:
            found.append(box)
            end = start + box.counts[axis]
    return found


def _one(run: list[_Box], axis: int) -> _Box:
    if len(run) == 1:
        return run[0]
    first = run[0]
    counts = (*first.counts[:axis], sum(box.counts[axis] for box in run), *first.counts[axis + 1 :])
    value = concatenate_op([box.value for box in run], axis)
    return _Box(first.starts, counts, value, min(box.number for box in run))
