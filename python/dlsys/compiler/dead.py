"""Dead code: nodes that no result and no update needs. To the bit."""

from __future__ import annotations

from dataclasses import replace

from .base import TypedGraph, sorted_nodes


def drop_dead(graph: TypedGraph) -> TypedGraph:
    """Only what the roots depend on is computed. Types are kept of what is computed, fed, or read for its shape, and
    `current` names what still stands."""
    nodes = sorted_nodes(graph, graph.roots)
    if len(nodes) == len(graph.nodes):
        return graph
    standing = {*nodes, *graph.fed}
    typed = standing.union(*(node.inputs for node in nodes))
    return replace(
        graph,
        nodes=nodes,
        shapes={node: shape for node, shape in graph.shapes.items() if node in typed},
        dtypes={node: dtype for node, dtype in graph.dtypes.items() if node in typed},
        current={old: node for old, node in graph.current.items() if node in standing},
    )
