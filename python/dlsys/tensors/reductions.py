"""Reductions and orders of tensors as methods by PyTorch's names: over `dim`, one axis, several or all, kept by
`keepdim` with extent 1. NumPy's words `axis` and `keepdims` are taken as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypedDict, Unpack, cast, overload

import numpy as np

from .. import ops
from ..checks import flag, number
from ..errors import GraphError
from ..graph import UNSIGNED, Handle, Node, is_node
from ..ops import broadcast_rule, dtype_name
from ..ops.replay import function
from .arguments import dim_of, float_of, node_of, pair_of, require_float
from .elementwise import as_bool
from .evaluate import array_of
from .shapes import cat
from .typing import ArrayLike, Axis, DType

if TYPE_CHECKING:
    from .base import Tensor


class Extremum(NamedTuple):
    """Values and indices, as `max` and `min` along an axis, `sort` and `topk` return."""

    values: Tensor
    indices: Tensor


class NumPys(TypedDict, total=False):
    """NumPy's words for PyTorch's `dim` and `keepdim`."""

    axis: Axis
    keepdims: bool


def _along(dim: Axis, keepdim: bool, words: NumPys) -> tuple[Axis, bool]:
    """The axes, and whether they are kept, by either's words. PyTorch's empty tuple is all axes. Raises TypeError for
    other words."""
    if unknown := words.keys() - NumPys.__annotations__.keys():
        raise TypeError(f"takes dim and keepdim, or axis and keepdims, not {', '.join(sorted(unknown))}")
    axis, kept = words.get("axis"), words.get("keepdims", False)
    over = dim if axis is None else axis
    return None if isinstance(over, (tuple, list)) and not over else over, keepdim if kept is False else kept


def _summed(op: str, x: ArrayLike, small: tuple[str, ...], wide: str, dtype: DType) -> Tensor:
    """The terms of a sum: cast to `dtype`, or to `wide` where they are of one of the dtypes `small`."""
    node = node_of(x)
    if dtype is not None:
        return ops.cast_op(node, dtype_name(op, dtype))
    return ops.cast_op(node, wide) if node.dtype in small else node


def _cumulative(op: Callable[..., Tensor], x: ArrayLike, dim: int, dtype: DType) -> Tensor:
    """Sums or products of all elements up to each; of a number along its axis 0, as in PyTorch, itself."""
    node = _summed(op.__name__[:-3], x, ("bool", "int8", "int32", *UNSIGNED), "int64", dtype)
    is_number = node.shape == () and dim in (0, -1)
    return op(node.flatten(), 0).reshape(()) if is_number else op(node, dim)


def _spread(
    op: Callable[..., Tensor],
    x: ArrayLike,
    dim: Axis,
    unbiased: bool | None,
    keepdim: bool,
    correction: float | None,
    words: NumPys,
) -> Tensor:
    """Variance or deviation, whose second argument by position is `unbiased`, or the first where it is a bool."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if correction is None:
        correction = 1 if unbiased is None else flag("var", "unbiased", unbiased)
    return op(require_float("var", x), *_along(dim, keepdim, words), correction)


@function(on_tensors=True)
def _ordered(x: ArrayLike) -> Tensor:
    """The node in a dtype whose extrema have places: booleans as integers."""
    node = node_of(x)
    return ops.cast_op(node, "int32") if node.dtype == "bool" else node


def _extreme(
    name: str, x: ArrayLike, dim: int | Node | np.ndarray | None, keepdim: bool, words: NumPys
) -> Tensor | Extremum:
    """`max` or `min`, by its name."""
    node, largest = node_of(x), name == "max"
    if is_node(dim) or (isinstance(dim, np.ndarray) and dim.ndim > 0):  # another tensor
        return node.maximum(dim) if largest else node.minimum(dim)
    axis, keep = _along(None, flag(name, "keepdim", keepdim), words)
    if dim is None:
        return node.amax(axis, keep) if largest else node.amin(axis, keep)
    along = cast(int, dim)
    where = (ops.argmax_op if largest else ops.argmin_op)(_ordered(node), along, True)
    found = ops.take_along_axis_op(node, where, along)
    return Extremum(found, where) if keep else Extremum(ops.squeeze_op(found, along), ops.squeeze_op(where, along))


