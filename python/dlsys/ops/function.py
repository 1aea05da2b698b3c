"""A value whose gradient a program states: beneath `autograd.Function`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from ..errors import GraphError
from ..graph import DTYPES, OPS, Node, Op, Shape, error_at, register


class Rule(Protocol):
    """How a function's gradients are computed. Rules with one `repr` compute the same.

    Attributes:
        name: of the function, for errors.
        outputs, inputs: how many it has.
    """

    name: str
    outputs: int
    inputs: int

    def gradient(self, grads: Sequence[Node], node: Node) -> Sequence[Node | None]:
        """The gradient for each input, from those of the outputs. `node` is of the operator."""
        ...


@register
class Stated(Op):
    """One of a function's outputs, number `attrs["index"]`, whose gradient `attrs["rule"]` states: (the output, all
    outputs, the function's inputs, what it has saved...) -> the output. Type inference puts the output in this node's
    place."""

    name = "function"
    dtypes = DTYPES
    shape_only: ClassVar[Sequence[int]] = range(1, 2**31)

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        rule: Rule = node.attrs["rule"]
        outputs, rest = node.inputs[1 : 1 + rule.outputs], node.inputs[1 + rule.outputs :]
        zero = OPS["zeroslike"]
        at = node.attrs["index"]
        grads = [output_grad if i == at else zero.make([y]) for i, y in enumerate(outputs)]
        found = rule.gradient(grads, node)
        if len(found) != rule.inputs or not all(grad is None or isinstance(grad, Node) for grad in found):
            told = f"{rule.name}.backward must return {rule.inputs} gradients, tensors or None, not {found!r}"
            raise error_at(node, GraphError, told)
        given = [
            grad if grad is None else OPS["as_gradient"].make([grad, x], {"by": rule.name})
            for grad, x in zip(found, rest, strict=False)
        ]
        return [*[None] * (1 + rule.outputs), *given, *[None] * (len(rest) - rule.inputs)]

    def differentiated(self, node: Node) -> Sequence[Node]:
        rule: Rule = node.attrs["rule"]
        return node.inputs[1 + rule.outputs :][: rule.inputs]

    def known(self, node: Node, shapes: Sequence[Shape], dtypes: Sequence[str]) -> Node:
        return node.inputs[0]
