"""What PyTorch's tensors tell about themselves: where they lie, how large they are, what made them; and limits of
dtypes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from ..autodiff import Node, Parameter
from ..device import Context, cpu
from ..errors import DeviceError, DTypeError
from ..graph import FLOATS, INTEGERS
from ..ops import dtype_name, dtype_of, joint_dtype, promoted, shape_of
from . import creation, hooks
from .functions import node_of
from .leaves import tensor
from .running import array_of, leaves_that_require_grad


def numel(x: Any) -> int:
    """The number of elements."""
    return int(np.prod(shape_of(node_of(x)), dtype=np.int64))


def is_floating_point(x: Any) -> bool:
    """Whether the elements are floats."""
    return dtype_of(node_of(x)) in FLOATS


def finfo(dtype: Any = "float32") -> np.finfo:
    """NumPy's limits of a float dtype: `eps`, `max`, `min`, `tiny`. Raises DTypeError for no such."""
    known = dtype_name("finfo", dtype)
    if known not in FLOATS:
        raise DTypeError(f"finfo: {known} is no dtype of floats: see iinfo")
    return np.finfo(known)


def iinfo(dtype: Any) -> np.iinfo:
    """NumPy's limits of an integer dtype: `max`, `min`. Raises DTypeError for no such."""
    known = dtype_name("iinfo", dtype)
    if known not in INTEGERS:
        raise DTypeError(f"iinfo: {known} is no dtype of integers: see finfo")
    return np.iinfo(known)


def promote_types(a: Any, b: Any) -> str:
    """The dtype of what two tensors of these dtypes, both with axes, give together."""
    return joint_dtype(dtype_name("promote_types", a), dtype_name("promote_types", b))


def result_type(a: Any, b: Any) -> str:
    """The dtype of what two tensors give together."""
    return dtype_of(promoted(node_of(a), node_of(b))[0])


class About:
    """Questions to a tensor, and tensors like it, as methods."""

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
        return self.op if not isinstance(self, Parameter) and leaves_that_require_grad(self) else None

    @property
    def retains_grad(self: Any) -> bool:
        """Whether `backward` leaves the gradient here although this is no leaf."""
        return hooks.retains_grad(self)

    @property
    def itemsize(self: Any) -> int:
        """Bytes of an element."""
        return np.dtype(dtype_of(self)).itemsize

    @property
    def nbytes(self: Any) -> int:
        """Bytes of all elements."""
        return numel(self) * np.dtype(dtype_of(self)).itemsize

    register_hook, retain_grad = hooks.register_hook, hooks.retain_grad
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

    def new_tensor(self: Any, value: Any, dtype: Any = None, requires_grad: bool = False) -> Parameter:
        """A leaf of the value, in this dtype for None; so `new_zeros`, `new_ones`, `new_empty` and `new_full`."""
        return tensor(value, dtype or dtype_of(self), requires_grad)

    def new_full(
        self: Any, size: Any, fill_value: Any, *, dtype: Any = None, requires_grad: bool = False
    ) -> Parameter:
        return creation.full(size, fill_value, dtype=dtype or dtype_of(self), requires_grad=requires_grad)

    def new_zeros(self: Any, *size: Any, dtype: Any = None, requires_grad: bool = False) -> Parameter:
        return creation.zeros(*size, dtype=dtype or dtype_of(self), requires_grad=requires_grad)

    def new_ones(self: Any, *size: Any, dtype: Any = None, requires_grad: bool = False) -> Parameter:
        return creation.ones(*size, dtype=dtype or dtype_of(self), requires_grad=requires_grad)

    new_empty = new_zeros
