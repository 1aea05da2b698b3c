"""Transformers: Vaswani et al. (2017); with the norm first as Radford et al. (2019)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import GraphError, ShapeError
from ..tensors import dtype_of, tensor
from .activation import GELU
from .attention import MultiheadAttention
from .checks import checked_extent, checked_layers, known_shape, placed
from .containers import ModuleList, Sequential
from .dropout import Dropout
from .linear import Linear
from .module import Module
from .norm import LayerNorm

ACTIVATIONS: dict[str, Callable[[Node], Node]] = {"relu": ad.relu_op, "gelu": ad.gelu_op}


class Layer(Module):
    """Base of encoders' layers: attentions, two linear layers, and a LayerNorm and a Dropout for
    each branch."""

    _attentions: ClassVar[tuple[str, ...]] = ("self_attn",)
    self_attn: MultiheadAttention
    norm1: LayerNorm
    norm2: LayerNorm
    dropout1: Dropout
    dropout2: Dropout

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
            raise GraphError(f'{type(self).__name__}: activation must be "relu" or "gelu", not {activation!r}')
        self._settings = (
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias,
            device, dtype,
        )  # fmt: skip
        self.activation = ACTIVATIONS[activation] if isinstance(activation, str) else activation
        self.norm_first = norm_first
        for name in self._attentions:
            setattr(self, name, MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first, dtype=dtype))
        self.linear1 = Linear(d_model, dim_feedforward, bias, dtype=dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, dtype=dtype)
        branches = range(1, len(self._attentions) + 2)
        for i in branches:
            setattr(self, f"norm{i}", LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype))
        for i in branches:
            setattr(self, f"dropout{i}", Dropout(dropout))

    def another(self) -> Layer:
        """A layer of the same settings, with initial values of its own."""
        return type(self)(*self._settings)


class TransformerEncoderLayer(Layer):
    """Self-attention and two linear layers, each with a residual around it and a LayerNorm, behind the sum or, with
    `norm_first`, before the branch.

    Parts: self_attn, linear1, linear2, norm1, norm2. `dropout` is of the attention weights, between the linear layers
    and of both branches.
    """

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


def stacked(owner: str, layer: Any, num_layers: int) -> list[Any]:
    """Layers of one kind. Raises GraphError."""
    num_layers = checked_layers(owner, num_layers)
    if hasattr(layer, "another"):
        return [layer, *(layer.another() for _ in range(num_layers - 1))]
    if isinstance(layer, Module):
        return [copy.deepcopy(layer) for _ in range(num_layers)]
    if not callable(layer):
        raise GraphError(f"{owner}: takes a {owner}Layer, another module, or a function that makes a layer")
    return [layer() for _ in range(num_layers)]


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
        values of their own; another module, of which all are copies; or a function that makes a layer. The last two
        change nothing. Raises GraphError for anything else."""
        self.layers = ModuleList(stacked("TransformerEncoder", encoder_layer, num_layers))
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


class PositionalEncoding(Module):
    """x plus sin(p / 10000^(2i / d_model)) in column 2i and the cosine in column 2i + 1 of position p, then dropout.

    x: (L, N, d_model), with `batch_first` (N, L, d_model), or (L, d_model); its shape must be known. `pe` holds the
    first max_len positions, an array.
    """

    def __init__(
        self, d_model: int, dropout: float = 0.1, max_len: int = 5000, batch_first: bool = False
    ) -> None:
        """Raises GraphError."""
        self.d_model = d_model = checked_extent("PositionalEncoding", "d_model", d_model)
        max_len = checked_extent("PositionalEncoding", "max_len", max_len)
        self.batch_first = batch_first
        self.dropout = Dropout(dropout)
        rate = np.exp(-math.log(10000.0) / d_model * np.arange(0, d_model, 2))
        angles = np.arange(max_len)[:, None] * rate
        self.pe = np.zeros((max_len, d_model), "float32")
        self.pe[:, 0::2] = np.sin(angles)
        self.pe[:, 1::2] = np.cos(angles[:, : d_model // 2])

    def forward(self, x: Node) -> Node:
        shape = known_shape(x)
        if shape is None:
            raise ShapeError(f"PositionalEncoding: declare the shape of {x.name} (made at {x.location})")
        self.require(len(shape) in (2, 3) and shape[-1] == self.d_model, x)
        length = shape[-2] if self.batch_first or len(shape) == 2 else shape[0]
        if length > len(self.pe):
            raise ShapeError(f"PositionalEncoding: {length} positions, max_len is {len(self.pe)}")
        between = self.pe[:length] if self.batch_first or len(shape) == 2 else self.pe[:length, None]
        return self.dropout(x + tensor(between, dtype_of(x), name="positions"))

    def extra_repr(self) -> str:
        return f"{self.d_model}, max_len={len(self.pe)}"
