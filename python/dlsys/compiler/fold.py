"""Constant folding: what is computed from constants alone is a constant.

Constants here are `full`: one value at every index. They stay one value through most operators, so no array is made
for them, however large their shape. Folded sums and products of matrices are the value times the count, which may
differ in rounding from a sum term by term; the others are the operator's NumPy rule at one index.
"""

from __future__ import annotations

import numpy as np

from ..graph import Node
from ..ops import full_op
from .base import TypedGraph, rewrite, value_inputs

MOST_ELEMENTS = 4096  # of an array that is made to fold an operator that reads more than one index

_SUMS = ("reducesum", "sum_to_like")


def fold(graph: TypedGraph) -> TypedGraph:
    """Every operator whose inputs are all `full`, and whose result is one value, becomes `full`."""
    return rewrite(graph, _rule)


def _rule(node: Node, graph: TypedGraph) -> Node | None:
    values = value_inputs(node)
    if not values or any(value.op.name != "full" for value in values):
        return None
    found = _one_value(node, graph)
    return None if found is None else full_op(graph.shapes[node], found, graph.dtypes[node])


def _one_value(node: Node, graph: TypedGraph) -> float | None:
    """The value at every index of the node's result; None if they differ, or it would take long to find out."""
    name, shape = node.op.name, graph.shapes[node]
    first = node.inputs[0].attrs["value"]
    if 0 in shape:
        return 0.0  # there is no index
    if node.op.picks:
        return first
    if name in _SUMS:
        return _times(graph.size(node.inputs[0]) // graph.size(node), first)
    if name == "matmul":
        inner = graph.shapes[node.inputs[0]][-2 if node.matmul_attr_trans_A else -1]
        return _times(inner, first * node.inputs[1].attrs["value"])
    if node.op.elementwise:
        return _evaluate(node, graph, at_one_index=True)
    if max(graph.size(value) for value in [node, *node.inputs]) <= MOST_ELEMENTS:
        return _evaluate(node, graph, at_one_index=False)
    return None


def _times(count: int, value: float) -> float:
    return count * value if count else 0.0  # a sum of nothing is 0, also where infinity is not summed


def _evaluate(node: Node, graph: TypedGraph, at_one_index: bool) -> float | None:
    """The one value that the operator's NumPy rule gives, None if there are several."""
    arrays = []
    for i, value in enumerate(node.inputs):
        shape = () if at_one_index and i not in node.op.shape_only else graph.shapes[value]
        number = value.attrs.get("value", 0.0)  # of what is read for its shape alone, any
        arrays.append(np.broadcast_to(np.asarray(number, graph.dtypes[value]), shape))
    with np.errstate(all="ignore"):
        result = node.op.numpy(node, arrays).ravel()
    return (
        float(result[0]) if np.array_equal(result, np.full_like(result, result[0]), equal_nan=True) else None
    )
