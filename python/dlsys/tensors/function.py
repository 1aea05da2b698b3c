"""Functions whose gradient a program states itself, as `torch.autograd.Function`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ..errors import GraphError
from ..gradients import require_gradient
from ..graph import Handle, Made, Node, error_at, handles, is_node, named, require_value
from ..ops import copy_op
from ..ops.state import with_gradient
from ..scopes import enable_grad, no_grad


class Context:
    """The values that `forward` keeps for `backward`: tensors by `save_for_backward`, numbers and text by name."""

    saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Node) -> None:
        """Keep tensors for `backward`, which reads them as `saved_tensors`."""
        self.saved_tensors = tensors


class Function:
    """A function of tensors that states its gradient, called as `MyFunction.apply(*arguments)`: a subclass has static
    methods `forward(ctx, *arguments)`, which returns a tensor, and `backward(ctx, gradient)`, which returns a gradient
    for each argument, None for what is no tensor.

    Both make nodes of the graph, in an Executor's graph as of tensors. `backward` is called once for each structure of
    the graph, so it must not print or count, nor ask for values.
    """

    forward: ClassVar[Any]
    backward: ClassVar[Any]

    @classmethod
    def apply(cls, *arguments: Any) -> Made:
        """The function's value. Raises GraphError where `forward` returns no tensor, or leaves an attribute that is
        neither number nor text, and, where gradients are asked for, where `backward` does not return one for each
        argument."""
        ctx, where = Context(), f"{cls.__name__}.forward"
        with no_grad():
            value = cls.forward(ctx, *arguments)
            value = copy_op(value) if any(value is x for x in arguments) else value
        for x in (value, *ctx.saved_tensors):
            if not is_node(x):
                raise GraphError(f"{where} must return and save tensors, not {type(x).__name__}")
        context = tuple([(name, x) for name, x in vars(ctx).items() if name != "saved_tensors"])
        for name, x in context:
            require_value(f"{where}: ctx.{name}", x)
        takes = tuple([is_node(x) for x in arguments])
        inputs = [x for x in arguments if is_node(x)]
        is_value = tuple([x is value for x in ctx.saved_tensors])
        saved = [x for x in ctx.saved_tensors if x is not value]
        attrs = {"function": cls, "takes": takes, "is_value": is_value, "context": context, "wanted": len(inputs)}
        return with_gradient(value, [*inputs, *saved], _stated, **attrs)


def _stated(
    gradient: Node, y: Node, *inputs: Node, function: type[Function], takes: Sequence[bool], is_value: Sequence[bool],
    context: Sequence[tuple[str, Any]], wanted: int,
) -> list[Node | None]:  # fmt: skip
    """The gradients that `function.backward` states for the value y, None for saved tensors. Of a saved result the
    gradient is the one that is stated, too."""
    ctx, saved = Context(), iter(inputs[wanted:])
    vars(ctx).update(context)
    kind = Handle.results
    ctx.save_for_backward(*handles([y if itself else next(saved) for itself in is_value], kind))
    with enable_grad():
        stated = named(function.backward(ctx, kind.of(gradient)))
    grads = stated if isinstance(stated, (tuple, list)) else [stated]
    if len(grads) != len(takes):
        told = f"{function.__name__}.backward must return {len(takes)} gradients, one for each argument"
        raise error_at(y, GraphError, f"{told}, not {len(grads)}")
    given = [grad for grad, is_tensor in zip(grads, takes, strict=True) if is_tensor]
    if wrong := [grad for grad in given if grad is not None and not is_node(grad)]:
        told = f"{function.__name__}.backward must return tensors, not {type(wrong[0]).__name__}"
        raise error_at(y, GraphError, told)
    checked = [require_gradient(y, grad, x) for grad, x in zip(given, inputs, strict=False)]
    return [*checked, *[None] * (len(inputs) - wanted)]
