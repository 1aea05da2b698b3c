"""Sums over axes, maxima and their places, softmax and its losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from tvm import te, tirx

from .base import Expr, constant, copy, full, pointwise, shape_of
from .elementary import exp, log, ordered_bits, turned_bits
from .elementwise import cast, is_float
from .loops import ravelled

Kept = bool | Sequence[int]  # whether axes that are reduced over stay with extent 1, or which of them


def reduce_axes(
    name: str, reducer: Callable[..., Expr], x: te.Tensor, axes: Sequence[int], keepdims: Kept = False
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


def _left(rank: int, axes: Container[int], keepdims: Kept) -> list[int]:
    """The axes that are left of so many when some are reduced over."""
    kept: Container[int] = keepdims if not isinstance(keepdims, bool) else range(rank if keepdims else 0)
    return [axis for axis in range(rank) if axis not in axes or axis in kept]


def _reduced_shape(extents: Sequence[int], axes: Sequence[int], keepdims: Kept) -> tuple[int, ...]:
    """The shape of what is reduced over `axes`."""
    return tuple(1 if axis in axes else extents[axis] for axis in _left(len(extents), axes, keepdims))


def _position(index: Sequence[Any], reduced: Mapping[int, Any], rank: int, keepdims: Kept) -> list[Any]:
    """Where an array is read for an index of what it is reduced to: along the other axes at those of `reduced`."""
    outer = dict(zip(_left(rank, reduced, keepdims), index, strict=True))
    return [reduced.get(axis, outer.get(axis)) for axis in range(rank)]


def reduce_sum(x: te.Tensor, axes: Sequence[int], keepdims: bool = False) -> te.Tensor:
    """The sum over `axes` (non-negative, distinct)."""
    return reduce_axes("reduce_sum", te.sum, x, axes, keepdims)


def _shifted_exponential(
    x: te.Tensor, axes: Sequence[int], shift: Callable[[Expr], Expr] | None = None
) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    """Over axes, kept: the maximum (what `shift` makes of it), exp(x - maximum) and its sum. Every formula below begins
    with these same stages, so that a kernel of several of them computes them once."""
    # te.max drops a NaN, depending on its place; exp(x - max) brings it back into the sum
    largest = reduce_axes("row_max", te.max, x, axes, True)
    largest = pointwise("shift", shift, largest) if shift else largest
    exponential = pointwise("exponential", lambda v, m: exp(v - m), x, largest)
    return largest, exponential, reduce_axes("row_sum", te.sum, exponential, axes, True)


def softmax(x: te.Tensor) -> te.Tensor:
    """exp(x) / sum(exp(x)) over the last axis, shifted by its maximum."""
    if 0 in shape_of(x):
        return copy(x)
    _, exponential, total = _shifted_exponential(x, (len(x.shape) - 1,))
    return pointwise("softmax", lambda e, s: e / s, exponential, total)


def _shifted_and_log_sum(x: te.Tensor) -> tuple[te.Tensor, te.Tensor]:
    """x - max(x) and log(sum(exp(x - max(x)))) over the last axis, the second with that axis kept."""
    largest, _, total = _shifted_exponential(x, (len(x.shape) - 1,))
    shifted = pointwise("shifted", lambda v, m: v - m, x, largest)
    return shifted, pointwise("log_sum", log, total)


def log_softmax(x: te.Tensor) -> te.Tensor:
    """log(softmax(x)) over the last axis, by log-sum-exp."""
    if 0 in shape_of(x):
        return copy(x)
    return pointwise("log_softmax", lambda v, s: v - s, *_shifted_and_log_sum(x))


def logsumexp(x: te.Tensor, axes: Sequence[int], keepdims: bool) -> te.Tensor:
    """log(sum(exp(x))) over `axes`, shifted by the maximum where that is finite; -inf for nothing."""
    extents = shape_of(x)
    shape = _reduced_shape(extents, axes, keepdims)
    if 0 in extents:
        return full(shape, -np.inf, str(x.dtype))
    zero = constant(0, x.dtype)
    shift, _, total = _shifted_exponential(x, axes, lambda m: tirx.Select(tirx.isfinite(m), m, zero))

    def at(*index: Any) -> Expr:
        place = _position(index, dict.fromkeys(axes, 0), len(extents), keepdims)
        return log(total(*place)) + shift(*place)

    return te.compute(shape, at, name="logsumexp")


def softmax_cross_entropy(logits: te.Tensor, labels: te.Tensor) -> te.Tensor:
    """Shape (1,): the mean over the rows of -sum(labels * log_softmax(logits)), NaN for no rows."""
    extents, dtype = shape_of(logits), str(logits.dtype)
    rows = int(np.prod(extents[:-1], dtype=np.int64))
    if 0 in extents:
        return full((1,), np.nan if rows == 0 else 0.0, dtype)
    terms = pointwise("terms", lambda y, v, s: y * (v - s), labels, *_shifted_and_log_sum(logits))
    # Row by row, then the rows: one long sum would lose terms that are small beside it.
    losses = reduce_axes("row_loss", te.sum, terms, (len(extents) - 1,))
    total = reduce_axes("cross_entropy_sum", te.sum, losses, range(len(extents) - 1))
    return te.compute((1,), lambda _: total() / constant(-rows, dtype), name="softmax_cross_entropy")


def _reduced(reducer: Callable[..., Expr], x: te.Tensor, axes: Sequence[int], keepdims: bool = False) -> te.Tensor:
    """The extremum over `axes` (non-negative, distinct, none of them empty), NaN if there is one: of floats by their
    bits, whose order as integers is theirs. `reducer`: te.max or te.min."""
    name, limit = ("reduce_max", tirx.max_value) if reducer is te.max else ("reduce_min", tirx.min_value)
    if not axes or not is_float(x):
        return reduce_axes(name, reducer, x, axes, keepdims)
    dtype = str(x.dtype)
    last = limit("int32" if dtype == "float32" else "int64")
    key = pointwise("key", lambda v: tirx.Select(tirx.isnan(v), last, ordered_bits(v)), x)
    keys = reduce_axes(name, reducer, key, axes, keepdims)
    return pointwise("number", lambda k: tirx.reinterpret(dtype, turned_bits(k)), keys)


def _place(reducer: Callable[..., Expr], x: te.Tensor, axes: Sequence[int], keepdims: bool = False) -> te.Tensor:
    """int64: the first place of the extremum, see `_reduced`, in row-major order of `axes`."""
    extents = shape_of(x)
    shape = _reduced_shape(extents, axes, keepdims)
    count = math.prod(extents[axis] for axis in axes)
    if not axes or 0 in extents:
        return full(shape, 0, "int64")
    wide = count >= 2**31 or str(x.dtype) in ("float64", "int64")  # as wide as x: vectors of one length
    integer = "int64" if wide else "int32"
    extremum = _reduced(reducer, x, axes, True)
    reduced = _axes(extents, axes)

    def at(*index: Any) -> Expr:
        position = _position(index, reduced, len(extents), keepdims)
        flat = ravelled([*reduced.values()], [extents[axis] for axis in reduced])
        value = x(*position)
        found = tirx.EQ(value, extremum(*(0 if axis in reduced else i for axis, i in enumerate(position))))
        if is_float(x):
            found = tirx.any(found, tirx.isnan(value))
        number = (flat + tirx.const(0, "int32")).astype(integer)
        return te.min(tirx.Select(found, number, constant(count, integer)), axis=list(reduced.values()))

    return cast(te.compute(shape, at, name="argmax" if reducer is te.max else "argmin"), "int64")


reduce_max: partial[Any] = partial(_reduced, te.max)
reduce_min: partial[Any] = partial(_reduced, te.min)
argmax: partial[Any] = partial(_place, te.max)
argmin: partial[Any] = partial(_place, te.min)


def _of_class(value: Expr, targets: te.Tensor, index: Any, classes: int, ignore_index: int) -> Expr:
    """The value where the target is a class, 0 where it is ignored, NaN where it is neither."""
    number, dtype = targets(*index), str(targets.dtype)
    limits = np.iinfo(dtype)
    is_class = number >= tirx.const(0, dtype)
    if classes <= limits.max:
        is_class = tirx.all(is_class, number < tirx.const(classes, dtype))
    found = tirx.Select(is_class, value, constant(np.nan, value.ty))
    if not limits.min <= ignore_index <= limits.max:
        return found
    return tirx.Select(number == tirx.const(ignore_index, dtype), constant(0, value.ty), found)


def _is_target(targets: te.Tensor, j: Any, *index: Any) -> Expr:
    """Whether class j is the target, in 32 bits, of which a vector holds as many as of logits."""
    return j == tirx.Cast("int32", targets(*index))


def cross_entropy(logits: te.Tensor, targets: te.Tensor, ignore_index: int = -100) -> te.Tensor:
    """-log_softmax(logits) at the class of each target; 0 where ignored, NaN for a number that is no class."""
    (batch, classes, *rest), dtype = shape_of(logits), str(logits.dtype)
    if 0 in (batch, classes, *rest):
        return full((batch, *rest), np.nan, dtype)
    largest, _, total = _shifted_exponential(logits, (1,))
    log_sum = pointwise("log_sum", log, total)
    zero = constant(0, dtype)

    def term(n: Any, j: Any, *place: Any) -> Expr:  # selected, since 0 * -inf is not 0
        return tirx.Select(_is_target(targets, j, n, *place), logits(n, j, *place) - largest(n, 0, *place), zero)

    sums = reduce_axes("row_loss", te.sum, te.compute(shape_of(logits), term, name="terms"), (1,))

    value = lambda n, *place: log_sum(n, 0, *place) - sums(n, *place)  # noqa: E731
    at = lambda *index: _of_class(value(*index), targets, index, classes, ignore_index)  # noqa: E731
    return te.compute((batch, *rest), at, name="cross_entropy")


def cross_entropy_gradient(
    logits: te.Tensor, targets: te.Tensor, grad: te.Tensor, ignore_index: int = -100
) -> te.Tensor:
    """(softmax(logits) - y) grad, y being 1 at each target's class; 0 where ignored, NaN for a number that is no
    class."""
    shape, dtype = shape_of(logits), str(logits.dtype)
    if 0 in shape:
        return full(shape, 0.0, dtype)
    _, exponential, total = _shifted_exponential(logits, (1,))
    one, zero = constant(1, dtype), constant(0, dtype)

    def at(n: Any, j: Any, *place: Any) -> Expr:
        index, row = (n, j, *place), (n, *place)
        share = exponential(*index) / total(n, 0, *place)
        value = (share - tirx.Select(_is_target(targets, j, n, *place), one, zero)) * grad(*row)
        return _of_class(value, targets, row, shape[1], ignore_index)

    return te.compute(shape, at, name="cross_entropy_gradient")
