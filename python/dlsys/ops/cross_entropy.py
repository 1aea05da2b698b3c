"""Cross-entropy of logits with class numbers or probabilities.

logits are (N, C) or (N, C, d1, ...); targets class numbers (N, d1, ...) of an integer dtype, or probabilities of the
logits' shape and dtype.
"""

from __future__ import annotations

import functools

import numpy as np

from .. import compute
from ..checks import integer, number
from ..errors import GraphError, ShapeError
from ..graph import FLOATS, INTEGERS, IndexRange, Made, Node, Shape
from .elementwise import cast_op, equal_op, greater_equal_op, less_op, logical_and_op, not_equal_op, where_op
from .indexing import checked, take_op
from .loss import reduced
from .primitive import primitive
from .reduction import mean_op, reducesum_op
from .replay import function
from .shape import reshape_op
from .softmax import log_softmax_op, softmax_op
from .state import leaf, with_gradient


def _classes(node: Node, shapes: object) -> IndexRange:
    """Which numbers are classes; one more is ignored."""
    count = node.attrs["classes"]
    return IndexRange(0, 0, count, f"{count} classes", node.attrs["ignore_index"])


class_numbers = primitive(
    "class_numbers", numpy=lambda x, classes, ignore_index: x, te=lambda x, classes, ignore_index: compute.copy(x),
    dtypes=INTEGERS, index_range=_classes, flops=0,
    doc="The numbers, of which a run says where one that it is fed is no class.",
)  # fmt: skip


@functools.lru_cache(maxsize=64)
def _numbers(classes: int, rank: int) -> Node:
    """0, 1, 2, ... along axis 1. One leaf serves all graphs, and so decides for none where it is computed."""
    found = leaf(np.arange(classes, dtype=np.int32).reshape(1, -1, *(1,) * (rank - 2)), "classes")
    found.cell.roams = True
    return found


def _is_target(logits: Node, targets: Node, inside: Node) -> Node:
    """Whether a class is the target; none is of a number that is no class."""
    chosen = cast_op(where_op(inside, targets, -1), "int32")  # of which a vector holds as many as of logits
    return equal_op(chosen, _numbers(logits.shape[1], len(logits.shape)))


def _inside(logits: Node, targets: Node) -> Node:
    """Whether a number is a class."""
    return logical_and_op(greater_equal_op(targets, 0), less_op(targets, logits.shape[1]))


def _of_losses(g: Node, y: Node, logits: Node, targets: Node, ignored: int) -> tuple[Node, None]:
    """(softmax(logits) - y) g, y being 1 at the target's class, else 0."""
    inside, share = _inside(logits, targets), softmax_op(logits, 1)
    grad = where_op(_is_target(logits, targets, inside), share - 1.0, share) * where_op(inside, g, float("nan"))
    return where_op(not_equal_op(targets, ignored), grad, 0.0), None


def class_losses(op: str, logits: Node, targets: Node, ignored: int, weight: Node | None) -> tuple[Made, Made]:
    """The cross-entropy with each class number, times its class's weight, and what each counts in a mean; both have the
    logits' axes, axis 1 with extent 1. 0 for a number that is ignored, NaN for one that is no class.

    Raises ShapeError for targets that are not (N, d1, ...), and for a weight that is not (C,), IndexRangeError for a
    number that is no class and whose value is known.
    """
    shape = logits.shape
    if len(shape) < 2:
        raise ShapeError(f"{op}: logits must be (N, C) or (N, C, d1, ...), not {shape}")
    if targets.shape != (shape[0], *shape[2:]):
        raise ShapeError(f"{op}: targets {targets.shape} are not class numbers {(shape[0], *shape[2:])}")
    checked(class_numbers(targets, classes=shape[1], ignore_index=ignored))
    column = reshape_op(targets, (shape[0], 1, *shape[2:]))
    column.name = targets.name  # for the errors of a run
    numbers = cast_op(class_numbers(column, classes=shape[1], ignore_index=ignored), "int64")
    inside, counted = _inside(logits, numbers), not_equal_op(numbers, ignored)
    logs = where_op(_is_target(logits, numbers, inside), log_softmax_op(logits, 1), 0.0)
    losses = where_op(inside, -reducesum_op(logs, 1, keepdims=True), float("nan"))
    losses = with_gradient(where_op(counted, losses, 0.0), [logits, numbers], _of_losses, ignored=ignored)
    counts = cast_op(counted, logits.dtype)
    if weight is None:
        return losses, counts
    if weight.shape != shape[1:2]:
        raise ShapeError(f"{op}: weight {weight.shape} of {weight.name} is not of the {shape[1:2]} classes")
    counts = counts * take_op(weight, where_op(counted, numbers, 0))
    return losses * counts, counts


def without_classes(losses: Node) -> Node:
    """The losses without the axis of extent 1 in the classes' place."""
    return reshape_op(losses, (losses.shape[0], *losses.shape[2:]))


@function()
def cross_entropy_op(
    logits: Node,
    targets: Node,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    weight: Node | None = None,
) -> Made:
    """The cross-entropy of logits (N, C) or (N, C, d1, ...) with targets: class numbers (N, d1, ...) of an integer
    dtype, or probabilities of the logits' shape and dtype.

    Class numbers equal to `ignore_index` count nothing; any other number that is no class is an IndexRangeError where
    its value is known, here or at the run, and makes the loss NaN where a run computes it.
    `label_smoothing` s takes (1 - s) y + s / C for the probabilities y, one-hot for a class number. `reduction` "none"
    leaves (N, d1, ...), "sum" adds up, "mean" divides that by the targets that are not ignored, giving shape (); NaN if
    there are none. `weight`, (C,), is what a class counts, in the sum and in the mean's divisor, which of probabilities
    is the number of targets. Raises GraphError and ShapeError for other arguments.
    """
    ignored = integer("cross_entropy", "ignore_index", ignore_index)
    smoothing = number("cross_entropy", "label_smoothing", label_smoothing, most=1)
    by_class = None if weight is None else reshape_op(weight, (-1, *(1,) * (len(logits.shape) - 2)))
    counts = None
    if targets.dtype in FLOATS:
        _require_probabilities(logits, targets)
        terms = targets if by_class is None else targets * by_class
        losses = -reducesum_op(terms * log_softmax_op(logits, 1), 1, keepdims=True)
    else:
        losses, counts = class_losses("cross_entropy", logits, targets, ignored, weight)
    if smoothing:
        logs = log_softmax_op(logits, 1)
        even = -mean_op(logs if by_class is None else logs * by_class, 1, keepdims=True)
        if counts is not None:
            even = where_op(not_equal_op(reshape_op(cast_op(targets, "int64"), even.shape), ignored), even, 0.0)
        losses = losses * (1 - smoothing) + even * smoothing
    return reduced("cross_entropy", without_classes(losses) if reduction == "none" else losses, reduction, counts)


def _require_probabilities(logits: Node, targets: Node) -> None:
    shape: Shape = logits.shape
    if targets.shape != shape or len(shape) < 2:
        each = (shape[0], *shape[2:]) if len(shape) > 1 else shape
        told = f"are neither class numbers {each} nor probabilities {shape}"
        raise GraphError(f"cross_entropy: targets {targets.shape} of {targets.name} {told}")
