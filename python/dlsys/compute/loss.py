"""Losses. Cross-entropy of logits, whose classes lie along axis 1, with class numbers or probabilities, and its
gradient.

Class numbers are compared with every class, not used as an index: rows run along vectors, and nothing outside is read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx

from . import elementary
from .base import constant, full, pointwise, shape_of
from .reduction import reduce_axes


def _has_numbers(logits: te.Tensor, targets: te.Tensor) -> bool:
    """Whether targets are class numbers, which lack the axis of the classes."""
    return len(targets.shape) < len(logits.shape)


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


def _weight(logits: te.Tensor, targets: te.Tensor, smoothing: float, index: Any) -> tirx.PrimExpr:
    """The weight of a class in its target, at an index of the logits."""
    classes, dtype = shape_of(logits)[1], logits.dtype
    if not _has_numbers(logits, targets):
        value = targets(*index)
        if smoothing == 0:
            return value
        return value * constant(1 - smoothing, dtype) + constant(smoothing / classes, dtype)
    n, j, *rest = index
    low, high = constant(smoothing / classes, dtype), constant(1 - smoothing + smoothing / classes, dtype)
    return tirx.Select(_is_target(targets, j, n, *rest), high, low)


def _exponential(x: te.Tensor) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    """As in `reduction`, so that a kernel of both computes it once."""
    largest = reduce_axes("row_max", x, (1,), True, te.max, -np.inf)
    exponential = pointwise("exponential", lambda v, m: elementary.exp(v - m), x, largest)
    return largest, exponential, reduce_axes("row_sum", exponential, (1,), True, te.sum, 0.0)


def cross_entropy(
    logits: te.Tensor, targets: te.Tensor, ignore_index: int = -100, smoothing: float = 0.0
) -> te.Tensor:
    """-sum_j w_j log_softmax(logits)_j for each target, w = (1 - smoothing) y + smoothing / classes of the class
    numbers or probabilities y; 0 where ignored, NaN for a number that is no class."""
    (batch, classes, *rest), dtype = shape_of(logits), str(logits.dtype)
    if 0 in (batch, classes, *rest):
        return full((batch, *rest), np.nan if _has_numbers(logits, targets) else 0.0, dtype)
    largest, _, total = _exponential(logits)
    log_sum = pointwise("log_sum", elementary.log, total)
    numbers, zero, nan = _has_numbers(logits, targets), constant(0, dtype), constant(np.nan, dtype)
    one_term = numbers and smoothing == 0  # weights of zero are no factors: 0 * -inf is not 0

    def term(n: Any, j: Any, *place: Any) -> tirx.PrimExpr:
        row = (n, 0, *place)
        value = logits(n, j, *place) - largest(*row)
        if one_term:
            return tirx.Select(_is_target(targets, j, n, *place), value, zero)
        return _weight(logits, targets, smoothing, (n, j, *place)) * (value - log_sum(*row))

    terms = te.compute(shape_of(logits), term, name="terms")
    sums = reduce_axes("row_loss", terms, (1,), False, te.sum, 0.0)

    def at(*index: Any) -> tirx.PrimExpr:
        if not numbers:
            return -sums(*index)
        value = sums(*index) - log_sum(index[0], 0, *index[1:]) if one_term else sums(*index)
        loss = tirx.Select(_is_class(targets, index, classes), -value, nan)
        return tirx.Select(_is_ignored(targets, index, ignore_index), zero, loss)

    return te.compute((batch, *rest), at, name="cross_entropy")


def cross_entropy_gradient(
    logits: te.Tensor, targets: te.Tensor, grad: te.Tensor, ignore_index: int = -100, smoothing: float = 0.0
) -> te.Tensor:
    """(softmax(logits) sum(w) - w) grad; 0 where ignored, NaN for a number that is no class."""
    shape, dtype = shape_of(logits), str(logits.dtype)
    if 0 in shape:
        return full(shape, 0.0, dtype)
    _, exponential, total = _exponential(logits)
    numbers, zero, nan = _has_numbers(logits, targets), constant(0, dtype), constant(np.nan, dtype)
    amounts = None if numbers else cross_entropy_total(targets, logits, ignore_index, smoothing)

    def at(n: Any, j: Any, *place: Any) -> tirx.PrimExpr:
        index, row = (n, j, *place), (n, *place)
        share = exponential(*index) / total(n, 0, *place)
        expected = share if amounts is None else share * amounts(*row)
        value = (expected - _weight(logits, targets, smoothing, index)) * grad(*row)
        if not numbers:
            return value
        value = tirx.Select(_is_class(targets, row, shape[1]), value, nan)
        return tirx.Select(_is_ignored(targets, row, ignore_index), zero, value)

    return te.compute(shape, at, name="cross_entropy_gradient")


def cross_entropy_total(
    targets: te.Tensor, logits: te.Tensor, ignore_index: int = -100, smoothing: float = 0.0
) -> te.Tensor:
    """sum(w) of each target: of a class number 1, 0 where ignored."""
    (batch, classes, *rest), dtype = shape_of(logits), str(logits.dtype)
    one, zero = constant(1, dtype), constant(0, dtype)
    if _has_numbers(logits, targets):
        ignored = lambda *index: _is_ignored(targets, index, ignore_index)  # noqa: E731
        return te.compute((batch, *rest), lambda *i: tirx.Select(ignored(*i), zero, one), name="total")
    if 0 in (batch, classes, *rest):
        return full((batch, *rest), 0.0, dtype)
    weights = te.compute(
        shape_of(logits), lambda *index: _weight(logits, targets, smoothing, index), name="weights"
    )
    return reduce_axes("total", weights, (1,), False, te.sum, 0.0)


def cross_entropy_count(targets: te.Tensor, logits: te.Tensor, ignore_index: int = -100) -> te.Tensor:
    """Shape (): how many targets there are, without those ignored."""
    (batch, _, *rest), dtype = shape_of(logits), str(logits.dtype)
    if not _has_numbers(logits, targets):
        return full((), int(np.prod((batch, *rest))), dtype)
    return reduce_axes(
        "count", cross_entropy_total(targets, logits, ignore_index), range(1 + len(rest)), False, te.sum, 0.0
    )


def binary_cross_entropy(y: te.Tensor, log_x: te.Tensor, log_rest: te.Tensor) -> te.Tensor:
    """-(y max(log_x, -100) + (1 - y) max(log_rest, -100)); a NaN stays."""
    one, least = constant(1, y.dtype), constant(-100, y.dtype)

    def at_least(value: tirx.PrimExpr) -> tirx.PrimExpr:
        return tirx.Select(value < least, least, value)

    return pointwise(
        "binary_cross_entropy", lambda v, a, b: (v - one) * at_least(b) - v * at_least(a), y, log_x, log_rest
    )
