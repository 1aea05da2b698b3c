"""The order of elements along an axis. NaN counts as the largest, equal elements stay as they stand."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

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
    return order if count == x.shape[axis] else np.take(order, np.arange(count), axis)


def _sort(x: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    found = np.sort(x, axis)
    return np.flip(found, axis) if descending else found


class _ByNumPy(Op):
    """An operator of an order, along `axis`, which NumPy computes."""

    flops = 0
    dtypes = DTYPES
    by_numpy = True
    never = "NumPy computes it on the host: it has no formula for Relax or exported C"


@register
class Argsort(_ByNumPy):
    """The places of the first `count` elements in order, all for None; int64."""

    name = "argsort"
    result = "int64"
    flat = True
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
class Sort(_ByNumPy):
    """The elements in order; gradients go to the places where they were."""

    name = "sort"
    reference: ClassVar[Formula] = _sort

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        own_axis(node, len(input_shapes[0]))
        return input_shapes[0]

    def arguments(self, node: Node, shapes: list[Shape], shape: Shape) -> tuple[Any, ...]:
        return own_axis(node, len(shape)), node.attrs["descending"]

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        (x,), axis = node.inputs, node.attrs["axis"]
        taken = take_along_axis_op(x, argsort_op(x, axis, node.attrs["descending"]), axis)
        return [taken.op.gradient(taken, output_grad)[0]]


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
    return Sort.make([x], {"axis": places.attrs["axis"], "descending": places.attrs["descending"]}), places


def topk_op(x: Node, k: int, axis: int = -1, largest: bool = True) -> tuple[Made, Made]:
    """The k largest elements along an axis in order, or the smallest, and where they were; as `sort_op`. Raises
    GraphError for a k that is none, ShapeError for more than there are: at the run, if x's shape is not known."""
    if (count := integer("topk", "k", k)) < 0:
        raise GraphError(f"topk: k must not be negative, not {k!r}")
    places = _places("topk", x, axis, largest, count)
    return take_along_axis_op(x, places, axis), places
