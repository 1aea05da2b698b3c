"""Functions whose gradient a program states itself, as `torch.autograd.Function`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from ..errors import GraphError
from ..graph import FLOATS, Node, error_at
from ..ops import known_dtype
from ..ops.function import Stated
from .creation import tensor
from .mode import enable_grad, no_grad

if TYPE_CHECKING:
    from .base import Tensor

_numbers = itertools.count()
PLAIN = (int, float, bool, str, bytes, type(None))
OTHER = -1  # among numbers of outputs


def is_plain(value: Any) -> bool:
    """Whether a value's text says all of it."""
    return type(value) in PLAIN or (type(value) in (tuple, list) and all(map(is_plain, value)))


class Context:
    """Values that `forward` leaves for `backward`: `save_for_backward`, and attributes of any kind.

    Attributes:
        needs_input_grad: for each argument of `apply` whether it is a tensor to which gradients may go.
        saved_tensors: in `backward`, what was saved.
    """

    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[Tensor | None, ...]

    def save_for_backward(self, *tensors: Node | None) -> None:
        """Keep these tensors, inputs, outputs, or others, for `backward`. Raises GraphError for what is no tensor."""
        for value in tensors:
            if value is not None and not isinstance(value, Node):
                raise GraphError(f"save_for_backward: takes tensors, not {type(value).__name__}: make it an attribute")
        self.saved_tensors = cast("tuple[Tensor | None, ...]", tensors)

    def mark_non_differentiable(self, *outputs: Node) -> None:
        """Say that no gradient goes through these outputs."""
        self._constant = outputs

    def set_materialize_grads(self, value: bool) -> None:
        """Nothing: gradients of outputs that nothing depends on are always zeros."""

    _constant: tuple[Node, ...] = ()


class Function:
    """A function of tensors that states its gradient: a subclass has static methods `forward(ctx, *arguments)`, which
    returns a tensor or several, and `backward(ctx, *gradients)`, which returns a gradient for each argument, None for
    what is no tensor. It is called as `MyFunction.apply(*arguments)`.

    Both make nodes of the graph, in an Executor's graph as of tensors; the gradient is differentiable where `backward`
    consists of differentiable functions of its arguments and of saved inputs and outputs. Of one structure of the graph
    `backward` is called once, so it must not print or count, nor ask for values. With several outputs it is called for
    each, with zeros for the others, and the results are added: it must be linear in the gradients.

    `forward(*arguments)` with a static method `setup_context(ctx, arguments, output)`, as PyTorch has it too, is
    possible.
    """

    _number: ClassVar[int]

    def __init_subclass__(cls) -> None:
        cls._number = next(_numbers)

    @staticmethod
    def forward(*arguments: Any, **keywords: Any) -> Any:
        """The function's value, a tensor or a tuple of several, from a `Context` and the arguments of `apply`."""
        raise GraphError("autograd.Function: a subclass must have a static method forward(ctx, *arguments)")

    @staticmethod
    def backward(*arguments: Any, **keywords: Any) -> Any:
        """The gradient for each argument of `apply`, from a `Context` and one gradient for each output."""
        raise GraphError("autograd.Function: a subclass must have a static method backward(ctx, *gradients)")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> Any:
        """Saves what `backward` needs, where `forward` takes no context."""

    @classmethod
    def apply(cls, *arguments: Any) -> Any:
        """The function's value, a tensor or a tuple of several. Raises GraphError where `forward` returns something
        else, and, where gradients are asked for, where `backward` does not return one for each argument."""
        ctx = Context()
        ctx.saved_tensors = ()
        ctx.needs_input_grad = tuple([isinstance(x, Node) and _is_float(x) for x in arguments])
        with no_grad():
            if cls.setup_context is Function.setup_context:
                found = cls.forward(ctx, *arguments)
            else:
                found = cls.forward(*arguments)
                cls.setup_context(ctx, arguments, found)
        outputs = list(found) if isinstance(found, (tuple, list)) else [found]
        if not outputs or not all(isinstance(y, Node) for y in outputs):
            raise GraphError(f"{cls.__name__}.forward must return a tensor or several, not {found!r}")
        if not any(ctx.needs_input_grad):
            return found
        rule, nodes = _rule(cls, ctx, arguments, outputs)
        constant = {id(y) for y in ctx._constant}
        made = [
            Stated.make([y, *nodes], {"index": i, "rule": rule}) if _is_float(y) and id(y) not in constant else y
            for i, y in enumerate(outputs)
        ]
        return tuple(made) if isinstance(found, (tuple, list)) else made[0]


