"""Sums and products along an axis that are kept at every index, and products over axes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import compute
from ..compute import Tensor
from ..errors import GraphError
from ..graph import FLOATS, NUMBERS, Node, Op, Shape, register
from .arithmetic import add_op, div_op, mul_op, neg_op, sub_op
from .cast import cast_like_op
from .compare import equal_op, greater_op, logical_and_op, where_op
from .elementary import exp_op, log_op
from .inputs import oneslike_op, zeroslike_op
from .reduction import broadcast_axes_op, reducesum_op
from .rules import reduced_shape, resolve_axes
from .slicing import flip_op
from .types import is_scalar, over_axes


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


@register
class CumProd(_Scan):
    """y[..., i, ...] = product of x[..., j, ...] over j <= i along `axis`; dx = sum over i >= j of g_i y_i / x_j.

    From the first zero on the products are taken without it, and times the zero, so that the gradient's gradient is
    right at zeros too.
    """

    name = "cumprod"
    dtypes = NUMBERS

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        (x,), axis = node.inputs, node.attrs["axis"]
        none, one = zeroslike_op(x), oneslike_op(x)
        is_zero = equal_op(x, 0.0)
        zeros = cumsum_op(cast_like_op(is_zero, x), axis)
        first, second = (logical_and_op(is_zero, equal_op(zeros, number)) for number in (1.0, 2.0))

        def total(products: Node) -> Node:
            return _from_end(cumsum_op, mul_op(output_grad, products), axis)

        less_first = where_op(first, one, x)
        of_first = total(cumprod_op(less_first, axis))
        of_second = total(cumprod_op(where_op(second, one, less_first), axis))
        the_zero = cumsum_op(where_op(first, x, none), axis)  # of value 0; its gradient is that of the zero
        divisor = where_op(is_zero, one, x)
        behind = where_op(second, of_second, where_op(equal_op(zeros, 1.0), div_op(of_first, divisor), none))
        found = where_op(first, of_first, mul_op(the_zero, behind))
        return [where_op(equal_op(zeros, 0.0), div_op(total(node), divisor), found)]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.cumprod(inputs[0], node.attrs["axis"] % len(shape))

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.cumprod(inputs[0], node.attrs["axis"], dtype=inputs[0].dtype)


@register
class LogCumSumExp(_Scan):
    """y[..., i, ...] = log(sum of exp(x[..., j, ...]) over j <= i) along `axis`; dx = sum over i >= j of
    g_i exp(x_j - y_i), by logarithms of positive and negative g, so that nothing overflows."""

    name = "logcumsumexp"
    dtypes = FLOATS

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        (x,), axis = node.inputs, node.attrs["axis"]

        def share(g: Node) -> Node:
            is_positive = greater_op(g, 0.0)
            size = log_op(where_op(is_positive, g, 1.0))
            logs = where_op(is_positive, sub_op(size, node), _LOG_OF_NONE)
            return exp_op(add_op(_from_end(logcumsumexp_op, logs, axis), x))

        return [sub_op(share(output_grad), share(neg_op(output_grad)))]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.logcumsumexp(inputs[0], node.attrs["axis"] % len(shape))

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            return np.logaddexp.accumulate(inputs[0], node.attrs["axis"])


_LOG_OF_NONE = -1e30  # as good as -inf, whose differences are NaN


@register
class ReduceProd(Op):
    """The product over `axes`, of all for None, which are dropped or kept with extent 1; dx = g times the product of
    the others, also where x is 0, and so is its gradient."""

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
        the_zeros = where_op(is_zero, x, zeroslike_op(x))  # of value 0; their gradients are those of the zeros
        total = reducesum_op(the_zeros, axes, keepdims)
        # of one zero the others' product is that of all but zeros; one zero more makes it 0, with a gradient
        of_zero = where_op(equal_op(zeros, 1.0), rest, none)
        of_two = mul_op(spread(where_op(equal_op(zeros, 2.0), rest, none)), sub_op(spread(total), the_zeros))
        of_others = where_op(
            equal_op(zeros, 0.0), rest, where_op(equal_op(zeros, 1.0), mul_op(rest, total), none)
        )
        others = where_op(is_zero, add_op(spread(of_zero), of_two), div_op(spread(of_others), nonzero))
        return [mul_op(spread(output_grad), others)]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.reduce_prod(inputs[0], self._axes(node, compute.shape_of(inputs[0])), shape)

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        (x,) = inputs
        return np.asarray(
            x.prod(axis=self._axes(node, x.shape), keepdims=node.attrs["keepdims"], dtype=x.dtype)
        )


def _along(op: str, axis: Any) -> dict[str, Any]:
    try:
        return {"axis": operator.index(axis)}
    except TypeError:
        raise GraphError(f"{op}: the axis must be an integer, not {axis!r}") from None


def cumprod_op(x: Node, axis: int) -> Node:
    """The products of all elements up to each index along `axis`. Raises GraphError for an axis that is no integer."""
    return x if is_scalar(x, axis) else CumProd.make([x], _along("cumprod", axis))


def cumsum_op(x: Node, axis: int) -> Node:
    """The sums of all elements up to each index along `axis`. Raises GraphError for an axis that is no integer."""
    return x if is_scalar(x, axis) else CumSum.make([x], _along("cumsum", axis))


def logcumsumexp_op(x: Node, axis: int) -> Node:
    """The logarithms of the sums of exp of all elements up to each index along `axis`. Raises GraphError for an axis
    that is no integer."""
    return x if is_scalar(x, axis) else LogCumSumExp.make([x], _along("logcumsumexp", axis))


def prod_op(x: Node, axes: Any = None, keepdims: bool = False) -> Node:
    """The product over `axes`: None (all), an int or a tuple; of integers in their dtype.

    Raises GraphError for axes that are no integers.
    """
    return ReduceProd.make([x], {"axes": over_axes("reduceprod", x, axes), "keepdims": bool(keepdims)})
