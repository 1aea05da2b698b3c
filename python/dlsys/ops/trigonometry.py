"""Tangents, angles, and the hyperbolic functions: those that the C library computes, and what follows from others."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from .. import compute
from ..compute import Tensor
from ..graph import Node, Shape, register
from .arithmetic import (
    BroadcastBinary,
    add_byconst_op,
    add_op,
    div_op,
    mul_byconst_op,
    mul_op,
    neg_op,
    sub_op,
)
from .elementary import Unary, cos_op, log1p_op, one_minus, rsqrt_op, sin_op


class _Library(Unary):
    """A function of the C library; `_slope` is its derivative."""

    _te: ClassVar[Callable[..., Tensor]]
    _numpy: ClassVar[Callable[..., np.ndarray]]

    def _slope(self, x: Node) -> Node:
        raise NotImplementedError

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [mul_op(output_grad, self._slope(node.inputs[0]))]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return type(self)._te(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        with np.errstate(invalid="ignore", over="ignore"):
            return np.asarray(type(self)._numpy(inputs[0]))


@register
class Acos(_Library):
    """The angle whose cosine x is; d/dx = -1 / sqrt(1 - x^2)."""

    name, _te, _numpy = "acos", compute.acos, np.arccos

    def _slope(self, x: Node) -> Node:
        return neg_op(rsqrt_op(one_minus(mul_op(x, x))))


@register
class Acosh(_Library):
    """The number of [0, inf) whose hyperbolic cosine x is; d/dx = 1 / sqrt(x^2 - 1)."""

    name, _te, _numpy = "acosh", compute.acosh, np.arccosh

    def _slope(self, x: Node) -> Node:
        return rsqrt_op(add_byconst_op(mul_op(x, x), -1.0))


@register
class Asin(_Library):
    """The angle whose sine x is; d/dx = 1 / sqrt(1 - x^2)."""

    name, _te, _numpy = "asin", compute.asin, np.arcsin

    def _slope(self, x: Node) -> Node:
        return rsqrt_op(one_minus(mul_op(x, x)))


@register
class Asinh(_Library):
    """The number whose hyperbolic sine x is; d/dx = 1 / sqrt(x^2 + 1)."""

    name, _te, _numpy = "asinh", compute.asinh, np.arcsinh

    def _slope(self, x: Node) -> Node:
        return rsqrt_op(add_byconst_op(mul_op(x, x), 1.0))


@register
class Atan(_Library):
    """The angle whose tangent x is; d/dx = 1 / (x^2 + 1)."""

    name, _te, _numpy = "atan", compute.atan, np.arctan

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        (x,) = node.inputs
        return [div_op(output_grad, add_byconst_op(mul_op(x, x), 1.0))]


@register
class Cosh(_Library):
    """The hyperbolic cosine; d/dx = sinh(x)."""

    name, _te, _numpy = "cosh", compute.cosh, np.cosh

    def _slope(self, x: Node) -> Node:
        return sinh_op(x)


@register
class Sinh(_Library):
    """The hyperbolic sine; d/dx = cosh(x)."""

    name, _te, _numpy = "sinh", compute.sinh, np.sinh

    def _slope(self, x: Node) -> Node:
        return cosh_op(x)


@register
class Atan2(BroadcastBinary):
    """The angle of the point (x, y); d/dy = x / (x^2 + y^2), d/dx = -y / (x^2 + y^2)."""

    name, _te, _numpy = "atan2", compute.atan2, np.arctan2

    def _partials(self, node: Node, a: Node, b: Node, g: Node) -> tuple[Node, Node]:
        share = div_op(g, add_op(mul_op(a, a), mul_op(b, b)))
        return mul_op(share, b), neg_op(mul_op(share, a))


def acos_op(node: Node) -> Node:
    """The angle of [0, pi] whose cosine the node is."""
    return Acos.make([node])


def acosh_op(node: Node) -> Node:
    """The number of [0, inf) whose hyperbolic cosine the node is."""
    return Acosh.make([node])


def asin_op(node: Node) -> Node:
    """The angle of [-pi / 2, pi / 2] whose sine the node is."""
    return Asin.make([node])


def asinh_op(node: Node) -> Node:
    """The number whose hyperbolic sine the node is."""
    return Asinh.make([node])


def atan_op(node: Node) -> Node:
    """The angle of [-pi / 2, pi / 2] whose tangent the node is."""
    return Atan.make([node])


def atan2_op(y: Node, x: Node) -> Node:
    """The angle of [-pi, pi] of the point (x, y), broadcast."""
    return Atan2.make([y, x])


def atanh_op(node: Node) -> Node:
    """The number whose hyperbolic tangent the node is: (log(1 + x) - log(1 - x)) / 2."""
    return mul_byconst_op(sub_op(log1p_op(node), log1p_op(neg_op(node))), 0.5)


def cosh_op(node: Node) -> Node:
    """cosh(node)."""
    return Cosh.make([node])


def sinh_op(node: Node) -> Node:
    """sinh(node)."""
    return Sinh.make([node])


def tan_op(node: Node) -> Node:
    """tan(node), as sin(node) / cos(node)."""
    return div_op(sin_op(node), cos_op(node))
