"""Arrays under the names of the course's assignment of 2017: `ndarray.array(x, ctx=ndarray.gpu(0))`."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import devices
from .devices import Array as NDArray
from .devices import Context, context, cpu, gpu

__all__ = ["NDArray", "array", "cpu", "empty", "gpu", "is_gpu_ctx"]


def array(arr: Any, ctx: Any = None) -> NDArray:
    """A copy on a context, the CPU for None, as float32. Raises DTypeError, DeviceError."""
    return devices.array(np.asarray(arr, "float32"), ctx)


def empty(shape: Any, ctx: Any = None, dtype: Any = "float32") -> NDArray:
    """An array of undefined values. Raises ShapeError, DTypeError, DeviceError."""
    return devices.empty(shape, dtype, ctx)


def is_gpu_ctx(ctx: Any) -> bool:
    """Whether a context is a GPU."""
    return ctx is not None and (ctx if isinstance(ctx, Context) else context(ctx)).kind == "cuda"
