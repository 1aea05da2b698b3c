"""Attention and its masks."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from ... import autodiff as ad
from ...autodiff import Node
from ...checks import dtype_named, flag, integer, real
from ...errors import DTypeError
from ...graph import FLOATS
from ...ops.replay import function
from ...tensors import Tensor, known_dtype, tensor
from ..checks import require_nodes, shape_of
from .activations import dropout


def scaled_dot_product_attention(
    query: Node,
    key: Node,
    value: Node,
    attn_mask: Node | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(q k^T scale) v: (..., L, d), (..., S, d), (..., S, e) -> (..., L, e): Vaswani et al. (2017).

    Args:
        attn_mask: broadcasts to (..., L, S); booleans of a known dtype say which keys a query sees, where it sees none
            the result is 0; floats are added to the scores.
        dropout_p: with which probability a weight is dropped, see `dropout`.
        is_causal: query i sees the keys up to i alone; the shapes of q and k must be known then.
        scale: None is 1 / sqrt(d).

    Raises GraphError, ShapeError.
    """
    require_nodes("scaled_dot_product_attention", query, key, value, attn_mask)
    q = _scaled(query) if scale is None else query * real("scaled_dot_product_attention", "scale", scale)
    scores, unseen = ad.matmul_op(q, key, trans_B=True), None
    if attn_mask is not None and known_dtype(attn_mask) == "bool":
        unseen = ad.logical_not_op(attn_mask)
        scores = ad.where_op(unseen, -math.inf, scores)
    elif attn_mask is not None:
        scores = scores + attn_mask
    if flag("scaled_dot_product_attention", "is_causal", is_causal):
        rows, columns = (shape_of("scaled_dot_product_attention", x)[-2] for x in (query, key))
        scores = scores + ad.cast_like_op(causal_mask(rows, columns, known_dtype(query) or "float32"), query)
    return attended(scores, value, lambda weights: dropout(weights, dropout_p), unseen)[0]


@function()
def _scaled(query: Node) -> Tensor:
    """Queries (..., d) over the square root of d."""
    return query / math.sqrt(query.shape[-1])


def attended(
    scores: Node, value: Node, drop: Callable[[Node], Tensor], unseen: Node | None = None
) -> tuple[Tensor, Tensor]:
    """softmax(scores) value, and the softmax, to which `drop` is applied; weights are 0 where `unseen` holds, also
    those of a query that sees no key."""
    weights = ad.softmax_op(scores)
    weights = drop(weights if unseen is None else ad.where_op(unseen, 0.0, weights))
    return ad.matmul_op(weights, value), weights


def causal_mask(
    queries: int, keys: int, dtype: str = "float32", first: int = 1, finite: bool = False
) -> Tensor:
    """(queries, keys): 0 where a query sees a key, those up to its own number, and -infinity, or the dtype's least
    number, from the diagonal number `first` on; to be added to scores. Raises GraphError for sizes that are no
    integers, DTypeError."""
    sizes = integer("causal_mask", "queries", queries, 0), integer("causal_mask", "keys", keys, 0)
    named = dtype_named(dtype)
    if named is None or named not in FLOATS:
        raise DTypeError(f"causal_mask: dtype must be one of {', '.join(FLOATS)}, not {dtype!r}")
    first, finite = integer("causal_mask", "first", first), flag("causal_mask", "finite", finite)
    return _causal_mask(*sizes, named, first, finite)


@functools.lru_cache(maxsize=64)
def _causal_mask(queries: int, keys: int, dtype: str, first: int, finite: bool) -> Tensor:
    """One leaf serves all layers of all models, and so decides for none where it is computed."""
    hidden = np.finfo(dtype).min if finite else -math.inf
    made = tensor(np.triu(np.full((queries, keys), hidden, dtype), first), name="causal_mask")
    made.cell.roams = True
    return made
