"""Operators that move values without changing them, and the sum that undoes a broadcast."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from .. import compute
from ..checks import integer
from ..errors import GraphError
from ..graph import DTYPES, OPS, Formula, Made, Node, Op, Shape, register, shape_error
from .rules import Linear, axes_attribute, require_broadcast, reshaped, resolve_axes, shape_attribute
from .types import over_axes
from .views import View


@register
class BroadcastTo(Linear):
    """a repeated to the shape of b by NumPy's rule; b's values are not read."""

    name = "broadcastto"
    adjoint = "sum_to_like"
    dtypes = DTYPES
    shape_only: ClassVar[Sequence[int]] = (1,)

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return require_broadcast(node, *input_shapes)

    def known(self, node: Node, shapes: Sequence[Shape], dtypes: Sequence[str]) -> Node:
        x = node.inputs[0]
        return x if shapes[0] == shapes[1] else broadcast_shape_op(x, shapes[1])


@register
class BroadcastShape(Linear):
    """a repeated to the shape `attrs["shape"]` by NumPy's rule."""

    name = "broadcast_shape"
    adjoint = "sum_to_like"
    picks = True
    flops = 0
    dtypes = DTYPES
    kind = "elementwise"
    formula: ClassVar[Formula] = compute.broadcast_to
    reference: ClassVar[Formula] = np.broadcast_to
    takes: ClassVar[Sequence[str]] = ("shape",)

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return require_broadcast(node, input_shapes[0], node.attrs["shape"])


@register
class SumToLike(Linear):
    """a summed to the shape of b over what a broadcast of b to a's shape would repeat.

    b's values are not read. Where the shapes are equal it is the identity.
    """

    name = "sum_to_like"
    adjoint = "broadcastto"
    shape_only: ClassVar[Sequence[int]] = (1,)

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        require_broadcast(node, input_shapes[1], input_shapes[0])
        return input_shapes[1]

    def known(self, node: Node, shapes: Sequence[Shape], dtypes: Sequence[str]) -> Node:
        """A sum over the axes that a broadcast repeats, and a reshape where the others keep an extent of 1."""
        (x, _), (wide, shape) = node.inputs, shapes
        lead = len(wide) - len(shape)
        inner = [lead + i for i, extent in enumerate(shape) if extent == 1 != wide[lead + i]]
        if not lead and not inner:
            return x
        total = OPS["reducesum"].make([x], {"axes": (*range(lead), *inner), "keepdims": bool(inner)})
        return reshape_op(total, shape) if lead and inner else total


class _View(Linear):
    """The same elements under a shape that follows from the input's."""

    adjoint = "reshape_like"
    flops = 0
    picks = True
    dtypes = DTYPES
    kind = "view"
    formula: ClassVar[Formula] = compute.reshape
    reference: ClassVar[Formula] = np.reshape
    takes: ClassVar[Sequence[str]] = ("shape",)


@register
class Reshape(_View):
    """The same elements in row-major order under another shape, of which one extent may be -1."""

    name = "reshape"

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return reshaped(node, input_shapes[0], node.attrs["shape"])


@register
class ReshapeLike(Linear):
    """a under the shape of b, whose values are not read."""

    name = adjoint = "reshape_like"
    dtypes = DTYPES
    shape_only: ClassVar[Sequence[int]] = (1,)

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return reshaped(node, *input_shapes)

    def known(self, node: Node, shapes: Sequence[Shape], dtypes: Sequence[str]) -> Node:
        return reshape_op(node.inputs[0], shapes[1])


@register
class Transpose(Op):
    """The axes of x in another order, reversed for None; output axis i is x's axis axes[i], as NumPy's."""

    name = "transpose"
    picks = True
    flops = 0
    dtypes = DTYPES
    formula: ClassVar[Formula] = compute.transpose
    reference: ClassVar[Formula] = np.transpose

    def order(self, node: Node, rank: int) -> tuple[int, ...]:
        """For each axis of the result the input's axis that it is. Raises ShapeError."""
        axes = node.attrs["axes"]
        if axes is None:
            return tuple(reversed(range(rank)))
        if len(resolve_axes(node, axes, rank)) != rank:
            raise shape_error(node, f"axes {axes} do not order {rank} dimensions")
        return tuple(axis % rank for axis in axes)

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return tuple(input_shapes[0][axis] for axis in self.order(node, len(input_shapes[0])))

    def view(self, node: Node, x: View) -> View:
        """The result as a view of an array of which x is one."""
        return x.permuted(self.order(node, len(x.shape)))

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        axes = node.attrs["axes"]
        if axes is not None:
            order = [axis % len(axes) for axis in axes]
            axes = [order.index(axis) for axis in range(len(order))]
        return [transpose_op(output_grad, axes)]

    def arguments(self, node: Node, shapes: list[Shape], shape: Shape) -> tuple[Any, ...]:
        return (self.order(node, len(shape)),)


