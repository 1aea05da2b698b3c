"""Convolution and pooling of images (N, H, W, C), for inference: `freeze` replaces those of (N, C, H, W) by them.

The channels of a pixel are neighbours in memory, so a convolution with 1 x 1 filters is a matrix product without a
copy, results are stored as vectors, and planes are convolved and pooled along vectors whatever the stride.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ..checks import integer
from ..errors import GraphError, ShapeError
from ..graph import Made, Node, Shape, error_at
from ..ops.conv import Pair, conv_attributes, conv_output_shape, convolved
from ..ops.pooling import max_pool, mean_pool, pool_attributes, pooled_shape
from ..ops.primitive import primitive
from ..tvm_import import with_compiler

FIRST, LAST = (0, 3, 1, 2), (0, 2, 3, 1)  # the axes of images NHWC in the order NCHW, and the other way round


def _formula(name: str) -> Callable[..., Any]:
    """The function of formulas.py, which is loaded with TVM's compiler when it is first called."""
    return lambda *inputs, **attrs: getattr(with_compiler("deploy.formulas"), name)(*inputs, **attrs)


def _first(shape: Shape) -> Shape:
    """The shape in the order NCHW."""
    return tuple(shape[axis] for axis in FIRST) if len(shape) == 4 else shape


def _last(shape: Shape) -> Shape:
    return tuple(shape[axis] for axis in LAST)


def _no_gradient(g: Node, y: Node, *inputs: Node, **attrs: Any) -> None:
    raise error_at(y, GraphError, "images with channels last are for inference: there is no gradient")


def filters_in_panels(f: np.ndarray, width: int) -> np.ndarray:
    """Filters (O, C, h, w) in panels of `width`, (ceil(O / width), h, w, C, width), zeros beyond the last one."""
    padded = np.pad(f, ((0, -len(f) % width), (0, 0), (0, 0), (0, 0)))
    return np.ascontiguousarray(padded.reshape(-1, width, *f.shape[1:]).transpose(0, 3, 4, 2, 1))


