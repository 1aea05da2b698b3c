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
from ..graph import FLOATS, INTEGERS, NODES, Handle, Made, Node, is_node
from ..scopes import scopes
from . import elementwise as of
from . import replay
from .elementwise import cast_op
from .linalg import matmul, matmul_op
from .rules import holds
from .state import constant_beside_tensor, constant_op, is_number, leaf
from .types import beside_number, promoted

Binary = Callable[[Node, Node], Node]


def is_operand(value: Any) -> bool:
    """Whether the value is a node, a number or an array of any library."""
    return is_node(value) or isinstance(value, np.ndarray) or is_number(value) or hasattr(value, "__dlpack__")


def operand(value: Any) -> Any:
    """A node as it is, a number as Python's, an array of any library as a constant; None for anything else."""
    if is_node(value):
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
    if is_node(a) and is_node(b):
        first, second = promoted(a, b)
        return first, second
    if is_node(a):
        a = beside_number(a, b)
        return a, constant_op(b, a.dtype)
    b = beside_number(b, a)
    return constant_op(a, b.dtype), b


def _operator(
    name: str, function: Binary, of_booleans: Binary | None = None, before: Callable[[Any, Any], Any] | None = None
) -> Callable[[Any, Any], Any]:
    """What Python calls for an operator, of which one operand at least is a node: the function of both in one dtype, or
    `of_booleans`. `before` changes operands of other types than floats. NotImplemented for what is no operand."""

    def promoted_first(a: Any, b: Any) -> Node:
        a, b = (a, b) if before is None else before(a, b)
        first, second = cast(tuple[Node, Node], pair(a, b))
        return (function if of_booleans is None or first.dtype != "bool" else of_booleans)(first, second)

    promoted_first.__name__ = promoted_first.__qualname__ = name
    noted = replay.function()(promoted_first)

    def apply(a: Any, b: Any) -> Any:
        x, y = a.node if isinstance(a, Handle) else a, b.node if isinstance(b, Handle) else b
        if isinstance(x, Node) and (kind := x.value_type) is not None and kind.dtype in FLOATS:  # as mostly
            if isinstance(y, Node):
                if y.value_type is not None and y.value_type.dtype == kind.dtype:
                    return function(a, b)
            elif type(b) is float or type(b) is int:
                shared = x is not a and not x.is_open and scopes.notes()
                return function(a, (constant_beside_tensor if shared else constant_op)(b, kind.dtype))
        return noted(a, b) if is_operand(a) and is_operand(b) else NotImplemented

    return apply


def _wide(a: Any, b: Any) -> tuple[Any, Any]:
    """The operands of a comparison: integers beside a number beyond their dtype as int64."""

    def widened(node: Any, number: Any) -> Any:
        is_whole = is_node(node) and isinstance(number, numbers.Integral)
        beyond = is_whole and not holds(node.dtype, int(number)) and holds("int64", int(number))
        return cast_op(node, "int64") if beyond else node

    return widened(a, b), widened(b, a)


def _compared(name: str, function: Binary) -> Callable[[Any, Any], Any]:
    """A comparison by order; booleans are 0 and 1."""
    return _operator(name, function, lambda a, b: function(cast_op(a, "int32"), cast_op(b, "int32")), _wide)


def _floats(a: Any, b: Any) -> tuple[Any, Any]:
    """The operands of a division: beside floats as they are, else nodes as float32."""
    first, second = operand(a), operand(b)
    if any(is_node(x) and x.dtype in FLOATS for x in (first, second)):
        return first, second
    first, second = (cast_op(x, "float32") if is_node(x) else x for x in (first, second))
    return first, second


def _matmul(a: Any, b: Any) -> Any:
    """The product of two nodes, of which one may be an array; NotImplemented where one is no operand."""
    if isinstance(a, NODES) and isinstance(b, NODES):
        return matmul(a, b, trans_A=False, trans_B=False)
    a, b = operand(a), operand(b)
    return _matmul_of_array(a, b) if is_node(a) and is_node(b) else NotImplemented


@replay.function()
def _matmul_of_array(a: Node, b: Node) -> Made:
    """The product of a node and an array, floats in one dtype."""
    return matmul_op(*(promoted(a, b) if a.dtype in FLOATS and b.dtype in FLOATS else (a, b)))


def _power(a: Node, b: Node) -> Node:
    """a ** b: an integer to a number is multiplied out."""
    if not b.op.immediate or a.dtype not in INTEGERS:
        return of.power_op(a, b)
    count = int(b.attrs["value"])
    if count < 0:
        raise GraphError(f"integers are not raised to negative powers, as {count}: cast to a float")
    return of.whole_power(a, count) if count else of.oneslike_op(a)


def _both(function: Binary) -> tuple[Any, Any]:
    """The methods for an operator: of the first operand, and of the second, where the first has no answer."""
    return function, lambda second, first: function(first, second)


class Arithmetic:
    """Python's operators of tensors."""

    __slots__ = ()
    __add__, __radd__ = _both(_operator("add", of.add_op, of.bitwise_or_op))
    __sub__, __rsub__ = _both(_operator("sub", of.sub_op))
    __mul__, __rmul__ = _both(_operator("mul", of.mul_op, of.bitwise_and_op))
    __truediv__, __rtruediv__ = _both(_operator("div", of.div_op, before=_floats))
    __matmul__, __rmatmul__ = _both(_matmul)
    __pow__, __rpow__ = _both(_operator("power", _power))
    __and__, __rand__ = _both(_operator("bitwise_and", of.bitwise_and_op))
    __or__, __ror__ = _both(_operator("bitwise_or", of.bitwise_or_op))
    __xor__, __rxor__ = _both(_operator("bitwise_xor", of.bitwise_xor_op))
    __eq__: Any = _operator("equal", of.equal_op, before=_wide)
    __ne__: Any = _operator("not_equal", of.not_equal_op, before=_wide)
    __lt__: Any = _compared("less", of.less_op)
    __le__: Any = _compared("less_equal", of.less_equal_op)
    __gt__: Any = _compared("greater", of.greater_op)
    __ge__: Any = _compared("greater_equal", of.greater_equal_op)
    __hash__: Any = object.__hash__  # dictionaries compare by identity first, and by `==` only if two hashes are equal

    def __neg__(self: Any) -> Made:
        return of.neg_op(self)

    def __invert__(self: Any) -> Made:
        return of.bitwise_not_op(self)


def operate(name: str, *operands: Any) -> Any:
    """The result of one of the methods of `Arithmetic`, by its name, of nodes."""
    return getattr(Arithmetic, name)(*operands)
