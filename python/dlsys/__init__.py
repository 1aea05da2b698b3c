"""dlsys: computation graphs, differentiated, planned, and compiled to kernels that TVM generates.

import dlsys as dl
from dlsys import autodiff as ad, tvm_op
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from .hooks import install
from .system import limit_threads

__version__ = "0.1.0"

# TVM cannot be imported by a user without a home, as in a container; this one can hold nothing.
if not os.path.isabs(os.path.expanduser("~")):
    os.environ["HOME"] = os.devnull
limit_threads()
# TVM would bind the calling thread, and so all that it starts, to one core: NumPy's and PyTorch's threads, and ours.
os.environ.setdefault("TVM_BIND_THREADS", "0")


def _of(module: str, name: str) -> Callable[[], Any]:
    """Imports a module, and returns a function of it, or of an object in it."""
    return lambda: attrgetter(name)(importlib.import_module(module, __name__))


install("operate", _of(".ops.operators", "operate"))
install("settled", _of(".tensors.inplace", "settled"))
install("type_of", _of(".ops.replay", "declared_type"))
install("compute_arrays", _of(".tensors.ufuncs", "computed"))
install("adjoints", _of(".gradients", "adjoints"))
install("gradient_as_tuple", _of(".gradients", "gradient_as_tuple"))
install("random_numbers", _of(".random", "default_generator.numpy"))

_NAMES = {
    "math": "e inf nan pi",
    "": "autodiff data devices distributed distributions errors kernels needle nn ops optim random relax "
    "serialization training tvm_op",
    ".deploy": "export freeze",
    ".devices": "Array Context array context cpu cuda device get_float32_matmul_precision get_num_threads gpu numpy "
    "set_float32_matmul_precision set_flush_denormal set_num_threads",
    ".errors": "DataError DeviceError DlsysError DTypeError FeedError GraphError IndexRangeError "
    "KernelArgumentError OperatorError PlanError ShapeError StateError TargetError",
    ".exchange": "from_onnx from_torch to_onnx",
    ".operator_check": "check_operator",
    ".ops.primitive": "primitive",
    ".ops.scan": "scan",
    ".random": "Generator bernoulli manual_seed multinomial rand rand_like randint randn randn_like randperm",
    ".rpc": "remote",
    ".scopes": "autocast enable_grad inference_mode is_grad_enabled no_grad set_grad_enabled",
    ".serialization": "load save",
    ".tensors": "Tensor autograd compile linalg",
    ".tensors.about": "clone finfo iinfo is_floating_point numel",
    ".tensors.creation": "FloatTensor LongTensor arange as_tensor empty empty_like eye from_dlpack from_numpy full "
    "full_like is_tensor linspace ones ones_like tensor zeros zeros_like",
    ".tensors.elementwise": "abs add addcdiv addcmul bitwise_and bitwise_not bitwise_or bitwise_xor ceil clamp clip "
    "cos div eq erf exp exp2 expm1 floor floor_divide fmod ge gt isclose isfinite isinf isnan le lerp log log1p log2 "
    "log10 logaddexp logical_and logical_not logical_or logical_xor logit lt masked_fill matmul maximum minimum mul "
    "nan_to_num ne neg pow reciprocal relu remainder round rsqrt sigmoid sign sin sqrt square sub tanh trunc where",
    ".tensors.index": "bincount gather index_add index_select masked_select nonzero scatter scatter_add "
    "scatter_reduce searchsorted take_along_dim unique unique_consecutive",
    ".tensors.linalg": "cdist",
    ".tensors.products": "addmm bmm dot einsum mm mv outer tensordot",
    ".tensors.reductions": "all allclose amax amin any argmax argmin argsort count_nonzero cumprod cumsum equal "
    "log_softmax logsumexp max mean min nansum norm prod softmax sort std std_mean sum topk var var_mean",
    ".tensors.shapes": "atleast_1d atleast_2d broadcast_to cat chunk diag diagonal diff flatten flip hstack "
    "meshgrid movedim narrow permute ravel repeat_interleave reshape roll split squeeze stack swapaxes t tile trace "
    "transpose tril triu unbind unflatten unsqueeze vstack",
    ".tensors.trigonometry": "acos acosh asin asinh atan atan2 atanh cosh sinh tan",
    ".training": "accuracy evaluate_on fit",
}
"""The public names by the modules that they are from, which are loaded at first use: importing TVM takes a second that
`dlsys.data` need not pay. `tools/stubs.py` writes `__init__.pyi` from it, which editors and checkers read."""
PUBLIC = {name: module for module, names in _NAMES.items() for name in names.split()}
"""The module of each of these names."""

CONSTANTS = {
    "bool": "bool", "uint8": "uint8", "uint32": "uint32", "int32": "int32", "int64": "int64", "bfloat16": "bfloat16",
    "float16": "float16", "float32": "float32", "float64": "float64", "int": "int32", "long": "int64",
    "float": "float32", "double": "float64", "newaxis": None,
}  # fmt: skip
"""dtypes, by PyTorch's other names too, of which float16 and bfloat16 are of `autocast` alone."""
globals().update(CONSTANTS)


def __dir__() -> list[str]:
    """Every public name, loaded or not."""
    return sorted({*globals(), *PUBLIC})


def __getattr__(name: str) -> Any:
    """A public name of another module, at first use."""
    if name == "__all__":
        return [*(name for name, module in PUBLIC.items() if module in (".devices", ".errors")), "empty", "zeros"]
    if name not in PUBLIC:
        raise AttributeError(f"module 'dlsys' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    module = PUBLIC[name]
    found = importlib.import_module(module or f".{name}", __name__)
    found = getattr(found, name) if module else found
    globals()[name] = found  # this function is not asked again
    return found
