"""Quotients rounded down and their remainders, and numbers rounded.

Processors fault on an integer divided by 0, and on the least one divided by -1: both are computed otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te, tirx

from .base import constant, pointwise
from .compare import is_float

Expr = Any  # of tvm.ir


def _safe(b: Expr, dtype: str) -> tuple[Expr, Expr, Expr]:
    """A divisor that does not fault, whether b is 0, and whether it is -1."""
    is_zero = tirx.EQ(b, constant(0, dtype))
    is_minus = tirx.EQ(b, constant(-1, dtype)) if not dtype.startswith("uint") else tirx.const(False, "bool")
    return tirx.Select(tirx.any(is_zero, is_minus), constant(1, dtype), b), is_zero, is_minus


def _fmod(a: Expr, b: Expr, dtype: str) -> tuple[Expr, Expr]:
    """The remainder of the quotient cut off, exactly, and whether its sign is not b's."""
    rest = tirx.call_pure_extern(dtype, "fmodf" if dtype == "float32" else "fmod", a, b)
    zero = constant(0, dtype)
    return rest, tirx.any(tirx.all(rest > zero, b < zero), tirx.all(rest < zero, b > zero))


def _of_two(name: str, function: Callable[[Expr, Expr, str], Expr], a: te.Tensor, b: te.Tensor) -> te.Tensor:
    dtype = str(a.dtype)
    return pointwise(name, lambda u, v: function(u, v, dtype), a, b)


def floor_divide(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """floor(a / b); of integers by 0 it is 0, of floats a / b."""

    def of_integers(u: Expr, v: Expr, dtype: str) -> Expr:
        divisor, is_zero, is_minus = _safe(v, dtype)
        quotient = tirx.floordiv(u, divisor)
        if not dtype.startswith("uint"):
            quotient = tirx.Select(is_minus, constant(0, dtype) - u, quotient)
        return tirx.Select(is_zero, constant(0, dtype), quotient)

    def of_floats(u: Expr, v: Expr, dtype: str) -> Expr:
        # NumPy's npy_divmod: less its remainder u is a multiple of v, but for rounding
        half, one, zero = (constant(c, dtype) for c in (0.5, 1.0, 0.0))
        rest, crossed = _fmod(u, v, dtype)
        whole = (u - rest) / v
        whole = tirx.Select(crossed, whole - one, whole)
        lower = tirx.floor(whole)
        nearest = tirx.Select(whole - lower > half, lower + one, lower)
        return tirx.Select(tirx.EQ(v, zero), u / v, nearest)

    return _of_two("floor_divide", of_floats if is_float(a) else of_integers, a, b)


def remainder(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """a - b floor(a / b), which has b's sign; of integers by 0 it is 0, of floats NaN."""

    def of_integers(u: Expr, v: Expr, dtype: str) -> Expr:
        divisor, is_zero, _ = _safe(v, dtype)
        return tirx.Select(is_zero, constant(0, dtype), tirx.floormod(u, divisor))

    def of_floats(u: Expr, v: Expr, dtype: str) -> Expr:
        rest, crossed = _fmod(u, v, dtype)
        return tirx.Select(crossed, rest + v, rest)

    return _of_two("remainder", of_floats if is_float(a) else of_integers, a, b)


def nearest(x: te.Tensor) -> te.Tensor:
    """The nearest integer, of two the even one."""
    return pointwise("round", tirx.nearbyint, x)
