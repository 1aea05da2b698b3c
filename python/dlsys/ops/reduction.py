"""Reductions over axes: sums, maxima and their places; means, variances and log-sum-exp, composed of them.

Axes are None (all), an int or a tuple, negative ones from the end; they are dropped, or kept with extent 1. Functions
raise GraphError for axes that are no integers, ShapeError for those that a node lacks. NaN counts as the largest number
and as the smallest.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import compute
from ..checks import flag
from ..errors import GraphError, ShapeError
from ..graph import NUMBERS, Made, Node, Shape
from .elementwise import (
    cast_op,
    clip_op,
    div_op,
    equal_op,
    exp_op,
    full_op,
    log_op,
    reversed_order,
    sqrt_op,
    where_op,
)
from .moves import broadcast_shape_op, reshape_op
from .primitive import primitive
from .replay import function
from .rules import axes_of, real_constant, reduced_shape
from .state import with_gradient

Axes = tuple[int, ...]


def _spread(value: Node, shape: Shape, axes: Axes) -> Node:
    """A reduction's result, with its axes or without, repeated to the shape that was reduced."""
    return broadcast_shape_op(reshape_op(value, reduced_shape(shape, axes, True)), shape)


def _require_some(shape: Shape, axes: Axes, keepdims: bool) -> Shape:
    """The shape of an extremum. Raises ShapeError where there is nothing along an axis."""
    if any(shape[axis] == 0 for axis in axes):
        raise ShapeError(f"{shape} has nothing along axes {axes}, of which there is no extremum")
    return reduced_shape(shape, axes, keepdims)


def _shared(g: Node, y: Node, x: Node, axes: Axes, keepdims: bool) -> Node:
    """The gradient of a maximum, which goes to all that are equal to it, in equal shares."""
    taken = cast_op(equal_op(x, _spread(y, x.shape, axes)), x.dtype)
    return taken * _spread(g / reducesum(taken, axes=axes, keepdims=keepdims), x.shape, axes)


def _place(x: np.ndarray, axes: Axes, keepdims: bool) -> Any:
    return np.argmax(x, axis=axes[0] if len(axes) == 1 else None, keepdims=keepdims)


reducesum = primitive(
    "reducesum", numpy=lambda x, axes, keepdims: x.sum(axes, x.dtype, keepdims=keepdims), te=compute.reduce_sum,
    grad=lambda g, y, x, axes, keepdims: _spread(g, x.shape, axes),
    shape=reduced_shape, kind="reduction", dtypes=NUMBERS, onnx="ReduceSum",
)  # fmt: skip
reducemax = primitive(
    "reducemax", numpy=lambda x, axes, keepdims: x.max(axes, keepdims=keepdims), te=compute.reduce_max, grad=_shared,
    shape=_require_some, kind="reduction", dtypes=NUMBERS, onnx="ReduceMax",
)  # fmt: skip
argmax = primitive(
    "argmax", grad=None, numpy=_place, te=compute.argmax,
    shape=_require_some, dtype="int64", kind="rows", dtypes=NUMBERS, onnx="ArgMax",
)  # fmt: skip


def _kept(op: str, keepdims: Any) -> bool:
    return flag(op, "keepdims", keepdims)


def _count(x: Node, axes: Axes) -> int:
    """How many elements of x become one."""
    return math.prod(x.shape[axis] for axis in axes)


@function()
def reducesum_op(x: Node, axes: Any = None, keepdims: bool = False) -> Made:
    """The sum over `axes`; of integers in their dtype."""
    return reducesum(x, axes=axes_of("reducesum", x, axes), keepdims=_kept("reducesum", keepdims))


sum_op = reducesum_op


def reducesumaxiszero_op(node: Node) -> Made:
    """The sum over the first axis, which is dropped."""
    return reducesum_op(node, 0)


