"""Slices with steps, their gradients, and padding.

The integers of a slice's key may become inputs: `x[i]` and `x[i:j]` for an i that changes are compiled once. A training
loop over batches `x[i : i + 32]` needs it: a step of a linear layer takes 0.8 ms so, else 12, planned anew at each i.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .. import compute
from ..checks import in_dtype
from ..compute import Tensor
from ..errors import GraphError, ShapeError
from ..graph import DTYPES, OPS, Formula, Made, Node, Op, Shape, register, set_arithmetic, shape_error
from .indexing import take_op
from .rules import Adjoint, Linear, real_constant, require_constant
from .state import leaf
from .types import over_axes, shape_of
from .views import View

_WHOLE = (None, None, None)
MOST_AXES = 64  # of an array of NumPy


def _is_range(item: Any) -> bool:
    """Whether the item of a key is a slice of less than a whole axis."""
    return isinstance(item, tuple) and len(item) == 3 and item != _WHOLE


def _places(node: Node) -> list[tuple[int, int]]:
    """For each of the numbers the item of the key without `...` that it is, and the axis of x."""
    found = []
    axis = 0
    for position, item in enumerate(_spelled(node, shape_of(node.inputs[-1]))):
        if isinstance(item, int) or _is_range(item):
            found.append((position, axis))
        axis += item is not None
    return found


def _spelled(node: Node, shape: Shape) -> list[Any]:
    """The key with an item for every axis of an array of `shape`. Raises ShapeError."""
    key: Key = node.attrs["key"]
    taken = sum(item is not None and item is not Ellipsis for item in key)
    if taken > len(shape):
        raise shape_error(node, f"{taken} indices for an input of {len(shape)} dimensions: {shape}")
    at = key.index(Ellipsis) if Ellipsis in key else len(key)
    return [*key[:at], *[_WHOLE] * (len(shape) - taken), *key[at + 1 :]]


Key = tuple[Any, ...]
"""A basic index as a hashable attribute: integers, None for a new axis, Ellipsis, (start, stop, step) for a slice and
(i, n) for part i of n equal parts of an axis."""


@dataclass(frozen=True)
class Region:
    """The part of an array that a key reads: of each axis `counts` elements at starts + steps * i, and the result's
    shape, whose axis k is the array's axis `axes[k]`, or new where that is None."""

    counts: Shape
    starts: tuple[int, ...]
    steps: tuple[int, ...]
    axes: tuple[int | None, ...]
    shape: Shape


def region_of(node: Node, shape: Shape) -> Region:
    """The region of an array of `shape` that the node's key means. Raises ShapeError."""
    reads: list[range] = []
    axes: list[int | None] = []
    for item in _spelled(node, shape):
        axis = len(reads)
        if not isinstance(item, int):
            axes.append(None if item is None else axis)
        if item is None:
            continue
        extent = shape[axis]
        if isinstance(item, int) and not -extent <= item < extent:
            raise shape_error(node, f"index {item} is out of range for axis {axis} of {shape}")
        if isinstance(item, tuple) and len(item) == 2 and extent % item[1]:
            raise shape_error(node, f"axis {axis} of {shape} does not split into {item[1]} equal parts")
        reads.append(_read(item, extent) or range(0))
    counts = tuple(map(len, reads))
    starts, steps = tuple(read.start for read in reads), tuple(read.step for read in reads)
    return Region(counts, starts, steps, tuple(axes), tuple(1 if a is None else counts[a] for a in axes))


def _read(item: Any, extent: int) -> range:
    """The indices of an axis that an integer, slice or part reads."""
    if isinstance(item, int):
        item += extent if item < 0 else 0
        return range(item, item + 1)
    if len(item) == 2:
        part, each = item[0], extent // item[1]
        return range(part * each, (part + 1) * each)
    return range(*slice(*item).indices(extent))


def _indices(counts: Shape, starts: Shape, steps: Shape) -> tuple[Any, ...]:
    """A region as NumPy's index of the whole array, without dropped and new axes."""
    return tuple(
        slice(start, start + count * step if start + count * step >= 0 else None, step)
        for count, start, step in zip(counts, starts, steps, strict=True)
    )


def _placed(x: np.ndarray, shape: Shape, counts: Shape, starts: Shape, steps: Shape, fill: float = 0.0) -> np.ndarray:
    """The elements of x in a region of an array that is else `fill`, by NumPy."""
    result = np.full(shape, in_dtype(fill, x.dtype), x.dtype)
    result[_indices(counts, starts, steps)] = x.reshape(counts)
    return result


