"""Elementary functions and activations."""

from __future__ import annotations

import numpy as np

from .. import compute
from ..compute import Tensor
from ..graph import Node, Op, Shape, register, shape_error
from .arithmetic import add_byconst_op, div_op, mul_byconst_op, mul_op, neg_op, sub_op
from .reduction import reducesum_op
from .rules import require_same


def softmax_func(x: np.ndarray) -> np.ndarray:
    """Softmax of an array over its last axis: exp(x) / sum(exp(x)), shifted by the row's maximum."""
    with np.errstate(invalid="ignore"):  # infinite logits give NaN, as they should
        exponential = np.exp(x - x.max(axis=-1, keepdims=True, initial=-np.inf))
        return exponential / exponential.sum(axis=-1, keepdims=True)


def log_softmax_func(x: np.ndarray) -> np.ndarray:
    """log(softmax(x)) over the last axis, by log-sum-exp."""
    with np.errstate(invalid="ignore", divide="ignore"):
        shifted = x - x.max(axis=-1, keepdims=True, initial=-np.inf)
        return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


class _Unary(Op):
    """An operator of one input, at each index."""

    elementwise = True

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return input_shapes[0]


@register
class Exp(_Unary):
    """exp(x); its derivative is itself."""

    name = "exp"

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [mul_op(output_grad, node)]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.exp(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.asarray(np.exp(inputs[0]))


@register
class Log(_Unary):
    """The natural logarithm; d/dx = 1 / x."""

    name = "log"

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [div_op(output_grad, node.inputs[0])]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.log(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.asarray(np.log(inputs[0]))


@register
class Sqrt(_Unary):
    """The square root y; d/dx = 1 / (2 y)."""

    name = "sqrt"

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [div_op(mul_byconst_op(output_grad, 0.5), node)]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.sqrt(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.asarray(np.sqrt(inputs[0]))


def _one_minus(node: Node) -> Node:
    return add_byconst_op(neg_op(node), 1.0)


@register
class Tanh(_Unary):
    """The hyperbolic tangent y; d/dx = 1 - y^2."""

    name = "tanh"

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [mul_op(output_grad, _one_minus(mul_op(node, node)))]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.tanh(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.asarray(np.tanh(inputs[0]))


@register
class Sigmoid(_Unary):
    """y = 1 / (1 + exp(-x)); d/dx = y (1 - y)."""

    name = "sigmoid"

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [mul_op(output_grad, mul_op(node, _one_minus(node)))]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.sigmoid(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        with np.errstate(over="ignore"):  # exp's overflow gives the right limit, 0
            return np.asarray(1 / (1 + np.exp(-inputs[0])))


@register
class Relu(_Unary):
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

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        total = reducesum_op(output_grad, -1, keepdims=True)
        return [sub_op(output_grad, mul_op(softmax_op(node.inputs[0]), total))]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.log_softmax(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return log_softmax_func(inputs[0])


def exp_op(node: Node) -> Node:
    """exp(node)."""
    return Exp.make([node])


def log_op(node: Node) -> Node:
    """The natural logarithm of the node."""
    return Log.make([node])


def sqrt_op(node: Node) -> Node:
    """The square root of the node."""
    return Sqrt.make([node])


def tanh_op(node: Node) -> Node:
    """tanh(node)."""
    return Tanh.make([node])


def sigmoid_op(node: Node) -> Node:
    """1 / (1 + exp(-node))."""
    return Sigmoid.make([node])


def relu_op(node: Node) -> Node:
    """max(node, 0)."""
    return Relu.make([node])


def relu_gradient_op(node: Node, grad: Node) -> Node:
    """grad where node > 0, else 0."""
    return ReluGradient.make([node, grad])


def softmax_op(node: Node) -> Node:
    """Softmax over the last axis."""
    return Softmax.make([node])


def log_softmax_op(node: Node) -> Node:
    """The logarithm of softmax over the last axis."""
    return LogSoftmax.make([node])