def _of_panels(panels: Shape, filters: int) -> Shape:
    """The shape of the filters that lie in panels, OIHW. Raises ShapeError."""
    if len(panels) != 5 or panels[0] != -(-filters // panels[4]):
        raise ShapeError(f"{panels} are no panels of {filters} filters")
    return filters, panels[3], *panels[1:3]


def _of_planes(f: Shape, groups: int) -> Shape:
    """The shape of a filter for each of the channels, OIHW. Raises ShapeError."""
    if len(f) != 3 or f[2] != groups:
        raise ShapeError(f"{f} are no filters of {groups} channels")
    return f[2], 1, *f[:2]


def _panels_shape(images: Shape, panels: Shape, filters: int, **geometry: Any) -> Shape:
    return _last(conv_output_shape(_first(images), _of_panels(panels, filters), **geometry))


def _planes_shape(images: Shape, f: Shape, groups: int, **geometry: Any) -> Shape:
    return _last(conv_output_shape(_first(images), _of_planes(f, groups), groups=groups, **geometry))


def _conv2d_panels(x: np.ndarray, panels: np.ndarray, filters: int, groups: int, **geometry: Pair) -> np.ndarray:
    """The convolution of NHWC images with filters in panels, by NumPy."""
    f = panels.transpose(0, 4, 3, 1, 2).reshape(-1, panels.shape[3], *panels.shape[1:3])[:filters]
    return convolved(x.transpose(FIRST), f, groups=groups, **geometry).transpose(LAST)


def _conv2d_planes(x: np.ndarray, f: np.ndarray, groups: int, **geometry: Pair) -> np.ndarray:
    """The convolution of each NHWC channel with a filter of its own, by NumPy."""
    return convolved(x.transpose(FIRST), f.transpose(2, 0, 1)[:, None], groups=groups, **geometry).transpose(LAST)


def _flop(filters: Callable[[Node, Shape], Shape]) -> Callable[[Node, list[Shape], Shape], int]:
    """Operations of a convolution with filters of the shape that a function says."""
    return lambda node, shapes, shape: 2 * math.prod(shape) * math.prod(filters(node, shapes[1])[1:])


def _matmul_panels(a: np.ndarray, panels: np.ndarray) -> np.ndarray:
    *lead, count, k, width = panels.shape
    return a @ np.moveaxis(panels, -3, -2).reshape(*lead, k, count * width)


def _product_shape(a: Shape, panels: Shape) -> Shape:
    if len(a) < 2 or len(panels) not in (3, 4) or a[-1] != panels[-2] or (len(panels) == 4 and a[:-2] != panels[:1]):
        raise ShapeError(f"inner dimensions differ: {a} x {panels}")
    return (*a[:-1], panels[-3] * panels[-1])


matmul_panels = primitive(
    "matmul_panels",
    numpy=_matmul_panels,
    te=_formula("matmul_panels"),
    shape=_product_shape,
    grad=_no_gradient,
    kind="contraction",
    flop=lambda node, shapes, shape: 2 * math.prod(shape) * shapes[0][-1],
    doc="(..., m, k) times a matrix in panels of columns, P[j, i, c] = B[i, j width + c] -> (..., m, n); with "
    "(b, panels, k, width) the product of (b, m, k) with b matrices.",
)
conv2d_panels = primitive(
    "conv2d_panels",
    numpy=_conv2d_panels,
    te=_formula("conv2d_panels"),
    shape=_panels_shape,
    grad=_no_gradient,
    kind="contraction",
    flop=_flop(lambda node, panels: _of_panels(panels, node.attrs["filters"])),
    doc="conv2d of images (N, H, W, C) with filters that lie in panels (see `filters_in_panels`).",
)
conv2d_planes = primitive(
    "conv2d_planes",
    numpy=_conv2d_planes,
    te=_formula("conv2d_planes"),
    shape=_planes_shape,
    grad=_no_gradient,
    kind="contraction",
    flop=_flop(lambda node, f: _of_planes(f, node.attrs["groups"])),
    doc="Each channel of images (N, H, W, C) convolved with a filter of its own, f (h, w, C).",
)
pool_last = primitive(
    "pool_last",
    numpy=lambda x, mean, **windows: (mean_pool if mean else max_pool)(x.transpose(FIRST), **windows).transpose(LAST),
    te=_formula("pool_last"),
    shape=lambda images, mean, **windows: _last(pooled_shape(_first(images), **windows)),
    grad=_no_gradient,
    kind="single",
    doc="The maximum of each window of images (N, H, W, C), or the mean, as max_pool2d's and avg_pool2d's.",
)


def _transform_tiles(x: np.ndarray, matrix: np.ndarray, axis: int, count: int, stride: int, padding: int) -> np.ndarray:
    """The operator by NumPy."""
    behind = max((count - 1) * stride + matrix.shape[1] - padding - x.shape[axis], 0)
    padded = np.pad(x, [(padding, behind) if i == axis else (0, 0) for i in range(x.ndim)])
    tiles = sliding_window_view(padded, matrix.shape[1], axis=axis)
    chosen = tiles.take(np.arange(count) * stride, axis)
    return np.moveaxis(chosen @ matrix.T, -1, 0)


def _transformed_shape(x: Shape, matrix: Shape, axis: int, count: int, stride: int, padding: int) -> Shape:
    if len(matrix) != 2 or len(x) <= axis:
        raise ShapeError(f"no matrix along axis {axis}: {x} and {matrix}")
    return matrix[0], *x[:axis], count, *x[axis + 1 :]


def _join_tiles(x: np.ndarray, matrix: np.ndarray, axis: int, extent: int) -> np.ndarray:
    """The operator by NumPy."""
    joined = np.moveaxis(np.tensordot(matrix, x, 1), 0, axis + 1)
    shape = joined.shape
    return joined.reshape(*shape[:axis], -1, *shape[axis + 2 :]).take(np.arange(extent), axis)


def _joined_shape(x: Shape, matrix: Shape, axis: int, extent: int) -> Shape:
    if len(matrix) != 2 or len(x) - 1 <= axis:
        raise ShapeError(f"no matrix along axis {axis}: {x} and {matrix}")
    if x[0] != matrix[1] or -(-extent // matrix[0]) != x[axis + 1]:
        raise ShapeError(f"{x} are no tiles of {extent} by {matrix}")
    return *x[1 : axis + 1], extent, *x[axis + 2 :]


def _tiles_flop(node: Node, input_shapes: list[Shape], shape: Shape) -> int:
    return 2 * math.prod(shape) * input_shapes[1][1]


transform_tiles = primitive(
    "transform_tiles",
    numpy=_transform_tiles,
    te=_formula("transform_tiles"),
    shape=_transformed_shape,
    grad=_no_gradient,
    kind="contraction",
    flop=_tiles_flop,
    doc="Tiles of x along `axis`, `stride` apart, each times a matrix (kinds, size): (kinds, ..., count, ...); zeros "
    "lie before x, `padding` of them, and behind it.",
)
join_tiles = primitive(
    "join_tiles",
    numpy=_join_tiles,
    te=_formula("join_tiles"),
    shape=_joined_shape,
    grad=_no_gradient,
    kind="contraction",
    flop=_tiles_flop,
    doc="From x (kinds, ..., tiles, ...) tiles, each a matrix (rows, kinds) times x, one behind another along `axis` "
    "of the result, up to `extent`.",
)


def conv2d_panels_op(x: Node, panels: Node, filters: int, stride: Any = 1, padding: Any = 0, dilation: Any = 1) -> Made:
    """conv2d_op of images (N, H, W, C) with `filters` filters that lie in panels (ceil(filters / width), h, w, C,
    width): (N, H', W', filters)."""
    attrs = conv_attributes("conv2d_panels", stride, padding, dilation, 1)
    return conv2d_panels(x, panels, filters=integer("conv2d_panels", "filters", filters, 1), **attrs)


def conv2d_planes_op(x: Node, f: Node, channels: int, stride: Any = 1, padding: Any = 0, dilation: Any = 1) -> Made:
    """conv2d_op of images (N, H, W, channels), each with a filter of its own, f (h, w, channels)."""
    return conv2d_planes(x, f, **conv_attributes("conv2d_planes", stride, padding, dilation, channels))


def pool_last_op(x: Node, kernel: Any, stride: Any = None, padding: Any = 0, mean: bool = False) -> Made:
    """max_pool2d_op of images (N, H, W, C), or with `mean` avg_pool2d_op: (N, H', W', C)."""
    return pool_last(x, **pool_attributes("pool_last", kernel, stride, padding), mean=mean)


def transform_tiles_op(x: Node, matrix: Node, axis: int, count: int, stride: int, padding: int) -> Made:
    """`count` tiles of x along `axis`, `stride` apart, the first beginning `padding` before x, each times the matrix
    (kinds, size): (kinds, ...) with `count` in place of the axis's extent."""
    return transform_tiles(x, matrix, axis=axis, count=count, stride=stride, padding=padding)


def join_tiles_op(x: Node, matrix: Node, axis: int, extent: int) -> Made:
    """The matrix (rows, kinds) times x (kinds, ..., tiles, ...): tiles of `rows` one behind another along `axis` of the
    result, which has `extent` there."""
    return join_tiles(x, matrix, axis=axis, extent=extent)
