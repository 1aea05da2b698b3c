"""Contractions: each one plain sum of a product of two reads, so that a schedule can recognise
`C[m, n] = sum_k A(m, k) * B(k, n)` by structure. What is padded or spread is a stage before it."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from .base import Shape, constant, full, shape_of

Pair = tuple[int, int]


def matmul(a: te.Tensor, b: te.Tensor, trans_a: bool = False, trans_b: bool = False) -> te.Tensor:
    """op(a) op(b), where op transposes a matrix or leaves it."""
    (m, inner), n = shape_of(a)[:: -1 if trans_a else 1], shape_of(b)[0 if trans_b else 1]
    if inner == 0:
        return full((m, n), 0.0, str(a.dtype))
    k = te.reduce_axis((0, inner), name="k")
    return te.compute(
        (m, n),
        lambda i, j: te.sum((a[k, i] if trans_a else a[i, k]) * (b[j, k] if trans_b else b[k, j]), axis=k),
        name="matmul",
    )


def _axes(**extents: int) -> list[tirx.IterVar]:
    return [te.reduce_axis((0, extent), name=name) for name, extent in extents.items()]


def _pad_images(x: te.Tensor, padding: Pair) -> te.Tensor:
    """NCHW images with `padding` rows and columns of zeros on each side."""
    if padding == (0, 0):
        return x
    (n, c, height, width), (top, left) = shape_of(x), padding

    def at(i: Any, channel: Any, y: Any, z: Any) -> tirx.PrimExpr:
        inside = tirx.all(y >= top, y < top + height, z >= left, z < left + width)
        return tirx.if_then_else(inside, x[i, channel, y - top, z - left], constant(0, x.dtype))

    return te.compute((n, c, height + 2 * top, width + 2 * left), at, name="padded")


def conv2d(x: te.Tensor, f: te.Tensor, stride: Pair = (1, 1), padding: Pair = (0, 0)) -> te.Tensor:
    """Cross-correlation of images x, NCHW, with filters f, OIHW:
    out[n, o, y, z] = sum_{c, i, j} pad(x)[n, c, y * s + i, z * s' + j] * f[o, c, i, j]."""
    padded, (sy, sz) = _pad_images(x, padding), stride
    batch, channels, height, width = shape_of(padded)
    filters, _, fy, fz = shape_of(f)
    shape = (batch, filters, (height - fy) // sy + 1, (width - fz) // sz + 1)
    if channels == 0:
        return full(shape, 0.0, str(x.dtype))
    c, i, j = _axes(c=channels, i=fy, j=fz)
    return te.compute(
        shape,
        lambda n, o, y, z: te.sum(padded[n, c, y * sy + i, z * sz + j] * f[o, c, i, j], axis=[c, i, j]),
        name="conv2d",
    )


def conv2d_input_gradient(
    f: te.Tensor, grad: te.Tensor, shape: Shape, stride: Pair = (1, 1), padding: Pair = (0, 0)
) -> te.Tensor:
    """The gradient of `conv2d` with respect to its images, of `shape`: the output's gradient, set apart by
    the stride and padded, against the filters turned by half a turn:
    out[n, c, y, z] = sum_{o, i, j} spread(grad)[n, o, y + fy - 1 - i, z + fz - 1 - j] * f[o, c, i, j]."""
    (batch, filters, gy, gz), (_, _, fy, fz), (sy, sz) = shape_of(grad), shape_of(f), stride
    if filters == 0 or gy == 0 or gz == 0:
        return full(shape, 0.0, str(grad.dtype))
    top, left = fy - 1 - padding[0], fz - 1 - padding[1]  # zeros before the first gradient
    spread_shape = (batch, filters, shape[2] + fy - 1, shape[3] + fz - 1)

    def at(n: Any, o: Any, y: Any, z: Any) -> tirx.PrimExpr:
        v, w = y - top, z - left
        inside = [v >= 0, v < (gy - 1) * sy + 1, w >= 0, w < (gz - 1) * sz + 1]
        inside += [tirx.floormod(v, sy) == 0] if sy > 1 else []
        inside += [tirx.floormod(w, sz) == 0] if sz > 1 else []
        value = grad[n, o, tirx.floordiv(v, sy), tirx.floordiv(w, sz)]
        return tirx.if_then_else(tirx.all(*inside), value, constant(0, grad.dtype))

    whole = spread_shape == (batch, filters, gy, gz) and stride == (1, 1) and top == left == 0
    spread = grad if whole else te.compute(spread_shape, at, name="spread")
    o, i, j = _axes(o=filters, i=fy, j=fz)
    return te.compute(
        shape,
        lambda n, c, y, z: te.sum(
            spread[n, o, y + (fy - 1) - i, z + (fz - 1) - j] * f[o, c, i, j], axis=[o, i, j]
        ),
        name="conv2d_input_gradient",
    )


def conv2d_filter_gradient(
    x: te.Tensor, grad: te.Tensor, shape: Shape, stride: Pair = (1, 1), padding: Pair = (0, 0)
) -> te.Tensor:
    """The gradient of `conv2d` with respect to its filters, of `shape`:
    out[o, c, i, j] = sum_{n, y, z} grad[n, o, y, z] * pad(x)[n, c, y * s + i, z * s' + j]."""
    padded, (batch, _, gy, gz), (sy, sz) = _pad_images(x, padding), shape_of(grad), stride
    if batch == 0 or gy == 0 or gz == 0:
        return full(shape, 0.0, str(x.dtype))
    n, y, z = _axes(n=batch, y=gy, z=gz)
    return te.compute(
        shape,
        lambda o, c, i, j: te.sum(grad[n, o, y, z] * padded[n, c, y * sy + i, z * sz + j], axis=[n, y, z]),
        name="conv2d_filter_gradient",
    )
