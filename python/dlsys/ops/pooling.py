"""Pooling of images, NCHW: maxima and means over windows.

Means are linear, so the gradient of their gradient is the mean again. The gradient of a maximum goes to where it lies
first in its window; its own gradient is what lies there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from .. import compute
from ..checks import pair
from ..compute import Windows
from ..errors import GraphError, ShapeError
from ..graph import FLOATS, Formula, Made, Node, Op, Shape, register, shape_error
from .conv import images_gradient, padded, windows_of
from .elementwise import div_op, oneslike_op
from .indexing import Indexed, TakeAlongAxis, scattered
from .reduction import mean_op
from .rules import Adjoint, Linear, require_same
from .shape import flatten_op, reshape_like_op
from .types import known_shape

Spans = tuple[Windows, Windows]


def spans_of(node: Node, images: Shape) -> Spans:
    """The windows along rows and columns of images. Raises ShapeError."""
    if len(images) != 4:
        raise shape_error(node, f"images have four dimensions, not {images}")
    kernel, stride, padding = node.attrs["kernel"], node.attrs["stride"], node.attrs["padding"]
    found = []
    for extent, k, s, p in zip(images[2:], kernel, stride, padding, strict=True):
        if k > extent + 2 * p:
            raise shape_error(node, f"windows of {kernel} do not fit images {images} padded by {padding}")
        found.append(Windows(extent, (extent + 2 * p - k) // s + 1, k, s, p))
    return found[0], found[1]


def pooled_shape(node: Node, images: Shape) -> Shape:
    spans = spans_of(node, images)
    return (*images[:2], spans[0].count, spans[1].count)


def _windows(x: np.ndarray, rows: Windows, columns: Windows, fill: float) -> np.ndarray:
    """The windows of images as (N, C, H', W', elements), padding being `fill`; a view where there is none."""
    images = padded(x, (rows.padding, columns.padding), fill)
    windows = windows_of(images, (rows.size, columns.size), (rows.stride, columns.stride))
    return windows.reshape(*windows.shape[:4], rows.size * columns.size)


def max_pool(x: np.ndarray, rows: Windows, columns: Windows) -> np.ndarray:
    return _windows(x, rows, columns, -np.inf).max(axis=-1)


def _place(x: np.ndarray, maxima: np.ndarray, rows: Windows, columns: Windows) -> np.ndarray:
    """The flat place of each window's maximum by NumPy, the first of several."""
    windows = _windows(x, rows, columns, -np.inf)
    inside = _windows(np.ones_like(x), rows, columns, 0) != 0  # where windows of -inf have their maximum, too
    found = inside & ((windows == maxima[..., None]) | np.isnan(windows))
    o, q = np.ogrid[: rows.count, : columns.count]
    row, column = np.divmod(found.argmax(axis=-1), columns.size)
    number = (rows.begin(o) + row) * columns.extent + columns.begin(q) + column
    return np.where(found.any(axis=-1), number, rows.extent * columns.extent - 1).astype(np.int32)


def _max_pool_gradient(grad: np.ndarray, place: np.ndarray, shape: Shape) -> np.ndarray:
    n, c = np.ogrid[: shape[0], : shape[1]]
    index = n[..., None, None], c[..., None, None], place // shape[3], place % shape[3]
    return scattered(grad, index, shape)


def mean_pool(x: np.ndarray, rows: Windows, columns: Windows) -> np.ndarray:
    windows = _windows(x, rows, columns, 0.0)
    return windows.sum(axis=-1) * np.asarray(1 / windows.shape[-1], windows.dtype)


def _mean_pool_gradient(grad: np.ndarray, shape: Shape, rows: Windows, columns: Windows) -> np.ndarray:
    """The gradient of a convolution of each channel with one filter of equal weights."""
    filters = np.full((1, 1, rows.size, columns.size), 1 / (rows.size * columns.size), grad.dtype)
    stride, padding, count = (rows.stride, columns.stride), (rows.padding, columns.padding), shape[0] * shape[1]
    each = grad.reshape(count, 1, *grad.shape[2:])
    return images_gradient(filters, each, (count, 1, *shape[2:]), stride, padding, (1, 1), 1).reshape(shape)


class _Windowed(Op):
    """An operator of windows of images, its first input."""

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return pooled_shape(node, input_shapes[0])

    def arguments(self, node: Node, shapes: list[Shape], shape: Shape) -> tuple[Any, ...]:
        return spans_of(node, shapes[0])


@register
class MaxPool2d(_Windowed):
    """The maximum of each window, NaN if there is one; padding is -inf."""

    name = "max_pool2d"
    onnx = "MaxPool"
    formula: ClassVar[Formula] = compute.max_pool
    reference: ClassVar[Formula] = max_pool

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        (x,) = node.inputs
        place = MaxPool2dPlace.make([x, node], node.attrs)
        return [MaxPool2dGradient.make([output_grad, place, x], node.attrs)]


