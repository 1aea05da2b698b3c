"""dlsys: computation graphs, differentiated, planned, and compiled to kernels that TVM generates.

import dlsys as dl
from dlsys import autodiff as ad, tvm_op
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from .errors import (
    DataError,
    DeviceError,
    DlsysError,
    DTypeError,
    FeedError,
    GraphError,
    KernelArgumentError,
    ShapeError,
    TargetError,
)

if TYPE_CHECKING:
    from .device import (
        Array,
        Context,
        array,
        context,
        cpu,
        cuda,
        empty,
        get_num_threads,
        gpu,
        numpy,
        set_num_threads,
        zeros,
    )

__version__ = "0.1.0"

__all__ = [
    "Array",
    "Context",
    "DTypeError",
    "DataError",
    "DeviceError",
    "DlsysError",
    "FeedError",
    "GraphError",
    "KernelArgumentError",
    "ShapeError",
    "TargetError",
    "array",
    "context",
    "cpu",
    "cuda",
    "empty",
    "get_num_threads",
    "gpu",
    "numpy",
    "set_num_threads",
    "zeros",
]

# TVM reads this once, when its thread pool starts; its own default is half of the logical cores.
_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
os.environ.setdefault("TVM_NUM_THREADS", str(_cores))


def __getattr__(name: str) -> Any:
    """Names of `dlsys.device`, at first use: importing TVM takes a second that `dlsys.data` need not pay."""
    if name in __all__:
        from . import device

        return getattr(device, name)
    raise AttributeError(f"module 'dlsys' has no attribute {name!r}")
