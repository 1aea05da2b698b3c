"""Values put or added at indices, by PyTorch's names."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import IndexRangeError, ShapeError
from ..graph import FLOATS, OPS
from ..ops import dtype_of, shape_of
from .creation import leaf
from .functions import dims_of, node_of
from .running import array_of


def _indices(op: str, index: Any, extent: int) -> np.ndarray:
    """The indices, computed at once. Raises IndexRangeError for one out of range."""
    values = array_of(node_of(index)).numpy().astype(np.int64)
    wrong = values[(values < -extent) | (values >= extent)]
    if wrong.size:
        raise IndexRangeError(f"{op}: index {wrong[0]} is out of range for an axis of {extent}")
    return np.where(values < 0, values + extent, values)


def _places(op: str, node: Node, dim: int, index: Any) -> np.ndarray:
    """The number of each element of the tensor, in row-major order, that an index along `dim` means.

    Raises ShapeError for indices that have more along another axis than the tensor."""
    (axis,) = dims_of(node, dim)
    shape = shape_of(node)
    along = _indices(op, index, shape[axis])
    fits = along.ndim == len(shape) and all(
        a == axis or n <= m for a, (n, m) in enumerate(zip(along.shape, shape, strict=True))
    )
    if not fits:
        raise ShapeError(
            f"{op}: indices of shape {along.shape} do not fit axis {dim} of {shape} [{node.name}]"
        )
    places = list(np.ix_(*(np.arange(n) for n in along.shape)))
    places[axis] = along
    numbers = np.arange(int(np.prod(shape))).reshape(shape)
    return numbers[tuple(places)]


def _source(op: str, node: Node, source: Any, shape: tuple[int, ...]) -> Node:
    """The values as a vector: of a tensor its first ones along every axis, a number repeated. Raises ShapeError where
    there are not enough."""
    given = node_of(source)
    if dtype_of(given) != dtype_of(node):
        given = ad.cast_op(given, dtype_of(node))
    own = shape_of(given)
    if own == ():
        return ad.flatten_op(ad.broadcast_shape_op(given, shape))
    if len(own) != len(shape) or any(n > m for n, m in zip(shape, own, strict=True)):
        raise ShapeError(f"{op}: values of shape {own} do not fit indices of shape {shape}")
    return ad.flatten_op(ad.slice_op(given, tuple(slice(n) for n in shape)) if own != shape else given)


def _put(node: Node, places: np.ndarray, values: Node) -> Node:
    """The tensor with values at places, by their numbers; of a place that is named twice the last value counts."""
    shape = shape_of(node)
    flat = np.full(int(np.prod(shape)), -1, np.int64)
    flat[places.reshape(-1)] = np.arange(places.size)
    numbers = flat.reshape(shape)
    if not places.size:
        return node
    return ad.where_op(leaf(numbers >= 0), ad.take_op(values, leaf(np.maximum(numbers, 0))), node)


def _added(node: Node, places: np.ndarray, values: Node) -> Node:
    """The tensor with values added at places, by their numbers."""
    if not places.size:
        return node
    flat = ad.flatten_op(node)
    if dtype_of(node) not in FLOATS:  # what adds at indices is of floats
        values, flat = ad.cast_op(values, "float64"), ad.cast_op(flat, "float64")
    total = OPS["take_gradient"].make([values, leaf(places.reshape(-1)), flat], {"axis": 0})
    return node + ad.reshape_op(ad.cast_like_op(total, node), shape_of(node))


def scatter(x: Any, dim: int, index: Any, src: Any) -> Node:
    """x with `src`, a tensor or number, at the indices along `dim`: y[..., index[..., i, ...], ...] = src[..., i, ...].

    The indices are computed at once. Of an index that stands twice the last value counts. Raises IndexRangeError,
    ShapeError.
    """
    node = node_of(x)
    places = _places("scatter", node, dim, index)
    return _put(node, places, _source("scatter", node, src, places.shape))


def scatter_add(x: Any, dim: int, index: Any, src: Any) -> Node:
    """x with the elements of `src` added at the indices along `dim`, see `scatter`."""
    node = node_of(x)
    places = _places("scatter_add", node, dim, index)
    return _added(node, places, _source("scatter_add", node, src, places.shape))


def _slices(op: str, node: Node, dim: int, index: Any, source: Any) -> tuple[np.ndarray, Node]:
    """The places of whole slices along `dim`, and the values for them. Raises ShapeError."""
    (axis,) = dims_of(node, dim)
    shape = shape_of(node)
    chosen = _indices(op, index, shape[axis])
    if chosen.ndim > 1:
        raise ShapeError(f"{op}: indices must be a vector, not of shape {chosen.shape}")
    numbers = np.arange(int(np.prod(shape))).reshape(shape)
    places = np.take(numbers, np.atleast_1d(chosen), axis)
    given = node_of(source)
    if shape_of(given) not in ((), places.shape):
        raise ShapeError(f"{op}: values of shape {shape_of(given)} do not fit slices of shape {places.shape}")
    return places, _source(op, node, given, places.shape)


def index_add(x: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Node:
    """x with slices, times alpha, added to those with these numbers along `dim`. Raises IndexRangeError, ShapeError."""
    node = node_of(x)
    places, values = _slices("index_add", node, dim, index, source)
    return _added(node, places, values if alpha == 1 else values * alpha)


def index_copy(x: Any, dim: int, index: Any, source: Any) -> Node:
    """x with other slices at these numbers along `dim`. Raises IndexRangeError, ShapeError."""
    node = node_of(x)
    return _put(node, *_slices("index_copy", node, dim, index, source))


def index_fill(x: Any, dim: int, index: Any, value: Any) -> Node:
    """x with one number in the slices with these numbers along `dim`. Raises IndexRangeError."""
    node = node_of(x)
    return _put(node, *_slices("index_fill", node, dim, index, value))
