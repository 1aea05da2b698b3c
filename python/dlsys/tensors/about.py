"""What tensors tell about themselves: where they lie and how large they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..device import Context
from ..graph import FLOATS, Node
from ..ops import dtype_of, shape_of
from .functions import node_of
from .values import array_of, context_of


def numel(x: Any) -> int:
    """The number of elements."""
    return int(np.prod(shape_of(node_of(x)), dtype=np.int64))


def is_floating_point(x: Any) -> bool:
    """Whether the elements are floats."""
    return dtype_of(node_of(x)) in FLOATS


class About:
    """Questions to a tensor, as methods."""

    __slots__ = ()

    @property
    def device(self: Any) -> Context:
        """Where the value lies, or will be computed: on a GPU where one of the leaves of which it is made lies."""
        return context_of(self)

    @property
    def nbytes(self: Any) -> int:
        """Bytes of all elements."""
        return numel(self) * np.dtype(dtype_of(self)).itemsize

    numel = numel
    is_floating_point = is_floating_point

    def cpu(self: Any) -> Node:
        """`to("cpu")`."""
        return self.to("cpu")

    def cuda(self: Any, device: Any = None) -> Node:
        """`to` a GPU, the first for None."""
        return self.to("cuda" if device is None else f"cuda:{device}" if isinstance(device, int) else device)

    def __contains__(self: Any, value: Any) -> bool:
        return bool((array_of(self).numpy() == np.asarray(value)).any())
