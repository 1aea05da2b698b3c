"""A value whose gradient is computed by a function of the user's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import compute
from ..compute import Tensor
from ..errors import GraphError
from ..graph import DTYPES, OPS, Node, Op, Shape, error_at, register

Backward = Callable[[Node], Sequence[Any]]


class FunctionNode(Node):
    """An application of `function`. `backward` takes the gradient of the value and returns that of each input but the
    first, None where it is zero; it is no attribute, for what is computed does not depend on it."""

    __slots__ = ("backward",)
    backward: Backward


@register
class Function(Op):
    """(value, inputs...) -> value. The gradient goes to the inputs, not to the value; see `FunctionNode`."""

    name = "function"
    dtypes = DTYPES
    shape_only = range(1, sys.maxsize)  # type: ignore[assignment]  # all but the first, however many there are

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return input_shapes[0]

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        if not isinstance(node, FunctionNode):
            raise error_at(node, GraphError, "a compiled function has no gradient: differentiate the graph as written")
        return [None, *node.backward(output_grad)]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.copy(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.array(inputs[0])


def function_op(value: Node, inputs: Sequence[Node], backward: Backward, name: str | None = None) -> Node:
    """A node that has `value`'s value, computed from `inputs`, to which `backward` gives the gradients: it is called
    with the node's, and returns one for each input, of its shape, or None. Raises GraphError for an input that is no
    node."""
    for given in (value, *inputs):
        if not isinstance(given, Node):
            raise GraphError(f"function: inputs must be nodes, not {type(given).__name__}")
    made = FunctionNode(OPS["function"], [value, *inputs], {}, name)
    made.backward = backward
    return made
