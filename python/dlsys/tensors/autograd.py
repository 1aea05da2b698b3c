"""Gradients of tensors that are there, as `torch.autograd` gives them: `dl.autograd`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..checks import flag
from ..errors import GraphError
from ..graph import Handle, Node
from ..scopes import enable_grad as enable_grad, is_grad_enabled as is_grad_enabled, no_grad as no_grad
from ..scopes import scopes, set_grad_enabled as set_grad_enabled
from .creation import leaf
from .backward import backward as _backward
from .backward import gradients_to, weight_of
from .evaluate import arrays_of
from .function import Function as Function
from .typing import Nested

if TYPE_CHECKING:
    from .base import Tensor


def _listed(what: str, values: Node | Sequence[Node]) -> list[Any]:
    """One tensor, or several, as a list. Raises GraphError for none, and for what is no tensor."""
    found = []
    for value in values if isinstance(values, (tuple, list)) else [values]:
        if not isinstance(value, Handle):
            raise GraphError(f"autograd: {what} must be tensors, not {type(value).__name__}")
        found.append(value)
    if not found:
        raise GraphError(f"autograd: there are no {what}")
    return found


def _weights(outputs: Sequence[Node], given: Nested | Sequence[Nested | None] | None) -> list[Any]:
    """A weight for every output, None for ones. Raises ShapeError for one of another shape, GraphError for another
    number."""
    weights = given if isinstance(given, (tuple, list)) else [given] * (len(outputs) if given is None else 1)
    if len(weights) != len(outputs):
        raise GraphError(f"autograd: {len(weights)} gradients for {len(outputs)} outputs")
    return [weight_of("autograd", output, weight) for output, weight in zip(outputs, weights, strict=True)]


def grad(
    outputs: Node | Sequence[Node],
    inputs: Node | Sequence[Node],
    grad_outputs: Nested | Sequence[Nested | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
) -> tuple[Tensor | None, ...]:
    """The gradients of sum(output * grad_output), over all outputs, with respect to each input; ones for None. Nothing
    is left in `grad`.

    Args:
        outputs, inputs: a tensor or several; inputs may be of any kind, computed ones too.
        grad_outputs: a weight in each output's shape, or None.
        retain_graph: graphs are always retained.
        create_graph: whether the results can be differentiated again; those of graphs with variables always can.
        only_inputs: True: nothing else has a gradient.
        allow_unused: whether an input on which no output depends has None for its gradient.

    Raises GraphError for such an input otherwise, and for what is no tensor; ShapeError for a weight of another shape.
    """
    if not flag("autograd.grad", "only_inputs", only_inputs):
        raise GraphError("autograd.grad: only_inputs must be True: backward() leaves gradients in all leaves")
    tensors, asked = _listed("outputs", outputs), _listed("inputs", inputs)
    weights = _weights(tensors, grad_outputs)
    found = gradients_to(tensors, weights, asked)
    unused = [x for x, gradient in zip(asked, found, strict=True) if gradient is None]
    if unused and not allow_unused:
        raise GraphError(
            f"autograd.grad: no output depends on {unused[0].name} (made at {unused[0].location}): allow_unused=True"
        )
    if not create_graph:
        closed = [g for g in found if g is not None and not g.is_open and scopes.recording is None]
        values = dict(zip(closed, arrays_of(closed), strict=True))
        pairs = zip(asked, found, strict=True)
        found = [leaf(values[g], name=f"{x.name}.grad") if g in values else g for x, g in pairs]
    return tuple(found)


def backward(
    tensors: Node | Sequence[Node],
    grad_tensors: Nested | Sequence[Nested | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
) -> None:
    """`tensor.backward(gradient)` for each tensor."""
    given = _listed("tensors", tensors)
    for output, weight in zip(given, _weights(given, grad_tensors), strict=True):
        _backward(output, weight, create_graph)
