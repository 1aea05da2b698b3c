"""Two-dimensional convolution and its gradients, NCHW images with OIHW filters.

conv2d is bilinear in images x and filters f. With <,> the sum of products, its gradients are defined by
<conv2d(x, f), g> = <x, conv2d_input_gradient(f, g)> = <f, conv2d_filter_gradient(x, g)>, from which the
gradients of the three follow from each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .. import compute
from ..checks import integer, pair
from ..graph import Formula, Made, Node, Op, Shape, register, shape_error
from .rules import in_product_dtype, product_dtype

Pair = tuple[int, int]
Geometry = tuple[Pair, Pair, Pair, int]
GEOMETRY = ("stride", "padding", "dilation", "groups")


def geometry_of(node: Node) -> Geometry:
    """The node's stride, padding, dilation and groups."""
    stride, padding, dilation, groups = (node.attrs[name] for name in GEOMETRY)
    return stride, padding, dilation, groups


def conv_output_shape(node: Node, images: Shape, filters: Shape) -> Shape:
    """The shape of conv2d(images, filters). Raises ShapeError."""
    (sy, sz), (py, pz), (dy, dz), groups = geometry_of(node)
    if len(images) != 4 or len(filters) != 4:
        raise shape_error(node, f"images and filters have four dimensions, not {images} and {filters}")
    if images[1] % groups or filters[0] % groups:
        told = f"{images[1]} channels and {filters[0]} filters are not both divisible by {groups} groups"
        raise shape_error(node, told)
    if images[1] // groups != filters[1]:
        within = "" if groups == 1 else f" in {groups} groups"
        raise shape_error(node, f"channels differ{within}: images {images}, filters {filters}")
    height, width = images[2] + 2 * py, images[3] + 2 * pz
    reach_y, reach_z = (filters[2] - 1) * dy + 1, (filters[3] - 1) * dz + 1
    if not (0 < reach_y <= height and 0 < reach_z <= width):
        apart = "" if (dy, dz) == (1, 1) else f" dilated by {(dy, dz)}"
        raise shape_error(node, f"filters {filters}{apart} do not fit images {images} padded by {(py, pz)}")
    return (images[0], filters[0], (height - reach_y) // sy + 1, (width - reach_z) // sz + 1)


def padded(x: np.ndarray, padding: Pair, fill: float = 0.0) -> np.ndarray:
    """Images with rows and columns of `fill` around them."""
    return np.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2), constant_values=fill)


def windows_of(x: np.ndarray, extents: Shape, stride: Pair, dilation: Pair = (1, 1)) -> np.ndarray:
    """View of padded images, (n, c, y, z, i, j), of windows of `extents` at the stride's positions."""
    (sy, sz), (dy, dz) = stride, dilation
    reach = ((extents[0] - 1) * dy + 1, (extents[1] - 1) * dz + 1)
    return sliding_window_view(x, reach, axis=(2, 3))[:, :, ::sy, ::sz, ::dy, ::dz]


def _by_groups(
    groups: int, formula: str, x: np.ndarray, y: np.ndarray, axes: tuple[int, int], into: int
) -> np.ndarray:
    """The einsum of each group, of x's and y's parts along `axes`, put together along `into`."""
    parts = zip(np.split(x, groups, axes[0]), np.split(y, groups, axes[1]), strict=True)
    found = [np.einsum(formula, one, other, optimize=True) for one, other in parts]
    return np.concatenate(found, into) if groups > 1 else found[0]


