"""Sums over axes, their gradients, means and variances, and log-sum-exp."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import compute
from ..compute import Tensor
from ..graph import DTYPES, NUMBERS, OPS, Node, Op, Shape, register, shape_error
from .arithmetic import const_div_op, div_op, mul_byconst_op, mul_op, sub_op
from .compare import equal_op, where_op
from .elementary import exp_op
from .rules import real_constant, reduced_shape, resolve_axes
from .types import over_axes


@register
class ReduceSum(Op):
    """The sum over `axes`, of all for None, which are dropped or kept with extent 1."""

    name = "reducesum"
    reduces = True
    flops, flops_of_input = 0, 1
    along = "axes"
    dtypes = NUMBERS

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        axes = resolve_axes(node, node.attrs["axes"], len(input_shapes[0]))
        return reduced_shape(input_shapes[0], axes, node.attrs["keepdims"])

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [broadcast_axes_op(output_grad, node.inputs[0], node.attrs["axes"], node.attrs["keepdims"])]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        axes = resolve_axes(node, node.attrs["axes"], len(inputs[0].shape))
        return compute.reduce_sum(inputs[0], axes, node.attrs["keepdims"])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        x = inputs[0]
        return np.asarray(x.sum(axis=node.attrs["axes"], keepdims=node.attrs["keepdims"], dtype=x.dtype))


@register
class BroadcastAxes(Op):
    """a, which lacks `axes` of like's shape or has extent 1 there, repeated along them; a sum's gradient."""

    name = "broadcast_axes"
    picks = True
    flops = 0
    dtypes = DTYPES
    shape_only = (1,)

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        shape, like = input_shapes
        axes = resolve_axes(node, node.attrs["axes"], len(like))
        if shape != reduced_shape(like, axes, node.attrs["keepdims"]):
            raise shape_error(node, f"{shape} is not {like} summed over axes {axes}")
        return like

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [reducesum_op(output_grad, node.attrs["axes"], node.attrs["keepdims"]), None]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        if node.attrs["keepdims"]:
            return compute.broadcast_to(inputs[0], shape)
        return compute.broadcast_axes(inputs[0], shape, resolve_axes(node, node.attrs["axes"], len(shape)))

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        shape = inputs[1].shape
        axes = resolve_axes(node, node.attrs["axes"], len(shape))
        return np.broadcast_to(inputs[0].reshape(reduced_shape(shape, axes, True)), shape).copy()


@register
class DivByExtent(Op):
    """x / (the product of like's extents along `axes`); `axes` may also be "rows", every axis but the last.

    The divisor is known when shapes are. By an extent of zero NumPy's rule: NaN or infinity.
    """

    name = "div_by_extent"
    shape_only = (1,)
    elementwise = True

    def _divisor(self, node: Node, like: Shape) -> int:
        axes = node.attrs["axes"]
        if axes == "rows":
            return math.prod(like[:-1])
        return math.prod(like[axis] for axis in resolve_axes(node, axes, len(like)))

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        self._divisor(node, input_shapes[1])
        return input_shapes[0]

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [div_by_extent_op(output_grad, node.inputs[1], node.attrs["axes"]), None]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.div_by_const(inputs[0], self._divisor(node, compute.shape_of(inputs[1])))

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(inputs[0] / inputs[0].dtype.type(self._divisor(node, inputs[1].shape)))


@register
class DivByTerms(Op):
    """x / (n - correction), n the product of like's extents along `axes`; by 0 where that is negative."""

    name = "div_by_terms"
    shape_only = (1,)
    elementwise = True

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        resolve_axes(node, node.attrs["axes"], len(input_shapes[1]))
        return input_shapes[0]

    def _divisor(self, node: Node, like: Shape) -> float:
        axes = resolve_axes(node, node.attrs["axes"], len(like))
        return max(math.prod(like[axis] for axis in axes) - node.attrs["correction"], 0.0)

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [div_by_terms_op(output_grad, node.inputs[1], node.attrs["axes"], node.attrs["correction"]), None]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.div_by_const(inputs[0], self._divisor(node, compute.shape_of(inputs[1])))

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(inputs[0] / inputs[0].dtype.type(self._divisor(node, inputs[1].shape)))


class _Reduction(Op):
    """An operator over `axes`, of all for None, which are dropped or kept with extent 1."""

    def _axes(self, node: Node, shape: Shape) -> tuple[int, ...]:
        return resolve_axes(node, node.attrs["axes"], len(shape))

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return reduced_shape(input_shapes[0], self._axes(node, input_shapes[0]), node.attrs["keepdims"])

    def _spread(self, node: Node, value: Node) -> Node:
        """A value of the result's shape, repeated to the input's."""
        return broadcast_axes_op(value, node.inputs[0], node.attrs["axes"], node.attrs["keepdims"])


@register
class Var(_Reduction):
    """sum((x - mean)^2) / (n - correction) over `axes`; dx = 2 g (x - mean) / (n - correction)."""

    name = "var"
    along = "axes"

    def _partial(self, node: Node, g: Node) -> Node:
        (x,), axes = node.inputs, node.attrs["axes"]
        share = div_by_terms_op(mul_byconst_op(g, 2.0), x, axes, node.attrs["correction"])
        mean = broadcast_axes_op(mean_op(x, axes, keepdims=True), x, axes, keepdims=True)
        return mul_op(self._spread(node, share), sub_op(x, mean))

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [self._partial(node, output_grad)]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        axes = self._axes(node, compute.shape_of(inputs[0]))
        return compute.variance(inputs[0], axes, node.attrs["keepdims"], node.attrs["correction"])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        (x,) = inputs
        axes, number = self._axes(node, x.shape), x.dtype.type
        count = math.prod(x.shape[axis] for axis in axes)
        with np.errstate(divide="ignore", invalid="ignore"):
            square = (x - x.sum(axis=axes, keepdims=True) / number(count)) ** 2
            total = square.sum(axis=axes, keepdims=node.attrs["keepdims"])
            return np.asarray(total / number(max(count - node.attrs["correction"], 0.0)))


@register
class Std(Var):
    """The square root y of the variance; dy = dvar / (2 y), 0 where y is 0."""

    name = "std"
    along = "axes"

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        half = mul_op(output_grad, const_div_op(0.5, where_op(equal_op(node, 0.0), float("inf"), node)))
        return [self._partial(node, half)]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.sqrt(super().te(node, inputs, shape, dtype))

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.asarray(np.sqrt(super().numpy(node, inputs)))


@register
class LogSumExp(_Reduction):
    """y = log(sum(exp(x))) over `axes`, shifted by the maximum; dx = g exp(x - max) / sum(exp(x - max)), since of a
    large y the last digits are lost."""

    name = "logsumexp"
    along = "axes"

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        (x,) = node.inputs
        shifted = exp_op(sub_op(x, self._spread(node, OPS["reducemax"].make([x], node.attrs))))
        total = reducesum_op(shifted, node.attrs["axes"], node.attrs["keepdims"])
        return [mul_op(self._spread(node, output_grad), div_op(shifted, self._spread(node, total)))]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        axes = self._axes(node, compute.shape_of(inputs[0]))
        return compute.logsumexp(inputs[0], axes, node.attrs["keepdims"])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        (x,) = inputs
        axes = self._axes(node, x.shape)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            largest = x.max(axis=axes, keepdims=True, initial=-np.inf)
            shift = np.where(np.isfinite(largest), largest, x.dtype.type(0))
            result = np.log(np.exp(x - shift).sum(axis=axes, keepdims=True)) + shift
        return np.asarray(result.reshape(reduced_shape(x.shape, axes, node.attrs["keepdims"])))


def reducesum_op(node: Node, axes: Any = None, keepdims: bool = False) -> Node:
    """The sum over `axes`: None (all), an int or a tuple, negative ones from the end. Of integers in their dtype.

    Raises GraphError for axes that are no integers.
    """
    return ReduceSum.make([node], {"axes": over_axes("reducesum", node, axes), "keepdims": bool(keepdims)})


sum_op = reducesum_op


def reducesumaxiszero_op(node: Node) -> Node:
    """The sum over the first axis, which is dropped."""
    return reducesum_op(node, 0)


def broadcast_axes_op(a: Node, like: Node, axes: Any = None, keepdims: bool = False) -> Node:
    """a repeated to like's shape along `axes`, which it lacks, or has with extent 1 if `keepdims`."""
    return BroadcastAxes.make(
        [a, like], {"axes": over_axes("broadcast_axes", like, axes), "keepdims": bool(keepdims)}
    )


def div_by_extent_op(x: Node, like: Node, axes: Any = None) -> Node:
    """x divided by the product of like's extents along `axes` (None: all; "rows": all but the last)."""
    return DivByExtent.make(
        [x, like], {"axes": axes if axes == "rows" else over_axes("div_by_extent", like, axes)}
    )


def div_by_terms_op(x: Node, like: Node, axes: Any = None, correction: float = 1) -> Node:
    """x divided by the product of like's extents along `axes` (None: all) less `correction`, 0 if that is negative."""
    return DivByTerms.make(
        [x, like],
        {"axes": over_axes("div_by_terms", like, axes), "correction": real_constant("div_by_terms", correction)},
    )


def _attributes(op: str, x: Node, axes: Any, keepdims: bool) -> dict[str, Any]:
    return {"axes": over_axes(op, x, axes), "keepdims": bool(keepdims)}


def mean_op(x: Node, axes: Any = None, keepdims: bool = False) -> Node:
    """The mean over `axes`: None (all), an int or a tuple; NaN of nothing. Raises GraphError for other axes."""
    return div_by_extent_op(reducesum_op(x, axes, keepdims), x, axes)


def var_op(x: Node, axes: Any = None, keepdims: bool = False, correction: float = 1) -> Node:
    """The variance over `axes`: the squared distances from the mean over their number less `correction`.

    Raises GraphError for axes that are no integers, and a correction that is no real number.
    """
    return Var.make([x], {**_attributes("var", x, axes, keepdims), "correction": real_constant("var", correction)})


def std_op(x: Node, axes: Any = None, keepdims: bool = False, correction: float = 1) -> Node:
    """The square root of `var_op`'s variance."""
    return Std.make([x], {**_attributes("std", x, axes, keepdims), "correction": real_constant("std", correction)})


def logsumexp_op(x: Node, axes: Any = None, keepdims: bool = False) -> Node:
    """log(sum(exp(x))) over `axes`: None (all), an int or a tuple; without overflow, -inf of nothing."""
    return LogSumExp.make([x], _attributes("logsumexp", x, axes, keepdims))
