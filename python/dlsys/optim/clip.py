"""Gradient clipping, between `gradients` and `Optimizer.update`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .. import autodiff as ad
from ..eager import evaluate
from ..errors import GraphError
from .optimizer import checked_number


def global_norm(gradients: Sequence[ad.Node]) -> ad.Node:
    """The Euclidean norm of all gradients together, of shape (). They must have one dtype. Raises GraphError for no
    gradients and what is no node."""
    if isinstance(gradients, ad.Node) or not gradients:
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


def clip_grad_value(gradients: Sequence[ad.Node], clip_value: float) -> list[ad.Node]:
    """The gradients with every element brought into [-clip_value, clip_value], as by
    torch.nn.utils.clip_grad_value_. Raises GraphError for a clip_value that is no number >= 0."""
    _no_parameters("clip_grad_value", gradients)
    limit = checked_number("clip_grad_value", "clip_value", clip_value)
    return [ad.clip_op(gradient, -limit, limit) for gradient in gradients]


def clip_grad_norm_(parameters: Sequence[ad.Parameter], max_norm: float) -> float:
    """`clip_grad_norm` of the gradients that `backward` left in the parameters, in place; returns their norm before."""
    left = [parameter for parameter in parameters if parameter.grad is not None]
    if not left:
        return 0.0
    gradients = [parameter.grad for parameter in left]
    clipped = clip_grad_norm([gradient * 1.0 for gradient in gradients], max_norm)
    norm = global_norm(gradients)
    found, *values = evaluate([norm, *clipped])
    for parameter, value in zip(left, values, strict=True):
        parameter.grad = ad.Parameter.sharing(value, parameter.grad.name)
    return float(np.asarray(found))


def clip_grad_value_(parameters: Sequence[ad.Parameter], clip_value: float) -> None:
    """`clip_grad_value` of the gradients that `backward` left in the parameters, in place."""
    left = [parameter for parameter in parameters if parameter.grad is not None]
    clipped = clip_grad_value([parameter.grad * 1.0 for parameter in left], clip_value)
    for parameter, value in zip(left, evaluate(clipped), strict=True):
        parameter.grad = ad.Parameter.sharing(value, parameter.grad.name)


def _no_parameters(name: str, gradients: Sequence[ad.Node]) -> None:
    """PyTorch's functions of these names, with an underscore behind, take parameters: told apart, not taken for it."""
    if any(isinstance(value, ad.Parameter) and value.requires_grad for value in gradients):
        raise GraphError(f"{name}: takes gradients, not parameters; {name}_ takes parameters with their grad")
