"""Functions of functions, as `torch.func`: `dl.func`. They nest: the derivative of a derivative is one as well.

Arguments are tensors, of which those that `argnums` names are differentiated by; the results are nodes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ..autodiff import Node, gradients, reshape_like_op, reshape_op
from ..errors import GraphError
from ..ops import shape_of
from . import functional
from .functions import node_of
from .mode import enable_grad
from .vmap import vmap

Argnums = int | Sequence[int]


def _chosen(name: str, argnums: Argnums, args: tuple[Any, ...]) -> tuple[list[Any], list[int]]:
    """The arguments, of which those that `argnums` names are nodes of their own, and where these are. Raises
    GraphError."""
    places = [argnums] if isinstance(argnums, int) else list(argnums)
    if any(not -len(args) <= place < len(args) for place in places):
        raise GraphError(f"{name}: argnums {argnums} of {len(args)} arguments")
    found = list(args)
    for place in places:
        own = node_of(args[place])
        found[place] = reshape_like_op(own, own)  # which nothing else reads
    return found, places


def _formed(values: Sequence[Any], argnums: Argnums) -> Any:
    return values[0] if isinstance(argnums, int) else tuple(values)


def _called(name: str, func: Callable[..., Any], has_aux: bool, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """What the function returns, and besides it. Raises GraphError without the latter."""
    with enable_grad():
        output = func(*args, **kwargs)
    if not has_aux:
        return output, None
    if not isinstance(output, tuple) or len(output) != 2:
        raise GraphError(f"{name}: with has_aux the function must return (output, aux)")
    return output


def grad_and_value(func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The function that returns (gradient, value) of `func`, which returns a tensor of one element; with `has_aux`,
    where it returns (tensor, anything), (gradient, (value, anything)). Raises GraphError."""

    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        given, places = _chosen("grad", argnums, args)
        output, aux = _called("grad", func, has_aux, *given, **kwargs)
        if not isinstance(output, Node) or shape_of(output) not in ((), (1,)):
            shape = shape_of(output) if isinstance(output, Node) else type(output).__name__
            raise GraphError(f"grad: the function must return a tensor of one element, not {shape}")
        with enable_grad():
            found = gradients(output, [given[place] for place in places])
        return _formed(found, argnums), (output, aux) if has_aux else output

    return wrapped


def grad(func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The gradient of a function that returns a tensor of one element; with `has_aux` (gradient, anything). A tensor
    for one number, a tuple for several. Raises GraphError."""
    both = grad_and_value(func, argnums, has_aux)

    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        found, value = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return wrapped


def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """(output, f), with `has_aux` (output, f, anything): f takes a weight of each output's shape and returns a tuple of
    gradients of sum(output * weight), one for each of `primals`; of one primal the gradient itself is in it."""
    given, _ = _chosen("vjp", range(len(primals)), primals)
    output, aux = _called("vjp", func, has_aux, *given)
    outputs, is_tuple = functional.listed("vjp", "what the function returns", output)

    def product(cotangents: Any) -> tuple[Node, ...]:
        if is_tuple != isinstance(cotangents, (tuple, list)):
            raise GraphError("vjp: weights must be of the form of the output, a tensor or a tuple")
        weights = functional.weights_for("vjp", cotangents, outputs, "output")
        with enable_grad():
            return tuple(gradients(functional.weighted(outputs, weights), given))

    return (output, product, aux) if has_aux else (output, product)


def jvp(func: Callable[..., Any], primals: Any, tangents: Any, *, has_aux: bool = False) -> tuple[Any, ...]:
    """(output, its derivative along the tangents), with `has_aux` (output, derivative, anything). `primals` and
    `tangents` are tuples of as many tensors of the same shapes. Raises GraphError, ShapeError."""
    if not isinstance(primals, tuple) or not isinstance(tangents, tuple):
        raise GraphError("jvp: primals and tangents must be tuples of tensors")
    given, _ = _chosen("jvp", range(len(primals)), primals)
    output, aux = _called("jvp", func, has_aux, *given)
    outputs, is_tuple = functional.listed("jvp", "what the function returns", output)
    weights = functional.weights_for("jvp", tangents, tuple(given), "input")
    found = functional.forward_product(outputs, tuple(given), weights)
    derivative = tuple(found) if is_tuple else found[0]
    return (output, derivative, aux) if has_aux else (output, derivative)


def jacrev(func: Callable[..., Any], argnums: Argnums = 0, *, has_aux: bool = False) -> Callable[..., Any]:
    """The function that returns the derivative of `func`'s output, of known shape, of shape (*output's, *argument's): a
    tensor for one number, a tuple for several; with `has_aux` (derivative, anything). Raises GraphError."""

    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        given, places = _chosen("jacrev", argnums, args)
        output, aux = _called("jacrev", func, has_aux, *given, **kwargs)
        outputs, is_tuple = functional.listed("jacrev", "what the function returns", output)
        chosen = tuple(given[place] for place in places)
        found = []
        for value in outputs:
            with enable_grad():
                rows = functional.rows(value, chosen, create_graph=True)
            own = shape_of(value)
            parts = [reshape_op(row, (*own, *shape_of(x))) for row, x in zip(rows, chosen, strict=True)]
            found.append(_formed(parts, argnums))
        made = tuple(found) if is_tuple else found[0]
        return (made, aux) if has_aux else made

    return wrapped


jacfwd = jacrev
"""The same derivative; PyTorch's computes it column by column."""


def hessian(func: Callable[..., Any], argnums: Argnums = 0) -> Callable[..., Any]:
    """The function that returns the second derivatives of `func`'s output. Raises GraphError."""
    return jacrev(jacrev(func, argnums), argnums)


__all__ = ["grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "vjp", "vmap"]
