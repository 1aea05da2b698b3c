"""Sums over axes, softmax and its loss. Maxima and their places: `extrema`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import te, tirx

from . import elementary
from .base import constant, copy, full, pointwise, shape_of


def reduce_axes(
    name: str,
    x: te.Tensor,
    axes: Sequence[int],
    keepdims: bool,
    reducer: Callable[..., tirx.PrimExpr],
    empty: float,
) -> te.Tensor:
    """`reducer` of x over `axes` (non-negative, distinct); `empty` is what nothing reduces to."""
    extents = shape_of(x)
    shape = tuple(
        1 if axis in axes else extent for axis, extent in enumerate(extents) if keepdims or axis not in axes
    )
    if any(extents[axis] == 0 for axis in axes):  # TE would not even write the output
        return full(shape, empty, str(x.dtype))
    if not axes:
        return copy(x)
    reduced = {axis: te.reduce_axis((0, extents[axis]), name=f"k{axis}") for axis in axes}

    def at(*index: Any) -> tirx.PrimExpr:
        rest = iter(index)
        position = []
        for axis in range(len(extents)):
            outer = next(rest) if keepdims or axis not in reduced else None
            position.append(reduced.get(axis, outer))
        return reducer(x(*position), axis=list(reduced.values()))

    return te.compute(shape, at, name=name)


def reduce_sum(x: te.Tensor, axes: Sequence[int], keepdims: bool = False) -> te.Tensor:
    """The sum over `axes` (non-negative, distinct)."""
    return reduce_axes("reduce_sum", x, tuple(axes), keepdims, te.sum, 0.0)


def sum_to(x: te.Tensor, shape: Sequence[int]) -> te.Tensor:
    """The sum of x over what a broadcast from `shape` to x's shape repeats."""
    extents = shape_of(x)
    lead = len(extents) - len(shape)
    inner = [lead + axis for axis, extent in enumerate(shape) if extent == 1 and extents[lead + axis] != 1]
    if not lead:
        return reduce_sum(x, inner, keepdims=True) if inner else copy(x)
    reduced = {axis: te.reduce_axis((0, extents[axis]), name=f"k{axis}") for axis in [*range(lead), *inner]}
    if any(extents[axis] == 0 for axis in reduced):
        return full(shape, 0.0, str(x.dtype))

    def at(*index: Any) -> tirx.PrimExpr:
        position = [reduced[axis] if axis in reduced else index[axis - lead] for axis in range(len(extents))]
        return te.sum(x(*position), axis=list(reduced.values()))

    return te.compute(tuple(shape), at, name="sum_to")


def _largest(x: te.Tensor, axes: Sequence[int]) -> te.Tensor:
    # te.max drops a NaN, depending on its place; exp(x - max) below brings it back into the sum.
    return reduce_axes("row_max", x, tuple(axes), True, te.max, -np.inf)


def _total(x: te.Tensor, axes: Sequence[int]) -> te.Tensor:
    return reduce_axes("row_sum", x, tuple(axes), True, te.sum, 0.0)


def _shifted_exponential(x: te.Tensor) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    """Over the last axis, kept: the maximum, exp(x - maximum) and its sum. Every formula below begins with these same
    stages, so that a kernel of several of them computes them once."""
    axes = (len(x.shape) - 1,)
    largest = _largest(x, axes)
    exponential = pointwise("exponential", lambda v, m: elementary.exp(v - m), x, largest)
    return largest, exponential, _total(exponential, axes)


def softmax(x: te.Tensor) -> te.Tensor:
    """exp(x) / sum(exp(x)) over the last axis, shifted by its maximum."""
    if 0 in shape_of(x):
        return copy(x)
    _, exponential, total = _shifted_exponential(x)
    return pointwise("softmax", lambda e, s: e / s, exponential, total)


def _shifted_and_log_sum(x: te.Tensor) -> tuple[te.Tensor, te.Tensor]:
    """x - max(x) and log(sum(exp(x - max(x)))) over the last axis, the second with that axis kept."""
    largest, _, total = _shifted_exponential(x)
    shifted = pointwise("shifted", lambda v, m: v - m, x, largest)
    return shifted, pointwise("log_sum", elementary.log, total)


def log_softmax(x: te.Tensor) -> te.Tensor:
    """log(softmax(x)) over the last axis, by log-sum-exp."""
    if 0 in shape_of(x):
        return copy(x)
    parts = _shifted_and_log_sum(x)
    return pointwise("log_softmax", lambda v, s: v - s, *parts)


def logsumexp(x: te.Tensor, axes: Sequence[int], keepdims: bool) -> te.Tensor:
    """log(sum(exp(x))) over `axes`, shifted by the maximum where that is finite; -inf for nothing."""
    extents = shape_of(x)
    kept = [axis for axis in range(len(extents)) if axis not in axes]
    shape = tuple(
        1 if axis in axes else n for axis, n in enumerate(extents) if keepdims or axis not in axes
    )
    if 0 in extents:
        return full(shape, -np.inf, str(x.dtype))
    zero = constant(0, x.dtype)
    shift = pointwise("shift", lambda m: tirx.Select(tirx.isfinite(m), m, zero), _largest(x, axes))
    exponential = pointwise("exponential", lambda v, m: elementary.exp(v - m), x, shift)
    total = _total(exponential, axes)

    def at(*index: Any) -> tirx.PrimExpr:
        place: list[Any] = [0] * len(extents)
        for axis in kept:
            place[axis] = index[axis if keepdims else kept.index(axis)]
        return elementary.log(total(*place)) + shift(*place)

    return te.compute(shape, at, name="logsumexp")


def softmax_cross_entropy(logits: te.Tensor, labels: te.Tensor) -> te.Tensor:
    """Shape (1,): the mean over the rows of -sum(labels * log_softmax(logits)), NaN for no rows."""
    extents, dtype = shape_of(logits), str(logits.dtype)
    rows = int(np.prod(extents[:-1], dtype=np.int64))
    if 0 in extents:
        return full((1,), np.nan if rows == 0 else 0.0, dtype)
    terms = pointwise(
        "terms", lambda y, v, s: y * (v - s), labels, *_shifted_and_log_sum(logits)
    )
    # Row by row, then the rows: one long sum would lose terms that are small beside it.
    losses = reduce_axes("row_loss", terms, (len(extents) - 1,), False, te.sum, 0.0)
    k = [te.reduce_axis((0, extent), name=f"k{axis}") for axis, extent in enumerate(extents[:-1])]
    total = te.compute(
        (1,), lambda _: te.sum(losses(*k), axis=k) if k else losses(), name="cross_entropy_sum"
    )
    return te.compute((1,), lambda i: total[i] / constant(-rows, dtype), name="softmax_cross_entropy")
