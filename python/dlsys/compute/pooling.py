"""Maxima and means over windows of images, NCHW, and their gradients."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from tvm import te, tirx

from .base import Shape, constant, full, shape_of
from .loops import Buffer, Expr, Source, loop, nest, program, sequence, unravelled

Spans = tuple["Windows", "Windows"]

UNROLLED = 16  # elements of a window up to which it is one expression, which runs along vectors


@dataclass(frozen=True)
class Windows:
    """The windows along one axis of images: number o begins at o * stride - padding and has `size` elements.

    Attributes:
        extent: of the axis.
        count: of windows.
    """

    extent: int
    count: int
    size: int
    stride: int
    padding: int

    def begin(self, o: Any) -> Any:
        """Where window o begins, which may be before the axis does."""
        return o * self.stride - self.padding

    @property
    def covering(self) -> int:
        """The most windows that cover one element."""
        return -(-self.size // self.stride)

    def first_over(self, i: Any) -> Any:
        """A window before which none covers element i; it may be negative."""
        return tirx.floordiv(i + self.padding, self.stride) - (self.covering - 1)


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


def max_pool(x: te.Tensor, rows: Windows, columns: Windows) -> te.Tensor:
    """The maxima of the windows, NaN where there is one; what lies outside the images is -inf."""
    (batch, channels, *_), w = shape_of(x), (rows, columns)
    shape = (batch, channels, rows.count, columns.count)
    if 0 in shape:
        return full(shape, 0.0, str(x.dtype))
    if rows.size * columns.size > UNROLLED:
        return _by_windows(
            "max_pool", shape, [x], w, lambda v, out, index, best, _: tirx.BufferStore(out, best, index)
        )

    def at(n: Any, c: Any, *o: Any) -> Expr:
        values = [_read(x, (n, c), o, ij, w, -np.inf) for ij in np.ndindex(rows.size, columns.size)]
        largest = reduce(tirx.max, values)  # which drops a NaN, depending on its place
        return tirx.Select(tirx.any(*(tirx.isnan(v) for v in values)), constant(np.nan, x.dtype), largest)

    return te.compute(shape, at, name="max_pool")


def max_pool_gradient(x: te.Tensor, grad: te.Tensor, rows: Windows, columns: Windows) -> te.Tensor:
    """Zeros, to which each window's gradient is added where its maximum lies first."""
    shape, inner = shape_of(x), shape_of(x)[2:]
    if 0 in shape or 0 in shape_of(grad):
        return full(shape, 0.0, str(x.dtype))

    def add(sources: list[Source], out: Buffer, index: list[Expr], best: Expr, place: Expr) -> tirx.Stmt:
        target = [*index[:2], *unravelled(place, inner)]
        total = tirx.BufferLoad(out, target) + sources[1].load(index)
        return tirx.BufferStore(out, total, target)

    return _by_windows("max_pool_gradient", shape, [x, grad], (rows, columns), add, clear=True)


def max_pool_select(x: te.Tensor, values: te.Tensor, rows: Windows, columns: Windows) -> te.Tensor:
    """Of each window the one of `values`, of x's shape, that lies where x has its first maximum."""
    (batch, channels, *inner) = shape_of(x)
    shape = (batch, channels, rows.count, columns.count)
    if 0 in shape:
        return full(shape, 0.0, str(x.dtype))

    def pick(sources: list[Source], out: Buffer, index: list[Expr], best: Expr, place: Expr) -> tirx.Stmt:
        value = sources[1].load([*index[:2], *unravelled(place, tuple(inner))])
        return tirx.BufferStore(out, value, index)

    return _by_windows("max_pool_select", shape, [x, values], (rows, columns), pick)


Step = Callable[[list[Source], Buffer, list[Expr], Expr, Expr], tirx.Stmt]


