"""The decoder of Vaswani et al. (2017), and encoder and decoder together."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..autodiff import Node
from ..eager import tensor
from . import init, needle
from .attention import MultiheadAttention
from .containers import ModuleList
from .dropout import Dropout
from .module import Module
from .norm import LayerNorm
from .transformer import Layer, TransformerEncoder, TransformerEncoderLayer, stacked


class TransformerDecoderLayer(Layer):
    """Self-attention, attention to an encoder's output, and two linear layers, each with a residual around it and a
    LayerNorm, behind the sum or, with `norm_first`, before the branch.

    Parts: self_attn, multihead_attn, linear1, linear2, norm1, norm2, norm3. `dropout` is of the attention weights,
    between the linear layers and of all branches.
    """

    _attentions = ("self_attn", "multihead_attn")
    multihead_attn: MultiheadAttention
    norm3: LayerNorm
    dropout3: Dropout

    def forward(
        self,
        tgt: Node,
        memory: Node,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Node:
        """tgt (T, N, d_model) and memory, an encoder's output, (S, N, d_model), with `batch_first` (N, T, d_model) and
        (N, S, d_model); for the masks see `MultiheadAttention`."""

        def attended(x: Node) -> Node:
            y, _ = self.self_attn(
                x, x, x, tgt_key_padding_mask, need_weights=False, attn_mask=tgt_mask, is_causal=tgt_is_causal
            )
            return self.dropout1(y)

        def remembered(x: Node) -> Node:
            y, _ = self.multihead_attn(
                x,
                memory,
                memory,
                memory_key_padding_mask,
                need_weights=False,
                attn_mask=memory_mask,
                is_causal=memory_is_causal,
            )
            return self.dropout2(y)

        def fed_forward(x: Node) -> Node:
            return self.dropout3(self.linear2(self.dropout(self.activation(self.linear1(x)))))

        if self.norm_first:
            x = tgt + attended(self.norm1(tgt))
            x = x + remembered(self.norm2(x))
            return x + fed_forward(self.norm3(x))
        x = self.norm1(tgt + attended(tgt))
        x = self.norm2(x + remembered(x))
        return self.norm3(x + fed_forward(x))


class TransformerDecoder(Module):
    """`num_layers` layers, one after another, as `layers.0`, `layers.1`, ...; then `norm`, if given."""

    def __init__(self, decoder_layer: Any, num_layers: int, norm: Module | None = None) -> None:
        """`decoder_layer`: a TransformerDecoderLayer, which is the first, the others having its settings and initial
        values of their own; another module, of which all are copies; or a function that makes a layer. Raises
        GraphError for anything else."""
        self.layers = ModuleList(stacked("TransformerDecoder", decoder_layer, num_layers))
        self.norm = norm

    def forward(
        self,
        tgt: Node,
        memory: Node,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Node:
        masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
        for layer in self.layers:
            tgt = layer(tgt, memory, *masks, tgt_is_causal, memory_is_causal)
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(Module):
    """A TransformerEncoder and a TransformerDecoder, as `encoder` and `decoder`, each with a LayerNorm behind; matrices
    are uniform by Glorot and Bengio (2010)."""

    encoder: Any
    decoder: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """needle's Transformer where an argument is named that only needle's has."""
        if cls is Transformer and kwargs.keys() & {"num_head", "dim_head", "causal", "sequence_len"}:
            return needle.Transformer(*args, **kwargs)
        return super().__new__(cls)

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Node], Node] = "relu",
        custom_encoder: Module | None = None,
        custom_decoder: Module | None = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        dtype: str = "float32",
    ) -> None:
        """Raises GraphError."""
        settings = (
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias, dtype
        )  # fmt: skip

        def norm() -> LayerNorm:
            return LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)

        self.encoder, self.decoder = custom_encoder, custom_decoder
        if custom_encoder is None:
            self.encoder = TransformerEncoder(TransformerEncoderLayer(*settings), num_encoder_layers, norm())
        if custom_decoder is None:
            self.decoder = TransformerDecoder(TransformerDecoderLayer(*settings), num_decoder_layers, norm())
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first
        for parameter in self.parameters():
            if len(parameter.shape) > 1:
                init.xavier_uniform_(parameter)

    def forward(
        self,
        src: Node,
        tgt: Node,
        src_mask: Any = None,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        src_key_padding_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Node:
        """src (S, N, d_model) and tgt (T, N, d_model), with `batch_first` the batch first, give an output of tgt's
        shape; for the masks see `MultiheadAttention`."""
        memory = self.encoder(src, src_mask, src_key_padding_mask, bool(src_is_causal))
        masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
        return self.decoder(tgt, memory, *masks, bool(tgt_is_causal), memory_is_causal)

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: str = "float32") -> Any:
        """(sz, sz): 0 where a position sees another, those up to its own, and -inf elsewhere."""
        return tensor(np.triu(np.full((sz, sz), -math.inf, dtype), 1))
