"""Sums over axes, maxima and their places; softmax and its loss, for `tvm_op`."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import te, tirx

from .base import Expr, constant, copy, full, pointwise, shape_of
from .elementary import exp, log, ordered_bits, turned_bits
from .elementwise import cast, is_float
from .loops import ravelled


def reduce_axes(
    name: str, reducer: Callable[..., Expr], x: te.Tensor, axes: Sequence[int], keepdims: bool = False
) -> te.Tensor:
    """`reducer` of x over `axes` (non-negative, distinct); of nothing 0."""
    extents = shape_of(x)
    if any(extents[axis] == 0 for axis in axes):  # TE would not even write the output
        return full(_reduced_shape(extents, axes, keepdims), 0.0, str(x.dtype))
    if not axes:
        return copy(x)
    reduced = _axes(extents, axes)

    at = lambda *i: reducer(x(*_position(i, reduced, len(extents), keepdims)), axis=list(reduced.values()))  # noqa: E731
    return te.compute(_reduced_shape(extents, axes, keepdims), at, name=name)


def _axes(extents: Sequence[int], axes: Sequence[int]) -> dict[int, Any]:
    """The indices to reduce over, by axis."""
    return {axis: te.reduce_axis((0, extents[axis]), name=f"k{axis}") for axis in axes}


def _left(rank: int, axes: Container[int], keepdims: bool) -> list[int]:
    """The axes that are left of so many when some are reduced over."""
    return [axis for axis in range(rank) if keepdims or axis not in axes]


def _reduced_shape(extents: Sequence[int], axes: Sequence[int], keepdims: bool) -> tuple[int, ...]:
    """The shape of what is reduced over `axes`."""
    return tuple(1 if axis in axes else extents[axis] for axis in _left(len(extents), axes, keepdims))


def _position(index: Sequence[Any], reduced: Mapping[int, Any], rank: int, keepdims: bool) -> list[Any]:
    """Where an array is read for an index of what it is reduced to: along the other axes at those of `reduced`."""
    outer = dict(zip(_left(rank, reduced, keepdims), index, strict=True))
    return [reduced.get(axis, outer.get(axis)) for axis in range(rank)]


def reduce_sum(x: te.Tensor, axes: Sequence[int], keepdims: bool = False) -> te.Tensor:
    """The sum over `axes` (non-negative, distinct)."""
    return reduce_axes("reduce_sum", te.sum, x, axes, keepdims)


def _shifted_exponential(x: te.Tensor) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    """Over the last axis, kept: the maximum, exp(x - maximum) and its sum."""
    last = (len(x.shape) - 1,)
    # te.max drops a NaN, depending on its place; exp(x - max) brings it back into the sum
    largest = reduce_axes("row_max", te.max, x, last, True)
    exponential = pointwise("exponential", lambda v, m: exp(v - m), x, largest)
    return largest, exponential, reduce_axes("row_sum", te.sum, exponential, last, True)


def softmax(x: te.Tensor) -> te.Tensor:
    """exp(x) / sum(exp(x)) over the last axis, shifted by its maximum."""
    if 0 in shape_of(x):
        return copy(x)
    _, exponential, total = _shifted_exponential(x)
    return pointwise("softmax", lambda e, s: e / s, exponential, total)


def softmax_cross_entropy(logits: te.Tensor, labels: te.Tensor) -> te.Tensor:
    """Shape (1,): the mean over the rows of -sum(labels * log(softmax(logits))), NaN for no rows."""
    extents, dtype = shape_of(logits), str(logits.dtype)
    rows = int(np.prod(extents[:-1], dtype=np.int64))
    if 0 in extents:
        return full((1,), np.nan if rows == 0 else 0.0, dtype)
    largest, _, total = _shifted_exponential(logits)
    log_sum = pointwise("log_sum", log, total)
    terms = pointwise("terms", lambda y, v, m, s: y * (v - m - s), labels, logits, largest, log_sum)
    # Row by row, then the rows: one long sum would lose terms that are small beside it.
    losses = reduce_axes("row_loss", te.sum, terms, (len(extents) - 1,))
    summed = reduce_axes("cross_entropy_sum", te.sum, losses, range(len(extents) - 1))
    return te.compute((1,), lambda _: summed() / constant(-rows, dtype), name="softmax_cross_entropy")


def reduce_max(x: te.Tensor, axes: Sequence[int], keepdims: bool = False) -> te.Tensor:
    """The maximum over `axes` (non-negative, distinct, none of them empty), NaN if there is one: of floats by their
    bits, whose order as integers is theirs."""
    if not axes or not is_float(x):
        return reduce_axes("reduce_max", te.max, x, axes, keepdims)
    dtype = str(x.dtype)
    last = tirx.max_value("int32" if dtype == "float32" else "int64")
    key = pointwise("key", lambda v: tirx.Select(tirx.isnan(v), last, ordered_bits(v)), x)
    keys = reduce_axes("reduce_max", te.max, key, axes, keepdims)
    return pointwise("number", lambda k: tirx.reinterpret(dtype, turned_bits(k)), keys)


def argmax(x: te.Tensor, axes: Sequence[int], keepdims: bool = False) -> te.Tensor:
    """int64: the first place of the maximum, see `reduce_max`, in row-major order of `axes`."""
    extents = shape_of(x)
    shape = _reduced_shape(extents, axes, keepdims)
    count = math.prod(extents[axis] for axis in axes)
    if not axes or 0 in extents:
        return full(shape, 0, "int64")
    wide = count >= 2**31 or str(x.dtype) in ("float64", "int64")  # as wide as x: vectors of one length
    integer = "int64" if wide else "int32"
    largest = reduce_max(x, axes, True)
    reduced = _axes(extents, axes)

    def at(*index: Any) -> Expr:
        position = _position(index, reduced, len(extents), keepdims)
        flat = ravelled([*reduced.values()], [extents[axis] for axis in reduced])
        value = x(*position)
        is_largest = tirx.EQ(value, largest(*(0 if axis in reduced else i for axis, i in enumerate(position))))
        if is_float(x):
            is_largest = tirx.any(is_largest, tirx.isnan(value))
        number = (flat + tirx.const(0, "int32")).astype(integer)
        return te.min(tirx.Select(is_largest, number, constant(count, integer)), axis=list(reduced.values()))

    return cast(te.compute(shape, at, name="argmax"), "int64")
