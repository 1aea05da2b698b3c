"""Values read by integer indices, the sums that are their gradients, and the order of elements.

Indices may be of any integer dtype. A negative one counts from the end. One that is out of range then is an
IndexRangeError where its value is known when the operator is called, and where an Executor is fed it; one that a run
computes is clamped into range: a kernel cannot raise an error, and never reads or writes beyond its arrays.

In an order NaN counts as the largest, and equal elements stay as they stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import compute
from ..checks import flag, integer
from ..errors import GraphError, ShapeError
from ..graph import DTYPES, INTEGERS, IndexRange, Made, Node, Shape
from .elementwise import add_op
from .primitive import Primitive, primitive
from .replay import function, require_in_range
from .rules import axis_in, dtype_attribute

# Ranges ----------------------------------------------------------------------------------------------------


def checked(node: Made) -> Made:
    """The node, whose inputs have types. Raises IndexRangeError where an index that is known is out of range."""
    of = node.op.index_range and node.op.index_range(node, [value.shape for value in node.inputs])
    indices = None if of is None else node.inputs[of.position].held
    if of is not None and indices is not None:
        require_in_range(node, of, np.asarray(indices))
    return node


def _range_of_axis(node: Node, shapes: Sequence[Shape]) -> IndexRange:
    """The indices along `axis` of what is read, or of what is written, whose shape is an attribute."""
    shape, axis = node.attrs.get("shape", shapes[0]), node.attrs["axis"]
    least = 0 if node.attrs.get("from_start") else -shape[axis]
    name = "" if "shape" in node.attrs else f" of {node.inputs[0].name}"
    return IndexRange(1, least, shape[axis], f"axis {axis}{name} of shape {shape}")


def _range_of_extent(extent: int) -> IndexRange:
    return IndexRange(0, -extent, extent, f"an axis of {extent}")


def _inside(indices: np.ndarray, extent: int) -> np.ndarray:
    """The indices, negative from the end, clamped into [0, extent)."""
    numbers = indices.astype(np.int64)
    return np.clip(np.where(numbers < 0, numbers + extent, numbers), 0, extent - 1)


in_range: Primitive = primitive(
    "in_range", te=lambda indices, extent: compute.in_range(indices, max(extent, 1)),
    numpy=lambda indices, extent: _inside(indices, max(extent, 1)), grad=None, dtype="int64", dtypes=INTEGERS,
    index_range=lambda node, shapes: _range_of_extent(node.attrs["extent"]),
    doc="Indices as int64: negative ones from the end, and what is not from 0 to below `extent` clamped into it.",
)  # fmt: skip

one_hot: Primitive = primitive(
    "one_hot", te=compute.one_hot,
    numpy=lambda indices, classes, dtype: np.asarray(indices[..., None] == np.arange(classes), dtype), grad=None,
    shape=lambda indices, classes, dtype: (*indices, classes), dtype="dtype", dtypes=INTEGERS, kind="single",
    index_range=lambda node, shapes: IndexRange(0, 0, node.attrs["classes"], f"{node.attrs['classes']} classes"),
    doc="y[..., c] = 1 where indices[...] = c, else 0, for c below `classes`.",
)  # fmt: skip

# Rows and elements -----------------------------------------------------------------------------------------


def _require_elements(shape: Shape, axis: int, indices: Shape) -> None:
    if shape[axis] == 0 and 0 not in indices:
        raise ShapeError(f"axis {axis} of {shape} has no element to take")


def _taken(x: Shape, indices: Shape, axis: int, from_start: bool) -> Shape:
    _require_elements(x, axis, indices)
    return (*x[:axis], *indices, *x[axis + 1 :])


def _along(indices: np.ndarray, axis: int, extent: int) -> tuple[np.ndarray, ...]:
    """NumPy's index of the elements that `take_along_axis` reads."""
    places = list(np.ogrid[tuple(slice(n) for n in indices.shape)])
    places[axis] = _inside(indices, extent)
    return tuple(places)


def scattered(values: np.ndarray, index: tuple[Any, ...], shape: Shape) -> np.ndarray:
    """Zeros of a shape, to which values are added where NumPy's index of such an array reads."""
    result = np.zeros(shape, values.dtype)
    np.add.at(result, index, values)
    return result


