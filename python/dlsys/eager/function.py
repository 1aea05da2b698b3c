"""Functions with gradients of the user's own, as `torch.autograd.Function`: `dl.autograd.Function`.

A function builds graph, as any other: `forward` is called when it is applied, `backward` when a graph is
differentiated, once for each, whether data or an `Executor` runs them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from ..autodiff import (
    Node,
    cast_op,
    concatenate_op,
    copy_op,
    reshape_op,
    slice_op,
    sum_to_like_op,
    zeroslike_op,
)
from ..errors import GraphError, ShapeError
from ..graph import FLOATS, is_grad_enabled
from ..ops import dtype_of, joint_dtype, known_dtype, known_shape, shape_of
from ..ops.function import function_op
from .mode import no_grad


class FunctionCtx:
    """What `forward` leaves for `backward`: tensors by `save_for_backward`, anything else as attributes.

    Attributes:
        needs_input_grad: for each argument of `forward` whether it may be asked for a gradient: a tensor of floats,
            where gradients are on. (PyTorch says False for what requires none; here gradients exist of any tensor.)
    """

    needs_input_grad: tuple[bool, ...] = ()

    def __init__(self) -> None:
        self._saved: tuple[Any, ...] = ()
        self._without: set[Node] = set()
        self._materialized = True
        self._inputs: list[Node] = []

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors, or None, for `saved_tensors`. Raises GraphError for anything else."""
        for value in tensors:
            if value is not None and not isinstance(value, Node):
                raise GraphError(f"save_for_backward: takes tensors, not {type(value).__name__}: set an attribute")
        self._saved = tensors

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What `save_for_backward` was given, as it was then; gradients go through it, through outputs too."""
        return self._saved

    def _keep(self, outputs: dict[Node, Node]) -> None:
        """Let what is saved mean what it does now, whatever is written to it. outputs: of the values of `forward` the
        nodes with their history."""
        self._saved = tuple(
            value if value is None else outputs[value] if value in outputs else function_op(value, [value], _same)
            for value in self._saved
        )

    def mark_non_differentiable(self, *outputs: Node) -> None:
        """Say of outputs of `forward` that no gradient goes through them."""
        self._without.update(outputs)

    def mark_dirty(self, *inputs: Node) -> None:
        """Raises GraphError: inputs cannot be written in place."""
        raise GraphError("mark_dirty: a Function cannot write its inputs in place: return a new tensor")

    def set_materialize_grads(self, value: bool) -> None:
        """Whether `backward` is given zeros, rather than None, for outputs that no gradient goes through."""
        self._materialized = bool(value)


class Function:
    """Base of functions with gradients of their own.

    A subclass defines `forward(ctx, *args)`, of tensors and anything else, which returns a tensor or a tuple, and
    `backward(ctx, *grads)`, which takes a gradient for each of its outputs and returns one for each argument, None for
    what has none. Both are static, and made of operators on tensors; then gradients of gradients exist too. Instead of
    ctx for `forward` there may be `setup_context(ctx, inputs, output)`. It is called by `apply`.
    """

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """The outputs, of (ctx, *args), or of the arguments alone beside a `setup_context`."""
        raise NotImplementedError("You must implement the forward function for custom autograd.Function.")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        """Save in ctx what `backward` needs."""
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """The gradients with respect to the arguments of `forward`."""
        raise NotImplementedError(
            "You must implement either the backward or vjp method for your custom autograd.Function "
            "to use it with backward mode AD."
        )

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """What `forward` returns for the arguments, with a history that goes through `backward`.

        Raises GraphError where `backward` returns another number of gradients, or one for what is no tensor, ShapeError
        for one of another shape: when the graph is differentiated.
        """
        ctx = FunctionCtx()
        ctx.needs_input_grad = tuple(is_grad_enabled() and _may_have_gradient(value) for value in args)
        own_context = cls.setup_context is not Function.setup_context
        with no_grad():
            output = cls.forward(*args) if own_context else cls.forward(ctx, *args)
            if own_context:
                cls.setup_context(ctx, args, output)
        if not any(ctx.needs_input_grad):
            return output
        outputs = list(output) if isinstance(output, (tuple, list)) else [output]
        places = [i for i, v in enumerate(outputs) if _may_have_gradient(v) and v not in ctx._without]
        if not places:
            return output
        values = [outputs[place] for place in places]
        ctx._inputs = [value for value in args if isinstance(value, Node)]
        backward = functools.partial(_gradients, cls, ctx, args, list(outputs), places)
        made = _applied(cls.__name__, values, ctx._inputs, backward)
        ctx._keep(dict(zip(values, made, strict=True)))
        for place, node in zip(places, made, strict=True):
            outputs[place] = copy_op(node)  # which may be written in place
        return outputs[0] if isinstance(output, Node) else tuple(outputs)


def _same(grad: Node) -> list[Node]:
    return [grad]


def _may_have_gradient(value: Any) -> bool:
    return isinstance(value, Node) and known_dtype(value) in (None, *FLOATS)


def _applied(
    name: str, values: list[Node], inputs: list[Node], backward: Callable[[list[Node]], Sequence[Any]]
) -> list[Node]:
    """Nodes of these values, whose gradients `backward` takes together."""
    if len(values) == 1:
        return [function_op(values[0], inputs, lambda grad: backward([grad]), name)]
    for value in values:
        if known_shape(value) is None:
            raise GraphError(f"{name}: of several outputs the shapes must be known: declare those of the variables")
    dtypes = [dtype_of(value) for value in values]
    joint = functools.reduce(joint_dtype, dtypes)
    starts = [0]
    for value in values:
        starts.append(starts[-1] + math.prod(shape_of(value)))

    def part(whole: Node, i: int) -> Node:
        taken = reshape_op(slice_op(whole, slice(starts[i], starts[i + 1])), shape_of(values[i]))
        return taken if dtypes[i] == joint else cast_op(taken, dtypes[i])

    # One behind another they are one value, so that one call of `backward` is given all gradients.
    with no_grad():
        rows = [reshape_op(value, (-1,) if math.prod(shape_of(value)) else (0,)) for value in values]
        joined = concatenate_op([row if known_dtype(row) == joint else cast_op(row, joint) for row in rows])
    whole = function_op(joined, inputs, lambda grad: backward([part(grad, i) for i in range(len(values))]), name)
    return [part(whole, i) for i in range(len(values))]


def _gradients(
    function: type[Function],
    ctx: FunctionCtx,
    args: tuple[Any, ...],
    outputs: list[Any],
    places: list[int],
    grads: list[Node],
) -> list[Node | None]:
    """What `backward` returns for the arguments that are tensors, checked. Raises GraphError, ShapeError."""
    given: list[Any] = [
        zeroslike_op(value) if ctx._materialized and isinstance(value, Node) else None for value in outputs
    ]
    for place, grad in zip(places, grads, strict=True):
        given[place] = grad
    returned = function.backward(ctx, *given)
    found = list(returned) if isinstance(returned, (tuple, list)) else [returned]
    name = f"{function.__name__}Backward"
    while len(found) > len(args) and found[-1] is None:
        found.pop()
    if len(found) != len(args):
        raise GraphError(
            f"function {name} returned an incorrect number of gradients (expected {len(args)}, got {len(found)})"
        )
    made: list[Node | None] = []
    for i, (value, grad) in enumerate(zip(args, found, strict=True)):
        if isinstance(value, Node):
            made.append(None if grad is None else _fitting(name, i, value, grad))
        elif grad is not None:
            raise GraphError(
                f"function {name} returned a gradient different from None at position {i + 1}, "
                "but the corresponding forward input was not a tensor"
            )
    return made


def _fitting(name: str, i: int, value: Node, grad: Any) -> Node:
    """The gradient in the argument's shape, summed where it is broadcast, and dtype."""
    if not isinstance(grad, Node):
        raise GraphError(f"function {name} returned a {type(grad).__name__} at index {i}: a gradient is a tensor")
    wanted, got = known_shape(value), known_shape(grad)
    if wanted is not None and got is not None and wanted != got:
        fits = len(got) >= len(wanted) and all(a in (1, b) for a, b in zip(wanted[::-1], got[::-1], strict=False))
        if not fits:
            raise ShapeError(
                f"Function {name} returned an invalid gradient at index {i} - got {list(got)} "
                f"but expected shape compatible with {list(wanted)}"
            )
        grad = sum_to_like_op(grad, value)
    own, dtype = known_dtype(value), known_dtype(grad)
    return grad if own is None or dtype is None or own == dtype else cast_op(grad, own)


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator of `backward`: its results have no gradients. Raises GraphError where one is asked for."""

    def refuse(grad: Node) -> Sequence[Any]:
        raise GraphError("trying to differentiate twice a function that was marked with @once_differentiable")

    @functools.wraps(backward)
    def wrapped(ctx: FunctionCtx, *grads: Any) -> Any:
        with no_grad():
            found = backward(ctx, *grads)
        inputs = [*ctx._inputs, *(grad for grad in grads if isinstance(grad, Node))]
        made = [
            function_op(value, inputs, refuse) if isinstance(value, Node) else value
            for value in (found if isinstance(found, (tuple, list)) else [found])
        ]
        return tuple(made) if isinstance(found, (tuple, list)) else made[0]

    return wrapped


__all__ = ["Function", "FunctionCtx", "once_differentiable"]
