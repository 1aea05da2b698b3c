"""Gradient clipping, between `gradients` and `Optimizer.update`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..checks import number
from ..errors import GraphError
from ..tensors import evaluate, is_leaf, leaf
from .groups import described


def global_norm(gradients: Sequence[ad.Node]) -> ad.Node:
    """The Euclidean norm of all gradients together, of shape (). They must have one dtype. Raises GraphError for no
    gradients and what is no node."""
    nodes = isinstance(gradients, (list, tuple)) and all(isinstance(gradient, ad.Node) for gradient in gradients)
    if not nodes or not gradients:
        raise GraphError(f"global_norm: needs a list of one gradient or more, not {described(gradients)}")
    return ad.sqrt_op(ad.sum_node_list([ad.reducesum_op(gradient * gradient) for gradient in gradients]))


def clip_grad_norm(gradients: Sequence[ad.Node], max_norm: float) -> list[ad.Node]:
    """The gradients scaled by min(1, max_norm / (norm + 1e-6)), where norm is their `global_norm`, as by
    torch.nn.utils.clip_grad_norm_. Raises GraphError for a max_norm that is no number >= 0."""
    limit, norm = number("clip_grad_norm", "max_norm", max_norm), global_norm(gradients)
    if any(is_leaf(value) and getattr(value, "requires_grad", False) for value in gradients):
        raise GraphError("clip_grad_norm: takes gradients, not parameters: clip_grad_norm_ takes those")
    # limit / max(limit, norm), and exactly 1 where nothing is clipped
    scale = limit / (ad.relu_op(norm + (1e-6 - limit)) + limit)
    return [gradient * scale for gradient in gradients]


def clip_grad_norm_(parameters: Any, max_norm: float) -> np.float64:
    """The gradients that `backward` left in the parameters, one or several, scaled in place by
    min(1, max_norm / (norm + 1e-6)); returns their norm before, a float that has `item()` too.

    max_norm: infinity only measures. Raises GraphError for what is no parameter, and another max_norm.
    """
    limit = math.inf if max_norm == math.inf else number("clip_grad_norm_", "max_norm", max_norm)
    given: Any = [parameters] if is_leaf(parameters) else parameters
    if not isinstance(given, Iterable) or not all(map(is_leaf, given := list(given))):
        raise GraphError(f"clip_grad_norm_: takes parameters, not {described(parameters)}")
    left = [parameter for parameter in given if parameter.grad is not None]
    if not left:
        return np.float64(0.0)
    gradients = [parameter.grad * 1.0 for parameter in left]
    scaled = clip_grad_norm(gradients, limit) if limit < math.inf else []
    found, *values = evaluate([global_norm(gradients), *scaled])
    for parameter, value in zip(left, values, strict=bool(scaled)):
        parameter.grad = leaf(value, name=parameter.grad.name)
    return np.float64(np.asarray(found))
