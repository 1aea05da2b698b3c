"""needle's `backend_ndarray` and `backend_selection`: its arrays, which are NumPy's here, and its devices."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..device import Context, cpu, cuda
from ..device import numpy as cpu_numpy
from ..errors import GraphError
from .leaves import require_cpu

BACKEND = "np"
"""needle's setting of what computes arrays."""


class NDArray(np.ndarray[Any, Any]):
    """`NDArray(values, device=None)`: a copy, floats of 32 bits, as a NumPy array with needle's methods besides. A
    tensor's `cached_data` is one, which shares the tensor's memory."""

    def __new__(cls, other: Any, device: Any = None) -> NDArray:
        """Raises DeviceError for another device than the CPU."""
        require_cpu(device)
        return np.array(other, np.float32).view(cls)

    @property
    def device(self) -> Context:  # type: ignore[override]
        """The CPU."""
        return cpu()

    def numpy(self) -> np.ndarray:
        """A copy as an array of NumPy's own type."""
        return np.array(self)

    def broadcast_to(self, shape: Any) -> NDArray:
        """`np.broadcast_to`."""
        return np.broadcast_to(self, shape, subok=True)  # type: ignore[return-value]

    def compact(self) -> NDArray:
        """Itself, or a copy whose elements lie one behind the other."""
        return self if self.is_compact() else self.copy(order="C")

    def is_compact(self) -> bool:
        """Whether the elements lie one behind the other."""
        return self.flags.c_contiguous

    def flip(self, axes: Any) -> NDArray:
        """`np.flip`."""
        return np.flip(self, axes)

    def pad(self, axes: Any) -> NDArray:
        """Zeros before and behind each axis: ((before, behind), ...). Raises GraphError."""
        if len(axes) != self.ndim:
            raise GraphError(f"pad: {len(axes)} pairs for {self.ndim} axes")
        return np.pad(np.asarray(self), axes).view(NDArray)

    def permute(self, axes: Any) -> NDArray:
        """`np.transpose`."""
        return self.transpose(axes)


def array(values: Any, dtype: Any = "float32", device: Any = None) -> NDArray:
    """A copy of the values. Raises DeviceError for another device than the CPU."""
    require_cpu(device)
    return np.array(values, dtype or "float32").view(NDArray)


def default_device() -> Context:
    """Where tensors are: the CPU."""
    return cpu()


def all_devices() -> list[Context]:
    """The devices on which this machine can run a graph."""
    return [cpu(), *(cuda(index) for index in range(cuda.device_count())), cpu_numpy()]


__all__ = ["BACKEND", "NDArray", "all_devices", "array", "cpu", "cpu_numpy", "cuda", "default_device"]
