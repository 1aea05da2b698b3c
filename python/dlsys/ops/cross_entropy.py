"""Cross-entropy of logits with class numbers or probabilities.

logits are (N, C) or (N, C, d1, ...); targets class numbers (N, d1, ...) of an integer dtype, or probabilities of the
logits' shape and dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from .. import compute
from ..checks import integer, number
from ..errors import GraphError, ShapeError
from ..graph import FLOATS, INTEGERS, Formula, IndexRange, Made, Node, Op, Shape, register, shape_error
from .activation import log_softmax_func, log_softmax_op, softmax_func, softmax_op
from .elementwise import (
    add_op,
    cast_like_op,
    cast_op,
    mul_byconst_op,
    mul_op,
    neg_op,
    not_equal_op,
    oneslike_op,
    sub_op,
    where_op,
)
from .indexing import checked, take_op
from .loss import reduced
from .reduction import broadcast_axes_op, div_by_extent_op, reducesum_op
from .shape import reshape_op
from .types import known_dtype, known_shape, shape_of


class _CrossEntropy(Op):
    """An operator of logits and class numbers."""

    kind = "rows"
    apart: ClassVar[Mapping[int, tuple[str, ...]]] = {1: INTEGERS}
    takes: ClassVar[Sequence[str]] = ("ignore_index",)

    def _of_targets(self, node: Node, logits: Shape, targets: Shape) -> Shape:
        """The targets' shape. Raises ShapeError."""
        if len(logits) < 2:
            raise shape_error(node, f"logits must be (N, C) or (N, C, d1, ...), not {logits}")
        each = (logits[0], *logits[2:])
        if targets != each:
            told = f"targets {targets} are not class numbers {each}"
            more = "; variables of probabilities declare their dtype" if targets == logits else ""
            raise shape_error(node, told + more)
        return each

    def index_range(self, node: Node, input_shapes: Sequence[Shape]) -> IndexRange | None:
        logits = input_shapes[0]
        if len(logits) < 2:
            return None  # the operator says it
        return IndexRange(1, 0, logits[1], f"{logits[1]} classes", node.attrs["ignore_index"])


