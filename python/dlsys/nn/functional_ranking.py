"""Distances, and losses that compare scores or distances, by the names and in the argument order of
torch.nn.functional. `reduction` is as of the other losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node
from ..eager import dtype_of, tensor
from ..errors import GraphError, ShapeError
from .checks import shape_of
from .functional_activation import norm_along
from .functional_loss import number_of, reduced


def cosine_similarity(x1: Node, x2: Node, dim: int = 1, eps: float = 1e-8) -> Node:
    """sum(x y) / (|x| |y|) along `dim`, where lengths are `eps` at least."""
    lengths = [ad.sqrt_op(ad.clip_op(ad.reducesum_op(v * v, dim), eps * eps)) for v in (x1, x2)]
    return ad.reducesum_op(x1 * x2, dim) / (lengths[0] * lengths[1])


def pairwise_distance(x1: Node, x2: Node, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Node:
    """The p-norm of x - y + eps along the last axis. Raises GraphError for a p below 1."""
    if isinstance(p, bool) or not isinstance(p, (int, float)) or p < 1:
        raise GraphError(f"pairwise_distance: p must be a number >= 1, not {p!r}")
    distance = norm_along(x1 - x2 + eps, p, -1, 0.0)
    return distance if keepdim else ad.squeeze_op(distance, -1)


def cosine_embedding_loss(
    input1: Node, input2: Node, target: Node, margin: float = 0.0, reduction: str = "mean"
) -> Node:
    """1 - cos where `target` is 1, max(0, cos - margin) where it is -1; cos is that of the rows of x and y (N, D)."""
    squares = [ad.reducesum_op(v * v, -1) + 1e-12 for v in (input1, input2)]
    cos = ad.reducesum_op(input1 * input2, -1) / ad.sqrt_op(squares[0] * squares[1])
    unlike = ad.where_op(ad.equal_op(target, -1), ad.relu_op(cos - margin), 0.0)
    return reduced("cosine_embedding_loss", ad.where_op(ad.equal_op(target, 1), 1.0 - cos, unlike), reduction)


def margin_ranking_loss(
    input1: Node, input2: Node, target: Node, margin: float = 0.0, reduction: str = "mean"
) -> Node:
    """max(0, -t (x - y) + margin): x is to be above y where the target t is 1, below it where it is -1."""
    return reduced("margin_ranking_loss", _above_zero(-target * (input1 - input2) + margin), reduction)


def _above_zero(x: Node) -> Node:
    """max(x, 0), with the gradient of PyTorch's clamp_min(0), which is 1 at 0."""
    return ad.clip_op(x, 0.0)


def hinge_embedding_loss(input: Node, target: Node, margin: float = 1.0, reduction: str = "mean") -> Node:
    """The distance x where `target` is 1, max(0, margin - x) where it is -1."""
    like = ad.where_op(ad.equal_op(target, -1), 0.0, input)
    unlike = ad.where_op(ad.equal_op(target, 1), 0.0, _above_zero(margin - input))
    return reduced("hinge_embedding_loss", like + unlike, reduction)


def triplet_margin_loss(
    anchor: Node,
    positive: Node,
    negative: Node,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Node:
    """max(0, |a - p| - |a - n| + margin), distances along the last axis; `swap` takes |p - n| where that is less than
    |a - n|: Balntas et al. (2016)."""

    def distance(x: Node, y: Node) -> Node:
        return pairwise_distance(x, y, p, eps)

    return _of_triplets("triplet_margin_loss", (anchor, positive, negative), distance, margin, swap, reduction)


def triplet_margin_with_distance_loss(
    anchor: Node,
    positive: Node,
    negative: Node,
    *,
    distance_function: Callable[[Node, Node], Node] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Node:
    """triplet_margin_loss by another distance than `pairwise_distance`."""
    distance = pairwise_distance if distance_function is None else distance_function
    name = "triplet_margin_with_distance_loss"
    return _of_triplets(name, (anchor, positive, negative), distance, margin, swap, reduction)


def _of_triplets(
    name: str,
    triplet: tuple[Node, Node, Node],
    distance: Callable[[Node, Node], Node],
    margin: float,
    swap: bool,
    reduction: str,
) -> Node:
    anchor, positive, negative = triplet
    margin = number_of(name, "margin", margin)
    away = distance(anchor, negative)
    if swap:
        away = ad.minimum_op(away, distance(positive, negative))
    return reduced(name, _above_zero(distance(anchor, positive) - away + margin), reduction)


def multi_margin_loss(
    input: Node, target: Node, p: int = 1, margin: float = 1.0, weight: Any = None, reduction: str = "mean"
) -> Node:
    """The sum of max(0, margin - x[t] + x[i])^p over the classes i != t, divided by their number, of scores x (N, C)
    of known shape and class numbers t (N,); times the `weight` (C,) of class t. Raises GraphError, ShapeError."""
    if p not in (1, 2):
        raise GraphError(f"multi_margin_loss: p must be 1 or 2, not {p!r}")
    shape = shape_of("multi_margin_loss", input)
    if len(shape) != 2:
        raise ShapeError(f"multi_margin_loss: input must be (N, C), not {shape}")
    at = ad.expand_dims_op(target, 1)
    over = _above_zero(margin - ad.take_along_axis_op(input, at, 1) + input)
    over = over * over if p == 2 else over
    if weight is not None:
        over = over * ad.expand_dims_op(ad.take_op(weight, target, 0), 1)
    others = ad.not_equal_op(at, tensor(np.arange(shape[1])[None], dtype_of(target)))
    losses = ad.reducesum_op(ad.where_op(others, over, 0.0), 1) / shape[1]
    return reduced("multi_margin_loss", losses, reduction)
