"""Under the names of torch.nn.utils: gradient clipping, Parameters as one vector, weights of a norm of their own, or
divided by their largest singular value; sequences of several lengths in `rnn`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from ... import autodiff as ad
from ...autodiff import Node, Parameter
from ...eager import tensor
from ...errors import GraphError, ShapeError
from ...optim.clip import clip_grad_norm_, clip_grad_value_
from . import rnn
from .spectral import remove_spectral_norm, spectral_norm
from .weights import remove_weight_norm, weight_norm

__all__ = [
    "clip_grad_norm_",
    "clip_grad_value_",
    "parameters_to_vector",
    "remove_spectral_norm",
    "remove_weight_norm",
    "rnn",
    "spectral_norm",
    "vector_to_parameters",
    "weight_norm",
]


def parameters_to_vector(parameters: Iterable[Parameter]) -> Node:
    """All values behind each other, a node of one axis. Raises GraphError for no parameters."""
    given = list(parameters)
    if not given:
        raise GraphError("parameters_to_vector: there are no parameters")
    return ad.concatenate_op([ad.reshape_op(parameter, (-1,)) for parameter in given], 0)


def vector_to_parameters(vec: Any, parameters: Iterable[Parameter]) -> None:
    """Set the Parameters to the parts of a vector, an array or a tensor of data, as `parameters_to_vector` made it.

    Raises ShapeError for another length."""
    given = list(parameters)
    value = tensor(vec).value if not isinstance(vec, Node) else np.asarray(vec)
    sizes = [math.prod(parameter.shape) for parameter in given]
    if value.shape != (sum(sizes),):
        raise ShapeError(f"vector_to_parameters: the parameters have {sum(sizes)} elements, the vector {value.shape}")
    begin = 0
    for parameter, size in zip(given, sizes, strict=True):
        parameter.value = value[begin : begin + size].reshape(parameter.shape)
        begin += size
