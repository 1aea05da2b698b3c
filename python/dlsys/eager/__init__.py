"""Tensors: nodes whose leaves hold data, with values on demand and gradients by `backward`, in the manner of PyTorch.

Every `Node` is a tensor: `dl.tensor(array)` makes a leaf, operators on it build graph, and `.numpy()`, `print`, `float`
or `backward` run it. Nothing else distinguishes it from a graph made of variables; there is one engine.
"""

from __future__ import annotations

from ..ops import dtype_of, known_dtype, known_shape, shape_of
from . import needle, pending, waiting
from .arrays import StateArray
from .differentiate import backward, grad, value_and_grad
from .kind import Tensor
from .leaves import Leaf, as_tensor, from_dlpack, from_numpy, is_tensor, tensor
from .methods import install
from .mode import enable_grad, inference_mode, is_grad_enabled, no_grad, set_grad_enabled
from .running import evaluate, make_updates

__all__ = [
    "Leaf",
    "StateArray",
    "Tensor",
    "as_tensor",
    "backward",
    "dtype_of",
    "enable_grad",
    "evaluate",
    "from_dlpack",
    "from_numpy",
    "grad",
    "inference_mode",
    "is_grad_enabled",
    "is_tensor",
    "known_dtype",
    "known_shape",
    "no_grad",
    "set_grad_enabled",
    "shape_of",
    "tensor",
    "value_and_grad",
]

install()
needle.install()
pending.install()
waiting.install(make_updates)
