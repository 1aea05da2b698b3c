"""Comparisons, selections and changes of dtype, at each index.

A comparison with NaN is false, but `!=`. TVM's simplifier holds `x == x` and its like for constant, whatever x is:
a value compared with itself is asked for NaN instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te, tirx

from .base import constant, copy, full, pointwise, shape_of

Compare = Callable[[Any, Any], Any]


def is_float(x: te.Tensor) -> bool:
    """Whether x holds floating point numbers."""
    return str(x.dtype).startswith("float")


def _compare(name: str, function: Compare, a: te.Tensor, b: te.Tensor, of_same: bool) -> te.Tensor:
    """The comparison; `of_same` is what it says of a number and itself."""
    if not a.same_as(b):
        return pointwise(name, function, a, b)
    if not is_float(a) or name in ("less", "greater"):
        return full(shape_of(a), of_same, "bool")
    if of_same:
        return pointwise(name, lambda v: tirx.Not(tirx.isnan(v)), a)
    return pointwise(name, tirx.isnan, a)


def equal(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """a == b."""
    if str(a.dtype) == "bool":  # which TVM would compare as floating point numbers
        return pointwise("equal", lambda u, v: tirx.Select(u, v, tirx.Not(v)), a, b)
    return _compare("equal", lambda u, v: tirx.EQ(u, v), a, b, True)


def not_equal(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """a != b."""
    if str(a.dtype) == "bool":
        return pointwise("not_equal", lambda u, v: tirx.Select(u, tirx.Not(v), v), a, b)
    if is_float(a) and not a.same_as(b):  # TVM's own is false beside NaN
        return pointwise(
            "not_equal", lambda u, v: tirx.any(tirx.isnan(u), tirx.isnan(v), tirx.NE(u, v)), a, b
        )
    return _compare("not_equal", lambda u, v: tirx.NE(u, v), a, b, False)


def less(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """a < b."""
    return _compare("less", lambda u, v: u < v, a, b, False)


def less_equal(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """a <= b."""
    return _compare("less_equal", lambda u, v: u <= v, a, b, True)


def greater(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """a > b."""
    return _compare("greater", lambda u, v: u > v, a, b, False)


def greater_equal(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """a >= b."""
    return _compare("greater_equal", lambda u, v: u >= v, a, b, True)


def logical_and(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """a and b, of booleans."""
    return pointwise("logical_and", lambda u, v: tirx.And(u, v), a, b)


def logical_or(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """a or b, of booleans."""
    return pointwise("logical_or", lambda u, v: tirx.Or(u, v), a, b)


def logical_not(x: te.Tensor) -> te.Tensor:
    """not x, of booleans."""
    return pointwise("logical_not", lambda v: tirx.Not(v), x)


def where(condition: te.Tensor, a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """a where the condition holds, else b."""
    return pointwise("where", lambda c, u, v: tirx.Select(c, u, v), condition, a, b)


def maximum(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """The larger; NaN if either is."""
    if a.same_as(b):
        return copy(a)
    if not is_float(a):
        return pointwise("maximum", lambda u, v: tirx.Select(u > v, u, v), a, b)
    return pointwise("maximum", lambda u, v: tirx.Select(tirx.any(u > v, tirx.isnan(u)), u, v), a, b)


def minimum(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """The smaller; NaN if either is."""
    if a.same_as(b):
        return copy(a)
    if not is_float(a):
        return pointwise("minimum", lambda u, v: tirx.Select(u < v, u, v), a, b)
    return pointwise("minimum", lambda u, v: tirx.Select(tirx.any(u < v, tirx.isnan(u)), u, v), a, b)


def clip(x: te.Tensor, low: float | None, high: float | None) -> te.Tensor:
    """x within the bounds, NaN kept; `high` where low > high."""

    def at(v: tirx.PrimExpr) -> tirx.PrimExpr:
        if low is not None:
            least = constant(low, x.dtype)
            v = tirx.Select(v < least, least, v)
        if high is not None:
            most = constant(high, x.dtype)
            v = tirx.Select(v > most, most, v)
        return v

    return pointwise("clip", at, x)


def cast(x: te.Tensor, dtype: str) -> te.Tensor:
    """x in another dtype: of a fraction the part before the point, of a number whether it is not 0."""
    source = str(x.dtype)
    if source == dtype:
        return copy(x)
    if dtype == "bool":
        return not_equal(x, full((), 0, source))
    if dtype.startswith("uint") and is_float(x):  # by way of int64, so that negative numbers wrap around
        return pointwise("cast", lambda v: v.astype("int64").astype(dtype), x)
    return pointwise("cast", lambda v: v.astype(dtype), x)