class _WithKey(Op):
    """An operator with the key of a slice, whose integers may become inputs."""

    lifts = True
    dtypes = DTYPES

    def numbers(self, node: Node) -> tuple[Any, Sequence[Any]]:
        """The key without its integers and slices, and these."""
        items = node.attrs["key"]
        rest = tuple("range" if _is_range(i) else "i" if isinstance(i, int) else (i,) for i in items)
        numbers = [item for item in items if isinstance(item, int) or _is_range(item)]
        return (rest, tuple([self.number(node, which).size for which in range(len(numbers))])), numbers

    def number(self, node: Node, which: int) -> np.ndarray:
        """The indices that one of the numbers reads along its axis."""
        position, axis = _places(node)[which]
        shape = shape_of(node.inputs[-1])
        item = _spelled(node, shape)[position]
        found = np.asarray(_read(item, shape[axis]), np.int64)
        return np.asarray(found[0] if isinstance(item, int) else found)

    def lifted(self, node: Node, inputs: list[Node], numbers: Mapping[int, Node]) -> Node:
        """The items that stay first, then along each other axis what it takes, from the last one on: so axes stay in
        place."""
        key, places = _spelled(node, shape_of(node.inputs[-1])), _places(node)
        chosen = [places[which][0] for which in sorted(numbers)]
        rest = tuple(_WHOLE if i in chosen else item for i, item in enumerate(key))
        steps: list[tuple[Node, int]] = []
        for position, which in zip(reversed(chosen), sorted(numbers, reverse=True), strict=True):
            steps.append((numbers[which], sum(not isinstance(item, int) for item in rest[:position])))
        whole = inputs[-1]  # of a gradient what was sliced, for its shape
        taken = [whole if all(item == _WHOLE for item in rest) else Slice.make([whole], {"key": rest})]
        for index, axis in steps:
            taken.append(take_op(taken[-1], index, axis))
        if isinstance(node.op, Slice):
            return taken[-1]
        grad = inputs[0]
        for (index, axis), like in zip(reversed(steps), reversed(taken[:-1]), strict=True):
            grad = OPS["take_gradient"].make([grad, index, like], {"axis": axis})
        return grad if taken[0] is whole else SliceGradient.make([grad, whole], {"key": rest})


@register
class Slice(Linear, _WithKey):
    """x[key] by NumPy's basic indexing: integers, slices with any steps, new axes, an ellipsis."""

    name = "slice"
    adjoint = "slice_gradient"
    picks = True
    flops = 0

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return region_of(node, input_shapes[0]).shape

    def view(self, node: Node, x: View) -> View:
        """The result as a view of an array of which x is one."""
        region = region_of(node, x.shape)
        return x.sliced(region.counts, region.starts, region.steps, region.shape)

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        region = region_of(node, compute.shape_of(inputs[0]))
        return compute.strided_slice(inputs[0], region.starts, region.steps, region.axes, shape)

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        region = region_of(node, inputs[0].shape)
        found = inputs[0][_indices(region.counts, region.starts, region.steps)]
        return np.array(found, order="C").reshape(region.shape)


@register
class SliceGradient(Adjoint, _WithKey):
    """Zeros of like's shape, with the gradient where a slice by the same key reads: inputs (gradient, like)."""

    name = "slice_gradient"
    forward = "slice"
    flops = 0
    dtypes = DTYPES
    shape_only: ClassVar[Sequence[int]] = (1,)
    formula: ClassVar[Formula] = compute.strided_place
    reference: ClassVar[Formula] = _placed

    def arguments(self, node: Node, shapes: list[Shape], shape: Shape) -> tuple[Any, ...]:
        region = region_of(node, shape)
        return shape, region.counts, region.starts, region.steps


@register
class Pad(Op):
    """x with `padding` = ((before, after), ...), a pair an axis, elements of `value` around it."""

    name = "pad"
    flops = 0
    dtypes = DTYPES
    formula: ClassVar[Formula] = compute.strided_place
    reference: ClassVar[Formula] = _placed

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        shape, padding = input_shapes[0], node.attrs["padding"]
        if len(padding) != len(shape):
            raise shape_error(node, f"{len(padding)} pairs of padding for {len(shape)} dimensions: {shape}")
        return tuple(before + extent + after for extent, (before, after) in zip(shape, padding, strict=True))

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        dtype = super().infer_dtype(node, input_dtypes)
        require_constant(node, node.attrs["value"], dtype)
        return dtype

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        key = tuple((before, -after if after else None, None) for before, after in node.attrs["padding"])
        return [Slice.make([output_grad], {"key": key})]

    def arguments(self, node: Node, shapes: list[Shape], shape: Shape) -> tuple[Any, ...]:
        starts = tuple(before for before, _ in node.attrs["padding"])
        return shape, shapes[0], starts, (1,) * len(shape), node.attrs["value"]


