"""Two-dimensional convolution and its gradients, NCHW images with OIHW filters.

conv2d is bilinear in images x and filters f. With <,> the sum of products, its gradients are defined by
<conv2d(x, f), g> = <x, conv2d_input_gradient(f, g)> = <f, conv2d_filter_gradient(x, g)>, from which the
gradients of the three follow from each other.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .. import compute
from ..checks import integer, pair
from ..graph import Node, Op, Shape, register, shape_error

Pair = tuple[int, int]
Geometry = tuple[Pair, Pair, Pair, int]


def geometry_of(node: Node) -> Geometry:
    """The node's stride, padding, dilation and groups."""
    attrs = node.attrs
    return attrs["stride"], attrs["padding"], attrs["dilation"], attrs["groups"]


def conv_output_shape(node: Node, images: Shape, filters: Shape) -> Shape:
    """The shape of conv2d(images, filters). Raises ShapeError."""
    (sy, sz), (py, pz), (dy, dz), groups = geometry_of(node)
    if len(images) != 4 or len(filters) != 4:
        raise shape_error(node, f"images and filters have four dimensions, not {images} and {filters}")
    if images[1] % groups or filters[0] % groups:
        raise shape_error(
            node, f"{images[1]} channels and {filters[0]} filters are not both divisible by {groups} groups"
        )
    if images[1] // groups != filters[1]:
        within = "" if groups == 1 else f" in {groups} groups"
        raise shape_error(node, f"channels differ{within}: images {images}, filters {filters}")
    height, width = images[2] + 2 * py, images[3] + 2 * pz
    reach_y, reach_z = (filters[2] - 1) * dy + 1, (filters[3] - 1) * dz + 1
    if not (0 < reach_y <= height and 0 < reach_z <= width):
        apart = "" if (dy, dz) == (1, 1) else f" dilated by {(dy, dz)}"
        raise shape_error(node, f"filters {filters}{apart} do not fit images {images} padded by {(py, pz)}")
    return (images[0], filters[0], (height - reach_y) // sy + 1, (width - reach_z) // sz + 1)


def _require_output(node: Node, images: Shape, filters: Shape, grad: Shape) -> None:
    expected = conv_output_shape(node, images, filters)
    if grad != expected:
        told = f"images {images} with filters {filters} give {expected}, the gradient is {grad}"
        raise shape_error(node, told)


def _padded(x: np.ndarray, padding: tuple[int, int]) -> np.ndarray:
    return np.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))


def _windows(x: np.ndarray, extents: Shape, stride: Pair, padding: Pair, dilation: Pair) -> np.ndarray:
    """View of the padded images, (n, c, y, z, i, j), of windows of `extents` at the stride's positions."""
    (sy, sz), (dy, dz) = stride, dilation
    reach = ((extents[0] - 1) * dy + 1, (extents[1] - 1) * dz + 1)
    windows = sliding_window_view(_padded(x, padding), reach, axis=(2, 3))
    return windows[:, :, ::sy, ::sz, ::dy, ::dz]


def _by_groups(
    groups: int, formula: str, x: np.ndarray, y: np.ndarray, axes: tuple[int, int], into: int
) -> np.ndarray:
    """The einsum of each group, of x's and y's parts along `axes`, put together along `into`."""
    parts = zip(np.split(x, groups, axes[0]), np.split(y, groups, axes[1]), strict=True)
    found = [np.einsum(formula, one, other, optimize=True) for one, other in parts]
    return np.concatenate(found, into) if groups > 1 else found[0]


