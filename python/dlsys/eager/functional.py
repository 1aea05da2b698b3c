"""Derivatives of functions of tensors, as `torch.autograd.functional` gives them: `dl.autograd.functional`.

A function takes one tensor or several, and returns one or a tuple. Results are of the form of its inputs: a tensor for
one that was given by itself, a tuple for a tuple. `create_graph`: whether results can be differentiated again.
`strict`: whether an output that does not depend on an input is an error, GraphError, rather than zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..autodiff import Node, gradients, mul_op, reshape_op, stack_op, sum_op
from ..errors import GraphError, ShapeError
from ..graph import find_topo_sort
from ..ops import dtype_of, shape_of
from .creation import leaf
from .functions import node_of
from .leaves import tensor
from .mode import enable_grad
from .running import evaluate

Several = tuple[Node, ...]


def listed(name: str, what: str, values: Any) -> tuple[Several, bool]:
    """The tensors, and whether there was a tuple of them. Raises GraphError for anything else."""
    several = isinstance(values, (tuple, list))
    given = tuple(values) if several else (values,)
    for value in given:
        if not isinstance(value, Node):
            raise GraphError(f"{name}: {what} must be a tensor or a tuple of them, not {type(value).__name__}")
    return given, several


def applied(
    name: str, func: Callable[..., Any], inputs: Any, create_graph: bool, strict: bool
) -> tuple[Several, bool, Several, bool]:
    """The inputs, of which copies without `create_graph`, and the function's outputs; whether these are tuples."""
    given, several = listed(name, "inputs", inputs)
    if not create_graph:
        given = tuple(tensor(value, dtype_of(value), requires_grad=True) for value in given)
    with enable_grad():
        outputs, is_tuple = listed(name, "what the function returns", func(*given))
    if strict:
        for i, output in enumerate(outputs):
            below = set(find_topo_sort([output]))
            for j, value in enumerate(given):
                if value not in below:
                    raise GraphError(f"{name}: output {i} is independent of input {j}: not allowed in strict mode")
    return given, several, outputs, is_tuple


def finished(values: Sequence[Node], create_graph: bool) -> Several:
    """The values as they are, or as leaves."""
    return tuple(values) if create_graph else tuple(leaf(value) for value in evaluate(list(values), keep=False))


def _formed(values: Sequence[Node], several: bool) -> Any:
    return tuple(values) if several else values[0]


def weights_for(name: str, given: Any, nodes: Several, what: str) -> Several:
    """A weight of its shape for each node, ones for None where it is one scalar. Raises GraphError, ShapeError."""
    if given is None:
        if len(nodes) != 1 or math.prod(shape_of(nodes[0])) != 1:
            raise GraphError(f"{name}: v may be left out only where the {what} is one element")
        return (leaf(np.ones(shape_of(nodes[0]), dtype_of(nodes[0]))),)
    found = given if isinstance(given, (tuple, list)) else (given,)
    if len(found) != len(nodes):
        raise GraphError(f"{name}: v has {len(found)} tensors, the {what} {len(nodes)}")
    made = tuple(node_of(value) for value in found)
    for weight, node in zip(made, nodes, strict=True):
        if shape_of(weight) != shape_of(node):
            raise ShapeError(f"{name}: v has shape {shape_of(weight)}, the {what} {shape_of(node)}")
    return made


def weighted(outputs: Several, weights: Several) -> Node:
    """sum(output * weight), over all."""
    total = sum_op(mul_op(outputs[0], weights[0]))
    for output, weight in zip(outputs[1:], weights[1:], strict=True):
        total = total + sum_op(mul_op(output, weight))
    return total


