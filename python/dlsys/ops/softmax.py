"""Softmax and its logarithm, along one axis. Both state their gradients, which read the result, and not its parts."""

from __future__ import annotations

from typing import cast

import numpy as np

from ..checks import integer
from ..errors import GraphError, ShapeError
from ..graph import Made, Node
from .elementwise import exp_op, log_op
from .reduction import Axes, reducemax, reducesum
from .replay import function
from .rules import axes_of
from .state import with_gradient


def softmax_func(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """Softmax of an array over an axis: exp(x) / sum(exp(x)), shifted by the maximum; of integers in float64. Raises
    GraphError for what is no array, ShapeError for an axis that it has not."""
    if not isinstance(x, np.ndarray) or x.dtype.kind not in "biuf":
        raise GraphError(f"softmax_func: takes an array of numbers, not {type(x).__name__}")
    if not -x.ndim <= integer("softmax_func", "the axis", axis) < x.ndim:
        raise ShapeError(f"softmax_func: axis {axis} is out of range for {x.ndim} dimensions")
    x = x if x.dtype.kind == "f" else x.astype(np.float64)
    with np.errstate(invalid="ignore"):  # infinite logits give NaN, as they should
        exponential = np.exp(x - x.max(axis=axis, keepdims=True, initial=-np.inf))
        return exponential / exponential.sum(axis=axis, keepdims=True)


def _shifted(x: Node, axes: Axes) -> Node:
    """x less its maximum, so that no exponential overflows."""
    return x - reducemax(x, axes=axes, keepdims=True)


def of_softmax(g: Node, y: Node, x: Node, axes: Axes) -> Node:
    """y (g - sum(g y))."""
    return y * (g - reducesum(g * y, axes=axes, keepdims=True))


def of_log_softmax(g: Node, y: Node, x: Node, axes: Axes) -> Node:
    """g - softmax(x) sum(g)."""
    return g - _softmax(x, axes) * reducesum(g, axes=axes, keepdims=True)


def _softmax(x: Node, axes: Axes) -> Made:
    exponential = exp_op(_shifted(x, axes))
    return with_gradient(exponential / reducesum(exponential, axes=axes, keepdims=True), [x], of_softmax, axes=axes)


@function()
def softmax_op(node: Node, axis: int = -1) -> Made:
    """exp(x) / sum(exp(x)) over an axis, without overflow. Raises GraphError for an axis that is no integer."""
    axes = axes_of("softmax", node, integer("softmax", "the axis", axis))
    return _softmax(node, axes) if 0 not in node.shape else cast("Made", node)


@function()
def log_softmax_op(node: Node, axis: int = -1) -> Made:
    """The logarithm of softmax over an axis, by log-sum-exp. Raises GraphError for an axis that is no integer."""
    axes = axes_of("log_softmax", node, integer("log_softmax", "the axis", axis))
    if 0 in node.shape:
        return cast("Made", node)
    shifted = _shifted(node, axes)
    y = shifted - log_op(reducesum(exp_op(shifted), axes=axes, keepdims=True))
    return with_gradient(y, [node], of_log_softmax, axes=axes)
