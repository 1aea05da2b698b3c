"""Tensors: nodes whose leaves hold data, with values on demand and gradients by `backward`, in the manner of PyTorch.

Every `Node` that a user meets is a `Tensor`: `dl.tensor(array)` makes a leaf, operators on it build graph, and
`.numpy()`, `print`, `float` or `backward` run it. Nothing else distinguishes it from a graph made of variables: there
is one engine.
"""

from __future__ import annotations

from ..ops import dtype_of, known_dtype, known_shape, shape_of
from .base import Parameter, Tensor
from .differentiate import backward
from .creation import as_tensor, from_dlpack, from_numpy, is_leaf, is_tensor, leaf, tensor
from .mode import enable_grad, inference_mode, is_grad_enabled, no_grad, set_grad_enabled
from .values import evaluate
