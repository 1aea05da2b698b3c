"""Loss functions as modules. `reduction` is "mean" or "sum", shape (), or "none", a value of each element or target."""

from __future__ import annotations

from ..autodiff import Node
from ..checks import number
from ..errors import GraphError, ShapeError
from . import functional as F
from .checks import known_shape
from .module import Module


class _Loss(Module):
    """Base of the losses: the reduction, and the check of two shapes."""

    def __init__(self, reduction: str = "mean") -> None:
        """Raises GraphError for another reduction."""
        if reduction not in ("mean", "sum", "none"):
            owner = type(self).__name__
            raise GraphError(f"{owner}: reduction must be 'mean', 'sum' or 'none', not {reduction!r}")
        self.reduction = reduction

    def require_beside(self, fits: bool, x: Node, y: Node) -> None:
        """Raise a ShapeError that names both shapes where they do not fit."""
        try:
            self.require(fits, x)
        except ShapeError as error:
            raise ShapeError(f"{error}, beside {known_shape(y)} [{y.name}]") from None


class CrossEntropyLoss(_Loss):
    """The cross-entropy of logits (N, C), (N, C, d1, ...), (C,) with targets: class numbers (N, d1, ...) of an integer
    dtype, or probabilities of the logits' shape. Numbers equal to `ignore_index` count nothing, the mean is over the
    others."""

    def __init__(self, *, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0) -> None:
        """Raises GraphError."""
        super().__init__(reduction)
        if type(ignore_index) is not int:
            raise GraphError(f"CrossEntropyLoss: ignore_index must be an integer, not {ignore_index!r}")
        self.ignore_index = ignore_index
        self.label_smoothing = number("CrossEntropyLoss", "label_smoothing", label_smoothing, most=1)

    def forward(self, input: Node, target: Node) -> Node:
        shape, other = known_shape(input), known_shape(target)
        if shape is not None:
            each = (*shape[:1], *shape[2:]) if len(shape) > 1 else ()
            self.require_beside(len(shape) > 0 and other in (None, each, shape), input, target)
        settings = {"ignore_index": self.ignore_index, "label_smoothing": self.label_smoothing}
        return F.cross_entropy(input, target, reduction=self.reduction, **settings)  # type: ignore[arg-type]


class MSELoss(_Loss):
    """(x - y)^2."""

    def forward(self, input: Node, target: Node) -> Node:
        mine, other = known_shape(input), known_shape(target)
        self.require_beside(mine is None or other is None or mine == other, input, target)
        return F.mse_loss(input, target, self.reduction)