def convolved(x: np.ndarray, f: np.ndarray, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> np.ndarray:
    """conv2d by NumPy."""
    windows = _windows(x, f.shape[2:], stride, padding, dilation)
    return _by_groups(groups, "ncyzij,ocij->noyz", windows, f, (1, 0), 1)


def _input_gradient(
    f: np.ndarray, g: np.ndarray, shape: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> np.ndarray:
    (sy, sz), (py, pz), (dy, dz) = stride, padding, dilation
    (rows, columns), (height, width) = g.shape[2:], shape[2:]
    out = _padded(np.zeros(shape, g.dtype), padding)
    for i, j in np.ndindex(*f.shape[2:]):
        part = _by_groups(groups, "noyz,oc->ncyz", g, f[:, :, i, j], (1, 0), 1)
        y, z = i * dy, j * dz
        out[:, :, y : y + sy * rows : sy, z : z + sz * columns : sz][:, :, :rows, :columns] += part
    return out[:, :, py : py + height, pz : pz + width]


def _filter_gradient(
    x: np.ndarray, g: np.ndarray, shape: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> np.ndarray:
    windows = _windows(x, shape[2:], stride, padding, dilation)
    return _by_groups(groups, "noyz,ncyzij->ocij", g, windows, (1, 1), 0)


@register
class Conv2d(Op):
    """Cross-correlation: out[n, o, y, z] = sum_{c, i, j} pad(x)[n, c, y s + i d, z s' + j d'] f[o, c, i, j].

    With groups, for each share of channels and filters by itself.
    """

    name = "conv2d"
    kind = "contraction"
    formula, reference = compute.conv2d, convolved

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return conv_output_shape(node, *input_shapes)

    def flop(self, node: Node, input_shapes: list[Shape], shape: Shape) -> int:
        return 2 * math.prod(shape) * math.prod(input_shapes[1][1:])

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        (x, f), geometry = node.inputs, geometry_of(node)
        return [
            conv2d_input_gradient_op(f, output_grad, x, *geometry),
            conv2d_filter_gradient_op(x, output_grad, f, *geometry),
        ]

    def arguments(self, node: Node, shapes: list[Shape], shape: Shape) -> tuple[Any, ...]:
        return geometry_of(node)


@register
class Conv2dInputGradient(Op):
    """From filters f and the output's gradient g the gradient of the images, of like's shape."""

    name = "conv2d_input_gradient"
    kind = "contraction"
    shape_only = (2,)
    formula, reference = compute.conv2d_input_gradient, _input_gradient

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        filters, grad, like = input_shapes
        _require_output(node, like, filters, grad)
        return like

    def flop(self, node: Node, input_shapes: list[Shape], shape: Shape) -> int:
        return 2 * math.prod(input_shapes[1]) * math.prod(input_shapes[0][1:])

    def scatters(self, node: Node) -> bool:
        return node.attrs["stride"] != (1, 1) and node.attrs["groups"] == 1

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        (f, g, _), geometry = node.inputs, geometry_of(node)
        return [
            conv2d_filter_gradient_op(output_grad, g, f, *geometry),
            conv2d_op(output_grad, f, *geometry),
            None,
        ]

    def arguments(self, node: Node, shapes: list[Shape], shape: Shape) -> tuple[Any, ...]:
        return shape, *geometry_of(node)


@register
class Conv2dFilterGradient(Op):
    """From images x and the output's gradient g the gradient of the filters, of like's shape."""

    name = "conv2d_filter_gradient"
    kind = "contraction"
    shape_only = (2,)
    formula, reference = compute.conv2d_filter_gradient, _filter_gradient

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        images, grad, like = input_shapes
        _require_output(node, images, like, grad)
        return like

    def flop(self, node: Node, input_shapes: list[Shape], shape: Shape) -> int:
        return 2 * math.prod(input_shapes[1]) * math.prod(shape[1:])

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        (x, g, _), geometry = node.inputs, geometry_of(node)
        return [
            conv2d_input_gradient_op(output_grad, g, x, *geometry),
            conv2d_op(x, output_grad, *geometry),
            None,
        ]

    def arguments(self, node: Node, shapes: list[Shape], shape: Shape) -> tuple[Any, ...]:
        return shape, *geometry_of(node)


def conv_attributes(op: str, stride: Any, padding: Any, dilation: Any, groups: Any) -> dict[str, Any]:
    """The attributes of the operators of convolution. Raises GraphError."""
    return {
        "stride": pair(op, "stride", stride, 1),
        "padding": pair(op, "padding", padding, 0),
        "dilation": pair(op, "dilation", dilation, 1),
        "groups": integer(op, "groups", groups, 1),
    }


def conv2d_op(
    x: Node, f: Node, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Node:
    """Cross-correlation of images x (N, C, H, W) with filters f (O, C / groups, h, w) -> (N, O, H', W').

    H' = (H + 2 padding - dilation (h - 1) - 1) // stride + 1. Stride, padding and dilation are ints or pairs (rows,
    columns); GraphError for anything else. Group i of the filters sees group i of the channels.
    """
    return Conv2d.make([x, f], conv_attributes("conv2d", stride, padding, dilation, groups))


def conv2d_input_gradient_op(
    f: Node, grad: Node, like: Node, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Node:
    """The gradient of conv2d_op with respect to images of like's shape, from filters and output gradient."""
    attrs = conv_attributes("conv2d_input_gradient", stride, padding, dilation, groups)
    return Conv2dInputGradient.make([f, grad, like], attrs)


def conv2d_filter_gradient_op(
    x: Node, grad: Node, like: Node, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Node:
    """The gradient of conv2d_op with respect to filters of like's shape, from images and output gradient."""
    attrs = conv_attributes("conv2d_filter_gradient", stride, padding, dilation, groups)
    return Conv2dFilterGradient.make([x, grad, like], attrs)
