"""Rows of a table by their numbers, and numbers as rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import autodiff as ad
from ...autodiff import Node
from ...checks import integer, word
from ...errors import DTypeError, GraphError, ShapeError
from ...graph import INTEGERS
from ...tensors import Tensor, known_dtype, no_grad, tensor
from ..checks import require_nodes, shape_of
from .resizing import pad


def embedding(input: Node, weight: Node, padding_idx: int | None = None) -> Tensor:
    """The rows of `weight`, (entries, width), with the numbers `input`: (*input.shape, width); the row `padding_idx`,
    from the end where it is negative, gets no gradient."""
    if known_dtype(input) not in (None, *INTEGERS):
        raise DTypeError(f"embedding: {input.name} must be of integers, not {known_dtype(input)}: use .long()")
    rows = ad.embedding_op(weight, input)
    if padding_idx is None:
        return rows
    padding_idx = integer("embedding", "padding_idx", padding_idx)
    if padding_idx < 0:
        padding_idx += shape_of("embedding", weight)[0]
    with no_grad():
        row = weight[padding_idx]
    return ad.where_op(ad.expand_dims_op(ad.equal_op(input, padding_idx), -1), row, rows)


def embedding_bag(
    input: Node,
    weight: Node,
    offsets: Node | None = None,
    *,
    mode: str = "mean",
    per_sample_weights: Node | None = None,
) -> Tensor:
    """The mean, sum or maximum of the rows of `weight`, (entries, width), with the numbers of each bag: (bags, width).

    Args:
        input: the numbers, (bags, length); or (numbers,) with the `offsets` (bags,), where in it each bag begins, of
            "mean" and "sum"; a bag of none is zeros.
        per_sample_weights: by which rows are multiplied, of the input's shape, for "sum".

    Raises GraphError, and ShapeError where the input's shape is not known.
    """
    word("embedding_bag", "mode", mode, ("mean", "sum", "max"))
    require_nodes("embedding_bag", input, weight, offsets, per_sample_weights)
    if per_sample_weights is not None and mode != "sum":
        raise GraphError(f'embedding_bag: per_sample_weights are for the mode "sum", not {mode!r}')
    shape, rows = shape_of("embedding_bag", input), embedding(input, weight)
    if len(shape) != (2 if offsets is None else 1):
        told = "numbers (bags, length), or (numbers,) with offsets"
        raise ShapeError(f"embedding_bag: takes {told}, not {shape} [{input.name}]")
    if per_sample_weights is not None:
        rows = rows * ad.expand_dims_op(per_sample_weights, -1)
    if offsets is None:
        return {"mean": ad.mean_op, "sum": ad.reducesum_op, "max": ad.max_op}[mode](rows, 1)
    if mode == "max":
        raise GraphError('embedding_bag: mode "max" takes numbers (bags, length), without offsets')
    begun = ad.expand_dims_op(tensor(np.arange(shape[0])), 0) >= ad.cast_op(ad.expand_dims_op(offsets, 1), "int64")
    inside = ad.cast_like_op(begun, rows)  # (bags, numbers): 1 from the bag's offset on
    bags = inside - pad(inside, (0, 0, 0, 1))[1:]
    sums = ad.matmul_op(bags, rows)
    counts = ad.maximum_op(ad.reducesum_op(bags, 1, keepdims=True), 1.0)
    return sums if mode == "sum" else sums / counts


def one_hot(indices: Node, num_classes: int = -1, dtype: Any = "int64") -> Tensor:
    """Ones at the indices along a new last axis of extent `num_classes`, zeros elsewhere; -1: one more than the largest
    of the indices, which must hold data then."""
    require_nodes("one_hot", indices)
    if isinstance(num_classes, int) and num_classes == -1:
        if known_dtype(indices) not in (None, *INTEGERS):
            raise DTypeError(f"one_hot: {indices.name} must be of integers, not {known_dtype(indices)}")
        num_classes = int(np.asarray(indices).max(initial=-1)) + 1
    return ad.one_hot_op(indices, num_classes, dtype)
