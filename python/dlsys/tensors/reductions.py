"""Reductions, tests and order of tensors by PyTorch's names: over `dim`, one axis, several or all, kept by `keepdim`
with extent 1. NumPy's words `axis` and `keepdims` are taken as well.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from .. import ops
from ..checks import flag, number
from ..errors import DTypeError, GraphError
from ..graph import INTEGERS, UNSIGNED, Node
from ..ops import broadcast_rule, dtype_name, is_number, known_dtype
from .creation import leaf
from .functions import float_of, maximum, minimum, node_of, pair_of, require_float
from .values import array_of


def isnan(x: Any) -> Node:
    """Whether it is NaN."""
    node = node_of(x)
    return ops.not_equal_op(node, node)


def isinf(x: Any) -> Node:
    """Whether it is infinite."""
    return ops.equal_op(ops.abs_op(float_of(x)), math.inf)


def isfinite(x: Any) -> Node:
    """Whether it is neither infinite nor NaN."""
    return ops.less_op(ops.abs_op(float_of(x)), math.inf)


def logical_not(x: Any) -> Node:
    """Whether it is 0."""
    return ops.logical_not_op(as_bool(x))


def as_bool(x: Any) -> Node:
    """Whether it is not 0."""
    node = node_of(x)
    return node if known_dtype(node) == "bool" else ops.cast_op(node, "bool")


def logical_and(a: Any, b: Any) -> Node:
    """Whether neither is 0."""
    return ops.logical_and_op(as_bool(a), as_bool(b))


def logical_or(a: Any, b: Any) -> Node:
    """Whether one at least is not 0."""
    return ops.logical_or_op(as_bool(a), as_bool(b))


def where(condition: Any, a: Any, b: Any) -> Node:
    """a where the condition holds, else b."""
    return ops.where_op(node_of(condition), *pair_of(a, b))


def masked_fill(x: Any, mask: Any, value: Any) -> Node:
    """x, but `value`, cast to x's dtype, where the mask holds: fractions are cut off beside integers.

    Raises DTypeError for a number that x's dtype does not hold, as infinity beside integers.
    """
    node = node_of(x)
    if isinstance(value, Node):
        return ops.where_op(node_of(mask), ops.cast_like_op(value, node), node)
    if not is_number(value):
        raise GraphError(f"masked_fill: the value must be a number or a tensor, not {value!r}")
    dtype = known_dtype(node)
    if dtype == "bool":
        value = leaf(np.asarray(bool(value)))
    elif dtype in INTEGERS:
        limits = np.iinfo(dtype)
        if not limits.min <= value <= limits.max:
            raise DTypeError(f"masked_fill: {value!r} is no {dtype}, which {node.name} is")
        value = leaf(np.asarray(int(value), dtype))
    return ops.where_op(node_of(mask), value, node)


def allclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Whether |a - b| <= atol + rtol |b| everywhere, or both are the same infinity; or both NaN with `equal_nan`."""
    first, second = (array_of(node).numpy() for node in pair_of(a, b))
    broadcast_rule(first.shape, second.shape)
    near = number("allclose", "rtol", rtol), number("allclose", "atol", atol)
    return bool(np.allclose(first, second, *near, flag("allclose", "equal_nan", equal_nan)))


def equal(a: Any, b: Any) -> bool:
    """Whether both have one shape and the same values: a Python bool, unlike `eq`."""
    return bool(np.array_equal(array_of(node_of(a)).numpy(), array_of(node_of(b)).numpy()))


Function = TypeVar("Function", bound=Callable[..., Any])


class Extremum(NamedTuple):
    """Values and indices, as `max` and `min` along an axis, `sort` and `topk` return."""

    values: Node
    indices: Node


def _either_word(function: Function) -> Function:
    """The function, which takes NumPy's words `axis` and `keepdims` for `dim` and `keepdim` too."""

    @functools.wraps(function)
    def apply(*args: Any, **kwargs: Any) -> Any:
        for word, own in (("axis", "dim"), ("keepdims", "keepdim")):
            if word in kwargs:
                kwargs[own] = kwargs.pop(word)
        return function(*args, **kwargs)

    return apply  # type: ignore[return-value]


def _over(dim: Any) -> Any:
    """PyTorch's empty tuple is all axes."""
    return None if isinstance(dim, (tuple, list)) and not dim else dim


