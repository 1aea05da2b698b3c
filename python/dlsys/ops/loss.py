"""Softmax and its logarithm, along one axis, and losses. Both state their gradients, which read the result, and not its
parts. Cross-entropy of class numbers: `cross_entropy`."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np

from ..checks import integer, word
from ..errors import GraphError, ShapeError
from ..graph import Made, Node, is_node
from .elementwise import div_op, exp_op, log_op, mul_op, neg_op, sub_op
from .operators import pair
from .reduction import Axes, mean_op, reducemax, reducesum, reducesum_op
from .replay import function
from .rules import axes_of
from .state import with_gradient

# Softmax ---------------------------------------------------------------------------------------------------


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


# Losses ----------------------------------------------------------------------------------------------------


def _of_softmaxcrossentropy(g: Node, y: Node, logits: Node, labels: Node) -> tuple[Node, Node]:
    """With b rows (softmax(logits) * rowsum(labels) - labels) g / b, and -log_softmax(logits) g / b."""
    scale = div_op(g, math.prod(logits.shape[:-1]))
    expected = softmax_op(logits) * reducesum_op(labels, -1, keepdims=True)
    return (expected - labels) * scale, neg_op(log_softmax_op(logits) * scale)


@function()
def softmaxcrossentropy_op(logits: Node, labels: Node) -> Made:
    """Shape (1,): the mean over the rows of -sum(labels * log_softmax(logits)), NaN of no rows. logits and labels have
    one shape; rows lie along the last axis. Raises ShapeError."""
    if logits.shape != labels.shape:
        raise ShapeError(f"softmaxcrossentropy: shapes differ: {logits.shape} and {labels.shape}")
    if not logits.shape:
        raise ShapeError("softmaxcrossentropy: logits and labels must have an axis, not shape ()")
    rows = math.prod(logits.shape[:-1])
    # Row by row, as one long sum would lose small terms; divided there, so that one kernel does all.
    losses = reducesum_op(labels * log_softmax_op(logits), -1, keepdims=True) / -max(rows, 1)
    y = reducesum_op(losses, tuple(range(len(logits.shape) - 1)))
    return with_gradient(y if rows else y * math.nan, [logits, labels], _of_softmaxcrossentropy)


def reduced(op: str, losses: Node, reduction: str, counts: Node | None = None) -> Made:
    """The losses, for "none", their "sum", or their "mean", which is the sum over that of `counts`, of which each is 1
    if there are none; shape (). Raises GraphError for any other `reduction`."""
    if word(op, "reduction", reduction, ("mean", "sum", "none")) == "none":
        return cast("Made", losses)
    if reduction == "sum":
        return reducesum_op(losses)
    return mean_op(losses) if counts is None else div_op(reducesum_op(losses), reducesum_op(counts))


@function()
def mse_loss_op(x: Node, y: Node, reduction: str = "mean") -> Made:
    """(x - y)^2 of one shape, of each element for "none", else their "mean" or "sum", shape (). Raises GraphError for
    any other `reduction`, ShapeError for two shapes."""
    difference = difference_of("mse_loss", x, y)
    return reduced("mse_loss", mul_op(difference, difference), reduction)


def difference_of(op: str, x: Node, y: Any) -> Made:
    """x - y of one shape, or with one number. Raises GraphError and ShapeError as `mse_loss_op` does."""
    operands = pair(x, y) if is_node(x) else None
    if operands is None:
        raise GraphError(f"{op}: takes tensors and nodes, not {type(y if is_node(x) else x).__name__}")
    first, second = operands
    if first.shape != second.shape and not (first.op.immediate or second.op.immediate):
        raise ShapeError(f"{op}: shapes differ: {first.name} {first.shape} and {second.name} {second.shape}")
    return sub_op(first, second)
