"""Distances of vectors, and losses of them."""

from __future__ import annotations

from ... import autodiff as ad
from ...autodiff import Node
from ...checks import flag, number, real
from ...ops.loss import difference_of, reduced
from ...tensors import Tensor
from ..checks import require_nodes


def pairwise_distance(x1: Node, x2: Node, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """The norm number p of x1 - x2 + eps along the last axis, (..., M) -> (...). Raises GraphError."""
    apart = difference_of("pairwise_distance", x1, x2) + real("pairwise_distance", "eps", eps)
    return Tensor.norm(apart, p, -1, keepdim)


def cosine_similarity(x1: Node, x2: Node, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The product x1 x2 along `dim`, over both norms, which are `eps` at least. Raises GraphError."""
    require_nodes("cosine_similarity", x1, x2)
    least = number("cosine_similarity", "eps", eps)
    lengths = [ad.maximum_op(Tensor.norm(x, 2, dim), least) for x in (x1, x2)]
    return ad.reducesum_op(x1 * x2, dim) / (lengths[0] * lengths[1])


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
