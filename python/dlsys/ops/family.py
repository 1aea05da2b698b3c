"""Families of operators that differ in their formulas alone: of each member a table holds the name, the tensor
expression, the NumPy reference and the derivative. `unary` and its like register an operator and return the function
of the graph that users call.

A derivative is a function (gradient, node, *inputs) -> the gradient of each input in the output's shape, of one input
without a tuple; a derivative that is zero is `ZERO`, everywhere or as what the function returns.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, ClassVar

import numpy as np

from ..checks import in_dtype
from ..compute import Tensor
from ..errors import DTypeError, GraphError
from ..graph import DTYPES, INTEGERS, Node, Op, Shape, error_at, register, require_takes
from .rules import broadcast_operands, real_constant, require_same
from .shape import sum_to_like_op
from .types import dtype_of

OfNode = Callable[[Node], Node]
OfNodes = Callable[[Any, Any], Node]
OfConst = Callable[[Node, float], Node]


class Zero(Enum):
    """A derivative that is zero, which nobody gets by forgetting one."""

    ZERO = 0


ZERO = Zero.ZERO
Derivative = Callable[..., "Node | Zero | tuple[Node | Zero, ...]"] | Zero


class Pointwise(Op):
    """output[i] = formula(inputs[i], ...), where several inputs are broadcast by NumPy's rules; with the attribute
    `same_shape` they must be of one shape."""

    kind = "elementwise"
    derivative: ClassVar[Derivative | None] = None
    result: ClassVar[str] = ""
    """The result's dtype, where it is not that of the inputs."""

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        shape = input_shapes[-1]
        for other in reversed(input_shapes[:-1]):
            shape = (require_same if "same_shape" in node.attrs else broadcast_operands)(node, other, shape)
        return shape

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        dtype = super().infer_dtype(node, input_dtypes)
        return self.result or dtype

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        derivative, count = type(self).derivative, len(node.inputs)
        if derivative is ZERO:
            return [None] * count
        if derivative is None:
            return super().gradient(node, output_grad)
        arguments = output_grad, node, *node.inputs, *self.arguments(node, [], ())
        try:
            found: Any = derivative(*arguments)
        except TypeError:
            require_takes(node, "derivative", derivative, arguments)
            raise
        if count == 1 and isinstance(found, Node):  # as mostly
            return [found]
        grads = [found] if count == 1 else found
        right = isinstance(grads, (list, tuple)) and len(grads) == count
        if not right or any(not isinstance(grad, (Node, Zero)) for grad in grads):
            wanted = "a node" if count == 1 else f"a tuple of {count} nodes"
            raise error_at(node, GraphError, f"its derivative must return {wanted}, or ZERO for one, not {found!r}")
        return [None if g is ZERO else sum_to_like_op(g, x) for g, x in zip(grads, node.inputs, strict=True)]


class ByConst(Pointwise):
    """Of one node and the constant `attrs["const"]`, which takes the node's dtype, and may become an input."""

    lifts = True
    of_nodes: ClassVar[Callable[[Node, Node], Node]]
    """The same with a node for the constant."""

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        dtype = super().infer_dtype(node, input_dtypes)
        require_constant(node, node.attrs["const"], dtype)
        return dtype

    def arguments(self, node: Node, shapes: list[Shape], shape: Shape) -> tuple[Any, ...]:
        return (node.attrs["const"],)

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(type(self).reference(inputs[0], in_dtype(node.attrs["const"], inputs[0].dtype)))

    def numbers(self, node: Node) -> tuple[Any, Sequence[Any]]:
        return None, (node.attrs["const"],)

    def number(self, node: Node, which: int) -> np.ndarray:
        return in_dtype(node.attrs["const"], dtype_of(node.inputs[0]))

    def lifted(self, node: Node, inputs: list[Node], numbers: dict[int, Node]) -> Node:
        return type(self).of_nodes(inputs[0], numbers[0])


def require_constant(node: Node, const: float, dtype: str) -> None:
    """Raises DTypeError for a constant that an integer dtype does not hold."""
    if dtype not in INTEGERS:
        return
    limits = np.iinfo(dtype)
    whole = isinstance(const, int) or const.is_integer()
    if not (whole and int(limits.min) <= const <= int(limits.max)):
        raise error_at(node, DTypeError, f"the constant {const:g} is no {dtype}, which {node.inputs[0].name} is")


def _member(base: type[Op], name: str, doc: str, facts: dict[str, Any]) -> type[Op]:
    if facts["derivative"] is None:
        raise GraphError(f"{name}: there is no derivative: pass one, or derivative=ZERO if it is zero everywhere")
    frame = sys._getframe(1)
    while frame.f_code.co_filename == __file__ and frame.f_back is not None:
        frame = frame.f_back
    module = frame.f_globals.get("__name__", "__main__")  # of who defines it
    return register(type(name, (base,), {"name": name, "__doc__": doc, "__module__": module, **facts}))


def _named(function: Callable[..., Node], name: str, doc: str) -> Callable[..., Node]:
    function.__name__ = function.__qualname__ = f"{name}_op"
    function.__doc__ = doc
    return function


def unary(
    name: str,
    doc: str,
    formula: Callable[..., Tensor],
    reference: Callable[..., Any],
    derivative: Derivative | None = None,
    **facts: Any,
) -> OfNode:
    """The function of a new operator of one node. `facts`: attributes of its class. Raises GraphError where there is no
    derivative, and for the name of another operator (see `register`)."""
    parts: dict[str, Any] = {"formula": formula, "reference": reference, "derivative": derivative}
    operator = _member(Pointwise, name, doc, {**parts, **facts})

    def function(node: Node) -> Node:
        return operator.make([node])

    return _named(function, name, doc)


def binary(
    name: str,
    doc: str,
    formula: Callable[..., Tensor],
    reference: Callable[..., Any],
    derivative: Derivative | None = None,
    operands: Callable[[Any, Any], Sequence[Any]] = lambda a, b: (a, b),
    **facts: Any,
) -> OfNodes:
    """The function of a new operator of two nodes, broadcast; `operands` makes them of what users pass. Raises as
    `unary`."""
    parts: dict[str, Any] = {"formula": formula, "reference": reference, "derivative": derivative, "broadcasts": True}
    operator = _member(Pointwise, name, doc, {**parts, **facts})

    def function(a: Any, b: Any) -> Node:
        return operator.make(operands(a, b))

    return _named(function, name, doc)


def comparison(
    name: str, doc: str, formula: Callable[..., Tensor], reference: Callable[..., Any], **facts: Any
) -> OfNodes:
    """The function of a new operator of two nodes whose result is bool."""
    return binary(name, doc, formula, reference, ZERO, **{"result": "bool", "dtypes": DTYPES, **facts})


def by_const(
    name: str,
    doc: str,
    formula: Callable[..., Tensor],
    reference: Callable[..., Any],
    derivative: Derivative,
    of_nodes: Callable[[Node, Node], Node],
    **facts: Any,
) -> OfConst:
    """The function of a new operator of a node and a constant. It raises GraphError for one that is no real number."""
    parts: dict[str, Any] = {"formula": formula, "reference": reference, "derivative": derivative, "of_nodes": of_nodes}
    operator = _member(ByConst, name, doc, {**parts, **facts})

    def function(node: Node, const: float) -> Node:
        return operator.make([node], {"const": real_constant(name, const)})

    return _named(function, name, f"{doc} Raises GraphError for a constant that is no real number.")
