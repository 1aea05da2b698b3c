"""Values found by integer indices, and the sums that are their gradients.

Indices may be of any integer dtype. A negative one counts from the end. One that is out of range then is an
IndexRangeError where its value is at hand when the operator is called; in a run it is clamped into range: a kernel
cannot raise an error, and never reads or writes beyond its arrays.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from .. import compute
from ..checks import integer
from ..errors import DTypeError, IndexRangeError
from ..graph import DTYPES, FLOATS, INTEGERS, Node, Op, Shape, error_at, register, shape_error
from .arithmetic import add_op
from .rules import Adjoint, dtype_attribute, own_axis
from .state import value_at_hand
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


def _take_gradient(grad: np.ndarray, indices: np.ndarray, axis: int, shape: Shape) -> np.ndarray:
    result = np.zeros(shape, grad.dtype)
    lead: tuple[Any, ...] = (slice(None),) * axis
    np.add.at(result, (*lead, _inside(indices, shape[axis])), grad)
    return result


def _take_along_axis_gradient(grad: np.ndarray, indices: np.ndarray, axis: int, shape: Shape) -> np.ndarray:
    result = np.zeros(shape, grad.dtype)
    np.add.at(result, _along(indices, axis, shape[axis]), grad)
    return result


def _one_hot(indices: np.ndarray, classes: int, dtype: str) -> np.ndarray:
    return np.asarray(indices[..., None] == np.arange(classes), dtype)


class Indexed(Op):
    """An operator of values and integer indices, and maybe what gives the result's shape."""

    dtypes: ClassVar[tuple[str, ...]] = DTYPES
    _indices: ClassVar[int] = 1

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        given = str(input_dtypes[self._indices])
        if given not in INTEGERS:
            raise error_at(
                node, DTypeError, f"the indices {node.inputs[self._indices].name} are {given}, not of integers"
            )
        found = str(input_dtypes[0])
        if found not in self.dtypes:
            known = ", ".join(self.dtypes)
            raise error_at(node, DTypeError, f"input {node.inputs[0].name} is {found}, not one of {known}")
        return found

    def arguments(self, node: Node, shapes: list[Shape], shape: Shape) -> tuple[Any, ...]:
        return (own_axis(node, len(shapes[0])),)


@register
class Take(Indexed):
    """The slices of x along `axis` with the numbers `indices`, whose shape takes the axis's place, as `np.take`."""

    name = "take"
    flops = 0
    formula, reference = compute.take, _take

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        shape, indices = input_shapes
        axis = own_axis(node, len(shape))
        if shape[axis] == 0 and 0 not in indices:
            raise shape_error(node, f"axis {axis} of {shape} has no element to take")
        return (*shape[:axis], *indices, *shape[axis + 1 :])

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return TakeGradient.of(node, output_grad)


@register
class TakeGradient(Adjoint, Indexed):
    """Zeros of like's shape, to whose slices along `axis` with the numbers `indices` the gradient's are added, in their
    order: inputs (gradient, indices, like)."""

    name, forward = "take_gradient", "take"
    dtypes = FLOATS
    shape_only = (2,)
    formula, reference = compute.take_gradient, _take_gradient

    def arguments(self, node: Node, shapes: list[Shape], shape: Shape) -> tuple[Any, ...]:
        return own_axis(node, len(shape)), shape


@register
class TakeAlongAxis(Indexed):
    """y[..., i, ...] = x[..., indices[..., i, ...], ...] along `axis`; the other extents agree."""

    name = "take_along_axis"
    flops = 0
    formula, reference = compute.take_along_axis, lambda x, indices, axis: x[_along(indices, axis, x.shape[axis])]

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        shape, indices = input_shapes
        axis = own_axis(node, len(shape))
        if len(shape) != len(indices) or shape[:axis] + shape[axis + 1 :] != indices[:axis] + indices[axis + 1 :]:
            raise shape_error(node, f"indices of {indices} do not fit {shape} along axis {node.attrs['axis']}")
        if shape[axis] == 0 and 0 not in indices:
            raise shape_error(node, f"axis {axis} of {shape} has no element to take")
        return indices

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return TakeAlongAxisGradient.of(node, output_grad)


@register
class TakeAlongAxisGradient(Adjoint, Indexed):
    """Zeros of like's shape, to which the gradient is added where `take_along_axis` reads: inputs (gradient, indices,
    like)."""

    name, forward = "take_along_axis_gradient", "take_along_axis"
    dtypes = FLOATS
    shape_only = (2,)
    formula, reference = compute.take_along_axis_gradient, _take_along_axis_gradient

    def arguments(self, node: Node, shapes: list[Shape], shape: Shape) -> tuple[Any, ...]:
        return own_axis(node, len(shape)), shape


