"""Gradients of tensors: as nodes of the graph, and left in the leaves by `backward`."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from ..checks import flag
from ..errors import GraphError, ShapeError
from ..gradients import gradients
from ..graph import Node, error_at
from ..ops import Variable, add_op, dtype_of, mul_op, shape_of, sum_op
from . import trace
from .creation import leaf, tensor
from .mode import enable_grad
from .node import TensorNode
from .state import changing
from .trace import Trace
from .typing import Nested
from .values import arrays_of, differentiated, keep, leaves_that_require_grad, reached

if TYPE_CHECKING:
    from .base import Tensor


class _Result(NamedTuple):
    """The results of a compiled `backward` behind the outputs of its trace: the gradients of the leaves at `places`;
    those in `added` come with what was there before."""

    places: tuple[int, ...]
    added: tuple[int, ...]


def backward(
    output: TensorNode,
    gradient: Nested | None = None,
    create_graph: bool = False,
    inputs: Node | Sequence[Node] | None = None,
) -> None:
    """Add the gradient of sum(output * gradient) to the `grad` of every leaf that requires it, or of the tensors
    `inputs` alone; ones for None. With `create_graph` what is left there can be differentiated again.

    The value of `output` is computed in the same run. Raises GraphError where no leaf requires a gradient, ShapeError
    for a gradient of another shape, GraphError where a parameter was changed since the output was built.
    """
    create_graph = flag("backward", "create_graph", create_graph)
    weight = weight_of("backward", output, gradient)
    if create_graph or inputs is not None or output.cell is not None:  # a leaf is its own gradient's place
        return _backward_of_nodes(output, weight, create_graph, inputs)
    with changing:
        _backward_of_trace(output, weight)


def _zero_gradient(of: Tensor) -> Tensor:
    return leaf(np.zeros(of.shape, of.dtype), name=f"{of.name}.grad")


def zero_gradients(parameters: Iterable[Tensor], set_to_none: bool) -> None:
    """Forget what `backward` left in the parameters, or set it to zeros."""
    set_to_none = flag("zero_grad", "set_to_none", set_to_none)
    for parameter in parameters:
        parameter.grad = None if set_to_none or parameter.grad is None else _zero_gradient(parameter)


def _backward_of_trace(output: TensorNode, weight: TensorNode | None) -> None:
    """Computes the output, and leaves its gradients, times a weight, in the leaves. They are built once for each
    structure, of a copy of the graph."""
    found = Trace([output] if weight is None else [output, weight], differentiated=True)
    places = tuple([found.place[node] for node in found.outputs])
    of_weight = -1 if weight is None else found.place_of(weight)
    before = tuple([at for at, _ in found.leaves if found.entries[at][2] and found.nodes[at].grad is not None])
    root = found.place.get(output)
    if root is None:
        raise _without_leaves(output)

    def build(copies: list[Node]) -> tuple[list[Node], list[Node], _Result]:
        leaves = {copies[at]: at for at, _ in found.leaves if found.entries[at][2]}
        between = reached([copies[root]])
        asked = [copy for copy in leaves if copy in between]
        if not asked:
            raise _without_leaves(output)
        with enable_grad():
            weighted = copies[root] if weight is None else mul_op(copies[root], copies[of_weight])
            totals = gradients(weighted, asked)
        others: list[Node] = []
        added = []
        for i, copy in enumerate(asked):
            if leaves[copy] in before:
                others.append(Variable(f"{copy.name}.grad", copy.shape, copy.dtype))
                added.append(leaves[copy])
                totals[i] = add_op(others[-1], totals[i])
        result = _Result(tuple([leaves[copy] for copy in asked]), tuple(added))
        return [*(copies[at] for at in places), *totals], others, result

    compiled, given = trace.compiled(found, ("backward", root, places, of_weight, before), build)
    result: _Result = compiled.result
    for at in result.places:
        if at in found.changed:
            raise _changed(found.nodes[at], found.changed[at])
    values = compiled.run([*given, *arrays_of([cast("Tensor", found.nodes[at].grad) for at in result.added])])
    keep(found, values)
    for at, value in zip(result.places, values[len(found.outputs) :], strict=True):
        parameter = found.nodes[at]
        parameter.grad = leaf(value, name=f"{parameter.name}.grad")


def _without_leaves(output: Node) -> GraphError:
    where = f"(made at {output.location})"
    return GraphError(f"backward: {output.name} depends on no tensor with requires_grad=True {where}")


def leaves_below(output: Node) -> list[TensorNode]:
    """`leaves_that_require_grad`. Raises GraphError for none."""
    leaves = leaves_that_require_grad(output)
    if not leaves:
        raise _without_leaves(output)
    return leaves


def weight_of(function: str, output: Node, given: Nested | None) -> TensorNode | None:
    """The factor of an output before it is differentiated; None for ones. Raises ShapeError for another shape."""
    if given is None:
        return None
    weight = given if isinstance(given, TensorNode) else tensor(given, dtype_of(output))
    if shape_of(weight) != shape_of(output):
        raise ShapeError(
            f"{function}: the gradient has shape {shape_of(weight)}, the output {shape_of(output)}"
        )
    return weight


def gradients_of(
    outputs: Sequence[Node], weights: Sequence[Node | None], inputs: Sequence[Node]
) -> list[Tensor]:
    """The gradients of sum(output * weight), over all outputs, with respect to the inputs, as nodes of the graph."""
    for output in outputs:
        require_unchanged(output)
    with enable_grad():
        totals = [
            output if weight is None else mul_op(output, weight)
            for output, weight in zip(outputs, weights, strict=True)
        ]
        if len(totals) > 1:
            totals = [functools.reduce(add_op, map(sum_op, totals))]
        return cast("list[Tensor]", gradients(totals[0], inputs))


def _backward_of_nodes(
    output: Node, weight: Node | None, create_graph: bool, inputs: Node | Sequence[Node] | None
) -> None:
    """The gradients as nodes of the graph itself."""
    leaves: Sequence[Any] = leaves_below(output)
    if inputs is not None:
        leaves = inputs if isinstance(inputs, (tuple, list)) else [inputs]
    with changing:
        totals = [
            g if leaf.grad is None else leaf.grad + g
            for leaf, g in zip(leaves, gradients_of([output], [weight], leaves), strict=True)
        ]
        _, *values = arrays_of([output, *totals], differentiated=True)
        for of, total, value in zip(leaves, totals, values, strict=True):
            of.grad = total if create_graph else leaf(value, name=f"{of.name}.grad")


def require_unchanged(output: Node) -> None:
    """Raises GraphError where a leaf that requires a gradient was changed after a node read it: the gradient would mix
    two values."""
    for node in [node for node in reached([output]) if isinstance(node, TensorNode)]:
        for value, content in zip(node.inputs, node.read, strict=True):
            if value.cell is None or content is value.cell.content:
                continue
            if value.wants_grad and value in set(differentiated(node)):
                raise _changed(value, node)


def _changed(leaf: Node, reader: Node) -> Exception:
    told = f"{leaf.name} was changed after this was computed from it: build the graph anew"
    return error_at(reader, GraphError, told)
