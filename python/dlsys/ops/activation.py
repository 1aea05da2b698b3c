"""Softmax and its logarithm."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from .. import compute
from ..checks import integer
from ..errors import GraphError, ShapeError
from ..graph import Formula, Made, Node, Op, Shape, register, shape_error
from .elementwise import mul_op, sub_op
from .reduction import reducesum_op
from .shape import reshape_op, swapaxes_op
from .types import is_scalar, known_shape


def softmax_func(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """Softmax of an array over an axis: exp(x) / sum(exp(x)), shifted by the maximum; of integers in float64. Raises
    GraphError for what is no array, ShapeError for an axis that it has not."""
    if not isinstance(x, np.ndarray) or x.dtype.kind not in "biuf":
        raise GraphError(f"softmax_func: takes an array of numbers, not {type(x).__name__}")
    if not -x.ndim <= integer("softmax_func", "the axis", axis) < x.ndim:
        raise ShapeError(f"softmax_func: axis {axis} is out of range for {x.ndim} dimensions")
    x = x if x.dtype.kind == "f" else x.astype(np.float64)
    with np.errstate(invalid="ignore"):  # infinite logits give NaN, as they should
        exponential = np.exp(x - x.max(axis=axis, keepdims=True, initial=-np.inf))
        return exponential / exponential.sum(axis=axis, keepdims=True)


def log_softmax_func(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """log(softmax(x)) over an axis, by log-sum-exp."""
    with np.errstate(invalid="ignore", divide="ignore"):
        shifted = x - x.max(axis=axis, keepdims=True, initial=-np.inf)
        return shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))


class _RowWise(Op):
    """An operator of the rows of its input, which lie along the last axis."""

    kind = "rows"
    flops = 0
    flops_of_input = 5

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        if not input_shapes[0]:
            raise shape_error(node, "the input must have an axis, not shape ()")
        return input_shapes[0]


@register
class Softmax(_RowWise):
    """s = exp(x) / sum(exp(x)) over the last axis; dx = s (g - sum(g s))."""

    name = "softmax"
    onnx = "Softmax"
    formula: ClassVar[Formula] = compute.softmax
    reference: ClassVar[Formula] = softmax_func

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        inner = reducesum_op(mul_op(output_grad, node), -1, keepdims=True)
        return [mul_op(node, sub_op(output_grad, inner))]


@register
class LogSoftmax(_RowWise):
    """log(softmax(x)) over the last axis; dx = g - softmax(x) sum(g)."""

    name = "log_softmax"
    onnx = "LogSoftmax"
    formula: ClassVar[Formula] = compute.log_softmax
    reference: ClassVar[Formula] = log_softmax_func

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        total = reducesum_op(output_grad, -1, keepdims=True)
        return [sub_op(output_grad, mul_op(softmax_op(node.inputs[0]), total))]


def _along(operator: type[Op], node: Node, axis: Any) -> Made:
    """An operator of the last axis along another one: axes change places before and after it."""
    along = integer(operator.name, "the axis", axis)
    if is_scalar(node, along):
        return reshape_op(operator.make([reshape_op(node, (1,))]), ())
    shape = known_shape(node) if isinstance(node, Node) else None
    if along == -1 or (shape is not None and along == len(shape) - 1):
        return operator.make([node])
    return swapaxes_op(operator.make([swapaxes_op(node, along, -1)]), along, -1)


def softmax_op(node: Node, axis: int = -1) -> Made:
    """exp(x) / sum(exp(x)) over an axis, without overflow. Raises GraphError for an axis that is no integer."""
    return _along(Softmax, node, axis)


def log_softmax_op(node: Node, axis: int = -1) -> Made:
    """The logarithm of softmax over an axis. Raises GraphError for an axis that is no integer."""
    return _along(LogSoftmax, node, axis)
