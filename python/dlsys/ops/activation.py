"""Activations, softmax."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import compute
from ..compute import Tensor
from ..errors import GraphError
from ..graph import Node, Op, Shape, register, shape_error
from .arithmetic import add_byconst_op, mul_byconst_op, mul_op, sub_op
from .compare import greater_op, where_op
from .elementary import Unary, erf_op, one_minus, tanh_op
from .reduction import reducesum_op
from .rules import axes_attribute, real_constant, require_same, resolve_axes
from .shape import reshape_op
from .types import is_scalar


def softmax_func(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """Softmax of an array over an axis: exp(x) / sum(exp(x)), shifted by the maximum."""
    with np.errstate(invalid="ignore"):  # infinite logits give NaN, as they should
        exponential = np.exp(x - x.max(axis=axis, keepdims=True, initial=-np.inf))
        return exponential / exponential.sum(axis=axis, keepdims=True)


def log_softmax_func(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """log(softmax(x)) over an axis, by log-sum-exp."""
    with np.errstate(invalid="ignore", divide="ignore"):
        shifted = x - x.max(axis=axis, keepdims=True, initial=-np.inf)
        return shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))


@register
class Sigmoid(Unary):
    """y = 1 / (1 + exp(-x)); d/dx = y (1 - y)."""

    name = "sigmoid"
    costly = True

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [mul_op(output_grad, mul_op(node, one_minus(node)))]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.sigmoid(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        with np.errstate(over="ignore"):  # exp's overflow gives the right limit, 0
            return np.asarray(1 / (1 + np.exp(-inputs[0])))


@register
class Relu(Unary):
    """max(x, 0); the derivative at 0 is 0."""

    name = "relu"

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [relu_gradient_op(node.inputs[0], output_grad)]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.relu(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.asarray(np.maximum(inputs[0], 0))


@register
class ReluGradient(Op):
    """grad where x > 0, else 0, by selection: an infinite or NaN grad does not leak through a closed gate."""

    name = "relu_gradient"
    elementwise = True

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return require_same(node, *input_shapes)

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [None, relu_gradient_op(node.inputs[0], output_grad)]  # the gate is flat in x

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.relu_gradient(*inputs)

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        x, grad = inputs
        return np.where(x > 0, grad, grad.dtype.type(0))


@register
class LeakyRelu(Unary):
    """x where x > 0, else slope * x; the derivative at 0 is the slope."""

    name = "leaky_relu"

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        x, slope = node.inputs[0], node.attrs["slope"]
        return [where_op(greater_op(x, 0.0), output_grad, mul_byconst_op(output_grad, slope))]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.leaky_relu(inputs[0], node.attrs["slope"])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        (x,) = inputs
        with np.errstate(invalid="ignore"):  # of what is not taken
            return np.where(x > 0, x, x * x.dtype.type(node.attrs["slope"]))


@register
class Softplus(Unary):
    """log(1 + exp(x)); the derivative is sigmoid(x)."""

    name = "softplus"
    costly = True

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [mul_op(output_grad, sigmoid_op(node.inputs[0]))]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.softplus(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.asarray(np.logaddexp(inputs[0], inputs[0].dtype.type(0)))


class _RowWise(Op):
    """An operator of the rows of its input, which lie along the last axis."""

    row_wise = True

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        if not input_shapes[0]:
            raise shape_error(node, "the input must have an axis, not shape ()")
        return input_shapes[0]


@register
class Softmax(_RowWise):
    """s = exp(x) / sum(exp(x)) over the last axis; dx = s (g - sum(g s))."""

    name = "softmax"
    flops, flops_of_input = 0, 5

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        inner = reducesum_op(mul_op(output_grad, node), -1, keepdims=True)
        return [mul_op(node, sub_op(output_grad, inner))]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.softmax(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return softmax_func(inputs[0])


@register
class LogSoftmax(_RowWise):
    """log(softmax(x)) over the last axis; dx = g - softmax(x) sum(g)."""

    name = "log_softmax"
    flops, flops_of_input = 0, 5

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        total = reducesum_op(output_grad, -1, keepdims=True)
        return [sub_op(output_grad, mul_op(softmax_op(node.inputs[0]), total))]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.log_softmax(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return log_softmax_func(inputs[0])


class _Along(Op):
    """An operator of the lines of its input along `attrs["axis"]`, for which the number of axes is not yet known."""

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        self._axis(node, input_shapes[0])
        return input_shapes[0]

    def _axis(self, node: Node, shape: Shape) -> int:
        return resolve_axes(node, (node.attrs["axis"],), len(shape))[0]


@register
class SoftmaxAlong(_Along):
    """s = exp(x) / sum(exp(x)) over an axis; dx = s (g - sum(g s))."""

    name = "softmax_along"
    along = "axis"

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        inner = reducesum_op(mul_op(output_grad, node), node.attrs["axis"], keepdims=True)
        return [mul_op(node, sub_op(output_grad, inner))]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.softmax(inputs[0], self._axis(node, shape))

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return softmax_func(inputs[0], node.attrs["axis"])


@register
class LogSoftmaxAlong(_Along):
    """log(softmax(x)) over an axis; dx = g - softmax(x) sum(g)."""

    name = "log_softmax_along"
    along = "axis"

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        axis = node.attrs["axis"]
        total = reducesum_op(output_grad, axis, keepdims=True)
        return [sub_op(output_grad, mul_op(softmax_op(node.inputs[0], axis), total))]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.log_softmax(inputs[0], self._axis(node, shape))

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return log_softmax_func(inputs[0], node.attrs["axis"])


def sigmoid_op(node: Node) -> Node:
    """1 / (1 + exp(-node))."""
    return Sigmoid.make([node])


def relu_op(node: Node) -> Node:
    """max(node, 0)."""
    return Relu.make([node])


def relu_gradient_op(node: Node, grad: Node) -> Node:
    """grad where node > 0, else 0."""
    return ReluGradient.make([node, grad])


def leaky_relu_op(x: Node, negative_slope: float = 0.01) -> Node:
    """x where x > 0, else negative_slope * x. Raises GraphError for a slope that is no real number."""
    return LeakyRelu.make([x], {"slope": real_constant("leaky_relu", negative_slope)})


def softplus_op(x: Node) -> Node:
    """log(1 + exp(x))."""
    return Softplus.make([x])


def silu_op(x: Node) -> Node:
    """x * sigmoid(x), also called swish."""
    return mul_op(x, sigmoid_op(x))


def gelu_op(x: Node, approximate: str = "none") -> Node:
    """x times the normal distribution's function, x (1 + erf(x / sqrt 2)) / 2, or with approximate="tanh"
    x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 (Hendrycks and Gimpel 2016).

    Raises GraphError for any other `approximate`.
    """
    if approximate == "none":
        inner = erf_op(mul_byconst_op(x, math.sqrt(0.5)))
    elif approximate == "tanh":
        cube = mul_op(mul_op(x, x), x)
        inner = tanh_op(mul_byconst_op(x + mul_byconst_op(cube, 0.044715), math.sqrt(2 / math.pi)))
    else:
        raise GraphError(f"gelu: approximate must be 'none' or 'tanh', not {approximate!r}")
    return mul_op(mul_byconst_op(x, 0.5), add_byconst_op(inner, 1.0))


def _axis(op: str, axis: Any) -> int:
    found = axes_attribute(op, axis)
    if found is None or len(found) != 1:
        raise GraphError(f"{op}: axis must be an integer, not {axis!r}")
    return found[0]


def softmax_op(node: Node, axis: int = -1) -> Node:
    """exp(x) / sum(exp(x)) over an axis, without overflow. Raises GraphError for an axis that is no integer."""
    along = _axis("softmax", axis)
    if is_scalar(node, along):
        return reshape_op(Softmax.make([reshape_op(node, (1,))]), ())
    return Softmax.make([node]) if along == -1 else SoftmaxAlong.make([node], {"axis": along})


def log_softmax_op(node: Node, axis: int = -1) -> Node:
    """The logarithm of softmax over an axis. Raises GraphError for an axis that is no integer."""
    along = _axis("log_softmax", axis)
    if is_scalar(node, along):
        return reshape_op(LogSoftmax.make([reshape_op(node, (1,))]), ())
    return LogSoftmax.make([node]) if along == -1 else LogSoftmaxAlong.make([node], {"axis": along})
