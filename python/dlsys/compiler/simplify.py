"""Simplification: the rules of arithmetic, of moved values and of functions, applied until none does.

Numbers as the rules' modules say: mostly to the bit, some to rounding. A logarithm of a softmax becomes the
operator that does it without underflow, which is better than rounding.
"""

from __future__ import annotations

from ..graph import Node
from ..ops import full_op, log_softmax_op, relu_gradient_op, relu_op, softmax_op
from . import arithmetic, moves
from .base import Rule, TypedGraph, rewrite


def simplify(graph: TypedGraph) -> TypedGraph:
    """One sweep, inputs first. What it makes may be simpler still for a second, since who uses a node is counted
    before."""
    kept = {node.inputs[0] for node in graph.nodes if node.op.name == "relu"}
    relus: dict[Node, Node] = {}

    def gate(node: Node, typed: TypedGraph) -> Node | None:
        """relu(x) > 0 exactly where x > 0, so a gradient reads relu(x) where that is computed, and x can go."""
        x, grad = node.inputs
        if x not in kept or x.op.name in ("relu", "broadcast_shape"):  # the relus of those are no more
            return None
        if x not in relus:
            relus[x] = relu_op(x)
        return relu_gradient_op(relus[x], grad)

    def relu(node: Node, typed: TypedGraph) -> Node | None:
        """relu(relu(x)) is relu(x); and there is one relu of each x."""
        (x,) = node.inputs
        if x.op.name in ("relu", "broadcast_shape"):
            return x if x.op.name == "relu" else None
        first = relus.setdefault(x, node)
        return first if first is not node else None

    own: dict[str, list[Rule]] = {"relu": [relu], "relu_gradient": [_constant_gate, gate]}
    by_name = {**_RULES, **arithmetic.RULES, **moves.RULES, **own}

    def rule(node: Node, typed: TypedGraph) -> Node | None:
        for one in by_name.get(node.op.name, ()):
            found = one(node, typed)
            if found is not None:
                return found
        return moves.sink_broadcast(node, typed)

    return rewrite(graph, rule)


def _constant_gate(node: Node, graph: TypedGraph) -> Node | None:
    """The gradient of relu where the gate is known: of a constant, for zeros, or through the same gate twice."""
    x, grad = node.inputs
    zeros = full_op(graph.shapes[node], 0.0, graph.dtypes[node])
    if x.op.name == "full":
        return grad if x.attrs["value"] > 0 else zeros
    if grad.op.name == "full" and grad.attrs["value"] == 0:
        return zeros
    same = grad.op.name == "relu_gradient" and grad.inputs[0] is x
    return grad if same else None


def _log(node: Node, graph: TypedGraph) -> Node | None:
    (x,) = node.inputs
    return log_softmax_op(x.inputs[0]) if x.op.name == "softmax" else None


def _exp(node: Node, graph: TypedGraph) -> Node | None:
    (x,) = node.inputs
    return softmax_op(x.inputs[0]) if x.op.name == "log_softmax" else None


_RULES: dict[str, list[Rule]] = {"log": [_log], "exp": [_exp]}
