"""Normalisation: batch, layer, group and root mean square."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from .. import compute
from ..checks import real
from ..errors import GraphError
from ..graph import Formula, Made, Node, Op, Shape, register, shape_error
from .elementwise import add_byconst_op, add_op, mul_byconst_op, mul_op, neg_op, rsqrt_op, sub_op
from .reduction import div_by_extent_op, mean_op, reducesum_op
from .rules import axes_attribute, broadcast_rule
from .shape import reshape_like_op, sum_to_like_op


def _normalize(x: np.ndarray, mean: np.ndarray, var: np.ndarray, *rest: Any) -> np.ndarray:
    """(x - mean) / sqrt(var + eps), times the weight, plus the bias, where they are given, by NumPy."""
    *affine, eps = rest
    n = (x - mean) / np.sqrt(var + x.dtype.type(eps))
    for i, value in enumerate(affine):
        n = n + value if i else n * value
    return n


@register
class Normalize(Op):
    """n = (x - mean) / sqrt(var + eps), or n weight, or n weight + bias; mean and var have extents of 1 along `axes`.

    With r = 1 / sqrt(var + eps) and g times weight for g: dx = r g, dmean = -sum(r g), dvar = -r^2 sum(g n) / 2. Where
    mean and var are x's (attribute `of_x`) their gradients are part of x's, dx = r (g - mean(g) - n mean(g n)), and
    they get none. A weight of one number for all elements along the axes (attribute
    `shared`, batch normalisation: Ioffe and Szegedy, 2015) may come after the sums, which are the gradients of weight
    and bias; one with a number for each of them (layer normalisation: Ba et al., 2016) comes before.
    """

    name = "normalize"
    kind = "elementwise"
    formula: ClassVar[Formula] = compute.normalize
    reference: ClassVar[Formula] = _normalize
    takes: ClassVar[Sequence[str]] = ("eps",)

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        x, *others = input_shapes
        for shape in others:
            if broadcast_rule(x, shape) != x:
                raise shape_error(node, f"{shape} does not broadcast to {x}")
        return x

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        x, axes = node.inputs[0], node.attrs["axes"]
        if not node.attrs["of_x"]:
            return self._partial(node, output_grad)
        return self._gradient(node, node.inputs, output_grad, lambda total: div_by_extent_op(total, x, axes))

    @staticmethod
    def _partial(node: Node, output_grad: Node) -> list[Node | None]:
        """The gradients of a mean and a variance of their own."""
        x, mean, var, *affine = node.inputs
        scale = rsqrt_op(add_byconst_op(var, node.attrs["eps"]))
        inner = mul_op(output_grad, affine[0]) if affine else output_grad
        n = Normalize.make([x, mean, var], node.attrs)
        dx = mul_op(inner, scale)
        dvar = mul_byconst_op(mul_op(sum_to_like_op(mul_op(inner, n), var), mul_op(scale, scale)), -0.5)
        of_affine = [mul_op(output_grad, n), output_grad]
        rest = [sum_to_like_op(*pair) for pair in zip(of_affine, affine, strict=False)]
        return [dx, neg_op(sum_to_like_op(dx, mean)), dvar, *rest]

    def _gradient(
        self, node: Node, inputs: Sequence[Node], output_grad: Node, mean_of: Callable[[Node], Node]
    ) -> list[Node | None]:
        """`mean_of`: from a sum along the axes to a mean."""
        x, mean, var, *affine = inputs
        axes, shared = node.attrs["axes"], node.attrs["shared"]

        def n() -> Node:
            return Normalize.make([x, mean, var], node.attrs)

        scale, inner = rsqrt_op(add_byconst_op(var, node.attrs["eps"])), output_grad
        if affine and shared:
            scale = mul_op(scale, affine[0])
        elif affine:
            inner = mul_op(output_grad, affine[0])
        total = reducesum_op(inner, axes, keepdims=True)
        along = reducesum_op(mul_op(inner, n()), axes, keepdims=True)
        dx = mul_op(sub_op(sub_op(inner, mean_of(total)), mul_op(n(), mean_of(along))), scale)
        if shared or not affine:
            return [dx, None, None, *[along, total][: len(affine)]]
        of_affine = [mul_op(output_grad, n()), output_grad]
        return [dx, None, None, *(sum_to_like_op(*pair) for pair in zip(of_affine, affine, strict=False))]


def statistics_op(x: Node, axes: Sequence[int]) -> tuple[Made, Made]:
    """Mean and variance (divided by the number of elements) of x along `axes`, which are kept with extent 1."""
    mean = mean_op(x, axes, keepdims=True)
    centred = sub_op(x, mean)
    return mean, mean_op(mul_op(centred, centred), axes, keepdims=True)


def batch_norm_op(
    x: Node, weight: Node | None = None, bias: Node | None = None, axes: Any = (0, 2, 3), eps: float = 1e-5
) -> tuple[Made, Made, Made]:
    """x normalised along `axes`, all but that of the channels, times weight plus bias (both of the channels' number, or
    both None); with its mean and variance, axes kept, from which running ones are made.

    Raises GraphError for a weight without a bias.
    """
    axes = axes_attribute("batch_norm", axes)
    if (weight is None) != (bias is None):
        raise GraphError("batch_norm: weight and bias are both given or both None")
    mean, var = statistics_op(x, axes)
    affine = [] if weight is None or bias is None else [reshape_like_op(weight, mean), reshape_like_op(bias, mean)]
    attrs = {"axes": axes, "eps": real("batch_norm", "eps", eps), "shared": True, "of_x": True}
    return Normalize.make([x, mean, var, *affine], attrs), mean, var


def layer_norm_op(
    x: Node, weight: Node | None = None, bias: Node | None = None, axes: Any = (-1,), eps: float = 1e-5
) -> Made:
    """x normalised along its last axes `axes`, times weight plus bias of the shape of these axes."""
    axes = axes_attribute("layer_norm", axes)
    statistics = statistics_op(x, axes)
    affine = [] if weight is None else [weight] if bias is None else [weight, bias]
    attrs = {"axes": axes, "eps": real("layer_norm", "eps", eps), "shared": False, "of_x": True}
    found = Normalize.make([x, *statistics, *affine], attrs)
    return add_op(found, bias) if weight is None and bias is not None else found
