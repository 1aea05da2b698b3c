"""Other shapes, slices, joins, and values found by integer indices.

An index counts from the end where it is negative, as NumPy's, and is then clamped into its axis: a kernel cannot raise
an error, and must not read beyond its arrays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from tvm import te, tirx

from .base import Expr, Shape, constant, copy, elementwise, full, read, shape_of
from .loops import Buffer, Part, Source, loop, nest, place, program, ravelled, sequence, unravelled


def broadcast_to(x: te.Tensor, shape: Sequence[int]) -> te.Tensor:
    """x broadcast to `shape` by NumPy's rule."""
    return te.compute(tuple(shape), lambda *index: read(x, index), name="broadcast_to")


def reshape(x: te.Tensor, shape: Sequence[int]) -> te.Tensor:
    """x in row-major order under another shape of as many elements."""
    extents = shape_of(x)
    if extents == tuple(shape):
        return copy(x)
    if 0 in extents:
        return full(shape, 0.0, str(x.dtype))
    return te.compute(tuple(shape), lambda *index: x(*unravelled(ravelled(index, shape), extents)), name="reshape")


def transpose(x: te.Tensor, axes: Sequence[int]) -> te.Tensor:
    """y[i_axes[0], i_axes[1], ...] = x[i_0, i_1, ...], as NumPy's."""
    shape, inverse = tuple(shape_of(x)[axis] for axis in axes), [list(axes).index(axis) for axis in range(len(axes))]
    return te.compute(shape, lambda *index: x(*(index[axis] for axis in inverse)), name="transpose")


def strided_slice(x: te.Tensor, starts: Sequence[int], counts: Shape, steps: Sequence[int]) -> te.Tensor:
    """y[j_0, j_1, ...] = x[starts[0] + steps[0] * j_0, ...], j below `counts`."""

    def at(*index: Any) -> Expr:
        return x(*(start + step * j for start, step, j in zip(starts, steps, index, strict=True)))

    return te.compute(tuple(counts), at, name="slice")


def strided_place(x: te.Tensor, shape: Shape, starts: Sequence[int], steps: Sequence[int], value: float) -> te.Tensor:
    """The elements of x at the indices starts + steps * i of what is else `value`."""
    counts = shape_of(x)
    whole = math.prod(counts) == math.prod(shape)
    return place("place", shape, None if whole else value, [Part(x, counts, tuple(starts), tuple(steps))])


def concatenate(*tensors: te.Tensor, axis: int) -> te.Tensor:
    """The tensors one behind another along `axis`."""
    shape, parts, start = list(shape_of(tensors[0])), [], 0
    for x in tensors:
        extents = shape_of(x)
        parts.append(Part(x, extents, tuple(start * (a == axis) for a in range(len(extents))), (1,) * len(extents)))
        start += extents[axis]
    shape[axis] = start
    return place("concatenate", tuple(shape), None, parts, lead=axis)


def _inside(index: Expr, extent: int) -> Expr:
    """The index, negative from the end, clamped into [0, extent), as an int32."""
    if str(index.ty) in ("uint8", "int8"):  # which hold no large extent
        index = index.astype("int32")
    dtype = str(index.ty)
    zero, last = tirx.const(0, dtype), tirx.const(extent - 1, dtype)
    if dtype != "uint32":
        index = tirx.Select(index < zero, index + tirx.const(extent, dtype), index)
        index = tirx.max(index, zero)
    return tirx.min(index, last).astype("int32")


def in_range(indices: te.Tensor, extent: int) -> te.Tensor:
    """The indices, negative from the end, clamped into [0, extent), as int64."""
    return te.compute(shape_of(indices), lambda *at: _inside(indices(*at), extent).astype("int64"), name="in_range")


@elementwise
def class_counts(number: Expr, classes: int, ignore_index: int, dtype: str) -> Expr:
    """1 of a class number, 0 of one that is ignored, NaN of any other; compared in 64 bits, which hold all."""
    wide, limits = number.astype("int64"), np.iinfo("int64")
    is_class = tirx.all(wide >= tirx.const(0, "int64"), wide < tirx.const(classes, "int64"))
    counted = tirx.Select(is_class, constant(1, dtype), constant(np.nan, dtype))
    if not limits.min <= ignore_index <= limits.max:
        return counted
    return tirx.Select(tirx.EQ(wide, tirx.const(ignore_index, "int64")), constant(0, dtype), counted)


def take(x: te.Tensor, indices: te.Tensor, axis: int) -> te.Tensor:
    """The slices of x along `axis` with the numbers `indices`, whose shape takes the axis's place."""
    extents, where = shape_of(x), shape_of(indices)
    shape = (*extents[:axis], *where, *extents[axis + 1 :])

    def at(*index: Any) -> Expr:
        found = _inside(indices(*index[axis : axis + len(where)]), extents[axis])
        return x(*index[:axis], found, *index[axis + len(where) :])

    return te.compute(shape, at, name="take")


def add_at(values: te.Tensor, indices: te.Tensor, shape: Shape, axis: int) -> te.Tensor:
    """Zeros of `shape`, to whose slices along `axis` with the numbers `indices` those of `values` are added, in their
    order; or to elements, where each of `values` has an index."""
    dtype = str(values.dtype)
    if 0 in shape or 0 in shape_of(values):
        return full(shape, 0.0, dtype)
    lead, extent, inner = shape[:axis], shape[axis], shape[axis + 1 :]
    given = shape_of(values)[axis : len(values.shape) - len(inner)]
    shared = shape_of(indices) == given  # by all slices

    def body(sources: list[Source], out: Buffer) -> tirx.Stmt:
        value, number = sources

        def part(outer: list[Expr]) -> tirx.Stmt:
            def clear(index: list[Expr]) -> tirx.Stmt:
                row, c = index
                return tirx.BufferStore(out, constant(0, dtype), [*outer, row, *unravelled(c, inner)])

            def add(c: Expr, i: Expr) -> tirx.Stmt:
                here = [*outer, *unravelled(i, given), *unravelled(c, inner)]
                row = _inside(number(unravelled(i, given) if shared else here), extent)
                to = [*outer, row, *unravelled(c, inner)]
                return tirx.BufferStore(out, tirx.BufferLoad(out, to) + value(here), to)

            column = lambda c: loop(math.prod(given), partial(add, c))  # noqa: E731
            return sequence([nest((extent, math.prod(inner)), clear), loop(math.prod(inner), column)])

        return loop(math.prod(lead), lambda number: part(unravelled(number, lead)))

    return program("add_at", shape, dtype, [values, indices], body)


def take_along_axis(x: te.Tensor, indices: te.Tensor, axis: int) -> te.Tensor:
    """y[..., i, ...] = x[..., indices[..., i, ...], ...] along `axis`."""
    extent, shape = shape_of(x)[axis], shape_of(indices)
    at = lambda *index: x(*index[:axis], _inside(indices(*index), extent), *index[axis + 1 :])  # noqa: E731
    return te.compute(shape, at, name="take_along_axis")


def one_hot(indices: te.Tensor, classes: int, dtype: str) -> te.Tensor:
    """y[..., c] = 1 where indices[...] = c, else 0."""
    zero, one = constant(0, dtype), constant(1, dtype)
    wide = "int64" if str(indices.dtype) in ("int64", "uint32") else "int32"  # which holds indices and classes

    at = lambda *i: tirx.Select(indices(*i[:-1]).astype(wide) == i[-1].astype(wide), one, zero)  # noqa: E731
    return te.compute((*shape_of(indices), classes), at, name="one_hot")
