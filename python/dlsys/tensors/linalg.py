"""Norms and distances of vectors: `dl.linalg`, and `dl.cdist`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import GraphError
from ..ops import shape_of
from .arguments import node_of
from .reductions import Reductions
from .typing import ArrayLike, Axis

if TYPE_CHECKING:
    from .base import Tensor


def norm(A: ArrayLike, ord: float | None = None, dim: Axis = None, keepdim: bool = False) -> Tensor:
    """The norm of vectors along `dim`, or of all elements, see `Tensor.norm`; None is 2. Raises GraphError for the norm
    of a matrix, which another `ord` of two axes asks for."""
    axes = len(shape_of(node_of(A))) if dim is None else len(dim) if isinstance(dim, (tuple, list)) else 1
    if ord is not None and axes > 1:
        raise GraphError(f"linalg.norm: ord {ord!r} of {axes} axes is a matrix's: vector_norm takes any axes")
    return Reductions.norm(A, 2 if ord is None else ord, dim, keepdim)


def vector_norm(x: ArrayLike, ord: float = 2, dim: Axis = None, keepdim: bool = False) -> Tensor:
    """The norm of vectors along `dim`, or of all elements, see `Tensor.norm`."""
    return Reductions.norm(x, ord, dim, keepdim)


def cdist(x1: ArrayLike, x2: ArrayLike, p: float = 2.0) -> Tensor:
    """The distances (..., P, R) of each of the vectors (..., P, M) from each of (..., R, M): `norm` number p of their
    differences, which take P R M elements."""
    return (node_of(x1).unsqueeze(-2) - node_of(x2).unsqueeze(-3)).norm(p, -1)
