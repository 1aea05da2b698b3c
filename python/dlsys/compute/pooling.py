"""Maxima and means over windows of images, NCHW, and their gradients."""

from __future__ import annotations

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
    """The windows along one axis of images: number o begins at o * stride - padding and has `size` elements; adaptive
    ones, whose stride is 0, share the extent out.

    Attributes:
        extent: of the axis.
        count: of windows.
    """

    extent: int
    count: int
    size: int
    stride: int
    padding: int

    @classmethod
    def adaptive(cls, extent: int, count: int) -> Windows:
        """`count` windows that cover the axis; two of them overlap where the extent does not divide."""
        return cls(extent, count, extent // count + (2 if extent % count else 0), 0, 0)

    def begin(self, o: Any) -> Any:
        """Where window o begins, which may be before the axis does."""
        return o * self.stride - self.padding if self.stride else _floor(o * self.extent, self.count)

    def end(self, o: Any) -> Any:
        """Where window o ends, which may be behind the axis."""
        if self.stride:
            return o * self.stride - self.padding + self.size
        return _floor((o + 1) * self.extent + self.count - 1, self.count)

    def padded_end(self, o: Any) -> Any:
        """Where window o ends, or the padding, where it reaches beyond."""
        limit = self.extent + self.padding
        if not self.stride or (self.count - 1) * self.stride - self.padding + self.size <= limit:
            return self.end(o)
        return min(self.end(o), limit) if isinstance(o, int) else tirx.min(self.end(o), limit)

    def first_over(self, i: Any) -> Any:
        """A window before which none covers element i; it may be negative."""
        if self.stride:
            return _floor(i + self.padding, self.stride) - (self.covering - 1)
        return _floor(i * self.count, self.extent)

    @property
    def covering(self) -> int:
        """Windows that may cover one element, from `first_over` on."""
        if self.stride:
            return -(-self.size // self.stride)
        return -(-self.count // self.extent) + 1

    def is_inside(self) -> bool:
        """Whether every window lies within the axis, all of one size."""
        if self.stride:
            return not self.padding and (self.count - 1) * self.stride + self.size <= self.extent
        return self.extent % self.count == 0


def _floor(a: Any, b: int) -> Any:
    return a // b if isinstance(a, int) else tirx.floordiv(a, b)


def _inside(w: Spans, o: Sequence[Any], place: Sequence[Any]) -> list[Expr]:
    """The condition under which `place` lies inside the image and in the windows o."""
    found = []
    for windows, a, at in zip(w, o, place, strict=True):
        if not windows.is_inside():
            found += [at >= 0, at < windows.extent] if windows.stride else [at < windows.end(a)]
    return found


def _read(
    x: te.Tensor, lead: Sequence[Any], o: Sequence[Any], ij: Sequence[Any], w: Spans, fill: float
) -> Expr:
    """Element (i, j) of the windows o; `fill` where that does not lie inside."""
    place = [windows.begin(a) + b for windows, a, b in zip(w, o, ij, strict=True)]
    value, inside = x(*lead, *place), _inside(w, o, place)
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
                    inside = _inside(w, o, at)
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


def _elements(windows: Windows, o: Any, padded: bool) -> Any:
    """How many elements window o has, with those outside the axis if `padded`."""
    if windows.is_inside():
        return windows.size if windows.stride else windows.extent // windows.count
    begin, end = windows.begin(o), windows.padded_end(o)
    if windows.stride and padded:
        return windows.size if windows.padded_end(windows.count - 1) == windows.end(windows.count - 1) else end - begin
    return tirx.min(end, windows.extent) - tirx.max(begin, 0)


def _divisor(w: Spans, o: Sequence[Any], padded: bool, dtype: Any) -> Expr:
    count = _elements(w[0], o[0], padded) * _elements(w[1], o[1], padded)
    return constant(count, dtype) if isinstance(count, int) else tirx.Cast(str(dtype), count)


def mean_pool(x: te.Tensor, rows: Windows, columns: Windows, padded: bool = True) -> te.Tensor:
    """The means of the windows, in which what lies outside the images counts as zeros if `padded`, else nothing."""
    (batch, channels, *_), w, dtype = shape_of(x), (rows, columns), str(x.dtype)
    shape = (batch, channels, rows.count, columns.count)
    if 0 in shape:
        return full(shape, 0.0, dtype)
    if rows.size * columns.size > UNROLLED:
        i, j = te.reduce_axis((0, rows.size), name="i"), te.reduce_axis((0, columns.size), name="j")
        sums = te.compute(
            shape,
            lambda n, c, *o: te.sum(_read(x, (n, c), o, (i, j), w, 0.0), axis=[i, j]),
            name="window_sum",
        )
        return te.compute(
            shape, lambda n, c, *o: sums(n, c, *o) / _divisor(w, o, padded, dtype), name="mean_pool"
        )

    def at(n: Any, c: Any, *o: Any) -> Expr:
        terms = [_read(x, (n, c), o, (i, j), w, 0.0) for i in range(rows.size) for j in range(columns.size)]
        return sum(terms[1:], terms[0]) / _divisor(w, o, padded, dtype)

    return te.compute(shape, at, name="mean_pool")


def mean_pool_gradient(
    grad: te.Tensor, shape: Shape, rows: Windows, columns: Windows, padded: bool = True
) -> te.Tensor:
    """Of each element of images of `shape` the sum of the gradients of the windows over it, each divided as there."""
    w, dtype = (rows, columns), str(grad.dtype)
    if 0 in shape or 0 in shape_of(grad):
        return full(shape, 0.0, dtype)

    def term(lead: Sequence[Any], at: Sequence[Any], o: Sequence[Any]) -> Expr:
        over = []
        for windows, i, a in zip(w, at, o, strict=True):
            over += [a >= 0, a < windows.count, windows.begin(a) <= i, i < windows.end(a)]
        value = grad(*lead, *o) / _divisor(w, o, padded, dtype)
        return tirx.if_then_else(tirx.all(*over), value, constant(0, dtype))

    def sum_over(lead: Sequence[Any], at: Sequence[Any], steps: Sequence[Any]) -> Expr:
        return term(lead, at, [span.first_over(i) + k for span, i, k in zip(w, at, steps, strict=True)])

    if rows.covering * columns.covering > UNROLLED:
        i, j = te.reduce_axis((0, rows.covering), name="i"), te.reduce_axis((0, columns.covering), name="j")
        return te.compute(
            shape,
            lambda n, c, *at: te.sum(sum_over((n, c), at, (i, j)), axis=[i, j]),
            name="mean_pool_gradient",
        )

    def at(n: Any, c: Any, *place: Any) -> Expr:
        steps = [(i, j) for i in range(rows.covering) for j in range(columns.covering)]
        terms = [sum_over((n, c), place, step) for step in steps]
        return sum(terms[1:], terms[0])

    return te.compute(shape, at, name="mean_pool_gradient")
