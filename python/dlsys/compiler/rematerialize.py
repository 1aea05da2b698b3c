"""Rematerialization: a cheap value that only later kernels need is computed by each of them, and not stored.

After Chen et al., "Training deep nets with sublinear memory cost" (2016), and, for kernels of several operators, He and
Yu, "Transcending runtime-memory tradeoffs in checkpointing by being fusion aware" (2023): a kernel that memory bounds
computes a value at no cost from arrays that it reads anyway. So a backward step computes a gate's derivative, or what a
norm has normalised, from the forward step's value.
"""

from __future__ import annotations

from dataclasses import replace

from ..graph import Node
from .base import TypedGraph, rewrite, value_inputs
from .groups import is_elementwise

FEW = 8  # elements of an array for each of a smaller one, which is read again at no cost
HERE = "a value that is cheap to compute is computed for this reader alone"


def rematerialized(graph: TypedGraph) -> tuple[TypedGraph, frozenset[Node]]:
    """The graph in which each reader of a cheap value has a copy of it, and the values that kernels may compute only
    for a reader."""
    consumers = graph.consumers()
    cheap = _cheap(graph, consumers)
    readers = {user for node in cheap for user in consumers[node]}
    origins: dict[Node, Node] = {}
    found: set[Node] = set()

    def rule(node: Node, typed: TypedGraph) -> Node | None:
        if origins.get(node, node) not in readers:
            return None
        copies: dict[Node, Node] = {}
        for value in value_inputs(node):
            if (old := origins.get(value, value)) in cheap:
                if len(consumers[old]) > 1:
                    copies[value] = Node(value.op, value.inputs, value.attrs, value.name)
                found.add(copies.get(value, value))
        return Node(node.op, [copies.get(v, v) for v in node.inputs], node.attrs, node.name) if copies else None

    if cheap:
        graph = rewrite(graph, rule, origins, name="rematerialize", why=HERE)
        left = (node for node in graph.nodes if origins.get(node, node) not in cheap or node in found)
        graph = replace(graph, nodes=tuple(left))
    return graph, frozenset(found)


def _cheap(graph: TypedGraph, consumers: dict[Node, list[Node]]) -> set[Node]:
    """The elementwise nodes whose readers all run in later kernels, as more sums, products and the like lead to them,
    could compute them, and would read at most one array as large besides their own."""
    depth: dict[Node, int] = {}  # the most kernels on a path from above that no fusion avoids
    behind: dict[Node, int] = {}
    roots, found = set(graph.roots), set[Node]()
    for node in graph.nodes:
        depth[node] = max([behind[value] for value in node.inputs if value in behind], default=0)
        behind[node] = depth[node] + (node.op.kind not in ("elementwise", "view"))
    for node, own in depth.items():
        users = consumers[node]
        if not is_elementwise(node) or node in roots or not users or any(depth[user] <= own for user in users):
            continue
        large = {v for v in value_inputs(node) if not v.op.constant and FEW * graph.size(v) > graph.size(node)}
        if all(_computes(user, node, graph) and len(large.difference(user.inputs)) <= 1 for user in users):
            found.add(node)
    return found


def _computes(user: Node, node: Node, graph: TypedGraph) -> bool:
    """Whether the user's kernel can compute the node as well."""
    same = graph.shapes[user] == graph.shapes[node]
    return user.op.kind in ("reduction", "rows") or (user.op.kind == "elementwise" and same)