def _taken_along(x: Shape, indices: Shape, axis: int) -> Shape:
    if len(x) != len(indices) or x[:axis] + x[axis + 1 :] != indices[:axis] + indices[axis + 1 :]:
        raise ShapeError(f"indices of {indices} do not fit {x} along axis {axis}")
    _require_elements(x, axis, indices)
    return indices


def _rows_added(values: Shape, indices: Shape, shape: Shape, axis: int, from_start: bool) -> Shape:
    if values != (taken := _taken(shape, indices, axis, from_start)):
        raise ShapeError(f"the values have shape {values}, what is taken of {shape} has {taken}")
    return shape


def _elements_added(values: Shape, indices: Shape, shape: Shape, axis: int) -> Shape:
    if values != _taken_along(shape, indices, axis):
        raise ShapeError(f"the values have shape {values}, the indices {indices}")
    return shape


def _add_rows(values: np.ndarray, indices: np.ndarray, shape: Shape, axis: int, from_start: bool) -> np.ndarray:
    return scattered(values, (*[slice(None)] * axis, _inside(indices, shape[axis])), shape)


OF_INDICES: dict[str, Any] = {
    "dtypes": DTYPES,
    "apart": {1: INTEGERS},
    "kind": "single",
    "index_range": _range_of_axis,
}

take: Primitive = primitive(
    "take", te=lambda x, indices, axis, from_start: compute.take(x, indices, axis),
    numpy=lambda x, indices, axis, from_start: np.take(x, _inside(indices, x.shape[axis]), axis),
    grad=lambda g, y, x, indices, **attrs: (index_add(g, indices, shape=x.shape, **attrs), None),
    shape=_taken, onnx="Gather", **OF_INDICES,
    doc="The slices of x along `axis` with the numbers `indices`; with `from_start` no number may be negative.",
)  # fmt: skip

index_add: Primitive = primitive(
    "index_add", te=lambda values, indices, shape, axis, from_start: compute.add_at(values, indices, shape, axis),
    numpy=_add_rows,
    grad=lambda g, y, values, indices, shape, **attrs: (take(g, indices, **attrs), None),
    shape=_rows_added, **OF_INDICES,
    doc="Zeros of `shape`, to whose slices along `axis` with the numbers `indices` those of values are added.",
)  # fmt: skip

take_along_axis: Primitive = primitive(
    "take_along_axis", te=compute.take_along_axis,
    numpy=lambda x, indices, axis: x[_along(indices, axis, x.shape[axis])],
    grad=lambda g, y, x, indices, axis: (scatter_add(g, indices, shape=x.shape, axis=axis), None), shape=_taken_along,
    onnx="GatherElements", **OF_INDICES,
    doc="y[..., i, ...] = x[..., indices[..., i, ...], ...] along `axis`.",
)  # fmt: skip

scatter_add: Primitive = primitive(
    "scatter_add", te=compute.add_at,
    numpy=lambda values, indices, shape, axis: scattered(values, _along(indices, axis, shape[axis]), shape),
    grad=lambda g, y, values, indices, shape, axis: (take_along_axis(g, indices, axis=axis), None),
    shape=_elements_added, **OF_INDICES,
    doc="Zeros of `shape`, to which values are added where `take_along_axis` reads by the indices.",
)  # fmt: skip


@function()
def take_op(x: Node, indices: Node, axis: int = 0) -> Made:
    """The slices of x along `axis` with the numbers `indices`, of any integer shape: (..., *indices.shape, ...).

    Negative indices count from the end. Raises GraphError for no axis, IndexRangeError for an index out of range whose
    value is known, here or at the run; one that a run computes is clamped into range.
    """
    return checked(take(x, indices, axis=axis_in("take", axis, len(x.shape)), from_start=False))


@function()
def embedding_op(weight: Node, indices: Node) -> Made:
    """The rows of `weight`, (entries, width), with the numbers `indices`: (*indices.shape, width).

    Raises IndexRangeError as `take_op` does, also for a negative number."""
    return checked(take(weight, indices, axis=axis_in("embedding", 0, len(weight.shape)), from_start=True))


