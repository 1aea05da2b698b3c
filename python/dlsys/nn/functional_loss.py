"""Losses as functions, by the names and in the argument order of torch.nn.functional.

`reduction` is "mean" or "sum", shape (), or "none", a value of each element or target; GraphError for anything else.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import DTypeError, GraphError, ShapeError
from ..graph import INTEGERS
from ..tensors import dtype_of, known_dtype, known_shape, tensor


def mse_loss(input: Node, target: Node, reduction: str = "mean") -> Node:
    """(x - y)^2."""
    return ad.mse_loss_op(input, target, reduction)


def _require_same_dtype(name: str, input: Node, target: Node) -> None:
    """Raises DTypeError for a target of another dtype, where both are known."""
    own, other = known_dtype(input), known_dtype(target)
    if own is not None and other is not None and own != other:
        raise DTypeError(f"{name}: target is {other}, it must be {own} as the input: target.{_CASTS.get(own, own)}()")


_CASTS = {"float32": "float", "float64": "double"}


def binary_cross_entropy_with_logits(
    input: Node, target: Node, weight: Any = None, *, reduction: str = "mean", pos_weight: Any = None
) -> Node:
    """The binary cross-entropy of logits x with probabilities y, times `weight`; the part of y times `pos_weight`, both
    nodes that broadcast. Raises DTypeError for a target that is not of x's dtype."""
    _require_same_dtype("binary_cross_entropy_with_logits", input, target)
    return ad.bce_with_logits_op(input, target, weight, pos_weight, reduction)


def reduced(name: str, losses: Node, reduction: str) -> Node:
    if reduction not in ("mean", "sum", "none"):
        raise GraphError(f"{name}: reduction must be 'mean', 'sum' or 'none', not {reduction!r}")
    if reduction == "none":
        return losses
    return ad.mean_op(losses) if reduction == "mean" else ad.reducesum_op(losses)


def _not_ignored(targets: Node, ignore_index: int) -> Node | None:
    """Which class numbers count; None for all."""
    limits = np.iinfo(dtype_of(targets))
    return ad.not_equal_op(targets, ignore_index) if limits.min <= ignore_index <= limits.max else None


def _have_numbers(name: str, targets: Node) -> bool:
    """Whether targets are class numbers. Raises GraphError where only the run tells it."""
    try:
        return dtype_of(targets) in INTEGERS
    except DTypeError:
        told = f"the dtype of {targets.name} must be known here: declare that of its variables"
        raise GraphError(f"{name}: {told}") from None


def _as_weight(name: str, weight: Any, classes: int) -> tuple[Node, int]:
    """Weights of classes, a node or an array, and their number. Raises ShapeError."""
    node = weight if isinstance(weight, Node) else tensor(weight)
    shape = known_shape(node)
    if shape != (classes,):
        raise ShapeError(f"{name}: weight has shape {shape}, it must be ({classes},), one for each class")
    return node, classes


def cross_entropy(
    input: Node,
    target: Node,
    weight: Any = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Node:
    """The cross-entropy of logits (N, C) or (N, C, d1, ...) with class numbers (N, d1, ...) or probabilities of the
    logits' shape; see `autodiff.cross_entropy_op`.

    `weight` (C,) says what each class counts for; the mean of class numbers is then over the sum of their weights. With
    it the logits' shape and the targets' dtype must be known at the call. Logits (C,), whose shape is known, are one
    example. Raises GraphError, ShapeError for another weight.
    """
    if len(known_shape(input) or ()) == 1:
        one, of = ad.expand_dims_op(input, 0), ad.expand_dims_op(target, 0)
        settings: dict[str, Any] = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
        loss = cross_entropy(one, of, weight, reduction=reduction, **settings)
        return ad.squeeze_op(loss, 0) if reduction == "none" else loss
    if weight is None:
        return ad.cross_entropy_op(input, target, ignore_index, label_smoothing, reduction)
    shape = _shape("cross_entropy", input)
    weight, classes = _as_weight("cross_entropy", weight, shape[1])
    wide = ad.reshape_op(weight, (-1, *(1,) * (len(shape) - 2)))
    if not _have_numbers("cross_entropy", target):
        smoothed = target if not label_smoothing else target * (1 - label_smoothing) + label_smoothing / classes
        return ad.cross_entropy_op(input, smoothed * wide, ignore_index, 0.0, reduction)
    each = ad.take_op(weight, target, 0)
    losses = ad.cross_entropy_op(input, target, ignore_index, 0.0, "none") * each
    counts = _not_ignored(target, ignore_index)
    if label_smoothing:
        every = ad.cross_entropy_op(input, ad.zeroslike_op(input) + wide, reduction="none")
        every = every if counts is None else ad.where_op(counts, every, 0.0)
        losses = losses * (1 - label_smoothing) + every * (label_smoothing / classes)
    return _weighted(losses, each, counts, reduction)


def _shape(name: str, x: Node) -> tuple[int, ...]:
    shape = known_shape(x)
    if shape is None:
        raise GraphError(f"{name}: the shape of {x.name} must be known here: declare that of its variables")
    return shape


def _weighted(losses: Node, weights: Node, counts: Node | None, reduction: str) -> Node:
    if reduction != "mean":
        return reduced("cross_entropy", losses, reduction)
    total = weights if counts is None else ad.where_op(counts, weights, 0.0)
    return ad.reducesum_op(losses) / ad.reducesum_op(total)


def nll_loss(
    input: Node, target: Node, weight: Any = None, *, ignore_index: int = -100, reduction: str = "mean"
) -> Node:
    """-x[n, targets[n]] of logarithms of probabilities x (N, C) or (N, C, d1, ...), of known shape, and class numbers
    (N, d1, ...), times their `weight` (C,); numbers equal to `ignore_index` count nothing, any other that is no class
    makes the loss NaN. The mean is over the others' weights. x (C,) is one example. Raises GraphError, ShapeError."""
    if len(known_shape(input) or ()) == 1:
        one, of = ad.expand_dims_op(input, 0), ad.expand_dims_op(target, 0)
        loss = nll_loss(one, of, weight, ignore_index=ignore_index, reduction=reduction)
        return ad.squeeze_op(loss, 0) if reduction == "none" else loss
    if reduction not in ("mean", "sum", "none"):
        raise GraphError(f"nll_loss: reduction must be 'mean', 'sum' or 'none', not {reduction!r}")
    if not _have_numbers("nll_loss", target):
        raise GraphError(f"nll_loss: target must be class numbers, not {dtype_of(target)}")
    shape = _shape("nll_loss", input)
    if len(shape) < 2:
        raise ShapeError(f"nll_loss: input must be (N, C) or (N, C, d1, ...), not {shape}")
    classes = shape[1]
    picked = ad.squeeze_op(ad.take_along_axis_op(input, ad.expand_dims_op(target, 1), 1), 1)
    is_class = ad.logical_and_op(ad.greater_equal_op(target, 0), ad.less_op(target, classes))
    losses = ad.where_op(is_class, -picked, float("nan"))
    each = ad.oneslike_op(picked)
    if weight is not None:
        each = ad.take_op(_as_weight("nll_loss", weight, classes)[0], target, 0)
        losses = losses * each
    counts = _not_ignored(target, ignore_index)
    losses = losses if counts is None else ad.where_op(counts, losses, 0.0)
    return _weighted(losses, each, counts, reduction)
