"""Values found by integer indices, and the sums that are their gradients.

Indices may be of any integer dtype. A negative one counts from the end. One that is out of range then is an
IndexRangeError where its value is known when the operator is called, and where an Executor is fed it; one that a run
computes is clamped into range: a kernel cannot raise an error, and never reads or writes beyond its arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np

from .. import compute
from ..checks import integer
from ..errors import IndexRangeError
from ..graph import (
    DTYPES,
    INTEGERS,
    Formula,
    IndexRange,
    Made,
    Node,
    Op,
    Shape,
    error_at,
    register,
    shape_error,
)
from .elementwise import add_op
from .rules import Adjoint, Linear, dtype_attribute, own_axis
from .types import is_scalar, known_shape


def _inside(indices: np.ndarray, extent: int) -> np.ndarray:
    """The indices, negative from the end, clamped into [0, extent)."""
    numbers = indices.astype(np.int64)
    return np.clip(np.where(numbers < 0, numbers + extent, numbers), 0, extent - 1)


def _along(indices: np.ndarray, axis: int, extent: int) -> tuple[np.ndarray, ...]:
    """NumPy's index of the elements that `take_along_axis` reads."""
    places = list(np.ogrid[tuple(slice(n) for n in indices.shape)])
    places[axis] = _inside(indices, extent)
    return tuple(places)


def _take(x: np.ndarray, indices: np.ndarray, axis: int) -> np.ndarray:
    return np.take(x, _inside(indices, x.shape[axis]), axis)


def scattered(grad: np.ndarray, index: tuple[Any, ...], shape: Shape) -> np.ndarray:
    """Zeros of a shape, to which the gradient is added where NumPy's index of such an array reads."""
    result = np.zeros(shape, grad.dtype)
    np.add.at(result, index, grad)
    return result


def _take_gradient(grad: np.ndarray, indices: np.ndarray, shape: Shape, axis: int) -> np.ndarray:
    return scattered(grad, (*[slice(None)] * axis, _inside(indices, shape[axis])), shape)


def _take_along_axis_gradient(grad: np.ndarray, indices: np.ndarray, shape: Shape, axis: int) -> np.ndarray:
    return scattered(grad, _along(indices, axis, shape[axis]), shape)


def _one_hot(indices: np.ndarray, classes: int, dtype: str) -> np.ndarray:
    return np.asarray(indices[..., None] == np.arange(classes), dtype)


def require_in_range(node: Node, of: IndexRange, indices: np.ndarray) -> None:
    """Raises IndexRangeError for indices of a node that are out of range; it tells the first of them."""
    if not indices.size or indices.dtype.kind not in "iu":
        return
    if int(indices.view(f"u{indices.itemsize}").max()) < of.beyond:  # a negative number is a large one there
        return
    wrong = (indices < of.least) | (indices >= of.beyond)
    if of.besides is not None:
        wrong &= indices != of.besides
    if wrong.any():
        number, name = indices[wrong].flat[0], node.inputs[of.position].name
        raise error_at(node, IndexRangeError, f"index {number} is out of range for {of.told} [{name}]")


def checked(node: Made) -> Made:
    """The node. Raises IndexRangeError where an index is out of range, as far as values and shapes are known."""
    shapes = [known_shape(value) for value in node.inputs]
    if None not in shapes and (of := node.op.index_range(node, shapes)) is not None:  # type: ignore[arg-type]
        indices = node.inputs[of.position].known_value
        if indices is not None:
            require_in_range(node, of, np.asarray(indices))
    return node


class Indexed(Op):
    """An operator of values and integer indices, and maybe what gives the result's shape."""

    dtypes: ClassVar[tuple[str, ...]] = DTYPES
    apart: ClassVar[Mapping[int, tuple[str, ...]]] = {1: INTEGERS}


class IndexedAlong(Indexed):
    """One whose indices are of the axis `attrs["axis"]`."""

    def arguments(self, node: Node, shapes: list[Shape], shape: Shape) -> tuple[Any, ...]:
        return (own_axis(node, len(shapes[0])),)

    def index_range(self, node: Node, input_shapes: Sequence[Shape]) -> IndexRange | None:
        """Along `axis` of what is read or written: of x, or of the gradient's `like`."""
        at = len(input_shapes) - 1 if self.shape_only else 0
        shape, axis = input_shapes[at], node.attrs["axis"]
        if not -len(shape) <= axis < len(shape):
            return None  # the operator says it
        least = 0 if node.attrs.get("from_start") else -shape[axis]
        told = f"axis {axis} of {node.inputs[at].name} of shape {shape}"
        return IndexRange(1, least, shape[axis], told)


@register
class Take(Linear, IndexedAlong):
    """The slices of x along `axis` with the numbers `indices`, whose shape takes the axis's place, as `np.take`; with
    `from_start` none is negative."""

    name = "take"
    onnx = "Gather"
    adjoint = "take_gradient"
    flops = 0
    formula: ClassVar[Formula] = compute.take
    reference: ClassVar[Formula] = _take

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        shape, indices = input_shapes
        axis = own_axis(node, len(shape))
        if shape[axis] == 0 and 0 not in indices:
            raise shape_error(node, f"axis {axis} of {shape} has no element to take")
        return (*shape[:axis], *indices, *shape[axis + 1 :])


