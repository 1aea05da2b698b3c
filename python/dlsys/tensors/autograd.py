"""Gradients of tensors that are there, as `torch.autograd` gives them: `dl.autograd`."""

from __future__ import annotations

from typing import Any

from ..errors import GraphError, ShapeError
from ..gradients import gradients
from ..graph import Node
from ..ops import add_op, dtype_of, mul_op, shape_of, sum_op
from .differentiate import backward as _backward
from .differentiate import require_unchanged
from .creation import leaf, tensor
from .mode import enable_grad, is_grad_enabled, no_grad, set_grad_enabled
from .node import TensorNode
from .values import evaluate, reached


def _listed(what: str, values: Any) -> list[TensorNode]:
    given = list(values) if isinstance(values, (tuple, list)) else [values]
    for value in given:
        if not isinstance(value, TensorNode):
            raise GraphError(f"autograd: {what} must be tensors, not {type(value).__name__}")
    if not given:
        raise GraphError(f"autograd: there are no {what}")
    return given


def _weights(outputs: list[TensorNode], given: Any) -> list[TensorNode | None]:
    """A weight for every output, None for ones. Raises ShapeError for one of another shape, GraphError for another
    number."""
    several = isinstance(given, (tuple, list))
    weights = list(given) if several else [given] * (len(outputs) if given is None else 1)
    if len(weights) != len(outputs):
        raise GraphError(f"autograd: {len(weights)} gradients for {len(outputs)} outputs")
    found: list[TensorNode | None] = []
    for output, weight in zip(outputs, weights, strict=True):
        if weight is not None and not isinstance(weight, TensorNode):
            weight = tensor(weight, dtype_of(output))
        if weight is not None and shape_of(weight) != shape_of(output):
            raise ShapeError(
                f"autograd: the gradient has shape {shape_of(weight)}, the output {shape_of(output)}"
            )
        found.append(weight)
    return found


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool | None = None,
) -> tuple[Node | None, ...]:
    """The gradients of sum(output * grad_output), over all outputs, with respect to each input; ones for None. Nothing
    is left in `grad`.

    Args:
        outputs, inputs: a tensor or several; inputs may be of any kind, computed ones too.
        grad_outputs: a weight in each output's shape, or None.
        retain_graph: graphs are always retained.
        create_graph: whether the results can be differentiated again; those of graphs with variables always can.
        allow_unused: whether an input on which no output depends has None for its gradient.

    Raises GraphError for such an input otherwise, and for what is no tensor; ShapeError for a weight of another shape.
    """
    tensors, asked = _listed("outputs", outputs), _listed("inputs", inputs)
    weights = _weights(tensors, grad_outputs)
    used = reached(tensors)
    unused = [node for node in asked if node not in used]
    if unused and not allow_unused:
        raise GraphError(
            f"autograd.grad: no output depends on {unused[0].name} (made at {unused[0].location}): allow_unused=True"
        )
    with enable_grad():
        totals = [
            output if weight is None else mul_op(output, weight)
            for output, weight in zip(tensors, weights, strict=True)
        ]
        if len(totals) > 1:
            total = sum_op(totals[0])
            for other in totals[1:]:
                total = add_op(total, sum_op(other))
            totals = [total]
        for output in tensors:
            require_unchanged(output)
        found = gradients(totals[0], asked)
    at_hand = [] if create_graph else [node for node in found if isinstance(node, TensorNode) and node.is_data]
    values: dict[Node, Any] = dict(zip(at_hand, evaluate(at_hand), strict=True))
    made = [
        leaf(values[value], name=f"{node.name}.grad") if value in values else value
        for node, value in zip(asked, found, strict=True)
    ]
    return tuple(None if node not in used else g for node, g in zip(asked, made, strict=True))


def backward(
    tensors: Any, grad_tensors: Any = None, retain_graph: bool | None = None, create_graph: bool = False
) -> None:
    """`tensor.backward(gradient)` for each tensor."""
    given = _listed("tensors", tensors)
    for output, weight in zip(given, _weights(given, grad_tensors), strict=True):
        _backward(output, weight, create_graph)
