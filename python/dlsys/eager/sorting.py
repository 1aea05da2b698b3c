"""Tensors in order, and counts of their values, by PyTorch's names.

What sorts or counts needs the values and computes them at once; gradients go through what is chosen. Of elements that
are equal the first comes first, and NaN counts as the largest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import GraphError, ShapeError
from ..graph import FLOATS
from ..ops import dtype_of, known_shape, shape_of
from .creation import leaf
from .functions import dims_of, node_of, require_float
from .reductions import Extremum
from .running import array_of


def _with_scalars(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which takes a tensor of shape () for one of one element, with the axis 0."""

    @functools.wraps(function)
    def wrapped(x: Any, *args: Any, **kwargs: Any) -> Any:
        node = node_of(x)
        if known_shape(node) != ():
            return function(node, *args, **kwargs)
        found = function(ad.reshape_op(node, (1,)), *args, **kwargs)
        if isinstance(found, Extremum):
            return Extremum(*(ad.reshape_op(part, ()) for part in found))
        return ad.reshape_op(found, ())

    return wrapped


def _order(x: Node, dim: int, descending: bool) -> np.ndarray:
    """Where the elements in order are, along an axis; equal ones as they stand, NaN counts as the largest."""
    values = array_of(x).numpy()
    if not descending:
        return np.argsort(values, axis=dim, kind="stable")
    back = np.flip(values, dim)
    return values.shape[dim] - 1 - np.flip(np.argsort(back, axis=dim, kind="stable"), dim)


@_with_scalars
def argsort(x: Any, dim: int = -1, descending: bool = False, stable: bool = True) -> Node:
    """int64: where the elements in order are, along an axis. Computes x; raises GraphError for a graph of variables."""
    return leaf(_order(node_of(x), dims_of(node_of(x), dim)[0], descending))


@_with_scalars
def sort(x: Any, dim: int = -1, descending: bool = False, stable: bool = True) -> Extremum:
    """The elements in order along an axis, equal ones as they stand, and where they were; see `argsort`."""
    node = node_of(x)
    (axis,) = dims_of(node, dim)
    places = leaf(_order(node, axis, descending))
    return Extremum(ad.take_along_axis_op(node, places, axis), places)


@_with_scalars
def topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Extremum:
    """The k largest elements along an axis, or smallest, in order, and where they were; see `argsort`.

    Raises ShapeError for more than there are."""
    node = node_of(x)
    (axis,) = dims_of(node, dim)
    if not 0 <= k <= shape_of(node)[axis]:
        raise ShapeError(f"topk: there are no {k} elements along axis {dim} of {shape_of(node)}")
    places = leaf(np.take(_order(node, axis, largest), np.arange(k), axis))
    return Extremum(ad.take_along_axis_op(node, places, axis), places)


@_with_scalars
def msort(x: Any) -> Node:
    """The elements in order along the first axis."""
    return sort(x, 0).values


def _chosen(node: Node, places: np.ndarray, axis: int, keepdim: bool) -> Extremum:
    """The elements at places of extent 1 along an axis."""
    where = leaf(places)
    found = ad.take_along_axis_op(node, where, axis)
    if keepdim:
        return Extremum(found, where)
    return Extremum(ad.squeeze_op(found, axis), ad.squeeze_op(where, axis))


