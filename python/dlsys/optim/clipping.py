"""The norm of gradients, and gradients clipped to a norm or to a value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..checks import number
from ..errors import GraphError
from ..ops.replay import composition
from ..tensors import is_leaf, no_grad, tensor
from ..tensors.backward import set_gradient
from .averages import averages


def global_norm(gradients: Sequence[ad.Node]) -> ad.Node:
    """The Euclidean norm of all gradients together, of shape (). They must have one dtype. Raises GraphError for what
    is no list of one node or more."""
    nodes = isinstance(gradients, (list, tuple)) and all(isinstance(gradient, ad.Node) for gradient in gradients)
    if not nodes or not gradients:
        raise GraphError(f"global_norm: needs a list of one gradient or more, not a {type(gradients).__name__}")
    return _norm(list(gradients))


@composition
def _norm(gradients: list[ad.Node]) -> ad.Node:
    squares: list[ad.Node] = [ad.reducesum_op(gradient * gradient) for gradient in gradients]
    return ad.sqrt_op(ad.sum_node_list(squares))


def clip_grad_norm_(parameters: Any, max_norm: float) -> ad.Node:
    """Scale the `grad` of one or several parameters by min(1, max_norm / (norm + 1e-6)), as torch.nn.utils does.
    Returns the norm before, of shape (). With max_norm = infinity nothing is scaled. Raises
    GraphError for an argument that is no parameter, for a max_norm that is no number >= 0, and in a group of processes,
    where `grad` is of this process alone, outside of `distributed.averaged`."""
    if averages.count() > 1:
        told = "each process has its own gradients: clip and step within distributed.averaged(optimizer)"
        raise GraphError(f"clip_grad_norm_: {told}")
    clips = not (isinstance(max_norm, float) and max_norm == math.inf)
    limit = number("clip_grad_norm_", "max_norm", max_norm if clips else 0.0)
    left = _with_gradients("clip_grad_norm_", parameters)
    if not left:
        return tensor(0.0)
    with no_grad():
        gradients = [parameter.grad for parameter in left]
        norm = global_norm(gradients)
        scale = limit / (ad.relu_op(norm + (1e-6 - limit)) + limit)  # exactly 1 where nothing is clipped
        for parameter, gradient in zip(left, gradients, strict=True):
            set_gradient(parameter, gradient * scale if clips else gradient)
    return norm


def clip_grad_value_(parameters: Any, clip_value: float) -> None:
    """Clamp the `grad` of one or several parameters to [-clip_value, clip_value], as torch.nn.utils does. Raises
    GraphError as `clip_grad_norm_` does."""
    limit = number("clip_grad_value_", "clip_value", clip_value)
    left = _with_gradients("clip_grad_value_", parameters)
    with no_grad():
        for parameter in left:
            set_gradient(parameter, parameter.grad.clamp(-limit, limit))


def _with_gradients(owner: str, parameters: Any) -> list[Any]:
    """Those of one or several parameters that have a `grad`. Raises GraphError for what are no parameters."""
    given: Any = [parameters] if isinstance(parameters, ad.Node) else parameters
    if isinstance(given, np.ndarray) or not isinstance(given, Iterable) or not all(map(is_leaf, given := list(given))):
        raise GraphError(f"{owner}: takes parameters, not {type(parameters).__name__}")
    return [parameter for parameter in given if parameter.grad is not None]
