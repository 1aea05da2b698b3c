"""Rows of a table by their numbers, and numbers as rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import autodiff as ad
from ...checks import integer
from ...errors import DTypeError
from ...graph import INTEGERS, Node
from ...tensors import Tensor, known_dtype, no_grad
from ..checks import require_nodes, shape_of


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


def one_hot(indices: Node, num_classes: int = -1, dtype: Any = "int64") -> Tensor:
    """Ones at the indices along a new last axis of extent `num_classes`, zeros elsewhere; -1: one more than the largest
    of the indices, which must hold data then."""
    require_nodes("one_hot", indices)
    if isinstance(num_classes, int) and num_classes == -1:
        if known_dtype(indices) not in (None, *INTEGERS):
            raise DTypeError(f"one_hot: {indices.name} must be of integers, not {known_dtype(indices)}")
        num_classes = int(np.asarray(indices).astype(np.int64).max(initial=-1)) + 1
    return ad.one_hot_op(indices, num_classes, dtype)