class Reductions(Handle):
    """Methods along axes."""

    __slots__ = ()

    @function(on_tensors=True)
    def sum(
        self: ArrayLike,
        dim: Axis = None,
        keepdim: bool = False,
        *,
        dtype: DType = None,
        **words: Unpack[NumPys],
    ) -> Tensor:
        """The sum; int64 of integers and booleans."""
        node = _summed("sum", self, ("bool", "int8", "int32", *UNSIGNED), "int64", dtype)
        return ops.reducesum_op(node, *_along(dim, keepdim, words))

    @function(on_tensors=True)
    def prod(
        self: ArrayLike, dim: int | None = None, keepdim: bool = False, *, dtype: DType = None
    ) -> Tensor:
        """The product, of all for None; int64 of integers and booleans."""
        node = _summed("prod", self, ("bool", "int8", "int32", *UNSIGNED), "int64", dtype)
        if dim is None:
            return node.flatten().prod(0)
        axis = dim_of("prod", node, dim)
        node = node.swapaxes(0, axis)
        while (n := len(node)) > 1:  # the first half times the second
            pairs = node[: n // 2] * node[n // 2 : n // 2 * 2]
            node = cat([pairs, node[-1:]]) if n % 2 else pairs
        found = (node if n else node.sum(0, True, dtype=node.dtype) + 1).swapaxes(0, axis)
        return found if flag("prod", "keepdim", keepdim) else found.squeeze(axis)

    @function(on_tensors=True)
    def cumsum(self: ArrayLike, dim: int, *, dtype: DType = None) -> Tensor:
        """The sums of all elements up to each along an axis; int64 of integers and booleans."""
        return _cumulative(ops.cumsum_op, self, dim, dtype)

    @function(on_tensors=True)
    def cumprod(self: ArrayLike, dim: int, *, dtype: DType = None) -> Tensor:
        """The products of all elements up to each along an axis; int64 of integers and booleans."""
        return _cumulative(ops.cumprod_op, self, dim, dtype)

    @function(on_tensors=True)
    def mean(
        self: ArrayLike,
        dim: Axis = None,
        keepdim: bool = False,
        *,
        dtype: DType = None,
        **words: Unpack[NumPys],
    ) -> Tensor:
        """The mean, of booleans the share that holds. Raises DTypeError for integers, as PyTorch does."""
        node = require_float("mean", _summed("mean", self, ("bool",), "float32", dtype))
        return ops.mean_op(node, *_along(dim, keepdim, words))

    @function(on_tensors=True)
    def var(
        self: ArrayLike,
        dim: Axis = None,
        unbiased: bool | None = None,
        keepdim: bool = False,
        *,
        correction: float | None = None,
        **words: Unpack[NumPys],
    ) -> Tensor:
        """The variance: squared distances from the mean over their number less `correction`, 1 for None, or
        `unbiased`."""
        return _spread(ops.var_op, self, dim, unbiased, keepdim, correction, words)

    @function(on_tensors=True)
    def std(
        self: ArrayLike,
        dim: Axis = None,
        unbiased: bool | None = None,
        keepdim: bool = False,
        *,
        correction: float | None = None,
        **words: Unpack[NumPys],
    ) -> Tensor:
        """The square root of the variance."""
        return _spread(ops.std_op, self, dim, unbiased, keepdim, correction, words)

    @function(on_tensors=True)
    def amax(self: ArrayLike, dim: Axis = None, keepdim: bool = False, **words: Unpack[NumPys]) -> Tensor:
        """The maximum; the gradient goes to all that are equal to it, in equal shares. Of booleans whether one
        holds."""
        node, over, keep = node_of(self), *_along(dim, keepdim, words)
        return node.any(over, keep) if node.dtype == "bool" else ops.max_op(node, over, keep)

    @function(on_tensors=True)
    def amin(self: ArrayLike, dim: Axis = None, keepdim: bool = False, **words: Unpack[NumPys]) -> Tensor:
        """The minimum; the gradient goes to all that are equal to it, in equal shares. Of booleans whether all
        hold."""
        node, over, keep = node_of(self), *_along(dim, keepdim, words)
        return node.all(over, keep) if node.dtype == "bool" else ops.min_op(node, over, keep)

    @overload
    def max(self: ArrayLike, dim: None = None, keepdim: bool = False, **words: Unpack[NumPys]) -> Tensor: ...
    @overload
    def max(self: ArrayLike, dim: int, keepdim: bool = False, **words: Unpack[NumPys]) -> Extremum: ...
    @overload
    def max(self: ArrayLike, dim: Node | np.ndarray) -> Tensor: ...
    def max(
        self: ArrayLike,
        dim: int | Node | np.ndarray | None = None,
        keepdim: bool = False,
        **words: Unpack[NumPys],
    ) -> Tensor | Extremum:
        """The maximum of all. Along `dim`, as in PyTorch, a pair: `values`, to the first of which the gradient goes,
        and `indices`; along NumPy's `axis` the values alone. Of two tensors, the larger at each index."""
        return _extreme("max", self, dim, keepdim, words)

    @overload
    def min(self: ArrayLike, dim: None = None, keepdim: bool = False, **words: Unpack[NumPys]) -> Tensor: ...
    @overload
    def min(self: ArrayLike, dim: int, keepdim: bool = False, **words: Unpack[NumPys]) -> Extremum: ...
    @overload
    def min(self: ArrayLike, dim: Node | np.ndarray) -> Tensor: ...
    def min(
        self: ArrayLike,
        dim: int | Node | np.ndarray | None = None,
        keepdim: bool = False,
        **words: Unpack[NumPys],
    ) -> Tensor | Extremum:
        """The minimum; see `max`."""
        return _extreme("min", self, dim, keepdim, words)

    def argmax(
        self: ArrayLike, dim: int | None = None, keepdim: bool = False, **words: Unpack[NumPys]
    ) -> Tensor:
        """Where the first maximum is along an axis, of all in row-major order for None; int64."""
        return ops.argmax_op(_ordered(self), *_along(dim, keepdim, words))

    def argmin(
        self: ArrayLike, dim: int | None = None, keepdim: bool = False, **words: Unpack[NumPys]
    ) -> Tensor:
        """Where the first minimum is along an axis, of all in row-major order for None; int64."""
        return ops.argmin_op(_ordered(self), *_along(dim, keepdim, words))

    @function(on_tensors=True)
    def any(self: ArrayLike, dim: Axis = None, keepdim: bool = False, **words: Unpack[NumPys]) -> Tensor:
        """Whether one at least is not 0."""
        found = ops.cast_op(as_bool(self), "int64")
        return ops.not_equal_op(ops.reducesum_op(found, *_along(dim, keepdim, words)), 0)

    @function(on_tensors=True)
    def all(self: ArrayLike, dim: Axis = None, keepdim: bool = False, **words: Unpack[NumPys]) -> Tensor:
        """Whether none is 0."""
        missing = ops.cast_op(ops.logical_not_op(as_bool(self)), "int64")
        return ops.equal_op(ops.reducesum_op(missing, *_along(dim, keepdim, words)), 0)

    @function(on_tensors=True)
    def logsumexp(
        self: ArrayLike, dim: Axis = None, keepdim: bool = False, **words: Unpack[NumPys]
    ) -> Tensor:
        """log(sum(exp(x))), without overflow."""
        return ops.logsumexp_op(float_of(self), *_along(dim, keepdim, words))

    @function(on_tensors=True)
    def softmax(self: ArrayLike, dim: int = -1, dtype: DType = None, *, axis: int | None = None) -> Tensor:
        """exp(x) over its sum along an axis; computed in `dtype`, if given."""
        node = require_float("softmax", _summed("softmax", self, (), "", dtype))
        return ops.softmax_op(node, dim if axis is None else axis)

    @function(on_tensors=True)
    def log_softmax(
        self: ArrayLike, dim: int = -1, dtype: DType = None, *, axis: int | None = None
    ) -> Tensor:
        """The logarithm of softmax, without loss of digits; computed in `dtype`, if given."""
        node = require_float("log_softmax", _summed("log_softmax", self, (), "", dtype))
        return ops.log_softmax_op(node, dim if axis is None else axis)

    @function(on_tensors=True)
    def norm(
        self: ArrayLike, p: float | str = 2, dim: Axis = None, keepdim: bool = False, **words: Unpack[NumPys]
    ) -> Tensor:
        """The root number p of the sum of |x|^p, 2 or "fro" the Euclidean norm; its gradient is 0 where it is. The
        largest |x| for p = inf, the smallest for -inf, how many are not 0 for 0. Raises GraphError for what is no
        number."""
        p = 2 if isinstance(p, str) and p == "fro" else p
        if isinstance(p, bool) or not isinstance(p, (int, float)) or p != p:
            raise GraphError(f"norm: p must be a number, not {p!r}")
        node, along = require_float("norm", self), _along(dim, keepdim, words)
        if abs(p) == math.inf:
            return (ops.max_op if p > 0 else ops.min_op)(ops.abs_op(node), *along)
        if p == 0:
            return ops.reducesum_op(ops.cast_op(ops.not_equal_op(node, 0.0), node.dtype), *along)
        if p == 2:
            powers: Node = node * node
        elif p >= 1:
            powers = ops.abs_op(node) ** p
        else:  # whose slope at 0 is infinite
            at_zero = ops.equal_op(node, 0.0)
            powers = ops.abs_op(ops.where_op(at_zero, 1.0, node)) ** p
            powers = ops.where_op(at_zero, 0.0 if p > 0 else math.inf, powers)
        total = ops.reducesum_op(powers, *along)
        if p == 1:
            return total
        is_zero = ops.equal_op(total, 0.0)  # at 0 the root has no slope
        root = ops.where_op(is_zero, 1.0, total)
        return ops.where_op(is_zero, 0.0, ops.sqrt_op(root) if p == 2 else root ** (1 / p))

    def argsort(self: ArrayLike, dim: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
        """int64: where the elements in order are, along an axis; see `sort`."""
        return ops.argsort_op(node_of(self), dim, descending)

    def sort(self: ArrayLike, dim: int = -1, descending: bool = False, stable: bool = True) -> Extremum:
        """The elements in order along an axis, and where they were: equal ones as they stand, NaN counts as the
        largest."""
        return Extremum(*ops.sort_op(node_of(self), dim, descending))

    def topk(self: ArrayLike, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Extremum:
        """The k largest elements along an axis, or smallest, in order, and where they were; see `sort`."""
        return Extremum(*ops.topk_op(node_of(self), k, dim, largest))

    def allclose(
        self: ArrayLike, other: ArrayLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
    ) -> bool:
        """Whether |self - other| <= atol + rtol |other| everywhere, or both are the same infinity; or both NaN with
        `equal_nan`."""
        first, second = (array_of(node).numpy() for node in pair_of(self, other))
        broadcast_rule(first.shape, second.shape)
        near = number("allclose", "rtol", rtol), number("allclose", "atol", atol)
        return bool(np.allclose(first, second, *near, flag("allclose", "equal_nan", equal_nan)))

    def equal(self: ArrayLike, other: ArrayLike) -> bool:
        """Whether both have one shape and the same values: a Python bool, unlike `eq`."""
        return bool(np.array_equal(array_of(node_of(self)).numpy(), array_of(node_of(other)).numpy()))


def var_mean(
    x: ArrayLike,
    dim: Axis = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]:
    """`x.var` and `x.mean` of the same axes; `unbiased` is the first argument where that is a bool, as in `var`."""
    return (
        Reductions.var(x, dim, unbiased, keepdim, correction=correction),
        Reductions.mean(x, None if isinstance(dim, bool) else dim, keepdim),
    )
