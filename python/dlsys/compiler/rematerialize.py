"""Rematerialization: what is cheap to compute is computed by every kernel that reads it, and not stored.

After Chen et al., "Training deep nets with sublinear memory cost" (2016), and, for kernels of several operators, He and
Yu, "Transcending runtime-memory tradeoffs in checkpointing by being fusion aware" (2023): a kernel that memory bounds
computes a short expression of one array at no cost, as it reads that array in the place of the result. So a backward
step computes a gate's derivative, or what a norm has normalised, from the forward step's value.
"""

from __future__ import annotations

from collections.abc import Container
from itertools import chain

from ..graph import FLOATS, Node
from .base import TypedGraph, value_inputs
from .groups import Flow, is_elementwise, is_row_wise

FEW = 8  # elements of an array for each of a smaller one, which is read again at no cost
SHORT = 16  # names and operators of an expression, without costly ones
HERE = "it is cheap to compute where it is read"


def rematerialized(graph: TypedGraph, views: Container[Node]) -> Flow:
    """The values that each kernel computes by itself, and those that it reads. `views`: nodes that no kernel computes,
    and which so read what is stored."""
    flow, users = Flow(), graph.consumers()
    for node in graph.nodes:
        stored = node in views or "loop" in node.attrs
        here = [flow.computed[value] for value in value_inputs(node) if value in flow.cheap and not stored]
        own = dict.fromkeys(chain(*here, [node]))
        flow.computed[node] = [*own]
        flow.inputs[node] = [*dict.fromkeys(v for one in own for v in value_inputs(one) if v not in own)]
        if node.op.constant or _is_cheap(node, flow, users[node], graph):
            flow.cheap.add(node)
            continue
        for value in flow.inputs[node]:
            flow.consumers[value].append(node)
    return flow


def _is_cheap(node: Node, flow: Flow, users: list[Node], graph: TypedGraph) -> bool:
    """Whether the node is a short expression of at most one array as large, which is in memory for others too, and all
    that read the node can compute it."""
    values, dtype = flow.inputs[node], node.dtype
    if not is_elementwise(node) or dtype not in FLOATS or not 0 < len(users) == graph.uses[node]:
        return False
    large = [value for value in values if FEW * graph.size(value) > graph.size(node)]
    stored = all(value in graph.fed or graph.uses[value] > 1 for value in large)
    same = all(value.dtype == dtype for value in values)
    own = flow.computed[node]
    short = len(own) + len(values) <= SHORT and not any(one.op.costly for one in own)
    return len(large) <= 1 and stored and same and short and all(_computes(user, node, graph) for user in users)


def _computes(user: Node, node: Node, graph: TypedGraph) -> bool:
    """Whether the kernel of a reader can compute the node."""
    if user.op.kind == "elementwise":
        return user.shape == node.shape
    summed = user.op.kind == "reduction" or is_row_wise(user, graph)
    return summed and user.inputs[0].shape == node.shape
