"""Indexing by PyTorch's rules: integers, slices, new axes, `...`, integer arrays for several axes, and masks.

Masks need values: how many elements they take decides the shape, so x[mask] computes the mask at once. Gradients go
through all of them to x.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from .. import ops
from ..checks import flag, integer, word
from ..devices import host_array
from ..errors import DTypeError, GraphError, IndexRangeError, ShapeError
from ..graph import INTEGERS, Handle, Node, Shape, is_node
from ..ops import broadcast_rule, dtype_of, is_number, known_dtype, known_shape, shape_of
from ..scopes import scopes
from .arguments import dim_of, node_of, require_rank
from .creation import is_leaf, leaf
from .elementwise import where
from .evaluate import array_of
from .table import TABLE, function
from .typing import ArrayLike, Index

if TYPE_CHECKING:
    from .base import Tensor

WHOLE = slice(None)
_WANTED = "slice: an index array must be of integers or booleans"


def _is_array(item: object) -> bool:
    """Whether the item is an array of indices or a mask."""
    if isinstance(item, np.ndarray) and not item.ndim:
        return item.dtype == np.bool_
    return is_node(item) or isinstance(item, (list, np.ndarray)) or (
        hasattr(item, "__dlpack__") and not np.isscalar(item)
    )


def _as_bool_array(item: Any) -> Any:
    """True and False as masks of no axis, which take a new axis whole or not at all."""
    if isinstance(item, (bool, np.bool_)):
        return np.asarray(item)
    if is_node(item) and known_dtype(item) == "bool" and known_shape(item) == ():
        return array_of(item).numpy()
    return item


def _is_mask(item: object) -> bool:
    return isinstance(item, np.ndarray) and item.dtype == np.bool_


def _as_index(item: Any) -> Any:
    """An index array as int64 on the host, or as a node of integers; a mask, of booleans or bytes, as booleans."""
    if is_node(item):
        dtype = known_dtype(item)
        if dtype in ("bool", "uint8"):
            return array_of(item).numpy().astype(bool)
        if dtype is not None and dtype not in INTEGERS:
            raise GraphError(f"{_WANTED}, not {dtype} [{item.name}]")
        return item
    try:
        found = np.asarray(item, np.int64) if isinstance(item, list) and not item else host_array(item, None)
    except DTypeError as error:
        raise GraphError(f"{_WANTED}: {error}") from None
    if found.dtype != np.bool_ and found.dtype.kind not in "iu":
        raise GraphError(f"{_WANTED}, not {found.dtype}")
    return found if found.dtype == np.bool_ else found.astype(np.int64)


def _as_node(index: Any) -> Node:
    return index if is_node(index) else leaf(index, name="indices")


@dataclass(frozen=True)
class _NewAxis:
    """The indices along a new axis, of True its one, of False none."""

    indices: np.ndarray


@function(method=False)
def gathered(x: Tensor, items: list[Any]) -> Tensor:
    """x at index arrays of several axes, beside other items. An array of no axis counts as an integer."""
    items = _expanded(items, x.shape)
    is_array = [is_node(item) or isinstance(item, np.ndarray) for item in items]
    numbers = [i for i, item in enumerate(items) if is_array[i] and item.shape == ()]
    for place in reversed(numbers):
        before = [item for item in items[:place] if item is not None and not isinstance(item, _NewAxis)]
        x = ops.take_op(x, _as_node(items.pop(place)), len(before))
    # Integers and slices first; after them only whole axes and arrays are left.
    basic = tuple(WHOLE if is_node(item) or isinstance(item, np.ndarray) else item for item in items)
    basic = tuple(None if isinstance(item, _NewAxis) else item for item in basic)
    items = [item.indices if isinstance(item, _NewAxis) else item for item in items]
    places = [item for item in items if item is None or is_node(item) or isinstance(item, (slice, np.ndarray))]
    y = ops.slice_op(x, basic)
    axes = [axis for axis, item in enumerate(places) if is_node(item) or isinstance(item, np.ndarray)]
    arrays = [places[axis] for axis in axes]
    if not axes:
        return y
    if axes != list(range(axes[0], axes[0] + len(axes))):  # apart: what they give comes first
        rest = [axis for axis in range(len(places)) if axis not in axes]
        y, axes = ops.transpose_op(y, (*axes, *rest)), list(range(len(axes)))
    extents = shape_of(y)
    first, own = axes[0], tuple(extents[axis] for axis in axes)
    flat = ops.reshape_op(y, (*extents[:first], math.prod(own), *extents[first + len(axes) :]))
    return ops.take_op(flat, joint_index(x, arrays, own), first)


def _expanded(items: list[Any], shape: Shape) -> list[Any]:
    """An item for every axis: masks as the places of what they take, `...` and missing ones as whole axes."""
    taken = sum(item.ndim if _is_mask(item) else item is not None and item is not Ellipsis for item in items)
    if taken > len(shape):
        raise ShapeError(f"slice: {taken} indices for a tensor of shape {shape}")
    whole = [WHOLE] * (len(shape) - taken)
    if not any(item is Ellipsis for item in items):
        items = [*items, Ellipsis]
    found: list[Any] = []
    axis = 0
    for item in items:
        if item is Ellipsis:
            found += whole
            axis += len(whole)
        elif _is_mask(item) and not item.ndim:
            found.append(_NewAxis(np.arange(int(item))))
        elif _is_mask(item):
            if item.shape != shape[axis : axis + item.ndim]:
                raise ShapeError(f"slice: a mask of shape {item.shape} for axis {axis} on of {shape}")
            found += np.nonzero(item)
            axis += item.ndim
        else:
            found.append(item)
            axis += item is not None
    return found


def joint_index(x: Node, arrays: list[Any], extents: Shape) -> Node:
    """The number of each element of x, in row-major order of the axes, of these extents, that the index arrays are
    for."""
    total: Any = 0
    try:
        np.broadcast_shapes(*(shape_of(a) if is_node(a) else a.shape for a in arrays))
    except ValueError as error:
        raise ShapeError(f"slice: index arrays do not fit each other: {error}") from None
    for index, extent in zip(arrays, extents, strict=True):
        if isinstance(index, np.ndarray) or (is_leaf(index) and not scopes.applies):
            values = np.asarray(index).astype(np.int64)
            wrong = values[(values < -extent) | (values >= extent)]
            if wrong.size:
                raise IndexRangeError(f"index {wrong[0]} is out of range for an axis of {extent} of {x.name}")
            own: Any = np.where(values < 0, values + extent, values)
        else:
            own = ops.in_range_op(index, extent)
        total = own if isinstance(total, int) else total * extent + own
    return _as_node(total)


def take_items(x: Tensor, key: Index) -> Tensor:
    """x[key]. Raises IndexRangeError for an integer out of range, GraphError for a key that is no index, and for a mask
    whose values are not known, ShapeError for a mask that does not fit. Integers that are computed later are clamped
    into range."""
    given = key if isinstance(key, tuple) else (key,)
    items = [list(item) if isinstance(item, range) else item for item in given]
    if sum(item is Ellipsis for item in items) > 1:
        raise IndexRangeError(f"an index has one ellipsis at most [{x.name}]")
    items = [_as_bool_array(item) for item in items]
    if not any(_is_array(item) for item in items):
        return ops.slice_op(x, tuple(items))
    items = [_as_index(item) if _is_array(item) else item for item in items]
    at = next(i for i, item in enumerate(items) if is_node(item) or isinstance(item, np.ndarray))
    alone = at == len(items) - 1 and all(isinstance(item, slice) and item == WHOLE for item in items[:at])
    if alone and not _is_mask(items[at]):
        return ops.take_op(x, _as_node(items[at]), at)
    if items[0] is Ellipsis and len(items) == 2 and not _is_mask(items[1]):
        return ops.take_op(x, _as_node(items[1]), -1)
    return gathered(x, items)


TABLE["__getitem__"] = take_items


@function(at_once=True)
def gather(x: Tensor, dim: int, index: ArrayLike) -> Tensor:
    """x at the indices along `dim`: y[..., i, ...] = x[..., index[..., i, ...], ...]; the other extents agree."""
    return ops.take_along_axis_op(x, _as_node(_as_index(index)), dim)


@function(at_once=True)
def take_along_dim(x: Tensor, indices: ArrayLike, dim: int | None = None) -> Tensor:
    """`gather` with indices that are broadcast along the other axes; of all elements in row-major order for None."""
    place = _as_node(_as_index(indices))
    if dim is None:
        return ops.take_op(x.ravel(), ops.reshape_op(place, (-1,)), 0)
    return _taken_along(x, place, dim)


@function(method=False)
def _taken_along(x: Tensor, index: Node, dim: int) -> Tensor:
    axis = dim_of("take_along_dim", x, dim)
    one, other = ((*node.shape[:axis], 1, *node.shape[axis + 1 :]) for node in (x, index))
    wide = list(broadcast_rule(one, other))
    node, place = (
        ops.broadcast_shape_op(part, (*wide[:axis], part.shape[axis], *wide[axis + 1 :])) for part in (x, index)
    )
    return ops.take_along_axis_op(node, place, axis)


@function(at_once=True)
def scatter_add(x: Tensor, dim: int, index: ArrayLike, src: ArrayLike) -> Tensor:
    """x with the elements of `src` added at the indices along `dim`, see `autodiff.scatter_add_op`."""
    return ops.scatter_add_op(x, _as_node(_as_index(index)), node_of(src), dim)


@function(at_once=True)
def scatter_reduce(
    x: Tensor, dim: int, index: ArrayLike, src: ArrayLike, reduce: str, *, include_self: bool = True
) -> Tensor:
    """x with the elements of `src` at the indices along `dim`: their "sum" or "mean" with x's element there, or without
    it where not `include_self`; a mean of integers is rounded down. The dtype must be known."""
    reduce = word("scatter_reduce", "reduce", reduce, ("sum", "mean"))
    counts = scatter_add(ops.zeroslike_op(x), dim, index, ops.oneslike_op(node_of(src)))
    if not flag("scatter_reduce", "include_self", include_self):
        x = x.masked_fill(counts > 0, 0)
        counts = counts.maximum(1) - 1
    total = scatter_add(x, dim, index, src)
    return total if reduce == "sum" else total.div(counts + 1, rounding_mode="floor" if x.dtype in INTEGERS else None)


@function(at_once=True)
def scatter(x: Tensor, dim: int, index: ArrayLike, value: float) -> Tensor:
    """x with one number at the indices along `dim`, where `gather` reads. Raises GraphError for tensors, of which
    several could meet in one place: `scatter_add` adds them."""
    if not is_number(value):
        raise GraphError(f"scatter: the value must be a number, not {value!r}: scatter_add adds tensors")
    place = _as_node(_as_index(index))
    none, ones = ops.cast_op(ops.zeroslike_op(x), "float32"), ops.cast_op(ops.oneslike_op(place), "float32")
    return x.masked_fill(ops.scatter_add_op(none, place, ones, dim) > 0, value)


@function(at_once=True)
def index_add(x: Tensor, dim: int, index: ArrayLike, source: ArrayLike, *, alpha: float = 1) -> Tensor:
    """x with the slices of `source` along `dim` added to those of the numbers `index`, times `alpha`. The source's
    shape must be known."""
    added = node_of(source)
    axis = dim_of("index_add", added, dim)
    ones = (1,) * (len(shape_of(added)) - axis - 1)
    place = ops.reshape_op(_as_node(_as_index(index)), (*(1,) * axis, -1, *ones))
    added = added if alpha == 1 else added * alpha
    return ops.scatter_add_op(x, ops.broadcast_shape_op(place, shape_of(added)), added, axis)


@function(at_once=True)
def index_select(x: Tensor, dim: int, index: ArrayLike) -> Tensor:
    """The slices along `dim` with the numbers `index`, a vector, or one number."""
    place = _as_node(_as_index(index))
    if len(known_shape(place) or ()) > 1:
        raise ShapeError(f"index_select: takes a vector of indices, not of shape {shape_of(place)}")
    return ops.take_op(x, ops.reshape_op(place, (-1,)), dim)


@function(at_once=True)
def masked_select(x: Tensor, mask: ArrayLike) -> Tensor:
    """The elements where the mask holds, in row-major order, both broadcast; computes the mask, as x[mask] does. Raises
    DTypeError for a mask of no booleans."""
    held = node_of(mask)
    if dtype_of(held) != "bool":
        raise DTypeError(f"masked_select: the mask must be of booleans, not {dtype_of(held)}")
    shape = broadcast_rule(shape_of(x), shape_of(held))
    return x.broadcast_to(shape)[held.broadcast_to(shape)]


@function(method=False)
def searchsorted(sorted_sequence: Tensor, input: ArrayLike, *, right: bool = False) -> Tensor:
    """int64: before which of a vector's elements, in ascending order, each of `input` would stand, before equal ones,
    with `right` behind them. It is compared with all of them."""
    require_rank("searchsorted", 1, sorted_sequence)
    each = ops.expand_dims_op(node_of(input), -1)
    return ops.reducesum_op(ops.cast_op(sorted_sequence <= each if right else sorted_sequence < each, "int64"), -1)


# Functions that compute x, as their results' shapes follow from its values ---------------------------------------


@function(at_once=True)
def bincount(x: Tensor, weights: ArrayLike | None = None, minlength: int = 0) -> Tensor:
    """How often each number from 0 to the largest occurs in a vector of integers, int64, or the sums of its `weights`;
    `minlength` of them at least. Raises GraphError for what NumPy refuses."""
    more = None if weights is None else array_of(node_of(weights)).numpy()
    try:
        return leaf(np.bincount(array_of(x).numpy(), more, integer("bincount", "minlength", minlength, 0)))
    except (TypeError, ValueError) as error:
        raise GraphError(f"bincount: {error} [{x.name}]") from None


@function(at_once=True)
def unique(
    x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Tensor | tuple[Tensor, ...]:
    """The values that occur, each once, in ascending order; with the place of each element among them, and with how
    often each occurs."""
    values = array_of(x).numpy()
    found, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    more = [leaf(places.reshape(values.shape))] if flag("unique", "return_inverse", return_inverse) else []
    more += [leaf(counts)] if flag("unique", "return_counts", return_counts) else []
    return (leaf(found), *more) if more else leaf(found)


@function(at_once=True)
def unique_consecutive(
    x: Tensor, return_inverse: bool = False, return_counts: bool = False
) -> Tensor | tuple[Tensor, ...]:
    """The elements in row-major order without those that equal the one before; with the place of each among them, and
    with how often each stands there."""
    values = array_of(x).numpy()
    flat = values.reshape(-1)
    first = np.concatenate([np.ones(min(flat.size, 1), bool), flat[1:] != flat[:-1]])
    places, starts = np.cumsum(first) - 1, np.flatnonzero(first)
    inverse, counts = places.reshape(values.shape), np.diff(starts, append=flat.size)
    more = [leaf(inverse)] if flag("unique_consecutive", "return_inverse", return_inverse) else []
    more += [leaf(counts)] if flag("unique_consecutive", "return_counts", return_counts) else []
    return (leaf(flat[first]), *more) if more else leaf(flat[first])


@overload
def nonzero(x: ArrayLike, /, *, as_tuple: Literal[False] = False) -> Tensor: ...
@overload
def nonzero(x: ArrayLike, /, *, as_tuple: Literal[True]) -> tuple[Tensor, ...]: ...
@function(at_once=True)
def nonzero(x: Tensor, *, as_tuple: bool = False) -> Tensor | tuple[Tensor, ...]:
    """int64: the indices of what is not 0, a row for each; with `as_tuple` those along each axis."""
    values, along_axes = array_of(x).numpy(), flag("nonzero", "as_tuple", as_tuple)
    places = leaf(np.argwhere(np.atleast_1d(values) if along_axes else values).astype(np.int64))
    return tuple(places.unbind(1)) if along_axes else places


def replaced(x: Any, key: Any, value: Any) -> Any:
    """A tensor's new value as x[key] = value gives it. Raises IndexRangeError, ShapeError, GraphError."""
    items = list(key) if isinstance(key, tuple) else [key]
    is_noted = scopes.recording is not None or x.requires_grad or (isinstance(value, Handle) and value.node.tracks)
    if not is_noted:
        values = array_of(x).numpy()
        _set(x, values, tuple(np.asarray(item) if is_node(item) else item for item in items), host_array(value, None))
        return leaf(values, device=array_of(x).context)
    given: Any = value if isinstance(value, Handle) else leaf(np.array(host_array(value, None), x.dtype, order="C"))
    given = ops.cast_op(given, x.dtype)
    if len(items) == 1 and isinstance(items[0], Handle) and items[0].dtype == "bool" and items[0].is_open:
        return where(items[0], given, x)
    moving = [axis for axis, item in enumerate(items) if isinstance(item, Handle) and item.dtype != "bool"]
    whole = all(isinstance(item, slice) and item == WHOLE for axis, item in enumerate(items) if axis not in moving)
    if len(moving) == 1 and whole and shape_of(items[moving[0]]) in ((), (1,)):  # one position along one axis
        (axis,) = moving
        ones = (1,) * (len(x.shape) - axis - 1)
        at = leaf(np.arange(x.shape[axis]).reshape(-1, *ones)) == items[axis].reshape((1, *ones))
        if len(shape_of(given)) > axis and not shape_of(items[axis]):
            given = given.unsqueeze(axis - len(x.shape))
        return where(at, given, x)
    places = np.arange(math.prod(x.shape)).reshape(x.shape)
    try:
        taken = places[tuple(np.asarray(item) if is_node(item) else item for item in items)]
        given = given.broadcast_to(taken.shape).reshape(-1)
    except (IndexError, ShapeError) as error:
        raise IndexRangeError(f"{x.name}[...] = value: {error} (its shape is {x.shape})") from None
    last = {int(place): at for at, place in enumerate(taken.reshape(-1))}  # of several values for one place the last
    mask = np.zeros(places.size, bool)
    mask[list(last)] = True
    order = np.zeros(places.size, np.int64)
    order[list(last)] = list(last.values())
    spread = ops.take_op(given, leaf(order), 0) if len(last) else x.reshape(-1)
    return where(leaf(mask.reshape(x.shape)), spread.reshape(x.shape), x)


def _set(x: Any, values: np.ndarray, key: tuple[Any, ...], value: np.ndarray) -> None:
    """values[key] = value, with errors that name the tensor. Raises IndexRangeError, ShapeError."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            values[key] = value
    except IndexError as error:
        raise IndexRangeError(f"{x.name}[...] = value: {error} (its shape is {values.shape})") from None
    except (TypeError, ValueError) as error:
        try:
            fits = f"{values[key].shape} of {x.name}, whose shape is {values.shape}"
        except (IndexError, TypeError, ValueError):
            raise IndexRangeError(f"{x.name}[...] = value: {error}") from None
        raise ShapeError(f"a value of shape {np.shape(value)} cannot be set into the indexed {fits}") from None
