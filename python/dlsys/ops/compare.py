"""Comparisons and selections, broadcast as NumPy does.

A Python number stands for a constant of the other operand's shape and dtype.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from .. import compute
from ..compute import Tensor
from ..errors import DTypeError, GraphError
from ..graph import DTYPES, NUMBERS, Node, Op, Shape, error_at, register
from .arithmetic import BroadcastBinary, add_byconst_op, mul_byconst_op, require_constant
from .inputs import oneslike_op, zeroslike_op
from .rules import broadcast_operands, real_constant
from .shape import sum_to_like_op


def constant_like(value: Any, node: Node) -> Node:
    """A constant of the node's shape and dtype. Raises GraphError for a value that is no real number."""
    if isinstance(value, (bool, np.bool_)):  # the node may be of booleans too
        return oneslike_op(node) if value else zeroslike_op(node)
    return add_byconst_op(zeroslike_op(node), value)


def _pair(a: Any, b: Any) -> tuple[Any, Any]:
    """Two operands, of which one may be a number."""
    if isinstance(a, Node) and _is_number(b):
        return a, constant_like(b, a)
    if isinstance(b, Node) and _is_number(a):
        return constant_like(a, b), b
    return a, b


def _is_number(value: Any) -> bool:
    return isinstance(value, (numbers.Real, np.bool_)) or (isinstance(value, np.ndarray) and value.ndim == 0)


class _Comparison(Op):
    """An operator of two operands, broadcast, whose result is bool."""

    broadcasts = True
    elementwise = True
    dtypes: ClassVar[tuple[str, ...]] = NUMBERS
    _te: ClassVar[Callable[..., Tensor]]
    _numpy: ClassVar[Callable[..., np.ndarray]]

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return broadcast_operands(node, *input_shapes)

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        super().infer_dtype(node, input_dtypes)
        return "bool"

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [None, None]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return type(self)._te(*inputs)

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.asarray(type(self)._numpy(*inputs))


@register
class Equal(_Comparison):
    """a == b."""

    name, _te, _numpy = "equal", compute.equal, np.equal
    dtypes = DTYPES


@register
class NotEqual(_Comparison):
    """a != b."""

    name, _te, _numpy = "not_equal", compute.not_equal, np.not_equal
    dtypes = DTYPES


@register
class Less(_Comparison):
    """a < b."""

    name, _te, _numpy = "less", compute.less, np.less


@register
class LessEqual(_Comparison):
    """a <= b."""

    name, _te, _numpy = "less_equal", compute.less_equal, np.less_equal


@register
class Greater(_Comparison):
    """a > b."""

    name, _te, _numpy = "greater", compute.greater, np.greater


@register
class GreaterEqual(_Comparison):
    """a >= b."""

    name, _te, _numpy = "greater_equal", compute.greater_equal, np.greater_equal


@register
class LogicalAnd(_Comparison):
    """a and b, of booleans."""

    name, _te, _numpy = "logical_and", compute.logical_and, np.logical_and
    dtypes = ("bool",)


@register
class LogicalOr(_Comparison):
    """a or b, of booleans."""

    name, _te, _numpy = "logical_or", compute.logical_or, np.logical_or
    dtypes = ("bool",)


