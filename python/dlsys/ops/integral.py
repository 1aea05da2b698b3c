"""Quotients rounded down and their remainders, numbers rounded, and operators on the bits of integers."""

from __future__ import annotations

import numpy as np

from .. import compute
from ..compute import Tensor
from ..graph import INTEGERS, NUMBERS, Node, register
from .arithmetic import BroadcastBinary, mul_op, neg_op
from .elementary import Unary


class _Quotient(BroadcastBinary):
    dtypes = NUMBERS

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return super().numpy(node, inputs)


@register
class FloorDivide(_Quotient):
    """floor(a / b), of integers by 0 it is 0; the derivative is 0."""

    name, _te, _numpy = "floor_divide", compute.floor_divide, np.floor_divide
    costly = True

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [None, None]


@register
class Remainder(_Quotient):
    """a - b floor(a / b), which has b's sign, of integers by 0 it is 0; d/da = 1, d/db = -floor(a / b)."""

    name, _te, _numpy = "remainder", compute.remainder, np.remainder

    def _partials(self, node: Node, a: Node, b: Node, g: Node) -> tuple[Node, Node]:
        return g, neg_op(mul_op(g, floor_divide_op(a, b)))


@register
class Round(Unary):
    """The nearest integer, of two the even one; the derivative is 0."""

    name = "round"

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [None]

    def te(self, node: Node, inputs: list[Tensor], shape: tuple[int, ...], dtype: str) -> Tensor:
        return compute.nearest(inputs[0])

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        return np.asarray(np.rint(inputs[0]))


@register
class IntegerPower(BroadcastBinary):
    """a ** b of integers, modulo 2 ** bits; a negative power is 0, but 1 of 1, and 1 or -1 of -1."""

    name, _te = "integer_power", compute.integer_power
    elementwise = False
    dtypes = INTEGERS

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        return [None, None]

    def numpy(self, node: Node, inputs: list[np.ndarray]) -> np.ndarray:
        a, b = inputs
        power = np.power(a, np.maximum(b, b.dtype.type(0)))
        if a.dtype.kind == "u":
            return np.asarray(power)
        inverse = np.where(a == 1, 1, np.where(a == -1, np.where(b & 1, -1, 1), 0))
        return np.where(b < 0, inverse.astype(a.dtype), power)


def floor_divide_op(a: Node, b: Node) -> Node:
    """floor(a / b), broadcast; of integers by 0 it is 0."""
    return FloorDivide.make([a, b])


def remainder_op(a: Node, b: Node) -> Node:
    """a - b floor(a / b), broadcast: Python's `%`; of integers by 0 it is 0."""
    return Remainder.make([a, b])


def round_op(node: Node) -> Node:
    """The nearest integer, of two the even one."""
    return Round.make([node])


def integer_power_op(a: Node, b: Node) -> Node:
    """a ** b of integers, broadcast, modulo 2 ** bits; a negative power is 0, but 1 of 1, and 1 or -1 of -1."""
    return IntegerPower.make([a, b])
