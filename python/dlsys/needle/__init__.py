"""needle, the framework of the CMU course 10-414/714, on this engine: `import dlsys.needle as ndl`.

Tensors, operators, modules, optimizers and data have needle's names, arguments and meaning where PyTorch's differ: a
tensor requires a gradient, weights are (in, out), random numbers are drawn from `np.random`. What is computed, how and
when, is the rest of the package's: values on demand, compiled by TVM.
"""

from __future__ import annotations

from typing import Any

from . import autograd, backend_ndarray, data, init, nn, ops, optim
from .autograd import Tensor, TensorTuple
from .backend_ndarray import all_devices, cpu, cpu_numpy, cuda, default_device

backend_selection = backend_ndarray


def __getattr__(name: str) -> Any:
    """The operators are names of the package too."""
    if name.startswith("_") or not hasattr(ops, name):
        raise AttributeError(f"dlsys.needle has no {name!r}")
    return getattr(ops, name)