@register
class TakeGradient(Adjoint, IndexedAlong):
    """Zeros of like's shape, to whose slices along `axis` with the numbers `indices` the gradient's are added, in their
    order: inputs (gradient, indices, like)."""

    name = "take_gradient"
    forward = "take"
    shape_only: ClassVar[Sequence[int]] = (2,)
    formula: ClassVar[Formula] = compute.take_gradient
    reference: ClassVar[Formula] = _take_gradient


@register
class TakeAlongAxis(Linear, IndexedAlong):
    """y[..., i, ...] = x[..., indices[..., i, ...], ...] along `axis`; the other extents agree."""

    name = "take_along_axis"
    onnx = "GatherElements"
    adjoint = "take_along_axis_gradient"
    flops = 0
    formula: ClassVar[Formula] = compute.take_along_axis
    reference: ClassVar[Formula] = lambda x, indices, axis: x[_along(indices, axis, x.shape[axis])]

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        shape, indices = input_shapes
        axis = own_axis(node, len(shape))
        if len(shape) != len(indices) or shape[:axis] + shape[axis + 1 :] != indices[:axis] + indices[axis + 1 :]:
            raise shape_error(node, f"indices of {indices} do not fit {shape} along axis {node.attrs['axis']}")
        if shape[axis] == 0 and 0 not in indices:
            raise shape_error(node, f"axis {axis} of {shape} has no element to take")
        return indices


@register
class TakeAlongAxisGradient(Adjoint, IndexedAlong):
    """Zeros of like's shape, to which the gradient is added where `take_along_axis` reads: inputs (gradient, indices,
    like)."""

    name = "take_along_axis_gradient"
    forward = "take_along_axis"
    shape_only: ClassVar[Sequence[int]] = (2,)
    formula: ClassVar[Formula] = compute.take_gradient
    reference: ClassVar[Formula] = _take_along_axis_gradient


@register
class OneHot(Op):
    """y[..., c] = 1 where indices[...] = c, else 0, for c below `classes`; an index out of range has a row of zeros."""

    name = "one_hot"
    flops = 0
    flat = True
    dtypes = INTEGERS
    result = "dtype"
    formula: ClassVar[Formula] = compute.one_hot
    reference: ClassVar[Formula] = _one_hot
    takes: ClassVar[Sequence[str]] = ("classes", "dtype")

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return (*input_shapes[0], node.attrs["classes"])

    def index_range(self, node: Node, input_shapes: Sequence[Shape]) -> IndexRange:
        count = node.attrs["classes"]
        return IndexRange(0, 0, count, f"{count} classes")


@register
class InRange(Op):
    """The indices as int64: negative ones from the end, and what is not from 0 to below `extent` clamped into it."""

    name = "in_range"
    result = "int64"
    flat = True
    kind = "elementwise"
    dtypes = INTEGERS
    formula: ClassVar[Formula] = compute.in_range
    reference: ClassVar[Formula] = _inside

    def arguments(self, node: Node, shapes: list[Shape], shape: Shape) -> tuple[Any, ...]:
        return (max(node.attrs["extent"], 1),)

    def index_range(self, node: Node, input_shapes: Sequence[Shape]) -> IndexRange:
        extent = node.attrs["extent"]
        return IndexRange(0, -extent, extent, f"an axis of {extent}")


def take_op(x: Node, indices: Node, axis: int = 0) -> Made:
    """The slices of x along `axis` with the numbers `indices`, of any integer shape: (..., *indices.shape, ...).

    Negative indices count from the end. Raises GraphError for no axis, IndexRangeError for an index out of range whose
    value is known, here or at the run; one that a run computes is clamped into range.
    """
    return checked(Take.make([x, indices], {"axis": integer("take", "the axis", axis)}))


def take_along_axis_op(x: Node, indices: Node, axis: int) -> Made:
    """x at `indices` along `axis`: the indices have x's extents but along that axis; see `take_op` for their range."""
    along = integer("take_along_axis", "the axis", axis)
    if is_scalar(x, along) and is_scalar(indices, along):
        return cast("Made", x)
    return checked(TakeAlongAxis.make([x, indices], {"axis": along}))


def scatter_add_op(x: Node, indices: Node, values: Node, axis: int) -> Made:
    """x with `values` added at `indices` along `axis`, where `take_along_axis_op` reads.

    Values have the indices' shape, which is x's but along the axis; where an index occurs several times all its values
    are added. See `take_op` for the range of indices."""
    along = integer("scatter_add", "the axis", axis)
    return add_op(x, checked(TakeAlongAxisGradient.make([values, indices, x], {"axis": along})))


def embedding_op(weight: Node, indices: Node) -> Made:
    """The rows of `weight`, (entries, width), with the numbers `indices`: (*indices.shape, width).

    Raises IndexRangeError as `take_op` does, also for a negative number."""
    return checked(Take.make([weight, indices], {"axis": 0, "from_start": True}))


def in_range_op(indices: Node, extent: int) -> Made:
    """Indices of an axis as int64 from 0 to below its extent: negative ones count from the end, see `take_op` for what
    is out of range."""
    return checked(InRange.make([indices], {"extent": extent}))


def one_hot_op(indices: Node, classes: int, dtype: Any = "float32") -> Made:
    """Ones at the indices along a new last axis of extent `classes`, zeros elsewhere.

    Raises GraphError for a number of classes below 0 or an unknown dtype, IndexRangeError for an index out of range
    whose value is known, here or at the run; one that a run computes has a row of zeros.
    """
    count = integer("one_hot", "the number of classes", classes, 0)
    return checked(OneHot.make([indices], {"classes": count, "dtype": dtype_attribute("one_hot", dtype)}))
