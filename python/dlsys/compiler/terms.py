"""The terms of a sum: of nested `add`s, of which each but the outermost is read by the next alone."""

from __future__ import annotations

from ..graph import Node
from ..ops import add_op
from .base import TypedGraph


class Terms:
    """Finds the terms while `rewrite` goes over a graph; its `origins` are to be filled by that."""

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
