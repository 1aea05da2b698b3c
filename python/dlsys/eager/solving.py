"""Inverses, determinants and Cholesky factors of matrices, as `torch.linalg`: part of `dl.linalg`.

What NumPy decomposes needs the values and computes them at once, as sorting does; the gradients are made of operators
and can be differentiated again. Axes before the last two are of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import GraphError, ShapeError
from ..ops import dtype_of, shape_of
from ..ops.function import function_op
from .creation import leaf
from .functions import node_of, require_float
from .running import array_of


class SignAndLog(NamedTuple):
    """What `slogdet` returns."""

    sign: Node
    logabsdet: Node


def _matrices(name: str, A: Any) -> Node:
    """Square matrices of floats. Raises ShapeError, DTypeError."""
    node = require_float(name, node_of(A))
    shape = shape_of(node)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ShapeError(f"{name}: takes square matrices (..., n, n), not {shape}")
    return node


def _computed(name: str, function: Callable[..., Any], *nodes: Node) -> Any:
    """The function of values, in the dtype of the first. Raises GraphError where NumPy finds no result."""
    try:
        found = function(*(array_of(node).numpy() for node in nodes))
    except np.linalg.LinAlgError as error:
        raise GraphError(f"{name}: {str(error).lower()} (of {nodes[0].name}, shape {shape_of(nodes[0])})") from None
    dtype = dtype_of(nodes[0])
    parts = [leaf(np.ascontiguousarray(part, dtype)) for part in (found if isinstance(found, tuple) else (found,))]
    return parts if isinstance(found, tuple) else parts[0]


def _turned(node: Node) -> Node:
    return ad.swapaxes_op(node, -1, -2)


def _wide(node: Node) -> Node:
    """A number for each matrix, beside matrices."""
    return ad.expand_dims_op(ad.expand_dims_op(node, -1), -1)


def inv(A: Any) -> Node:
    """The inverse: dA = -Y^T g Y^T. Raises ShapeError, GraphError for a singular matrix."""
    node = _matrices("inv", A)

    def backward(grad: Node) -> list[Node | None]:
        turned = _turned(inv(node))
        return [-(turned @ grad @ turned)]

    return function_op(_computed("inv", np.linalg.inv, node), [node], backward)


inverse = inv


def det(A: Any) -> Node:
    """The determinant: dA = g det(A) A^-T, of matrices that have an inverse. Raises ShapeError."""
    node = _matrices("det", A)

    def backward(grad: Node) -> list[Node | None]:
        return [_wide(grad * det(node)) * _turned(inv(node))]

    return function_op(_computed("det", np.linalg.det, node), [node], backward)


def slogdet(A: Any) -> SignAndLog:
    """The sign of the determinant and the logarithm of its absolute value: dA = g A^-T. Raises ShapeError."""
    node = _matrices("slogdet", A)
    sign, value = _computed("slogdet", lambda values: tuple(np.linalg.slogdet(values)), node)
    return SignAndLog(sign, function_op(value, [node], lambda grad: [_wide(grad) * _turned(inv(node))]))


def logdet(A: Any) -> Node:
    """The logarithm of the determinant: NaN where that is negative. Raises ShapeError."""
    sign, value = slogdet(A)
    return ad.where_op(ad.less_op(sign, 0.0), float("nan"), value)


def solve(A: Any, B: Any) -> Node:
    """X of A X = B, where B is (..., n, k), or (n,) or of A's shape without the last axis: vectors.

    dB = A^-T g, dA = -dB X^T. Raises ShapeError, GraphError for a singular matrix.
    """
    node, right = _matrices("solve", A), require_float("solve", node_of(B))
    shape, others = shape_of(node), shape_of(right)
    if len(others) == 1 or others == shape[:-1]:
        return ad.squeeze_op(solve(node, ad.expand_dims_op(right, -1)), -1)
    if others[-2] != shape[-1]:
        raise ShapeError(f"solve: matrices of shape {shape} and right sides of shape {others}")

    def backward(grad: Node) -> list[Node | None]:
        of_right = _turned(inv(node)) @ grad
        of_matrix = -(of_right @ _turned(solve(node, right)))
        return [ad.sum_to_like_op(of_matrix, node), ad.sum_to_like_op(of_right, right)]

    return function_op(_computed("solve", np.linalg.solve, node, right), [node, right], backward)


def cholesky(A: Any, *, upper: bool = False) -> Node:
    """The lower triangular L with L L^T = A, or with `upper` its transpose, of symmetric positive definite matrices:
    dA is the symmetric part of L^-T P L^-1, P the lower triangle of L^T g with half its diagonal.

    Raises ShapeError, GraphError for what is not positive definite.
    """
    node = _matrices("cholesky", A)
    n = shape_of(node)[-1]
    lower = leaf(np.tril(np.ones((n, n))) - np.eye(n) / 2)

    def backward(grad: Node) -> list[Node | None]:
        factor = cholesky(node)
        inverted = inv(factor)
        triangle = (_turned(factor) @ grad) * ad.cast_like_op(lower, factor)
        found = _turned(inverted) @ triangle @ inverted
        return [(found + _turned(found)) * 0.5]

    found = function_op(_computed("cholesky", np.linalg.cholesky, node), [node], backward)
    return _turned(found) if upper else found