@register
class LogicalNot(Op):
    """not x, of booleans."""

    name = "logical_not"
    dtypes = ("bool",)
    elementwise = True

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return input_shapes[0]

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [None]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.logical_not(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.asarray(np.logical_not(inputs[0]))


@register
class Where(Op):
    """a where the condition holds, else b, by selection: nothing leaks from the side that is not taken."""

    name = "where"
    broadcasts = True
    dtypes = DTYPES
    elementwise = True

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        condition, a, b = input_shapes
        return broadcast_operands(node, condition, broadcast_operands(node, a, b))

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        condition, *values = input_dtypes
        if condition != "bool":
            raise error_at(node, DTypeError, f"the condition {node.inputs[0].name} is {condition}, not bool")
        if values[0] != values[1]:
            _, a, b = node.inputs
            raise error_at(node, DTypeError, f"dtypes differ: {a.name} is {values[0]}, {b.name} is {values[1]}")
        return str(values[0])

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        condition, a, b = node.inputs
        zero = zeroslike_op(output_grad)
        return [
            None,
            sum_to_like_op(where_op(condition, output_grad, zero), a),
            sum_to_like_op(where_op(condition, zero, output_grad), b),
        ]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.where(*inputs)

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.where(*inputs)


class _Extremum(BroadcastBinary):
    """The larger or the smaller; where both are equal each has half of the gradient."""

    dtypes = NUMBERS

    def _shares(self, a: Node, b: Node, g: Node, beaten: Node, beats: Node) -> tuple[Node, Node]:
        """The partials, where `beaten` is whether a is not taken, and `beats` whether b is not."""
        zero = zeroslike_op(g)
        shared = where_op(equal_op(a, b), mul_byconst_op(g, 0.5), g)
        return where_op(beaten, zero, shared), where_op(beats, zero, shared)


@register
class Maximum(_Extremum):
    """The larger of a and b, NaN if either is; where both are equal each has half of the gradient."""

    name, _te, _numpy = "maximum", compute.maximum, np.maximum

    def _partials(self, node: Node, a: Node, b: Node, g: Node) -> tuple[Node, Node]:
        return self._shares(a, b, g, less_op(a, b), greater_op(a, b))


@register
class Minimum(_Extremum):
    """The smaller of a and b, NaN if either is; where both are equal each has half of the gradient."""

    name, _te, _numpy = "minimum", compute.minimum, np.minimum

    def _partials(self, node: Node, a: Node, b: Node, g: Node) -> tuple[Node, Node]:
        return self._shares(a, b, g, greater_op(a, b), less_op(a, b))


@register
class Clip(Op):
    """x within the bounds `low` and `high`; the derivative is 1 within them and on them, else 0."""

    name = "clip"
    dtypes = NUMBERS
    elementwise = True

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return input_shapes[0]

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        dtype = super().infer_dtype(node, input_dtypes)
        for bound in (node.attrs["low"], node.attrs["high"]):
            if bound is not None:
                require_constant(node, bound, dtype)
        return dtype

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        (x,), low, high = node.inputs, node.attrs["low"], node.attrs["high"]
        inside = [] if low is None else [greater_equal_op(x, low)]
        inside += [] if high is None else [less_equal_op(x, high)]
        held = inside[0] if len(inside) == 1 else logical_and_op(*inside)
        return [where_op(held, output_grad, zeroslike_op(output_grad))]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.clip(inputs[0], node.attrs["low"], node.attrs["high"])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        low, high = (
            None if bound is None else np.asarray(bound, inputs[0].dtype)
            for bound in (node.attrs["low"], node.attrs["high"])
        )
        return np.asarray(np.clip(inputs[0], low, high))


def equal_op(a: Any, b: Any) -> Node:
    """Whether a == b: bool, broadcast."""
    return Equal.make(_pair(a, b))


def not_equal_op(a: Any, b: Any) -> Node:
    """Whether a != b: bool, broadcast."""
    return NotEqual.make(_pair(a, b))


def less_op(a: Any, b: Any) -> Node:
    """Whether a < b: bool, broadcast."""
    return Less.make(_pair(a, b))


def less_equal_op(a: Any, b: Any) -> Node:
    """Whether a <= b: bool, broadcast."""
    return LessEqual.make(_pair(a, b))


def greater_op(a: Any, b: Any) -> Node:
    """Whether a > b: bool, broadcast."""
    return Greater.make(_pair(a, b))


def greater_equal_op(a: Any, b: Any) -> Node:
    """Whether a >= b: bool, broadcast."""
    return GreaterEqual.make(_pair(a, b))


def logical_and_op(a: Node, b: Node) -> Node:
    """a and b, of booleans, broadcast."""
    return LogicalAnd.make([a, b])


def logical_or_op(a: Node, b: Node) -> Node:
    """a or b, of booleans, broadcast."""
    return LogicalOr.make([a, b])


def logical_not_op(node: Node) -> Node:
    """not node, of booleans."""
    return LogicalNot.make([node])


def where_op(condition: Node, a: Any, b: Any) -> Node:
    """a where the condition, of booleans, holds, else b; broadcast. One of a and b may be a number."""
    return Where.make([condition, *_pair(a, b)])


def maximum_op(a: Any, b: Any) -> Node:
    """The larger of a and b, broadcast; NaN if either is."""
    return Maximum.make(_pair(a, b))


def minimum_op(a: Any, b: Any) -> Node:
    """The smaller of a and b, broadcast; NaN if either is."""
    return Minimum.make(_pair(a, b))


def clip_op(x: Node, low: float | None = None, high: float | None = None) -> Node:
    """x, but no less than `low` and no more than `high`, which comes last; None is no bound.

    Raises GraphError for bounds that are no real numbers, and where there is none.
    """
    if low is None and high is None:
        raise GraphError("clip: there is neither a low nor a high bound")
    bounds = [None if bound is None else real_constant("clip", bound) for bound in (low, high)]
    if any(bound != bound for bound in bounds if bound is not None):
        raise GraphError("clip: a bound is NaN")
    return Clip.make([x], {"low": bounds[0], "high": bounds[1]})
