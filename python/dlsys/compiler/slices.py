"""Slices: what is taken apart and put together again, along any axis; and the terms of sums, which are nested `add`s.

To the bit, but that the sign of a zero may change. Gradients of slices are arrays of zeros with something in one place:
their sum is one array put together of those, so a network that takes an array apart step by step, or part by part,
costs one pass over it backwards. At each index numbers are added in the order in which they were: of (a + c) + b, where
a and b have something in the same place, a and b are not added first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from ..graph import OPS, Node, Shape
from ..ops import add_op, concatenate_op, full_op, reshape_op, slice_op
from ..ops.joining import Stack
from ..ops.shape import Reshape
from ..ops.slicing import Region, Slice, SliceGradient, region_of, slice_gradient_op
from .base import Change, TypedGraph, rewrite

ADD = OPS["add"]


class Terms:
    """The terms of a graph's sums, asked for by a rule of `rewrite`, which must be given these `origins`."""

    def __init__(self, graph: TypedGraph) -> None:
        self.origins: dict[Node, Node] = {}
        self._inner: set[Node] = set()  # sums that are the beginning of another

        def begins(value: Node, node: Node) -> bool:
            alike = graph.shapes.get(value) == graph.shapes[node]
            return value.op is ADD and graph.uses[value] == 1 and alike

        for node in graph.nodes:
            if node.op is ADD and node.inputs[0] is not node.inputs[1]:
                self._inner.update([value for value in node.inputs if begins(value, node)][:1])

    def origin(self, node: Node) -> Node:
        """The node of the graph before, for one that stands for it."""
        return self.origins.get(node, node)

    def of(self, node: Node) -> list[Node]:
        """The terms of a sum, in the order in which they are added, one by one; none for what is no sum, or begins
        another."""
        if node.op is not ADD or self.origin(node) in self._inner:
            return []
        found: list[Node] = []  # the last first
        while True:
            inner = [value for value in node.inputs if value.op is ADD and self.origin(value) in self._inner]
            if not inner:
                return [*node.inputs, *reversed(found)]
            found.append(node.inputs[1] if inner[0] is node.inputs[0] else node.inputs[0])
            node = inner[0]


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

    def rule(node: Node, typed: TypedGraph) -> Change | None:
        if isinstance(node.op, Slice):
            return _slice(node, typed, terms)
        if isinstance(node.op, SliceGradient):
            return _slice_gradient(node, typed)
        if node.op.kind == "join":
            return _join(node, typed)
        return _sum(node, typed, terms.of(node)) if node.op is ADD else None

    return rewrite(graph, rule, terms.origins, name="slices")


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


def _slice(node: Node, graph: TypedGraph, terms: Terms) -> Change | None:
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
        alone = graph.uses[terms.origin(x)] == 1 or inner.run(graph.shapes[source]) is not None
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


@dataclass(frozen=True, eq=False)
class _Box:
    """The gradient of a slice: `value`, of shape `counts`, at `starts`; zeros around it."""

    starts: tuple[int, ...]
    counts: tuple[int, ...]
    value: Node

    @property
    def place(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.starts, self.counts

    def along(self, axis: int) -> tuple[int, int]:
        """Where it begins and ends."""
        return self.starts[axis], self.starts[axis] + self.counts[axis]


def _sum(node: Node, graph: TypedGraph, terms: list[Node]) -> Change | None:
    """A sum whose terms are gradients of slices: those of neighbours are joined, those of one slice added, where that
    leaves the order at each index."""
    shape = graph.shapes[node]
    parts: list[Node | _Box] = []
    like = None
    for term in terms:
        parts.append(term)
        if isinstance(term.op, SliceGradient) and graph.shapes[term] == shape:
            region = region_of(term, shape)
            if _is_plain(region):
                like = term.inputs[1]
                parts[-1] = _Box(region.starts, region.counts, reshape_op(term.inputs[0], region.counts))
    if like is None or sum(isinstance(part, _Box) for part in parts) < 2:
        return None
    found: list[Node] = []
    for layer in _layers(parts, len(shape)):
        if isinstance(layer, Node):
            found.append(layer)
            continue
        for axis in reversed(range(len(shape))):
            layer = _side_by_side(layer, axis, shape, graph.dtypes[node])
        for box in layer:
            whole = box.counts == shape
            found.append(box.value if whole else slice_gradient_op(box.value, like, _key(box.starts, box.counts)))
    joined = total(found) if len(found) < len(terms) else None
    return None if joined is None else (joined, "a sum of slices' gradients is a concat")


MOST_CELLS = 1 << 20  # into which the ends of all boxes cut an array; beyond, boxes stay where they are


def _layers(parts: list[Node | _Box], rank: int) -> list[Node | list[_Box]]:
    """The parts of a sum in an order that changes no number of it, boxes in lists of such as do not overlap.

    Of the numbers at an index the first two may change places, and nothing else. So a box that overlaps none before it
    goes to the front, past one other part at most; one that lies where another lies is added to it, if there was
    nothing else; the rest stand behind as many other parts as before, and behind the boxes that they overlap."""
    boxes = [part for part in parts if isinstance(part, _Box)]
    ends = [sorted({end for box in boxes for end in box.along(axis)}) for axis in range(rank)]
    if math.prod(map(len, ends)) > MOST_CELLS:
        return [[part] if isinstance(part, _Box) else part for part in parts]
    cell = [{end: number for number, end in enumerate(of_axis)} for of_axis in ends]
    last = np.full([len(of_axis) for of_axis in ends], -1)  # of each cell, in which layer the last box over it is
    most = len(parts)  # layers behind one part
    behind: list[list[list[_Box]]] = [[[]]]  # the layers behind as many other parts
    others: list[Node] = []
    for part in parts:
        if isinstance(part, Node):
            others.append(part)
            behind.append([])
            continue
        cells = tuple(slice(*(cell[axis][end] for end in part.along(axis))) for axis in range(rank))
        count, before = len(others), int(last[cells].max())
        front = behind[0][0]
        same = [i for i, box in enumerate(front) if box.place == part.place] if count == before == 0 else []
        if same:
            front[same[0]] = replace(part, value=add_op(front[same[0]].value, part.value))
            continue
        if before < 0 and count < 2:
            count = layer = 0
        else:
            layer = before % most + 1 if before // most == count else 0
        if layer == len(behind[count]):
            behind[count].append([])
        behind[count][layer].append(part)
        last[cells] = count * most + layer
    found: list[Node | list[_Box]] = []
    for layers, other in zip_longest(behind, others):
        found += [layer for layer in layers if layer]
        found += [] if other is None else [other]
    return found


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
            found.append(_Box(starts, counts, full_op(counts, 0.0, dtype)))
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
    return _Box(first.starts, counts, value)
