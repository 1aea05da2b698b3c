"""Norms and distances of vectors: `dl.linalg`, and `dl.cdist`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import GraphError
from .arguments import node_of
from .reductions import norm as norm_of
from .table import function
from .typing import ArrayLike, Axis

if TYPE_CHECKING:
    from .base import Tensor


@function(method=False)
def norm(A: Tensor, ord: float | None = None, dim: Axis = None, keepdim: bool = False) -> Tensor:
    """The norm of vectors along `dim`, or of all elements, see `Tensor.norm`; None is 2. Raises GraphError for the norm
    of a matrix, which another `ord` of two axes asks for."""
    axes = len(A.shape) if dim is None else len(dim) if isinstance(dim, (tuple, list)) else 1
    if ord is not None and axes > 1:
        raise GraphError(f"linalg.norm: ord {ord!r} of {axes} axes is a matrix's: vector_norm takes any axes")
    return norm_of(A, 2 if ord is None else ord, dim, keepdim)


@function(method=False)
def vector_norm(x: Tensor, ord: float = 2, dim: Axis = None, keepdim: bool = False) -> Tensor:
    """The norm of vectors along `dim`, or of all elements, see `Tensor.norm`."""
    return norm_of(x, ord, dim, keepdim)


@function(method=False)
def cdist(x1: Tensor, x2: ArrayLike, p: float = 2.0) -> Tensor:
    """The distances (..., P, R) of each of the vectors (..., P, M) from each of (..., R, M): `norm` number p of their
    differences, which take P R M elements."""
    return (x1.unsqueeze(-2) - node_of(x2).unsqueeze(-3)).norm(p, -1)