def _is_float(x: Node) -> bool:
    """Whether gradients may go through a node, as far as its dtype is known."""
    return known_dtype(x) in (None, *FLOATS)


def _rule(
    function: type[Function], ctx: Context, arguments: Sequence[Any], outputs: list[Node]
) -> tuple[_Rule, list[Node]]:
    """The rule of a call's gradients, and the inputs of `Stated` behind the first."""
    state = {name: value for name, value in vars(ctx).items() if name not in ("_constant", "saved_tensors")}
    arrays = {name: value for name, value in state.items() if isinstance(value, (Node, np.ndarray))}
    saved = [*ctx.saved_tensors, *(v if isinstance(v, Node) else tensor(v) for v in arrays.values())]
    at = tuple([i for i, value in enumerate(arguments) if isinstance(value, Node)])
    places = tuple([_place(value, outputs) for value in saved])
    plain = tuple([(name, value) for name, value in state.items() if name not in arrays])
    rule = _Rule(function, len(outputs), at, len(arguments), places, tuple(arrays), plain)
    others = [value for value, place in zip(saved, places, strict=True) if place == OTHER]
    return rule, [*outputs, *(arguments[i] for i in at), *cast("list[Node]", others)]


def _place(value: Node | None, outputs: Sequence[Node]) -> int | None:
    """The number of the output that a saved tensor is, OTHER for another tensor, None for None."""
    return None if value is None else next((i for i, y in enumerate(outputs) if y is value), OTHER)


class _Rule:
    """How the gradients of a call are computed; see `ops.function.Rule`.

    Attributes:
        function: the class.
        at, count: which arguments are tensors, and how many there are.
        places: of the saved tensors, the last of which are the attributes `names` of the context, see `_place`.
        state: the other attributes of the context.
    """

    def __init__(
        self,
        function: type[Function],
        outputs: int,
        at: tuple[int, ...],
        count: int,
        places: tuple[int | None, ...],
        names: tuple[str, ...],
        state: tuple[tuple[str, Any], ...],
    ) -> None:
        self.name, self.function, self.outputs, self.inputs = function.__name__, function, outputs, len(at)
        self.at, self.count, self.places, self.names, self.state = at, count, places, names, state
        told = state if all(is_plain(value) for _, value in state) else f"number {next(_numbers)}"
        self._told = f"<{self.name} {function._number} {outputs} {at} {count} {places} {names} {told}>"

    def __repr__(self) -> str:
        return self._told

    def gradient(self, grads: Sequence[Node], node: Node) -> Sequence[Node | None]:
        """The gradient for each input."""
        others = iter(node.inputs[1 + self.outputs + self.inputs :])

        def output(i: int) -> Node:
            """An output, with its own gradient."""
            attrs = {"index": i, "rule": self}
            return node if i == node.attrs["index"] else Stated.make([node.inputs[1 + i], *node.inputs[1:]], attrs)

        values = [None if i is None else next(others) if i == OTHER else output(i) for i in self.places]
        ctx, first = Context(), len(values) - len(self.names)
        vars(ctx).update(self.state)
        vars(ctx).update(zip(self.names, values[first:], strict=True))
        ctx.saved_tensors = cast("tuple[Tensor | None, ...]", tuple(values[:first]))
        with enable_grad():
            found = self.function.backward(ctx, *grads)
        given = list(found) if isinstance(found, (tuple, list)) else [found]
        if len(given) != self.count:
            told = f"{self.name}.backward must return {self.count} gradients, one for each argument, not {len(given)}"
            raise error_at(node, GraphError, told)
        return [given[i] for i in self.at]
