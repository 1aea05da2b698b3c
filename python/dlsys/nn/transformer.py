"""Transformers: Vaswani et al. (2017); with the norm first as Radford et al. (2019)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import GraphError
from .activation import GELU
from .attention import MultiheadAttention
from .checks import checked_layers, placed
from .containers import ModuleList, Sequential
from .dropout import Dropout
from .linear import Linear
from .module import Module
from .norm import LayerNorm

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
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        """`activation`: "relu", "gelu" or a function of a node. Raises GraphError for another name."""
        dtype = placed(device, dtype)
        if isinstance(activation, str) and activation not in ACTIVATIONS:
            raise GraphError(f'TransformerEncoderLayer: activation must be "relu" or "gelu", not {activation!r}')
        self._settings = (
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias,
            device, dtype,
        )  # fmt: skip
        self.activation = ACTIVATIONS[activation] if isinstance(activation, str) else activation
        self.norm_first = norm_first
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first, dtype=dtype)
        self.linear1 = Linear(d_model, dim_feedforward, bias, dtype=dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, dtype=dtype)
        self.norm1, self.norm2 = (LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype) for _ in range(2))
        self.dropout1, self.dropout2 = Dropout(dropout), Dropout(dropout)

    def another(self) -> TransformerEncoderLayer:
        """A layer of the same settings, with initial values of its own."""
        return TransformerEncoderLayer(*self._settings)

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

    def __init__(
        self,
        encoder_layer: Any,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        """`encoder_layer`: a TransformerEncoderLayer, which is the first, the others having its settings and initial
        values of their own, or another module, of which all are copies. The last two arguments change nothing. Raises
        GraphError for anything else."""
        if not isinstance(encoder_layer, Module):
            raise GraphError(f"TransformerEncoder: takes a TransformerEncoderLayer, not {type(encoder_layer).__name__}")
        more = range(checked_layers("TransformerEncoder", num_layers) - 1)
        if isinstance(encoder_layer, TransformerEncoderLayer):
            self.layers = ModuleList([encoder_layer, *(encoder_layer.another() for _ in more)])
        else:
            self.layers = ModuleList([encoder_layer, *(copy.deepcopy(encoder_layer) for _ in more)])
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
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        """`n_inner`: the width of the mlp, four times n_embd for None; `approximate`: see `GELU`, "tanh" in GPT-2."""
        dtype = placed(device, dtype)
        inner = 4 * n_embd if n_inner is None else n_inner
        self.ln_1 = LayerNorm(n_embd, bias=bias, dtype=dtype)
        self.attn = MultiheadAttention(n_embd, n_head, dropout, bias, batch_first=True, dtype=dtype)
        self.ln_2 = LayerNorm(n_embd, bias=bias, dtype=dtype)
        self.mlp = Sequential(
            {
                "c_fc": Linear(n_embd, inner, bias, dtype=dtype),
                "gelu": GELU(approximate),
                "c_proj": Linear(inner, n_embd, bias, dtype=dtype),
                "dropout": Dropout(dropout),
            }
        )
        self.dropout = Dropout(dropout)

    def forward(self, x: Node) -> Node:
        y = self.ln_1(x)
        x = x + self.dropout(self.attn(y, y, y, need_weights=False, is_causal=True)[0])
        return x + self.mlp(self.ln_2(x))
