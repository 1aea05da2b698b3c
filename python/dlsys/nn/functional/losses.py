"""Losses, reduced to their mean or sum, and distances of vectors."""

from __future__ import annotations

from ... import autodiff as ad
from ...checks import flag, integer, number, real, word
from ...errors import ShapeError
from ...graph import Node
from ...ops.cross_entropy import class_losses, without_classes
from ...ops.loss import difference_of, reduced
from ...ops.replay import function
from ...tensors import Tensor
from .activations import softplus


def mse_loss(input: Node, target: Node, reduction: str = "mean") -> Tensor:
    """(x - y)^2, "none", or their "mean" or "sum", shape (). Raises GraphError for another reduction."""
    return ad.mse_loss_op(input, target, reduction)


@function(on_tensors=True)
def l1_loss(input: Node, target: Node, reduction: str = "mean") -> Tensor:
    """|x - y|, "none", or their "mean" or "sum", shape (). Raises GraphError for another reduction."""
    return reduced("l1_loss", ad.abs_op(difference_of("l1_loss", input, target)), reduction)


@function(on_tensors=True)
def smooth_l1_loss(input: Node, target: Node, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """(x - y)^2 / (2 beta) where |x - y| < beta, else |x - y| - beta / 2; reduced as `l1_loss`. Raises GraphError."""
    beta, difference = number("smooth_l1_loss", "beta", beta), difference_of("smooth_l1_loss", input, target)
    far = ad.abs_op(difference)
    near = difference * difference * (0.5 / beta) if beta else far
    return reduced("smooth_l1_loss", ad.where_op(far < beta, near, far - 0.5 * beta), reduction)


@function(on_tensors=True)
def huber_loss(input: Node, target: Node, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """(x - y)^2 / 2 where |x - y| < delta, else delta (|x - y| - delta / 2); reduced as `l1_loss`. Raises
    GraphError."""
    return smooth_l1_loss(input, target, reduction, delta) * number("huber_loss", "delta", delta)


@function(on_tensors=True)
def kl_div(input: Node, target: Node, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """y (log y - x) of logarithms x and probabilities y, or their logarithms where `log_target`; reduced as `l1_loss`,
    or, "batchmean", their sum over the extent of the first axis. Raises GraphError."""
    word("kl_div", "reduction", reduction, ("mean", "batchmean", "sum", "none"))
    if flag("kl_div", "log_target", log_target):
        losses = ad.exp_op(target) * difference_of("kl_div", target, input)
    else:
        logs = ad.log_op(ad.where_op(target > 0.0, target, 1.0))
        losses = target * difference_of("kl_div", logs, input)
    if reduction == "batchmean":
        return ad.div_op(ad.reducesum_op(losses), input.shape[0])
    return reduced("kl_div", losses, reduction)


def _require_one_shape(op: str, x: Node, y: Node) -> None:
    if x.shape != y.shape:
        raise ShapeError(f"{op}: shapes differ: {x.name} {x.shape} and {y.name} {y.shape}")


@function(on_tensors=True)
def binary_cross_entropy(
    input: Node, target: Node, weight: Node | None = None, *, reduction: str = "mean"
) -> Tensor:
    """-y log x - (1 - y) log(1 - x) of probabilities x, with logarithms of -100 at least, times `weight`, which
    broadcasts; reduced as `l1_loss`. Raises GraphError, and ShapeError where x and y are of two shapes."""
    op = "binary_cross_entropy"
    _require_one_shape(op, input, target)
    above, below = input > 0.0, input < 1.0  # at 0 the logarithm has no slope
    logs = ad.where_op(above, ad.log_op(ad.where_op(above, input, 1.0)), -100.0)
    others = ad.where_op(below, Tensor.log1p(ad.where_op(below, -input, 0.0)), -100.0)
    losses = -(target * ad.maximum_op(logs, -100.0) + (1.0 - target) * ad.maximum_op(others, -100.0))
    return reduced(op, losses if weight is None else losses * weight, reduction)


@function(on_tensors=True)
def binary_cross_entropy_with_logits(
    input: Node, target: Node, weight: Node | None = None, *, reduction: str = "mean", pos_weight: Node | None = None
) -> Tensor:
    """-y log s - (1 - y) log(1 - s) with s = sigmoid(x), times `weight`; the first term times `pos_weight` too, both of
    which broadcast; reduced as `l1_loss`. Raises GraphError, and ShapeError where x and y are of two shapes."""
    op = "binary_cross_entropy_with_logits"
    _require_one_shape(op, input, target)
    of_ones, of_zeros = target * softplus(-input), (1.0 - target) * softplus(input)
    losses = (of_ones if pos_weight is None else of_ones * pos_weight) + of_zeros
    return reduced(op, losses if weight is None else losses * weight, reduction)


@function(on_tensors=True)
def nll_loss(
    input: Node, target: Node, weight: Node | None = None, *, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """-x at each target's class, of logarithms (N, C) or (N, C, d1, ...), times the class's `weight` (C,); targets,
    reduction and errors are those of `cross_entropy`. Logarithms (C,) are one example."""
    if len(input.shape) == 1:
        one = nll_loss(
            ad.expand_dims_op(input, 0), ad.expand_dims_op(target, 0), weight,
            ignore_index=ignore_index, reduction=reduction,
        )  # fmt: skip
        return ad.squeeze_op(one, 0) if reduction == "none" else one
    ignored = integer("nll_loss", "ignore_index", ignore_index)
    losses, counts = class_losses("nll_loss", input, target, ignored, weight)
    losses = losses - ad.logsumexp_op(input, 1, True) * counts
    return reduced("nll_loss", without_classes(losses) if reduction == "none" else losses, reduction, counts)


@function(on_tensors=True)
def cross_entropy(
    input: Node,
    target: Node,
    weight: Node | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """The cross-entropy of logits (N, C) or (N, C, d1, ...) with class numbers (N, d1, ...) or probabilities of the
    logits' shape; see `autodiff.cross_entropy_op`. Logits (C,) are one example."""
    if len(input.shape) != 1:
        return ad.cross_entropy_op(input, target, ignore_index, label_smoothing, reduction, weight)
    one, of = ad.expand_dims_op(input, 0), ad.expand_dims_op(target, 0)
    loss = ad.cross_entropy_op(one, of, ignore_index, label_smoothing, reduction, weight)
    return ad.squeeze_op(loss, 0) if reduction == "none" else loss


@function(on_tensors=True)
def pairwise_distance(x1: Node, x2: Node, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """The norm number p of x1 - x2 + eps along the last axis, (..., M) -> (...). Raises GraphError."""
    apart = difference_of("pairwise_distance", x1, x2) + real("pairwise_distance", "eps", eps)
    return Tensor.norm(apart, p, -1, keepdim)


@function(on_tensors=True)
def cosine_similarity(x1: Node, x2: Node, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The product x1 x2 along `dim`, over both norms, which are `eps` at least; both are broadcast first. Raises
    GraphError."""
    least = number("cosine_similarity", "eps", eps)
    product = x1 * x2
    lengths = [ad.maximum_op(Tensor.norm(ad.broadcastto_op(x, product), 2, dim), least) for x in (x1, x2)]
    return ad.reducesum_op(product, dim) / (lengths[0] * lengths[1])


@function(on_tensors=True)
def triplet_margin_loss(
    anchor: Node,
    positive: Node,
    negative: Node,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    *,
    reduction: str = "mean",
) -> Tensor:
    """max(d(anchor, positive) - d(anchor, negative) + margin, 0) of pairwise distances d, of vectors (N, M); reduced as
    `l1_loss`. With `swap` the second is the smaller of it and d(positive, negative). Raises GraphError."""
    near, far = (pairwise_distance(anchor, x, p, eps) for x in (positive, negative))
    if flag("triplet_margin_loss", "swap", swap):
        far = ad.minimum_op(far, pairwise_distance(positive, negative, p, eps))
    beyond = near - far + number("triplet_margin_loss", "margin", margin)
    return reduced("triplet_margin_loss", ad.relu_op(beyond), reduction)
