"""Attention and transformers: Vaswani et al. (2017)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

from .. import autodiff as ad
from ..checks import integer, number, require_neutral
from ..errors import GraphError, ShapeError
from ..graph import Node, Shape
from ..tensors import Tensor
from . import functional as F
from . import init
from .checks import as_node, checked_layers, known_shape
from .containers import ModuleList, Sequential
from .layers import GELU, Dropout, Linear
from .module import Module
from .norm import LayerNorm


class MultiheadAttention(Module):
    """softmax(Q K^T / sqrt(d)) V in `num_heads` heads of width d = embed_dim / num_heads, of linear projections of
    query, key and value, and a projection of the heads' results. Parameters: in_proj_weight (3 embed_dim, embed_dim),
    in_proj_bias (3 embed_dim,), out_proj.weight, out_proj.bias; the first is uniform by Glorot and Bengio (2010), the
    biases are 0."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        batch_first: bool = False,
    ) -> None:
        """`dropout` is of the attention weights. Raises GraphError where the heads do not divide the width."""
        self.embed_dim: int = integer("MultiheadAttention", "embed_dim", embed_dim, 1)
        self.num_heads: int = integer("MultiheadAttention", "num_heads", num_heads, 1)
        if embed_dim % num_heads:
            raise GraphError(f"MultiheadAttention: width {embed_dim} does not divide into {num_heads} heads")
        self.head_dim: int = self.embed_dim // self.num_heads
        self.dropout: float = number("MultiheadAttention", "dropout", dropout, most=1)
        self.batch_first = batch_first
        made = init.made((3 * embed_dim, embed_dim), "in_proj_weight")
        self.in_proj_weight: ad.Parameter = init.xavier_uniform_(made)
        self.in_proj_bias: ad.Parameter | None = init.made((3 * embed_dim,), "in_proj_bias") if bias else None
        self.out_proj: Linear = Linear(embed_dim, embed_dim, bias)
        if self.out_proj.bias is not None:
            init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: Node,
        key: Node,
        value: Node,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The output, of query's shape, and the attention weights.

        Args:
            query, key, value: (L, N, embed_dim) and twice (S, N, embed_dim), with `batch_first` (N, L, embed_dim).
                Their shapes must be known.
            key_padding_mask: (N, S), booleans: True for keys that no query sees; or floats to be added.
            need_weights: whether to return the weights, (N, L, S), the mean over heads; else None.
            attn_mask: (L, S) or (N num_heads, L, S), booleans: True where a query does not see a key; or floats that
                are added to the scores.
            is_causal: query i sees the keys up to i alone; no `attn_mask` is needed for it.

        Raises ShapeError, GraphError.
        """
        shapes = [self._shape(x) for x in (query, key, value)]
        if not self.batch_first:
            moved = {x: ad.swapaxes_op(x, 0, 1) for x in (query, key, value)}
            query, key, value = moved[query], moved[key], moved[value]
            shapes = [(shape[1], shape[0], shape[2]) for shape in shapes]
        batch, length, keys = *shapes[0][:2], shapes[1][1]
        heads = self.in_proj_weight.shape[0] // (3 * self.head_dim)  # fewer than `num_heads` where ranks share them
        if shapes[1] != shapes[2] or shapes[1][0] != batch:
            raise ShapeError(f"MultiheadAttention: query, key and value do not fit: {shapes}, the batch first")

        q, k, v = (
            ad.transpose_op(ad.reshape_op(x, (batch, extent, heads, self.head_dim)), (0, 2, 1, 3))
            for x, extent in zip(self._projected(query, key, value), (length, keys, keys), strict=True)
        )
        scores = ad.matmul_op(q, k, trans_B=True)
        if is_causal:
            scores = scores + F.causal_mask(length, keys, self.in_proj_weight.dtype)
        if attn_mask is not None:
            mask = as_node(attn_mask)
            if len(known_shape(mask) or ()) == 3:
                mask = ad.reshape_op(mask, (batch, heads, length, keys))
            scores = _masked(scores, mask)
        if key_padding_mask is not None:
            mask = ad.reshape_op(as_node(key_padding_mask), (batch, 1, 1, keys))
            scores = _masked(scores, mask)
        weights = F.dropout(ad.softmax_op(scores), self.dropout, self.training)
        heads_last = ad.transpose_op(ad.matmul_op(weights, v), (0, 2, 1, 3))
        joined = ad.reshape_op(heads_last, (batch, length, heads * self.head_dim))
        output = self.out_proj(joined)

        returned = ad.mean_op(weights, 1) if need_weights else None
        return output if self.batch_first else ad.swapaxes_op(output, 0, 1), returned

    def _shape(self, x: Node) -> Shape:
        """The shape of an argument, (L, N, embed_dim). Raises ShapeError for another, or one that is not known."""
        shape = known_shape(x)
        if shape is None:
            raise ShapeError(
                "MultiheadAttention: shapes must be known when the graph is made: declare those of variables, "
                f'Variable("x", shape) ({x.name}, made at {x.location})'
            )
        self.require(len(shape) == 3 and shape[-1] == self.embed_dim, x)
        return shape

    def _projected(self, query: Node, key: Node, value: Node) -> list[Node]:
        """Queries, divided by sqrt(d), keys and values, each (N, extent, embed_dim).

        A product each, also where all are of one input: one product of three times the width took 1.08 times as long
        (4096 rows, width 128, one thread), as it must be taken apart and its gradient put together.
        """
        weights = ad.split_op(self.in_proj_weight, 3)
        biases = [None] * 3 if self.in_proj_bias is None else ad.split_op(self.in_proj_bias, 3)
        inputs = (query, key, value)
        q, k, v = (F.linear(x, weight, bias) for x, weight, bias in zip(inputs, weights, biases, strict=True))
        return [q * (1 / math.sqrt(self.head_dim)), k, v]


def _masked(scores: Tensor, mask: Node) -> Tensor:
    """The scores with -inf where a mask of booleans is True, or plus a mask of floats."""
    return ad.where_op(mask, -math.inf, scores) if mask.dtype == "bool" else scores + mask


ACTIVATIONS: dict[str, Callable[[Node], Node]] = {"relu": ad.relu_op, "gelu": ad.gelu_op}


class TransformerEncoderLayer(Module):
    """Self-attention and two linear layers, each with a residual around it and a LayerNorm, behind the sum or, with
    `norm_first`, before the branch.

    Parts: self_attn, linear1, linear2, norm1, norm2. `dropout` is of the attention weights, between the linear layers
    and of both branches.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Node], Node] = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
    ) -> None:
        """`activation`: "relu", "gelu" or a function of a node. Raises GraphError for another name."""
        if isinstance(activation, str) and activation not in ACTIVATIONS:
            raise GraphError(f'TransformerEncoderLayer: activation must be "relu" or "gelu", not {activation!r}')
        self.activation: Callable[[Node], Node] = ACTIVATIONS[activation] if isinstance(activation, str) else activation
        self.norm_first = norm_first
        attention = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first)
        self.self_attn: MultiheadAttention = attention
        self.linear1: Linear = Linear(d_model, dim_feedforward, bias)
        self.dropout: Dropout = Dropout(dropout)
        self.linear2: Linear = Linear(dim_feedforward, d_model, bias)
        self.norm1: LayerNorm = LayerNorm(d_model, layer_norm_eps, bias=bias)
        self.norm2: LayerNorm = LayerNorm(d_model, layer_norm_eps, bias=bias)
        self.dropout1: Dropout = Dropout(dropout)
        self.dropout2: Dropout = Dropout(dropout)

    def forward(
        self, src: Node, src_mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool = False
    ) -> Node:
        """(L, N, d_model), with `batch_first` (N, L, d_model); for the masks see `MultiheadAttention`."""

        def attended(x: Node) -> Node:
            y, _ = self.self_attn(
                x, x, x, src_key_padding_mask, need_weights=False, attn_mask=src_mask, is_causal=is_causal
            )
            return self.dropout1(y)

        def fed_forward(x: Node) -> Node:
            return self.dropout2(self.linear2(self.dropout(self.activation(self.linear1(x)))))

        if self.norm_first:
            x = src + attended(self.norm1(src))
            return x + fed_forward(self.norm2(x))
        x = self.norm1(src + attended(src))
        return self.norm2(x + fed_forward(x))


