"""Triangles of matrices, by PyTorch's names."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import ops
from ..errors import ShapeError
from ..graph import Node
from ..ops import known_shape
from .functions import node_of
from .leaves import leaf


def _triangle(op: str, x: Any, diagonal: int, lower: bool) -> Node:
    node = node_of(x)
    shape = known_shape(node)
    if shape is None or len(shape) < 2:
        raise ShapeError(f"{op}: takes matrices, of a shape that is known, not {shape} [{node.name}]")
    kept = np.tri(shape[-2], shape[-1], k=diagonal if lower else diagonal - 1, dtype=bool)
    return ops.where_op(leaf(kept if lower else ~kept), node, ops.zeroslike_op(node))


def tril(x: Any, diagonal: int = 0) -> Node:
    """Matrices without what lies above the diagonal number `diagonal`. Raises ShapeError for what are no matrices."""
    return _triangle("tril", x, diagonal, True)


def triu(x: Any, diagonal: int = 0) -> Node:
    """Matrices without what lies below the diagonal number `diagonal`. Raises ShapeError for what are no matrices."""
    return _triangle("triu", x, diagonal, False)
