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
    IndexRangeError,
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
    )
    from .eager.creation import zeros

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


_DTYPES = ("bool", "float32", "float64", "int32", "int64", "uint32")  # `dl.int64`: the name itself
_MODULES = ("autodiff", "data", "nn", "optim", "random", "serialization", "training", "tvm_op")
_FROM = {
    "eager": (
        *("Tensor", "enable_grad", "from_dlpack", "grad", "is_grad_enabled", "is_tensor", "no_grad", "tensor"),
        "value_and_grad",
    ),
    "eager.creation": (
        *("arange", "eye", "full", "full_like", "linspace", "ones", "ones_like", "tril", "triu", "zeros", "zeros_like"),
    ),
    "eager.functions": (
        *("abs", "add", "allclose", "ceil", "clamp", "clip", "cos", "div", "eq", "equal"),
        *("erf", "exp", "expm1", "floor", "floor_divide", "ge", "gt", "isclose", "isfinite", "isinf"),
        *("isnan", "le", "log", "log10", "log1p", "log2", "logical_and", "logical_not", "logical_or"),
        *("logical_xor", "lt", "masked_fill", "maximum", "minimum", "mul", "ne", "neg"),
        *("pow", "reciprocal", "relu", "remainder", "round", "rsqrt", "sigmoid", "sign"),
        *("sin", "sqrt", "square", "sub", "tanh", "where"),
    ),
    "eager.index": ("gather", "index_select", "masked_select", "nonzero", "repeat_interleave", "take"),
    "eager.products": ("bmm", "dot", "einsum", "matmul", "mm", "outer"),
    "eager.reductions": (
        *("all", "amax", "amin", "any", "argmax", "argmin", "argsort", "cumsum", "log_softmax", "logsumexp", "max"),
        *("mean", "min", "norm", "prod", "softmax", "sort", "std", "sum", "topk", "var"),
    ),
    "eager.shapes": (
        *("broadcast_to", "cat", "chunk", "concat", "concatenate", "flatten", "flip", "movedim"),
        *("one_hot", "permute", "reshape", "roll", "split", "squeeze", "stack", "swapaxes"),
        *("transpose", "unbind", "unsqueeze"),
    ),
    "random": ("manual_seed", "rand", "rand_like", "randint", "randn", "randn_like", "randperm"),
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
    if name in _DTYPES:
        return name
    if name in __all__:
        from . import device

        return getattr(device, name)
    raise AttributeError(f"module 'dlsys' has no attribute {name!r}")