class TransformerEncoder(Module):
    """`num_layers` layers, one after another, as `layers.0`, `layers.1`, ...; then `norm`, if given."""

    def __init__(self, encoder_layer: Any, num_layers: int, norm: Module | None = None, **neutral: Any) -> None:
        """`encoder_layer`: the first layer; the others are copies of it with its initial values, as PyTorch's are.
        `neutral`: PyTorch's `enable_nested_tensor` and `mask_check`, which change no result. Raises GraphError for what
        is no module."""
        require_neutral("TransformerEncoder", neutral, dict.fromkeys(("enable_nested_tensor", "mask_check")))
        if not isinstance(encoder_layer, Module):
            raise GraphError(f"TransformerEncoder: takes a TransformerEncoderLayer, not {type(encoder_layer).__name__}")
        more = range(checked_layers("TransformerEncoder", num_layers) - 1)
        self.layers: ModuleList = ModuleList([encoder_layer, *(copy.deepcopy(encoder_layer) for _ in more)])
        self.norm = norm

    def forward(
        self, src: Node, mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool = False
    ) -> Node:
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, is_causal)
        return src if self.norm is None else self.norm(src)


class GPTBlock(Module):
    """x + attn(ln_1(x)), then x + mlp(ln_2(x)), in which a position sees those up to its own alone.

    x: (N, L, n_embd). Parts, with the names of GPT-2: ln_1, attn (a `MultiheadAttention`), ln_2, mlp.c_fc, mlp.c_proj.
    """

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        n_inner: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        approximate: str = "none",
    ) -> None:
        """`n_inner`: the width of the mlp, four times n_embd for None; `approximate`: see `GELU`, "tanh" in GPT-2."""
        n_embd = integer("GPTBlock", "n_embd", n_embd, 1)
        inner = 4 * n_embd if n_inner is None else n_inner
        self.ln_1: LayerNorm = LayerNorm(n_embd, bias=bias)
        self.attn: MultiheadAttention = MultiheadAttention(n_embd, n_head, dropout, bias, batch_first=True)
        self.ln_2: LayerNorm = LayerNorm(n_embd, bias=bias)
        self.mlp: Sequential = Sequential(
            {
                "c_fc": Linear(n_embd, inner, bias),
                "gelu": GELU(approximate),
                "c_proj": Linear(inner, n_embd, bias),
                "dropout": Dropout(dropout),
            }
        )
        self.dropout: Dropout = Dropout(dropout)

    def forward(self, x: Node) -> Node:
        y = self.ln_1(x)
        x = x + self.dropout(self.attn(y, y, y, need_weights=False, is_causal=True)[0])
        return x + self.mlp(self.ln_2(x))
