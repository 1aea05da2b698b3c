"""Gradient clipping, between `gradients` and `Optimizer.update`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..errors import GraphError
from ..tensors import evaluate, is_leaf, leaf
from .groups import checked_number, described


def global_norm(gradients: Sequence[ad.Node]) -> ad.Node:
    """The Euclidean norm of all gradients together, of shape (). They must have one dtype. Raises GraphError for no
    gradients and what is no node."""
    if not isinstance(gradients, (list, tuple)) or not gradients:
        raise GraphError("global_norm: needs a list of one gradient or more")
    for gradient in gradients:
        if not isinstance(gradient, ad.Node):
            raise GraphError(f"global_norm: gradients must be nodes, not {type(gradient).__name__}")
    return ad.sqrt_op(ad.sum_node_list([ad.reducesum_op(gradient * gradient) for gradient in gradients]))


def clip_grad_norm(gradients: Sequence[ad.Node], max_norm: float) -> list[ad.Node]:
    """The gradients scaled by min(1, max_norm / (norm + 1e-6)), where norm is their `global_norm`, as by
    torch.nn.utils.clip_grad_norm_. Raises GraphError for a max_norm that is no number >= 0."""
    _no_parameters("clip_grad_norm", gradients)
    limit = checked_number("clip_grad_norm", "max_norm", max_norm)
    # limit / max(limit, norm), and exactly 1 where nothing is clipped
    scale = limit / (ad.relu_op(global_norm(gradients) + (1e-6 - limit)) + limit)
    return [gradient * scale for gradient in gradients]


def clip_grad_norm_(
    parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> np.float64:
    """The gradients that `backward` left in the parameters, one or several, scaled in place by
    min(1, max_norm / (norm + 1e-6)); returns their norm before, a float that has `item()` too.

    max_norm: infinity only measures. norm_type: the Euclidean norm, 2. Raises GraphError for other arguments, and with
    `error_if_nonfinite` for a norm that is no number; then nothing is changed.
    """
    limit = math.inf if max_norm == math.inf else checked_number("clip_grad_norm_", "max_norm", max_norm)
    if norm_type != 2:
        raise GraphError(f"clip_grad_norm_: norm_type must be 2, not {norm_type!r}: other norms are not built")
    left = _with_gradients("clip_grad_norm_", parameters)
    if not left:
        return np.float64(0.0)
    gradients = [parameter.grad * 1.0 for parameter in left]
    scaled = clip_grad_norm(gradients, limit) if limit < math.inf else []
    found, *values = evaluate([global_norm(gradients), *scaled])
    number = np.float64(np.asarray(found))
    if error_if_nonfinite and not math.isfinite(number):
        raise GraphError(f"clip_grad_norm_: the gradients' norm is {number}")
    for parameter, value in zip(left, values, strict=bool(scaled)):
        parameter.grad = leaf(value, name=parameter.grad.name)
    return number


def _with_gradients(name: str, parameters: Any) -> list[ad.Parameter]:
    """Those of the parameters that have a gradient. Raises GraphError for what is none."""
    if not isinstance(parameters, Iterable):
        raise GraphError(f"{name}: takes parameters, not {type(parameters).__name__}")
    given: list[Any] = [parameters] if is_leaf(parameters) else list(parameters)
    for parameter in given:
        if not is_leaf(parameter):
            raise GraphError(f"{name}: takes parameters, not {type(parameter).__name__}")
    return [parameter for parameter in given if parameter.grad is not None]


def _no_parameters(name: str, gradients: Sequence[ad.Node]) -> None:
    """PyTorch's functions of these names, with an underscore behind, take parameters: told apart, not taken for it.
    Raises GraphError, for what is no list of nodes too."""
    if not isinstance(gradients, (list, tuple)) or not all(isinstance(value, ad.Node) for value in gradients):
        raise GraphError(f"{name}: needs a list of gradients, not {described(gradients)}")
    if any(is_leaf(value) and value.requires_grad for value in gradients):
        raise GraphError(f"{name}: takes gradients, not parameters; {name}_ takes parameters with their grad")