@register
class OneHot(Indexed):
    """y[..., c] = 1 where indices[...] = c, else 0, for c below `classes`; an index out of range has a row of zeros."""

    name = "one_hot"
    flops = 0
    _indices = 0
    formula, reference = compute.one_hot, _one_hot

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return (*input_shapes[0], node.attrs["classes"])

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        super().infer_dtype(node, input_dtypes)
        return node.attrs["dtype"]

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [None]

    def arguments(self, node: Node, shapes: list[Shape], shape: Shape) -> tuple[Any, ...]:
        return node.attrs["classes"], node.attrs["dtype"]


def _values_of(indices: Node) -> np.ndarray | None:
    """The values of integer indices, where they are at hand: of a leaf, and of what was computed."""
    memory = value_at_hand(indices)
    values = None if memory is None else np.asarray(memory)
    return values if values is not None and values.size and values.dtype.kind in "iu" else None


def _require_in_range(op: str, x: Node, indices: Node, axis: int, negative: bool = True) -> None:
    """Raises IndexRangeError for an index beyond the axis, where the values and x's shape are known; `negative`:
    whether those from the end may be among them."""
    if not (isinstance(x, Node) and isinstance(indices, Node)):
        return  # the operator says it
    values, shape = _values_of(indices), known_shape(x)
    if values is None or shape is None or not -len(shape) <= axis < len(shape):
        return
    extent = shape[axis]
    least = -extent if negative else 0
    if not least <= values.min() <= values.max() < extent:
        wrong = values[(values < least) | (values >= extent)][0]
        raise IndexRangeError(f"{op}: index {wrong} is out of range for axis {axis} of {x.name} of shape {shape}")


def take_op(x: Node, indices: Node, axis: int = 0) -> Node:
    """The slices of x along `axis` with the numbers `indices`, of any integer shape: (..., *indices.shape, ...).

    Negative indices count from the end. Raises GraphError for no axis, IndexRangeError for an index out of range whose
    value is at hand; one that is not is clamped into range.
    """
    along = integer("take", "the axis", axis)
    _require_in_range("take", x, indices, along)
    return Take.make([x, indices], {"axis": along})


def take_along_axis_op(x: Node, indices: Node, axis: int) -> Node:
    """x at `indices` along `axis`: the indices have x's extents but along that axis; see `take_op` for their range."""
    along = integer("take_along_axis", "the axis", axis)
    if is_scalar(x, along) and is_scalar(indices, along):
        return x
    _require_in_range("take_along_axis", x, indices, along)
    return TakeAlongAxis.make([x, indices], {"axis": along})


def scatter_add_op(x: Node, indices: Node, values: Node, axis: int) -> Node:
    """x with `values` added at `indices` along `axis`, where `take_along_axis_op` reads.

    Values have the indices' shape, which is x's but along the axis; where an index occurs several times all its values
    are added. See `take_op` for the range of indices."""
    along = integer("scatter_add", "the axis", axis)
    _require_in_range("scatter_add", x, indices, along)
    return add_op(x, TakeAlongAxisGradient.make([values, indices, x], {"axis": along}))


def embedding_op(weight: Node, indices: Node) -> Node:
    """The rows of `weight`, (entries, width), with the numbers `indices`: (*indices.shape, width).

    Raises IndexRangeError for a number that is no row's, also a negative one, whose value is at hand."""
    _require_in_range("embedding", weight, indices, 0, negative=False)
    return take_op(weight, indices, 0)


def one_hot_op(indices: Node, classes: int, dtype: Any = "float32") -> Node:
    """Ones at the indices along a new last axis of extent `classes`, zeros elsewhere.

    Raises GraphError for a number of classes below 0 or an unknown dtype, IndexRangeError for an index out of range
    whose value is at hand; one that is not has a row of zeros.
    """
    count = integer("one_hot", "the number of classes", classes, 0)
    known = dtype_attribute("one_hot", dtype)
    values = _values_of(indices) if isinstance(indices, Node) else None
    if values is not None and not 0 <= values.min() <= values.max() < count:
        wrong = values[(values < 0) | (values >= count)][0]
        raise IndexRangeError(f"one_hot: index {wrong} of {indices.name} is out of range for {count} classes")
    return OneHot.make([indices], {"classes": count, "dtype": known})