def jacobian(
    func: Callable[..., Any],
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """The derivative of each output by each input, of shape (*output's, *input's): a tensor, or for tuples a tuple, of
    outputs of inputs. `vectorize` and `strategy` change nothing. Raises GraphError."""
    given, several, outputs, is_tuple = applied("jacobian", func, inputs, create_graph, strict)
    by_output = []
    for output in outputs:
        parts = rows(output, given, create_graph)
        own = shape_of(output)
        shaped = [reshape_op(part, (*own, *shape_of(x))) for part, x in zip(parts, given, strict=True)]
        by_output.append(_formed(shaped, several))
    found = [value for row in by_output for value in (row if several else (row,))]
    values = iter(finished(found, create_graph))
    return _formed([_formed([next(values) for _ in given], several) for _ in outputs], is_tuple)


def rows(output: Node, inputs: Several, create_graph: bool) -> list[Node]:
    """For each input the gradients of all elements of the output, (elements, *input's shape)."""
    count = math.prod(shape_of(output))
    by_element = []
    for i in range(count):
        chosen = np.zeros(count, dtype_of(output))
        chosen[i] = 1
        with enable_grad():
            found = gradients(mul_op(output, leaf(chosen.reshape(shape_of(output)))), inputs)
        by_element.append(finished(found, create_graph))  # one form, which is compiled once
    if not count:
        return [leaf(np.zeros((0, *shape_of(x)), dtype_of(x))) for x in inputs]
    columns = list(zip(*by_element, strict=True))
    if create_graph:
        return [stack_op(column) for column in columns]
    return [leaf(np.stack([value.numpy() for value in column])) for column in columns]


def hessian(
    func: Callable[..., Any],
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """The second derivatives of a function of one element by each pair of inputs, of shape (*first's, *second's): a
    tensor, or for a tuple of inputs a tuple of tuples. Raises GraphError."""
    several = isinstance(inputs, (tuple, list))

    def first(*given: Node) -> Any:
        output = _one_element("hessian", func(*given))
        return _formed(gradients(output, given), several)

    return jacobian(first, inputs, create_graph, strict)


def _one_element(name: str, output: Any) -> Node:
    if not isinstance(output, Node) or math.prod(shape_of(output)) != 1:
        raise GraphError(f"{name}: the function must return one tensor of one element")
    return output


def vjp(
    func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(outputs, v's product with the Jacobian): v is of the outputs' shapes, None for one element. Raises GraphError,
    ShapeError."""
    given, several, outputs, is_tuple = applied("vjp", func, inputs, create_graph, strict)
    with enable_grad():
        found = gradients(weighted(outputs, weights_for("vjp", v, outputs, "output")), given)
    values = finished([*outputs, *found], create_graph)
    return _formed(values[: len(outputs)], is_tuple), _formed(values[len(outputs) :], several)


def jvp(
    func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(outputs, the Jacobian's product with v): v is of the inputs' shapes, None for one element. Raises GraphError,
    ShapeError."""
    given, _, outputs, is_tuple = applied("jvp", func, inputs, create_graph, strict)
    found = forward_product(outputs, given, weights_for("jvp", v, given, "input"))
    values = finished([*outputs, *found], create_graph)
    return _formed(values[: len(outputs)], is_tuple), _formed(values[len(outputs) :], is_tuple)


def forward_product(outputs: Several, inputs: Several, tangents: Several) -> list[Node]:
    """The outputs' derivatives along tangents: those, by u, of sum(output * u)'s gradient, which is linear in u."""
    free = tuple(leaf(np.zeros(shape_of(output), dtype_of(output))) for output in outputs)
    with enable_grad():
        along = weighted(tuple(gradients(weighted(outputs, free), inputs)), tangents)
        return gradients(along, free)


def vhp(
    func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(output, v's product with the Hessian) of a function of one element: v is of the inputs' shapes. Raises
    GraphError, ShapeError."""
    given, several, outputs, _ = applied("vhp", func, inputs, create_graph, strict)
    output = _one_element("vhp", outputs[0] if len(outputs) == 1 else None)
    with enable_grad():
        first = tuple(gradients(output, given))
        found = gradients(weighted(first, weights_for("vhp", v, given, "input")), given)
    values = finished([output, *found], create_graph)
    return values[0], _formed(values[1:], several)


def hvp(
    func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(output, the Hessian's product with v), which is `vhp`, for Hessians are symmetric."""
    return vhp(func, inputs, v, create_graph, strict)


__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]
