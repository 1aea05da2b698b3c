"""dlsys: computation graphs, differentiated, planned, and compiled to kernels that TVM generates.

import dlsys as dl
from dlsys import autodiff as ad, tvm_op
"""

from __future__ import annotations

import importlib
import math
import os
from typing import TYPE_CHECKING, Any

from .errors import (
    DataError,
    DeviceError,
    DlsysError,
    DTypeError,
    FeedError,
    GraphError,
    IndexRangeError,
    KernelArgumentError,
    ShapeError,
    TargetError,
)
from .hooks import computes_arrays, finds_adjoints, makes_nodes
from .names import FUNCTIONS
from .system import limit_threads

if TYPE_CHECKING:
    from .device import (
        Array,
        Context,
        array,
        context,
        cpu,
        cuda,
        get_float32_matmul_precision,
        get_num_threads,
        gpu,
        numpy,
        set_float32_matmul_precision,
        set_flush_denormal,
        set_num_threads,
    )
    from .tensors.creation import empty, zeros

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
    "IndexRangeError",
    "KernelArgumentError",
    "ShapeError",
    "TargetError",
    "array",
    "context",
    "cpu",
    "cuda",
    "empty",
    "get_float32_matmul_precision",
    "get_num_threads",
    "gpu",
    "numpy",
    "set_float32_matmul_precision",
    "set_flush_denormal",
    "set_num_threads",
    "zeros",
]

# TVM cannot be imported by a user without a home, as in a container; this one can hold nothing.
if not os.path.isabs(os.path.expanduser("~")):
    os.environ["HOME"] = os.devnull
limit_threads()
# TVM would bind the calling thread, and so all that it starts, to one core: NumPy's and PyTorch's threads, and ours.
os.environ.setdefault("TVM_BIND_THREADS", "0")


def _new_tensor(*args: Any) -> Any:
    """The first node; `new_tensor` itself makes all others."""
    makes_nodes(new_tensor := importlib.import_module(".tensors.base", __name__).new_tensor)
    return new_tensor(*args)


def _computed(*args: Any) -> Any:
    """The first arithmetic of arrays, as above."""
    computes_arrays(computed := importlib.import_module(".tensors.array_arithmetic", __name__).computed)
    return computed(*args)


def _adjoints(*args: Any) -> Any:
    """The first gradient of a loop, as above."""
    finds_adjoints(adjoints := importlib.import_module(".gradients", __name__).adjoints)
    return adjoints(*args)


makes_nodes(_new_tensor)
computes_arrays(_computed)
finds_adjoints(_adjoints)

_DTYPES = {name: name for name in ("bool", "float32", "float64", "int32", "int64", "uint8", "uint32")}  # `dl.int64`
_DTYPES |= {name: name for name in ("bfloat16", "float16")}  # of `autocast` alone
_DTYPES |= {"double": "float64", "float": "float32", "int": "int32", "long": "int64"}  # PyTorch's other names
_NUMBERS = {"e": math.e, "inf": math.inf, "nan": math.nan, "newaxis": None, "pi": math.pi}
_MODULES = (
    *("autodiff", "data", "device", "kernels", "needle", "nn", "ops", "optim", "random", "relax", "serialization"),
    *("training", "tvm_op"),
)
_ELSEWHERE = {"autograd": ".tensors.autograd"}
_FROM = {
    "tensors": (
        *("Tensor", "as_tensor", "enable_grad", "from_dlpack", "from_numpy", "inference_mode", "is_grad_enabled"),
        *("is_tensor", "no_grad", "set_grad_enabled", "tensor"),
    ),
    "tensors.about": ("is_floating_point", "numel"),
    "tensors.creation": ("arange", "empty", "eye", "full", "ones", "ones_like", "zeros", "zeros_like"),
    "ops.scan": ("scan",),
    "scopes": ("autocast",),
    "tensors.reductions": ("where",),
    "tensors.shapes": ("cat", "stack"),
    "random": ("manual_seed", "multinomial", "rand", "randint", "randn"),
    "serialization": ("load", "save"),
    "exchange": ("freeze", "from_onnx", "from_torch", "to_onnx"),
    "training": ("accuracy", "evaluate_on", "fit"),
}
_HOME = {
    name: module
    for table in (_FROM, {f"tensors.{part}": names for part, names in FUNCTIONS.items()})
    for module, names in table.items()
    for name in names
}


def __dir__() -> list[str]:
    """Every public name, loaded or not."""
    return sorted({*globals(), *__all__, *_HOME, *_ELSEWHERE, *_MODULES, *_DTYPES, *_NUMBERS})


def __getattr__(name: str) -> Any:
    """Names of other modules, and these, at first use: importing TVM takes a second that `dlsys.data` need not pay."""
    if name in _ELSEWHERE:
        return importlib.import_module(_ELSEWHERE[name], __name__)
    if name in _HOME:
        return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name in _DTYPES:
        return _DTYPES[name]
    if name in _NUMBERS:
        return _NUMBERS[name]
    if name in __all__:
        from . import device

        return getattr(device, name)
    raise AttributeError(f"module 'dlsys' has no attribute {name!r}")
