"""Common subexpressions: nodes that compute the same become one. To the bit."""

from __future__ import annotations

from ..graph import Node
from .base import TypedGraph, rewrite


def merge(graph: TypedGraph) -> TypedGraph:
    """Of the nodes with one operator, the same inputs (of sums and products in either order) and the same attributes,
    the first stands for all."""
    first: dict[object, Node] = {}

    def rule(node: Node, typed: TypedGraph) -> Node:
        inputs = tuple(node.inputs)
        if node.op.commutative and inputs[1].id < inputs[0].id:
            inputs = inputs[::-1]
        attributes = (
            tuple(sorted((key, repr(value)) for key, value in node.attrs.items())) if node.attrs else ()
        )
        return first.setdefault((node.op.name, inputs, attributes), node)

    return rewrite(graph, rule)
