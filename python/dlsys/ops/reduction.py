"""Sums over axes, their gradients, and the division that makes a mean of a sum."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import compute
from ..compute import Tensor
from ..graph import DTYPES, Node, Op, Shape, register, shape_error
from .rules import axes_attribute, reduced_shape, resolve_axes


@register
class ReduceSum(Op):
    """The sum over `axes`, of all for None, which are dropped or kept with extent 1."""

    name = "reducesum"

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        axes = resolve_axes(node, node.attrs["axes"], len(input_shapes[0]))
        return reduced_shape(input_shapes[0], axes, node.attrs["keepdims"])

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [broadcast_axes_op(output_grad, node.inputs[0], node.attrs["axes"], node.attrs["keepdims"])]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        axes = resolve_axes(node, node.attrs["axes"], len(inputs[0].shape))
        return compute.reduce_sum(inputs[0], axes, node.attrs["keepdims"])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.asarray(inputs[0].sum(axis=node.attrs["axes"], keepdims=node.attrs["keepdims"]))


@register
class BroadcastAxes(Op):
    """a, which lacks `axes` of like's shape or has extent 1 there, repeated along them; a sum's gradient."""

    name = "broadcast_axes"
    dtypes = DTYPES
    shape_only = (1,)

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        shape, like = input_shapes
        axes = resolve_axes(node, node.attrs["axes"], len(like))
        if shape != reduced_shape(like, axes, node.attrs["keepdims"]):
            raise shape_error(node, f"{shape} is not {like} summed over axes {axes}")
        return like

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [reducesum_op(output_grad, node.attrs["axes"], node.attrs["keepdims"]), None]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        if node.attrs["keepdims"]:
            return compute.broadcast_to(inputs[0], shape)
        return compute.broadcast_axes(inputs[0], shape, resolve_axes(node, node.attrs["axes"], len(shape)))

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        shape = inputs[1].shape
        axes = resolve_axes(node, node.attrs["axes"], len(shape))
        return np.broadcast_to(inputs[0].reshape(reduced_shape(shape, axes, True)), shape).copy()


@register
class DivByExtent(Op):
    """x / (the product of like's extents along `axes`); `axes` may also be "rows", every axis but the last.

    The divisor is known when shapes are. By an extent of zero NumPy's rule: NaN or infinity.
    """

    name = "div_by_extent"
    shape_only = (1,)
    elementwise = True

    def _divisor(self, node: Node, like: Shape) -> int:
        axes = node.attrs["axes"]
        if axes == "rows":
            return math.prod(like[:-1])
        return math.prod(like[axis] for axis in resolve_axes(node, axes, len(like)))

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        self._divisor(node, input_shapes[1])
        return input_shapes[0]

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [div_by_extent_op(output_grad, node.inputs[1], node.attrs["axes"]), None]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.div_by_const(inputs[0], self._divisor(node, compute.shape_of(inputs[1])))

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(inputs[0] / inputs[0].dtype.type(self._divisor(node, inputs[1].shape)))


def reducesum_op(node: Node, axes: Any = None, keepdims: bool = False) -> Node:
    """The sum over `axes`: None (all), an int or a tuple, negative ones from the end.

    Raises GraphError for axes that are no integers.
    """
    return ReduceSum.make([node], {"axes": axes_attribute("reducesum", axes), "keepdims": bool(keepdims)})


def reducesumaxiszero_op(node: Node) -> Node:
    """The sum over the first axis, which is dropped."""
    return reducesum_op(node, 0)


def broadcast_axes_op(a: Node, like: Node, axes: Any = None, keepdims: bool = False) -> Node:
    """a repeated to like's shape along `axes`, which it lacks, or has with extent 1 if `keepdims`."""
    return BroadcastAxes.make(
        [a, like], {"axes": axes_attribute("broadcast_axes", axes), "keepdims": bool(keepdims)}
    )


def div_by_extent_op(x: Node, like: Node, axes: Any = None) -> Node:
    """x divided by the product of like's extents along `axes` (None: all; "rows": all but the last)."""
    return DivByExtent.make(
        [x, like], {"axes": axes if axes == "rows" else axes_attribute("div_by_extent", axes)}
    )
