"""Loss functions. Cross-entropy of class numbers: `cross_entropy`."""

from __future__ import annotations

from typing import ClassVar, cast

import numpy as np

from .. import compute
from ..checks import word
from ..errors import GraphError, ShapeError
from ..graph import Formula, Made, Node, Op, Shape, register, shape_error
from .activation import log_softmax_func, log_softmax_op, softmax_op
from .elementwise import div_op, mul_op, neg_op, sub_op
from .operators import pair
from .reduction import div_by_extent_op, mean_op, reducesum_op
from .replay import function
from .rules import require_same


def _softmax_cross_entropy(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    rows = int(np.prod(logits.shape[:-1], dtype=np.int64))
    total = np.sum(labels * log_softmax_func(logits), keepdims=True).reshape(1)
    return -total / logits.dtype.type(rows)


@register
class SoftmaxCrossEntropy(Op):
    """Shape (1,): the mean over the rows of -sum(labels * log_softmax(logits)); rows lie along the last axis.

    With b rows, d/dlogits = (softmax(logits) * rowsum(labels) - labels) g / b and
    d/dlabels = -log_softmax(logits) g / b.
    """

    name = "softmaxcrossentropy"
    flops = 0
    flops_of_input = 7
    kind = "rows"
    formula: ClassVar[Formula] = compute.softmax_cross_entropy
    reference: ClassVar[Formula] = _softmax_cross_entropy

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        if not require_same(node, *input_shapes):
            raise shape_error(node, "logits and labels must have an axis, not shape ()")
        return (1,)

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        logits, labels = node.inputs
        scale = div_by_extent_op(output_grad, logits, "rows")
        expected = mul_op(softmax_op(logits), reducesum_op(labels, -1, keepdims=True))
        grad_logits = mul_op(sub_op(expected, labels), scale)
        return [grad_logits, neg_op(mul_op(log_softmax_op(logits), scale))]


def softmaxcrossentropy_op(logits: Node, labels: Node) -> Made:
    """The mean softmax cross-entropy, shape (1,), of logits and labels of one shape."""
    return SoftmaxCrossEntropy.make([logits, labels])


def reduced(op: str, losses: Node, reduction: str, counts: Node | None = None) -> Made:
    """The losses, for "none", their "sum", or their "mean", which is the sum over that of `counts`, of which each is 1
    if there are none; shape (). Raises GraphError for any other `reduction`."""
    if word(op, "reduction", reduction, ("mean", "sum", "none")) == "none":
        return cast("Made", losses)
    if reduction == "sum":
        return reducesum_op(losses)
    return mean_op(losses) if counts is None else div_op(reducesum_op(losses), reducesum_op(counts))


def mse_loss_op(x: Node, y: Node, reduction: str = "mean") -> Made:
    """(x - y)^2 of one shape, of each element for "none", else their "mean" or "sum", shape (). Raises GraphError for
    any other `reduction`, ShapeError for two shapes, at the run where they are not known before."""
    difference = difference_of("mse_loss", x, y)
    return reduced("mse_loss", mul_op(difference, difference), reduction)


@function()
def difference_of(op: str, x: Node, y: Node) -> Made:
    """x - y of one shape. Raises GraphError and ShapeError as `mse_loss_op` does."""
    found = pair(x, y) if isinstance(x, Node) else None
    if found is None:
        raise GraphError(f"{op}: takes tensors and nodes, not {type(y if isinstance(x, Node) else x).__name__}")
    first, second = found
    if first.shape != second.shape and not (first.op.immediate or second.op.immediate):
        raise ShapeError(f"{op}: shapes differ: {first.name} {first.shape} and {second.name} {second.shape}")
    return sub_op(first, second)
