"""Reductions and orders, see `table`: over `dim`, one axis, several or all, kept by `keepdim` with extent 1."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np

from .. import ops
from ..checks import flag, number
from ..errors import GraphError
from ..graph import FLOATS, UNSIGNED, Node, is_node
from ..ops import broadcast_rule, dtype_name
from .arguments import bool_of, dim_of, float_of, node_of, pair_of, require_float
from .elementwise import isnan, maximum, minimum
from .evaluate import array_of
from .shapes import cat
from .table import function
from .typing import ArrayLike, Axis, DType, Extremum

if TYPE_CHECKING:
    from .base import Tensor


def _over(dim: Axis) -> Axis:
    """The axes; PyTorch's empty tuple is all of them."""
    return None if isinstance(dim, (tuple, list)) and not dim else dim


def _in_dtype(op: str, x: Tensor, dtype: DType) -> Tensor:
    """x, in a dtype if one is named."""
    return x if dtype is None else ops.cast_op(x, dtype_name(op, dtype))


def _terms(op: str, x: Tensor, dtype: DType) -> Tensor:
    """The terms of a sum or a product: in a dtype if one is named, else integers and booleans as int64."""
    small = dtype is None and x.dtype in ("bool", "int8", "int32", *UNSIGNED)
    return ops.cast_op(x, "int64") if small else _in_dtype(op, x, dtype)


def _ordered(x: Tensor) -> Tensor:
    """x in a dtype whose extrema have places: booleans as integers."""
    return ops.cast_op(x, "int32") if x.dtype == "bool" else x


def _correction(dim: Any, unbiased: bool | None, correction: float | None) -> tuple[Axis, float]:
    """The axes of a variance and what its number of elements is lessened by; `unbiased` may stand in their place."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if correction is None:
        correction = 1 if unbiased is None else flag("var", "unbiased", unbiased)
    return _over(dim), correction


@function
def sum(x: Tensor, dim: Axis = None, keepdim: bool = False, *, dtype: DType = None) -> Tensor:
    """The sum; int64 of integers and booleans."""
    return ops.reducesum_op(_terms("sum", x, dtype), _over(dim), keepdim)


@function
def nansum(x: Tensor, dim: Axis = None, keepdim: bool = False, *, dtype: DType = None) -> Tensor:
    """The sum of what is not NaN."""
    return sum(ops.where_op(isnan(x), 0.0, x) if x.dtype in FLOATS else x, dim, keepdim, dtype=dtype)


@function
def count_nonzero(x: Tensor, dim: Axis = None) -> Tensor:
    """How many elements are not 0; int64."""
    return sum(bool_of(x), dim)


@function
def prod(x: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: DType = None) -> Tensor:
    """The product, of all for None; int64 of integers and booleans."""
    node = _terms("prod", x, dtype)
    if dim is None:
        return node.flatten().prod(0)
    axis = dim_of("prod", node, dim)
    node = node.swapaxes(0, axis)
    while (n := len(node)) > 1:  # the first half times the second
        pairs = node[: n // 2] * node[n // 2 : n // 2 * 2]
        node = cat([pairs, node[-1:]]) if n % 2 else pairs
    found = (node if n else node.sum(0, True, dtype=node.dtype) + 1).swapaxes(0, axis)
    return found if flag("prod", "keepdim", keepdim) else found.squeeze(axis)


@function
def cumsum(x: Tensor, dim: int, *, dtype: DType = None) -> Tensor:
    """The sums of all elements up to each along an axis; int64 of integers and booleans."""
    node = _terms("cumsum", x, dtype)
    return node.clone() if node.shape == () and dim in (0, -1) else ops.cumsum_op(node, dim)


@function
def cumprod(x: Tensor, dim: int, *, dtype: DType = None) -> Tensor:
    """The products of all elements up to each along an axis; int64 of integers and booleans."""
    node = _terms("cumprod", x, dtype)
    return node.clone() if node.shape == () and dim in (0, -1) else ops.cumprod_op(node, dim)


@function
def mean(x: Tensor, dim: Axis = None, keepdim: bool = False, *, dtype: DType = None) -> Tensor:
    """The mean, of booleans the share that holds. Raises DTypeError for integers, as PyTorch does."""
    is_mask = dtype is None and x.dtype == "bool"
    node = _in_dtype("mean", x, "float32" if is_mask else dtype)
    return ops.mean_op(require_float("mean", node), _over(dim), keepdim)


@function
def var(
    x: Tensor, dim: Axis = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: float | None = None
) -> Tensor:
    """The variance: squared distances from the mean over their number less `correction`, 1 for None, or `unbiased`."""
    over, less = _correction(dim, unbiased, correction)
    return ops.var_op(require_float("var", x), over, keepdim, less)


@function
def std(
    x: Tensor, dim: Axis = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: float | None = None
) -> Tensor:
    """The square root of the variance."""
    over, less = _correction(dim, unbiased, correction)
    return ops.std_op(require_float("std", x), over, keepdim, less)


@function(at_once=True, method=False)
def var_mean(
    x: Tensor, dim: Axis = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: float | None = None
) -> tuple[Tensor, Tensor]:
    """`var` and `mean` of the same axes; `unbiased` is the first argument where that is a bool, as in `var`."""
    over, less = _correction(dim, unbiased, correction)
    return var(x, over, keepdim=keepdim, correction=less), mean(x, over, keepdim)


@function(at_once=True, method=False)
def std_mean(
    x: Tensor, dim: Axis = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: float | None = None
) -> tuple[Tensor, Tensor]:
    """`std` and `mean` of the same axes, see `var_mean`."""
    over, less = _correction(dim, unbiased, correction)
    return std(x, over, keepdim=keepdim, correction=less), mean(x, over, keepdim)


@function
def amax(x: Tensor, dim: Axis = None, keepdim: bool = False) -> Tensor:
    """The maximum; the gradient goes to all that are equal to it, in equal shares. Of booleans whether one holds."""
    return (any if x.dtype == "bool" else ops.max_op)(x, _over(dim), keepdim)


@function
def amin(x: Tensor, dim: Axis = None, keepdim: bool = False) -> Tensor:
    """The minimum; the gradient goes to all that are equal to it, in equal shares. Of booleans whether all hold."""
    return (all if x.dtype == "bool" else ops.min_op)(x, _over(dim), keepdim)


@overload
def max(
    x: ArrayLike, /, dim: None = None, keepdim: bool = False, *, axis: Axis = None, keepdims: bool = False
) -> Tensor: ...
@overload
def max(x: ArrayLike, /, dim: int, keepdim: bool = False) -> Extremum: ...
@overload
def max(x: ArrayLike, /, dim: Node | np.ndarray) -> Tensor: ...
@function(at_once=True)
def max(
    x: Tensor,
    dim: int | Node | np.ndarray | None = None,
    keepdim: bool = False,
    *,
    axis: Axis = None,
    keepdims: bool = False,
) -> Tensor | Extremum:
    """The maximum of all. Along `dim`, as in PyTorch, a pair: `values`, to the first of which the gradient goes, and
    `indices`; along NumPy's `axis` the values alone. Of two tensors, the larger at each index."""
    if is_node(dim) or (isinstance(dim, np.ndarray) and dim.ndim > 0):  # another tensor
        return maximum(x, dim)
    if dim is None:
        return amax(x, axis, keepdim or keepdims)
    return _extreme("max", x, argmax(x, cast(int, dim), True), cast(int, dim), keepdim)


