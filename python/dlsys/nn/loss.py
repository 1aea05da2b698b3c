"""Loss functions as modules. `reduction` is "mean" or "sum", shape (), or "none", a value of each element or target."""

from __future__ import annotations

from typing import Any

from ..autodiff import Node
from ..eager import known_shape
from ..errors import GraphError, ShapeError
from . import functional as F
from .module import Module


class _Loss(Module):
    def __init__(self, reduction: str = "mean") -> None:
        if reduction not in ("mean", "sum", "none"):
            raise GraphError(
                f"{type(self).__name__}: reduction must be 'mean', 'sum' or 'none', not {reduction!r}"
            )
        self.reduction = reduction

    def extra_repr(self) -> str:
        return "" if self.reduction == "mean" else f"reduction={self.reduction!r}"

    def _require(self, fits: bool, x: Node, y: Node) -> None:
        try:
            self.require(fits, x)
        except ShapeError as error:
            raise ShapeError(f"{error}, beside {known_shape(y)} [{y.name}]") from None

    def _require_same(self, x: Node, y: Node) -> None:
        mine, other = known_shape(x), known_shape(y)
        self._require(mine is None or other is None or mine == other, x, y)


class CrossEntropyLoss(_Loss):
    """The cross-entropy of logits (N, C) or (N, C, d1, ...) with targets: class numbers (N, d1, ...) of an integer
    dtype, or probabilities of the logits' shape. Numbers equal to `ignore_index` count nothing, the mean is over the
    others."""

    def __init__(
        self,
        weight: None = None,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        """Raises GraphError; also for weights of classes, which are not supported."""
        super().__init__(reduction)
        if weight is not None:
            raise GraphError("CrossEntropyLoss: weights of classes are not supported: weight must be None")
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing

    def forward(self, logits: Node, targets: Node) -> Node:
        shape, others = known_shape(logits), known_shape(targets)
        if shape is not None:
            fits = len(shape) >= 2 and others in (None, shape, (shape[0], *shape[2:]))
            self._require(fits, logits, targets)
        return F.cross_entropy(
            logits,
            targets,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class SoftmaxLoss(Module):
    """needle's name: the mean cross-entropy of logits (N, C) with class numbers (N,)."""

    def forward(self, logits: Node, y: Node) -> Node:
        return F.cross_entropy(logits, y)


class MSELoss(_Loss):
    """(x - y)^2."""

    def forward(self, x: Node, y: Node) -> Node:
        self._require_same(x, y)
        return F.mse_loss(x, y, self.reduction)


class L1Loss(_Loss):
    """|x - y|."""

    def forward(self, x: Node, y: Node) -> Node:
        self._require_same(x, y)
        return F.l1_loss(x, y, self.reduction)


class BCEWithLogitsLoss(_Loss):
    """The binary cross-entropy of logits x with probabilities y, times `weight`; the part of y times `pos_weight`. Both
    are arrays that broadcast, kept as buffers."""

    def __init__(self, weight: Any = None, *, reduction: str = "mean", pos_weight: Any = None) -> None:
        super().__init__(reduction)
        for name, value in (("weight", weight), ("pos_weight", pos_weight)):
            if value is None:
                setattr(self, name, None)
            else:
                self.register_buffer(name, value)

    def forward(self, x: Node, y: Node) -> Node:
        self._require_same(x, y)
        return F.binary_cross_entropy_with_logits(x, y, self.weight, self.pos_weight, self.reduction)
