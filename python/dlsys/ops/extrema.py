"""Maxima and minima over axes, and where they lie. NaN counts as both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from .. import compute
from ..compute import Tensor
from ..errors import GraphError
from ..graph import NUMBERS, Node, Op, Shape, register, shape_error
from .arithmetic import div_op, mul_op
from .cast import cast_like_op
from .compare import equal_op
from .reduction import broadcast_axes_op, reducesum_op
from .rules import reduced_shape, resolve_axes
from .types import over_axes


class _Extremum(Op):
    """An extremum over `axes`, of all for None, or its place."""

    flops, flops_of_input = 0, 1
    dtypes = NUMBERS
    _te: ClassVar[Callable[..., Tensor]]

    def _axes(self, node: Node, shape: Shape) -> tuple[int, ...]:
        return resolve_axes(node, node.attrs["axes"], len(shape))

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        (shape,) = input_shapes
        axes = self._axes(node, shape)
        if any(shape[axis] == 0 for axis in axes):
            raise shape_error(node, f"{shape} has nothing along axes {axes}, of which there is no extremum")
        return reduced_shape(shape, axes, node.attrs["keepdims"])

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        axes = self._axes(node, compute.shape_of(inputs[0]))
        return type(self)._te(inputs[0], axes, node.attrs["keepdims"])


class _Value(_Extremum):
    """The extremum itself. Where several are equal to it the gradient is shared evenly."""

    reduces = True
    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        (x,), axes, keepdims = node.inputs, node.attrs["axes"], node.attrs["keepdims"]

        def spread(value: Node) -> Node:
            return value if keepdims else broadcast_axes_op(value, x, axes)

        found = cast_like_op(equal_op(x, spread(node)), output_grad)
        return [mul_op(found, spread(div_op(output_grad, reducesum_op(found, axes, keepdims))))]


@register
class ReduceMax(_Value):
    """The maximum over `axes`; the gradient goes to all that are equal to it, in equal shares."""

    name, _te = "reducemax", compute.reduce_max
    along = "axes"

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.asarray(inputs[0].max(axis=node.attrs["axes"], keepdims=node.attrs["keepdims"]))


@register
class ReduceMin(_Value):
    """The minimum over `axes`; the gradient goes to all that are equal to it, in equal shares."""

    name, _te = "reducemin", compute.reduce_min
    along = "axes"

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.asarray(inputs[0].min(axis=node.attrs["axes"], keepdims=node.attrs["keepdims"]))


class _Place(_Extremum):
    """Where the extremum lies first, int64."""

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        super().infer_dtype(node, input_dtypes)
        return "int64"

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [None]

    def _numpy(self, node: Node, x: np.ndarray, function: Callable[..., Any]) -> np.ndarray:
        axes = node.attrs["axes"]
        if x.ndim == 0:
            return np.zeros((), np.int64)
        found = function(x, axis=None if axes is None else axes[0], keepdims=node.attrs["keepdims"])
        return np.asarray(found, np.int64)


@register
class ArgMax(_Place):
    """The first place of the maximum along an axis, of all in row-major order for None; int64."""

    name, _te = "argmax", compute.argmax
    along = "axes"

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return self._numpy(node, inputs[0], np.argmax)


@register
class ArgMin(_Place):
    """The first place of the minimum along an axis, of all in row-major order for None; int64."""

    name, _te = "argmin", compute.argmin
    along = "axes"

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return self._numpy(node, inputs[0], np.argmin)


def _attributes(op: str, x: Node, axes: Any, keepdims: bool) -> dict[str, Any]:
    return {"axes": over_axes(op, x, axes), "keepdims": bool(keepdims)}


def _along(op: str, x: Node, axis: Any, keepdims: bool) -> dict[str, Any]:
    found = _attributes(op, x, axis, keepdims)
    if found["axes"] is not None and len(found["axes"]) != 1:
        raise GraphError(f"{op}: axis must be None or an integer, not {axis!r}")
    return found


def max_op(x: Node, axes: Any = None, keepdims: bool = False) -> Node:
    """The maximum over `axes`: None (all), an int or a tuple; NaN if there is one.

    Raises GraphError for axes that are no integers.
    """
    return ReduceMax.make([x], _attributes("reducemax", x, axes, keepdims))


def min_op(x: Node, axes: Any = None, keepdims: bool = False) -> Node:
    """The minimum over `axes`: None (all), an int or a tuple; NaN if there is one.

    Raises GraphError for axes that are no integers.
    """
    return ReduceMin.make([x], _attributes("reducemin", x, axes, keepdims))


def argmax_op(x: Node, axis: int | None = None, keepdims: bool = False) -> Node:
    """int64: the first place of the maximum along an axis, of all in row-major order for None.

    NaN counts as the maximum. Raises GraphError for an axis that is no integer.
    """
    return ArgMax.make([x], _along("argmax", x, axis, keepdims))


def argmin_op(x: Node, axis: int | None = None, keepdims: bool = False) -> Node:
    """int64: the first place of the minimum along an axis, of all in row-major order for None.

    NaN counts as the minimum. Raises GraphError for an axis that is no integer.
    """
    return ArgMin.make([x], _along("argmin", x, axis, keepdims))