@overload
def min(
    x: ArrayLike, /, dim: None = None, keepdim: bool = False, *, axis: Axis = None, keepdims: bool = False
) -> Tensor: ...
@overload
def min(x: ArrayLike, /, dim: int, keepdim: bool = False) -> Extremum: ...
@overload
def min(x: ArrayLike, /, dim: Node | np.ndarray) -> Tensor: ...
@function(at_once=True)
def min(
    x: Tensor,
    dim: int | Node | np.ndarray | None = None,
    keepdim: bool = False,
    *,
    axis: Axis = None,
    keepdims: bool = False,
) -> Tensor | Extremum:
    """The minimum; see `max`."""
    if is_node(dim) or (isinstance(dim, np.ndarray) and dim.ndim > 0):  # another tensor
        return minimum(x, dim)
    if dim is None:
        return amin(x, axis, keepdim or keepdims)
    return _extreme("min", x, argmin(x, cast(int, dim), True), cast(int, dim), keepdim)


def _extreme(op: str, x: Tensor, indices: Tensor, dim: int, keepdim: bool) -> Extremum:
    """What stands at the indices, of extent 1 along `dim`, and these."""
    found = ops.take_along_axis_op(x, indices, dim)
    if flag(op, "keepdim", keepdim):
        return Extremum(found, indices)
    return Extremum(ops.squeeze_op(found, dim), ops.squeeze_op(indices, dim))


@function
def argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Where the first maximum is along an axis, of all in row-major order for None; int64."""
    return ops.argmax_op(_ordered(x), dim, keepdim)


@function
def argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Where the first minimum is along an axis, of all in row-major order for None; int64."""
    return ops.argmin_op(_ordered(x), dim, keepdim)


