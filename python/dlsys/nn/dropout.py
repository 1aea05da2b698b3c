"""Dropout: Srivastava et al. (2014)."""

from __future__ import annotations

from ..autodiff import Node
from . import functional as F
from .checks import checked_share
from .module import Module


class _Dropout(Module):
    """What drops with probability p."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        """`inplace` changes nothing. Raises GraphError for a p outside [0, 1]."""
        self.p = checked_share(type(self).__name__, "p", p)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class Dropout(_Dropout):
    """In training, x with elements set to 0 with probability p, the others divided by 1 - p; else x.

    Each call has a stream of `dlsys.random.default_generator`, and each run of a graph draws anew; forward and
    backward of one run have one mask.
    """

    def forward(self, x: Node) -> Node:
        return F.dropout(x, self.p, self.training)


class Dropout2d(_Dropout):
    """In training, x (N, C, H, W) with whole channels of an example set to 0 with probability p, the others divided by
    1 - p; else x: Tompson et al. (2015). Draws as Dropout does."""

    def forward(self, x: Node) -> Node:
        return F.dropout2d(x, self.p, self.training)


class Dropout1d(_Dropout):
    """Dropout2d of (N, C, L) or (C, L)."""

    def forward(self, x: Node) -> Node:
        return F.dropout1d(x, self.p, self.training)


class AlphaDropout(_Dropout):
    """In training, x with elements at SELU's lowest value with probability p, scaled so that mean and variance stay;
    else x: Klambauer et al. (2017)."""

    def forward(self, x: Node) -> Node:
        return F.alpha_dropout(x, self.p, self.training)
