"""Distances, and losses that compare scores or distances, as modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..autodiff import Node
from ..errors import GraphError
from . import functional as F
from .loss import Loss
from .module import Module


class CosineSimilarity(Module):
    """sum(x y) / (|x| |y|) along `dim`, where lengths are `eps` at least."""

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        self.dim, self.eps = dim, eps

    def forward(self, x1: Node, x2: Node) -> Node:
        return F.cosine_similarity(x1, x2, self.dim, self.eps)


class PairwiseDistance(Module):
    """The p-norm of x - y + eps along the last axis."""

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        self.p, self.eps, self.keepdim = p, eps, bool(keepdim)

    def forward(self, x1: Node, x2: Node) -> Node:
        return F.pairwise_distance(x1, x2, self.p, self.eps, self.keepdim)


class _Margin(Loss):
    """Losses with a margin."""

    def __init__(self, margin: float, reduction: str) -> None:
        super().__init__(reduction)
        self.margin = margin

    def extra_repr(self) -> str:
        margin = f"margin={self.margin}" if self.margin else ""
        return ", ".join(part for part in (margin, super().extra_repr()) if part)


class CosineEmbeddingLoss(_Margin):
    """1 - cos where `target` is 1, max(0, cos - margin) where it is -1; cos is that of the rows of x and y (N, D)."""

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        """Raises GraphError."""
        super().__init__(margin, reduction)

    def forward(self, input1: Node, input2: Node, target: Node) -> Node:
        self.require_same(input1, input2)
        return F.cosine_embedding_loss(input1, input2, target, self.margin, self.reduction)


class MarginRankingLoss(_Margin):
    """max(0, -t (x - y) + margin): x is to be above y where the target t is 1, below it where it is -1."""

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        """Raises GraphError."""
        super().__init__(margin, reduction)

    def forward(self, input1: Node, input2: Node, target: Node) -> Node:
        self.require_same(input1, input2)
        return F.margin_ranking_loss(input1, input2, target, self.margin, self.reduction)


class HingeEmbeddingLoss(_Margin):
    """The distance x where `target` is 1, max(0, margin - x) where it is -1."""

    def __init__(self, margin: float = 1.0, reduction: str = "mean") -> None:
        """Raises GraphError."""
        super().__init__(margin, reduction)

    def forward(self, input: Node, target: Node) -> Node:
        return F.hinge_embedding_loss(input, target, self.margin, self.reduction)


class MultiMarginLoss(_Margin):
    """The mean over the classes of max(0, margin - x[t] + x[i])^p, i != t, of scores x (N, C) and class numbers t (N,).

    Buffers: weight (C,), if it is given.
    """

    weight: Any

    def __init__(self, p: int = 1, margin: float = 1.0, weight: Any = None, reduction: str = "mean") -> None:
        """Raises GraphError."""
        super().__init__(margin, reduction)
        if p not in (1, 2):
            raise GraphError(f"MultiMarginLoss: p must be 1 or 2, not {p!r}")
        self.p = p
        self.register_buffer("weight", weight)

    def forward(self, input: Node, target: Node) -> Node:
        return F.multi_margin_loss(input, target, self.p, self.margin, self.weight, self.reduction)


class TripletMarginLoss(_Margin):
    """max(0, |a - p| - |a - n| + margin), p-norms along the last axis; `swap` takes |p - n| where that is less than
    |a - n|: Balntas et al. (2016)."""

    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        """Raises GraphError."""
        super().__init__(margin, reduction)
        self.p, self.eps, self.swap = p, eps, bool(swap)

    def forward(self, anchor: Node, positive: Node, negative: Node) -> Node:
        settings = (self.margin, self.p, self.eps, self.swap, self.reduction)
        return F.triplet_margin_loss(anchor, positive, negative, *settings)


class TripletMarginWithDistanceLoss(_Margin):
    """TripletMarginLoss by another distance, a function of two nodes, than `F.pairwise_distance`."""

    def __init__(
        self,
        *,
        distance_function: Callable[[Node, Node], Node] | None = None,
        margin: float = 1.0,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        """Raises GraphError."""
        super().__init__(margin, reduction)
        self.distance_function, self.swap = distance_function, bool(swap)

    def forward(self, anchor: Node, positive: Node, negative: Node) -> Node:
        return F.triplet_margin_with_distance_loss(
            anchor,
            positive,
            negative,
            distance_function=self.distance_function,
            margin=self.margin,
            swap=self.swap,
            reduction=self.reduction,
        )
