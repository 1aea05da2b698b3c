"""Maxima and means over windows of images, NCHW where nothing else is said. Window o of an axis begins at
o * stride - padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np
from tvm import te, tirx

from .base import FIRST, Expr, Pair, Shape, constant, inside, read_padded, shape_of
from .elementwise import mul_by_const
from .reduction import reduce_axes, reduce_max, reduce_sum

UNROLLED = 16  # elements of a window up to which it is one expression, which runs along vectors


def _element(index: Sequence[Any], axes: Pair, stride: Pair, padding: Pair, ij: Sequence[Any]) -> list[Any]:
    """Where element (i, j) of the window lies that stands at an index."""
    found = list(index)
    for axis, s, p, k in zip(axes, stride, padding, ij, strict=True):
        found[axis] = found[axis] * s - p + k
    return found


Term = Callable[[Sequence[Any], Sequence[Any]], Expr]
Few = Callable[[list[Expr]], Expr]
Many = Callable[[te.Tensor, tuple[int, int]], te.Tensor]


def largest(values: list[Expr]) -> Expr:
    """The maximum of numbers, NaN if there is one, which TVM's `max` drops, depending on its place."""
    dtype = str(values[0].ty)
    numbers = tirx.all(*(v <= constant(np.inf, dtype) for v in values))
    return tirx.Select(numbers, reduce(tirx.max, values), constant(np.nan, dtype))


def _pool(
    x: te.Tensor, kernel: Pair, stride: Pair, padding: Pair, axes: Pair, fill: float, few: Few, many: Many
) -> te.Tensor:
    """Of each window what `few` or `many` make of its elements, `fill` beyond the images, see `_terms`."""
    shape = list(shape_of(x))
    for axis, k, s, p in zip(axes, kernel, stride, padding, strict=True):
        shape[axis] = (shape[axis] + 2 * p - k) // s + 1
    term = lambda index, ij: read_padded(x, _element(index, axes, stride, padding, ij), axes, padding, fill)  # noqa: E731
    return _terms(tuple(shape), kernel, term, few, many if axes == FIRST else None)


def max_pool(x: te.Tensor, kernel: Pair, stride: Pair, padding: Pair, axes: Pair = FIRST) -> te.Tensor:
    """The maxima of the windows, NaN where there is one; what lies outside the images is -inf."""
    return _pool(x, kernel, stride, padding, axes, -np.inf, largest, reduce_max)


def mean_pool(x: te.Tensor, kernel: Pair, stride: Pair, padding: Pair, axes: Pair = FIRST) -> te.Tensor:
    """The means of the windows, in which what lies outside the images counts as zeros."""
    total = _pool(x, kernel, stride, padding, axes, 0.0, sum, reduce_sum)
    return mul_by_const(total, 1 / (kernel[0] * kernel[1]))


def max_pool_place(x: te.Tensor, maxima: te.Tensor, kernel: Pair, stride: Pair, padding: Pair) -> te.Tensor:
    """int32: where in its image each window has its first maximum; the last place for what is no maximum."""
    height, width = shape_of(x)[2:]
    last = constant(height * width - 1, "int32")

    def number(index: Sequence[Any], ij: Sequence[Any]) -> Expr:
        place = _element(index, FIRST, stride, padding, ij)
        value = x(*place)
        found = tirx.any(value == maxima(*index), tirx.isnan(value))  # where there is a NaN, that is the maximum
        own = tirx.Select(found, place[2] * width + place[3], last)
        return inside(own, last, place, shape_of(x), FIRST, padding)

    smallest = partial(reduce_axes, "reduce_min", te.min)
    return _terms(shape_of(maxima), kernel, number, partial(reduce, tirx.min), smallest)


def _terms(shape: Shape, counts: Pair, term: Term, few: Few, many: Many | None) -> te.Tensor:
    """At each index what `few` makes of term(index, (i, j)), i and j below the counts, in one expression, or where they
    are many the reduction `many`, if there is one."""
    if many and 0 not in shape and counts[0] * counts[1] > UNROLLED:
        each = te.compute((*shape, *counts), lambda *index: term(index[:4], index[4:]), name="terms")
        return many(each, (4, 5))
    return te.compute(shape, lambda *index: few([term(index, ij) for ij in np.ndindex(counts)]), name="windows")
