"""Two-dimensional convolution and its gradients, NCHW images with OIHW filters.

conv2d is bilinear in images x and filters f. With <,> the sum of products, its gradients are defined by
<conv2d(x, f), g> = <x, conv2d_input_gradient(f, g)> = <f, conv2d_filter_gradient(x, g)>, from which the
gradients of the three follow from each other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .. import compute
from ..compute import Tensor
from ..graph import Node, Op, Shape, register, shape_error
from .rules import pair_attribute


class _Convolution(Op):
    def _geometry(self, node: Node) -> tuple[tuple[int, int], tuple[int, int]]:
        return node.attrs["stride"], node.attrs["padding"]


def _output_shape(node: Node, images: Shape, filters: Shape) -> Shape:
    """The shape of conv2d(images, filters). Raises ShapeError."""
    if len(images) != 4 or len(filters) != 4:
        raise shape_error(node, f"images and filters have four dimensions, not {images} and {filters}")
    if images[1] != filters[1]:
        raise shape_error(node, f"channels differ: images {images}, filters {filters}")
    (sy, sz), (py, pz) = node.attrs["stride"], node.attrs["padding"]
    height, width = images[2] + 2 * py, images[3] + 2 * pz
    if not (0 < filters[2] <= height and 0 < filters[3] <= width):
        raise shape_error(node, f"filters {filters} do not fit images {images} padded by {(py, pz)}")
    return (images[0], filters[0], (height - filters[2]) // sy + 1, (width - filters[3]) // sz + 1)


def _require_output(node: Node, images: Shape, filters: Shape, grad: Shape) -> None:
    expected = _output_shape(node, images, filters)
    if grad != expected:
        raise shape_error(
            node, f"images {images} with filters {filters} give {expected}, the gradient is {grad}"
        )


def _padded(x: np.ndarray, padding: tuple[int, int]) -> np.ndarray:
    return np.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))


def _windows(x: np.ndarray, node: Node, extents: tuple[int, ...]) -> np.ndarray:
    """View of the padded images, (n, c, y, z, i, j), of windows of `extents` at the stride's positions."""
    sy, sz = node.attrs["stride"]
    return sliding_window_view(_padded(x, node.attrs["padding"]), extents, axis=(2, 3))[:, :, ::sy, ::sz]


@register
class Conv2d(_Convolution):
    """Cross-correlation: out[n, o, y, z] = sum_{c, i, j} pad(x)[n, c, y s + i, z s' + j] f[o, c, i, j]."""

    name = "conv2d"
    contraction = True

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return _output_shape(node, *input_shapes)

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        (x, f), geometry = node.inputs, self._geometry(node)
        return [
            conv2d_input_gradient_op(f, output_grad, x, *geometry),
            conv2d_filter_gradient_op(x, output_grad, f, *geometry),
        ]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        x, f = inputs
        return compute.conv2d(x, f, *self._geometry(node))

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        x, f = inputs
        return np.einsum("ncyzij,ocij->noyz", _windows(x, node, f.shape[2:]), f, optimize=True)


@register
class Conv2dInputGradient(_Convolution):
    """From filters f and the output's gradient g the gradient of the images, of like's shape."""

    name = "conv2d_input_gradient"
    contraction = True
    shape_only = (2,)

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        filters, grad, like = input_shapes
        _require_output(node, like, filters, grad)
        return like

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        (f, g, _), geometry = node.inputs, self._geometry(node)
        return [
            conv2d_filter_gradient_op(output_grad, g, f, *geometry),
            conv2d_op(output_grad, f, *geometry),
            None,
        ]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.conv2d_input_gradient(inputs[0], inputs[1], shape, *self._geometry(node))

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        f, g, like = inputs
        ((sy, sz), (py, pz)), (height, width) = self._geometry(node), like.shape[2:]
        out = _padded(np.zeros(like.shape, g.dtype), (py, pz))
        for i in range(f.shape[2]):
            for j in range(f.shape[3]):
                part = np.einsum("noyz,oc->ncyz", g, f[:, :, i, j], optimize=True)
                out[:, :, i : i + sy * g.shape[2] : sy, j : j + sz * g.shape[3] : sz] += part
        return out[:, :, py : py + height, pz : pz + width].copy()


@register
class Conv2dFilterGradient(_Convolution):
    """From images x and the output's gradient g the gradient of the filters, of like's shape."""

    name = "conv2d_filter_gradient"
    contraction = True
    shape_only = (2,)

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        images, grad, like = input_shapes
        _require_output(node, images, like, grad)
        return like

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        (x, g, _), geometry = node.inputs, self._geometry(node)
        return [
            conv2d_input_gradient_op(output_grad, g, x, *geometry),
            conv2d_op(x, output_grad, *geometry),
            None,
        ]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.conv2d_filter_gradient(inputs[0], inputs[1], shape, *self._geometry(node))

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        x, g, like = inputs
        return np.einsum("noyz,ncyzij->ocij", g, _windows(x, node, like.shape[2:]), optimize=True)


def _attributes(op: str, stride: Any, padding: Any) -> dict[str, Any]:
    return {
        "stride": pair_attribute(op, "stride", stride, 1),
        "padding": pair_attribute(op, "padding", padding, 0),
    }


def conv2d_op(x: Node, f: Node, stride: Any = 1, padding: Any = 0) -> Node:
    """Cross-correlation of images x (N, C, H, W) with filters f (O, C, h, w) -> (N, O, H', W').

    H' = (H + 2 padding - h) // stride + 1. Stride and padding are ints or pairs (rows, columns); GraphError
    for anything else.
    """
    return Conv2d.make([x, f], _attributes("conv2d", stride, padding))


def conv2d_input_gradient_op(f: Node, grad: Node, like: Node, stride: Any = 1, padding: Any = 0) -> Node:
    """The gradient of conv2d_op with respect to images of like's shape, from filters and output gradient."""
    return Conv2dInputGradient.make([f, grad, like], _attributes("conv2d_input_gradient", stride, padding))


def conv2d_filter_gradient_op(x: Node, grad: Node, like: Node, stride: Any = 1, padding: Any = 0) -> Node:
    """The gradient of conv2d_op with respect to filters of like's shape, from images and output gradient."""
    return Conv2dFilterGradient.make([x, grad, like], _attributes("conv2d_filter_gradient", stride, padding))
