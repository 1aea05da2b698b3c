"""Several nodes put together along an axis, and one taken apart."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import reduce
from operator import itemgetter
from typing import Any

import numpy as np

from .. import compute
from ..checks import integer
from ..compute import Tensor
from ..errors import GraphError, ShapeError
from ..graph import DTYPES, Made, Node, Op, Shape, register, shape_error
from .arithmetic import add_op
from .inputs import zeroslike_op
from .rules import axes_attribute, own_axis, require_same
from .shape import expand_dims_op, reshape_op
from .slicing import Key, Slice, SliceGradient, Span, key_at, span_of
from .types import known_shape, shape_of


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
    shape_only = (1,)

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


def joined_gradients(grads: Sequence[Node], x: Node) -> list[Node]:
    """The gradients of x, of which those of slices along one axis are one concatenation, with zeros where nothing is
    read. So what is taken apart, by `split_op` or slice by slice, costs one pass backwards. A slice that overlaps the
    ones before it along its axis keeps a gradient of its own."""
    if len(grads) == 1:
        return [*grads]
    found: list[Node] = []
    by_key: dict[Key, list[Node]] = {}
    for grad in grads:
        (by_key.setdefault(grad.attrs["key"], []) if isinstance(grad.op, SliceGradient) else found).append(grad)
    rows: dict[tuple[int, int], list[tuple[Span, Node]]] = {}
    for key, own in by_key.items():
        grad = own[0]
        if len(own) > 1:
            grad = SliceGradient.make([reduce(add_op, [one.inputs[0] for one in own]), x], {"key": key})
        if len(by_key) == 1 or (span := span_of(key, known_shape(x))) is None:
            found.append(grad)
        else:
            rows.setdefault((span.axis, span.parts), []).append((span, grad))
    for row in rows.values():
        row.sort(key=itemgetter(0))
        apart = row[:1]
        for span, grad in row[1:]:
            if span.start < apart[-1][0].stop:
                found.append(grad)
            else:
                apart.append((span, grad))
        found.append(_side_by_side(apart, x) if len(apart) > 1 else apart[0][1])
    return found


def _side_by_side(row: Sequence[tuple[Span, Node]], x: Node) -> Made:
    """The gradient of x that these of its slices are, which lie in order along an axis."""
    (axis, parts, *_), _ = row[0]
    joined: list[Node] = []

    def fill(start: Any, stop: Any) -> None:
        items: list[Any] = [(i, parts) for i in range(start, stop)] if parts else [(start, stop, None)]
        joined.extend([Slice.make([zeroslike_op(x)], {"key": key_at(axis, item)}) for item in items])

    end: float = 0
    for span, grad in row:
        if end < span.start:
            fill(end, span.start)
        value = grad.inputs[0]
        drops = any(isinstance(item, int) for item in grad.attrs["key"])
        joined.append(expand_dims_op(value, axis) if drops else value)
        end = span.stop
    shape = known_shape(x)
    if end < (parts or (math.inf if shape is None else shape[axis])):
        fill(end, parts or None)
    return concatenate_op(joined, axis)


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
