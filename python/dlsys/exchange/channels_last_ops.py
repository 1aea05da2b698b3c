"""Convolution and pooling of images (N, H, W, C), for inference: `freeze` replaces those of (N, C, H, W) by them.

The channels of a pixel are neighbours in memory, so a convolution with 1 x 1 filters is a matrix product without a
copy, results are stored as vectors, and planes are convolved and pooled along vectors whatever the stride.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .. import compute
from ..checks import integer
from ..errors import GraphError
from ..graph import Formula, Node, Op, Shape, error_at, register, shape_error
from ..ops.conv import GEOMETRY, Pair, conv_attributes, conv_output_shape, convolved
from ..ops.pooling import Spans, max_pool, mean_pool, pool_attributes, pooled_shape, spans_of

FIRST, LAST = (0, 3, 1, 2), (0, 2, 3, 1)  # the axes of images NHWC in the order NCHW, and the other way round


def _first(shape: Shape) -> Shape:
    """The shape in the order NCHW."""
    return tuple(shape[axis] for axis in FIRST) if len(shape) == 4 else shape


def _last(shape: Shape) -> Shape:
    return tuple(shape[axis] for axis in LAST)


class _ChannelsLast(Op):
    """An operator of images NHWC."""

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        raise error_at(node, GraphError, "images with channels last are for inference: there is no gradient")


class _Convolution(_ChannelsLast):
    """A convolution of images NHWC, whose shapes are those of `conv2d` in another order."""

    kind = "contraction"
    takes: ClassVar[Sequence[str]] = ("shape", *GEOMETRY[:3])

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        images, filters = _first(input_shapes[0]), self.filters(node, input_shapes[1])
        return _last(conv_output_shape(node, images, filters))

    def filters(self, node: Node, given: Shape) -> Shape:
        """The filters' shape, OIHW. Raises ShapeError."""
        raise NotImplementedError

    def flop(self, node: Node, input_shapes: list[Shape], shape: Shape) -> int:
        return 2 * math.prod(shape) * math.prod(self.filters(node, input_shapes[1])[1:])


def filters_in_panels(f: np.ndarray, width: int) -> np.ndarray:
    """Filters (O, C, h, w) in panels of `width`, (ceil(O / width), h, w, C, width), zeros beyond the last one."""
    padded = np.pad(f, ((0, -len(f) % width), (0, 0), (0, 0), (0, 0)))
    return np.ascontiguousarray(padded.reshape(-1, width, *f.shape[1:]).transpose(0, 3, 4, 2, 1))


def _conv2d_panels(
    x: np.ndarray, panels: np.ndarray, shape: Shape, stride: Pair, padding: Pair, dilation: Pair
) -> np.ndarray:
    """The convolution of NHWC images with filters in panels, by NumPy; `shape` is that of the result."""
    f = panels.transpose(0, 4, 3, 1, 2).reshape(-1, panels.shape[3], *panels.shape[1:3])[: shape[3]]
    return convolved(x.transpose(FIRST), f, stride, padding, dilation, 1).transpose(LAST)


