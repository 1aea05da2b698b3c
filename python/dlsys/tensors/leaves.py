"""Leaves: tensors that hold data."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..device import Context, host_array
from ..errors import DeviceError, DTypeError
from ..graph import DTYPES, FLOATS, INTEGERS, Node
from ..ops import cast_op, dtype_name, known_dtype
from ..ops import leaf as leaf_of


def require_cpu(device: Any) -> None:
    """Raises DeviceError for a device that is named and is not the CPU, where tensors are."""
    name = device if isinstance(device, str) else device.kind if isinstance(device, Context) else str(device or "cpu")
    if name.split(":")[0] != "cpu":
        raise DeviceError(f"tensors are on the CPU, not on {device}: an Executor runs a graph on another device")


def is_tensor(value: Any) -> bool:
    """Whether the value is a tensor: a node of any kind."""
    return isinstance(value, Node)


def is_leaf(value: Any) -> bool:
    """Whether the value is a tensor that holds data."""
    return isinstance(value, Node) and value.cell is not None


def leaf(value: Any, requires_grad: bool = False, name: str | None = None, device: Any = None) -> Any:
    """A leaf in the memory of a new array. Raises DTypeError where it shall have a gradient and is of no floats,
    DeviceError for a device that is not the CPU."""
    require_cpu(device)
    if requires_grad and str(value.dtype) not in FLOATS:
        raise DTypeError(f"tensor: only floats have gradients, not {value.dtype}")
    made: Any = leaf_of(value, name)
    made.requires_grad = bool(requires_grad)
    return made


def values_of(value: Any, dtype: Any = None) -> np.ndarray:
    """A copy of what `tensor` takes, as a NumPy array of a dtype that operators know. Raises DTypeError."""
    given = np.asarray(host_array(value, None))
    if dtype is None and given.dtype == np.float64 and not hasattr(value, "dtype"):
        dtype = np.float32
    if dtype is not None:
        known = dtype_name("tensor", dtype)
        if given.dtype.kind in "iu" and known in INTEGERS and not hasattr(value, "dtype"):
            limits = np.iinfo(known)
            if given.size and not (limits.min <= given.min() and given.max() <= limits.max):
                raise DTypeError(f"tensor: a number from {given.min()} to {given.max()} is no {known}")
        given = given.astype(known, copy=False)
    if str(given.dtype) not in DTYPES:
        raise DTypeError(f"tensor: dtype {given.dtype} is not one of {', '.join(DTYPES)}: give dtype=")
    return np.array(given, order="C")


def tensor(
    value: Any, dtype: Any = None, requires_grad: bool = False, name: str | None = None, device: Any = None
) -> Any:
    """A leaf that holds a copy of `value`.

    Args:
        value: a NumPy, dlsys or TVM array, anything with `__dlpack__`, a number or nested lists; another tensor's
            value. Python's floats become float32, its integers int64.
        dtype: to cast to; None keeps the array's.
        requires_grad: whether `backward` fills its `grad`; a float dtype is needed.
        device: the CPU, or None.

    Raises DTypeError for what is no array of numbers or of a dtype that operators do not know, DeviceError.
    """
    require_cpu(device)
    return leaf(values_of(value, dtype), requires_grad, name)


def as_tensor(value: Any, dtype: Any = None, device: Any = None) -> Any:
    """A tensor as it is, anything else by `tensor`; in another dtype where one is given. Raises DTypeError,
    DeviceError."""
    require_cpu(device)
    if not isinstance(value, Node):
        return tensor(value, dtype)
    known = None if dtype is None else dtype_name("as_tensor", dtype)
    return value if known in (None, known_dtype(value)) else cast_op(value, known)


def from_numpy(value: Any) -> Any:
    """A leaf that shares the memory of a NumPy array until the leaf is written, see `from_dlpack`. Raises DTypeError
    for anything else."""
    if not isinstance(value, np.ndarray):
        raise DTypeError(f"from_numpy: takes a NumPy array, not {type(value).__name__}")
    return from_dlpack(value)


def from_dlpack(value: Any) -> Any:
    """A leaf that shares the memory of an array of PyTorch, JAX, NumPy or TVM until the leaf is written, which gives it
    memory of its own; copied where it is not contiguous or lies on another device, or is read-only. Raises DTypeError
    for what cannot be shared."""
    if not hasattr(value, "__dlpack__"):
        raise DTypeError(f"from_dlpack: {type(value).__name__} has no __dlpack__")
    host = host_array(value)
    return leaf(value if host.flags.writeable else host.copy())  # what is shared may be written
