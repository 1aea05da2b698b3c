"""Python's operators of nodes: operands of several dtypes are promoted as PyTorch does, arrays become constants.

The functions of the other modules, `add_op` and its like, take operands as they are.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

import numpy as np

from ..devices import host_array
from ..errors import DTypeError, GraphError
from ..graph import INTEGERS, Made, Node, set_arithmetic
from . import elementary
from .arithmetic import add_op, div_op, mul_op, neg_op, sub_op, whole_power
from .inputs import constant_op, is_number, oneslike_op
from .linalg import matmul_op
from .rules import holds
from .state import leaf
from .types import as_float, beside_number, cast_like_op, cast_op, known_dtype, promoted

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


def _operands(a: Any, b: Any) -> tuple[Any, Any]:
    """Two operands, of which one at least is a node; Nones where the other is none. An array takes the dtype of a node
    whose own is not known."""
    if type(b) in (float, int) or isinstance(b, Node):  # as in most cases
        first, second = operand(a), b
    else:
        first, second = operand(a), operand(b)
    if first is None or second is None:
        return None, None
    if first is not a and isinstance(first, Node) and known_dtype(b) is None:
        first = cast_like_op(first, b)
    if second is not b and isinstance(second, Node) and known_dtype(a) is None:
        second = cast_like_op(second, a)
    return first, second


def constant_beside(value: Any, node: Node) -> Made:
    """A number as the other operand of a node. Raises DTypeError for one beyond the limits of the node's integers."""
    dtype = known_dtype(node)
    if dtype is not None and isinstance(value, numbers.Integral) and not holds(dtype, int(value)):
        raise DTypeError(f"the constant {value} is no {dtype}, which {node.name} is: cast it to another dtype")
    return constant_op(value)


def pair(a: Any, b: Any) -> tuple[Node, Node] | None:
    """Two operands, of which one may be a number, as nodes of one dtype as far as their dtypes are known; None for
    what is no operand."""
    a, b = _operands(a, b)
    if a is None:
        return None
    if isinstance(a, Node) and isinstance(b, Node):
        first, second = promoted(a, b)
        return first, second
    if isinstance(a, Node):
        a = beside_number(a, b)
        return a, constant_beside(b, a)
    b = beside_number(b, a)
    return constant_beside(a, b), b


def _of_pair(function: Binary, of_booleans: Binary | None = None) -> Callable[[Any, Any], Any]:
    """An operator of two nodes as what Python calls: NotImplemented for what is no operand."""

    def apply(a: Any, b: Any) -> Any:
        found = pair(a, b)
        if found is None:
            return NotImplemented
        if of_booleans is not None and known_dtype(found[0]) == "bool":
            return of_booleans(*found)
        return function(*found)

    return apply


def _compared(function: Binary, of_booleans: Binary | None = None) -> Callable[[Any, Any], Any]:
    """As `_of_pair`; integers are compared with a number beyond their dtype as int64."""
    general = _of_pair(function, of_booleans)

    def wide(node: Any, number: Any) -> Any:
        dtype = known_dtype(node) if isinstance(node, Node) and isinstance(number, numbers.Integral) else None
        beyond = dtype is not None and not holds(dtype, number) and holds("int64", number)
        return cast_op(node, "int64") if beyond else node

    return lambda a, b: general(wide(a, b), wide(b, a))


def _as_integers(function: Binary) -> Binary:
    """The operator of booleans, as 0 and 1."""
    return lambda a, b: function(cast_op(a, "int32"), cast_op(b, "int32"))


def _divide(a: Any, b: Any) -> Any:
    a, b = (as_float(x) if isinstance(x, Node) else x for x in _operands(a, b))
    found = pair(a, b)
    return NotImplemented if found is None else div_op(*found)


def _matmul(a: Any, b: Any) -> Any:
    """The product of two nodes; NotImplemented where one is no operand."""
    a, b = _operands(a, b)
    if not (isinstance(a, Node) and isinstance(b, Node)):
        return NotImplemented
    return matmul_op(a, b)


def _power(a: Any, b: Any) -> Any:
    """a ** b: an integer to a number is multiplied out."""
    found = pair(a, b)
    if found is None:
        return NotImplemented
    node, exponent = found
    if not (exponent.op.immediate and known_dtype(node) in INTEGERS):
        return elementary.power_op(node, exponent)
    count = int(exponent.attrs["value"])
    if count < 0:
        raise GraphError(f"integers are not raised to negative powers, as {count}: cast to a float")
    return whole_power(node, count) if count else oneslike_op(node)


set_arithmetic(
    {
        "+": _of_pair(add_op, elementary.logical_or_op),
        "-": _of_pair(sub_op),
        "*": _of_pair(mul_op, elementary.logical_and_op),
        "/": _divide,
        "@": _matmul,
        "**": _power,
        "==": _compared(elementary.equal_op),
        "!=": _compared(elementary.not_equal_op),
        "<": _compared(elementary.less_op, _as_integers(elementary.less_op)),
        "<=": _compared(elementary.less_equal_op, _as_integers(elementary.less_equal_op)),
        ">": _compared(elementary.greater_op, _as_integers(elementary.greater_op)),
        ">=": _compared(elementary.greater_equal_op, _as_integers(elementary.greater_equal_op)),
        "&": _of_pair(elementary.bitwise_and_op, elementary.logical_and_op),
        "|": _of_pair(elementary.bitwise_or_op, elementary.logical_or_op),
        "^": _of_pair(elementary.bitwise_xor_op, elementary.not_equal_op),
        "~": lambda x: (elementary.logical_not_op if known_dtype(x) == "bool" else elementary.bitwise_not_op)(x),
        "neg": neg_op,
    }
)
