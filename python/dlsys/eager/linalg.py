"""Norms and products of matrices, as `torch.linalg`: `dl.linalg`; and covariances.

Of decompositions there are those of `solving`; singular values and eigenvalues do not exist here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import DTypeError, GraphError, ShapeError
from ..graph import INTEGERS
from ..ops import dtype_name, dtype_of, shape_of
from . import reductions
from .creation import eye
from .functions import dims_of, float_of, node_of, require_float
from .products import cross
from .solving import cholesky, det, inv, slogdet, solve


def _as_float(name: str, x: Any, dtype: Any) -> Node:
    """The argument in a dtype of floats, its own for None. Raises DTypeError."""
    node = node_of(x) if dtype is None else ad.cast_op(node_of(x), dtype_name(name, dtype))
    return require_float(name, node)


def _order(name: str, ord: Any) -> float:
    if isinstance(ord, bool) or not isinstance(ord, (int, float)):
        raise GraphError(f"{name}: ord must be a number, not {ord!r}")
    return float(ord)


def vector_norm(x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Node:
    """The sum of |x|^ord to the power of 1 / ord over axes, all for None; the largest and least |x| for the infinities,
    the number of nonzeros for 0. Raises GraphError for another ord, DTypeError for integers."""
    return reductions.norm(_as_float("vector_norm", x, dtype), _order("vector_norm", ord), dim, keepdim)


def matrix_norm(
    A: Any, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: Any = None
) -> Node:
    """The norm of the matrices in two axes: "fro", the root of the sum of squares; 1 and infinity, the largest sum of
    |x| over a column or a row, -1 and -infinity the least.

    Raises GraphError for another ord (2, -2 and "nuc" need singular values), and for axes that are not two.
    """
    node = _as_float("matrix_norm", A, dtype)
    axes = dims_of(node, dim)
    if len(axes) != 2 or axes[0] == axes[1]:
        raise GraphError(f"matrix_norm: dim must be two axes, not {dim!r}")
    if ord == "fro":
        return reductions.norm(node, 2, axes, keepdim)
    if ord in ("nuc", 2, -2):
        raise GraphError(f"matrix_norm: ord {ord!r} needs singular values, which dlsys does not compute")
    if _order("matrix_norm", ord) not in (1, -1, math.inf, -math.inf):
        raise GraphError(f"matrix_norm: ord {ord!r} is no norm of matrices")
    over, along = axes if abs(ord) == 1 else axes[::-1]
    sums = ad.reducesum_op(ad.abs_op(node), over, keepdims=True)
    found = (ad.max_op if ord > 0 else ad.min_op)(sums, along, keepdims=True)
    return found if keepdim else ad.squeeze_op(found, axes)


def norm(A: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Node:
    """`vector_norm`, of all elements where neither ord nor dim is given; `matrix_norm` of two axes with an ord, and of
    a matrix with an ord and no dim. Raises GraphError, DTypeError as these do."""
    node = node_of(A)
    if ord is None or (dim is None and len(shape_of(node)) == 1):
        return vector_norm(node, 2 if ord is None else ord, dim, keepdim, dtype=dtype)
    given = tuple(dim) if isinstance(dim, (tuple, list)) else dim
    if given is None:
        if len(shape_of(node)) != 2:
            raise GraphError(f"norm: with ord {ord!r} and no dim a vector or a matrix is needed, not {shape_of(node)}")
        given = (0, 1)
    if isinstance(given, tuple) and len(given) == 2:
        return matrix_norm(node, ord, given, keepdim, dtype=dtype)
    return vector_norm(node, ord, given, keepdim, dtype=dtype)


def matmul(input: Any, other: Any) -> Node:
    """The matrix product."""
    return node_of(input) @ other


def multi_dot(tensors: Sequence[Any]) -> Node:
    """The product of two matrices or more, of which the first and the last may be vectors, in the order that costs the
    fewest multiplications. Raises GraphError for fewer, ShapeError for extents that do not fit."""
    nodes = [node_of(value) for value in tensors]
    if len(nodes) < 2:
        raise GraphError(f"multi_dot: needs two matrices or more, not {len(nodes)}")
    is_row, is_column = len(shape_of(nodes[0])) == 1, len(shape_of(nodes[-1])) == 1
    nodes[0] = ad.expand_dims_op(nodes[0], 0) if is_row else nodes[0]
    nodes[-1] = ad.expand_dims_op(nodes[-1], 1) if is_column else nodes[-1]
    shapes = [shape_of(node) for node in nodes]
    if any(len(shape) != 2 for shape in shapes) or any(a[1] != b[0] for a, b in itertools.pairwise(shapes)):
        raise ShapeError(f"multi_dot: shapes {', '.join(map(str, shapes))} are no chain of matrices")
    product = _chain(nodes, [shape[0] for shape in shapes] + [shapes[-1][1]])
    dropped = (*([0] if is_row else []), *([1] if is_column else []))
    return ad.squeeze_op(product, dropped) if dropped else product


def _chain(nodes: list[Node], extents: list[int]) -> Node:
    """The product of matrices of extents[i] by extents[i + 1]."""
    count = len(nodes)
    cost = [[0] * count for _ in nodes]
    cut = [[0] * count for _ in nodes]
    for length in range(1, count):
        for first in range(count - length):
            last = first + length
            costs = {
                k: cost[first][k] + cost[k + 1][last] + extents[first] * extents[k + 1] * extents[last + 1]
                for k in range(first, last)
            }
            cut[first][last] = min(costs, key=lambda k: costs[k])
            cost[first][last] = costs[cut[first][last]]

    def product(first: int, last: int) -> Node:
        if first == last:
            return nodes[first]
        return ad.matmul_op(product(first, cut[first][last]), product(cut[first][last] + 1, last))

    return product(0, count - 1)


def matrix_power(A: Any, n: int) -> Node:
    """The product of n square matrices A, the identity for 0. Raises GraphError for an n below 0, which would need the
    inverse, ShapeError for what is not square."""
    node = require_float("matrix_power", A)
    shape = shape_of(node)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ShapeError(f"matrix_power: needs square matrices, not {shape}")
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 0:
        raise GraphError(f"matrix_power: n must be an integer >= 0, not {n!r}")
    if n == 0:
        return ad.broadcast_shape_op(eye(shape[-1], dtype=dtype_of(node)), shape)
    found: Node | None = None
    power, rest = node, int(n)
    while rest:
        if rest % 2:
            found = power if found is None else found @ power
        rest //= 2
        power = power @ power if rest else power
    assert found is not None
    return found


def vecdot(x: Any, y: Any, *, dim: int = -1) -> Node:
    """The sum of x * y along an axis."""
    return ad.reducesum_op(node_of(x) * y, dim)


def cov(input: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Node:
    """The covariances of variables, which lie along the rows of a matrix, or of one, a vector: (variables, variables),
    or (). The sum of products is divided by the number of observations less `correction`.

    fweights, aweights: how often each observation counts, integers, and how much it weighs. Raises ShapeError for more
    than two axes and for weights of another length, DTypeError for fweights that are no integers.
    """
    x = float_of(input)
    shape = shape_of(x)
    if len(shape) > 2:
        raise ShapeError(f"cov: needs a vector or a matrix, not {shape}")
    rows = ad.reshape_op(x, (1, -1)) if len(shape) < 2 else x
    count = shape_of(rows)[1]
    weights: Node | None = None
    for name, given in (("fweights", fweights), ("aweights", aweights)):
        if given is None:
            continue
        node = node_of(given)
        if shape_of(node) != (count,):
            raise ShapeError(f"cov: {name} of shape {shape_of(node)} for {count} observations")
        if name == "fweights" and dtype_of(node) not in INTEGERS:
            raise DTypeError(f"cov: fweights must be integers, not {dtype_of(node)}")
        own = ad.cast_like_op(node, x)
        weights = own if weights is None else weights * own
    if weights is None:
        centred = rows - ad.mean_op(rows, 1, keepdims=True)
        found = ad.matmul_op(centred, centred, trans_B=True) / float(max(count - correction, 0))
    else:
        total = ad.reducesum_op(weights)
        mean = ad.reducesum_op(rows * weights, 1, keepdims=True) / total
        rest: Any = float(correction)
        if aweights is not None:
            rest = ad.reducesum_op(weights * ad.cast_like_op(node_of(aweights), x)) / total * rest
        centred = rows - mean
        divisor = ad.relu_op(total - rest)
        found = ad.matmul_op(centred * weights, centred, trans_B=True) / divisor
    return ad.reshape_op(found, ()) if len(shape) < 2 else found


def corrcoef(input: Any) -> Node:
    """`cov`, divided by the standard deviations, in [-1, 1]. Raises ShapeError for more than two axes."""
    found = cov(input)
    if not shape_of(found):
        return found / found
    count = shape_of(found)[0]
    same = eye(count, dtype=dtype_of(found))
    deviation = ad.sqrt_op(ad.reducesum_op(found * same, 1))
    scaled = found / ad.reshape_op(deviation, (count, 1)) / deviation
    return ad.clip_op(scaled, -1.0, 1.0)


def __getattr__(name: str) -> Any:
    raise AttributeError(f"dlsys has no linalg.{name}: compute it with NumPy, or as a sum of products")


__all__ = [
    "cholesky",
    "corrcoef",
    "cov",
    "cross",
    "det",
    "inv",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "multi_dot",
    "norm",
    "slogdet",
    "solve",
    "vecdot",
    "vector_norm",
]
