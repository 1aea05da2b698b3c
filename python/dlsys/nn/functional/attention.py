"""Attention and its masks."""

from __future__ import annotations

import functools
import math

import numpy as np

from ... import autodiff as ad
from ...checks import dtype_named, flag, integer, real
from ...errors import DTypeError
from ...graph import FLOATS, Handle, Node
from ...ops import leaf
from ...ops.replay import function
from ...tensors import Tensor
from ..checks import require_nodes
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
        attn_mask: broadcasts to (..., L, S); booleans say which keys a query sees, where it sees none the result is 0;
            floats are added to the scores.
        dropout_p: with which probability a weight is dropped, see `dropout`.
        is_causal: query i sees the keys up to i alone.
        scale: None is 1 / sqrt(d).

    Raises GraphError, ShapeError.
    """
    op = "scaled_dot_product_attention"
    require_nodes(op, query, key, value, attn_mask)
    factor = None if scale is None else real(op, "scale", scale)
    weights = _attention_weights(query, key, attn_mask, factor, flag(op, "is_causal", is_causal))
    return ad.matmul_op(dropout(weights, dropout_p), value)


@function(on_tensors=True)
def _attention_weights(query: Node, key: Node, mask: Node | None, scale: float | None, is_causal: bool) -> Tensor:
    """softmax(q k^T scale), (..., L, S), where the mask lets a query see a key; 0 elsewhere."""
    q = query / math.sqrt(query.shape[-1]) if scale is None else query * scale
    scores, unseen = ad.matmul_op(q, key, trans_B=True), None
    if mask is not None and mask.dtype == "bool":
        unseen = ad.logical_not_op(mask)
        scores = ad.where_op(unseen, -math.inf, scores)
    elif mask is not None:
        scores = scores + mask
    if is_causal:
        scores = scores + causal_mask(query.shape[-2], key.shape[-2], query.dtype)
    weights = ad.softmax_op(scores)
    return weights if unseen is None else ad.where_op(unseen, 0.0, weights)


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
    hiding = np.triu(np.full((queries, keys), hidden, dtype), first)
    return Handle.results.of(leaf(hiding, "causal_mask", roams=True))