@_with_scalars
def kthvalue(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Extremum:
    """The k-th smallest element along an axis, counted from 1, and where it is. Raises ShapeError for none such."""
    node = node_of(x)
    (axis,) = dims_of(node, dim)
    if not 1 <= k <= shape_of(node)[axis]:
        raise ShapeError(f"kthvalue: there is no element number {k} along axis {dim} of {shape_of(node)}")
    return _chosen(node, np.take(_order(node, axis, False), [k - 1], axis), axis, keepdim)


@_with_scalars
def median(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The element in the middle, of two the smaller: of all, or along `dim` a pair of `values` and `indices`. NaN where
    there is one. Raises ShapeError where there are no elements."""
    node = node_of(x)
    if dim is None:
        return median(ad.flatten_op(node), 0).values
    (axis,) = dims_of(node, dim)
    count = shape_of(node)[axis]
    if not count:
        raise ShapeError(f"median: there is nothing along axis {dim} of {shape_of(node)}")
    places = np.take(_order(node, axis, False), [(count - 1) // 2], axis)
    if dtype_of(node) in FLOATS:
        is_nan = np.isnan(array_of(node).numpy())
        first = np.argmax(is_nan, axis, keepdims=True)
        places = np.where(is_nan.any(axis, keepdims=True), first, places)
    return _chosen(node, places, axis, keepdim)


_INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


def quantile(
    x: Any, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Node:
    """The numbers below which the share q of the elements lies: of all, or along `dim`. For several q there is a first
    axis more. Raises GraphError for a share beyond [0, 1] and an unknown interpolation."""
    node = require_float("quantile", x)
    shares = np.asarray(array_of(node_of(q)).numpy(), np.float64)
    if interpolation not in _INTERPOLATIONS:
        raise GraphError(f"quantile: interpolation must be one of {_INTERPOLATIONS}, not {interpolation!r}")
    if shares.ndim > 1 or not ((shares >= 0) & (shares <= 1)).all():
        raise GraphError(f"quantile: q must be a number of [0, 1] or a vector of such, not {q!r}")
    rank = len(shape_of(node))
    if dim is None:
        flat = quantile(ad.flatten_op(node), q, 0, interpolation=interpolation)
        return ad.reshape_op(flat, (*shares.shape, *(1,) * rank)) if keepdim else flat
    (axis,) = dims_of(node, dim)
    in_order = sort(node, axis).values
    place = shares * (shape_of(node)[axis] - 1)
    low, high = np.floor(place).astype(np.int64), np.ceil(place).astype(np.int64)
    weight = {"lower": 0 * place, "higher": place > low, "midpoint": 0.5 * (place > low)}.get(
        interpolation, np.rint(place) > low if interpolation == "nearest" else place - low
    )
    lower, upper = (ad.take_op(in_order, leaf(np.atleast_1d(i)), axis) for i in (low, high))
    wide = [1] * rank
    wide[axis] = -1
    share = leaf(np.reshape(np.asarray(weight, dtype_of(node)), wide))
    found = lower + (upper - lower) * share
    has_nan = ad.reducesum_op(ad.cast_op(ad.not_equal_op(node, node), "int64"), axis, True) > 0
    found = ad.where_op(has_nan, float("nan"), found)
    if not shares.ndim:
        return found if keepdim else ad.squeeze_op(found, axis)
    first = ad.transpose_op(found, (axis, *(a for a in range(rank) if a != axis)))
    return ad.expand_dims_op(first, axis + 1) if keepdim else first


def unique(
    x: Any,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The values that occur, each once, in order; along `dim` the slices. With more asked for a tuple: the values,
    which of them each element is, and how often each occurs. They have no gradient."""
    values = array_of(node_of(x)).numpy()
    found, inverse, counts = np.unique(values, return_inverse=True, return_counts=True, axis=dim)
    inverse = inverse.reshape(values.shape if dim is None else -1)
    result = [leaf(np.ascontiguousarray(found))]
    if return_inverse:
        result.append(leaf(inverse))
    if return_counts:
        result.append(leaf(counts))
    return result[0] if len(result) == 1 else tuple(result)


def unique_consecutive(x: Any, return_inverse: bool = False, return_counts: bool = False) -> Any:
    """The elements in row-major order without those equal to the one before, and what `unique` gives with them."""
    values = array_of(node_of(x)).numpy()
    flat = values.reshape(-1)
    is_first = np.concatenate([np.ones(min(1, flat.size), bool), flat[1:] != flat[:-1]])
    result = [leaf(flat[is_first])]
    if return_inverse:
        result.append(leaf((np.cumsum(is_first) - 1).reshape(values.shape)))
    if return_counts:
        result.append(leaf(np.diff(np.append(np.flatnonzero(is_first), flat.size))))
    return result[0] if len(result) == 1 else tuple(result)


def _cumulative(x: Any, dim: int, better: Any) -> Extremum:
    node = node_of(x)
    (axis,) = dims_of(node, dim)
    values = np.moveaxis(array_of(node).numpy(), axis, 0)
    places = np.zeros(values.shape, np.int64)
    for i in range(1, len(values)):
        before = np.take_along_axis(values, places[i - 1 : i], 0)[0]
        takes = (better(values[i], before) | (values[i] != values[i])) & (before == before)
        places[i] = np.where(takes | (values[i] != values[i]), i, places[i - 1])
    where = leaf(np.ascontiguousarray(np.moveaxis(places, 0, axis)))
    return Extremum(ad.take_along_axis_op(node, where, axis), where)


@_with_scalars
def cummax(x: Any, dim: int) -> Extremum:
    """The largest element up to each index along an axis, of equal ones the last, and where it is."""
    return _cumulative(x, dim, np.greater_equal)


@_with_scalars
def cummin(x: Any, dim: int) -> Extremum:
    """The smallest element up to each index along an axis, of equal ones the last, and where it is."""
    return _cumulative(x, dim, np.less_equal)


def bincount(x: Any, weights: Any = None, minlength: int = 0) -> Node:
    """How often each number from 0 on occurs in a vector of integers, or the sums of its weights.

    Raises GraphError for what is no such vector."""
    values = array_of(node_of(x)).numpy()
    if values.ndim != 1 or values.dtype.kind not in "iub" or (values < 0).any():
        raise GraphError(
            f"bincount: takes a vector of integers from 0 on, not {values.dtype} of shape {values.shape}"
        )
    given = None if weights is None else array_of(node_of(weights)).numpy()
    if given is not None and given.shape != values.shape:
        raise ShapeError(f"bincount: weights of shape {given.shape} for numbers of shape {values.shape}")
    found = np.bincount(values.astype(np.int64), given, minlength)
    return leaf(
        found if given is None else found.astype(given.dtype if given.dtype.kind == "f" else "float64")
    )


def histc(x: Any, bins: int = 100, min: float = 0, max: float = 0) -> Node:
    """How many elements lie in each of `bins` equal parts of [min, max], of their own range where both are 0."""
    values = array_of(require_float("histc", x)).numpy()
    low, high = (values.min(), values.max()) if min == max == 0 and values.size else (min, max)
    if low == high:
        low, high = low - 1, high + 1
    counts, _ = np.histogram(values, bins, (low, high))
    return leaf(counts.astype(values.dtype))


def searchsorted(sorted_sequence: Any, values: Any, *, right: bool = False, side: str | None = None) -> Node:
    """int64: where each value belongs in the sequence, whose last axis is in order: before those that are equal, behind
    them with `right`, or the side "right". Raises ShapeError where leading axes differ."""
    line, given = array_of(node_of(sorted_sequence)).numpy(), array_of(node_of(values)).numpy()
    where: Any = "right" if right or side == "right" else "left"
    if line.ndim == 1:
        return leaf(np.asarray(np.searchsorted(line, given, where), np.int64))
    if line.shape[:-1] != given.shape[:-1]:
        raise ShapeError(f"searchsorted: values of shape {given.shape} for sequences of shape {line.shape}")
    found = np.empty(given.shape, np.int64)
    for index in np.ndindex(line.shape[:-1]):
        found[index] = np.searchsorted(line[index], given[index], where)
    return leaf(found)


def bucketize(x: Any, boundaries: Any, *, right: bool = False) -> Node:
    """int64: how many boundaries, in order, lie below each element; with `right` also those equal to it."""
    return searchsorted(boundaries, x, right=right)
