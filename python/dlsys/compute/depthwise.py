"""Convolutions of each channel with a filter of its own: sums over a window's elements alone, no matrix products."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from .base import Shape, shape_of
from .images import Pair, pad_images, spread_images


def applies(filters: Shape, groups: int) -> bool:
    """Whether each group is one channel with one filter."""
    return groups > 1 and filters[:2] == (groups, 1)


def conv2d(x: te.Tensor, f: te.Tensor, space: Pair, stride: Pair, padding: Pair, dilation: Pair) -> te.Tensor:
    """out[n, c, y, z] = sum_{i, j} pad(x)[n, c, y * s + i * d, z * s' + j * d'] * f[c, 0, i, j]."""
    padded, (sy, sz), (dy, dz) = pad_images(x, padding), stride, dilation
    i, j = _taps(shape_of(f))

    def at(n: Any, c: Any, y: Any, z: Any) -> tirx.PrimExpr:
        return te.sum(padded(n, c, y * sy + i * dy, z * sz + j * dz) * f(c, 0, i, j), axis=[i, j])

    return te.compute((*shape_of(x)[:2], *space), at, name="conv2d")


def conv2d_input_gradient(
    f: te.Tensor, grad: te.Tensor, shape: Shape, stride: Pair, padding: Pair, dilation: Pair
) -> te.Tensor:
    """out[n, c, y, z] = sum_{i, j} spread(grad)[n, c, y + i * d, z + j * d'] * f[c, 0, fy - 1 - i, fz - 1 - j]."""
    (*_, fy, fz), (dy, dz) = shape_of(f), dilation
    h, w = (fy - 1) * dy, (fz - 1) * dz
    spread = spread_images(grad, (shape[2] + h, shape[3] + w), (h - padding[0], w - padding[1]), stride)
    i, j = _taps(shape_of(f))

    def at(n: Any, c: Any, y: Any, z: Any) -> tirx.PrimExpr:
        return te.sum(spread(n, c, y + i * dy, z + j * dz) * f(c, 0, fy - 1 - i, fz - 1 - j), axis=[i, j])

    return te.compute(shape, at, name="conv2d_input_gradient")


def conv2d_filter_gradient(
    x: te.Tensor, grad: te.Tensor, shape: Shape, stride: Pair, padding: Pair, dilation: Pair
) -> te.Tensor:
    """out[c, 0, i, j] = sum_{n, y, z} grad[n, c, y, z] * pad(x)[n, c, y * s + i * d, z * s' + j * d']."""
    padded, (sy, sz), (dy, dz) = pad_images(x, padding), stride, dilation
    batch, _, height, width = shape_of(grad)
    n, y, z = (te.reduce_axis((0, extent), name=name) for extent, name in ((batch, "n"), (height, "y"), (width, "z")))

    def at(c: Any, o: Any, i: Any, j: Any) -> tirx.PrimExpr:
        return te.sum(grad(n, c, y, z) * padded(n, c + o, y * sy + i * dy, z * sz + j * dz), axis=[n, y, z])

    return te.compute(shape, at, name="conv2d_filter_gradient")


def _taps(filters: Shape) -> tuple[tirx.IterVar, tirx.IterVar]:
    return te.reduce_axis((0, filters[2]), name="i"), te.reduce_axis((0, filters[3]), name="j")