@function()
def take_along_axis_op(x: Node, indices: Node, axis: int) -> Node:
    """x at `indices` along `axis`: the indices have x's extents but along that axis; see `take_op` for their range. A
    number has one axis with itself as the one element."""
    axis = integer("take_along_axis", "the axis", axis)
    if x.shape == () == indices.shape and axis in (0, -1):
        return x
    return checked(take_along_axis(x, indices, axis=axis_in("take_along_axis", axis, len(x.shape))))


@function()
def scatter_add_op(x: Node, indices: Node, values: Node, axis: int) -> Made:
    """x with `values` added at `indices` along `axis`, where `take_along_axis_op` reads.

    Values have the indices' shape, which is x's but along the axis; where an index occurs several times all its values
    are added. See `take_op` for the range of indices."""
    along = axis_in("scatter_add", axis, len(x.shape))
    return add_op(x, checked(scatter_add(values, indices, shape=x.shape, axis=along)))


@function()
def in_range_op(indices: Node, extent: int) -> Made:
    """Indices of an axis as int64 from 0 to below its extent: negative ones count from the end, see `take_op` for what
    is out of range."""
    return checked(in_range(indices, extent=extent))


@function()
def one_hot_op(indices: Node, classes: int, dtype: Any = "float32") -> Made:
    """Ones at the indices along a new last axis of extent `classes`, zeros elsewhere.

    Raises GraphError for a number of classes below 0 or an unknown dtype, IndexRangeError for an index out of range
    whose value is known, here or at the run; one that a run computes has a row of zeros.
    """
    count = integer("one_hot", "the number of classes", classes, 0)
    return checked(one_hot(indices, classes=count, dtype=dtype_attribute("one_hot", dtype)))


# Orders ----------------------------------------------------------------------------------------------------


def _argsort(x: np.ndarray, axis: int, descending: bool, count: int) -> np.ndarray:
    """What is descending is ascending from the last place on, read backwards."""
    order = np.argsort(np.flip(x, axis) if descending else x, axis, kind="stable")
    if descending:
        order = x.shape[axis] - 1 - np.flip(order, axis)
    return order if count == x.shape[axis] else np.take(order, np.arange(count), axis)


def _first_places(x: Shape, axis: int, descending: bool, count: int) -> Shape:
    if count > x[axis]:
        raise ShapeError(f"there are no {count} elements along axis {axis} of {x}")
    return (*x[:axis], count, *x[axis + 1 :])


argsort: Primitive = primitive(
    "argsort", numpy=_argsort, grad=None, shape=_first_places, dtype="int64", dtypes=DTYPES, kind="single",
    by_numpy=True, never="NumPy computes it on the host: it has no formula for Relax or exported C",
    doc="int64: where the first `count` elements along `axis` in order are.",
)  # fmt: skip


def _places(op: str, x: Node, axis: Any, descending: bool, count: int | None = None) -> Made:
    """`argsort` of x for a function, of all elements for None."""
    along = axis_in(op, axis, len(x.shape))
    count = x.shape[along] if count is None else count
    return argsort(x, axis=along, descending=flag(op, "descending", descending), count=count)


def _with_places(x: Node, places: Made) -> tuple[Made, Made]:
    """The elements of x at places that `argsort` returned, and the places."""
    return take_along_axis(x, places, axis=places.attrs["axis"]), places


@function()
def argsort_op(x: Node, axis: int = -1, descending: bool = False) -> Made:
    """int64: where the elements in order are, along an axis; x's shape. Raises GraphError for an axis that is no
    integer, ShapeError for one that is not there."""
    return _places("argsort", x, axis, descending)


@function(results=2)
def sort_op(x: Node, axis: int = -1, descending: bool = False) -> tuple[Made, Made]:
    """The elements in order along an axis, and where they were, to which their gradients go. Raises as `argsort_op`."""
    return _with_places(x, _places("sort", x, axis, descending))


@function(results=2)
def topk_op(x: Node, k: int, axis: int = -1, largest: bool = True) -> tuple[Made, Made]:
    """The k largest elements along an axis in order, or the smallest, and where they were; as `sort_op`. Raises
    GraphError for a k that is no number of elements, ShapeError for more than there are."""
    if (count := integer("topk", "k", k)) < 0:
        raise GraphError(f"topk: k must not be negative, not {k!r}")
    return _with_places(x, _places("topk", x, axis, largest, count))
