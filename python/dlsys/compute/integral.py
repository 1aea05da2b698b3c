"""Quotients rounded down and their remainders, numbers rounded, and operators on the bits of integers.

Processors fault on an integer divided by 0, and on the least one divided by -1: both are computed otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import te, tirx

from .base import broadcast_index, constant, full, pointwise, shape_of
from .compare import is_float
from .loops import Buffer, Source, loop, nest, program, sequence

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


def integer_power(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """a ** b of integers, modulo 2 ** bits; a negative power is 0, but 1 of 1 and 1 or -1 of -1."""
    dtype, shape = str(a.dtype), np.broadcast_shapes(shape_of(a), shape_of(b))
    if 0 in shape:
        return full(shape, 0, dtype)
    zero, one = constant(0, dtype), constant(1, dtype)
    bits = {"int32": 31, "int64": 63, "uint8": 8, "uint32": 32}[dtype]

    def body(sources: list[Source], out: Buffer) -> tirx.Stmt:
        def at(index: list[Expr]) -> tirx.Stmt:
            u, v = (source.load(broadcast_index(source.shape, index)) for source in sources)
            power = tirx.BufferLoad(out, index)

            def step(k: Expr) -> tirx.Stmt:  # from the highest bit on, so that the result is all that is kept
                bit = tirx.bitwise_and(tirx.shift_right(v, tirx.Cast(dtype, bits - 1 - k)), one)
                factor = tirx.Select(tirx.NE(bit, zero), u, one)
                return tirx.BufferStore(out, power * power * factor, index)

            steps = [tirx.BufferStore(out, one, index), loop(bits, step)]
            if not dtype.startswith("uint"):
                minus = constant(-1, dtype)
                of_minus = tirx.Select(tirx.NE(tirx.bitwise_and(v, one), zero), minus, one)
                inverse = tirx.Select(tirx.EQ(u, one), one, tirx.Select(tirx.EQ(u, minus), of_minus, zero))
                steps.append(tirx.BufferStore(out, tirx.Select(v < zero, inverse, power), index))
            return sequence(steps)

        return nest(list(shape), at, math.prod(shape))

    return program("integer_power", shape, dtype, [a, b], body)


def nearest(x: te.Tensor) -> te.Tensor:
    """The nearest integer, of two the even one."""
    return pointwise("round", tirx.nearbyint, x)
