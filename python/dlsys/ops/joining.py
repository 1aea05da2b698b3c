"""Several nodes put together along an axis, and one taken apart."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import reduce
from typing import Any, ClassVar

import numpy as np

from .. import compute
from ..checks import integer
from ..compute import Tensor
from ..errors import GraphError, ShapeError
from ..graph import DTYPES, Made, Node, Op, Shape, register, shape_error
from .elementwise import add_op, full_op, zeroslike_op
from .rules import axes_attribute, own_axis, require_same
from .shape import reshape_op
from .slicing import Key, Region, Slice, SliceGradient, key_at, region_of
from .types import known_dtype, known_shape, shape_of


@register
class Concatenate(Op):
    """The inputs one behind another along `axis`; their other extents agree."""

    name = "concatenate"
    kind = "join"
    flops = 0
    dtypes = DTYPES

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        first = input_shapes[0]
        axis = own_axis(node, len(first))
        for shape in input_shapes:
            if shape[:axis] + shape[axis + 1 :] != first[:axis] + first[axis + 1 :] or len(shape) != len(
                first
            ):
                raise shape_error(node, f"{first} and {shape} do not join along axis {node.attrs['axis']}")
        return (*first[:axis], sum(shape[axis] for shape in input_shapes), *first[axis + 1 :])

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        """A split, at the inputs' extents where these are not known."""
        axis, *first = node.attrs["axis"], *node.inputs[:-1]
        if known_shape(node) is not None:
            return [*split_op(output_grad, list(itertools.accumulate(shape_of(x)[axis] for x in first)), axis)]
        grads, rest = [], output_grad
        for x in first:
            grads.append(SplitLike.make([rest, x], {"axis": axis, "rest": False}))
            rest = SplitLike.make([rest, x], {"axis": axis, "rest": True})
        return [*grads, rest]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.concatenate(inputs, own_axis(node, len(shape)))

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(inputs, axis=node.attrs["axis"])


@register
class SplitLike(Op):
    """Of x the first elements along `axis`, as many as `like` has there, or with `rest` those behind them: inputs
    (x, like), of which like is read for its shape."""

    name = "split_like"
    dtypes = DTYPES
    shape_only: ClassVar[Sequence[int]] = (1,)

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        whole, like = input_shapes
        axis = own_axis(node, len(whole))
        extent = whole[axis] - like[axis] if len(whole) == len(like) else -1
        if extent < 0 or like != (*whole[:axis], like[axis], *whole[axis + 1 :]):
            raise shape_error(node, f"{like} is no part of {whole} along axis {node.attrs['axis']}")
        return (*like[:axis], extent, *like[axis + 1 :]) if node.attrs["rest"] else like

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        rest = node.attrs["rest"]
        zeros = zeroslike_op(SplitLike.make(node.inputs, {**node.attrs, "rest": not rest}))
        return [concatenate_op([zeros, output_grad] if rest else [output_grad, zeros], node.attrs["axis"]), None]

    def known(self, node: Node, shapes: Sequence[Shape], dtypes: Sequence[str]) -> Node:
        axis = node.attrs["axis"]
        extent = shapes[1][axis]
        item = (extent, None, None) if node.attrs["rest"] else (None, extent, None)
        return Slice.make([node.inputs[0]], {"key": key_at(axis, item)})


@register
class Stack(Op):
    """The inputs, all of one shape, along a new axis number `axis` of the result: a concat of what has that axis."""

    name = "stack"
    dtypes = DTYPES

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        first = input_shapes[0]
        for shape in input_shapes:
            require_same(node, first, shape)
        axis = own_axis(node, len(first) + 1)
        return (*first[:axis], len(input_shapes), *first[axis:])

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        keys = [key_at(node.attrs["axis"], i) for i in range(len(node.inputs))]
        return [Slice.make([output_grad], {"key": key}) for key in keys]

    def known(self, node: Node, shapes: Sequence[Shape], dtypes: Sequence[str]) -> Node:
        first, axis = shapes[0], own_axis(node, len(shapes[0]) + 1)
        return concatenate_op([reshape_op(x, (*first[:axis], 1, *first[axis:])) for x in node.inputs], axis)


@register
class SlicesGradient(Op):
    """Zeros of like's shape to which each gradient is added where a slice by its key of `attrs["keys"]` reads: inputs
    (like, *gradients). So what is taken apart, by `split_op` or slice by slice, costs one pass backwards."""

    name = "slices_gradient"
    shape_only: ClassVar[Sequence[int]] = (0,)

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        like, *grads = input_shapes
        for x, key, shape in zip(node.inputs[1:], node.attrs["keys"], grads, strict=True):
            part = SliceGradient.make([x, node.inputs[0]], {"key": key})
            part.op.infer_shape(part, [shape, like])
        return like

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [None, *(Slice.make([output_grad], {"key": key}) for key in node.attrs["keys"])]

    def known(self, node: Node, shapes: Sequence[Shape], dtypes: Sequence[str]) -> Node:
        return _of_slices(node.inputs[0], node.inputs[1:], node.attrs["keys"], shapes[0], dtypes[0])


