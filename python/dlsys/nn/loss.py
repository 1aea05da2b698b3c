"""Loss functions as modules. `reduction` is "mean" or "sum", shape (), or "none", a value of each element or target."""

from __future__ import annotations

import operator
from typing import Any

from ..autodiff import Node
from ..errors import GraphError, ShapeError
from . import functional as F
from .checks import checked_share, known_shape
from .module import Module


class Loss(Module):
    """Base of the losses: the reduction, and the check of two shapes."""

    _reductions: tuple[str, ...] = ("mean", "sum", "none")

    def __init__(self, reduction: str = "mean") -> None:
        """Raises GraphError for another reduction."""
        if reduction not in self._reductions:
            known = f"{', '.join(map(repr, self._reductions[:-1]))} or {self._reductions[-1]!r}"
            raise GraphError(f"{type(self).__name__}: reduction must be {known}, not {reduction!r}")
        self.reduction = reduction

    def extra_repr(self) -> str:
        return "" if self.reduction == "mean" else f"reduction={self.reduction!r}"

    def require_beside(self, fits: bool, x: Node, y: Node) -> None:
        try:
            self.require(fits, x)
        except ShapeError as error:
            raise ShapeError(f"{error}, beside {known_shape(y)} [{y.name}]") from None

    def require_same(self, x: Node, y: Node) -> None:
        mine, other = known_shape(x), known_shape(y)
        self.require_beside(mine is None or other is None or mine == other, x, y)


class _ClassLoss(Loss):
    """Losses of class numbers. Buffers: weight (C,), if it is given."""

    weight: Any

    def __init__(self, weight: Any, ignore_index: int, reduction: str) -> None:
        super().__init__(reduction)
        name = type(self).__name__
        try:
            self.ignore_index = operator.index(ignore_index)
        except TypeError:
            raise GraphError(f"{name}: ignore_index must be an integer, not {ignore_index!r}") from None
        self.register_buffer("weight", weight)
        if weight is not None and len(self.weight.shape) != 1:
            raise GraphError(f"{name}: weight must be (C,), one for each class, not of shape {self.weight.shape}")

    def _require_targets(self, x: Node, targets: Node, probabilities: bool) -> None:
        shape, others = known_shape(x), known_shape(targets)
        if shape is not None:
            batch, classes = (shape[:1], shape[1:2]) if len(shape) > 1 else ((), shape)
            kinds = [None, (*batch, *shape[2:]), *[shape] * probabilities] if shape else []
            self.require_beside(others in kinds and (self.weight is None or self.weight.shape == classes), x, targets)

    def extra_repr(self) -> str:
        weight = "" if self.weight is None else f"weight of {self.weight.shape[0]} classes"
        ignored = "" if self.ignore_index == -100 else f"ignore_index={self.ignore_index}"
        return ", ".join(part for part in (weight, ignored, super().extra_repr()) if part)


class CrossEntropyLoss(_ClassLoss):
    """The cross-entropy of logits (N, C), (N, C, d1, ...), (C,) with targets: class numbers (N, d1, ...) of an integer
    dtype, or probabilities of the logits' shape. Numbers equal to `ignore_index` count nothing, the mean is over the
    others; with `weight` (C,), what each class counts for, over their weights."""

    def __init__(
        self,
        weight: Any = None,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        """Raises GraphError."""
        super().__init__(weight, ignore_index, reduction)
        self.label_smoothing = checked_share("CrossEntropyLoss", "label_smoothing", label_smoothing)

    def forward(self, input: Node, target: Node) -> Node:
        self._require_targets(input, target, True)
        return F.cross_entropy(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )

    def extra_repr(self) -> str:
        smoothing = f"label_smoothing={self.label_smoothing}" if self.label_smoothing else ""
        return ", ".join(part for part in (super().extra_repr(), smoothing) if part)


class NLLLoss(_ClassLoss):
    """-x[n, targets[n]] of logarithms of probabilities x (N, C) or (N, C, d1, ...), of known shape, and class numbers
    (N, d1, ...); weight, ignore_index and mean as of CrossEntropyLoss."""

    def __init__(self, weight: Any = None, *, ignore_index: int = -100, reduction: str = "mean") -> None:
        """Raises GraphError."""
        super().__init__(weight, ignore_index, reduction)

    def forward(self, input: Node, target: Node) -> Node:
        self._require_targets(input, target, False)
        return F.nll_loss(input, target, self.weight, ignore_index=self.ignore_index, reduction=self.reduction)


class MSELoss(Loss):
    """(x - y)^2."""

    def forward(self, input: Node, target: Node) -> Node:
        self.require_same(input, target)
        return F.mse_loss(input, target, self.reduction)


class BCEWithLogitsLoss(Loss):
    """The binary cross-entropy of logits x with probabilities y, times `weight`; the part of y times `pos_weight`. Both
    are arrays that broadcast, kept as buffers."""

    def __init__(self, weight: Any = None, *, reduction: str = "mean", pos_weight: Any = None) -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input: Node, target: Node) -> Node:
        self.require_same(input, target)
        settings: dict[str, Any] = {"reduction": self.reduction, "pos_weight": self.pos_weight}
        return F.binary_cross_entropy_with_logits(input, target, self.weight, **settings)
