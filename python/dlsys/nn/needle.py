"""Modules and names of needle, the framework of the CMU course 10-414, that PyTorch's do not stand for.

Its Transformer normalizes before each part, adds a learned vector to each position, and masks the future by default;
`nn.Transformer` is PyTorch's, unless it is called with an argument that only needle's has, as `num_head`.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node, Parameter
from ..errors import ShapeError
from ..tensors import dtype_of, tensor
from .activation import ReLU
from .checks import checked_extent, shape_of
from .containers import ModuleList, Sequential
from .dropout import Dropout
from .embedding import Embedding
from .linear import Linear
from .module import Module
from .norm import LayerNorm1d


@functools.lru_cache(maxsize=64)
def _future(queries: int, keys: int, dtype: str) -> Parameter:
    """(queries, keys): 0 where a query sees a key, the last one all, and the least number elsewhere."""
    return Parameter(np.triu(np.full((queries, keys), np.finfo(dtype).min, dtype), keys - queries + 1), "future", False)


class MultiHeadAttention(Module):
    """softmax(q k^T / sqrt(d)) v of heads that are there: q (N, heads, L, d), k and v (N, heads, S, d) give the result
    (N, heads, L, d) and the weights (N, heads, L, S), to which dropout was applied."""

    def __init__(self, *, dropout: float = 0.0, causal: bool = False) -> None:
        """causal: query i sees the keys up to i + S - L."""
        self.dropout, self.causal = Dropout(dropout), bool(causal)

    def forward(self, q: Node, k: Node, v: Node) -> tuple[Node, Node]:
        shapes = [shape_of("MultiHeadAttention", x) for x in (q, k, v)]
        self.require(all(len(shape) == 4 for shape in shapes), q)
        if shapes[1] != shapes[2] or any(shapes[0][i] != shapes[1][i] for i in (0, 1, 3)):
            raise ShapeError(f"MultiHeadAttention: q, k and v do not fit: {shapes}")
        queries, keys, width = shapes[0][2], shapes[1][2], shapes[0][3]
        scores = ad.matmul_op(q, k, trans_B=True) * (1 / math.sqrt(width))
        if self.causal:
            scores = scores + _future(queries, keys, dtype_of(q))
        weights = self.dropout(ad.softmax_op(scores))
        return ad.matmul_op(weights, v), weights

    def extra_repr(self) -> str:
        return f"causal={self.causal}"


class AttentionLayer(Module):
    """Normalized queries, keys and values, projected to `num_head` heads of width `dim_head`, their attention, and its
    projection: q (N, L, q_features), k (N, S, k_features), v (N, S, v_features) give (N, L, out_features). k and v are
    q where they are not given. No projection has a bias."""

    def __init__(
        self,
        q_features: int,
        num_head: int,
        dim_head: int,
        *,
        k_features: int | None = None,
        v_features: int | None = None,
        out_features: int | None = None,
        dropout: float = 0.0,
        causal: bool = True,
    ) -> None:
        self.num_head = num_head = checked_extent("AttentionLayer", "num_head", num_head)
        self.dim_head = dim_head = checked_extent("AttentionLayer", "dim_head", dim_head)
        inner = num_head * dim_head
        k_features, v_features = k_features or q_features, v_features or q_features
        self.prenorm_q, self.q_projection = LayerNorm1d(q_features), Linear(q_features, inner, bias=False)
        self.prenorm_k, self.k_projection = LayerNorm1d(k_features), Linear(k_features, inner, bias=False)
        self.prenorm_v, self.v_projection = LayerNorm1d(v_features), Linear(v_features, inner, bias=False)
        self.attn = MultiHeadAttention(dropout=dropout, causal=causal)
        self.out_projection = Linear(inner, out_features or q_features, bias=False)

    def forward(self, q: Node, k: Node | None = None, v: Node | None = None) -> Node:
        heads = []
        norms = (self.prenorm_q, self.prenorm_k, self.prenorm_v)
        projections = (self.q_projection, self.k_projection, self.v_projection)
        for given, norm, projection in zip((q, k, v), norms, projections, strict=True):
            x = q if given is None else given
            shape = shape_of("AttentionLayer", x)
            self.require(len(shape) == 3, x)
            parts = ad.reshape_op(projection(norm(x)), (*shape[:2], self.num_head, self.dim_head))
            heads.append(ad.transpose_op(parts, (0, 2, 1, 3)))
        result, _ = self.attn(*heads)
        batch, length = shape_of("AttentionLayer", q)[:2]
        joined = ad.reshape_op(ad.transpose_op(result, (0, 2, 1, 3)), (batch, length, self.num_head * self.dim_head))
        return self.out_projection(joined)


class TransformerLayer(Module):
    """x + attention(x), then x + feed-forward(x), each behind dropout: (N, L, q_features) to the same. The latter is
    LayerNorm, Linear to `hidden_size`, ReLU, dropout, Linear back."""

    def __init__(
        self,
        q_features: int,
        num_head: int,
        dim_head: int,
        hidden_size: int,
        *,
        dropout: float = 0.0,
        causal: bool = True,
    ) -> None:
        self.attention = AttentionLayer(q_features, num_head, dim_head, dropout=dropout, causal=causal)
        self.feed_forward = Sequential(
            LayerNorm1d(q_features),
            Linear(q_features, hidden_size),
            ReLU(),
            Dropout(dropout),
            Linear(hidden_size, q_features),
        )
        self.dropout = Dropout(dropout)

    def forward(self, x: Node) -> Node:
        x = x + self.dropout(self.attention(x))
        return x + self.dropout(self.feed_forward(x))


class Transformer(Module):
    """`num_layers` TransformerLayers of x plus an Embedding of positions: x (L, N, embedding_size), with `batch_first`
    (N, L, embedding_size), gives the same shape, and zeros in the place of a state. L is at most `sequence_len`."""

    def __init__(
        self,
        embedding_size: int,
        hidden_size: int,
        num_layers: int,
        *,
        num_head: int = 8,
        dim_head: int = 32,
        dropout: float = 0.0,
        causal: bool = True,
        batch_first: bool = False,
        sequence_len: int = 2048,
    ) -> None:
        self.batch_first, self.sequence_len = batch_first, sequence_len
        self.positions = Embedding(sequence_len, embedding_size)
        self.layers = ModuleList(
            TransformerLayer(embedding_size, num_head, dim_head, hidden_size, dropout=dropout, causal=causal)
            for _ in range(checked_extent("Transformer", "num_layers", num_layers))
        )

    def forward(self, x: Node, h: Any = None) -> tuple[Node, Node]:
        """`h` is not read."""
        if not self.batch_first:
            x = ad.swapaxes_op(x, 0, 1)
        shape = shape_of("Transformer", x)
        self.require(len(shape) == 3 and shape[1] <= self.sequence_len, x)
        x = x + self.positions(tensor(np.arange(shape[1])))
        for layer in self.layers:
            x = layer(x)
        if not self.batch_first:
            x = ad.swapaxes_op(x, 0, 1)
        return x, ad.zeroslike_op(x)