@register
class Conv2dPanels(_Convolution):
    """conv2d of images (N, H, W, C) with filters that lie in panels (see `filters_in_panels`)."""

    name = "conv2d_panels"
    formula: ClassVar[Formula] = compute.conv2d_panels
    reference: ClassVar[Formula] = _conv2d_panels

    def filters(self, node: Node, given: Shape) -> Shape:
        if len(given) != 5 or given[0] != -(-node.attrs["filters"] // given[4]):
            raise shape_error(node, f"{given} are no panels of {node.attrs['filters']} filters")
        return node.attrs["filters"], given[3], *given[1:3]


def _conv2d_planes(
    x: np.ndarray, f: np.ndarray, shape: Shape, stride: Pair, padding: Pair, dilation: Pair
) -> np.ndarray:
    """The convolution of each NHWC channel with a filter of its own, by NumPy."""
    filters = f.transpose(2, 0, 1)[:, None]
    return convolved(x.transpose(FIRST), filters, stride, padding, dilation, len(filters)).transpose(LAST)


@register
class Conv2dPlanes(_Convolution):
    """Each channel of images (N, H, W, C) convolved with a filter of its own, f (h, w, C)."""

    name = "conv2d_planes"
    formula: ClassVar[Formula] = compute.conv2d_planes
    reference: ClassVar[Formula] = _conv2d_planes

    def filters(self, node: Node, given: Shape) -> Shape:
        if len(given) != 3 or given[2] != node.attrs["groups"]:
            raise shape_error(node, f"{given} are no filters of {node.attrs['groups']} channels")
        return given[2], 1, *given[:2]


def _pool_last(x: np.ndarray, rows: Any, columns: Any, mean: bool) -> np.ndarray:
    return (mean_pool if mean else max_pool)(x.transpose(FIRST), rows, columns).transpose(LAST)


@register
class PoolLast(_ChannelsLast):
    """The maximum of each window of images (N, H, W, C), or the mean, as max_pool2d's and avg_pool2d's."""

    name = "pool_last"
    formula: ClassVar[Formula] = compute.pool_last
    reference: ClassVar[Formula] = _pool_last

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return _last(pooled_shape(node, _first(input_shapes[0])))

    def arguments(self, node: Node, shapes: list[Shape], shape: Shape) -> tuple[Any, ...]:
        spans: Spans = spans_of(node, _first(shapes[0]))
        return *spans, node.attrs["mean"]


class _Tiles(_ChannelsLast):
    """An operator of tiles along an axis, transformed by a matrix, its second input."""

    kind = "contraction"

    def flop(self, node: Node, input_shapes: list[Shape], shape: Shape) -> int:
        return 2 * math.prod(shape) * input_shapes[1][1]

    def extents(self, node: Node, input_shapes: list[Shape], dropped: int) -> list[int]:
        """The extents of the first input behind `dropped` axes. Raises ShapeError."""
        x, matrix = input_shapes
        if len(matrix) != 2 or len(x) - dropped <= node.attrs["axis"]:
            raise shape_error(node, f"no matrix along axis {node.attrs['axis']}: {x} and {matrix}")
        return list(x[dropped:])


def _transform_tiles(x: np.ndarray, matrix: np.ndarray, axis: int, count: int, stride: int, padding: int) -> np.ndarray:
    """The operator by NumPy."""
    behind = max((count - 1) * stride + matrix.shape[1] - padding - x.shape[axis], 0)
    padded = np.pad(x, [(padding, behind) if i == axis else (0, 0) for i in range(x.ndim)])
    tiles = sliding_window_view(padded, matrix.shape[1], axis=axis)
    chosen = tiles.take(np.arange(count) * stride, axis)
    return np.moveaxis(chosen @ matrix.T, -1, 0)


@register
class TransformTiles(_Tiles):
    """Tiles of x along `axis`, `stride` apart, each times a matrix (kinds, size): (kinds, ..., count, ...); zeros lie
    before x, `padding` of them, and behind it."""

    name = "transform_tiles"
    formula: ClassVar[Formula] = compute.transform_tiles
    reference: ClassVar[Formula] = _transform_tiles
    takes: ClassVar[Sequence[str]] = ("axis", "count", "stride", "padding")

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        found = self.extents(node, input_shapes, 0)
        found[node.attrs["axis"]] = node.attrs["count"]
        return input_shapes[1][0], *found


def _join_tiles(x: np.ndarray, matrix: np.ndarray, axis: int, extent: int) -> np.ndarray:
    """The operator by NumPy."""
    joined = np.moveaxis(np.tensordot(matrix, x, 1), 0, axis + 1)
    shape = joined.shape
    return joined.reshape(*shape[:axis], -1, *shape[axis + 2 :]).take(np.arange(extent), axis)


@register
class JoinTiles(_Tiles):
    """From x (kinds, ..., tiles, ...) tiles, each a matrix (rows, kinds) times x, one behind another along `axis` of
    the result, up to `extent`."""

    name = "join_tiles"
    formula: ClassVar[Formula] = compute.join_tiles
    reference: ClassVar[Formula] = _join_tiles
    takes: ClassVar[Sequence[str]] = ("axis", "extent")

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        found, (rows, kinds), axis = self.extents(node, input_shapes, 1), input_shapes[1], node.attrs["axis"]
        if input_shapes[0][0] != kinds or -(-node.attrs["extent"] // rows) != found[axis]:
            raise shape_error(node, f"{input_shapes[0]} are no tiles of {node.attrs['extent']} by {input_shapes[1]}")
        found[axis] = node.attrs["extent"]
        return tuple(found)


def conv2d_panels_op(x: Node, panels: Node, filters: int, stride: Any = 1, padding: Any = 0, dilation: Any = 1) -> Node:
    """conv2d_op of images (N, H, W, C) with `filters` filters that lie in panels (ceil(filters / width), h, w, C,
    width): (N, H', W', filters)."""
    attrs = conv_attributes("conv2d_panels", stride, padding, dilation, 1)
    return Conv2dPanels.make([x, panels], {**attrs, "filters": integer("conv2d_panels", "filters", filters, 1)})


def conv2d_planes_op(x: Node, f: Node, channels: int, stride: Any = 1, padding: Any = 0, dilation: Any = 1) -> Node:
    """conv2d_op of images (N, H, W, channels), each with a filter of its own, f (h, w, channels)."""
    return Conv2dPlanes.make([x, f], conv_attributes("conv2d_planes", stride, padding, dilation, channels))


def pool_last_op(x: Node, kernel: Any, stride: Any = None, padding: Any = 0, mean: bool = False) -> Node:
    """max_pool2d_op of images (N, H, W, C), or with `mean` avg_pool2d_op: (N, H', W', C)."""
    return PoolLast.make([x], {**pool_attributes("pool_last", kernel, stride, padding), "mean": mean})


def transform_tiles_op(x: Node, matrix: Node, axis: int, count: int, stride: int, padding: int) -> Node:
    """`count` tiles of x along `axis`, `stride` apart, the first beginning `padding` before x, each times the matrix
    (kinds, size): (kinds, ...) with `count` in place of the axis's extent."""
    return TransformTiles.make([x, matrix], {"axis": axis, "count": count, "stride": stride, "padding": padding})


def join_tiles_op(x: Node, matrix: Node, axis: int, extent: int) -> Node:
    """The matrix (rows, kinds) times x (kinds, ..., tiles, ...): tiles of `rows` one behind another along `axis` of the
    result, which has `extent` there."""
    return JoinTiles.make([x, matrix], {"axis": axis, "extent": extent})
