"""Gradient clipping, between `gradients` and `Optimizer.update`."""

from __future__ import annotations

from collections.abc import Sequence

from .. import autodiff as ad
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
    limit = checked_number("clip_grad_norm", "max_norm", max_norm)
    # limit / max(limit, norm), and exactly 1 where nothing is clipped
    scale = limit / (ad.relu_op(global_norm(gradients) + (1e-6 - limit)) + limit)
    return [gradient * scale for gradient in gradients]


def clip_grad_value(gradients: Sequence[ad.Node], clip_value: float) -> list[ad.Node]:
    """The gradients with every element brought into [-clip_value, clip_value], as by
    torch.nn.utils.clip_grad_value_. Raises GraphError for a clip_value that is no number >= 0."""
    limit = checked_number("clip_grad_value", "clip_value", clip_value)
    return [ad.clip_op(gradient, -limit, limit) for gradient in gradients]
