"""Sums and products of all elements up to each, along an axis, and the recurrence that their gradients are.

All take `exclusive`, without the element's own, and `reverse`, from the last element on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from .. import compute
from ..checks import flag, integer
from ..graph import NUMBERS, Formula, Made, Node, Op, Shape, register
from .elementwise import add_op, mul_op
from .rules import own_axis, require_same
from .types import known_shape

Reference = Callable[..., np.ndarray]


def _accumulated(function: Callable[..., np.ndarray], start: int) -> Reference:
    """NumPy's function of sums or products, which are `start` of nothing."""

    def reference(x: np.ndarray, axis: int, exclusive: bool, reverse: bool) -> np.ndarray:
        wide = np.flip(x, axis) if reverse else x
        found = function(wide, axis, dtype="float64" if x.dtype.kind == "f" else x.dtype)
        if exclusive:
            found = np.roll(found, 1, axis)
            found[(slice(None),) * axis + (slice(0, 1),)] = start
        return (np.flip(found, axis) if reverse else found).astype(x.dtype)

    return reference


def _recurrence(a: np.ndarray, b: np.ndarray, axis: int, exclusive: bool, reverse: bool) -> np.ndarray:
    """y_i = a_i y_(i-1) + b_i along an axis by NumPy, step by step in float64."""
    factors, terms = (np.moveaxis(x, axis, 0).astype("float64") for x in (a, b))
    found, value = np.empty_like(terms), np.zeros(terms.shape[1:])
    for i in range(len(found))[:: -1 if reverse else 1]:
        following = factors[i] * value + terms[i]
        found[i], value = value if exclusive else following, following
    return np.moveaxis(found, 0, axis).astype(a.dtype)


class Cumulative(Op):
    """An operator whose values along `axis` are each computed from the one before."""

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        own_axis(node, len(input_shapes[0]))
        return input_shapes[0]

    def arguments(self, node: Node, shapes: list[Shape], shape: Shape) -> tuple[Any, ...]:
        return own_axis(node, len(shape)), node.attrs["exclusive"], node.attrs["reverse"]


@register
class Cumsum(Cumulative):
    """y_i = y_(i-1) + x_i, 0 before the first; y_(i-1) if exclusive. dx is the same sum of g, from the other end."""

    name = "cumsum"
    onnx = "CumSum"
    dtypes = NUMBERS
    formula: ClassVar[Formula] = compute.cumsum
    reference: ClassVar[Formula] = _accumulated(np.cumsum, 0)

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [Cumsum.make([output_grad], {**node.attrs, "reverse": not node.attrs["reverse"]})]


@register
class Cumprod(Cumulative):
    """y_i = y_(i-1) x_i, 1 before the first; y_(i-1) if exclusive. dx_i is y_(i-1) times the gradient of y_i, in which
    all later ones take part, a recurrence: without a quotient, so that zeros are no exception."""

    name = "cumprod"
    dtypes = NUMBERS
    formula: ClassVar[Formula] = compute.cumprod
    reference: ClassVar[Formula] = _accumulated(np.cumprod, 1)

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        (x,) = node.inputs
        before = Cumprod.make([x], {**node.attrs, "exclusive": True})
        return [mul_op(before, _backwards(node, x, output_grad))]


@register
class Recurrence(Cumulative):
    """h_i = a_i h_(i-1) + b_i, 0 before the first; h_(i-1) if exclusive. db, the gradient of h_i, is a recurrence from
    the other end, da_i = db_i h_(i-1)."""

    name = "recurrence"
    flops = 2
    formula: ClassVar[Formula] = compute.recurrence
    reference: ClassVar[Formula] = _recurrence

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return super().infer_shape(node, [require_same(node, *input_shapes)])

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        a, b = node.inputs
        of_term = _backwards(node, a, output_grad)
        before = Recurrence.make([a, b], {**node.attrs, "exclusive": True})
        return [mul_op(of_term, before), of_term]


def _backwards(node: Node, a: Node, g: Node) -> Made:
    """The gradient d_i of h_i, where h_(i+1) = a_(i+1) h_i + ...: d_i = g_i + a_(i+1) d_(i+1); where h_i is the result
    number i + 1, if exclusive, d_i = g_(i+1) + a_(i+1) d_(i+1)."""
    attrs = {**node.attrs, "exclusive": True, "reverse": not node.attrs["reverse"]}
    if node.attrs["exclusive"]:
        return Recurrence.make([a, g], attrs)
    return add_op(g, Recurrence.make([a, mul_op(a, g)], attrs))


def _make(op: type[Cumulative], inputs: list[Node], axis: Any, exclusive: Any, reverse: Any) -> Made:
    """A node of a cumulative operator. Raises GraphError for arguments of other types, ShapeError for no axis."""
    flags = {"exclusive": flag(op.name, "exclusive", exclusive), "reverse": flag(op.name, "reverse", reverse)}
    node = op.make(inputs, {"axis": integer(op.name, "the axis", axis), **flags})
    if (shape := known_shape(inputs[0])) is not None:
        own_axis(node, len(shape))  # to raise ShapeError where the user wrote it
    return node


def cumsum_op(x: Node, axis: int = -1, exclusive: bool = False, reverse: bool = False) -> Made:
    """The sums of all elements up to each along an axis, in x's shape and dtype; floats are added up in float64.

    `exclusive`: without the element itself. `reverse`: from each element to the last. Raises GraphError for what is no
    axis, ShapeError for one that x has not.
    """
    return _make(Cumsum, [x], axis, exclusive, reverse)


def cumprod_op(x: Node, axis: int = -1, exclusive: bool = False, reverse: bool = False) -> Made:
    """The products of all elements up to each along an axis; see `cumsum_op`."""
    return _make(Cumprod, [x], axis, exclusive, reverse)


def recurrence_op(a: Node, b: Node, axis: int = -1, exclusive: bool = False, reverse: bool = False) -> Made:
    """h with h_i = a_i h_(i-1) + b_i along an axis, from 0 on, as discounted sums and moving means are; a and b are of
    one shape and dtype, of floats. `exclusive`: h_(i-1) at index i. `reverse`: from the last index on, each from the
    one behind. Raises GraphError, ShapeError."""
    return _make(Recurrence, [a, b], axis, exclusive, reverse)
