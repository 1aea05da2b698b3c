"""What PyTorch's tensors tell about themselves: where they lie, how large they are, what made them; and limits of
dtypes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from ..device import Context, cpu
from ..errors import DeviceError
from ..graph import FLOATS, Node
from ..ops import dtype_of, shape_of
from . import creation
from .functions import node_of
from .leaves import tensor
from .values import array_of, leaves_that_require_grad


def numel(x: Any) -> int:
    """The number of elements."""
    return int(np.prod(shape_of(node_of(x)), dtype=np.int64))


def is_floating_point(x: Any) -> bool:
    """Whether the elements are floats."""
    return dtype_of(node_of(x)) in FLOATS


class About:
    """Questions to a tensor, and tensors like it, as methods."""

    __slots__ = ()

    @property
    def device(self: Any) -> Context:
        """Where the values lie when Python reads them: the CPU; its `type` is "cpu"."""
        return cpu()

    @property
    def is_cuda(self: Any) -> bool:
        """False: an `Executor` runs graphs on other devices."""
        return False

    @property
    def grad_fn(self: Any) -> Any:
        """The operator that made it, None for what has no gradient and for leaves."""
        return self.op if self.cell is None and leaves_that_require_grad(self) else None

    @property
    def itemsize(self: Any) -> int:
        """Bytes of an element."""
        return np.dtype(dtype_of(self)).itemsize

    @property
    def nbytes(self: Any) -> int:
        """Bytes of all elements."""
        return numel(self) * np.dtype(dtype_of(self)).itemsize

    numel = nelement = numel
    is_floating_point = is_floating_point

    def element_size(self: Any) -> int:
        return np.dtype(dtype_of(self)).itemsize

    def ndimension(self: Any) -> int:
        return len(shape_of(self))

    def stride(self: Any, dim: int | None = None) -> Any:
        """How many elements lie from one index to the next, along each axis or one: values lie in row-major order."""
        steps = tuple(itertools.accumulate((1, *shape_of(self)[:0:-1]), lambda a, b: a * b))[::-1]
        found = steps[len(steps) - len(shape_of(self)) :]
        return found if dim is None else found[dim]

    def is_contiguous(self: Any) -> bool:
        return True

    def cuda(self: Any, *device: Any) -> Node:
        raise DeviceError(
            "cuda: tensors are on the CPU: an Executor runs a graph on another device, ctx=dl.cuda(0)"
        )

    def __contains__(self: Any, value: Any) -> bool:
        return bool((array_of(self).numpy() == np.asarray(value)).any())

    def new_tensor(self: Any, value: Any, dtype: Any = None, requires_grad: bool = False) -> Any:
        """A leaf of the value, in this dtype for None; so `new_zeros`, `new_ones`, `new_empty` and `new_full`."""
        return tensor(value, dtype or dtype_of(self), requires_grad)

    def new_full(
        self: Any, size: Any, fill_value: Any, *, dtype: Any = None, requires_grad: bool = False
    ) -> Any:
        return creation.full(size, fill_value, dtype=dtype or dtype_of(self), requires_grad=requires_grad)

    def new_zeros(self: Any, *size: Any, dtype: Any = None, requires_grad: bool = False) -> Any:
        return creation.zeros(*size, dtype=dtype or dtype_of(self), requires_grad=requires_grad)

    def new_ones(self: Any, *size: Any, dtype: Any = None, requires_grad: bool = False) -> Any:
        return creation.ones(*size, dtype=dtype or dtype_of(self), requires_grad=requires_grad)

    new_empty = new_zeros
