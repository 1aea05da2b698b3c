"""Pooling of images, NCHW: maxima and means over windows.

Means are linear, so the gradient of their gradient is the mean again. The gradient of a maximum goes to where it lies
first in its window; its own gradient is what lies there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import compute
from ..compute import Tensor, Windows
from ..errors import GraphError
from ..graph import Node, Op, Shape, register, shape_error
from .reduction import mean_op
from .rules import pair_attribute

Spans = tuple[Windows, Windows]


def _spans(node: Node, images: Shape) -> Spans:
    """The windows along rows and columns of images. Raises ShapeError."""
    if len(images) != 4:
        raise shape_error(node, f"images have four dimensions, not {images}")
    size = node.attrs.get("output_size")
    if size is not None:
        if 0 in images[2:]:
            raise shape_error(node, f"images {images} have no elements to pool")
        return Windows.adaptive(images[2], size[0]), Windows.adaptive(images[3], size[1])
    kernel, stride, padding = node.attrs["kernel"], node.attrs["stride"], node.attrs["padding"]
    found = []
    for extent, k, s, p in zip(images[2:], kernel, stride, padding, strict=True):
        if k > extent + 2 * p:
            raise shape_error(node, f"windows of {kernel} do not fit images {images} padded by {padding}")
        steps = extent + 2 * p - k
        count = steps // s + 1
        if node.attrs.get("ceil") and steps % s and count * s < extent + p:  # one more, if not in padding alone
            count += 1
        found.append(Windows(extent, count, k, s, p))
    return found[0], found[1]


def _output_shape(images: Shape, spans: Spans) -> Shape:
    return (*images[:2], spans[0].count, spans[1].count)


class _Pooling(Op):
    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return _output_shape(input_shapes[0], _spans(node, input_shapes[0]))

    def _require_output(self, node: Node, images: Shape, grad: Shape) -> Shape:
        """The images' shape. Raises ShapeError for a gradient that is not one of the pooled images."""
        expected = _output_shape(images, _spans(node, images))
        if grad != expected:
            raise shape_error(node, f"images {images} are pooled to {expected}, the gradient is {grad}")
        return images


def _first_maxima(node: Node, x: np.ndarray) -> tuple[np.ndarray, ...]:
    """Row and column of the maximum of each window."""
    spans = _spans(node, x.shape)
    rows, columns = np.empty((2, *_output_shape(x.shape, spans)), np.int64)
    for o in np.ndindex(rows.shape[2:]):
        (top, bottom), (left, right) = (
            (max(span.begin(at), 0), min(span.end(at), span.extent)) for span, at in zip(spans, o, strict=True)
        )
        window = x[:, :, top:bottom, left:right].reshape(*x.shape[:2], (bottom - top) * (right - left))
        place = window.argmax(axis=2)
        rows[:, :, o[0], o[1]] = top + place // (right - left)
        columns[:, :, o[0], o[1]] = left + place % (right - left)
    return rows, columns


def _planes(x: np.ndarray) -> tuple[np.ndarray, ...]:
    """Indices of batches and channels that broadcast with those of rows and columns."""
    return np.arange(x.shape[0])[:, None, None, None], np.arange(x.shape[1])[:, None, None]


@register
class MaxPool2d(_Pooling):
    """The maximum of each window, NaN if there is one; padding is -inf. With `output_size`, windows that share the
    image out evenly."""

    name = "max_pool2d"

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [MaxPool2dGradient.make([node.inputs[0], output_grad], node.attrs)]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.max_pool(inputs[0], *_spans(node, compute.shape_of(inputs[0])))

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        (x,) = inputs
        return x[_planes(x) + _first_maxima(node, x)]


@register
class MaxPool2dGradient(_Pooling):
    """From images x and the gradient of the maxima that of x: each is added where its maximum lies first."""

    name = "max_pool2d_gradient"

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return self._require_output(node, *input_shapes)

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [None, MaxPool2dSelect.make([node.inputs[0], output_grad], node.attrs)]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        x, grad = inputs
        return compute.max_pool_gradient(x, grad, *_spans(node, shape))

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        x, grad = inputs
        out = np.zeros_like(x)
        np.add.at(out, _planes(x) + _first_maxima(node, x), grad)
        return out


@register
class MaxPool2dSelect(_Pooling):
    """Of images v, of x's shape, the element of each window where x has its first maximum."""

    name = "max_pool2d_select"

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        images, values = input_shapes
        if values != images:
            raise shape_error(node, f"values {values} are not of the images' shape {images}")
        return super().infer_shape(node, input_shapes)

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [None, MaxPool2dGradient.make([node.inputs[0], output_grad], node.attrs)]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        x, values = inputs
        return compute.max_pool_select(x, values, *_spans(node, compute.shape_of(x)))

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        x, values = inputs
        return values[_planes(x) + _first_maxima(node, x)]


