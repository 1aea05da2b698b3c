"""Maxima and means over windows of images, NCHW, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
from tvm import te, tirx

from . import Windows
from .base import Shape, constant, full, shape_of
from .loops import Buffer, Expr, Source, loop, nest, program, sequence, unravelled
from .reduction import reduce_max, reduce_min, reduce_sum

Spans = tuple[Windows, Windows]

UNROLLED = 16  # elements of a window up to which it is one expression, which runs along vectors


def _inside(w: Spans, place: Sequence[Any]) -> list[Expr]:
    """The condition under which `place` lies inside the image; nothing where windows lie inside it."""
    found = []
    for windows, at in zip(w, place, strict=True):
        if windows.padding:
            found += [at >= 0, at < windows.extent]
    return found


def _read(x: te.Tensor, lead: Sequence[Any], o: Sequence[Any], ij: Sequence[Any], w: Spans, fill: float) -> Expr:
    """Element (i, j) of the windows o; `fill` where that does not lie inside."""
    place = [windows.begin(a) + b for windows, a, b in zip(w, o, ij, strict=True)]
    value, inside = x(*lead, *place), _inside(w, place)
    return tirx.if_then_else(tirx.all(*inside), value, constant(fill, x.dtype)) if inside else value


def largest(values: list[Expr]) -> Expr:
    """The maximum of numbers, NaN if there is one, which TVM's `max` drops, depending on its place."""
    dtype = str(values[0].ty)
    numbers = tirx.all(*(v <= constant(np.inf, dtype) for v in values))
    return tirx.Select(numbers, reduce(tirx.max, values), constant(np.nan, dtype))


def max_pool(x: te.Tensor, rows: Windows, columns: Windows) -> te.Tensor:
    """The maxima of the windows, NaN where there is one; what lies outside the images is -inf."""
    w = (rows, columns)
    return _of_windows(x, w, lambda n, c, o, ij: _read(x, (n, c), o, ij, w, -np.inf), largest, reduce_max)


def max_pool_place(x: te.Tensor, maxima: te.Tensor, rows: Windows, columns: Windows) -> te.Tensor:
    """int32: where in its image, in row-major order, each window has its first maximum; the last place of the image for
    what is no maximum."""
    w, last = (rows, columns), constant(rows.extent * columns.extent - 1, "int32")

    def number(n: Any, c: Any, o: Sequence[Any], ij: Sequence[Any]) -> Expr:
        place = [windows.begin(a) + i for windows, a, i in zip(w, o, ij, strict=True)]
        value, inside = x(n, c, *place), _inside(w, place)
        found = tirx.any(value == maxima(n, c, *o), tirx.isnan(value))  # where there is a NaN, that is the maximum
        own = tirx.Select(found, place[0] * columns.extent + place[1], last)
        return tirx.if_then_else(tirx.all(*inside), own, last) if inside else own

    return _of_windows(x, w, number, lambda values: reduce(tirx.min, values), reduce_min)


def max_pool_select(values: te.Tensor, place: te.Tensor) -> te.Tensor:
    """Of each window the one of `values` that lies at its place."""
    shape, inner = shape_of(place), shape_of(values)[2:]
    if 0 in shape:
        return full(shape, 0.0, str(values.dtype))
    return te.compute(
        shape, lambda n, c, o, q: values(n, c, *unravelled(place(n, c, o, q), inner)), name="max_pool_select"
    )


def max_pool_gradient(grad: te.Tensor, place: te.Tensor, shape: Shape) -> te.Tensor:
    """Images of `shape`, zeros, to which each window's gradient is added at its place."""
    (batch, channels, *inner), windows, dtype = shape, shape_of(grad)[2:], str(grad.dtype)
    if 0 in shape or 0 in windows:
        return full(shape, 0.0, dtype)

    def body(sources: list[Source], out: Buffer) -> tirx.Stmt:
        def image(number: Expr) -> tirx.Stmt:
            lead = unravelled(number, (batch, channels))

            def add(o: list[Expr]) -> tirx.Stmt:
                grad, place = (source.load([*lead, *o]) for source in sources)
                target = [*lead, *unravelled(place, tuple(inner))]
                return tirx.BufferStore(out, tirx.BufferLoad(out, target) + grad, target)

            zero = nest(tuple(inner), lambda at: tirx.BufferStore(out, constant(0, dtype), [*lead, *at]))
            return sequence([zero, nest(windows, add, ordered=True)])

        return loop(batch * channels, image, math.prod(shape))

    return program("max_pool_gradient", shape, dtype, [grad, place], body)


def mean_pool(x: te.Tensor, rows: Windows, columns: Windows) -> te.Tensor:
    """The means of the windows, in which what lies outside the images counts as zeros."""
    w, share = (rows, columns), constant(1 / (rows.size * columns.size), x.dtype)
    sums = _of_windows(x, w, lambda n, c, o, ij: _read(x, (n, c), o, ij, w, 0.0), sum, reduce_sum)
    return te.compute(shape_of(sums), lambda *index: sums(*index) * share, name="mean_pool")


def mean_pool_gradient(grad: te.Tensor, shape: Shape, rows: Windows, columns: Windows) -> te.Tensor:
    """Of each element of images of `shape` the sum of the gradients of the windows over it, each divided as there."""
    w, dtype = (rows, columns), str(grad.dtype)
    if 0 in shape or 0 in shape_of(grad):
        return full(shape, 0.0, dtype)
    share = constant(1 / (rows.size * columns.size), dtype)

    def term(n: Any, c: Any, at: Sequence[Any], steps: Sequence[Any]) -> Expr:
        o = [span.first_over(i) + k for span, i, k in zip(w, at, steps, strict=True)]
        over = []
        for span, i, a in zip(w, at, o, strict=True):
            over += [a >= 0, a < span.count, span.begin(a) <= i, i < span.begin(a) + span.size]
        return tirx.if_then_else(tirx.all(*over), grad(n, c, *o), constant(0, dtype))

    sums = _terms(shape, (rows.covering, columns.covering), term, sum, reduce_sum)
    return te.compute(shape, lambda *index: sums(*index) * share, name="mean_pool_gradient")


Term = Callable[[Any, Any, Sequence[Any], Sequence[Any]], Expr]
Reduced = Callable[[te.Tensor, tuple[int, int]], te.Tensor]


def _of_windows(x: te.Tensor, w: Spans, term: Term, few: Callable[[list[Expr]], Expr], many: Reduced) -> te.Tensor:
    """Of images a value for each window, from a term for each of its elements, see `_terms`."""
    return _terms((*shape_of(x)[:2], w[0].count, w[1].count), (w[0].size, w[1].size), term, few, many)


def _terms(
    shape: Shape, counts: tuple[int, int], term: Term, few: Callable[[list[Expr]], Expr], many: Reduced
) -> te.Tensor:
    """At each index (n, c, y, z) what `few` makes of term(n, c, (y, z), (i, j)), i and j below the counts, in one
    expression, or where they are many the reduction `many`."""
    if 0 not in shape and counts[0] * counts[1] > UNROLLED:
        each = te.compute((*shape, *counts), lambda n, c, y, z, *ij: term(n, c, (y, z), ij), name="terms")
        return many(each, (4, 5))
    return te.compute(shape, lambda n, c, *at: few([term(n, c, at, ij) for ij in np.ndindex(counts)]), name="windows")