def convolved(x: np.ndarray, f: np.ndarray, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> np.ndarray:
    """conv2d by NumPy."""
    x, f = in_product_dtype(x, f)
    windows = windows_of(padded(x, padding), f.shape[2:], stride, dilation)
    return _by_groups(groups, "ncyzij,ocij->noyz", windows, f, (1, 0), 1)


def images_gradient(
    f: np.ndarray, g: np.ndarray, shape: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> np.ndarray:
    """The gradient of conv2d with respect to images of a shape, by NumPy."""
    (sy, sz), (py, pz), (dy, dz) = stride, padding, dilation
    (rows, columns), (height, width) = g.shape[2:], shape[2:]
    out = padded(np.zeros(shape, g.dtype), padding)
    for i, j in np.ndindex(*f.shape[2:]):
        part = _by_groups(groups, "noyz,oc->ncyz", g, f[:, :, i, j], (1, 0), 1)
        y, z = i * dy, j * dz
        out[:, :, y : y + sy * rows : sy, z : z + sz * columns : sz][:, :, :rows, :columns] += part
    return out[:, :, py : py + height, pz : pz + width]


def _filter_gradient(
    x: np.ndarray, g: np.ndarray, shape: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> np.ndarray:
    """The convolution's gradient with respect to its filters, by NumPy."""
    windows = windows_of(padded(x, padding), shape[2:], stride, dilation)
    return _by_groups(groups, "noyz,ncyzij->ocij", g, windows, (1, 1), 0)


class _Convolution(Op):
    """The convolution or a gradient of it. `reads`: which of images, filters and output its inputs are; of a gradient
    the last one gives the result's shape alone."""

    kind = "contraction"
    takes: ClassVar[Sequence[str]] = ("shape", *GEOMETRY)
    reads: ClassVar[tuple[str, ...]]

    @classmethod
    def of(cls, values: Mapping[str, Node], attrs: dict[str, Any]) -> Node:
        """The operator applied to its inputs among these."""
        return cls.make([values[what] for what in cls.reads], attrs)

    def shapes(self, input_shapes: Sequence[Shape], shape: Shape) -> tuple[Shape, Shape, Shape]:
        """Those of images, filters and output, from the inputs' and the result's."""
        found = {"output": shape, **dict(zip(self.reads, input_shapes, strict=True))}
        return found["images"], found["filters"], found["output"]

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        like = input_shapes[-1]
        images, filters, grad = self.shapes(input_shapes, like)
        expected = conv_output_shape(node, images, filters)
        if not self.shape_only:
            return expected
        if grad != expected:
            told = f"images {images} with filters {filters} give {expected}, the gradient is {grad}"
            raise shape_error(node, told)
        return like

    def flop(self, node: Node, input_shapes: list[Shape], shape: Shape) -> int:
        _, filters, output = self.shapes(input_shapes, shape)
        return 2 * math.prod(output) * math.prod(filters[1:])

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        """Of each of the two factors: the operator that gives it, of the other factor and the gradient."""
        values = dict(zip(self.reads, node.inputs, strict=True))
        values[self.reads[2] if self.shape_only else "output"] = output_grad
        gradients = [_GIVES[what].of(values, node.attrs) for what in self.reads[:2]]
        return [*gradients, *[None] * len(self.shape_only)]


@register
class Conv2d(_Convolution):
    """Cross-correlation: out[n, o, y, z] = sum_{c, i, j} pad(x)[n, c, y s + i d, z s' + j d'] f[o, c, i, j].

    With groups, for each share of channels and filters by itself.
    """

    name = "conv2d"
    reads: ClassVar[tuple[str, str]] = ("images", "filters")
    formula: ClassVar[Formula] = compute.conv2d
    reference: ClassVar[Formula] = convolved
    takes: ClassVar[Sequence[str]] = GEOMETRY

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        return product_dtype(self, node, input_dtypes)


@register
class Conv2dInputGradient(_Convolution):
    """From filters f and the output's gradient g the gradient of the images, of like's shape."""

    name = "conv2d_input_gradient"
    reads: ClassVar[tuple[str, str, str]] = ("filters", "output", "images")
    shape_only: ClassVar[Sequence[int]] = (2,)
    formula: ClassVar[Formula] = compute.conv2d_input_gradient
    reference: ClassVar[Formula] = images_gradient

    def scatters(self, node: Node) -> bool:
        return node.attrs["stride"] != (1, 1) and node.attrs["groups"] == 1


@register
class Conv2dFilterGradient(_Convolution):
    """From images x and the output's gradient g the gradient of the filters, of like's shape."""

    name = "conv2d_filter_gradient"
    reads: ClassVar[tuple[str, str, str]] = ("images", "output", "filters")
    shape_only: ClassVar[Sequence[int]] = (2,)
    formula: ClassVar[Formula] = compute.conv2d_filter_gradient
    reference: ClassVar[Formula] = _filter_gradient


_GIVES = {"output": Conv2d, "images": Conv2dInputGradient, "filters": Conv2dFilterGradient}


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
) -> Made:
    """Cross-correlation of images x (N, C, H, W) with filters f (O, C / groups, h, w) -> (N, O, H', W').

    H' = (H + 2 padding - dilation (h - 1) - 1) // stride + 1. Stride, padding and dilation are ints or pairs (rows,
    columns); GraphError for anything else. Group i of the filters sees group i of the channels. Images of uint8 and
    filters of int8 give int32.
    """
    return Conv2d.make([x, f], conv_attributes("conv2d", stride, padding, dilation, groups))


def conv2d_input_gradient_op(
    f: Node, grad: Node, like: Node, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Made:
    """The gradient of conv2d_op with respect to images of like's shape, from filters and output gradient."""
    attrs = conv_attributes("conv2d_input_gradient", stride, padding, dilation, groups)
    return Conv2dInputGradient.make([f, grad, like], attrs)


def conv2d_filter_gradient_op(
    x: Node, grad: Node, like: Node, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Made:
    """The gradient of conv2d_op with respect to filters of like's shape, from images and output gradient."""
    attrs = conv_attributes("conv2d_filter_gradient", stride, padding, dilation, groups)
    return Conv2dFilterGradient.make([x, grad, like], attrs)