def _means(node: Node, images: Shape, dtype: np.dtype) -> list[np.ndarray]:
    """For rows and columns the matrix whose product with them gives the means: (windows, extent)."""
    found = []
    for span in _spans(node, images):
        matrix = np.zeros((span.count, span.extent), dtype)
        for o in range(span.count):
            begin, end = span.begin(o), span.end(o)
            inside = slice(max(begin, 0), min(end, span.extent))
            padded = span.padded_end(o) - begin
            count = padded if node.attrs.get("count_include_pad", False) else inside.stop - inside.start
            matrix[o, inside] = 1 / count
        found.append(matrix)
    return found


class _MeanPooling(_Pooling):
    def _te_attributes(self, node: Node, images: Shape) -> tuple[Windows, Windows, bool]:
        return (*_spans(node, images), node.attrs.get("count_include_pad", False))


@register
class AvgPool2d(_MeanPooling):
    """The mean of each window; padding counts as zeros, or not at all without `count_include_pad`. With `output_size`,
    windows that share the image out evenly."""

    name = "avg_pool2d"

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [AvgPool2dGradient.make([output_grad, node.inputs[0]], node.attrs)]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.mean_pool(inputs[0], *self._te_attributes(node, compute.shape_of(inputs[0])))

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        (x,) = inputs
        out = np.empty(self.infer_shape(node, [x.shape]), x.dtype)
        rows, columns = _means(node, x.shape, x.dtype)
        for y, z in np.ndindex(out.shape[2:]):
            (i,), (j,) = np.nonzero(rows[y]), np.nonzero(columns[z])
            window = x[:, :, i[0] : i[-1] + 1, j[0] : j[-1] + 1]
            out[:, :, y, z] = window.sum(axis=(2, 3)) * (rows[y, i[0]] * columns[z, j[0]])
        return out


@register
class AvgPool2dGradient(_MeanPooling):
    """From the gradient of the means that of the images, of like's shape: each window's share of all its elements."""

    name = "avg_pool2d_gradient"
    shape_only = (1,)

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        grad, images = input_shapes
        return self._require_output(node, images, grad)

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [AvgPool2d.make([output_grad], node.attrs), None]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.mean_pool_gradient(inputs[0], shape, *self._te_attributes(node, shape))

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        grad, like = inputs
        out = np.zeros(like.shape, grad.dtype)
        rows, columns = _means(node, like.shape, grad.dtype)
        for y, z in np.ndindex(grad.shape[2:]):
            (i,), (j,) = np.nonzero(rows[y]), np.nonzero(columns[z])
            share = grad[:, :, y, z] * (rows[y, i[0]] * columns[z, j[0]])
            out[:, :, i[0] : i[-1] + 1, j[0] : j[-1] + 1] += share[:, :, None, None]
        return out


def _attributes(op: str, kernel: Any, stride: Any, padding: Any, ceil_mode: bool) -> dict[str, Any]:
    """The attributes of windows, checked. Raises GraphError."""
    attrs = {
        "kernel": pair_attribute(op, "kernel", kernel, 1),
        "stride": pair_attribute(op, "stride", kernel if stride is None else stride, 1),
        "padding": pair_attribute(op, "padding", padding, 0),
    }
    if any(2 * p > k for p, k in zip(attrs["padding"], attrs["kernel"], strict=True)):
        raise GraphError(
            f"{op}: padding {attrs['padding']} is more than half of the windows {attrs['kernel']}"
        )
    return {**attrs, "ceil": True} if ceil_mode else attrs


def max_pool2d_op(x: Node, kernel: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False) -> Node:
    """The maxima of windows of images x (N, C, H, W) -> (N, C, H', W'), H' = (H + 2 padding - kernel) // stride + 1, or
    rounded up with `ceil_mode`, for a window that begins inside and ends beyond.

    All are ints or pairs (rows, columns); stride is the kernel's for None, padding at most half of the kernel.
    GraphError for anything else.
    """
    return MaxPool2d.make([x], _attributes("max_pool2d", kernel, stride, padding, ceil_mode))


def avg_pool2d_op(
    x: Node,
    kernel: Any,
    stride: Any = None,
    padding: Any = 0,
    count_include_pad: bool = True,
    ceil_mode: bool = False,
) -> Node:
    """The means of windows of images, as `max_pool2d_op`; what of a window is padding counts as zeros, or not at all
    without `count_include_pad`. Raises GraphError."""
    attrs = _attributes("avg_pool2d", kernel, stride, padding, ceil_mode)
    return AvgPool2d.make([x], {**attrs, "count_include_pad": bool(count_include_pad)})


def adaptive_avg_pool2d_op(x: Node, output_size: Any) -> Node:
    """Images x (N, C, H, W) -> (N, C, H', W') of `output_size`, an int or a pair: element o along an axis is the mean
    of what lies from floor(o H / H') to ceil((o + 1) H / H'). Raises GraphError for any other size."""
    size = pair_attribute("adaptive_avg_pool2d", "output_size", output_size, 1)
    return mean_op(x, (2, 3), keepdims=True) if size == (1, 1) else AvgPool2d.make([x], {"output_size": size})