@function
def any(x: Tensor, dim: Axis = None, keepdim: bool = False) -> Tensor:
    """Whether one at least is not 0."""
    return ops.not_equal_op(ops.reducesum_op(ops.cast_op(bool_of(x), "int64"), _over(dim), keepdim), 0)


@function
def all(x: Tensor, dim: Axis = None, keepdim: bool = False) -> Tensor:
    """Whether none is 0."""
    missing = ops.cast_op(ops.logical_not_op(bool_of(x)), "int64")
    return ops.equal_op(ops.reducesum_op(missing, _over(dim), keepdim), 0)


@function
def logsumexp(x: Tensor, dim: Axis = None, keepdim: bool = False) -> Tensor:
    """log(sum(exp(x))), without overflow."""
    return ops.logsumexp_op(float_of(x), _over(dim), keepdim)


@function
def softmax(x: Tensor, dim: int = -1, dtype: DType = None) -> Tensor:
    """exp(x) over its sum along an axis; computed in `dtype`, if given."""
    return ops.softmax_op(require_float("softmax", _in_dtype("softmax", x, dtype)), dim)


@function
def log_softmax(x: Tensor, dim: int = -1, dtype: DType = None) -> Tensor:
    """The logarithm of softmax, without loss of digits; computed in `dtype`, if given."""
    return ops.log_softmax_op(require_float("log_softmax", _in_dtype("log_softmax", x, dtype)), dim)


@function
def norm(x: Tensor, p: float | str = 2, dim: Axis = None, keepdim: bool = False) -> Tensor:
    """The root number p of the sum of |x|^p, 2 or "fro" the Euclidean norm; its gradient is 0 where it is. The largest
    |x| for p = inf, the smallest for -inf, how many are not 0 for 0. Raises GraphError for what is no number."""
    p = 2 if isinstance(p, str) and p == "fro" else p
    if isinstance(p, bool) or not isinstance(p, (int, float)) or p != p:
        raise GraphError(f"norm: p must be a number, not {p!r}")
    node, over = require_float("norm", x), _over(dim)
    if p in (math.inf, -math.inf):
        return (ops.max_op if p > 0 else ops.min_op)(ops.abs_op(node), over, keepdim)
    if p == 0:
        return ops.reducesum_op(ops.cast_op(ops.not_equal_op(node, 0.0), node.dtype), over, keepdim)
    if p == 2:
        powers: Node = node * node
    elif p >= 1:
        powers = ops.abs_op(node) ** p
    else:  # whose slope at 0 is infinite
        at_zero = ops.equal_op(node, 0.0)
        powers = ops.abs_op(ops.where_op(at_zero, 1.0, node)) ** p
        powers = ops.where_op(at_zero, 0.0 if p > 0 else math.inf, powers)
    total = ops.reducesum_op(powers, over, keepdim)
    if p == 1:
        return total
    is_zero = ops.equal_op(total, 0.0)  # at 0 the root has no slope
    root = ops.where_op(is_zero, 1.0, total)
    return ops.where_op(is_zero, 0.0, ops.sqrt_op(root) if p == 2 else root ** (1 / p))


@function(at_once=True)
def argsort(x: Tensor, dim: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """int64: where the elements in order are, along an axis; see `sort`."""
    return ops.argsort_op(x, dim, descending)


@function(at_once=True)
def sort(x: Tensor, dim: int = -1, descending: bool = False, stable: bool = True) -> Extremum:
    """The elements in order along an axis, and where they were: equal ones as they stand, NaN counts as the largest."""
    return Extremum(*ops.sort_op(x, dim, descending))


@function(at_once=True)
def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Extremum:
    """The k largest elements along an axis, or smallest, in order, and where they were; see `sort`."""
    return Extremum(*ops.topk_op(x, k, dim, largest))


@function(at_once=True)
def allclose(
    x: Tensor, other: ArrayLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """Whether |x - other| <= atol + rtol |other| everywhere, or both are the same infinity; or both NaN with
    `equal_nan`."""
    first, second = (array_of(node).numpy() for node in pair_of(x, other))
    broadcast_rule(first.shape, second.shape)
    near = number("allclose", "rtol", rtol), number("allclose", "atol", atol)
    return bool(np.allclose(first, second, *near, flag("allclose", "equal_nan", equal_nan)))


@function(at_once=True)
def equal(x: Tensor, other: ArrayLike) -> bool:
    """Whether both have one shape and the same values: a Python bool, unlike `eq`."""
    return bool(np.array_equal(array_of(x).numpy(), array_of(node_of(other)).numpy()))
