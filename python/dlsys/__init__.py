"""dlsys: computation graphs, differentiated, planned, and compiled to kernels that TVM generates.

import dlsys as dl
from dlsys import autodiff as ad, tvm_op
"""

from __future__ import annotations

import importlib
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
from .system import available_cores

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
os.environ.setdefault("TVM_NUM_THREADS", str(available_cores()))
# TVM would bind the calling thread, and so all that it starts, to one core: NumPy's and PyTorch's threads, and ours.
os.environ.setdefault("TVM_BIND_THREADS", "0")


_MODULES = ("autodiff", "data", "nn", "optim", "random", "serialization", "training", "tvm_op")
_FROM = {
    "eager": ("Tensor", "from_dlpack", "grad", "tensor", "value_and_grad"),
    "random": ("manual_seed", "rand", "randn"),
    "serialization": ("load", "load_checkpoint", "save", "save_checkpoint"),
    "training": ("accuracy", "evaluate_on", "fit"),
}


def __getattr__(name: str) -> Any:
    """Names of other modules, and these, at first use: importing TVM takes a second that `dlsys.data` need not pay."""
    if name == "autodiff":  # nodes are tensors, for whoever meets them
        importlib.import_module(".eager", __name__)
    for module, names in _FROM.items():
        if name in names:
            return getattr(importlib.import_module(f".{module}", __name__), name)
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name in __all__:
        from . import device

        return getattr(device, name)
    raise AttributeError(f"module 'dlsys' has no attribute {name!r}")
