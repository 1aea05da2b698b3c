"""Dtypes and shapes: changes of dtype; types that follow from data and declarations alone, before any run; the dtype on
which operands of several agree.

What is found is kept in the nodes, also that it is not known, so that asking costs each node once.
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from .. import compute
from ..checks import in_dtype
from ..errors import DlsysError, DTypeError, GraphError, ShapeError
from ..graph import DTYPES, FLOATS, Formula, Made, Node, Op, Shape, register
from .rules import Linear, axes_attribute, dtype_attribute


def _cast(x: np.ndarray, dtype: str) -> np.ndarray:
    """x in another dtype by NumPy, which leaves open what an integer beyond its limits gives."""
    if x.dtype.kind != "f" or np.dtype(dtype).kind not in "iu":
        return x.astype(dtype)
    beyond = ~(np.abs(x) < 2.0**63)  # of NaN too
    whole = np.where(beyond, 0, x).astype("int64")
    return np.where(beyond, np.iinfo("int64").min, whole).astype(dtype)


@register
class Cast(Op):
    """x as `attrs["dtype"]`, see `cast_op`; the gradient is cast back."""

    name = "cast"
    dtypes = DTYPES
    result = "dtype"
    flops = 0
    kind = "elementwise"
    formula: ClassVar[Formula] = compute.cast
    reference: ClassVar[Formula] = _cast
    takes: ClassVar[Sequence[str]] = ("dtype",)

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [cast_like_op(output_grad, node.inputs[0]) if node.attrs["dtype"] in FLOATS else None]


@register
class CastAs(Linear):
    """x in the dtype of `like`, whose values are not read."""

    name = adjoint = "cast_as"
    dtypes = DTYPES
    shape_only: ClassVar[Sequence[int]] = (1,)

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        super().infer_dtype(node, input_dtypes)
        return str(input_dtypes[1])

    def known(self, node: Node, shapes: Sequence[Shape], dtypes: Sequence[str]) -> Node:
        return node.inputs[0] if dtypes[0] == dtypes[1] else cast_op(node.inputs[0], dtypes[1])


@register
class AsGradient(Op):
    """A gradient, given by the operator `attrs["by"]`, that must have the shape and dtype of `x`, whose values are not
    read. Type inference compares them, and puts the gradient in this node's place."""

    name = "as_gradient"
    shape_only: ClassVar[Sequence[int]] = (1,)

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        grad, own = input_shapes
        if grad != own:
            raise ShapeError(self._told(node, f"has shape {grad}, the input {own}"))
        return grad

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        grad, own = input_dtypes
        if own not in FLOATS:
            raise DTypeError(self._told(node, f"is {grad}, but one of {own} is always zero: return None for it"))
        if grad != own:
            raise DTypeError(self._told(node, f"is {grad}, the input {own}"))
        return grad

    @staticmethod
    def _told(node: Node, wrong: str) -> str:
        by, place = node.attrs["by"], f"[node {node.name}, made at {node.location}]"
        return f"{by}: the gradient that it gives for {node.inputs[1].name} {wrong} {place}"

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [output_grad, None]

    def known(self, node: Node, shapes: Sequence[Shape], dtypes: Sequence[str]) -> Node:
        return node.inputs[0]


def cast_op(x: Node, dtype: Any) -> Made:
    """x as dtype, one of `dlsys.graph.DTYPES`, as NumPy's `astype`: fractions are cut off, a number is True unless 0.

    An integer dtype takes the low bits of a number beyond its limits, as NumPy and PyTorch do: 300.0 is 44 as int8. NaN
    and what int64 does not hold count as -2**63: 0 but as int64.

    Raises GraphError for any other dtype.
    """
    return Cast.make([x], {"dtype": dtype_attribute("cast", dtype)})


def cast_like_op(x: Node, like: Node) -> Made:
    """x in the dtype of `like`, whose values are not read."""
    return CastAs.make([x, like])


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
    if not isinstance(node, Node):
        raise GraphError(f"takes tensors and nodes, not {type(node).__name__}")
    return node


def is_scalar(node: Any, axes: Any) -> bool:
    """Whether the axes, 0 or -1, are those of a node without any: as in PyTorch a number has one axis to go along."""
    return axes in (0, -1, (0,), (-1,)) and isinstance(node, Node) and known_shape(node) == ()


def over_axes(op: str, node: Any, axes: Any) -> tuple[int, ...] | None:
    """`axes_attribute`; of a node without axes 0 and -1 are all that it has. Raises GraphError."""
    found = axes_attribute(op, axes)
    return None if is_scalar(node, found) else found


def category(dtype: str) -> int:
    """0 of booleans, 1 of integers, 2 of floats."""
    return 2 if dtype in FLOATS else 0 if dtype == "bool" else 1


def _category_of(number: Any) -> int:
    """The category of a number, or of an array of numbers: 0 for booleans, 1 for integers, 2 for floats."""
    if isinstance(number, (bool, np.bool_)) or (isinstance(number, np.ndarray) and number.dtype == np.bool_):
        return 0
    whole = isinstance(number, numbers.Integral) or (
        isinstance(number, np.ndarray) and number.dtype.kind in "iu"
    )
    return 1 if whole else 2


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
    dtype = known_dtype(node)
    if dtype is None or category(dtype) >= (kind := _category_of(number)):
        return node
    return cast_op(node, DEFAULT[kind])


def as_float(node: Node) -> Node:
    """The node, in float32 if it is known to be of integers or booleans."""
    dtype = known_dtype(node)
    return node if dtype is None or dtype in FLOATS else cast_op(node, "float32")
