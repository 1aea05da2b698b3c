"""Reverse-mode differentiation: `gradients` adds nodes to the graph and computes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from .errors import DTypeError, GraphError, ShapeError
from .graph import FLOATS, Node, below, error_at, find_topo_sort, handle_of, is_node, named, stamp
from .ops import add_op, oneslike_op, zeroslike_op
from .ops.moves import joined_gradients, sum_to
from .ops.primitive import Primitive
from .ops.replay import Deferred, again, function
from .ops.state import WITH_UPDATES, WithGradient
from .scopes import scopes


def sum_node_list(node_list: Sequence[Node]) -> Node:
    """The sum of one or more nodes of one shape, added from left to right. Raises GraphError for an empty list, and for
    another argument than a list of nodes."""
    if not isinstance(node_list, (list, tuple)) or not all(map(is_node, node_list)):
        raise GraphError(f"sum_node_list: takes a list of nodes, not {node_list!r}")
    if not node_list:
        raise GraphError("sum_node_list: there is no node to sum")
    total = node_list[0]
    for node in node_list[1:]:
        total = add_op(total, node)
    return total


def gradients(output_node: Node, node_list: Sequence[Node]) -> list[Node]:
    """The gradient of `sum(output_node)` with respect to each node of `node_list`, in that node's shape.

    `node_list` may hold any nodes: variables, inner nodes, `output_node` itself, a node twice. A node on which the
    output does not depend, or only through nodes with `no_grad`, has gradient zeros. The gradients are nodes of the
    same operators, so they can be differentiated again. Each has the source line of the node of whose gradient it is a
    part. Takes time linear in the graph.

    Raises GraphError for an argument that is no node.
    """
    if not is_node(output_node):
        raise GraphError(f"gradients: the output must be a node, not {type(output_node).__name__}")
    if is_node(node_list) or isinstance(node_list, np.ndarray) or not isinstance(node_list, Iterable):
        kind = "one node" if is_node(node_list) else type(node_list).__name__
        raise GraphError(f"gradients: node_list must be a list of nodes, not {kind}")
    node_list = list(node_list)
    for node in node_list:
        if not is_node(node):
            raise GraphError(f"gradients: node_list must hold nodes, not {type(node).__name__}")

    distinct = list(dict.fromkeys(node_list))
    grads = dict(zip(distinct, _gradients(output_node, distinct), strict=True))
    return [grads[node] for node in node_list]


@function(results=lambda output, nodes: len(nodes))
def _gradients(output: Node, nodes: list[Node]) -> tuple[Node, ...]:
    """`gradients`, called when types are known."""
    partials = adjoints([(output, oneslike_op(output))], nodes)
    return tuple([zeroslike_op(node) if grad is None else grad for node, grad in zip(nodes, partials, strict=True)])


def input_gradients(node: Node, grad: Node) -> Sequence[Node | None]:
    """The gradient of each input of a node from the node's own, None where it is zero; what broadcasting repeated is
    summed. Raises ShapeError or DTypeError for a gradient of another type than the input, by a program's operator."""
    grads: Sequence[Node | None]
    if isinstance(node.op, Deferred):
        return _of_call(node, grad)
    if node.op.builtin:
        grads = node.op.gradient(node, grad)
    else:  # a program's, which may call methods
        grads = named(node.op.gradient(handle_of(node), handle_of(grad)))
    if not isinstance(node.op, (Primitive, WithGradient)):
        return grads
    if node.op.broadcasts:
        pairs = zip(grads, node.inputs, strict=True)
        grads = [None if g is None or x.op.immediate else sum_to(g, x.shape) for g, x in pairs]
    if node.op.builtin:
        return grads
    return [require_gradient(node, g, x) for g, x in zip(grads, node.inputs, strict=True)]


def _of_call(node: Node, grad: Node) -> list[Node | None]:
    """The gradient of each input of a node that stands for a call, through the nodes that the function makes alone: one
    input may depend on another."""
    inputs = [WITH_UPDATES(x) for x in node.inputs]
    mark = stamp()
    result = again(node, inputs)
    order = [*inputs, *below([result], lambda one: one.id <= mark)]
    return adjoints([(result, grad)], inputs, order)


def gradient_as_tuple(grad: Node, node: Node) -> tuple[Node, ...]:
    """The gradient of each input of a node that is no number; zeros where there is none. See `Op.gradient_as_tuple`."""
    wanted = {x for x in node.op.differentiated(node) if not x.op.immediate}
    pairs = [(x, g) for x, g in zip(node.inputs, input_gradients(node, grad), strict=True) if x in wanted]
    return tuple([zeroslike_op(x) if g is None else g for x, g in pairs])


def require_gradient(node: Node, grad: Node | None, x: Node) -> Node | None:
    """The gradient that an operator gives for its input x. Raises ShapeError or DTypeError for one of another type."""
    if grad is None:
        return None
    told = f"the gradient that it gives for {x.name}"
    if grad.shape != x.shape:
        raise error_at(node, ShapeError, f"{told} has shape {grad.shape}, the input {x.shape}")
    if x.dtype not in FLOATS:
        raise error_at(node, DTypeError, f"{told} is {grad.dtype}, but one of {x.dtype} is always zero: return None")
    if grad.dtype != x.dtype:
        raise error_at(node, DTypeError, f"{told} is {grad.dtype}, the input {x.dtype}")
    return grad


def has_gradient(node: Node) -> bool:
    """Whether gradients pass through a node, as far as its type is known: those of integers are zero. A loop's value is
    a tuple."""
    return node.value_type is None or node.op.kind == "scan" or node.dtype in FLOATS


def adjoints(
    seeds: Sequence[tuple[Node, Node]], node_list: Sequence[Node], order: Sequence[Node] | None = None
) -> list[Node | None]:
    """As `gradients`, of the sum over all seeds (output, weight) of sum(output * weight); None where it is zero.
    `order`: the nodes that gradients go through, inputs first; None for all."""
    order = find_topo_sort([output for output, _ in seeds]) if order is None else order
    # Only nodes that depend on node_list are differentiated.
    dependent = set(node_list)
    for node in order:
        if not (node.no_grad or dependent.isdisjoint(node.inputs)) and has_gradient(node):
            dependent.add(node)

    partials: dict[Node, list[Node]] = {}

    def give(nodes: Iterable[Node], grads: Iterable[Node | None]) -> None:
        for node, grad in zip(nodes, grads, strict=True):
            if grad is not None and node in dependent:
                partials.setdefault(node, []).append(grad)

    give(*zip(*seeds, strict=True))
    grads: dict[Node, Node] = {}
    for node in reversed(order):
        if node in partials:
            with scopes.inside(differentiated=node, precision=node.attrs.get("precision")):
                grads[node] = grad = sum_node_list(joined_gradients(partials.pop(node)))
                if not (node.no_grad or dependent.isdisjoint(node.inputs)):
                    give(node.inputs, input_gradients(node, grad))
    return [grads.get(node) for node in node_list]
