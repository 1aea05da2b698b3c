"""Which values lie in another's memory: views of it, updates in their parameters."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..graph import Node
from .base import TypedGraph
from .views import SLICE, View, view_of

LEAST_PART = 4  # views of less than a quarter of an array, together, are copies: else they keep all of it alive


@dataclass(frozen=True, eq=False)
class Aliases:
    """The values that have no memory of their own.

    Attributes:
        lies_in: for each value the node in whose memory it is, and the first byte: for a view its input, for a
            parameter's new value the parameter.
        views: the nodes that are their input's memory, or a run of it, and that no kernel computes.
    """

    lies_in: dict[Node, tuple[Node, int]] = field(default_factory=dict)
    views: dict[Node, None] = field(default_factory=dict)

    def add_view(self, node: Node, start: int) -> None:
        """Let a node be its input's memory from a byte on."""
        self.lies_in[node] = node.inputs[0], start
        self.views[node] = None

    def around(self, node: Node) -> list[Node]:
        """The node, that in which it lies, and so on to the one that has memory of its own or is given."""
        found = [node]
        while (place := self.lies_in.get(found[-1])) is not None:
            found.append(place[0])
        return found

    def source(self, node: Node) -> Node:
        """The last node `around` this one."""
        return self.around(node)[-1]

    def offset(self, node: Node) -> int:
        """Where it begins in its source, in bytes."""
        return sum(self.lies_in[inner][1] for inner in self.around(node)[:-1])

    def taken(self, node: Node) -> Node | None:
        """The parameter, or place of a loop, into whose memory a kernel writes the value."""
        place = None if node in self.views else self.lies_in.get(node)
        return None if place is None else place[0]

    def computed(self, node: Node) -> Node:
        """The node, of a kernel or fed, whose value is read by who reads this one."""
        while node in self.views:
            node = node.inputs[0]
        return node


def nbytes_of(node: Node, graph: TypedGraph) -> int:
    """The size of a node's value; none of a loop's, of which results are counted."""
    return node.value_type.nbytes  # type: ignore[union-attr]


def find_aliases(graph: TypedGraph, boundary: int) -> Aliases:
    """The aliases of a graph: what is a run of its input's elements is a view. Values begin at multiples of `boundary`
    bytes."""
    found = Aliases()
    _find_views(graph, found, boundary)
    return found


def _find_views(graph: TypedGraph, aliases: Aliases, boundary: int) -> None:
    """Reshapes and the like become views, and so do slices whose elements lie one behind another, unless they are a
    small part of their array."""
    slices: dict[Node, tuple[Node, int]] = {}
    seen: dict[Node, int] = {}  # bytes of slices, by the array that they would keep alive
    for node in graph.nodes:
        if node.op.kind == "view":
            aliases.add_view(node, 0)
        elif node.op is SLICE:
            (x,) = node.inputs
            first = view_of(node, View.of(x.shape)).run
            start = (first or 0) * np.dtype(node.dtype).itemsize
            if first is not None and start % boundary == 0:
                slices[node] = x, start
                source = aliases.source(x)
                seen[source] = seen.get(source, 0) + nbytes_of(node, graph)
    for node, (x, start) in slices.items():
        source = aliases.source(x)
        if source in graph.fed or seen.get(source, 0) * LEAST_PART >= nbytes_of(source, graph):
            aliases.add_view(node, start)


def whole_of(node: Node, graph: TypedGraph, aliases: Aliases) -> Node:
    """The node of which this one is all the memory."""
    while node in aliases.views and graph.size(node.inputs[0]) == graph.size(node):
        node = node.inputs[0]
    return node
