"""needle's arrays and devices: `NDArray` is NumPy's array with needle's methods, views and strides in elements."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import DeviceError, GraphError

BACKEND = os.environ.get("NEEDLE_BACKEND", "nd")
"""The backend whose dtypes tensors have: "nd", that of hw3 and hw4, float32; "np", NumPy, that of hw1 and hw2, those of
NumPy's arrays of floats."""


class BackendDevice(NamedTuple):
    """A device. Tensors are on the CPU, which stands for `cpu_numpy()` too; an `Executor` runs graphs elsewhere."""

    name: str

    def __repr__(self) -> str:
        return f"{self.name}()"

    def enabled(self) -> bool:
        """Whether tensors can be made on it."""
        return self.name == "cpu"

    def rand(self, *shape: int, dtype: str = "float32") -> NDArray:
        """Uniform numbers of [0, 1), from `np.random`."""
        return array(np.random.rand(*shape), dtype, self)

    def randn(self, *shape: int, dtype: str = "float32") -> NDArray:
        """Numbers of the standard normal distribution, from `np.random`."""
        return array(np.random.randn(*shape), dtype, self)

    def one_hot(self, n: int, i: Any, dtype: str = "float32") -> NDArray:
        """Ones at the numbers `i` along a new last axis of extent n, zeros elsewhere."""
        return array(np.eye(n)[np.asarray(i).astype(np.int64)], dtype, self)

    def empty(self, shape: Any, dtype: str = "float32") -> NDArray:
        """An array of undefined values."""
        return array(np.empty(shape), dtype, self)

    def full(self, shape: Any, fill_value: float, dtype: str = "float32") -> NDArray:
        """An array of one value."""
        return array(np.full(shape, fill_value), dtype, self)


def require_cpu(device: Any) -> None:
    """Raises DeviceError for a device on which tensors cannot be made."""
    if device is not None and not (hasattr(device, "enabled") and device.enabled()):
        raise DeviceError(f"tensors are on the CPU, not on {device}: an Executor runs a graph on another device")


class NDArray(np.ndarray[Any, Any]):
    """`NDArray(values, device=None)`: a copy in float32. A tensor's `cached_data` is one, in the tensor's memory.
    Strides are in elements."""

    def __new__(cls, other: Any, device: Any = None) -> NDArray:
        """Raises DeviceError for another device than the CPU."""
        return array(other, "float32", device)

    @staticmethod
    def make(shape: Sequence[int], strides: Any = None, device: Any = None) -> Any:
        """An array of a shape in new memory, with strides in elements."""
        made = empty(shape, device=device)
        return made if strides is None else made.as_strided(shape, strides)

    @staticmethod
    def compact_strides(shape: Sequence[int]) -> tuple[int, ...]:
        """The strides, in elements, of an array whose elements lie one behind the other."""
        return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))

    @property  # type: ignore[misc]  # NumPy's can be set
    def strides(self) -> tuple[int, ...]:
        """How many elements lie from one index to the next, for each axis."""
        return tuple(step // self.itemsize for step in np.ndarray.strides.__get__(self))

    @property
    def device(self) -> Any:
        """The CPU."""
        return cpu()

    def numpy(self) -> np.ndarray:
        """A copy as an array of NumPy's own type."""
        return np.array(self)

    def is_compact(self) -> bool:
        """Whether it is all of its memory, in order."""
        whole: Any = self
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        return bool(self.flags.c_contiguous and whole.size == self.size)

    def compact(self) -> NDArray:
        """Itself, or a copy whose elements lie one behind the other in memory of its own."""
        return self if self.is_compact() else self.copy(order="C")

    def as_strided(self, shape: Sequence[int], strides: Sequence[int]) -> Any:
        """The same memory under another shape and strides, in elements."""
        steps = [self.itemsize * step for step in strides]
        return np.lib.stride_tricks.as_strided(self, shape, steps, subok=True)

    def permute(self, new_axes: Sequence[int]) -> NDArray:
        """A view with the axes in another order."""
        return self.transpose(new_axes)

    def broadcast_to(self, new_shape: Sequence[int]) -> Any:
        """A view broadcast to a shape."""
        return np.broadcast_to(self, new_shape, subok=True)

    def flip(self, axes: Any) -> Any:
        """A copy turned round along axes."""
        return np.flip(self, axes).copy()

    def pad(self, axes: Any) -> Any:
        """Zeros before and behind each axis: ((before, behind), ...). Raises GraphError."""
        if len(axes) != self.ndim:
            raise GraphError(f"pad: {len(axes)} pairs for {self.ndim} axes")
        return np.pad(np.asarray(self), axes).view(NDArray)

    def maximum(self, other: Any) -> Any:
        """The larger of two, at each index. So `log`, `exp`, `tanh`, of one."""
        return np.maximum(self, other)

    def log(self) -> Any:
        return np.log(self)

    def exp(self) -> Any:
        return np.exp(self)

    def tanh(self) -> Any:
        return np.tanh(self)


def array(a: Any, dtype: Any = "float32", device: Any = None) -> NDArray:
    """A copy of the values. Raises DeviceError for another device than the CPU."""
    require_cpu(device)
    return np.array(a, dtype or "float32", order="C").view(NDArray)


def empty(shape: Any, dtype: str = "float32", device: Any = None) -> NDArray:
    """An array of undefined values."""
    return array(np.empty(shape), dtype, device)


def full(shape: Any, fill_value: float, dtype: str = "float32", device: Any = None) -> NDArray:
    """An array of one value."""
    return array(np.full(shape, fill_value), dtype, device)


def cpu() -> BackendDevice:
    """The CPU. So `cpu_numpy`, `default_device`."""
    return BackendDevice("cpu")


cpu_numpy = default_device = cpu
broadcast_to, reshape, maximum, flip, sum = NDArray.broadcast_to, np.reshape, np.maximum, np.flip, np.sum
log, exp, tanh = np.log, np.exp, np.tanh


def cuda() -> BackendDevice:
    """The GPU, on which tensors cannot be made."""
    return BackendDevice("cuda")


def all_devices() -> list[BackendDevice]:
    """needle's devices; `enabled` says where tensors can be."""
    return [cpu(), cuda()]
