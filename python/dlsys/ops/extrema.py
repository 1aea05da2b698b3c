"""Maxima and minima over axes, and where they lie. NaN counts as both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from .. import compute
from ..errors import GraphError
from ..graph import NUMBERS, Formula, Made, Node, Shape, register, shape_error
from .elementwise import cast_like_op, div_op, equal_op, mul_op
from .reduction import Reduction, reducesum_op, reduction_attributes


def _over(function: Callable[..., Any]) -> Callable[..., Any]:
    """NumPy's function over axes."""
    return lambda x, axes, keepdims: function(x, axis=axes, keepdims=keepdims)


def _place_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """NumPy's function along the one axis, or of all elements."""
    return lambda x, axes, keepdims: function(x, axis=axes[0] if len(axes) == 1 else None, keepdims=keepdims)


class _Extremum(Reduction):
    """An extremum over `axes`. Where several elements are equal to it the gradient is shared evenly."""

    flops = 0
    flops_of_input = 1
    dtypes = NUMBERS

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        (shape,) = input_shapes
        axes = self.axes(node, shape)
        if any(shape[axis] == 0 for axis in axes):
            raise shape_error(node, f"{shape} has nothing along axes {axes}, of which there is no extremum")
        return super().infer_shape(node, input_shapes)

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        (x,), axes, keepdims = node.inputs, node.attrs["axes"], node.attrs["keepdims"]

        def spread(value: Node) -> Node:
            return value if keepdims else self.spread(node, value)

        found = cast_like_op(equal_op(x, spread(node)), output_grad)
        return [mul_op(found, spread(div_op(output_grad, reducesum_op(found, axes, keepdims))))]


@register
class ReduceMax(_Extremum):
    """The maximum over `axes`; the gradient goes to all that are equal to it, in equal shares."""

    name = "reducemax"
    onnx = "ReduceMax"
    formula: ClassVar[Formula] = compute.reduce_max
    reference: ClassVar[Formula] = _over(np.max)


@register
class ReduceMin(_Extremum):
    """The minimum over `axes`; the gradient goes to all that are equal to it, in equal shares."""

    name = "reducemin"
    onnx = "ReduceMin"
    formula: ClassVar[Formula] = compute.reduce_min
    reference: ClassVar[Formula] = _over(np.min)


class _Place(_Extremum):
    """Where the extremum lies first, int64."""

    kind = "rows"
    result = "int64"

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [None]


@register
class ArgMax(_Place):
    """The first place of the maximum along an axis, of all in row-major order for None; int64."""

    name = "argmax"
    onnx = "ArgMax"
    formula: ClassVar[Formula] = compute.argmax
    reference: ClassVar[Formula] = _place_of(np.argmax)


@register
class ArgMin(_Place):
    """The first place of the minimum along an axis, of all in row-major order for None; int64."""

    name = "argmin"
    onnx = "ArgMin"
    formula: ClassVar[Formula] = compute.argmin
    reference: ClassVar[Formula] = _place_of(np.argmin)


def max_op(x: Node, axes: Any = None, keepdims: bool = False) -> Made:
    """The maximum over `axes`: None (all), an int or a tuple; NaN if there is one.

    Raises GraphError for axes that are no integers.
    """
    return ReduceMax.make([x], reduction_attributes("reducemax", x, axes, keepdims))


def min_op(x: Node, axes: Any = None, keepdims: bool = False) -> Made:
    """The minimum over `axes`: None (all), an int or a tuple; NaN if there is one.

    Raises GraphError for axes that are no integers.
    """
    return ReduceMin.make([x], reduction_attributes("reducemin", x, axes, keepdims))


def _place(operator: type[_Place], x: Node, axis: Any, keepdims: bool) -> Made:
    """A node of ArgMax or ArgMin. Raises GraphError for several axes."""
    found = reduction_attributes(operator.name, x, axis, keepdims)
    if found["axes"] is not None and len(found["axes"]) != 1:
        raise GraphError(f"{operator.name}: axis must be None or an integer, not {axis!r}")
    return operator.make([x], found)


def argmax_op(x: Node, axis: Any = None, keepdims: bool = False) -> Made:
    """int64: the first place of the maximum along an axis, of all in row-major order for None.

    NaN counts as the maximum. Raises GraphError for an axis that is no integer.
    """
    return _place(ArgMax, x, axis, keepdims)


def argmin_op(x: Node, axis: Any = None, keepdims: bool = False) -> Made:
    """int64: the first place of the minimum along an axis, of all in row-major order for None.

    NaN counts as the minimum. Raises GraphError for an axis that is no integer.
    """
    return _place(ArgMin, x, axis, keepdims)
