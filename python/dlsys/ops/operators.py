"""Python's operators of nodes: operands of several dtypes are promoted as PyTorch does, arrays become constants.

The functions of the other modules, `add_op` and its like, take operands as they are.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from ..devices import host_array
from ..errors import GraphError
from ..graph import INTEGERS, Made, Node, set_arithmetic
from . import elementary, replay
from .arithmetic import add_op, div_op, mul_op, neg_op, sub_op, whole_power
from .inputs import constant_op, is_number, oneslike_op
from .linalg import matmul_op
from .rules import holds
from .state import leaf
from .types import as_float, beside_number, cast_op, promoted

Binary = Callable[[Node, Node], Node]


def is_operand(value: Any) -> bool:
    """Whether the value is a node, a number or an array of any library."""
    return isinstance(value, (Node, np.ndarray)) or is_number(value) or hasattr(value, "__dlpack__")


def operand(value: Any) -> Any:
    """A node as it is, a number as Python's, an array of any library as a constant; None for anything else."""
    if isinstance(value, Node):
        return value
    if is_number(value):  # NumPy's would wrap around as it is negated, within its own dtype
        return value.item() if isinstance(value, (np.generic, np.ndarray)) else value
    if isinstance(value, np.ndarray) or hasattr(value, "__dlpack__"):
        return leaf(np.array(host_array(value)), "constant")
    return None


def pair(a: Any, b: Any) -> tuple[Node, Node] | None:
    """Two operands, one of them a node, as nodes of one dtype; None for what is no operand."""
    a, b = operand(a), operand(b)
    if a is None or b is None:
        return None
    if isinstance(a, Node) and isinstance(b, Node):
        first, second = promoted(a, b)
        return first, second
    if isinstance(a, Node):
        a = beside_number(a, b)
        return a, constant_op(b, a.dtype)
    b = beside_number(b, a)
    return constant_op(a, b.dtype), b


def _python(function: Binary, name: str) -> Callable[[Any, Any], Any]:
    """A function of two operands, of which one at least is a node, as what Python calls: NotImplemented for what is no
    operand."""
    function.__name__ = function.__qualname__ = name
    noted = replay.function()(function)

    def apply(a: Any, b: Any) -> Any:
        return noted(a, b) if is_operand(a) and is_operand(b) else NotImplemented

    return apply


def _of_pair(name: str, function: Binary, of_booleans: Binary | None = None) -> Callable[[Any, Any], Any]:
    """An operator of two nodes of one dtype."""

    def apply(a: Any, b: Any) -> Node:
        first, second = cast(tuple[Node, Node], pair(a, b))
        of_these = function if of_booleans is None or first.dtype != "bool" else of_booleans
        return of_these(first, second)

    return _python(apply, name)


def _compared(name: str, function: Binary, of_booleans: Binary | None = None) -> Callable[[Any, Any], Any]:
    """As `_of_pair`; integers are compared with a number beyond their dtype as int64."""

    def wide(node: Any, number: Any) -> Any:
        is_whole = isinstance(node, Node) and isinstance(number, numbers.Integral)
        beyond = is_whole and not holds(node.dtype, int(number)) and holds("int64", int(number))
        return cast_op(node, "int64") if beyond else node

    def apply(a: Any, b: Any) -> Node:
        first, second = cast(tuple[Node, Node], pair(wide(a, b), wide(b, a)))
        of_these = function if of_booleans is None or first.dtype != "bool" else of_booleans
        return of_these(first, second)

    return _python(apply, name)


def _as_integers(function: Binary) -> Binary:
    """The operator of booleans, as 0 and 1."""
    return lambda a, b: function(cast_op(a, "int32"), cast_op(b, "int32"))


def _divide(a: Any, b: Any) -> Node:
    a, b = (as_float(x) if isinstance(x, Node) else x for x in (operand(a), operand(b)))
    return div_op(*cast(tuple[Node, Node], pair(a, b)))


def _matmul(a: Any, b: Any) -> Any:
    """The product of two nodes; NotImplemented where one is no operand."""
    a, b = operand(a), operand(b)
    if not (isinstance(a, Node) and isinstance(b, Node)):
        return NotImplemented
    return matmul_op(a, b)


def _power(a: Any, b: Any) -> Node:
    """a ** b: an integer to a number is multiplied out."""
    node, exponent = cast(tuple[Node, Node], pair(a, b))
    if not (exponent.op.immediate and node.dtype in INTEGERS):
        return elementary.power_op(node, exponent)
    count = int(exponent.attrs["value"])
    if count < 0:
        raise GraphError(f"integers are not raised to negative powers, as {count}: cast to a float")
    return whole_power(node, count) if count else oneslike_op(node)


@replay.function()
def invert(x: Node) -> Made:
    """~x: every bit of an integer is the other one; of booleans not x."""
    return (elementary.logical_not_op if x.dtype == "bool" else elementary.bitwise_not_op)(x)


set_arithmetic(
    {
        "+": _of_pair("add", add_op, elementary.logical_or_op),
        "-": _of_pair("sub", sub_op),
        "*": _of_pair("mul", mul_op, elementary.logical_and_op),
        "/": _python(_divide, "div"),
        "@": _matmul,
        "**": _python(_power, "power"),
        "==": _compared("equal", elementary.equal_op),
        "!=": _compared("not_equal", elementary.not_equal_op),
        "<": _compared("less", elementary.less_op, _as_integers(elementary.less_op)),
        "<=": _compared("less_equal", elementary.less_equal_op, _as_integers(elementary.less_equal_op)),
        ">": _compared("greater", elementary.greater_op, _as_integers(elementary.greater_op)),
        ">=": _compared("greater_equal", elementary.greater_equal_op, _as_integers(elementary.greater_equal_op)),
        "&": _of_pair("bitwise_and", elementary.bitwise_and_op, elementary.logical_and_op),
        "|": _of_pair("bitwise_or", elementary.bitwise_or_op, elementary.logical_or_op),
        "^": _of_pair("bitwise_xor", elementary.bitwise_xor_op, elementary.not_equal_op),
        "~": invert,
        "neg": neg_op,
    }
)
