"""Images before a convolution: with zeros around, or set apart by a stride."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from .base import constant, shape_of

Pair = tuple[int, int]


def pad_images(x: te.Tensor, padding: Pair) -> te.Tensor:
    """Images, rows and columns last, with `padding` rows and columns of zeros on each side."""
    if padding == (0, 0):
        return x
    (*lead, height, width), (top, left) = shape_of(x), padding

    def at(*index: Any) -> tirx.PrimExpr:
        *outer, y, z = index
        inside = tirx.all(y >= top, y < top + height, z >= left, z < left + width)
        return tirx.if_then_else(inside, x(*outer, y - top, z - left), constant(0, x.dtype))

    return te.compute((*lead, height + 2 * top, width + 2 * left), at, name="padded")


def spread_images(grad: te.Tensor, spatial: Pair, first: Pair, stride: Pair) -> te.Tensor:
    """Images of `spatial` rows and columns: grad's set apart by the stride, from row and column `first` on; elsewhere
    zeros."""
    (*lead, gy, gz), (top, left), (sy, sz) = shape_of(grad), first, stride
    if spatial == (gy, gz) and stride == (1, 1) and first == (0, 0):
        return grad

    def at(*index: Any) -> tirx.PrimExpr:
        *outer, y, z = index
        v, w = y - top, z - left
        inside = [v >= 0, v < (gy - 1) * sy + 1, w >= 0, w < (gz - 1) * sz + 1]
        inside += [tirx.floormod(v, sy) == 0] if sy > 1 else []
        inside += [tirx.floormod(w, sz) == 0] if sz > 1 else []
        value = grad(*outer, tirx.floordiv(v, sy), tirx.floordiv(w, sz))
        return tirx.if_then_else(tirx.all(*inside), value, constant(0, grad.dtype))

    return te.compute((*lead, *spatial), at, name="spread")
