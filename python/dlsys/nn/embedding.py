"""Vectors of numbered things."""

from __future__ import annotations

import operator
from typing import Any

from ..autodiff import Node
from ..checks import integer
from ..errors import GraphError
from . import functional as F
from . import init
from .checks import placed
from .module import Module


class Embedding(Module):
    """The rows of `weight` with the numbers `indices`, integers: (...) -> (..., embedding_dim). DTypeError for floats;
    IndexRangeError for a number that is no row's, where its value is at hand.

    Parameters: weight (num_embeddings, embedding_dim), drawn from the standard normal distribution. The number
    `padding_idx` has the vector 0 and its row no gradient. (PyTorch reads that row, which is 0 unless it was set.)
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        """Negative numbers of padding_idx count from the end. Raises GraphError where it is no row's."""
        dtype = placed(device, dtype)
        self.num_embeddings = num_embeddings = integer("Embedding", "num_embeddings", num_embeddings, 1)
        self.embedding_dim = embedding_dim = integer("Embedding", "embedding_dim", embedding_dim, 1)
        self.padding_idx = None
        self.weight = init.made((num_embeddings, embedding_dim), dtype, "weight")
        if padding_idx is not None:
            try:
                row = operator.index(padding_idx)
            except TypeError:
                raise GraphError(f"Embedding: padding_idx must be an integer, not {padding_idx!r}") from None
            if not -num_embeddings <= row < num_embeddings:
                raise GraphError(f"Embedding: padding_idx {row} is no row of {num_embeddings}")
            self.padding_idx = row % num_embeddings
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the initial values anew."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            value = self.weight.value
            value[self.padding_idx] = 0
            self.weight.value = value

    def forward(self, indices: Node) -> Node:
        return F.embedding(indices, self.weight, self.padding_idx)
