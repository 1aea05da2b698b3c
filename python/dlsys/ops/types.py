"""Types of nodes: those that follow from data and declarations, before any run; the dtype to which operands of several
dtypes are promoted, by PyTorch's rules.
"""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from ..checks import in_dtype
from ..errors import DlsysError, GraphError
from ..graph import FLOATS, Node, Shape, is_node
from .elementwise import cast_op


def number_of(value: Node) -> np.ndarray:
    """The number that an immediate node is, in its dtype."""
    return in_dtype(value.attrs["value"], value.attrs["dtype"])


DEFAULT = ("bool", "int64", "float32")
"""The dtypes of Python's booleans, integers and floats as operands of a tensor of a lower category."""


def shape_of(node: Node) -> Shape:
    """The node's shape. Raises ShapeError where it depends on what is fed, GraphError for what is no node."""
    return _node(node).shape


def dtype_of(node: Node) -> str:
    """The name of the node's dtype. Raises DTypeError where it depends on what is fed, GraphError for what is no
    node."""
    return _node(node).dtype


def known_shape(node: Node) -> Shape | None:
    """The node's shape, None where it depends on what is fed. Raises GraphError for what is no node."""
    return _known(node, "shape")


def known_dtype(node: Node) -> str | None:
    """The name of the node's dtype, None where it depends on what is fed. Raises GraphError for what is no node."""
    return _known(node, "dtype")


def _known(node: Node, part: str) -> Any:
    if (known := _node(node).value_type) is not None:
        return getattr(known, part)
    try:
        return getattr(node, part)
    except DlsysError:
        return None


def _node(node: Any) -> Node:
    if not is_node(node):
        raise GraphError(f"takes tensors and nodes, not {type(node).__name__}")
    return node


def category(dtype: str) -> int:
    """0 of booleans, 1 of integers, 2 of floats."""
    return 2 if dtype in FLOATS else 0 if dtype == "bool" else 1


def _category_of(number: Any) -> int:
    """The category of a number of Python or NumPy: 0 for booleans, 1 for integers, 2 for floats."""
    number = number.item() if isinstance(number, (np.generic, np.ndarray)) else number
    return 0 if isinstance(number, bool) else 1 if isinstance(number, numbers.Integral) else 2


def joint_dtype(a: str, b: str) -> str:
    """The dtype that holds values of both: NumPy's, but an integer beside a float takes the float's, as in PyTorch."""
    if category(a) != category(b):
        return max(a, b, key=category)
    return str(np.promote_types(a, b))


def promoted(*operands: Node) -> list[Node]:
    """The operands in one dtype by PyTorch's rules: of several categories (booleans, integers, floats) the highest
    counts; within it those that have axes go before those that have none. Where a dtype is not known they stay."""
    dtypes = [known_dtype(node) for node in operands]
    if None in dtypes or dtypes.count(dtypes[0]) == len(dtypes):
        return list(operands)
    ranked: list[str | None] = [None, None]  # of operands with axes, without
    for node, dtype in zip(operands, dtypes, strict=True):
        place = known_shape(node) == ()
        ranked[place] = dtype if ranked[place] is None else joint_dtype(ranked[place], dtype)  # type: ignore[arg-type]
    first, second = ranked
    joint = first or second
    if first and second and category(second) > category(first):
        joint = second
    return [
        node if dtype == joint else cast_op(node, joint) for node, dtype in zip(operands, dtypes, strict=True)
    ]


def beside_number(node: Node, number: Any) -> Node:
    """The node in the dtype that it has beside a Python number, which is weak: its own unless the number's category is
    higher, then int64 or float32."""
    kind = _category_of(number)
    return node if category(node.dtype) >= kind else cast_op(node, DEFAULT[kind])
