"""Losses and distances as functions, by the names and in the argument order of torch.nn.functional.

`reduction` is "mean" or "sum", shape (), or "none", a value of each element or target; GraphError for anything else.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node
from ..eager import dtype_of, known_shape, tensor
from ..errors import DTypeError, GraphError, ShapeError
from ..graph import INTEGERS

mse_loss = ad.mse_loss_op
binary_cross_entropy = ad.binary_cross_entropy_op
binary_cross_entropy_with_logits = ad.bce_with_logits_op


def _reduced(name: str, losses: Node, reduction: str) -> Node:
    if reduction not in ("mean", "sum", "none"):
        raise GraphError(f"{name}: reduction must be 'mean', 'sum' or 'none', not {reduction!r}")
    if reduction == "none":
        return losses
    return ad.mean_op(losses) if reduction == "mean" else ad.reducesum_op(losses)


def _number(name: str, key: str, value: Any) -> float:
    """A number >= 0. Raises GraphError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise GraphError(f"{name}: {key} must be a number >= 0, not {value!r}")
    return float(value)


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
    logits: Node,
    targets: Node,
    weight: Any = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Node:
    """The cross-entropy of logits (N, C) or (N, C, d1, ...) with class numbers (N, d1, ...) or probabilities of the
    logits' shape; see `autodiff.cross_entropy_op`.

    `weight` (C,) says what each class counts for; the mean of class numbers is then over the sum of their weights. With
    it the logits' shape and the targets' dtype must be known at the call. Raises GraphError, ShapeError for another
    weight.
    """
    if weight is None:
        return ad.cross_entropy_op(logits, targets, ignore_index, label_smoothing, reduction)
    shape = _shape("cross_entropy", logits)
    weight, classes = _as_weight("cross_entropy", weight, shape[1])
    wide = ad.reshape_op(weight, (-1, *(1,) * (len(shape) - 2)))
    if not _have_numbers("cross_entropy", targets):
        smoothed = targets if not label_smoothing else targets * (1 - label_smoothing) + label_smoothing / classes
        return ad.cross_entropy_op(logits, smoothed * wide, ignore_index, 0.0, reduction)
    each = ad.take_op(weight, targets, 0)
    losses = ad.cross_entropy_op(logits, targets, ignore_index, 0.0, "none") * each
    counts = _not_ignored(targets, ignore_index)
    if label_smoothing:
        every = ad.cross_entropy_op(logits, ad.zeroslike_op(logits) + wide, reduction="none")
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
        return _reduced("cross_entropy", losses, reduction)
    total = weights if counts is None else ad.where_op(counts, weights, 0.0)
    return ad.reducesum_op(losses) / ad.reducesum_op(total)


def nll_loss(
    x: Node, targets: Node, weight: Any = None, *, ignore_index: int = -100, reduction: str = "mean"
) -> Node:
    """-x[n, targets[n]] of logarithms of probabilities x (N, C) or (N, C, d1, ...), of known shape, and class numbers
    (N, d1, ...), times their `weight` (C,); numbers equal to `ignore_index` count nothing, any other that is no class
    makes the loss NaN. The mean is over the others' weights. Raises GraphError, ShapeError."""
    if reduction not in ("mean", "sum", "none"):
        raise GraphError(f"nll_loss: reduction must be 'mean', 'sum' or 'none', not {reduction!r}")
    if not _have_numbers("nll_loss", targets):
        raise GraphError(f"nll_loss: targets must be class numbers, not {dtype_of(targets)}")
    shape = _shape("nll_loss", x)
    if len(shape) < 2:
        raise ShapeError(f"nll_loss: x must be (N, C) or (N, C, d1, ...), not {shape}")
    classes = shape[1]
    picked = ad.squeeze_op(ad.take_along_axis_op(x, ad.expand_dims_op(targets, 1), 1), 1)
    is_class = ad.logical_and_op(ad.greater_equal_op(targets, 0), ad.less_op(targets, classes))
    losses = ad.where_op(is_class, -picked, float("nan"))
    each = ad.oneslike_op(picked)
    if weight is not None:
        each = ad.take_op(_as_weight("nll_loss", weight, classes)[0], targets, 0)
        losses = losses * each
    counts = _not_ignored(targets, ignore_index)
    losses = losses if counts is None else ad.where_op(counts, losses, 0.0)
    return _weighted(losses, each, counts, reduction)


def l1_loss(x: Node, y: Node, reduction: str = "mean") -> Node:
    """|x - y|."""
    return _reduced("l1_loss", ad.abs_op(x - y), reduction)


def smooth_l1_loss(x: Node, y: Node, reduction: str = "mean", beta: float = 1.0) -> Node:
    """d^2 / (2 beta) where d = |x - y| is less than beta, else d - beta / 2."""
    beta = _number("smooth_l1_loss", "beta", beta)
    if beta == 0:
        return l1_loss(x, y, reduction)
    d = ad.abs_op(x - y)
    return _reduced("smooth_l1_loss", ad.where_op(d < beta, d * d * (0.5 / beta), d - 0.5 * beta), reduction)


def huber_loss(x: Node, y: Node, reduction: str = "mean", delta: float = 1.0) -> Node:
    """d^2 / 2 where d = |x - y| is at most delta, else delta (d - delta / 2)."""
    delta = _number("huber_loss", "delta", delta)
    if delta == 0:
        raise GraphError("huber_loss: delta must be greater than 0")
    d = ad.abs_op(x - y)
    return _reduced("huber_loss", ad.where_op(d <= delta, d * d * 0.5, (d - 0.5 * delta) * delta), reduction)


def kl_div(x: Node, y: Node, reduction: str = "mean", log_target: bool = False) -> Node:
    """y (log y - x) of logarithms of probabilities x and probabilities y, or exp(y) (y - x) with `log_target`: the
    divergence of x from y. "mean" is over all elements; "batchmean" divides the sum by the first extent, which is the
    divergence as it is defined."""
    if log_target:
        losses = ad.exp_op(y) * (y - x)
    else:
        none = ad.equal_op(y, 0.0)
        losses = y * ad.log_op(ad.where_op(none, 1.0, y)) - y * x
    if reduction == "batchmean":
        return ad.reducesum_op(losses) / _shape("kl_div", x)[0]
    return _reduced("kl_div", losses, reduction)


def cosine_similarity(x: Node, y: Node, dim: int = 1, eps: float = 1e-8) -> Node:
    """sum(x y) / (|x| |y|) along `dim`, where lengths are `eps` at least."""
    lengths = [ad.sqrt_op(ad.clip_op(ad.reducesum_op(v * v, dim), eps * eps)) for v in (x, y)]
    return ad.reducesum_op(x * y, dim) / (lengths[0] * lengths[1])


def cosine_embedding_loss(x: Node, y: Node, target: Node, margin: float = 0.0, reduction: str = "mean") -> Node:
    """1 - cos where `target` is 1, max(0, cos - margin) where it is -1; cos is that of the rows of x and y (N, D)."""
    squares = [ad.reducesum_op(v * v, -1) + 1e-12 for v in (x, y)]
    cos = ad.reducesum_op(x * y, -1) / ad.sqrt_op(squares[0] * squares[1])
    unlike = ad.where_op(ad.equal_op(target, -1), ad.relu_op(cos - margin), 0.0)
    return _reduced("cosine_embedding_loss", ad.where_op(ad.equal_op(target, 1), 1.0 - cos, unlike), reduction)
