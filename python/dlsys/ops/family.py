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

from ..compute import Tensor
from ..errors import GraphError
from ..graph import DTYPES, Made, Node, Op, Shape, error_at, register, require_takes
from . import replay
from .inputs import constant_op
from .rules import broadcast_operands, require_same
from .shape import sum_to_like_op

OfNode = Callable[[Node], Made]
OfNodes = Callable[[Any, Any], Made]
OfConst = Callable[[Node, float], Made]


class Zero(Enum):
    """A derivative that is zero, which nobody gets by forgetting one."""

    ZERO = 0


ZERO = Zero.ZERO
Derivative = Callable[..., "Node | Zero | tuple[Node | Zero, ...]"] | Zero


class Pointwise(Op):
    """output[i] = formula(inputs[i], ...), where several inputs are broadcast by NumPy's rules; they must be of one
    shape if it does not broadcast, or has the attribute `same_shape`."""

    kind = "elementwise"
    derivative: ClassVar[Derivative | None] = None

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        shape, broadcasts = input_shapes[-1], self.broadcasts and "same_shape" not in node.attrs
        for other in reversed(input_shapes[:-1]):
            shape = (broadcast_operands if broadcasts else require_same)(node, other, shape)
        return shape

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
        count = sum(not x.op.immediate for x in node.inputs)
        if count == 1 or not self.broadcasts:  # of the result's shape
            return [None if g is ZERO or x.op.immediate else g for g, x in zip(grads, node.inputs, strict=True)]
        return [None if g is ZERO else sum_to_like_op(g, x) for g, x in zip(grads, node.inputs, strict=True)]


def _member(base: type[Op], name: str, doc: str, facts: dict[str, Any]) -> type[Op]:
    """A new operator's class, registered, in the module of the program that defines it."""
    if facts["derivative"] is None:
        raise GraphError(f"{name}: there is no derivative: pass one, or derivative=ZERO if it is zero everywhere")
    frame = sys._getframe(1)
    while frame.f_code.co_filename == __file__ and frame.f_back is not None:
        frame = frame.f_back
    module = frame.f_globals.get("__name__", "__main__")  # of who defines it
    return register(type(name, (base,), {"name": name, "__doc__": doc, "__module__": module, **facts}))


def _named(function: Callable[..., Made], name: str, doc: str, module: str) -> Callable[..., Made]:
    """The function with the name, docstring and module of an operator."""
    function.__name__ = function.__qualname__ = f"{name}_op"
    function.__module__ = module  # where pickles look for it
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

    def function(node: Node) -> Made:
        return operator.make([node])

    return _named(function, name, doc, operator.__module__)


def _both(a: Any, b: Any) -> tuple[Any, Any]:
    return a, b


def binary(
    name: str,
    doc: str,
    formula: Callable[..., Tensor],
    reference: Callable[..., Any],
    derivative: Derivative | None = None,
    operands: Callable[[Any, Any], Sequence[Any]] = _both,
    **facts: Any,
) -> OfNodes:
    """The function of a new operator of two nodes, broadcast unless a fact says otherwise; `operands` makes them of
    what users pass. Raises as `unary`."""
    parts: dict[str, Any] = {"formula": formula, "reference": reference, "derivative": derivative, "broadcasts": True}
    operator = _member(Pointwise, name, doc, {**parts, **facts})

    def function(a: Any, b: Any) -> Made:
        return operator.make(operands(a, b))

    function = _named(function, name, doc, operator.__module__)
    return function if operands is _both else replay.function()(function)


def comparison(
    name: str, doc: str, formula: Callable[..., Tensor], reference: Callable[..., Any], **facts: Any
) -> OfNodes:
    """The function of a new operator of two nodes whose result is bool."""
    return binary(name, doc, formula, reference, ZERO, **{"result": "bool", "dtypes": DTYPES, **facts})


def by_const(name: str, doc: str, function: OfNodes) -> OfConst:
    """The function of a node and a number that is an operator of two nodes. It raises GraphError for what is no real
    number."""

    def of_number(node: Node, const: float) -> Made:
        return function(node, constant_op(const, node.dtype))

    return replay.function()(
        _named(of_number, name, f"{doc} Raises GraphError for a constant that is no real number.", function.__module__)
    )
