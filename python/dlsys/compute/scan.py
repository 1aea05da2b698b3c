"""Sums and products along an axis that are kept at every index, and products over axes: loops, one term after
another."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import te, tirx

from .base import constant, copy, full, shape_of
from .loops import Buffer, Expr, Source, extents, loop, program, sequence, store_flat, unravelled

CHUNK = 512  # neighbouring sums of float32 that run together: their float64 totals stay in L1


def cumsum(x: te.Tensor, axis: int) -> te.Tensor:
    """The sums of all elements up to each index along `axis` (non-negative), those of float32 added up in float64."""
    shape = shape_of(x)
    if str(x.dtype) != "float32" or not shape or 0 in shape:
        return _scan("cumsum", lambda before, term: before + term, x, axis)
    outer, extent, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    chunk = min(inner, CHUNK)

    def body(sources: list[Source], out: Buffer) -> tirx.Stmt:
        def rows(o: Expr, first: Expr, width: int) -> tirx.Stmt:
            totals = tirx.decl_buffer((width,), "float64", "totals", scope="local")
            clear = loop(width, lambda i: tirx.BufferStore(totals, constant(0, "float64"), [i]))

            def line(k: Expr, i: Expr) -> tirx.Stmt:
                place = (o * extent + k) * inner + first + i
                total = tirx.BufferLoad(totals, [i])
                added = tirx.BufferStore(totals, total + tirx.Cast("float64", sources[0].flat(place)), [i])
                return sequence([added, store_flat(out, place, tirx.Cast("float32", total))])

            return sequence(
                [tirx.AllocBuffer(totals), clear, loop(extent, lambda k: loop(width, lambda i: line(k, i)))]
            )

        def chunks(o: Expr) -> tirx.Stmt:
            whole, rest = divmod(inner, chunk)
            found = [loop(whole, lambda c: rows(o, c * chunk, chunk))]
            return sequence([*found, rows(o, whole * chunk, rest)] if rest else found)

        return loop(outer, chunks, math.prod(shape))

    return program("cumsum", shape, "float32", [x], body)


def _scan(name: str, join: Callable[[Expr, Expr], Expr], x: te.Tensor, axis: int) -> te.Tensor:
    """At each index what `join` makes of the result one before along `axis`, and of x; at the first x."""
    shape = shape_of(x)
    if not shape:
        return copy(x)
    if 0 in shape:
        return full(shape, 0, str(x.dtype))
    outer, extent, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])

    def body(sources: list[Source], out: Buffer) -> tirx.Stmt:
        def line(o: Expr, k: Expr, i: Expr, is_first: bool) -> tirx.Stmt:
            place = (o * extent + k) * inner + i
            term = sources[0].flat(place)
            if is_first:
                return store_flat(out, place, term)
            return store_flat(
                out, place, join(tirx.BufferLoad(out, unravelled(place - inner, extents(out))), term)
            )

        def rows(o: Expr) -> tirx.Stmt:
            steps = [loop(inner, lambda i: line(o, 0, i, True))]
            if extent > 1:
                steps.append(loop(extent - 1, lambda k: loop(inner, lambda i: line(o, k + 1, i, False))))
            return sequence(steps)

        return loop(outer, rows, math.prod(shape))

    return program(name, shape, str(x.dtype), [x], body)
