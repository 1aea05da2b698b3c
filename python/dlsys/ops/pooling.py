"""Pooling of images, NCHW: maxima and means over windows.

The gradient of a mean is that of a convolution; the gradient of a maximum goes to where it lies first in its window.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import compute
from ..checks import pair
from ..errors import GraphError, ShapeError
from ..graph import Made, Node, Shape
from .conv import Pair, conv2d_input_gradient, conv_attributes, padded, windows_of
from .elementwise import div_op, full_op, oneslike_op, zeroslike_op
from .indexing import scatter_add
from .moves import reshape_op
from .primitive import Primitive, primitive
from .reduction import mean_op
from .replay import function


def pooled_shape(images: Shape, kernel: Pair, stride: Pair, padding: Pair) -> Shape:
    """The shape of pooled images. Raises ShapeError."""
    if len(images) != 4:
        raise ShapeError(f"images have four dimensions, not {images}")
    if any(k > extent + 2 * p for extent, k, p in zip(images[2:], kernel, padding, strict=True)):
        raise ShapeError(f"windows of {kernel} do not fit images {images} padded by {padding}")
    spans = zip(images[2:], kernel, stride, padding, strict=True)
    return (*images[:2], *((extent + 2 * p - k) // s + 1 for extent, k, s, p in spans))


def _places_shape(images: Shape, maxima: Shape, **windows: Pair) -> Shape:
    expected = pooled_shape(images, **windows)
    if maxima != expected:
        raise ShapeError(f"shapes differ: {expected} and {maxima}")
    return maxima


def _windows(x: np.ndarray, kernel: Pair, stride: Pair, padding: Pair, fill: float) -> np.ndarray:
    """The windows of images as (N, C, H', W', elements), padding being `fill`; a view where there is none."""
    windows = windows_of(padded(x, padding, fill), kernel, stride)
    return windows.reshape(*windows.shape[:4], kernel[0] * kernel[1])


def max_pool(x: np.ndarray, kernel: Pair, stride: Pair, padding: Pair) -> np.ndarray:
    """The maxima of windows by NumPy."""
    return _windows(x, kernel, stride, padding, -np.inf).max(axis=-1)


def mean_pool(x: np.ndarray, kernel: Pair, stride: Pair, padding: Pair) -> np.ndarray:
    """The means of windows by NumPy."""
    windows = _windows(x, kernel, stride, padding, 0.0)
    return windows.sum(axis=-1) * np.asarray(1 / windows.shape[-1], windows.dtype)


def _places(x: np.ndarray, maxima: np.ndarray, kernel: Pair, stride: Pair, padding: Pair) -> np.ndarray:
    """The flat place of each window's maximum by NumPy, the first of several."""
    windows = _windows(x, kernel, stride, padding, -np.inf)
    inside = _windows(np.ones_like(x), kernel, stride, padding, 0) != 0  # where windows of -inf have their maximum, too
    is_maximum = inside & ((windows == maxima[..., None]) | np.isnan(windows))
    o, q = np.ogrid[: maxima.shape[2], : maxima.shape[3]]
    row, column = np.divmod(is_maximum.argmax(axis=-1), kernel[1])
    height, width = x.shape[2:]
    place = (o * stride[0] - padding[0] + row) * width + q * stride[1] - padding[1] + column
    return np.where(is_maximum.any(axis=-1), place, height * width - 1).astype(np.int32)


def _of_max_pool(g: Node, y: Node, x: Node, **windows: Pair) -> Made:
    """Zeros, to which each window's gradient is added where its maximum lies first."""
    rows, size = x.shape[:2], math.prod(x.shape[2:])
    places = max_pool2d_place(x, y, **windows)
    flat, indices = (reshape_op(value, (*rows, math.prod(y.shape[2:]))) for value in (g, places))
    return reshape_op(scatter_add(flat, indices, shape=(*rows, size), axis=2), x.shape)


def _of_mean_pool(g: Node, y: Node, x: Node, kernel: Pair, stride: Pair, padding: Pair) -> Made:
    """Each window's share of all its elements: a mean is the convolution of each channel with one filter of equal
    weights."""
    if 0 in x.shape:
        return zeroslike_op(x)
    weights = full_op((x.shape[1], 1, *kernel), 1 / math.prod(kernel), x.dtype)
    geometry = conv_attributes("avg_pool2d", stride, padding, 1, x.shape[1])
    return conv2d_input_gradient(weights, g, shape=x.shape, **geometry)


max_pool2d: Primitive = primitive(
    "max_pool2d", te=compute.max_pool, numpy=max_pool, grad=_of_max_pool, shape=pooled_shape, kind="single",
    onnx="MaxPool", doc="The maximum of each window, NaN if there is one; padding is -inf.",
)  # fmt: skip
max_pool2d_place: Primitive = primitive(
    "max_pool2d_place", te=compute.max_pool_place, numpy=_places, grad=None, shape=_places_shape, dtype="int32",
    kind="single",
    doc="Of images and the maxima of their windows: where in its image, in row-major order, each lies first.",
)  # fmt: skip
avg_pool2d: Primitive = primitive(
    "avg_pool2d", te=compute.mean_pool, numpy=mean_pool, grad=_of_mean_pool, shape=pooled_shape, kind="single",
    onnx="AveragePool", doc="The mean of each window, in which padding counts as zeros.",
)  # fmt: skip


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
    return max_pool2d(x, **pool_attributes("max_pool2d", kernel, stride, padding))


def avg_pool2d_op(
    x: Node, kernel: Any, stride: Any = None, padding: Any = 0, count_include_pad: bool = True
) -> Made:
    """The means of windows of images, as `max_pool2d_op`; what of a window is padding counts as zeros, or not at all
    without `count_include_pad`. Raises GraphError."""
    attrs = pool_attributes("avg_pool2d", kernel, stride, padding)
    mean = avg_pool2d(x, **attrs)
    if count_include_pad or not any(attrs["padding"]):
        return mean
    return div_op(mean, avg_pool2d(oneslike_op(x), **attrs))


@function()
def adaptive_avg_pool2d_op(x: Node, output_size: Any) -> Made:
    """Images x (N, C, H, W) -> (N, C, H', W') of `output_size`, an int or a pair: the means of equal windows.

    Raises GraphError for any other size; unless it is 1, ShapeError for images that do not divide into windows of one
    size."""
    size = pair("adaptive_avg_pool2d", "output_size", output_size, 1)
    if size == (1, 1):
        return mean_op(x, (2, 3), keepdims=True)
    shape = x.shape
    if len(shape) != 4 or any(extent % count for extent, count in zip(shape[2:], size, strict=True)):
        raise ShapeError(f"adaptive_avg_pool2d: images {shape} have no {size} equal windows")
    return avg_pool2d_op(x, tuple(extent // count for extent, count in zip(shape[2:], size, strict=True)))
