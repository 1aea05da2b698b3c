"""Maxima and means over windows of images, and their gradients; of images NCHW where nothing else is said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np
from tvm import te, tirx

from .base import FIRST, Expr, Pair, Shape, constant, full, inside, read_padded, shape_of
from .elementwise import mul_by_const
from .loops import scatter_add
from .reduction import reduce_axes, reduce_max, reduce_sum
from .windows import Windows, windows_of

Spans = tuple[Windows, Windows]

UNROLLED = 16  # elements of a window up to which it is one expression, which runs along vectors


def _element(w: Spans, index: Sequence[Any], axes: Pair, ij: Sequence[Any]) -> list[Any]:
    """Where element (i, j) of the window lies that stands at an index."""
    found = list(index)
    for axis, windows, k in zip(axes, w, ij, strict=True):
        found[axis] = windows.begin(found[axis]) + k
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
    w = windows_of([shape[axis] for axis in axes], kernel, stride, padding)
    for axis, windows in zip(axes, w, strict=True):
        shape[axis] = windows.count
    term = lambda index, ij: read_padded(x, _element(w, index, axes, ij), axes, padding, fill)  # noqa: E731
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
    w, last = windows_of((height, width), kernel, stride, padding), constant(height * width - 1, "int32")

    def number(index: Sequence[Any], ij: Sequence[Any]) -> Expr:
        place = _element(w, index, FIRST, ij)
        value = x(*place)
        found = tirx.any(value == maxima(*index), tirx.isnan(value))  # where there is a NaN, that is the maximum
        own = tirx.Select(found, place[2] * width + place[3], last)
        return inside(own, last, place, shape_of(x), FIRST, padding)

    smallest = partial(reduce_axes, "reduce_min", te.min)
    return _terms(shape_of(maxima), kernel, number, partial(reduce, tirx.min), smallest)


def max_pool_gradient(grad: te.Tensor, place: te.Tensor, shape: Shape) -> te.Tensor:
    """Images of `shape`, zeros, to which each window's gradient is added at its place."""
    return scatter_add("max_pool_gradient", grad, place, shape, (2, 4), lambda place: place)


def mean_pool_gradient(grad: te.Tensor, shape: Shape, kernel: Pair, stride: Pair, padding: Pair) -> te.Tensor:
    """Of each element of images of `shape` the sum of the gradients of the windows over it, each divided as there."""
    w, dtype = windows_of(shape[2:], kernel, stride, padding), str(grad.dtype)
    if 0 in shape or 0 in shape_of(grad):
        return full(shape, 0.0, dtype)

    def term(index: Sequence[Any], steps: Sequence[Any]) -> Expr:
        o, over = list(index), []
        for axis, span, k in zip(FIRST, w, steps, strict=True):
            i, a = index[axis], span.first_over(index[axis]) + k
            o[axis] = a
            over += [a >= 0, a < span.count, span.begin(a) <= i, i < span.begin(a) + span.size]
        return tirx.if_then_else(tirx.all(*over), grad(*o), constant(0, dtype))

    sums = _terms(shape, (w[0].covering, w[1].covering), term, sum, reduce_sum)
    return mul_by_const(sums, 1 / (kernel[0] * kernel[1]))


def _terms(shape: Shape, counts: Pair, term: Term, few: Few, many: Many | None) -> te.Tensor:
    """At each index what `few` makes of term(index, (i, j)), i and j below the counts, in one expression, or where they
    are many the reduction `many`, if there is one."""
    if many and 0 not in shape and counts[0] * counts[1] > UNROLLED:
        each = te.compute((*shape, *counts), lambda *index: term(index[:4], index[4:]), name="terms")
        return many(each, (4, 5))
    return te.compute(shape, lambda *index: few([term(index, ij) for ij in np.ndindex(counts)]), name="windows")
