"""Gradients: left in the leaves by `backward`, or as functions of functions."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..autodiff import Node, Parameter, add_op, gradients, mul_op
from ..errors import GraphError, ShapeError
from ..ops import dtype_of, shape_of
from .leaves import tensor
from .mode import enable_grad
from .running import evaluate, leaves_that_require_grad, require_unchanged


def backward(output: Node, gradient: Any = None, create_graph: bool = False, inputs: Any = None) -> None:
    """Add the gradient of sum(output * gradient) to the `grad` of every leaf that requires it, or of the tensors
    `inputs` alone; ones for None. A parameter of a module that took part has a gradient then, zeros where nothing
    depends on it. With `create_graph` what is left there can be differentiated again.

    The value of `output` is computed in the same run. Raises GraphError where no leaf requires a gradient, ShapeError
    for a gradient of another shape, GraphError where a parameter was changed since the output was built.
    """
    modules: set[Any] = set()
    leaves = leaves_that_require_grad(output, modules)
    if not leaves:
        where = f"(made at {output.location})"
        raise GraphError(f"backward: {output.name} depends on no tensor with requires_grad=True {where}")
    with enable_grad(), _without_collections():
        if inputs is not None:
            chosen = list(inputs) if isinstance(inputs, (tuple, list)) else [inputs]
        else:
            chosen = list(leaves)
        _backward(output, gradient, chosen, create_graph)
    for module in modules if inputs is None else ():
        for parameter in module.parameters(recurse=False):
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = Parameter(np.zeros(parameter.shape, parameter.dtype), f"{parameter.name}.grad", False)


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Python's garbage collector pauses: it would go through all that the program holds, once and again, as the graph
    of the gradients is made, which has no cycles and is gone at the end."""
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()


def _backward(output: Node, gradient: Any, leaves: Sequence[Node], create_graph: bool) -> None:
    weighted = output
    if gradient is not None:
        given = gradient if isinstance(gradient, Node) else tensor(gradient, dtype_of(output))
        if shape_of(given) != shape_of(output):
            raise ShapeError(f"backward: the gradient has shape {shape_of(given)}, the output {shape_of(output)}")
        weighted = mul_op(output, given)
    require_unchanged(output)
    found = gradients(weighted, leaves)
    totals = [g if leaf.grad is None else add_op(leaf.grad, g) for leaf, g in zip(leaves, found, strict=True)]
    del found  # else they are held, and computed each
    _, *values = evaluate([output, *totals], keep=False)
    for leaf, total, value in zip(leaves, totals, values, strict=True):
        leaf.grad = total if create_graph else Parameter.sharing(value, f"{leaf.name}.grad")


def value_and_grad(function: Callable[..., Node], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """The function that returns (value, gradient) of sum(function(*args)): a node, or a tuple for several `argnums`.

    Arguments may be nodes, of graphs with variables too, or arrays. The gradient is a node and can be differentiated
    again. Raises GraphError for a position that has no argument, and where the function returns no node.
    """
    if isinstance(function, Node) or not callable(function):
        raise GraphError(
            "grad: takes a function, and gives its gradient; of a tensor that is there: "
            "dl.autograd.grad(output, inputs), or output.backward()"
        )
    positions = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if any(not -len(args) <= position < len(args) for position in positions):
            raise GraphError(f"grad: argnums {argnums} of {len(args)} arguments")
        nodes = [a if isinstance(a, Node) or not _is_array(a) else tensor(a) for a in args]
        chosen = [nodes[position] for position in positions]
        for node in chosen:
            if not isinstance(node, Node):
                raise GraphError(f"grad: {type(node).__name__} is no tensor to differentiate by")
        with enable_grad():
            value = function(*nodes, **kwargs)
        if not isinstance(value, Node):
            raise GraphError(f"grad: the function must return a node, not {type(value).__name__}")
        found = gradients(value, chosen)
        return value, found[0] if isinstance(argnums, int) else tuple(found)

    return wrapped


def grad(function: Callable[..., Node], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """The gradient of sum(function(*args)), see `value_and_grad`."""
    both = value_and_grad(function, argnums)

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return both(*args, **kwargs)[1]

    return wrapped


def _is_array(value: Any) -> bool:
    return hasattr(value, "__dlpack__") or isinstance(value, (np.ndarray, np.generic, float))
