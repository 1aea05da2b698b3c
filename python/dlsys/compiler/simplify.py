"""Simplification: the rules of arithmetic, of moved values and of functions, applied until none does; common
subexpressions and constants, computed once; dead code.

Numbers as the rules' modules say: mostly to the bit, some to rounding. A logarithm of a softmax becomes the operator
that does it without underflow, which is better than rounding. Constants that are folded are `full`, one value at every
index, and stay one value through most operators, so no array is made for them, however large their shape. Folded sums
and products of matrices are the value times the count, which of floats may differ in rounding from a sum term by term.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..checks import in_dtype
from ..graph import OPS, Node
from ..ops import full_op, log_softmax_op, softmax_op
from . import arithmetic, moves
from .base import Change, Rule, TypedGraph, rewrite, sorted_nodes, value_inputs

SUM = OPS["reducesum"]
SOFTMAX, LOG_SOFTMAX = OPS["softmax"], OPS["log_softmax"]


def simplify(graph: TypedGraph) -> TypedGraph:
    """One sweep, inputs first. What it makes may be simpler still for a second, since who uses a node is counted
    before."""
    by_name = {**_RULES, **arithmetic.RULES, **moves.RULES}

    def rule(node: Node, typed: TypedGraph) -> Change | Node | None:
        for one in by_name.get(node.op.name, ()):
            found = one(node, typed)
            if found is not None:
                return found
        return moves.sink_broadcast(node, typed)

    return rewrite(graph, rule, name="simplify")


def _constant_gate(node: Node, graph: TypedGraph) -> Change | None:
    """The gradient of relu where the gate is known: of a constant, for zeros, or through the same gate twice."""
    x, grad = node.inputs
    zeros = full_op(graph.shapes[node], 0.0, graph.dtypes[node])
    if x.op.constant:
        return grad if x.attrs["value"] > 0 else zeros, "the gate is known"
    if grad.op.constant and grad.attrs["value"] == 0:
        return zeros, "the gradient is zero"
    same = grad.op is node.op and grad.inputs[0] is x
    return (grad, "the gradient has passed this gate already") if same else None


def _log(node: Node, graph: TypedGraph) -> Change | None:
    (x,) = node.inputs
    known = x.op is SOFTMAX
    return (log_softmax_op(x.inputs[0]), "log(softmax(x)) without underflow") if known else None


def _exp(node: Node, graph: TypedGraph) -> Change | None:
    (x,) = node.inputs
    return (softmax_op(x.inputs[0]), "exp(log_softmax(x)) is softmax(x)") if x.op is LOG_SOFTMAX else None


def _relu(node: Node, graph: TypedGraph) -> Change | None:
    (x,) = node.inputs
    return (x, "relu(relu(x)) is relu(x)") if x.op is node.op else None


_RULES: dict[str, list[Rule]] = {"log": [_log], "exp": [_exp], "relu": [_relu], "relu_gradient": [_constant_gate]}


def merge(graph: TypedGraph) -> TypedGraph:
    """Of the nodes with one operator, the same inputs (of sums and products in either order) and the same attributes,
    the first stands for all; but of those that are computed again by each reader."""
    first: dict[object, Node] = {}

    def rule(node: Node, typed: TypedGraph) -> Node:
        if node.op.again:
            return node
        inputs = tuple(node.inputs)
        if node.op.commutative and inputs[1].id < inputs[0].id:
            inputs = inputs[::-1]
        attributes = (
            tuple(sorted((key, repr(value)) for key, value in node.attrs.items())) if node.attrs else ()
        )
        return first.setdefault((node.op, inputs, attributes), node)

    return rewrite(graph, rule, name="cse", why="the same operator of the same inputs")


def drop_dead(graph: TypedGraph) -> TypedGraph:
    """Only what the roots depend on is computed. Types are kept of what is computed, fed, or read for its shape, and
    `current` names what still stands."""
    nodes = sorted_nodes(graph)
    if len(nodes) == len(graph.nodes):
        return graph
    standing = {*nodes, *graph.fed}
    dropped = [("dead", (node,), "nothing returned depends on it") for node in graph.nodes if node not in standing]
    typed = standing.union(*(node.inputs for node in nodes))
    return replace(
        graph,
        nodes=nodes,
        shapes={node: shape for node, shape in graph.shapes.items() if node in typed},
        dtypes={node: dtype for node, dtype in graph.dtypes.items() if node in typed},
        current={old: node for old, node in graph.current.items() if node in standing},
        reasons=(*graph.reasons, *dropped),
    )


MOST_ELEMENTS = 4096  # of an array that is made to fold an operator that reads more than one index


def fold(graph: TypedGraph) -> TypedGraph:
    """Every operator whose inputs are all `full`, and whose result is one value, becomes `full`."""
    return rewrite(graph, _rule, name="fold", why="all that it reads is constant")


def _rule(node: Node, graph: TypedGraph) -> Node | None:
    values = value_inputs(node)
    if not values or any(not value.op.constant for value in values):
        return None
    found, dtype = _one_value(node, graph), graph.dtypes[node]
    return None if found is None else full_op(graph.shapes[node], in_dtype(found, dtype).item(), dtype)


def _one_value(node: Node, graph: TypedGraph) -> float | None:
    """The value at every index of the node's result, before it is rounded or wraps around; None if they differ, or it
    would take long to find out."""
    shape = graph.shapes[node]
    first = node.inputs[0].attrs["value"]
    if 0 in shape:
        return 0.0  # there is no index
    if node.op.picks:
        return first
    if node.op is SUM:
        return _times(graph.size(node.inputs[0]) // graph.size(node), first)
    if node.op is moves.MATMUL:
        inner = graph.shapes[node.inputs[0]][-2 if node.matmul_attr_trans_A else -1]
        return _times(inner, first * node.inputs[1].attrs["value"])
    if node.op.kind == "elementwise":
        return _evaluate(node, graph, at_one_index=True)
    if max(graph.size(value) for value in [node, *node.inputs]) <= MOST_ELEMENTS:
        return _evaluate(node, graph, at_one_index=False)
    return None


def _times(count: int, value: float) -> float:
    return count * value if count else 0.0  # a sum of nothing is 0, also where infinity is not summed


def _evaluate(node: Node, graph: TypedGraph, at_one_index: bool) -> float | None:
    """The one value that the operator's NumPy rule gives, None if there are several."""
    arrays = []
    for value in node.inputs:
        shape = () if at_one_index else graph.shapes[value]
        number = value.attrs.get("value", 0.0)  # of what is read for its shape alone, any
        arrays.append(np.broadcast_to(np.asarray(number, graph.dtypes[value]), shape))
    with np.errstate(all="ignore"):
        result = node.op.numpy(node, arrays).ravel()
    return result[0].item() if np.array_equal(result, np.full_like(result, result[0]), equal_nan=True) else None
