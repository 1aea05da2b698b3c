"""Gradients of tensors: left in the leaves by `backward`, or returned by `gradients_of`, as nodes."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checks import flag
from ..errors import GraphError, ShapeError
from ..gradients import gradients, has_gradient
from ..graph import Handle, Node, handle_of, named
from ..ops import add_op, dtype_of, mul_op, shape_of, sum_op
from ..scopes import enable_grad, no_grad, scopes
from .creation import leaf, tensor
from .evaluate import arrays_of, changing, evaluate, is_unread, wait
from .structure import GRADIENT_OF, GRADIENTS, ends_gradients, overwritten
from .typing import Nested

if TYPE_CHECKING:
    from .base import Tensor


def backward(
    output: Any,
    gradient: Nested | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Add the gradient of sum(output * gradient) to the `grad` of every leaf that requires it now, or of those of the
    tensors `inputs` on which it depends; ones for None. With `create_graph` what is left there can be differentiated
    again.

    The gradients are computed with what is evaluated next, as by an optimizer's step, in one run with the output.
    Raises GraphError where no leaf requires a gradient, ShapeError for a gradient of another shape.
    """
    create_graph = flag("backward", "create_graph", create_graph)
    weight = weight_of("backward", output, gradient)
    output.node.keeps = True
    leaves = [x for x in leaves_below(output) if x.requires_grad]
    if scopes.recording is not None:
        _require_current([output])
    if inputs is not None:
        leaves = list(inputs) if isinstance(inputs, (tuple, list)) else [inputs]
    with changing:
        if create_graph or inputs is not None:
            found = (gradients_of if inputs is None else gradients_to)([output], [weight], leaves)
            leaves = [x for x, grad in zip(leaves, found, strict=True) if grad is not None]
            found = [grad for grad in found if grad is not None]
            if not create_graph and scopes.recording is None:
                found = [leaf(value) for value in arrays_of(found)]
        else:
            found = _left(output.node, weight, [x.node for x in leaves])
        for x, grad in zip(leaves, found, strict=True):
            if x.grad is not None and is_unread(x.grad):
                evaluate([x.grad])
            with enable_grad() if create_graph else no_grad():
                total = grad if x.grad is None else x.grad + grad
            set_gradient(x, total, waits=not create_graph)


def set_gradient(x: Any, grad: Any, waits: bool = True) -> None:
    """Leave a gradient in a tensor; it is computed with what is evaluated next, if it `waits`."""
    grad.name = f"{x.name}.grad"
    x.grad = grad
    if waits and not grad.node.is_open and scopes.recording is None:
        wait(grad)


def _left(output: Node, weight: Any, leaves: list[Node]) -> list[Any]:
    """The gradients of a tensor as nodes that are expanded as they are compiled."""
    weights = [] if weight is None else [weight.node]
    with no_grad():
        all_of = Node(GRADIENTS, [output, *weights, *leaves], {"first": 1 + len(weights)})
        return [Handle.results.of(Node(GRADIENT_OF, [all_of], {"of": of})) for of in range(len(leaves))]


def _zero_gradient(of: Tensor) -> Tensor:
    return leaf(np.zeros(of.shape, of.dtype), name=f"{of.name}.grad")


def zero_gradients(parameters: Iterable[Tensor], set_to_none: bool) -> None:
    """Forget what `backward` left in the parameters, or set it to zeros."""
    set_to_none = flag("zero_grad", "set_to_none", set_to_none)
    for parameter in parameters:
        parameter.grad = None if set_to_none or parameter.grad is None else _zero_gradient(parameter)


def reached(outputs: Sequence[Any]) -> set[Node]:
    """The nodes to which gradients go from the outputs: none goes through integers and booleans, as far as dtypes are
    known, nor behind a leaf."""
    found = set(named(list(outputs)))
    stack = list(found)
    while stack:
        node = stack.pop()
        if node.no_grad or ends_gradients(node) or not has_gradient(node):
            continue
        new = [value for value in node.op.differentiated(node) if value not in found]
        found.update(new)
        stack += new
    return found


