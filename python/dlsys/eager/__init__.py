"""Tensors: nodes whose leaves hold data, with values on demand and gradients by `backward`, in the manner of PyTorch.

Every `Node` is a tensor: `dl.tensor(array)` makes a leaf, operators on it build graph, and `.numpy()`, `print`, `float`
or `backward` run it. Nothing else distinguishes it from a graph made of variables; there is one engine.
"""

from __future__ import annotations

from ..autodiff import Node
from .differentiate import backward, grad, value_and_grad
from .leaves import from_dlpack, tensor
from .methods import install
from .running import dtype_of, evaluate, known_shape, shape_of

Tensor = Node
__all__ = [
    "Tensor",
    "backward",
    "dtype_of",
    "evaluate",
    "from_dlpack",
    "grad",
    "known_shape",
    "shape_of",
    "tensor",
    "value_and_grad",
]

install()