def _by_windows(
    name: str, shape: Shape, inputs: Sequence[te.Tensor], w: Spans, step: Step, clear: bool = False
) -> te.Tensor:
    """Loops over the windows of the first input, image by image, that find the maximum and the number, in row-major
    order, of the element of the image where it lies first; what is done with them `step` says."""
    batch, channels, *inner = shape_of(inputs[0])
    dtype, (rows, columns) = str(inputs[0].dtype), w
    windows = (rows.count, columns.count)

    def body(sources: list[Source], out: Buffer) -> tirx.Stmt:
        def image(number: Expr) -> tirx.Stmt:
            lead = unravelled(number, (batch, channels))

            def window(o: list[Expr]) -> tirx.Stmt:
                best, place = tirx.decl_buffer((1,), dtype, "best"), tirx.decl_buffer((1,), "int32", "place")
                begins = [span.begin(a) for span, a in zip(w, o, strict=True)]

                def look(ij: list[Expr]) -> tirx.Stmt:
                    at = [begin + i for begin, i in zip(begins, ij, strict=True)]
                    value, most = sources[0].load([*lead, *at]), tirx.BufferLoad(best, [0])
                    first = tirx.BufferLoad(place, [0]) < 0
                    better = tirx.any(
                        first, value > most, tirx.all(tirx.isnan(value), tirx.Not(tirx.isnan(most)))
                    )
                    take = [
                        tirx.BufferStore(best, value, [0]),
                        tirx.BufferStore(place, at[0] * inner[1] + at[1], [0]),
                    ]
                    found = tirx.IfThenElse(better, sequence(take), None)
                    inside = _inside(w, at)
                    return tirx.IfThenElse(tirx.all(*inside), found, None) if inside else found

                start = [tirx.AllocBuffer(best), tirx.AllocBuffer(place)]
                start += [tirx.BufferStore(best, constant(-np.inf, dtype), [0])]
                start += [tirx.BufferStore(place, tirx.const(-1, "int32"), [0])]
                result = (tirx.BufferLoad(best, [0]), tirx.BufferLoad(place, [0]))
                return sequence(
                    [*start, nest((rows.size, columns.size), look), step(sources, out, [*lead, *o], *result)]
                )

            zero = nest(tuple(inner), lambda at: tirx.BufferStore(out, constant(0, dtype), [*lead, *at]))
            return sequence([zero, nest(windows, window)]) if clear else nest(windows, window)

        work = batch * channels * rows.count * columns.count * rows.size * columns.size
        return loop(batch * channels, image, work)

    return program(name, shape, dtype, inputs, body)


def mean_pool(x: te.Tensor, rows: Windows, columns: Windows) -> te.Tensor:
    """The means of the windows, in which what lies outside the images counts as zeros."""
    (batch, channels, *_), w, dtype = shape_of(x), (rows, columns), str(x.dtype)
    shape, share = (batch, channels, rows.count, columns.count), constant(1 / (rows.size * columns.size), x.dtype)
    if 0 in shape:
        return full(shape, 0.0, dtype)
    sums = _summed(shape, (rows.size, columns.size), lambda n, c, o, ij: _read(x, (n, c), o, ij, w, 0.0))
    return te.compute(shape, lambda *index: sums(*index) * share, name="mean_pool")


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

    sums = _summed(shape, (rows.covering, columns.covering), term)
    return te.compute(shape, lambda *index: sums(*index) * share, name="mean_pool_gradient")


Term = Callable[[Any, Any, Sequence[Any], Sequence[Any]], Expr]


def _summed(shape: Shape, counts: tuple[int, int], term: Term) -> te.Tensor:
    """At each index (n, c, y, z) the sum of term(n, c, (y, z), (i, j)) over i and j below the counts."""
    if counts[0] * counts[1] > UNROLLED:
        i, j = te.reduce_axis((0, counts[0]), name="i"), te.reduce_axis((0, counts[1]), name="j")
        return te.compute(shape, lambda n, c, *at: te.sum(term(n, c, at, (i, j)), axis=[i, j]), name="window_sum")

    def at(n: Any, c: Any, *place: Any) -> Expr:
        return reduce(operator.add, [term(n, c, place, ij) for ij in np.ndindex(counts)])

    return te.compute(shape, at, name="window_sum")