@register
class MaxPool2dPlace(_Windowed):
    """Of images and the maxima of their windows: where in its image, in row-major order, each lies first; int32."""

    name = "max_pool2d_place"
    result = "int32"
    flat = True
    formula: ClassVar[Formula] = compute.max_pool_place
    reference: ClassVar[Formula] = _place

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return require_same(node, super().infer_shape(node, input_shapes), input_shapes[1])


@register
class MaxPool2dGradient(Indexed):
    """From the gradient of the maxima that of the images, of like's shape: each is added at its window's place: inputs
    (gradient, place, like)."""

    name = "max_pool2d_gradient"
    dtypes = FLOATS
    shape_only: ClassVar[Sequence[int]] = (2,)
    formula: ClassVar[Formula] = compute.max_pool_gradient
    reference: ClassVar[Formula] = _max_pool_gradient
    takes: ClassVar[Sequence[str]] = ("shape",)

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        grad, place, like = input_shapes
        require_same(node, require_same(node, pooled_shape(node, like), place), grad)
        return like

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        values, place = (flatten_op(x, 2) for x in (output_grad, node.inputs[1]))
        return [reshape_like_op(TakeAlongAxis.make([values, place], {"axis": 2}), node.inputs[1]), None, None]


@register
class AvgPool2d(Linear, _Windowed):
    """The mean of each window, in which padding counts as zeros."""

    name = "avg_pool2d"
    onnx = "AveragePool"
    adjoint = "avg_pool2d_gradient"
    formula: ClassVar[Formula] = compute.mean_pool
    reference: ClassVar[Formula] = mean_pool


@register
class AvgPool2dGradient(Adjoint):
    """From the gradient of the means that of the images, of like's shape: each window's share of all its elements."""

    name = "avg_pool2d_gradient"
    forward = "avg_pool2d"
    shape_only: ClassVar[Sequence[int]] = (1,)
    formula: ClassVar[Formula] = compute.mean_pool_gradient
    reference: ClassVar[Formula] = _mean_pool_gradient


def pool_attributes(op: str, kernel: Any, stride: Any, padding: Any) -> dict[str, Any]:
    """The attributes of windows, checked. Raises GraphError."""
    attrs = {
        "kernel": pair(op, "kernel", kernel, 1),
        "stride": pair(op, "stride", kernel if stride is None else stride, 1),
        "padding": pair(op, "padding", padding, 0),
    }
    if any(2 * p > k for p, k in zip(attrs["padding"], attrs["kernel"], strict=True)):
        raise GraphError(f"{op}: padding {attrs['padding']} is more than half of the windows {attrs['kernel']}")
    return attrs


def max_pool2d_op(x: Node, kernel: Any, stride: Any = None, padding: Any = 0) -> Made:
    """The maxima of windows of images x (N, C, H, W) -> (N, C, H', W'), H' = (H + 2 padding - kernel) // stride + 1.

    All are ints or pairs (rows, columns); stride is the kernel's for None, padding at most half of the kernel.
    GraphError for anything else.
    """
    return MaxPool2d.make([x], pool_attributes("max_pool2d", kernel, stride, padding))


def avg_pool2d_op(
    x: Node, kernel: Any, stride: Any = None, padding: Any = 0, count_include_pad: bool = True
) -> Made:
    """The means of windows of images, as `max_pool2d_op`; what of a window is padding counts as zeros, or not at all
    without `count_include_pad`. Raises GraphError."""
    attrs = pool_attributes("avg_pool2d", kernel, stride, padding)
    mean = AvgPool2d.make([x], attrs)
    if count_include_pad or not any(attrs["padding"]):
        return mean
    return div_op(mean, AvgPool2d.make([oneslike_op(x)], attrs))


def adaptive_avg_pool2d_op(x: Node, output_size: Any) -> Made:
    """Images x (N, C, H, W) -> (N, C, H', W') of `output_size`, an int or a pair: the means of equal windows.

    Raises GraphError for any other size; unless it is 1, ShapeError for images whose shape is not known, or does not
    divide into windows of one size."""
    size = pair("adaptive_avg_pool2d", "output_size", output_size, 1)
    if size == (1, 1):
        return mean_op(x, (2, 3), keepdims=True)
    shape = known_shape(x) or ()
    if len(shape) != 4 or any(extent % count for extent, count in zip(shape[2:], size, strict=True)):
        raise ShapeError(f"adaptive_avg_pool2d: images {shape or 'of unknown shape'} have no {size} equal windows")
    return avg_pool2d_op(x, tuple(extent // count for extent, count in zip(shape[2:], size, strict=True)))
