"""Shapes: operators that read an input for its shape become ones that hold the shape.

To the bit: what is computed stays. Afterwards no node's shape hangs on another's, so that what only gave its shape is
free to go, and equal constants, broadcasts and sums are equal nodes.
"""

from __future__ import annotations

from collections.abc import Callable

from ..graph import Node
from ..ops import broadcast_shape_op, div_byconst_op, full_op, reducesum_op, reshape_op, slice_op
from ..ops.joining import part_start
from ..ops.reduction import extent_divisor
from ..ops.slicing import slice_gradient_op
from .base import TypedGraph, rewrite
from .products import product_of_gradient


def hold_shapes(graph: TypedGraph) -> TypedGraph:
    """No computed node but gradients of convolutions and the like has a `shape_only` input, and theirs are constants,
    which are not computed for that."""
    return rewrite(graph, _rule)


def _rule(node: Node, graph: TypedGraph) -> Node | None:
    if not node.op.shape_only:
        return None
    return _RULES.get(node.op.name, _stand_in)(node, graph)


def _ones(node: Node, graph: TypedGraph) -> Node:
    return full_op(graph.shapes[node], 1.0, graph.dtypes[node])


def _zeros(node: Node, graph: TypedGraph) -> Node:
    return full_op(graph.shapes[node], 0.0, graph.dtypes[node])


def _broadcast_to(node: Node, graph: TypedGraph) -> Node:
    value, shape = node.inputs[0], graph.shapes[node]
    return value if graph.shapes[value] == shape else broadcast_shape_op(value, shape)


def _reshape_like(node: Node, graph: TypedGraph) -> Node:
    return reshape_op(node.inputs[0], graph.shapes[node])


def _broadcast_axes(node: Node, graph: TypedGraph) -> Node:
    value, like = node.inputs
    shape = graph.shapes[like]
    if not node.attrs["keepdims"]:
        axes = node.attrs["axes"]
        dropped = range(len(shape)) if axes is None else {axis % len(shape) for axis in axes}
        value = reshape_op(value, tuple(1 if axis in dropped else n for axis, n in enumerate(shape)))
    return broadcast_shape_op(value, shape)


def _sum_to_like(node: Node, graph: TypedGraph) -> Node:
    """A sum over the axes that a broadcast repeated, and a reshape where the others keep an extent of 1."""
    value = node.inputs[0]
    wide, shape = graph.shapes[value], graph.shapes[node]
    lead = len(wide) - len(shape)
    inner = [lead + i for i, extent in enumerate(shape) if extent == 1 != wide[lead + i]]
    if not lead and not inner:
        return value
    total = reducesum_op(value, (*range(lead), *inner), keepdims=bool(inner))
    return reshape_op(total, shape) if lead and inner else total


def _div_by_extent(node: Node, graph: TypedGraph) -> Node:
    value, like = node.inputs
    return div_byconst_op(value, extent_divisor(node, graph.shapes[like]))


def _part_key(axis: int, start: int, extent: int) -> tuple[slice, ...]:
    return (*(slice(None),) * axis, slice(start, start + extent))


def _concat_part(node: Node, graph: TypedGraph) -> Node:
    axis, start = part_start(node, *(graph.shapes[value] for value in node.inputs))
    return slice_op(node.inputs[0], _part_key(axis, start, graph.shapes[node][axis]))


def _concat_part_gradient(node: Node, graph: TypedGraph) -> Node:
    part, before, _, whole = (graph.shapes[value] for value in node.inputs)
    axis, start = part_start(node, whole, before, part)
    return slice_gradient_op(node.inputs[0], node.inputs[3], _part_key(axis, start, part[axis]))


def _matmul_gradient(node: Node, graph: TypedGraph) -> Node | None:
    found = product_of_gradient(node, graph)
    return _stand_in(node, graph) if found is None else found


def _stand_in(node: Node, graph: TypedGraph) -> Node | None:
    """The node with constants of the same shapes where it reads shapes only."""
    inputs = [
        full_op(graph.shapes[value], 0.0, graph.dtypes[value])
        if i in node.op.shape_only and value.op.name != "full"
        else value
        for i, value in enumerate(node.inputs)
    ]
    same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
    return None if same else Node(node.op, inputs, node.attrs)


_RULES: dict[str, Callable[[Node, TypedGraph], Node | None]] = {
    "oneslike": _ones,
    "zeroslike": _zeros,
    "broadcastto": _broadcast_to,
    "reshape_like": _reshape_like,
    "broadcast_axes": _broadcast_axes,
    "sum_to_like": _sum_to_like,
    "concat_part": _concat_part,
    "concat_part_gradient": _concat_part_gradient,
    "div_by_extent": _div_by_extent,
    "matmul_gradient": _matmul_gradient,
}