@function()
def max_op(x: Node, axes: Any = None, keepdims: bool = False) -> Made:
    """The maximum over `axes`, NaN if there is one; the gradient goes to all that are equal to it, in equal shares.
    Raises ShapeError where there is nothing along an axis."""
    return reducemax(x, axes=axes_of("max", x, axes), keepdims=_kept("max", keepdims))


@function()
def min_op(x: Node, axes: Any = None, keepdims: bool = False) -> Made:
    """The minimum over `axes`, NaN if there is one; see `max_op`."""
    return reversed_order(max_op(reversed_order(x), axes, keepdims))


@function()
def argmax_op(x: Node, axis: Any = None, keepdims: bool = False) -> Made:
    """int64: the first place of the maximum along an axis, of all in row-major order for None; NaN counts as the
    maximum. Raises GraphError for several axes."""
    along = axes_of("argmax", x, axis)
    if axis is not None and len(along) != min(len(x.shape), 1):
        raise GraphError(f"argmax: axis must be None or an integer, not {axis!r}")
    return argmax(x, axes=along, keepdims=_kept("argmax", keepdims))


@function()
def argmin_op(x: Node, axis: Any = None, keepdims: bool = False) -> Made:
    """int64: the first place of the minimum; see `argmax_op`."""
    return argmax_op(reversed_order(x), axis, keepdims)


@function()
def mean_op(x: Node, axes: Any = None, keepdims: bool = False) -> Made:
    """The mean over `axes`; NaN of nothing."""
    return div_op(reducesum_op(x, axes, keepdims), _count(x, axes_of("mean", x, axes)))


@function()
def var_op(x: Node, axes: Any = None, keepdims: bool = False, correction: float = 1) -> Made:
    """The variance over `axes`: the squared distances from the mean over their number less `correction`, or over 0 if
    that is negative.

    The mean is rounded: of numbers far from 0 the distances d from it have a sum s that is not 0, and their squares are
    too large by s^2 / n, which is subtracted (Chan, Golub and LeVeque, 1983, the corrected two-pass algorithm).
    Raises GraphError for a correction that is no real number.
    """
    count, less = _count(x, axes_of("var", x, axes)), real_constant("var", correction)
    distance = x - mean_op(x, axes, keepdims=True)
    total = reducesum_op(distance, axes, keepdims)
    squares = reducesum_op(distance * distance, axes, keepdims) - total * div_op(total, count)
    return div_op(clip_op(squares, low=0.0), max(count - less, 0))


@function()
def std_op(x: Node, axes: Any = None, keepdims: bool = False, correction: float = 1) -> Made:
    """The square root of `var_op`'s variance; the gradient is 0 where that is 0."""
    variance = var_op(x, axes, keepdims, correction)
    is_zero = equal_op(variance, 0.0)
    return where_op(is_zero, 0.0, sqrt_op(where_op(is_zero, 1.0, variance)))


def _of_logsumexp(g: Node, y: Node, x: Node, axes: Axes) -> Node:
    """g exp(x - max) / sum(exp(x - max)), not g exp(x - y): a large y has lost its last digits."""
    exponential = exp_op(x - reducemax(x, axes=axes, keepdims=True))
    return _spread(g, x.shape, axes) * (exponential / reducesum(exponential, axes=axes, keepdims=True))


@function()
def logsumexp_op(x: Node, axes: Any = None, keepdims: bool = False) -> Made:
    """log(sum(exp(x))) over `axes`, without overflow; -inf of nothing."""
    along = axes_of("logsumexp", x, axes)
    shape = reduced_shape(x.shape, along, _kept("logsumexp", keepdims))
    if 0 in x.shape:
        return full_op(shape, -math.inf, x.dtype)
    largest = reducemax(x, axes=along, keepdims=True)
    shift = where_op(equal_op(largest - largest, 0.0), largest, 0.0)  # 0 for infinities and NaN
    y = log_op(reducesum(exp_op(x - shift), axes=along, keepdims=True)) + shift
    return with_gradient(reshape_op(y, shape), [x], _of_logsumexp, axes=along)