def _of_slices(x: Node, grads: Sequence[Node], keys: Sequence[Key], shape: Shape, dtype: str) -> Node:
    """The gradient of x that those of its slices are: a concat for each axis along which slices lie side by side, with
    zeros where none does. A slice along several axes, and one that overlaps those before it, has one of its own."""

    def zeros(axis: int, start: int, stop: int) -> list[Node]:
        lying = (*shape[:axis], stop - start, *shape[axis + 1 :])
        return [full_op(lying, 0.0, dtype)] if start < stop else []

    by_key: dict[Key, list[Node]] = {}
    for key, grad in zip(keys, grads, strict=True):
        by_key.setdefault(key, []).append(grad)
    found: list[Node] = []
    rows: dict[int, list[tuple[Region, Node]]] = {}
    for key, own in by_key.items():
        grad = SliceGradient.make([reduce(add_op, own), x], {"key": key})
        region = region_of(grad, shape)
        axes = [axis for axis, extent in enumerate(shape) if region.counts[axis] != extent]
        if len(axes) == 1 and region.steps[axes[0]] == 1:
            rows.setdefault(axes[0], []).append((region, grad))
        else:
            found.append(grad)
    for axis, row in rows.items():
        joined, end = list[Node](), 0
        for region, grad in sorted(row, key=lambda one: one[0].starts[axis]):
            start = region.starts[axis]
            if start < end:
                found.append(grad)
                continue
            value = grad.inputs[0]
            value = value if region.shape == region.counts else reshape_op(value, region.counts)
            joined += [*zeros(axis, end, start), value]
            end = start + region.counts[axis]
        found.append(concatenate_op([*joined, *zeros(axis, end, shape[axis])], axis))
    return reduce(add_op, found)


def joined_gradients(grads: Sequence[Node], x: Node) -> list[Node]:
    """The gradients of x, of which those of several slices are one."""
    slices = [grad for grad in grads if isinstance(grad.op, SliceGradient)]
    if len(slices) < 2:
        return [*grads]
    rest = [grad for grad in grads if not isinstance(grad.op, SliceGradient)]
    own, keys = [grad.inputs[0] for grad in slices], tuple(grad.attrs["key"] for grad in slices)
    shape, dtype = known_shape(x), known_dtype(x)
    if shape is None or dtype is None or None in map(known_shape, slices):
        return [*rest, SlicesGradient.make([x, *own], {"keys": keys})]
    return [*rest, _of_slices(x, own, keys, shape, dtype)]  # at once, so that integers of keys may become inputs


def _several(op: str, nodes: Any) -> list[Made]:
    if isinstance(nodes, Node) or not isinstance(nodes, Sequence) or not nodes:
        raise GraphError(f"{op}: takes a list of one node or more, not {nodes!r}")
    return list(nodes)


def concatenate_op(nodes: Sequence[Node], axis: int = 0) -> Made:
    """The nodes joined along `axis`. Raises GraphError for another argument than a list of nodes, and for a wrong
    axis."""
    along = integer("concatenate", "the axis", axis)
    return Concatenate.make(_several("concatenate", nodes), {"axis": along})


def stack_op(nodes: Sequence[Node], axis: int = 0) -> Made:
    """The nodes, all of one shape, along a new axis number `axis` of the result.

    Raises GraphError for what is no list of nodes or no axis.
    """
    return Stack.make(_several("stack", nodes), {"axis": integer("stack", "the axis", axis)})


def split_op(x: Node, sections: Any, axis: int = 0) -> list[Made]:
    """x taken apart along `axis`, as by `np.split`: into a number of equal parts, or at a list of indices.

    Raises GraphError for sections that are neither; at the run ShapeError where equal parts do not come out even.
    """
    axis = integer("split", "the axis", axis)
    several = isinstance(sections, (list, tuple))
    found = axes_attribute("split", sections)
    if found is None or not (several or found[0] >= 1):
        raise GraphError(f"split: takes a number of parts >= 1 or a list of indices, not {sections!r}")
    if several:
        limits = [None, *found, None]
        items: list[Any] = [(a, b, None) for a, b in itertools.pairwise(limits)]
    else:
        shape = known_shape(x)
        if shape is not None and -len(shape) <= axis < len(shape) and 0 < shape[axis] < found[0]:
            raise ShapeError(f"split: there are no {found[0]} equal parts of axis {axis} of {shape}")
        items = [(part, found[0]) for part in range(found[0])]
    return [Slice.make([x], {"key": key_at(axis, item)}) for item in items]
