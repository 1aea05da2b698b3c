"""Functions whose gradient a program states itself, as `torch.autograd.Function`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

from ..errors import GraphError
from ..graph import DTYPES, Made, Node, Op, Shape, error_at, register, require_value
from ..ops import copy_op
from .mode import enable_grad, no_grad

_numbers = itertools.count()


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

    _number: ClassVar[int]
    forward: ClassVar[Any]
    backward: ClassVar[Any]

    def __init_subclass__(cls) -> None:
        cls._number = next(_numbers)  # two classes may have one name

    @classmethod
    def apply(cls, *arguments: Any) -> Made:
        """The function's value. Raises GraphError where `forward` returns no tensor, or leaves an attribute that is
        neither number nor text, and, where gradients are asked for, where `backward` does not return one for each
        argument."""
        ctx, where = Context(), f"{cls.__name__}.forward"
        with no_grad():
            value = cls.forward(ctx, *arguments)
            value = copy_op(value) if any(value is x for x in arguments) else value
        attributes = {name: x for name, x in vars(ctx).items() if name != "saved_tensors"}
        inputs = [value, *(x for x in arguments if isinstance(x, Node)), *ctx.saved_tensors]
        for x in (value, *ctx.saved_tensors):
            if not isinstance(x, Node):
                raise GraphError(f"{where} must return and save tensors, not {type(x).__name__}")
        for name, x in attributes.items():
            require_value(f"{where}: ctx.{name}", x)
        takes = tuple([isinstance(x, Node) for x in arguments])
        attrs = {"rule": cls, "number": cls._number, "takes": takes, "context": tuple(attributes.items())}
        return _Stated.make(inputs, attrs)


@register
class _Stated(Op):
    """(value, tensors among the arguments..., saved tensors...) -> value, with the gradient that `attrs["rule"]`
    states. Type inference puts the value in this node's place."""

    name = "function"
    dtypes = DTYPES
    shape_only: ClassVar[Sequence[int]] = range(1, 2**31)

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        rule, takes, inputs = node.attrs["rule"], node.attrs["takes"], self.differentiated(node)
        ctx, (value, *others) = Context(), node.inputs
        vars(ctx).update(node.attrs["context"])
        # of a saved result the gradient is the one that is stated, too
        ctx.save_for_backward(*(node if x is value else x for x in others[len(inputs) :]))
        with enable_grad():
            found = rule.backward(ctx, output_grad)
        grads = found if isinstance(found, (tuple, list)) else [found]
        if len(grads) != len(takes):
            told = f"{rule.__name__}.backward must return {len(takes)} gradients, one for each argument"
            raise error_at(node, GraphError, f"{told}, not {len(grads)}")
        given = [grad for grad, is_tensor in zip(grads, takes, strict=True) if is_tensor]
        return [None, *given, *[None] * len(ctx.saved_tensors)]

    def differentiated(self, node: Node) -> Sequence[Node]:
        return node.inputs[1 : 1 + sum(node.attrs["takes"])]

    def known(self, node: Node, shapes: Sequence[Shape], dtypes: Sequence[str]) -> Node:
        return node.inputs[0]


_Stated.builtin = False  # the program's gradients are checked
