"""Elementary functions of one value, and powers."""

from __future__ import annotations

import math

import numpy as np

from .. import compute
from ..compute import Tensor
from ..graph import NUMBERS, Node, Op, Shape, register
from .arithmetic import (
    BroadcastBinary,
    add_byconst_op,
    div_op,
    mul_byconst_op,
    mul_op,
    neg_op,
)
from .compare import equal_op, greater_equal_op, logical_and_op, where_op
from .inputs import zeroslike_op

_erf = np.frompyfunc(math.erf, 1, 1)  # NumPy has none


class Unary(Op):
    """An operator of one input, at each index."""

    elementwise = True

    def infer_shape(self, node: Node, input_shapes: list[Shape]) -> Shape:
        return input_shapes[0]


@register
class Exp(Unary):
    """exp(x); its derivative is itself."""

    name = "exp"
    costly = True

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [mul_op(output_grad, node)]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.exp(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.asarray(np.exp(inputs[0]))


@register
class Log(Unary):
    """The natural logarithm; d/dx = 1 / x."""

    name = "log"
    costly = True

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [div_op(output_grad, node.inputs[0])]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.log(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.asarray(np.log(inputs[0]))


@register
class Sqrt(Unary):
    """The square root y; d/dx = 1 / (2 y)."""

    name = "sqrt"

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [div_op(mul_byconst_op(output_grad, 0.5), node)]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.sqrt(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.asarray(np.sqrt(inputs[0]))


def one_minus(node: Node) -> Node:
    """1 - node."""
    return add_byconst_op(neg_op(node), 1.0)


@register
class Tanh(Unary):
    """The hyperbolic tangent y; d/dx = 1 - y^2."""

    name = "tanh"
    costly = True

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [mul_op(output_grad, one_minus(mul_op(node, node)))]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.tanh(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.asarray(np.tanh(inputs[0]))


@register
class Rsqrt(Unary):
    """y = 1 / sqrt(x); d/dx = -y^3 / 2."""

    name = "rsqrt"

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [mul_op(output_grad, mul_byconst_op(mul_op(mul_op(node, node), node), -0.5))]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.rsqrt(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.asarray(1 / np.sqrt(inputs[0]))


@register
class Expm1(Unary):
    """exp(x) - 1, near 0 without loss of digits; d/dx = y + 1."""

    name = "expm1"
    costly = True

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [mul_op(output_grad, add_byconst_op(node, 1.0))]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.expm1(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.asarray(np.expm1(inputs[0]))


@register
class Log1p(Unary):
    """log(1 + x), near 0 without loss of digits; d/dx = 1 / (1 + x)."""

    name = "log1p"
    costly = True

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [div_op(output_grad, add_byconst_op(node.inputs[0], 1.0))]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.log1p(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.asarray(np.log1p(inputs[0]))


@register
class Sin(Unary):
    """The sine; d/dx = cos(x)."""

    name = "sin"

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [mul_op(output_grad, cos_op(node.inputs[0]))]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.sin(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.asarray(np.sin(inputs[0]))


@register
class Cos(Unary):
    """The cosine; d/dx = -sin(x)."""

    name = "cos"

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [neg_op(mul_op(output_grad, sin_op(node.inputs[0])))]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.cos(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.asarray(np.cos(inputs[0]))


@register
class Abs(Unary):
    """|x|; d/dx = sign(x), 0 at 0."""

    name = "abs"
    dtypes = NUMBERS

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [mul_op(output_grad, sign_op(node.inputs[0]))]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.absolute(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.asarray(np.abs(inputs[0]))


@register
class Sign(Unary):
    """-1, 0 or 1, NaN of NaN; the derivative is 0."""

    name = "sign"
    dtypes = NUMBERS

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [None]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.sign(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.asarray(np.sign(inputs[0]))


@register
class Floor(Unary):
    """The largest integer that is no larger; the derivative is 0."""

    name = "floor"

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [None]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.floor(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.asarray(np.floor(inputs[0]))


@register
class Erf(Unary):
    """The error function, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x."""

    name = "erf"
    costly = True

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        (x,) = node.inputs
        return [mul_op(output_grad, mul_byconst_op(exp_op(neg_op(mul_op(x, x))), 2 / math.sqrt(math.pi)))]

    def te(self, node: Node, inputs: list[Tensor], shape: Shape, dtype: str) -> Tensor:
        return compute.erf(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.asarray(_erf(inputs[0]), inputs[0].dtype)


@register
class Power(BroadcastBinary):
    """a ** b; d/da = b a^(b - 1), 0 where b is 0; d/db = a^b log(a), 0 where a is 0 and b no less."""

    name, _te, _numpy = "power", compute.power, np.power

    def _partials(self, node: Node, a: Node, b: Node, g: Node) -> tuple[Node, Node]:
        zero = zeroslike_op(node)
        by_a = mul_op(g, mul_op(b, power_op(a, add_byconst_op(b, -1.0))))
        by_b = mul_op(g, mul_op(node, log_op(a)))
        flat = logical_and_op(equal_op(a, 0.0), greater_equal_op(b, 0.0))
        return where_op(equal_op(b, 0.0), zero, by_a), where_op(flat, zero, by_b)


def exp_op(node: Node) -> Node:
    """exp(node)."""
    return Exp.make([node])


def expm1_op(node: Node) -> Node:
    """exp(node) - 1."""
    return Expm1.make([node])


def log_op(node: Node) -> Node:
    """The natural logarithm of the node."""
    return Log.make([node])


def log1p_op(node: Node) -> Node:
    """log(1 + node)."""
    return Log1p.make([node])


def sqrt_op(node: Node) -> Node:
    """The square root of the node."""
    return Sqrt.make([node])


def rsqrt_op(node: Node) -> Node:
    """1 / sqrt(node)."""
    return Rsqrt.make([node])


def tanh_op(node: Node) -> Node:
    """tanh(node)."""
    return Tanh.make([node])


def erf_op(node: Node) -> Node:
    """The error function of the node."""
    return Erf.make([node])


def sin_op(node: Node) -> Node:
    """sin(node)."""
    return Sin.make([node])


def cos_op(node: Node) -> Node:
    """cos(node)."""
    return Cos.make([node])


def abs_op(node: Node) -> Node:
    """|node|."""
    return Abs.make([node])


def sign_op(node: Node) -> Node:
    """-1, 0 or 1, as the node's sign; NaN of NaN."""
    return Sign.make([node])


def floor_op(node: Node) -> Node:
    """The largest integer that is no larger than the node."""
    return Floor.make([node])


def power_op(a: Node, b: Node) -> Node:
    """a ** b, broadcast."""
    return Power.make([a, b])
