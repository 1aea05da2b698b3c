"""Values moved, not changed: broadcast, reshape, transpose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te, tirx

from .base import copy, full, read, shape_of


def broadcast_to(x: te.Tensor, shape: Sequence[int]) -> te.Tensor:
    """x broadcast to `shape` by NumPy's rule."""
    return te.compute(tuple(shape), lambda *index: read(x, index), name="broadcast_to")


def broadcast_axes(x: te.Tensor, shape: Sequence[int], axes: Sequence[int]) -> te.Tensor:
    """x, which lacks `axes` of `shape`, repeated along them."""
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    return te.compute(tuple(shape), lambda *index: x(*(index[axis] for axis in kept)), name="broadcast_axes")


def reshape(x: te.Tensor, shape: Sequence[int]) -> te.Tensor:
    """x in row-major order under another shape of as many elements."""
    extents = shape_of(x)
    if extents == tuple(shape):
        return copy(x)

    def at(*index: Any) -> tirx.PrimExpr:
        flat: Any = 0
        for extent, i in zip(shape, index, strict=True):
            flat = flat * extent + i
        source = []
        for extent in reversed(extents):
            source.append(flat % extent)
            flat = flat // extent
        return x(*reversed(source))

    if 0 in extents:
        return full(shape, 0.0, str(x.dtype))
    return te.compute(tuple(shape), at, name="reshape")


def transpose(x: te.Tensor, axes: Sequence[int]) -> te.Tensor:
    """y[i_axes[0], i_axes[1], ...] = x[i_0, i_1, ...], as NumPy's."""
    extents = shape_of(x)
    inverse = [list(axes).index(axis) for axis in range(len(axes))]
    shape = tuple(extents[axis] for axis in axes)
    return te.compute(shape, lambda *index: x(*(index[axis] for axis in inverse)), name="transpose")