@_either_word
def sum(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Node:
    """The sum; int64 of integers and booleans."""
    node = node_of(x)
    if dtype is not None:
        node = ops.cast_op(node, dtype_name("sum", dtype))
    elif known_dtype(node) in ("bool", "int32", *UNSIGNED):
        node = ops.cast_op(node, "int64")
    return ops.reducesum_op(node, _over(dim), keepdim)


@_either_word
def mean(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Node:
    """The mean, of booleans the share that holds. Raises DTypeError for integers, as PyTorch does."""
    node = node_of(x)
    if dtype is not None:
        node = ops.cast_op(node, dtype_name("mean", dtype))
    elif known_dtype(node) == "bool":
        node = ops.cast_op(node, "float32")
    return ops.mean_op(require_float("mean", node), _over(dim), keepdim)


def _spread(function: Any, x: Any, dim: Any, unbiased: Any, keepdim: bool, correction: Any) -> Node:
    """Variance or deviation, whose second argument by position is `unbiased`, or the first where it is a bool."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    terms = correction if correction is not None else 1 if unbiased is None else flag("var", "unbiased", unbiased)
    return function(require_float("var", x), _over(dim), keepdim, terms)


@_either_word
def var(
    x: Any, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: float | None = None
) -> Node:
    """The variance: squared distances from the mean over their number less `correction`, 1 for None, or `unbiased`."""
    return _spread(ops.var_op, x, dim, unbiased, keepdim, correction)


@_either_word
def std(
    x: Any, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: float | None = None
) -> Node:
    """The square root of the variance."""
    return _spread(ops.std_op, x, dim, unbiased, keepdim, correction)


@_either_word
def amax(x: Any, dim: Any = None, keepdim: bool = False) -> Node:
    """The maximum; the gradient goes to all that are equal to it, in equal shares. Of booleans whether one holds."""
    node = node_of(x)
    return any(node, dim, keepdim) if known_dtype(node) == "bool" else ops.max_op(node, _over(dim), keepdim)


@_either_word
def amin(x: Any, dim: Any = None, keepdim: bool = False) -> Node:
    """The minimum; the gradient goes to all that are equal to it, in equal shares. Of booleans whether all hold."""
    node = node_of(x)
    return all(node, dim, keepdim) if known_dtype(node) == "bool" else ops.min_op(node, _over(dim), keepdim)


def _ordered(x: Any) -> Node:
    """The node in a dtype whose extrema have places: booleans as integers."""
    node = node_of(x)
    return ops.cast_op(node, "int32") if known_dtype(node) == "bool" else node


def _extremum(x: Any, dim: Any, keepdim: bool, place: Any) -> Extremum:
    where = place(_ordered(x), dim, True)
    found = ops.take_along_axis_op(node_of(x), where, dim)
    return Extremum(found, where) if keepdim else Extremum(ops.squeeze_op(found, dim), ops.squeeze_op(where, dim))


def max(x: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None, keepdims: bool = False) -> Any:
    """The maximum of all. Along `dim`, as in PyTorch, a pair: `values`, to the first of which the gradient goes, and
    `indices`; along NumPy's `axis` the values alone. Of two tensors, the larger at each index."""
    if isinstance(dim, Node) or (isinstance(dim, np.ndarray) and dim.ndim):
        return maximum(x, dim)
    keep = flag("max", "keepdim", keepdim) or flag("max", "keepdims", keepdims)
    return amax(x, axis, keep) if dim is None else _extremum(x, dim, keep, ops.argmax_op)


def min(x: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None, keepdims: bool = False) -> Any:
    """The minimum; see `max`."""
    if isinstance(dim, Node) or (isinstance(dim, np.ndarray) and dim.ndim):
        return minimum(x, dim)
    keep = flag("min", "keepdim", keepdim) or flag("min", "keepdims", keepdims)
    return amin(x, axis, keep) if dim is None else _extremum(x, dim, keep, ops.argmin_op)


@_either_word
def argmax(x: Any, dim: Any = None, keepdim: bool = False) -> Node:
    """Where the first maximum is along an axis, of all in row-major order for None; int64."""
    return ops.argmax_op(_ordered(x), dim, keepdim)


@_either_word
def argmin(x: Any, dim: Any = None, keepdim: bool = False) -> Node:
    """Where the first minimum is along an axis, of all in row-major order for None; int64."""
    return ops.argmin_op(_ordered(x), dim, keepdim)


@_either_word
def any(x: Any, dim: Any = None, keepdim: bool = False) -> Node:
    """Whether one at least is not 0."""
    return ops.not_equal_op(ops.reducesum_op(ops.cast_op(as_bool(x), "int64"), _over(dim), keepdim), 0)


@_either_word
def all(x: Any, dim: Any = None, keepdim: bool = False) -> Node:
    """Whether none is 0."""
    missing = ops.cast_op(ops.logical_not_op(as_bool(x)), "int64")
    return ops.equal_op(ops.reducesum_op(missing, _over(dim), keepdim), 0)


@_either_word
def logsumexp(x: Any, dim: Any = None, keepdim: bool = False) -> Node:
    """log(sum(exp(x))), without overflow."""
    return ops.logsumexp_op(float_of(x), _over(dim), keepdim)


@_either_word
def softmax(x: Any, dim: Any = -1) -> Node:
    """exp(x) over its sum along an axis."""
    return ops.softmax_op(require_float("softmax", x), dim)


@_either_word
def log_softmax(x: Any, dim: Any = -1) -> Node:
    """The logarithm of softmax, without loss of digits."""
    return ops.log_softmax_op(require_float("log_softmax", x), dim)


@_either_word
def norm(x: Any, p: float = 2, dim: Any = None, keepdim: bool = False) -> Node:
    """The Euclidean norm; its gradient is 0 where it is. Raises GraphError for another p than 2."""
    if isinstance(p, np.ndarray) or p != 2:
        raise GraphError(f"norm: p must be 2, not {p!r}: other norms are not built")
    node = require_float("norm", x)
    total = ops.reducesum_op(node * node, _over(dim), keepdim)
    is_zero = ops.equal_op(total, 0.0)  # at 0 the root has no slope
    return ops.where_op(is_zero, 0.0, ops.sqrt_op(ops.where_op(is_zero, 1.0, total)))


def argsort(x: Any, dim: int = -1, descending: bool = False, stable: bool = True) -> Node:
    """int64: where the elements in order are, along an axis; see `sort`."""
    return ops.argsort_op(node_of(x), dim, descending)


def sort(x: Any, dim: int = -1, descending: bool = False, stable: bool = True) -> Extremum:
    """The elements in order along an axis, and where they were: equal ones as they stand, NaN counts as the largest."""
    return Extremum(*ops.sort_op(node_of(x), dim, descending))


def topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Extremum:
    """The k largest elements along an axis, or smallest, in order, and where they were; see `sort`."""
    return Extremum(*ops.topk_op(node_of(x), k, dim, largest))
