"""Formulas of images NHWC, of which vectors run along the channels, and of the tiles of Winograd's convolution."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx

from ..compute.base import LAST, Expr, Pair, Shape, constant, full, inside, read_padded, shape_of
from ..compute.contraction import pad_images, sum_axes
from ..compute.pooling import max_pool, mean_pool


def _output_shape(x: te.Tensor, taps: Pair, filters: int, stride: Pair, padding: Pair, dilation: Pair) -> Shape:
    """The shape of images NHWC convolved with filters of so many taps."""
    batch, *space, _ = shape_of(x)
    of_axes = zip(space, taps, stride, padding, dilation, strict=True)
    return batch, *((extent + 2 * p - (k - 1) * d - 1) // s + 1 for extent, k, s, p, d in of_axes), filters


def matmul_panels(a: te.Tensor, panels: te.Tensor) -> te.Tensor:
    """a times the matrix that lies in panels, (n / width, k, width), or one for each of a's first axes."""
    *lead, count, inner, width = shape_of(panels)
    shape = (*shape_of(a)[:-1], count * width)
    if inner == 0:
        return full(shape, 0.0, str(a.dtype))
    k = te.reduce_axis((0, inner), name="k")

    def at(*index: Any) -> Expr:
        *row, j = index
        own = panels(*row[: len(lead)], tirx.floordiv(j, width), k, tirx.floormod(j, width))
        return te.sum(a(*row, k) * own, axis=k)

    return te.compute(shape, at, name="matmul")


def conv2d_panels(
    x: te.Tensor, panels: te.Tensor, filters: int, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> te.Tensor:
    """conv2d of images NHWC, in one group, with filters that lie in panels, (ceil(O / width), h, w, C, width):
    out[n, y, z, o] = sum_{i, j, c} pad(x)[n, y s + i d, z s' + j d', c] f[o, c, i, j]."""
    _, fy, fz, channels, width = shape_of(panels)
    (sy, sz), (dy, dz) = stride, dilation
    padded = pad_images(x, padding, LAST)
    i, j, c = sum_axes(i=fy, j=fz, c=channels)

    def at(n: Any, y: Any, z: Any, o: Any) -> Expr:
        own = panels(tirx.floordiv(o, width), i, j, c, tirx.floormod(o, width))
        return te.sum(padded(n, y * sy + i * dy, z * sz + j * dz, c) * own, axis=[i, j, c])

    shape = _output_shape(x, (fy, fz), filters, stride, padding, dilation)
    return te.compute(shape, at, name="conv2d")


def conv2d_planes(
    x: te.Tensor, f: te.Tensor, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> te.Tensor:
    """Each channel of images NHWC, of which there are `groups`, convolved with a filter of its own, f (h, w, C)."""
    *extents, channels = shape_of(f)
    (sy, sz), (dy, dz), (top, left), taps = stride, dilation, padding, list(np.ndindex(*extents))

    def at(n: Any, y: Any, z: Any, c: Any) -> Expr:
        places = [(n, y * sy + i * dy - top, z * sz + j * dz - left, c) for i, j in taps]
        values = [read_padded(x, place, LAST, padding, 0.0) for place in places]
        return sum(value * f(*ij, c) for value, ij in zip(values, taps, strict=True))

    shape = _output_shape(x, (extents[0], extents[1]), channels, stride, padding, dilation)
    return te.compute(shape, at, name="conv2d")


def pool_last(x: te.Tensor, kernel: Pair, stride: Pair, padding: Pair, mean: bool) -> te.Tensor:
    """The means or the maxima of the windows of images NHWC."""
    return (mean_pool if mean else max_pool)(x, kernel, stride, padding, LAST)


def transform_tiles(x: te.Tensor, matrix: te.Tensor, axis: int, count: int, stride: int, padding: int) -> te.Tensor:
    """out[k, ..., o, ...] = sum_i matrix[k, i] pad(x)[..., o stride + i, ...], o along `axis`, below `count`."""
    (kinds, size), extents = shape_of(matrix), shape_of(x)

    def value(i: int, index: Any) -> Expr:
        at = [*index[:axis], index[axis] * stride + (i - padding), *index[axis + 1 :]]
        within = padding <= i and (count - 1) * stride + i - padding < extents[axis]
        return inside(x(*at), constant(0, x.dtype), at, extents, (axis,), (not within,))

    def at(k: Any, *index: Any) -> Expr:
        return sum(matrix(k, i) * value(i, index) for i in range(size))

    return te.compute((kinds, *extents[:axis], count, *extents[axis + 1 :]), at, name="tiles")


def join_tiles(x: te.Tensor, matrix: te.Tensor, axis: int, extent: int) -> te.Tensor:
    """out[..., y, ...] = sum_k matrix[y % rows, k] x[k, ..., y // rows, ...], y along `axis` of the result, below
    `extent`; `rows` are those of the matrix."""
    (rows, kinds), rest = shape_of(matrix), shape_of(x)[1:]

    def at(*index: Any) -> Expr:
        tile, row = tirx.floordiv(index[axis], rows), tirx.floormod(index[axis], rows)
        places = (*index[:axis], tile, *index[axis + 1 :])
        return sum(matrix(row, k) * x(k, *places) for k in range(kinds))

    return te.compute((*rest[:axis], extent, *rest[axis + 1 :]), at, name="joined")
