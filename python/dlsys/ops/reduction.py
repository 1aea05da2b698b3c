"""Reductions over axes: sums, their gradients, means and variances, and log-sum-exp. Maxima: `extrema`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from .. import compute
from ..checks import flag
from ..graph import NUMBERS, OPS, Formula, Made, Node, Op, Shape, register
from .elementwise import clip_op, div_byconst_op, div_op, equal_op, exp_op, mul_op, sqrt_op, sub_op, where_op
from .rules import real_constant, reduced_shape, resolve_axes
from .shape import broadcastto_op, expand_dims_op
from .types import over_axes


class Reduction(Op):
    """An operator over `axes`, of all for None, which are dropped or kept with extent 1."""

    kind = "reduction"

    def axes(self, node: Node, shape: Shape) -> tuple[int, ...]:
        """The axes of an input of that shape, ascending. Raises ShapeError."""
        return resolve_axes(node, node.attrs["axes"], len(shape))

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return reduced_shape(input_shapes[0], self.axes(node, input_shapes[0]), node.attrs["keepdims"])

    def arguments(self, node: Node, shapes: list[Shape], shape: Shape) -> tuple[Any, ...]:
        return self.axes(node, shapes[0]), node.attrs["keepdims"]

    def spread(self, node: Node, value: Node) -> Node:
        """A value of the result's shape, repeated to the input's."""
        return broadcast_axes_op(value, node.inputs[0], node.attrs["axes"], node.attrs["keepdims"])


def reduction_attributes(op: str, x: Node, axes: Any, keepdims: bool) -> dict[str, Any]:
    """The attributes of a reduction. Raises GraphError for axes that are no integers."""
    return {"axes": over_axes(op, x, axes), "keepdims": flag(op, "keepdims", keepdims)}


@register
class ReduceSum(Reduction):
    """The sum over `axes`."""

    name = "reducesum"
    onnx = "ReduceSum"
    flops = 0
    flops_of_input = 1
    dtypes = NUMBERS
    formula: ClassVar[Formula] = compute.reduce_sum
    reference: ClassVar[Formula] = lambda x, axes, keepdims: x.sum(axes, x.dtype, keepdims=keepdims)

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [self.spread(node, output_grad)]


@register
class DivByExtent(Op):
    """x / (the product of like's extents along `axes`, less `correction`); `axes` may also be "rows", every axis but
    the last.

    The divisor is known when shapes are. By zero NumPy's rule: NaN or infinity; a negative divisor counts as zero.
    """

    name = "div_by_extent"
    shape_only: ClassVar[Sequence[int]] = (1,)

    def _divisor(self, node: Node, like: Shape) -> float:
        axes = node.attrs["axes"]
        axes = range(len(like) - 1) if axes == "rows" else resolve_axes(node, axes, len(like))
        return max(math.prod(like[axis] for axis in axes) - node.attrs.get("correction", 0.0), 0.0)

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        self._divisor(node, input_shapes[1])
        return input_shapes[0]

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [DivByExtent.make([output_grad, node.inputs[1]], node.attrs), None]

    def known(self, node: Node, shapes: Sequence[Shape], dtypes: Sequence[str]) -> Node:
        return div_byconst_op(node.inputs[0], self._divisor(node, shapes[1]))


def _logsumexp(x: np.ndarray, axes: tuple[int, ...], keepdims: bool) -> np.ndarray:
    """log(sum(exp(x))) by NumPy, shifted by the maximum so that nothing overflows."""
    largest = x.max(axis=axes, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(largest), largest, x.dtype.type(0))
    result = np.log(np.exp(x - shift).sum(axis=axes, keepdims=True)) + shift
    return np.asarray(result.reshape(reduced_shape(x.shape, axes, keepdims)))


@register
class LogSumExp(Reduction):
    """y = log(sum(exp(x))) over `axes`, shifted by the maximum; dx = g exp(x - max) / sum(exp(x - max)), not
    g exp(x - y), since a large y has lost its last digits."""

    name = "logsumexp"
    onnx = "ReduceLogSumExp"
    kind = "rows"
    formula: ClassVar[Formula] = compute.logsumexp
    reference: ClassVar[Formula] = _logsumexp

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        (x,) = node.inputs
        shifted = exp_op(sub_op(x, self.spread(node, OPS["reducemax"].make([x], node.attrs))))
        total = reducesum_op(shifted, node.attrs["axes"], node.attrs["keepdims"])
        return [mul_op(self.spread(node, output_grad), div_op(shifted, self.spread(node, total)))]


def reducesum_op(node: Node, axes: Any = None, keepdims: bool = False) -> Made:
    """The sum over `axes`: None (all), an int or a tuple, negative ones from the end. Of integers in their dtype.

    Raises GraphError for axes that are no integers.
    """
    return ReduceSum.make([node], reduction_attributes("reducesum", node, axes, keepdims))


sum_op = reducesum_op


def reducesumaxiszero_op(node: Node) -> Made:
    """The sum over the first axis, which is dropped."""
    return reducesum_op(node, 0)


def broadcast_axes_op(a: Node, like: Node, axes: Any = None, keepdims: bool = False) -> Made:
    """a repeated to like's shape along `axes`, which it lacks, or has with extent 1 if `keepdims`; a sum's gradient."""
    along = over_axes("broadcast_axes", like, axes)
    lacks = not flag("broadcast_axes", "keepdims", keepdims) and along is not None  # of all it is a number
    return broadcastto_op(expand_dims_op(a, along) if lacks else a, like)


def div_by_extent_op(x: Node, like: Node, axes: Any = None, correction: float = 0) -> Made:
    """x divided by the product of like's extents along `axes` (None: all; "rows": all but the last) less `correction`,
    by 0 if that is negative. Raises GraphError for a correction that is no real number."""
    along = axes if isinstance(axes, str) and axes == "rows" else over_axes("div_by_extent", like, axes)
    less = real_constant("div_by_extent", correction)
    return DivByExtent.make([x, like], {"axes": along, "correction": less} if less else {"axes": along})


def mean_op(x: Node, axes: Any = None, keepdims: bool = False) -> Made:
    """The mean over `axes`: None (all), an int or a tuple; NaN of nothing. Raises GraphError for other axes."""
    return div_by_extent_op(reducesum_op(x, axes, keepdims), x, axes)


def var_op(x: Node, axes: Any = None, keepdims: bool = False, correction: float = 1) -> Made:
    """The variance over `axes`: the squared distances from the mean over their number less `correction`.

    The mean is rounded: of numbers far from 0 the distances d from it have a sum s that is not 0, and their squares are
    too large by s^2 / n, which is subtracted (Chan, Golub and LeVeque, 1983, the corrected two-pass algorithm).
    Raises GraphError for axes that are no integers, and a correction that is no real number.
    """
    distance = sub_op(x, mean_op(x, axes, keepdims=True))
    total = reducesum_op(distance, axes, keepdims)
    excess = mul_op(total, div_by_extent_op(total, x, axes))
    squares = sub_op(reducesum_op(mul_op(distance, distance), axes, keepdims), excess)
    return div_by_extent_op(clip_op(squares, low=0.0), x, axes, correction)


def std_op(x: Node, axes: Any = None, keepdims: bool = False, correction: float = 1) -> Made:
    """The square root of `var_op`'s variance; the gradient is 0 where that is 0."""
    variance = var_op(x, axes, keepdims, correction)
    is_zero = equal_op(variance, 0.0)
    return where_op(is_zero, 0.0, sqrt_op(where_op(is_zero, 1.0, variance)))


def logsumexp_op(x: Node, axes: Any = None, keepdims: bool = False) -> Made:
    """log(sum(exp(x))) over `axes`: None (all), an int or a tuple; without overflow, -inf of nothing."""
    return LogSumExp.make([x], reduction_attributes("logsumexp", x, axes, keepdims))
