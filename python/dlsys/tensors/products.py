"""Products of matrices and of tensors in general, by PyTorch's names."""

from __future__ import annotations

from typing import Any

from .. import ops
from ..errors import ShapeError
from ..graph import Node
from ..ops import shape_of
from .functions import node_of


def _product(op: str, rank: int, a: Any, b: Any) -> Node:
    first, second = node_of(a), node_of(b)
    for node in (first, second):
        if len(shape_of(node)) != rank:
            raise ShapeError(
                f"{op}: takes tensors of {rank} axes, not of shape {shape_of(node)} [{node.name}]"
            )
    return ops.matmul_op(first, second)


def mm(a: Any, b: Any) -> Node:
    """The product of two matrices. Raises ShapeError for others."""
    return _product("mm", 2, a, b)


def bmm(a: Any, b: Any) -> Node:
    """The products of two batches of matrices. Raises ShapeError for others."""
    return _product("bmm", 3, a, b)
