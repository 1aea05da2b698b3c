"""Whose memory a value is: views of others, parts of what is put together, and what lies in a parameter."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from ..graph import Node
from ..ops.slicing import Slice, region_of
from ..system import lazy
from .base import TypedGraph, rewrite, value_inputs
from .slices import pieces

LEAST_PART = 4  # views of less than a quarter of an array, together, are copies: else they keep all of it alive


@dataclass(frozen=True, eq=False)
class Aliases:
    """The values that have no memory of their own.

    Attributes:
        viewed: the nodes that are no computation but a run of another node's elements, and that node.
        parts: the values that are computed right where they lie in a concatenation, and that; it has no kernel.
        offsets: where these begin in the other, in bytes; not there for 0.
        placed: the values that are written straight into a parameter's memory, and that.
    """

    viewed: dict[Node, Node] = field(default_factory=dict)
    parts: dict[Node, Node] = field(default_factory=dict)
    offsets: dict[Node, int] = field(default_factory=dict)
    placed: dict[Node, Node] = field(default_factory=dict)

    @property
    def uncomputed(self) -> frozenset[Node]:
        """The nodes that no kernel computes."""
        return frozenset((*self.viewed, *self.parts.values()))

    def source(self, node: Node) -> Node:
        """The node in whose memory this one lies: itself if in its own, the parameter if it is placed in one."""
        while (other := self._next(node)) is not None:
            node = other
        return node

    def offset(self, node: Node) -> int:
        """Where it begins in its source, in bytes."""
        total = 0
        while (other := self._next(node)) is not None:
            total += self.offsets.get(node, 0)
            node = other
        return total

    @lazy
    def _joins(self) -> frozenset[Node]:
        return frozenset(self.parts.values())

    def _next(self, node: Node) -> Node | None:
        for where in (self.viewed, self.parts, self.placed):
            if node in where:
                return where[node]
        return None

    def computed(self, node: Node) -> list[Node]:
        """The nodes, of a kernel or fed, whose values are read by who reads this one."""
        found, stack = [], [node]
        while stack:
            value = stack.pop()
            if value in self.viewed:
                stack.append(self.viewed[value])
            elif value in self._joins:
                stack += value_inputs(value)
            else:
                found.append(value)
        return found


def nbytes_of(node: Node, graph: TypedGraph) -> int:
    """The size of a node's value; none of a loop's, of which results are counted."""
    if node.op.kind == "scan":
        return 0
    return math.prod(graph.shapes[node]) * np.dtype(graph.dtypes[node]).itemsize


def with_own_constants(graph: TypedGraph) -> TypedGraph:
    """The graph in which each concatenation puts together constants of its own, as they are cheap to make and a value
    can be computed in one place only."""
    made: set[Node] = set()

    def rule(node: Node, typed: TypedGraph) -> Node | None:
        constants = [value.op.constant for value in node.inputs]
        if node.op.kind != "join" or node in made or not any(constants):
            return None
        inputs = [
            Node(value.op, [], value.attrs) if own else value
            for value, own in zip(node.inputs, constants, strict=True)
        ]
        made.add(found := Node(node.op, inputs, node.attrs))
        return found

    return rewrite(graph, rule, name="views", why="a constant that is joined is computed in its place")


def find_aliases(graph: TypedGraph, boundary: int) -> Aliases:
    """The aliases of a graph: reshapes and the like are views, and so are slices of neighbours; concatenations are
    computed in place, part by part. Values begin at multiples of `boundary` bytes."""
    found = Aliases({node: node.inputs[0] for node in graph.nodes if node.op.kind == "view"})
    _view_slices(graph, found, boundary)
    _place_parts(graph, found, boundary)
    return found


def _view_slices(graph: TypedGraph, aliases: Aliases, boundary: int) -> None:
    """Slices whose elements lie one behind another become views, unless they are a small part of their array."""
    starts: dict[Node, int] = {}
    seen: dict[Node, int] = {}  # bytes of views, by the array that they would keep alive
    for node in graph.nodes:
        if isinstance(node.op, Slice) and graph.size(node):
            (x,) = node.inputs
            first = region_of(node, graph.shapes[x]).run(graph.shapes[x])
            start = (first or 0) * np.dtype(graph.dtypes[node]).itemsize
            if first is not None and start % boundary == 0:
                starts[node] = start
                source = aliases.source(x)
                seen[source] = seen.get(source, 0) + nbytes_of(node, graph)
    for node, start in starts.items():
        source = aliases.source(node.inputs[0])
        if source in graph.fed or seen.get(source, 0) * LEAST_PART >= nbytes_of(source, graph):
            aliases.viewed[node] = node.inputs[0]
            aliases.offsets[node] = start


def _place_parts(graph: TypedGraph, aliases: Aliases, boundary: int) -> None:
    """Concatenations along the first axis longer than 1 take no kernel if each input can be computed in its place."""
    taken = {value for _, value in graph.updates}  # to be written into parameters
    for node in graph.nodes:
        found = pieces(node, graph) if node.op.kind == "join" else None
        if found is None or node in taken:
            continue
        size = np.dtype(graph.dtypes[node]).itemsize
        own: dict[Node, int] = {}
        for value, first in found:
            value = _whole(value, graph, aliases)
            free = (
                value not in taken and value not in own and not (value in graph.fed or value in aliases.parts)
            )
            if not free or value in aliases.viewed or first * size % boundary or graph.size(value) == 0:
                break
            own[value] = first * size
        else:
            aliases.parts.update(dict.fromkeys(own, node))
            aliases.offsets.update(own)


def _whole(node: Node, graph: TypedGraph, aliases: Aliases) -> Node:
    """The node of which this one is all the memory."""
    while node in aliases.viewed and graph.size(aliases.viewed[node]) == graph.size(node):
        node = aliases.viewed[node]
    return node
