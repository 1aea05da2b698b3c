"""Reductions of tensors by PyTorch's names: over `dim`, one axis, several or all, which `keepdim` keeps with extent 1.

NumPy's words `axis` and `keepdims` are taken as well.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import ops
from ..errors import GraphError
from ..graph import UNSIGNED, Node
from ..ops import dtype_name, known_dtype
from .functions import float_of, maximum, minimum, node_of, require_float
from .logic import as_bool

NO_AXIS: Any = object()


class Extremum(NamedTuple):
    """Values and indices, as `max` and `min` along an axis, `sort` and `topk` return."""

    values: Node
    indices: Node


def _axes(dim: Any, axis: Any, keepdim: bool, keepdims: bool) -> tuple[Any, bool]:
    """Axes and whether they are kept, in either's words; PyTorch's empty tuple is all axes."""
    found = dim if axis is NO_AXIS else axis
    return None if isinstance(found, (tuple, list)) and not found else found, bool(keepdim or keepdims)


def sum(
    x: Any,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
    axis: Any = NO_AXIS,
    keepdims: bool = False,
) -> Node:
    """The sum; int64 of integers and booleans."""
    node = node_of(x)
    if dtype is not None:
        node = ops.cast_op(node, dtype_name("sum", dtype))
    elif known_dtype(node) in ("bool", "int32", *UNSIGNED):
        node = ops.cast_op(node, "int64")
    return ops.reducesum_op(node, *_axes(dim, axis, keepdim, keepdims))


def mean(
    x: Any,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
    axis: Any = NO_AXIS,
    keepdims: bool = False,
) -> Node:
    """The mean, of booleans the share that holds. Raises DTypeError for integers, as PyTorch does."""
    node = node_of(x)
    if dtype is not None:
        node = ops.cast_op(node, dtype_name("mean", dtype))
    elif known_dtype(node) == "bool":
        node = ops.cast_op(node, "float32")
    return ops.mean_op(require_float("mean", node), *_axes(dim, axis, keepdim, keepdims))


def _spread(
    function: Any, x: Any, dim: Any, unbiased: Any, keepdim: bool, correction: Any, axis: Any, keepdims: bool
) -> Node:
    """Variance or deviation, whose second argument by position is `unbiased`, or the first where it is a bool."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    terms = correction if correction is not None else 1 if unbiased is None else int(unbiased)
    return function(require_float("var", x), *_axes(dim, axis, keepdim, keepdims), terms)


def var(
    x: Any,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
    axis: Any = NO_AXIS,
    keepdims: bool = False,
) -> Node:
    """The variance: squared distances from the mean over their number less `correction`, 1 for None, or `unbiased`."""
    return _spread(ops.var_op, x, dim, unbiased, keepdim, correction, axis, keepdims)


def std(
    x: Any,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
    axis: Any = NO_AXIS,
    keepdims: bool = False,
) -> Node:
    """The square root of the variance."""
    return _spread(ops.std_op, x, dim, unbiased, keepdim, correction, axis, keepdims)


def _largest(node: Node, axes: Any, keepdims: bool) -> Node:
    """The maximum; of booleans whether one holds."""
    return any(node, axes, keepdims) if known_dtype(node) == "bool" else ops.max_op(node, axes, keepdims)


def _least(node: Node, axes: Any, keepdims: bool) -> Node:
    """The minimum; of booleans whether all hold."""
    return all(node, axes, keepdims) if known_dtype(node) == "bool" else ops.min_op(node, axes, keepdims)


def _ordered(node: Node) -> Node:
    """The node in a dtype whose extrema have places: booleans as integers."""
    return ops.cast_op(node, "int32") if known_dtype(node) == "bool" else node


def amax(
    x: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = NO_AXIS, keepdims: bool = False
) -> Node:
    """The maximum; the gradient goes to all that are equal to it, in equal shares."""
    return _largest(node_of(x), *_axes(dim, axis, keepdim, keepdims))


def amin(
    x: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = NO_AXIS, keepdims: bool = False
) -> Node:
    """The minimum; the gradient goes to all that are equal to it, in equal shares."""
    return _least(node_of(x), *_axes(dim, axis, keepdim, keepdims))


