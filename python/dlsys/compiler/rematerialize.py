"""Rematerialization: what is cheap to compute is computed by every kernel that reads it, and not stored.

After Chen et al., "Training deep nets with sublinear memory cost" (2016), and, for kernels of several operators, He and
Yu, "Transcending runtime-memory tradeoffs in checkpointing by being fusion aware" (2023): a kernel that memory bounds
computes a short expression of one array at no cost, as it reads that array in the place of the result. So a backward
step computes a gate's derivative, or what a norm has normalised, from the forward step's value.
"""

from __future__ import annotations

from collections.abc import Container

from ..graph import FLOATS, Node
from .base import TypedGraph, size_of, value_inputs
from .groups import is_elementwise, is_row_wise

FEW = 8  # elements of an array for each of a smaller one, which is read again at no cost
SHORT = 16  # names and operators of an expression, without costly ones
HERE = "it is cheap to compute where it is read"


def rematerialized(
    graph: TypedGraph, views: Container[Node]
) -> tuple[set[Node], dict[Node, list[Node]], dict[Node, list[Node]]]:
    """The values that each kernel computes by itself; for each node what its kernel computes for it, inputs first, and
    the node; and what that reads. `views`: nodes that no kernel computes, and which so read what is stored."""
    cheap: set[Node] = set()
    computed: dict[Node, list[Node]] = {}
    inputs: dict[Node, list[Node]] = {}
    users, roots = graph.consumers(), set(graph.roots)
    for node in graph.nodes:
        own: dict[Node, None] = {}
        read = value_inputs(node)
        if node not in views and node.op.kind != "loop":
            for value in read:
                if value in cheap:
                    own.update(dict.fromkeys(computed[value]))
        if own:
            read = [*dict.fromkeys([v for one in (*own, node) for v in value_inputs(one) if v not in own])]
        computed[node], inputs[node] = [*own, node], read
        if node.op.constant or _is_cheap(node, computed[node], read, graph, users, roots):
            cheap.add(node)
    return cheap, computed, inputs


def _is_cheap(
    node: Node, own: list[Node], read: list[Node], graph: TypedGraph, users: dict[Node, list[Node]], roots: set[Node]
) -> bool:
    """Whether the node is a short expression of at most one array as large, which is in memory for others too, and all
    that read the node can compute it."""
    if not is_elementwise(node) or node.dtype not in FLOATS or not users[node] or node in roots:
        return False
    large, size = 0, size_of(node)
    for value in read:
        if value.dtype != node.dtype:
            return False
        if FEW * size_of(value) > size:
            large += 1
            if large > 1 or (value not in graph.fed and len(users[value]) + (value in roots) < 2):
                return False
    costly = [one for one in own if one.op.costly]
    if costly or len(own) + len(read) > SHORT:
        return False
    return all(_computes(user, node) for user in users[node])


def _computes(user: Node, node: Node) -> bool:
    """Whether the kernel of a reader can compute the node."""
    if user.op.kind == "elementwise":
        return user.shape == node.shape
    summed = user.op.kind == "reduction" or is_row_wise(user)
    return summed and user.inputs[0].shape == node.shape
