"""What tensors tell about themselves: where they lie and how large they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..device import Context, cpu
from ..errors import DeviceError
from ..graph import FLOATS, Node
from ..ops import dtype_of, shape_of
from .functions import node_of
from .values import array_of


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
        """Where the values lie when Python reads them: the CPU; its `type` is "cpu"."""
        return cpu()

    @property
    def nbytes(self: Any) -> int:
        """Bytes of all elements."""
        return numel(self) * np.dtype(dtype_of(self)).itemsize

    numel = numel
    is_floating_point = is_floating_point

    def cuda(self: Any, *device: Any) -> Node:
        """Raises DeviceError: an `Executor` runs graphs on other devices."""
        raise DeviceError("cuda: tensors are on the CPU: an Executor runs a graph on another device, ctx=dl.cuda(0)")

    def __contains__(self: Any, value: Any) -> bool:
        return bool((array_of(self).numpy() == np.asarray(value)).any())
