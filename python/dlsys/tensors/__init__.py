"""Tensors: nodes whose leaves hold data, with values on demand and gradients by `backward`, in the manner of PyTorch.

Every `Node` that a user meets is a `Tensor`: `dl.tensor(array)` makes a leaf, operators on it build graph, and
`.numpy()`, `print`, `float` or `backward` run it. Nothing else distinguishes it from a graph made of variables: there
is one engine.
"""

from __future__ import annotations

from ..ops import (
    dtype_of as dtype_of, known_dtype as known_dtype, known_shape as known_shape, shape_of as shape_of,
)
from ..scopes import (
    enable_grad as enable_grad, inference_mode as inference_mode, is_grad_enabled as is_grad_enabled,
    no_grad as no_grad, set_grad_enabled as set_grad_enabled,
)
from . import autograd as autograd, linalg as linalg
from .base import Parameter as Parameter, Tensor as Tensor
from .backward import backward as backward
from .compile import compile as compile
from .creation import (
    FloatTensor as FloatTensor, LongTensor as LongTensor, arange as arange, as_tensor as as_tensor,
    empty as empty, eye as eye, from_dlpack as from_dlpack,
    from_numpy as from_numpy, full as full, is_leaf as is_leaf, is_tensor as is_tensor, leaf as leaf,
    linspace as linspace, ones as ones, ones_like as ones_like, tensor as tensor, zeros as zeros,
    zeros_like as zeros_like,
)
from .elementwise import where as where
from .linalg import cdist as cdist
from .reductions import var_mean as var_mean
from .shapes import cat as cat, meshgrid as meshgrid, stack as stack
from .products import einsum as einsum
from .evaluate import evaluate as evaluate