@register
class ExpandDims(_View):
    """x with new axes of extent 1, which are the result's axes number `axes`."""

    name = "expand_dims"

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        rank = len(input_shapes[0]) + len(node.attrs["axes"])
        axes = resolve_axes(node, node.attrs["axes"], rank)
        rest = iter(input_shapes[0])
        return tuple(1 if axis in axes else next(rest) for axis in range(rank))


@register
class Squeeze(_View):
    """x without `axes`, which have extent 1; without all such axes for None."""

    name = "squeeze"

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        shape = input_shapes[0]
        if node.attrs["axes"] is None:
            return tuple(extent for extent in shape if extent != 1)
        axes = resolve_axes(node, node.attrs["axes"], len(shape))
        for axis in axes:
            if shape[axis] != 1:
                raise shape_error(node, f"axis {axis} of {shape} has extent {shape[axis]}, not 1")
        return tuple(extent for axis, extent in enumerate(shape) if axis not in axes)


@register
class Flatten(_View):
    """x with its axes from `start` to `end`, both included, as one; a 0-d input becomes 1-d."""

    name = "flatten"

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        shape = input_shapes[0] or (1,)
        start, end = (resolve_axes(node, (node.attrs[name],), len(shape))[0] for name in ("start", "end"))
        if start > end:
            raise shape_error(node, f"axis {start} of {shape} lies behind axis {end}")
        return (*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :])


@register
class SwapAxes(Transpose):
    """x with two of its axes exchanged."""

    name = "swapaxes"

    def order(self, node: Node, rank: int) -> tuple[int, ...]:
        a, b = (resolve_axes(node, (axis,), rank)[0] for axis in node.attrs["axes"])
        order = list(range(rank))
        order[a], order[b] = b, a
        return tuple(order)

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [SwapAxes.make([output_grad], node.attrs)]


def broadcastto_op(a: Node, b: Node) -> Made:
    """a broadcast to the shape of b."""
    return BroadcastTo.make([a, b])


def broadcast_shape_op(node: Node, shape: Any) -> Made:
    """The node broadcast to `shape`, an int or a tuple. Raises GraphError for anything else."""
    return BroadcastShape.make([node], {"shape": shape_attribute("broadcast_shape", shape, signed=True)})


def sum_to_like_op(a: Node, b: Node) -> Made:
    """a summed back to the shape of b."""
    return SumToLike.make([a, b])


def sum_to(x: Node, shape: Shape) -> Made | Node:
    """x summed over what broadcasting `shape` to x's shape repeats: x itself where that is nothing. Where the sum is
    over leading axes alone they are dropped at once, so that no reshape follows."""
    if x.shape == shape:
        return x
    lead = len(x.shape) - len(shape)
    inner = [lead + i for i, extent in enumerate(shape) if extent == 1 != x.shape[lead + i]]
    total = OPS["reducesum"].make([x], {"axes": (*range(lead), *inner), "keepdims": bool(inner)})
    return reshape_op(total, shape) if lead and inner else total


def reshape_op(node: Node, shape: Any) -> Made:
    """The node under `shape`, an int or a tuple with at most one -1. Raises GraphError for anything else."""
    return Reshape.make([node], {"shape": shape_attribute("reshape", shape, signed=True)})


def reshape_like_op(a: Node, b: Node) -> Made:
    """a under the shape of b, which has as many elements."""
    return ReshapeLike.make([a, b])


def transpose_op(node: Node, axes: Any = None) -> Made:
    """The node with its axes in the order `axes`, reversed for None.

    Raises GraphError for axes that are no integers.
    """
    return Transpose.make([node], {"axes": axes_attribute("transpose", axes)})


def expand_dims_op(node: Node, axes: Any) -> Made:
    """The node with new axes of extent 1, the result's axes number `axes`, an int or a tuple.

    Raises GraphError for axes that are no integers.
    """
    found = axes_attribute("expand_dims", axes)
    if found is None:
        raise GraphError("expand_dims: axes must be an integer or integers, not None")
    return ExpandDims.make([node], {"axes": found})


def squeeze_op(node: Node, axes: Any = None) -> Made:
    """The node without `axes`, an int or a tuple, of extent 1; for None without all such axes."""
    return Squeeze.make([node], {"axes": over_axes("squeeze", node, axes)})


def flatten_op(node: Node, start_axis: int = 0, end_axis: int = -1) -> Made:
    """The node with the axes from `start_axis` to `end_axis`, both included, as one, as `torch.flatten`.

    Raises GraphError for an axis that is no integer.
    """
    start, end = (integer("flatten", "an axis", axis) for axis in (start_axis, end_axis))
    return Flatten.make([node], {"start": start, "end": end})


def swapaxes_op(node: Node, a: int, b: int) -> Made:
    """The node with the axes a and b exchanged. Raises GraphError for an axis that is no integer."""
    return SwapAxes.make([node], {"axes": tuple(integer("swapaxes", "an axis", axis) for axis in (a, b))})
