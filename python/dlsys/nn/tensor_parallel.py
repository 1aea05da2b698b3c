"""Tensor parallel layers: each rank of a group (`dlsys.distributed`) has a part of the weights and computes its part of
the same batch: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism"
(2019), section 3.

All ranks draw the weights of the whole layer, from the same seed, and keep their part: so a network begins with the
values that one process gives it.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

import numpy as np

from .. import autodiff as ad
from .. import distributed
from ..autodiff import Node, Parameter
from ..errors import GraphError
from ..tensors import Tensor
from . import functional as F
from .attention import MultiheadAttention
from .checks import as_node, known_shape
from .layers import Linear

Parallel = TypeVar("Parallel", bound="_ParallelLinear")


def _part(whole: Parameter, axis: int, parts: int = 1) -> Parameter:
    """This rank's part of a parameter along an axis, of which each of so many `parts` is shared out. Raises GraphError
    where the ranks do not divide it."""
    extent, size = whole.shape[axis] // parts, distributed.size()
    if extent % size:
        raise GraphError(f"{whole.name}: {size} ranks do not divide an extent of {extent} (shape {whole.shape})")
    values = np.split(np.asarray(whole), parts, axis)
    own = [np.split(value, size, axis)[distributed.rank()] for value in values]
    made = Parameter(np.concatenate(own, axis), whole.name)
    made.cell.sharded = True
    return made


class _ParallelLinear(Linear):
    """A part of a Linear layer; `in_features` and `out_features` are of the whole."""

    axis: ClassVar[int]  # of the weight, which is shared out

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        """Raises GraphError for what are no positive integers, and where the ranks do not divide them."""
        self._take(Linear(in_features, out_features, bias))

    @classmethod
    def from_linear(cls: type[Parallel], linear: Linear) -> Parallel:
        """This rank's part of a layer that all ranks have. Raises GraphError where the ranks do not divide it."""
        made = cls.__new__(cls)
        made._take(linear)
        return made

    def _take(self, whole: Linear) -> None:
        self.in_features, self.out_features = whole.in_features, whole.out_features
        self.weight = _part(whole.weight, self.axis)
        self.bias = whole.bias if whole.bias is None or self.axis == 1 else _part(whole.bias, 0)

    def reset_parameters(self) -> None:
        """Set the initial values anew."""
        made = type(self)(self.in_features, self.out_features, self.bias is not None).to(self.weight.dtype)
        self.weight.value = made.weight
        if self.bias is not None and made.bias is not None:
            self.bias.value = made.bias


class ColumnParallelLinear(_ParallelLinear):
    """This rank's columns of y = x W^T + b: (..., in_features) -> (..., out_features / ranks). All ranks have x.
    Parameters: weight (out_features / ranks, in_features), bias (out_features / ranks,), see `Linear`."""

    axis = 0

    def forward(self, x: Node) -> Node:
        return super().forward(ad.copy_to_tensor_parallel_op(x))


class RowParallelLinear(_ParallelLinear):
    """y = x W^T + b, of this rank's columns of x: (..., in_features / ranks) -> (..., out_features). All ranks get y.
    Parameters: weight (out_features, in_features / ranks), bias (out_features,), which all ranks have; see `Linear`."""

    axis = 1

    def forward(self, x: Node) -> Node:
        shape = known_shape(x)
        self.require(shape is None or shape[-1:] == (self.in_features // distributed.size(),), x)
        y = ad.reduce_from_tensor_parallel_op(F.linear(x, self.weight))
        return y if self.bias is None else y + self.bias


class ParallelMultiheadAttention(MultiheadAttention):
    """`MultiheadAttention` of which each rank computes num_heads / ranks heads. All ranks have the inputs and get the
    output. Parameters: in_proj_weight (3 embed_dim / ranks, embed_dim), in_proj_bias (3 embed_dim / ranks,), and those
    of out_proj, a `RowParallelLinear`. With dropout a rank's heads have the masks of the other ranks' heads."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        batch_first: bool = False,
    ) -> None:
        """Raises GraphError as `MultiheadAttention`, and where the ranks do not divide the heads."""
        super().__init__(embed_dim, num_heads, dropout, bias, batch_first=batch_first)
        if self.num_heads % distributed.size():
            raise GraphError(f"ParallelMultiheadAttention: {distributed.size()} ranks do not divide {num_heads} heads")
        self.in_proj_weight = _part(self.in_proj_weight, 0, 3)
        if self.in_proj_bias is not None:
            self.in_proj_bias = _part(self.in_proj_bias, 0, 3)
        self.out_proj = RowParallelLinear.from_linear(self.out_proj)

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
        """As `MultiheadAttention.forward`; `attn_mask` is of all heads."""
        copies = {x: ad.copy_to_tensor_parallel_op(x) for x in (query, key, value)}
        mask, own = as_node(attn_mask), distributed.share(self.num_heads)
        if mask is not None and len(shape := known_shape(mask) or ()) == 3:
            of_heads = ad.reshape_op(mask, (-1, self.num_heads, *shape[1:]))
            mask = ad.reshape_op(of_heads[:, own], (-1, *shape[1:]))
        output, weights = super().forward(
            copies[query], copies[key], copies[value], key_padding_mask, need_weights, mask, is_causal
        )
        if weights is not None:  # the mean over this rank's heads
            weights = ad.reduce_from_tensor_parallel_op(weights) * (1 / distributed.size())
        return output, weights
