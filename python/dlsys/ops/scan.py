"""Sums along an axis that are kept at every index, and products over axes."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from .. import compute
from ..compute import Tensor
from ..errors import GraphError
from ..graph import NUMBERS, Node, Op, Shape, register
from .arithmetic import div_op, mul_op
from .cast import cast_like_op
from .compare import equal_op, where_op
from .inputs import oneslike_op, zeroslike_op
from .reduction import broadcast_axes_op, reducesum_op
from .rules import axes_attribute, reduced_shape, resolve_axes
from .slicing import flip_op


@register
class CumSum(Op):
    """y[..., i, ...] = sum of x[..., j, ...] over j <= i along `axis`; dx is the same of g from the other end."""

    name = "cumsum"
    dtypes = NUMBERS

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        resolve_axes(node, (node.attrs["axis"],), len(input_shapes[0]))
        return input_shapes[0]

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        axis = node.attrs["axis"]
        return [flip_op(cumsum_op(flip_op(output_grad, axis), axis), axis)]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.cumsum(inputs[0], node.attrs["axis"] % len(shape))

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.cumsum(inputs[0], node.attrs["axis"], dtype=inputs[0].dtype)


@register
class ReduceProd(Op):
    """The product over `axes`, of all for None, which are dropped or kept with extent 1; dx = g times the product of
    the others, also where x is 0."""

    name = "reduceprod"
    dtypes = NUMBERS

    def _axes(self, node: Node, shape: Shape) -> tuple[int, ...]:
        return resolve_axes(node, node.attrs["axes"], len(shape))

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return reduced_shape(input_shapes[0], self._axes(node, input_shapes[0]), node.attrs["keepdims"])

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        (x,), axes, keepdims = node.inputs, node.attrs["axes"], node.attrs["keepdims"]

        def spread(value: Node) -> Node:
            return broadcast_axes_op(value, x, axes, keepdims)

        is_zero = equal_op(x, 0.0)
        nonzero = where_op(is_zero, oneslike_op(x), x)
        rest = prod_op(nonzero, axes, keepdims)
        zeros = reducesum_op(cast_like_op(is_zero, x), axes, keepdims)
        none = zeroslike_op(node)
        of_zero = where_op(equal_op(zeros, 1.0), rest, none)  # two zeros make every other product 0
        of_others = where_op(equal_op(zeros, 0.0), rest, none)
        others = where_op(is_zero, spread(of_zero), div_op(spread(of_others), nonzero))
        return [mul_op(spread(output_grad), others)]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.reduce_prod(inputs[0], self._axes(node, compute.shape_of(inputs[0])), shape)

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        (x,) = inputs
        return np.asarray(
            x.prod(axis=self._axes(node, x.shape), keepdims=node.attrs["keepdims"], dtype=x.dtype)
        )


def cumsum_op(x: Node, axis: int) -> Node:
    """The sums of all elements up to each index along `axis`. Raises GraphError for an axis that is no integer."""
    try:
        return CumSum.make([x], {"axis": operator.index(axis)})
    except TypeError:
        raise GraphError(f"cumsum: the axis must be an integer, not {axis!r}") from None


def prod_op(x: Node, axes: Any = None, keepdims: bool = False) -> Node:
    """The product over `axes`: None (all), an int or a tuple; of integers in their dtype.

    Raises GraphError for axes that are no integers.
    """
    return ReduceProd.make([x], {"axes": axes_attribute("reduceprod", axes), "keepdims": bool(keepdims)})
