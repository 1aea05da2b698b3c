"""Sums and products along an axis that are kept at every index, and products over axes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import compute
from ..compute import Tensor
from ..errors import GraphError
from ..graph import NUMBERS, Node, Op, Shape, register
from .rules import resolve_axes
from .slicing import flip_op
from .types import is_scalar


class _Scan(Op):
    """An operator along `axis`, whose result at every index is of all elements up to there."""

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        resolve_axes(node, (node.attrs["axis"],), len(input_shapes[0]))
        return input_shapes[0]


def _from_end(function: Callable[[Node, int], Node], x: Node, axis: int) -> Node:
    """The scan of all elements from each index to the end."""
    return flip_op(function(flip_op(x, axis), axis), axis)


@register
class CumSum(_Scan):
    """y[..., i, ...] = sum of x[..., j, ...] over j <= i along `axis`; dx is the same of g from the other end."""

    name = "cumsum"
    dtypes = NUMBERS

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [_from_end(cumsum_op, output_grad, node.attrs["axis"])]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.cumsum(inputs[0], node.attrs["axis"] % len(shape))

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.cumsum(inputs[0], node.attrs["axis"], dtype=inputs[0].dtype)


_LOG_OF_NONE = -1e30  # as good as -inf, whose differences are NaN


def _along(op: str, axis: Any) -> dict[str, Any]:
    try:
        return {"axis": operator.index(axis)}
    except TypeError:
        raise GraphError(f"{op}: the axis must be an integer, not {axis!r}") from None


def cumsum_op(x: Node, axis: int) -> Node:
    """The sums of all elements up to each index along `axis`. Raises GraphError for an axis that is no integer."""
    return x if is_scalar(x, axis) else CumSum.make([x], _along("cumsum", axis))
