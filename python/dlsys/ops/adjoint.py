"""Gradients of operators that are linear in their first input."""

from __future__ import annotations

from typing import ClassVar

from ..graph import FLOATS, OPS, Node, Op, Shape, shape_error


class Adjoint(Op):
    """The gradient of `forward` with respect to its first input, and the operator itself that of this gradient.

    Inputs: the gradient of the result, the other inputs of `forward`, and the first one, `like`, whose shape the result
    has and whose values are not read.
    """

    forward: ClassVar[str]
    dtypes: ClassVar[tuple[str, ...]] = FLOATS

    @classmethod
    def of(cls, node: Node, output_grad: Node) -> list[Node | None]:
        """The gradients of the inputs of a node of `forward`."""
        like, *others = node.inputs
        return [cls.make([output_grad, *others, like], node.attrs), *[None] * len(others)]

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        grad, *others, like = input_shapes
        made = OPS[self.forward].infer_shape(node, [like, *others])
        if grad != made:
            raise shape_error(node, f"the gradient has shape {grad}, the {self.forward} of {like} {made}")
        return like

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        others = node.inputs[1:-1]
        return [OPS[self.forward].make([output_grad, *others], node.attrs), *[None] * (len(others) + 1)]
