"""Maxima and minima over axes, and where they lie.

TVM's `max` drops a NaN, depending on its place. So floating point numbers are compared as integers: their bits, of
negative numbers all but the sign turned over, are in the numbers' order, and NaN is made the last of them. Such a
reduction is one plain integer maximum, which the schedules cut and vectorize as they do a sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import te, tirx

from .base import constant, full, pointwise, shape_of
from .elementary import bound
from .elementwise import cast, is_float
from .reduction import reduce_axes


def _turned(bits: tirx.PrimExpr, integer: str) -> tirx.PrimExpr:
    """Negative numbers' bits without the sign turned over; turned twice they are as before."""
    width, most = (32, 2**31 - 1) if integer == "int32" else (64, 2**63 - 1)
    return bits ^ ((bits >> tirx.const(width - 1, integer)) & tirx.const(most, integer))


def _reduced(x: te.Tensor, axes: Sequence[int], keepdims: bool, largest: bool) -> te.Tensor:
    """The extremum over axes, NaN if there is one: of floats by their bits, whose order as integers is theirs."""
    reducer, name = (te.max, "reduce_max") if largest else (te.min, "reduce_min")
    if not axes or not is_float(x):
        return reduce_axes(name, x, tuple(axes), keepdims, reducer, 0.0)
    dtype = str(x.dtype)
    integer = "int32" if dtype == "float32" else "int64"
    last = tirx.max_value(integer) if largest else tirx.min_value(integer)

    def key(v: tirx.PrimExpr) -> tirx.PrimExpr:
        ordered = bound(tirx.reinterpret(integer, v), lambda bits: _turned(bits, integer))
        return tirx.Select(tirx.isnan(v), last, ordered)

    keys = reduce_axes(name, pointwise("key", key, x), tuple(axes), keepdims, reducer, 0.0)
    return pointwise("number", lambda k: tirx.reinterpret(dtype, _turned(k, integer)), keys)


def reduce_max(x: te.Tensor, axes: Sequence[int], keepdims: bool = False) -> te.Tensor:
    """The maximum over `axes` (non-negative, distinct, none of them empty), NaN if there is one."""
    return _reduced(x, axes, keepdims, True)


def reduce_min(x: te.Tensor, axes: Sequence[int], keepdims: bool = False) -> te.Tensor:
    """The minimum over `axes` (non-negative, distinct, none of them empty), NaN if there is one."""
    return _reduced(x, axes, keepdims, False)


def _place(name: str, x: te.Tensor, axes: Sequence[int], keepdims: bool, largest: bool) -> te.Tensor:
    """int64: the first place of the extremum in row-major order of `axes`: the least at which it is found."""
    extents = shape_of(x)
    shape = tuple(1 if axis in axes else n for axis, n in enumerate(extents) if keepdims or axis not in axes)
    count = math.prod(extents[axis] for axis in axes)
    if not axes or 0 in extents:
        return full(shape, 0, "int64")
    wide = count >= 2**31 or str(x.dtype) in ("float64", "int64")  # as wide as x: vectors of one length
    integer = "int64" if wide else "int32"
    extremum = _reduced(x, axes, True, largest)
    reduced = {axis: te.reduce_axis((0, extents[axis]), name=f"k{axis}") for axis in axes}

    def at(*index: Any) -> tirx.PrimExpr:
        rest = iter(index)
        position: list[Any] = []
        for axis in range(len(extents)):
            outer = next(rest) if keepdims or axis not in reduced else None
            position.append(reduced.get(axis, outer))
        flat: Any = 0
        for axis in reduced:
            flat = flat * extents[axis] + reduced[axis]
        value = x(*position)
        found = tirx.EQ(value, extremum(*(0 if axis in reduced else i for axis, i in enumerate(position))))
        if is_float(x):
            found = tirx.any(found, tirx.isnan(value))
        number = (flat + tirx.const(0, "int32")).astype(integer)
        return te.min(tirx.Select(found, number, constant(count, integer)), axis=list(reduced.values()))

    return cast(te.compute(shape, at, name=name), "int64")


def argmax(x: te.Tensor, axes: Sequence[int], keepdims: bool = False) -> te.Tensor:
    """Where the maximum lies first, counted in row-major order of `axes`; NaN is the maximum."""
    return _place("argmax", x, axes, keepdims, True)


def argmin(x: te.Tensor, axes: Sequence[int], keepdims: bool = False) -> te.Tensor:
    """Where the minimum lies first, counted in row-major order of `axes`; NaN is the minimum."""
    return _place("argmin", x, axes, keepdims, False)
