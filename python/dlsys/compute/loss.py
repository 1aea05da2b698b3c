"""Cross-entropy of logits, whose classes lie along axis 1, with class numbers, and its gradient.

Class numbers are compared with every class, not used as an index: rows run along vectors, and nothing outside is read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx

from . import elementary
from .base import constant, full, pointwise, shape_of
from .reduction import reduce_axes


def _is_ignored(targets: te.Tensor, index: Any, ignore_index: int) -> tirx.PrimExpr:
    limits = np.iinfo(str(targets.dtype))
    if not limits.min <= ignore_index <= limits.max:
        return tirx.const(False, "bool")
    return targets(*index) == tirx.const(ignore_index, str(targets.dtype))


def _is_class(targets: te.Tensor, index: Any, classes: int) -> tirx.PrimExpr:
    number, dtype = targets(*index), str(targets.dtype)
    first = number >= tirx.const(0, dtype)
    if classes > np.iinfo(dtype).max:
        return first
    return tirx.all(first, number < tirx.const(classes, dtype))


def _is_target(targets: te.Tensor, j: Any, *index: Any) -> tirx.PrimExpr:
    """Whether class j is the target, if that is a class: as 32 bits, of which a vector holds as many as of logits."""
    return j == tirx.Cast("int32", targets(*index))


def _exponential(x: te.Tensor) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    """As in `reduction`, so that a kernel of both computes it once."""
    largest = reduce_axes("row_max", x, (1,), True, te.max, -np.inf)
    exponential = pointwise("exponential", lambda v, m: elementary.exp(v - m), x, largest)
    return largest, exponential, reduce_axes("row_sum", exponential, (1,), True, te.sum, 0.0)


def cross_entropy(logits: te.Tensor, targets: te.Tensor, ignore_index: int = -100) -> te.Tensor:
    """-log_softmax(logits) at the class of each target; 0 where ignored, NaN for a number that is no class."""
    (batch, classes, *rest), dtype = shape_of(logits), str(logits.dtype)
    if 0 in (batch, classes, *rest):
        return full((batch, *rest), np.nan, dtype)
    largest, _, total = _exponential(logits)
    log_sum = pointwise("log_sum", elementary.log, total)
    zero, nan = constant(0, dtype), constant(np.nan, dtype)

    def term(n: Any, j: Any, *place: Any) -> tirx.PrimExpr:  # selected, since 0 * -inf is not 0
        return tirx.Select(_is_target(targets, j, n, *place), logits(n, j, *place) - largest(n, 0, *place), zero)

    sums = reduce_axes("row_loss", te.compute(shape_of(logits), term, name="terms"), (1,), False, te.sum, 0.0)

    def at(*index: Any) -> tirx.PrimExpr:
        value = log_sum(index[0], 0, *index[1:]) - sums(*index)
        loss = tirx.Select(_is_class(targets, index, classes), value, nan)
        return tirx.Select(_is_ignored(targets, index, ignore_index), zero, loss)

    return te.compute((batch, *rest), at, name="cross_entropy")


def cross_entropy_gradient(
    logits: te.Tensor, targets: te.Tensor, grad: te.Tensor, ignore_index: int = -100
) -> te.Tensor:
    """(softmax(logits) - y) grad, y being 1 at each target's class; 0 where ignored, NaN for a number that is no
    class."""
    shape, dtype = shape_of(logits), str(logits.dtype)
    if 0 in shape:
        return full(shape, 0.0, dtype)
    _, exponential, total = _exponential(logits)
    one, zero, nan = constant(1, dtype), constant(0, dtype), constant(np.nan, dtype)

    def at(n: Any, j: Any, *place: Any) -> tirx.PrimExpr:
        index, row = (n, j, *place), (n, *place)
        share = exponential(*index) / total(n, 0, *place)
        value = (share - tirx.Select(_is_target(targets, j, n, *place), one, zero)) * grad(*row)
        value = tirx.Select(_is_class(targets, row, shape[1]), value, nan)
        return tirx.Select(_is_ignored(targets, row, ignore_index), zero, value)

    return te.compute(shape, at, name="cross_entropy_gradient")
