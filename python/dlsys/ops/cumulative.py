"""Sums and products of all elements up to each, along an axis, and the recurrence that their gradients are.

All take `exclusive`, without the element's own, and `reverse`, from the last element on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import compute
from ..checks import flag, integer
from ..errors import ShapeError
from ..graph import NUMBERS, Made, Node, Shape
from .primitive import primitive
from .replay import function
from .rules import axes_of

Reference = Callable[..., np.ndarray]


def _accumulated(function: Callable[..., np.ndarray], start: int) -> Reference:
    """NumPy's function of sums or products, which are `start` of nothing."""

    def reference(x: np.ndarray, axis: int, exclusive: bool, reverse: bool) -> np.ndarray:
        terms = np.flip(x, axis) if reverse else x
        totals = function(terms, axis, dtype="float64" if x.dtype.kind == "f" else x.dtype)
        if exclusive:
            totals = np.roll(totals, 1, axis)
            totals[(slice(None),) * axis + (slice(0, 1),)] = start
        return (np.flip(totals, axis) if reverse else totals).astype(x.dtype)

    return reference


def _recurrence(a: np.ndarray, b: np.ndarray, axis: int, exclusive: bool, reverse: bool) -> np.ndarray:
    """y_i = a_i y_(i-1) + b_i along an axis by NumPy, step by step in float64."""
    factors, terms = (np.moveaxis(x, axis, 0).astype("float64") for x in (a, b))
    values, value = np.empty_like(terms), np.zeros(terms.shape[1:])
    for i in range(len(values))[:: -1 if reverse else 1]:
        following = factors[i] * value + terms[i]
        values[i], value = value if exclusive else following, following
    return np.moveaxis(values, 0, axis).astype(a.dtype)


def _one_shape(a: Shape, b: Shape, **_: Any) -> Shape:
    if a != b:
        raise ShapeError(f"shapes differ: {a} and {b}")
    return a


def _backwards(a: Node, g: Node, axis: int, exclusive: bool, reverse: bool) -> Made:
    """The gradient d_i of h_i, where h_(i+1) = a_(i+1) h_i + ...: d_i = g_i + a_(i+1) d_(i+1); where h_i is the result
    number i + 1, if exclusive, d_i = g_(i+1) + a_(i+1) d_(i+1)."""
    if exclusive:
        return recurrence(a, g, axis=axis, exclusive=True, reverse=not reverse)
    return g + recurrence(a, a * g, axis=axis, exclusive=True, reverse=not reverse)


def _of_cumprod(g: Node, y: Node, x: Node, axis: int, exclusive: bool, reverse: bool) -> Made:
    """y_(i-1) times the gradient of y_i, in which all later ones take part, a recurrence: without a quotient, so that
    zeros are no exception."""
    return cumprod(x, axis=axis, exclusive=True, reverse=reverse) * _backwards(x, g, axis, exclusive, reverse)


def _of_recurrence(
    g: Node, y: Node, a: Node, b: Node, axis: int, exclusive: bool, reverse: bool
) -> tuple[Made, Made]:
    """db, the gradient of h_i, is a recurrence from the other end, da_i = db_i h_(i-1)."""
    of_term = _backwards(a, g, axis, exclusive, reverse)
    return of_term * recurrence(a, b, axis=axis, exclusive=True, reverse=reverse), of_term


def _of_cumsum(g: Node, y: Node, x: Node, axis: int, exclusive: bool, reverse: bool) -> Made:
    """The same sum from the other end."""
    return cumsum(g, axis=axis, exclusive=exclusive, reverse=not reverse)


cumsum = primitive(
    "cumsum", numpy=_accumulated(np.cumsum, 0), te=compute.cumsum, grad=_of_cumsum,
    kind="single", dtypes=NUMBERS, onnx="CumSum", doc="y_i = y_(i-1) + x_i, 0 before the first; y_(i-1) if exclusive.",
)  # fmt: skip
cumprod = primitive(
    "cumprod", numpy=_accumulated(np.cumprod, 1), te=compute.cumprod, grad=_of_cumprod,
    kind="single", dtypes=NUMBERS, doc="y_i = y_(i-1) x_i, 1 before the first; y_(i-1) if exclusive.",
)  # fmt: skip
recurrence = primitive(
    "recurrence", numpy=_recurrence, te=compute.recurrence, grad=_of_recurrence, shape=_one_shape,
    kind="single", doc="h_i = a_i h_(i-1) + b_i, 0 before the first; h_(i-1) if exclusive.",
)  # fmt: skip


def _attributes(op: str, x: Node, axis: Any, exclusive: Any, reverse: Any) -> dict[str, Any]:
    """The attributes of a cumulative operator. Raises GraphError for arguments of other types, ShapeError for no
    axis."""
    along = axes_of(op, x, integer(op, "the axis", axis))
    if not along:
        raise ShapeError(f"{op}: {x.name} has no axis")
    return {"axis": along[0], "exclusive": flag(op, "exclusive", exclusive), "reverse": flag(op, "reverse", reverse)}


@function()
def cumsum_op(x: Node, axis: int = -1, exclusive: bool = False, reverse: bool = False) -> Made:
    """The sums of all elements up to each along an axis, in x's shape and dtype; floats are added up in float64.

    `exclusive`: without the element itself. `reverse`: from each element to the last. Raises GraphError for what is no
    axis, ShapeError for one that x has not.
    """
    return cumsum(x, **_attributes("cumsum", x, axis, exclusive, reverse))


@function()
def cumprod_op(x: Node, axis: int = -1, exclusive: bool = False, reverse: bool = False) -> Made:
    """The products of all elements up to each along an axis; see `cumsum_op`."""
    return cumprod(x, **_attributes("cumprod", x, axis, exclusive, reverse))


@function()
def recurrence_op(a: Node, b: Node, axis: int = -1, exclusive: bool = False, reverse: bool = False) -> Made:
    """h with h_i = a_i h_(i-1) + b_i along an axis, from 0 on, as discounted sums and moving means are; a and b are of
    one shape and dtype, of floats. `exclusive`: h_(i-1) at index i. `reverse`: from the last index on, each from the
    one behind. Raises GraphError, ShapeError."""
    return recurrence(a, b, **_attributes("recurrence", a, axis, exclusive, reverse))