def key_at(axis: int, item: Any) -> Key:
    """The key of a slice that reads `item` along an axis, and the others whole. Raises GraphError."""
    if abs(axis) > MOST_AXES:
        raise GraphError(f"slice: no array has an axis {axis}")
    return (*(_WHOLE,) * axis, item) if axis >= 0 else (Ellipsis, item, *(_WHOLE,) * (-axis - 1))


def slice_op(x: Node, key: Any) -> Made:
    """x[key] by NumPy's basic indexing: an integer, a slice, None (a new axis), `...`, or a tuple of them.

    Raises GraphError for a key of something else; at the run ShapeError for an integer that is out of range.
    """
    items = key if isinstance(key, tuple) else (key,)
    found = tuple(_key_item(item) for item in items)
    if found.count(Ellipsis) > 1:
        raise GraphError("slice: an index has one ellipsis at most")
    return Slice.make([x], {"key": found})


def slice_gradient_op(grad: Node, like: Node, key: Any) -> Made:
    """Zeros of like's shape, with `grad` where `slice_op` by the same key reads. Raises GraphError."""
    return SliceGradient.make([grad, like], slice_op(like, key).attrs)


def _key_item(item: Any) -> Any:
    """An item of an index as it stands in a key. Raises GraphError for what is no basic index."""
    if item is None or item is Ellipsis:
        return item
    try:
        if isinstance(item, slice):
            limits = tuple(
                None if limit is None else operator.index(limit)
                for limit in (item.start, item.stop, item.step)
            )
            if limits[2] == 0:
                raise GraphError("slice: a step of 0")
            return limits
        if not isinstance(item, (bool, np.bool_)):
            return operator.index(item)
    except TypeError:
        pass
    what = "a node or array" if isinstance(item, (Node, np.ndarray, list)) else repr(item)
    raise GraphError(
        f"slice: an index is of integers, slices, None and ..., not {what}; "
        "integers in a node or array index the first axis alone, x[indices], or take_op any axis"
    )


def _getitem(x: Node, key: Any) -> Made:
    """x[key]: `slice_op`, or `take_op` along the first axis for a node, array or list of integers."""
    if isinstance(key, Node):
        return take_op(x, key)
    if isinstance(key, list) or (isinstance(key, np.ndarray) and key.ndim):
        indices = np.asarray(key, np.int64) if isinstance(key, list) and not key else np.asarray(key)
        if indices.dtype.kind not in "iu":
            raise GraphError(f"slice: an index array must be of integers, not {indices.dtype}")
        return take_op(x, leaf(indices.astype(np.int64), "indices"))
    return slice_op(x, key)


def strided_key(op: str, x: Node, axes: Any, step: int) -> Key:
    """The key of a slice that takes each `step`-th element along the axes, an int, integers or None for all.

    Raises GraphError, and ShapeError where the shape has to be known and is not."""
    found = over_axes(op, x, axes)
    if found and not -MOST_AXES <= min(found) <= max(found) < MOST_AXES:
        raise ShapeError(f"{op}: axes {found} are out of range for any array")
    if found is None or (min(found, default=0) < 0 <= max(found, default=0)):
        rank = len(shape_of(x))
        found = tuple(range(rank)) if found is None else tuple(axis % max(rank, 1) for axis in found)
    items: list[Any] = [_WHOLE] * max((axis + 1 if axis >= 0 else -axis for axis in found), default=0)
    for axis in found:
        items[axis] = (None, None, step)
    return (Ellipsis, *items) if min(found, default=0) < 0 else tuple(items)


def flip_op(x: Node, axes: Any = None) -> Made:
    """x turned round along `axes`: None (all), an int or a tuple. Raises GraphError for axes that are no integers."""
    return Slice.make([x], {"key": strided_key("flip", x, axes, -1)})


def pad_op(x: Node, padding: Any, value: float = 0.0) -> Made:
    """x with `value` around it: padding is ((before, after), ...), a pair for every axis, as `np.pad` takes it.

    Raises GraphError for padding that is no such pairs, or negative.
    """
    try:
        pairs = tuple((operator.index(before), operator.index(after)) for before, after in padding)
    except (TypeError, ValueError):
        raise GraphError(f"pad: padding must be a pair (before, after) an axis, not {padding!r}") from None
    if any(extent < 0 for pair in pairs for extent in pair):
        raise GraphError(f"pad: padding must not be negative: {padding!r}")
    return Pad.make([x], {"padding": pairs, "value": real_constant("pad", value)})


set_arithmetic({"[]": _getitem})