def _chosen(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """1 at each target's class, else 0; NaN for a number that is no class."""
    numbers, classes = np.expand_dims(targets, 1), logits.shape[1]
    index = np.arange(classes).reshape(-1, *(1,) * (logits.ndim - 2))
    nan = logits.dtype.type(np.nan)
    return np.asarray(np.where((numbers >= 0) & (numbers < classes), numbers == index, nan), logits.dtype)


def _losses(logits: np.ndarray, targets: np.ndarray, ignore_index: int) -> np.ndarray:
    """The loss of each sample by NumPy: -sum(chosen * log_softmax(logits)); 0 where the class is ignored, NaN without
    classes."""
    chosen = _chosen(logits, targets)
    terms = chosen * log_softmax_func(logits, 1)
    terms[chosen == 0] = 0
    losses = -terms.sum(axis=1)
    if not logits.shape[1]:
        losses[...] = np.nan
    return np.where(targets == ignore_index, losses.dtype.type(0), losses)


def _loss_gradient(logits: np.ndarray, targets: np.ndarray, g: np.ndarray, ignore_index: int) -> np.ndarray:
    grad = (softmax_func(logits, 1) - _chosen(logits, targets)) * np.expand_dims(g, 1)
    return np.where(np.expand_dims(targets == ignore_index, 1), grad.dtype.type(0), grad)


@register
class CrossEntropy(_CrossEntropy):
    """-log_softmax(logits) at each target's class; 0 for a number that is ignored, NaN for one that is no class."""

    name = "cross_entropy"
    formula: ClassVar[Formula] = compute.cross_entropy
    reference: ClassVar[Formula] = _losses

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return self._of_targets(node, *input_shapes)

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [CrossEntropyGradient.make([*node.inputs, output_grad], node.attrs), None]


@register
class CrossEntropyGradient(_CrossEntropy):
    """(softmax(logits) - y) g of the logits' shape, y being 1 at each target's class, else 0; 0 for what is ignored.

    With s = softmax(logits) and v the gradient of the result: dlogits = s (v - sum(s v)) g, dg = sum(v (s - y)).
    """

    name = "cross_entropy_gradient"
    formula: ClassVar[Formula] = compute.cross_entropy_gradient
    reference: ClassVar[Formula] = _loss_gradient

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        each = self._of_targets(node, *input_shapes[:2])
        if input_shapes[2] != each:
            raise shape_error(node, f"targets {each} have no gradient of shape {input_shapes[2]}")
        return input_shapes[0]

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        (logits, targets, g), v = node.inputs, output_grad
        share = softmax_op(logits, 1)
        mean = reducesum_op(mul_op(share, v), 1, keepdims=True)
        counted = cast_like_op(_counts(targets, node.attrs["ignore_index"]), g)
        amount = broadcast_axes_op(mul_op(g, counted), logits, 1)
        once = CrossEntropyGradient.make([logits, targets, oneslike_op(g)], node.attrs)
        return [mul_op(mul_op(share, sub_op(v, mean)), amount), None, reducesum_op(mul_op(v, once), 1)]


def _counts(targets: Node, ignore_index: int) -> Made:
    """Whether each class number counts, and is not ignored."""
    return not_equal_op(cast_op(targets, "int64"), ignore_index)


def _are_probabilities(logits: Node, targets: Node) -> bool:
    """Whether targets are probabilities, as far as their dtype or shape is known."""
    dtype, shape = known_dtype(targets), known_shape(targets)
    return dtype in FLOATS if dtype is not None else shape is not None and shape == known_shape(logits)


def cross_entropy_op(
    logits: Node,
    targets: Node,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    weight: Node | None = None,
) -> Made:
    """The cross-entropy of logits (N, C) or (N, C, d1, ...) with targets: class numbers (N, d1, ...) of an integer
    dtype, or probabilities of the logits' shape and dtype; variables of probabilities declare their dtype.

    Class numbers equal to `ignore_index` count nothing; any other number that is no class is an IndexRangeError where
    its value is known, here or at the run, and makes the loss NaN where a run computes it.
    `label_smoothing` s takes (1 - s) y + s / C for the probabilities y, one-hot for a class number. `reduction` "none"
    leaves (N, d1, ...), "sum" adds up, "mean" divides that by the targets that are not ignored, giving shape (); NaN if
    there are none. `weight`, (C,), is what a class counts, in the sum and in the mean's divisor, which of probabilities
    is the number of targets; the logits' shape must be known then. Raises GraphError for other arguments.
    """
    ignored = integer("cross_entropy", "ignore_index", ignore_index)
    smoothing = number("cross_entropy", "label_smoothing", label_smoothing, most=1)
    by_class = None if weight is None else _of_classes(weight, logits)
    counts = None
    if _are_probabilities(logits, targets):
        losses = _of_probabilities(logits, targets if by_class is None else mul_op(targets, by_class))
    else:
        losses, counts = class_losses("cross_entropy", logits, targets, ignored, weight)
    if smoothing:
        logs = log_softmax_op(logits, 1)
        logs = logs if by_class is None else mul_op(logs, by_class)
        even = neg_op(div_by_extent_op(reducesum_op(logs, 1), logits, 1))
        if counts is not None:
            even = where_op(_counts(targets, ignored), even, 0.0)
        losses = add_op(mul_byconst_op(losses, 1 - smoothing), mul_byconst_op(even, smoothing))
    return reduced("cross_entropy", losses, reduction, counts)


def class_losses(
    op: str, logits: Node, targets: Node, ignored: int, weight: Node | None
) -> tuple[Made, Made]:
    """The cross-entropy with each class number, times its class's weight, and what each counts in a mean. Raises
    ShapeError for a weight that is not (C,)."""
    losses = checked(CrossEntropy.make([logits, targets], {"ignore_index": ignored, "axes": (1,)}))
    counts = cast_like_op(_counts(targets, ignored), losses)
    if weight is None:
        return losses, counts
    shape, given = known_shape(logits), known_shape(weight)
    if shape is not None and given not in (None, shape[1:2]):
        raise ShapeError(f"{op}: weight {given} of {weight.name} is not of the {shape[1:2]} classes")
    classes = where_op(_counts(targets, ignored), targets, 0)
    counts = mul_op(counts, take_op(weight, classes))
    return mul_op(losses, counts), counts


def _of_classes(weight: Node, logits: Node) -> Made:
    """(C,) as (C, 1, ...), beside logits (N, C, d1, ...)."""
    return reshape_op(weight, (-1, *(1,) * (len(shape_of(logits)) - 2)))


def _of_probabilities(logits: Node, targets: Node) -> Made:
    """-sum_j y_j log_softmax(logits)_j of each target."""
    shape, given = known_shape(logits), known_shape(targets)
    if shape is not None and given is not None and (given != shape or len(shape) < 2):
        each = (shape[0], *shape[2:]) if len(shape) > 1 else shape
        told = f"are neither class numbers {each} nor probabilities {shape}"
        raise GraphError(f"cross_entropy: targets {given} of {targets.name} {told}")
    return neg_op(reducesum_op(mul_op(targets, log_softmax_op(logits, 1)), 1))
