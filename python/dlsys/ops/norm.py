"""Normalisation: batch, layer, group and root mean square."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import compute
from ..errors import GraphError
from ..graph import Node, Op, Shape, register, shape_error
from .arithmetic import add_byconst_op, add_op, mul_op, sub_op
from .elementary import rsqrt_op
from .reduction import div_by_extent_op, mean_op, reducesum_op
from .rules import axes_attribute, broadcast_rule
from .shape import reshape_like_op


def _normalize(x: np.ndarray, mean: np.ndarray, var: np.ndarray, *rest: Any) -> np.ndarray:
    *affine, eps = rest
    n = (x - mean) / np.sqrt(var + x.dtype.type(eps))
    return n * affine[0] + affine[1] if affine else n


@register
class Normalize(Op):
    """n = (x - mean) / sqrt(var + eps), or n weight + bias; mean and var are x's own along `axes`, where they have
    extents of 1, as weight and bias do.

    With r = 1 / sqrt(var + eps): dx = r (g - mean(g) - n mean(g n)), of g times weight, which holds what x does through
    mean and var; they get no gradient of their own. Ioffe and Szegedy (2015), where weight and bias are along the same
    axes, so that their gradients are the sums that dx needs.
    """

    name = "normalize"
    elementwise = True
    formula, reference = compute.normalize, _normalize

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        x, *others = input_shapes
        for shape in others:
            if broadcast_rule(x, shape) != x:
                raise shape_error(node, f"{shape} does not broadcast to {x}")
        return x

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        x, mean, var, *affine = node.inputs
        axes = node.attrs["axes"]
        r = rsqrt_op(add_byconst_op(var, node.attrs["eps"]))
        n = Normalize.make([x, mean, var], node.attrs) if affine else node
        total = reducesum_op(output_grad, axes, keepdims=True)
        along = reducesum_op(mul_op(output_grad, n), axes, keepdims=True)
        centred = sub_op(output_grad, div_by_extent_op(total, x, axes))
        dx = sub_op(centred, mul_op(n, div_by_extent_op(along, x, axes)))
        if not affine:
            return [mul_op(dx, r), None, None]
        return [mul_op(dx, mul_op(r, affine[0])), None, None, along, total]

    def arguments(self, node: Node, shapes: list[Shape], shape: Shape) -> tuple[Any, ...]:
        return (node.attrs["eps"],)


def statistics_op(x: Node, axes: Sequence[int]) -> tuple[Node, Node]:
    """Mean and variance (divided by the number of elements) of x along `axes`, which are kept with extent 1."""
    mean = mean_op(x, axes, keepdims=True)
    centred = sub_op(x, mean)
    return mean, mean_op(mul_op(centred, centred), axes, keepdims=True)


def batch_norm_op(
    x: Node, weight: Node | None = None, bias: Node | None = None, axes: Any = (0, 2, 3), eps: float = 1e-5
) -> tuple[Node, Node, Node]:
    """x normalised along `axes`, all but that of the channels, times weight plus bias (both of the channels' number, or
    both None); with its mean and variance, axes kept, from which running ones are made.

    Raises GraphError for a weight without a bias.
    """
    axes = axes_attribute("batch_norm", axes)
    if (weight is None) != (bias is None):
        raise GraphError("batch_norm: weight and bias are both given or both None")
    mean, var = statistics_op(x, axes)
    affine = [] if weight is None or bias is None else [reshape_like_op(weight, mean), reshape_like_op(bias, mean)]
    return Normalize.make([x, mean, var, *affine], {"axes": axes, "eps": float(eps)}), mean, var


def _scaled(n: Node, weight: Node | None, bias: Node | None) -> Node:
    if weight is not None:
        n = mul_op(n, weight)
    return n if bias is None else add_op(n, bias)


def layer_norm_op(
    x: Node, weight: Node | None = None, bias: Node | None = None, axes: Any = (-1,), eps: float = 1e-5
) -> Node:
    """x normalised along its last axes `axes`, times weight plus bias of the shape of these axes: Ba et al. (2016)."""
    axes = axes_attribute("layer_norm", axes)
    mean, var = statistics_op(x, axes)
    return _scaled(Normalize.make([x, mean, var], {"axes": axes, "eps": float(eps)}), weight, bias)
