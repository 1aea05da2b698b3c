"""Operators that move values without changing them, and the sum that undoes a broadcast."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import compute
from ..compute import Tensor
from ..graph import DTYPES, Node, Op, Shape, register, shape_error
from .rules import axes_attribute, require_broadcast, reshaped, resolve_axes, shape_attribute


def _sum_to(x: np.ndarray, shape: Shape) -> np.ndarray:
    lead = x.ndim - len(shape)
    inner = [lead + i for i, extent in enumerate(shape) if extent == 1 and x.shape[lead + i] != 1]
    if not lead and not inner:
        return np.array(x)  # a sum over no axes would turn -0 to 0
    return np.asarray(x.sum(axis=(*range(lead), *inner), keepdims=True)).reshape(shape)


@register
class BroadcastTo(Op):
    """a repeated to the shape of b, by NumPy's rule; b's values are not read."""

    name = "broadcastto"
    dtypes = DTYPES
    shape_only = (1,)
    elementwise = True

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return require_broadcast(node, *input_shapes)

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [sum_to_like_op(output_grad, node.inputs[0]), None]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.broadcast_to(inputs[0], shape)

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.broadcast_to(inputs[0], inputs[1].shape).copy()


@register
class BroadcastShape(Op):
    """a repeated to the shape `attrs["shape"]`, by NumPy's rule; what passes make of `broadcastto`."""

    name = "broadcast_shape"
    dtypes = DTYPES
    elementwise = True

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return require_broadcast(node, input_shapes[0], node.attrs["shape"])

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [sum_to_like_op(output_grad, node.inputs[0])]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.broadcast_to(inputs[0], shape)

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.broadcast_to(inputs[0], node.attrs["shape"]).copy()


@register
class SumToLike(Op):
    """a summed to the shape of b over what a broadcast of b to a's shape would repeat.

    b's values are not read. Where the shapes are equal it is the identity.
    """

    name = "sum_to_like"
    shape_only = (1,)

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        require_broadcast(node, input_shapes[1], input_shapes[0])
        return input_shapes[1]

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [broadcastto_op(output_grad, node.inputs[0]), None]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.sum_to(inputs[0], shape)

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return _sum_to(inputs[0], inputs[1].shape)


@register
class Reshape(Op):
    """The same elements in row-major order under another shape, of which one extent may be -1."""

    name = "reshape"
    dtypes = DTYPES
    is_view = True

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return reshaped(node, input_shapes[0], node.attrs["shape"])

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [reshape_like_op(output_grad, node.inputs[0])]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.reshape(inputs[0], shape)

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return inputs[0].reshape(reshaped(node, inputs[0].shape, node.attrs["shape"]))


@register
class ReshapeLike(Op):
    """a under the shape of b, whose values are not read."""

    name = "reshape_like"
    dtypes = DTYPES
    shape_only = (1,)
    is_view = True

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return reshaped(node, *input_shapes)

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [reshape_like_op(output_grad, node.inputs[0]), None]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.reshape(inputs[0], shape)

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return inputs[0].reshape(inputs[1].shape)


@register
class Transpose(Op):
    """The axes of x in another order, reversed for None; output axis i is x's axis axes[i], as NumPy's."""

    name = "transpose"
    dtypes = DTYPES

    def _order(self, node: Node, rank: int) -> tuple[int, ...]:
        axes = node.attrs["axes"]
        if axes is None:
            return tuple(reversed(range(rank)))
        if len(resolve_axes(node, axes, rank)) != rank:
            raise shape_error(node, f"axes {axes} do not order {rank} dimensions")
        return tuple(axis % rank for axis in axes)

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return tuple(input_shapes[0][axis] for axis in self._order(node, len(input_shapes[0])))

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        axes = node.attrs["axes"]
        if axes is not None:
            order = [axis % len(axes) for axis in axes]
            axes = [order.index(axis) for axis in range(len(order))]
        return [transpose_op(output_grad, axes)]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.transpose(inputs[0], self._order(node, len(shape)))

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.array(np.transpose(inputs[0], node.attrs["axes"]), order="C")


def broadcastto_op(a: Node, b: Node) -> Node:
    """a broadcast to the shape of b."""
    return BroadcastTo.make([a, b])


def broadcast_shape_op(node: Node, shape: Any) -> Node:
    """The node broadcast to `shape`, an int or a tuple. Raises GraphError for anything else."""
    return BroadcastShape.make([node], {"shape": shape_attribute("broadcast_shape", shape)})


def sum_to_like_op(a: Node, b: Node) -> Node:
    """a summed back to the shape of b."""
    return SumToLike.make([a, b])


def reshape_op(node: Node, shape: Any) -> Node:
    """The node under `shape`, an int or a tuple with at most one -1. Raises GraphError for anything else."""
    return Reshape.make([node], {"shape": shape_attribute("reshape", shape)})


def reshape_like_op(a: Node, b: Node) -> Node:
    """a under the shape of b, which has as many elements."""
    return ReshapeLike.make([a, b])


def transpose_op(node: Node, axes: Any = None) -> Node:
    """The node with its axes in the order `axes`, reversed for None.

    Raises GraphError for axes that are no integers.
    """
    return Transpose.make([node], {"axes": axes_attribute("transpose", axes)})
