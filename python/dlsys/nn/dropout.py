"""Dropout: Srivastava et al. (2014)."""

from __future__ import annotations

from ..autodiff import Node
from ..checks import number
from . import functional as F
from .module import Module


class Dropout(Module):
    """In training, x with elements set to 0 with probability p, the others divided by 1 - p; else x.

    Each call has a stream of `dlsys.random.default_generator`, and each run of a graph draws anew; forward and
    backward of one run have one mask.
    """

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        """`inplace` changes nothing. Raises GraphError for a p outside [0, 1]."""
        self.p = number("Dropout", "p", p, most=1)

    def forward(self, x: Node) -> Node:
        return F.dropout(x, self.p, self.training)
