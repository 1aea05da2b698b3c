"""Two-dimensional convolution and its gradients, NCHW images with OIHW filters.

conv2d is bilinear in images x and filters f. With <,> the sum of products, its gradients are defined by
<conv2d(x, f), g> = <x, conv2d_input_gradient(f, g)> = <f, conv2d_filter_gradient(x, g)>, from which the
gradients of the three follow from each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .. import compute
from ..checks import integer, pair
from ..errors import ShapeError
from ..graph import Made, Node, Shape
from .primitive import Primitive, primitive
from .rules import in_product_dtype, product_dtype, shape_attribute

Pair = tuple[int, int]
ROLES = {
    "conv2d": ("images", "filters", "output"),
    "conv2d_input_gradient": ("filters", "output", "images"),
    "conv2d_filter_gradient": ("images", "output", "filters"),
}
"""What the two inputs and the result of a convolution, or of a gradient of one, are."""


def shapes_of(op: str, shapes: Sequence[Shape]) -> tuple[Shape, Shape, Shape]:
    """The shapes of images, filters and output, from those of an operator's inputs and its result."""
    of = dict(zip(ROLES[op], shapes, strict=True))
    return of["images"], of["filters"], of["output"]


def geometry_of(node: Node) -> tuple[Pair, Pair, Pair, int]:
    """The node's stride, padding, dilation and groups."""
    attrs = node.attrs
    return attrs["stride"], attrs["padding"], attrs["dilation"], attrs["groups"]


def conv_output_shape(images: Shape, filters: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> Shape:
    """The shape of conv2d(images, filters). Raises ShapeError."""
    if len(images) != 4 or len(filters) != 4:
        raise ShapeError(f"images and filters have four dimensions, not {images} and {filters}")
    if images[1] % groups or filters[0] % groups:
        channels = f"{images[1]} channels and {filters[0]} filters"
        raise ShapeError(f"{channels} are not both divisible by {groups} groups")
    if images[1] // groups != filters[1]:
        within = "" if groups == 1 else f" in {groups} groups"
        raise ShapeError(f"channels differ{within}: images {images}, filters {filters}")
    space = []
    for extent, taps, s, p, d in zip(images[2:], filters[2:], stride, padding, dilation, strict=True):
        reach = (taps - 1) * d + 1
        if not 0 < reach <= extent + 2 * p:
            apart = "" if dilation == (1, 1) else f" dilated by {dilation}"
            raise ShapeError(f"filters {filters}{apart} do not fit images {images} padded by {padding}")
        space.append((extent + 2 * p - reach) // s + 1)
    return (images[0], filters[0], *space)


def _gradient_shape(op: str, first: Shape, second: Shape, shape: Shape, geometry: dict[str, Any]) -> Shape:
    """`shape`, of the images or filters whose gradient an operator computes. Raises ShapeError."""
    images, filters, output = shapes_of(op, (first, second, shape))
    expected = conv_output_shape(images, filters, **geometry)
    if output != expected:
        raise ShapeError(f"images {images} with filters {filters} give {expected}, the gradient is {output}")
    return shape


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
    results = [np.einsum(formula, one, other, optimize=True) for one, other in parts]
    return np.concatenate(results, into) if groups > 1 else results[0]


def convolved(
    x: np.ndarray, f: np.ndarray, stride: Pair, padding: Pair, dilation: Pair, groups: int = 1
) -> np.ndarray:
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


def _flop(node: Node, input_shapes: list[Shape], shape: Shape) -> int:
    _, filters, output = shapes_of(node.op.name, (*input_shapes, shape))
    return 2 * math.prod(output) * math.prod(filters[1:])


conv2d: Primitive = primitive(
    "conv2d", te=compute.conv2d, numpy=convolved,
    grad=lambda g, y, x, f, **geometry: (
        conv2d_input_gradient(f, g, shape=x.shape, **geometry), conv2d_filter_gradient(x, g, shape=f.shape, **geometry)
    ),
    shape=conv_output_shape, dtype=product_dtype, kind="contraction", flop=_flop,
    doc="out[n, o, y, z] = sum_{c, i, j} pad(x)[n, c, y s + i d, z s' + j d'] f[o, c, i, j], see `conv2d_op`.",
)  # fmt: skip
conv2d_input_gradient: Primitive = primitive(
    "conv2d_input_gradient", te=compute.conv2d_input_gradient, numpy=images_gradient,
    grad=lambda g, y, f, of_output, shape, **geometry: (
        conv2d_filter_gradient(g, of_output, shape=f.shape, **geometry), conv2d(g, f, **geometry)
    ),
    shape=lambda f, g, shape, **geometry: _gradient_shape("conv2d_input_gradient", f, g, shape, geometry),
    kind="contraction", flop=_flop, scatters=lambda node: node.attrs["stride"] != (1, 1) and node.attrs["groups"] == 1,
    doc="The gradient of images of `shape`, from filters and the output's gradient.",
)  # fmt: skip
conv2d_filter_gradient: Primitive = primitive(
    "conv2d_filter_gradient", te=compute.conv2d_filter_gradient, numpy=_filter_gradient,
    grad=lambda g, y, x, of_output, shape, **geometry: (
        conv2d_input_gradient(g, of_output, shape=x.shape, **geometry), conv2d(x, g, **geometry)
    ),
    shape=lambda x, g, shape, **geometry: _gradient_shape("conv2d_filter_gradient", x, g, shape, geometry),
    kind="contraction", flop=_flop, doc="The gradient of filters of `shape`, from images and the output's gradient.",
)  # fmt: skip


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
    return conv2d(x, f, **conv_attributes("conv2d", stride, padding, dilation, groups))


def conv2d_input_gradient_op(
    f: Node, grad: Node, shape: Any, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Made:
    """The gradient of conv2d_op with respect to images of `shape`, from filters and output gradient."""
    attrs = conv_attributes("conv2d_input_gradient", stride, padding, dilation, groups)
    return conv2d_input_gradient(f, grad, shape=shape_attribute("conv2d_input_gradient", shape), **attrs)


def conv2d_filter_gradient_op(
    x: Node, grad: Node, shape: Any, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Made:
    """The gradient of conv2d_op with respect to filters of `shape`, from images and output gradient."""
    attrs = conv_attributes("conv2d_filter_gradient", stride, padding, dilation, groups)
    return conv2d_filter_gradient(x, grad, shape=shape_attribute("conv2d_filter_gradient", shape), **attrs)
