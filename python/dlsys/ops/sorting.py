"""The order of elements along an axis. NaN counts as the largest, equal elements stay as they stand."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from .. import compute
from ..checks import flag, integer
from ..errors import GraphError
from ..graph import DTYPES, Formula, Made, Node, Op, Shape, register, shape_error
from .indexing import take_along_axis_op
from .rules import own_axis
from .types import known_shape


def _argsort(x: np.ndarray, axis: int, descending: bool, count: int) -> np.ndarray:
    """By NumPy; what is descending is ascending from the last place on, read backwards."""
    order = np.argsort(np.flip(x, axis) if descending else x, axis, kind="stable")
    if descending:
        order = x.shape[axis] - 1 - np.flip(order, axis)
    return np.take(order, np.arange(count), axis)


def _sort(x: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    return np.take_along_axis(x, _argsort(x, axis, descending, x.shape[axis]), axis)


@register
class Argsort(Op):
    """Along `axis` the places of the first `count` elements in order, all for None; int64."""

    name = "argsort"
    result = "int64"
    flat = True
    flops = 0
    dtypes = DTYPES
    formula: ClassVar[Formula] = compute.argsort
    reference: ClassVar[Formula] = _argsort

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        (shape,) = input_shapes
        axis, count = own_axis(node, len(shape)), node.attrs["count"]
        if count is not None and count > shape[axis]:
            raise shape_error(node, f"there are no {count} elements along axis {node.attrs['axis']} of {shape}")
        return (*shape[:axis], shape[axis] if count is None else count, *shape[axis + 1 :])

    def arguments(self, node: Node, shapes: list[Shape], shape: Shape) -> tuple[Any, ...]:
        return (axis := own_axis(node, len(shape))), node.attrs["descending"], shape[axis]


@register
class Sort(Op):
    """The elements in order along `axis`: `take_along_axis` of a whole `argsort`, made of it where nothing else reads
    the places."""

    name = "sort"
    flops = 0
    dtypes = DTYPES
    formula: ClassVar[Formula] = compute.sort
    reference: ClassVar[Formula] = _sort

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        own_axis(node, len(input_shapes[0]))
        return input_shapes[0]

    def arguments(self, node: Node, shapes: list[Shape], shape: Shape) -> tuple[Any, ...]:
        return own_axis(node, len(shape)), node.attrs["descending"]


def argsort_op(x: Node, axis: int = -1, descending: bool = False) -> Made:
    """int64: where the elements in order are, along an axis; x's shape. Raises GraphError for an axis that is none."""
    return _places("argsort", x, axis, descending, None)


def _places(op: str, x: Node, axis: Any, descending: bool, count: int | None) -> Made:
    """A node of Argsort, of all places or the first `count`. Raises GraphError, ShapeError."""
    attrs = {"axis": integer(op, "the axis", axis), "descending": flag(op, "descending", descending), "count": count}
    node, shape = Argsort.make([x], attrs), known_shape(x)
    if shape is not None:
        node.op.infer_shape(node, [shape])  # to raise ShapeError where the user wrote it
    return node


def sort_op(x: Node, axis: int = -1, descending: bool = False) -> tuple[Made, Made]:
    """The elements in order along an axis, and where they were, to which their gradients go. Raises GraphError for an
    axis that is none."""
    places = _places("sort", x, axis, descending, None)
    return take_along_axis_op(x, places, axis), places


def topk_op(x: Node, k: int, axis: int = -1, largest: bool = True) -> tuple[Made, Made]:
    """The k largest elements along an axis in order, or the smallest, and where they were; as `sort_op`. Raises
    GraphError for a k that is none, ShapeError for more than there are: at the run, if x's shape is not known."""
    if (count := integer("topk", "k", k)) < 0:
        raise GraphError(f"topk: k must not be negative, not {k!r}")
    places = _places("topk", x, axis, largest, count)
    return take_along_axis_op(x, places, axis), places