def _extremum(
    x: Any, dim: Any, keepdim: bool, axis: Any, keepdims: bool, value: Any, place: Any, of_two: Any
) -> Any:
    node = node_of(x)
    if isinstance(dim, Node) or (isinstance(dim, np.ndarray) and dim.ndim):
        return of_two(node, dim)
    if axis is not NO_AXIS or dim is None:
        return value(node, *_axes(dim, axis, keepdim, keepdims))
    where = place(_ordered(node), dim, True)
    found = ops.take_along_axis_op(node, where, dim)
    if keepdim or keepdims:
        return Extremum(found, where)
    return Extremum(ops.squeeze_op(found, dim), ops.squeeze_op(where, dim))


def max(
    x: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = NO_AXIS, keepdims: bool = False
) -> Any:
    """The maximum of all. Along `dim`, as in PyTorch, a pair: `values`, to the first of which the gradient goes, and
    `indices`; along NumPy's `axis` the values alone. Of two tensors, the larger at each index."""
    return _extremum(x, dim, keepdim, axis, keepdims, _largest, ops.argmax_op, maximum)


def min(
    x: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = NO_AXIS, keepdims: bool = False
) -> Any:
    """The minimum; see `max`."""
    return _extremum(x, dim, keepdim, axis, keepdims, _least, ops.argmin_op, minimum)


def argmax(
    x: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = NO_AXIS, keepdims: bool = False
) -> Node:
    """Where the first maximum is along an axis, of all in row-major order for None; int64."""
    return ops.argmax_op(_ordered(node_of(x)), *_axes(dim, axis, keepdim, keepdims))


def argmin(
    x: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = NO_AXIS, keepdims: bool = False
) -> Node:
    """Where the first minimum is along an axis, of all in row-major order for None; int64."""
    return ops.argmin_op(_ordered(node_of(x)), *_axes(dim, axis, keepdim, keepdims))


def any(
    x: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = NO_AXIS, keepdims: bool = False
) -> Node:
    """Whether one at least is not 0."""
    count = ops.reducesum_op(ops.cast_op(as_bool(x), "int64"), *_axes(dim, axis, keepdim, keepdims))
    return ops.not_equal_op(count, 0)


def all(
    x: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = NO_AXIS, keepdims: bool = False
) -> Node:
    """Whether none is 0."""
    missing = ops.cast_op(ops.logical_not_op(as_bool(x)), "int64")
    return ops.equal_op(ops.reducesum_op(missing, *_axes(dim, axis, keepdim, keepdims)), 0)


def logsumexp(
    x: Any,
    dim: Any = None,
    keepdim: bool = False,
    *,
    axis: Any = NO_AXIS,
    keepdims: bool = False,
) -> Node:
    """log(sum(exp(x))), without overflow."""
    return ops.logsumexp_op(float_of(x), *_axes(dim, axis, keepdim, keepdims))


def softmax(x: Any, dim: Any = -1, *, axis: Any = NO_AXIS) -> Node:
    """exp(x) over its sum along an axis."""
    return ops.softmax_op(require_float("softmax", x), dim if axis is NO_AXIS else axis)


def log_softmax(x: Any, dim: Any = -1, *, axis: Any = NO_AXIS) -> Node:
    """The logarithm of softmax, without loss of digits."""
    return ops.log_softmax_op(require_float("log_softmax", x), dim if axis is NO_AXIS else axis)


def norm(
    x: Any, p: Any = 2, dim: Any = None, keepdim: bool = False, *, axis: Any = NO_AXIS, keepdims: bool = False
) -> Node:
    """The sum of |x|^p to the power of 1 / p; the largest |x| for infinity, the number of nonzeros for 0.

    The gradient of the Euclidean norm is 0 where the norm is. Raises GraphError for another p than a number or "fro".
    """
    node, over = require_float("norm", x), _axes(dim, axis, keepdim, keepdims)
    p = 2 if p == "fro" else p
    if isinstance(p, bool) or not isinstance(p, (int, float)):
        raise GraphError(f"norm: p must be a number, not {p!r}")
    if p in (np.inf, -np.inf):
        return (ops.max_op if p > 0 else ops.min_op)(ops.abs_op(node), *over)
    if p == 0:
        return ops.reducesum_op(ops.cast_like_op(ops.not_equal_op(node, 0.0), node), *over)
    if p == 1:
        return ops.reducesum_op(ops.abs_op(node), *over)
    total = ops.reducesum_op(node * node if p == 2 else ops.abs_op(node) ** p, *over)
    is_zero = ops.equal_op(total, 0.0)
    safe = ops.where_op(is_zero, 1.0, total)  # at 0 the root has no slope
    return ops.where_op(is_zero, 0.0, ops.sqrt_op(safe) if p == 2 else safe ** (1 / p))
