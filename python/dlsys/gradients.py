"""Reverse-mode differentiation: graph in, longer graph out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .errors import GraphError
from .graph import Node, find_topo_sort
from .ops import add_op, oneslike_op, zeroslike_op


def sum_node_list(node_list: Sequence[Node]) -> Node:
    """The sum of one or more nodes of one shape, added from the left. Raises GraphError for an empty list."""
    if not node_list:
        raise GraphError("sum_node_list: there is no node to sum")
    total = node_list[0]
    for node in node_list[1:]:
        total = add_op(total, node)
    return total


def gradients(output_node: Node, node_list: Sequence[Node]) -> list[Node]:
    """The gradient of `sum(output_node)` with respect to each node of `node_list`, in that node's shape.

    Every node of the graph, variable or not, may be asked for, `output_node` itself and the same node twice
    included. A node on which the output does not depend, or only through nodes with `no_grad`, has gradient zeros. The
    result is made of the same operators, so it can be differentiated again. Takes time linear in
    the graph, of any depth.

    Raises GraphError for an argument that is no node.
    """
    if not isinstance(output_node, Node):
        raise GraphError(f"gradients: the output must be a node, not {type(output_node).__name__}")
    if isinstance(node_list, Node) or not isinstance(node_list, Iterable):
        kind = "one node" if isinstance(node_list, Node) else type(node_list).__name__
        raise GraphError(f"gradients: node_list must be a list of nodes, not {kind}")
    node_list = list(node_list)
    for node in node_list:
        if not isinstance(node, Node):
            raise GraphError(f"gradients: node_list must hold nodes, not {type(node).__name__}")

    order = find_topo_sort([output_node])
    # Only what lies between node_list and the output is differentiated.
    dependent = set(node_list)
    for node in order:
        if not node.no_grad and not dependent.isdisjoint(node.inputs):
            dependent.add(node)

    partials: dict[Node, list[Node]] = {}
    if output_node in dependent:
        partials[output_node] = [oneslike_op(output_node)]
    grads: dict[Node, Node] = {}
    for node in reversed(order):
        if node not in partials:
            continue
        grads[node] = grad = sum_node_list(partials.pop(node))
        if node.no_grad or dependent.isdisjoint(node.inputs):
            continue
        for value, partial in zip(node.inputs, node.op.gradient(node, grad), strict=True):
            if partial is not None and value in dependent:
                partials.setdefault(value, []).append(partial)

    for node in node_list:
        if node not in grads:
            grads[node] = zeroslike_op(node)
    return [grads[node] for node in node_list]