def _require_current(outputs: Sequence[Any]) -> None:
    """Raises GraphError where gradients would read an array that was overwritten since, CompileError where they would
    go through what was computed outside of the function that is recorded."""
    for node in reached(outputs):
        if node.tracks and not ends_gradients(node):
            if scopes.recording is not None and node.id < scopes.recording.began:
                raise scopes.recording.goes_outside(node)
            for x in node.inputs:
                if x.held is not None and x.held.written > node.id:
                    raise overwritten(node, x)


def leaves_that_require_grad(x: Any) -> list[Any]:
    """The leaves with `requires_grad` to which gradients go from a tensor, in the order in which they were made."""
    node: Node = x.node if isinstance(x, Handle) else x
    if not node.tracks and not node.is_open:
        return []
    found = [one for one in reached([node]) if one.tracks and ends_gradients(one)]
    return [_leaf_of(one) for one in sorted(found, key=lambda leaf: leaf.id)]


def _leaf_of(node: Node) -> Any:
    """The tensor of a leaf that a graph reads, also where it has been assigned since."""
    handle = None if node.owner is None else node.owner()
    if handle is None or handle.node is node:
        return handle_of(node)
    return _Before.of_handle(handle, node)


class _Before:
    """A tensor as it was before it was assigned: gradients of what was made then go to the tensor."""

    __slots__ = ("_handle", "node")
    _handle: Any
    node: Node

    @classmethod
    def of_handle(cls, handle: Any, node: Node) -> Any:
        made = cls()
        made._handle, made.node = handle, node
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

    @property
    def grad(self) -> Any:
        return self._handle.grad

    @grad.setter
    def grad(self, value: Any) -> None:
        self._handle.grad = value


def _without_leaves(output: Any) -> GraphError:
    where = f"(made at {output.location})"
    return GraphError(f"backward: {output.name} depends on no tensor with requires_grad=True {where}")


def leaves_below(output: Any) -> list[Any]:
    """`leaves_that_require_grad`. Raises GraphError for none."""
    leaves = leaves_that_require_grad(output)
    if not leaves:
        raise _without_leaves(output)
    return leaves


def weight_of(function: str, output: Any, given: Nested | None) -> Any:
    """The factor of an output before it is differentiated; None for ones. Raises ShapeError for another shape."""
    if given is None:
        return None
    weight = given if isinstance(given, Handle) else tensor(given, dtype_of(output))
    if shape_of(weight) != shape_of(output):
        raise ShapeError(
            f"{function}: the gradient has shape {shape_of(weight)}, the output {shape_of(output)}"
        )
    return weight


def gradients_of(outputs: Sequence[Any], weights: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """The gradients of sum(output * weight), over all outputs, with respect to the inputs, as nodes of the graph."""
    _require_current(outputs)
    with enable_grad():
        totals = [
            output if weight is None else mul_op(output, weight)
            for output, weight in zip(outputs, weights, strict=True)
        ]
        if len(totals) > 1:
            totals = [functools.reduce(add_op, map(sum_op, totals))]
        found = gradients(totals[0].node, [x.node for x in inputs])
    return [Handle.results.of(node) for node in found]


def gradients_to(outputs: Sequence[Any], weights: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """`gradients_of`, with respect to all that a tensor has named in the graph, as a leaf that was assigned; None for
    an input on which no output depends."""
    used = reached(outputs)
    owners = {n: n.owner() for n in used if n.tracks and ends_gradients(n) and n.owner is not None}
    nodes = [[x.node] * (x.node in used) + [n for n in owners if owners[n] is x and n is not x.node] for x in inputs]
    parts = iter(gradients_of(outputs, weights, [handle_of(node) for of in nodes for node in of]))
    with enable_grad():
        return [functools.reduce(add_op, [next(parts) for _ in of]) if of else None for of in nodes]
