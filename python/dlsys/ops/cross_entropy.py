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
from .elementwise import cast_op, equal_op, maximum_op, where_op
from .indexing import checked, take_op
from .loss import log_softmax_op, reduced, softmax_op
from .moves import expand_dims_op, reshape_op, squeeze_op
from .primitive import primitive
from .reduction import mean_op, reducesum
from .replay import function
from .state import leaf, with_gradient


def _classes(node: Node, shapes: object) -> IndexRange:
    """Which numbers are classes; one more is ignored."""
    count = node.attrs["classes"]
    return IndexRange(0, 0, count, f"{count} classes", node.attrs["ignore_index"])


def _counts(x: np.ndarray, classes: int, ignore_index: int, dtype: str) -> np.ndarray:
    return np.where(x == ignore_index, 0.0, np.where((x >= 0) & (x < classes), 1.0, np.nan)).astype(dtype)


class_counts = primitive(
    "class_counts", numpy=_counts, te=compute.class_counts, grad=None, dtypes=INTEGERS, dtype="dtype",
    index_range=_classes, doc="1 of a class number, 0 of one that is ignored, NaN of any other.",
)  # fmt: skip


@functools.lru_cache(maxsize=64)
def _every_class(classes: int, rank: int) -> Node:
    """0, 1, 2, ... along axis 1. One leaf serves all graphs, and so decides for none where it is computed."""
    return leaf(np.arange(classes, dtype=np.int32).reshape(1, -1, *(1,) * (rank - 2)), "classes", roams=True)


def _is_target(logits: Node, numbers: Node) -> Node:
    return equal_op(numbers, _every_class(logits.shape[1], len(logits.shape)))


def _of_losses(g: Node, y: Node, logits: Node, numbers: Node, counts: Node) -> tuple[Node | None, ...]:
    """(softmax(logits) - y) g, y being 1 at the target's class, else 0."""
    share = softmax_op(logits, 1)
    return where_op(_is_target(logits, numbers), share - 1.0, share) * (g * counts), None, None


def _counted(logits: Node, targets: Node, ignored: int) -> Made:
    """What each class number counts, with an axis of extent 1 for the classes. Raises IndexRangeError for one that is
    no class and whose value is known."""
    attrs = {"classes": logits.shape[1], "ignore_index": ignored, "dtype": logits.dtype}
    return expand_dims_op(checked(class_counts(targets, **attrs)), 1)


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
    counts = _counted(logits, targets, ignored)
    numbers = where_op(equal_op(counts, 1.0), cast_op(expand_dims_op(targets, 1), "int32"), -1)
    logs = where_op(_is_target(logits, numbers), log_softmax_op(logits, 1), 0.0)
    losses = -reducesum(logs, axes=(1,), keepdims=True) * counts
    losses = with_gradient(losses, [logits, numbers, counts], _of_losses)
    if weight is None:
        return losses, counts
    if weight.shape != shape[1:2]:
        raise ShapeError(f"{op}: weight {weight.shape} of {weight.name} is not of the {shape[1:2]} classes")
    counts = counts * take_op(weight, maximum_op(numbers, 0))
    return losses * counts, counts


def without_classes(losses: Node) -> Made:
    """The losses without the axis of extent 1 in the classes' place."""
    return squeeze_op(losses, 1)


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
        losses = -reducesum(terms * log_softmax_op(logits, 1), axes=(1,), keepdims=True)
    else:
        losses, counts = class_losses("cross_entropy", logits, targets, ignored, weight)
    if smoothing:
        logs = log_softmax_op(logits, 1)
        even = -mean_op(logs if by_class is None else logs * by_class, 1, keepdims=True)
        if counts is not None:
            even = even * _counted(logits, targets, ignored)
        losses = losses * (1 - smoothing) + even * smoothing
    return reduced("cross_entropy", without_classes(losses) if reduction == "none" else losses, reduction, counts)


def _require_probabilities(logits: Node, targets: Node) -> None:
    shape: Shape = logits.shape
    if targets.shape != shape or len(shape) < 2:
        each = (shape[0], *shape[2:]) if len(shape) > 1 else shape
        kinds = f"neither class numbers {each} nor probabilities {shape}"
        raise GraphError(f"cross_entropy: targets {targets.shape} of {targets.name} are {kinds}")
