"""Arithmetic and elementary functions, at each index."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx

from . import elementary
from .base import constant, copy, pointwise


def _scale(value: tirx.PrimExpr, factor: float, dtype: Any) -> tirx.PrimExpr:
    """`value * factor`, where a factor of zero keeps NaN and makes NaN of infinity."""
    weak = constant(factor, dtype)
    if str(dtype).startswith("float") and float(weak.value) == 0:
        return tirx.Select(tirx.isfinite(value), weak, constant(np.nan, dtype))
    return value * weak


def add(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """a + b."""
    return pointwise("add", lambda u, v: u + v, a, b)


def sub(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """a - b."""
    if a.same_as(b):
        return mul_by_const(a, 0.0)
    return pointwise("sub", lambda u, v: u - v, a, b)


def mul(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """a * b."""
    return pointwise("mul", lambda u, v: u * v, a, b)


def div(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """a / b."""
    return pointwise("div", lambda u, v: u / v, a, b)


def neg(x: te.Tensor) -> te.Tensor:
    """-x; of unsigned integers modulo 2 ** bits."""
    if str(x.dtype).startswith("uint"):  # TVM's simplifier holds 0 - v for 0
        most = int(np.iinfo(str(x.dtype)).max)
        return pointwise("neg", lambda v: v * constant(most, x.dtype), x)
    return pointwise("neg", lambda v: -v, x)


def add_by_const(x: te.Tensor, const: float) -> te.Tensor:
    """x + const."""
    return pointwise("add_by_const", lambda v: v + constant(const, x.dtype), x)


def mul_by_const(x: te.Tensor, const: float) -> te.Tensor:
    """x * const."""
    return pointwise("mul_by_const", lambda v: _scale(v, const, x.dtype), x)


def div_by_const(x: te.Tensor, const: float) -> te.Tensor:
    """x / const; a const of zero, by which TE cannot divide, multiplies by its infinite reciprocal."""
    if float(np.asarray(const, str(x.dtype))) == 0:
        return mul_by_const(x, float(np.copysign(np.inf, const)))
    return pointwise("div_by_const", lambda v: v / constant(const, x.dtype), x)


def const_div(const: float, x: te.Tensor) -> te.Tensor:
    """const / x."""
    dtype = x.dtype
    zero = constant(0, dtype)
    if float(np.asarray(const, str(dtype))) == 0:
        nan = constant(np.nan, dtype)
        return pointwise("const_div", lambda v: tirx.Select(tirx.any(tirx.isnan(v), v == zero), nan, zero), x)
    return pointwise("const_div", lambda v: constant(const, dtype) / v, x)


_MAX_FACTORS = 16  # beyond, pow is as fast as the product


def power_by_const(x: te.Tensor, const: float) -> te.Tensor:
    """x ** const; a small integer exponent by multiplication."""

    def product(v: tirx.PrimExpr, count: int) -> tirx.PrimExpr:
        if count == 1:
            return v
        half = product(v, count // 2)
        return half * half * v if count % 2 else half * half

    def at(v: tirx.PrimExpr) -> tirx.PrimExpr:
        one = constant(1, x.dtype)
        if const == 0:
            return one
        if float(const).is_integer() and abs(const) <= _MAX_FACTORS:
            power = product(v, abs(int(const)))
            return power if const > 0 else one / power
        # tirx.power is this call with a warning about exponents from 3 on
        return tirx.call_intrin(str(x.dtype), "tirx.pow", v, constant(const, x.dtype))

    return pointwise("power_by_const", at, x)


def power(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """a ** b, by the C library's pow."""
    return pointwise("power", lambda u, v: tirx.call_intrin(str(a.dtype), "tirx.pow", u, v), a, b)


def sgd_update(x: te.Tensor, grad: te.Tensor, learning_rate: float) -> te.Tensor:
    """x - learning_rate * grad."""
    return pointwise("sgd_update", lambda v, g: v - _scale(g, learning_rate, x.dtype), x, grad)


def exp(x: te.Tensor) -> te.Tensor:
    """e ** x."""
    return pointwise("exp", elementary.exp, x)


def log(x: te.Tensor) -> te.Tensor:
    """The natural logarithm."""
    return pointwise("log", elementary.log, x)


def sqrt(x: te.Tensor) -> te.Tensor:
    """The square root."""
    return pointwise("sqrt", tirx.sqrt, x)


def rsqrt(x: te.Tensor) -> te.Tensor:
    """1 / sqrt(x)."""
    return pointwise("rsqrt", lambda v: constant(1, x.dtype) / tirx.sqrt(v), x)


def sin(x: te.Tensor) -> te.Tensor:
    """The sine, by the C library."""
    return pointwise("sin", tirx.sin, x)


def cos(x: te.Tensor) -> te.Tensor:
    """The cosine, by the C library."""
    return pointwise("cos", tirx.cos, x)


def erf(x: te.Tensor) -> te.Tensor:
    """The error function."""
    return pointwise("erf", elementary.erf, x)


def floor(x: te.Tensor) -> te.Tensor:
    """The largest integer that is no larger."""
    return pointwise("floor", tirx.floor, x)


def absolute(x: te.Tensor) -> te.Tensor:
    """|x|, NaN kept."""
    if str(x.dtype).startswith("u"):
        return copy(x)
    return pointwise("absolute", tirx.abs, x)


def sign(x: te.Tensor) -> te.Tensor:
    """-1, 0 or 1; NaN kept."""
    zero, one = constant(0, x.dtype), constant(1, x.dtype)

    def at(v: tirx.PrimExpr) -> tirx.PrimExpr:
        if str(x.dtype).startswith("u"):
            return tirx.Select(v > zero, one, zero)
        return tirx.Select(v > zero, one, tirx.Select(v < zero, constant(-1, x.dtype), v))

    return pointwise("sign", at, x)


def tanh(x: te.Tensor) -> te.Tensor:
    """The hyperbolic tangent."""
    return pointwise("tanh", elementary.tanh, x)


def sigmoid(x: te.Tensor) -> te.Tensor:
    """1 / (1 + exp(-x))."""
    return pointwise("sigmoid", elementary.sigmoid, x)


def relu(x: te.Tensor) -> te.Tensor:
    """max(x, 0), NaN kept."""
    zero = constant(0, x.dtype)
    return pointwise("relu", lambda v: tirx.Select(v <= zero, zero, v), x)


def relu_gradient(x: te.Tensor, grad: te.Tensor) -> te.Tensor:
    """grad where x > 0, else 0: by selection, so that nothing leaks through a closed gate."""
    zero = constant(0, x.dtype)
    return pointwise("relu_gradient", lambda v, g: tirx.Select(v > zero, g, zero), x, grad)


def normalize(tensors: list[te.Tensor], eps: float) -> te.Tensor:
    """(x - mean) / sqrt(var + eps), of x, mean and var; times weight plus bias where they follow."""
    x = tensors[0]
    one, small = constant(1, x.dtype), constant(eps, x.dtype)

    def at(v: tirx.PrimExpr, mean: tirx.PrimExpr, var: tirx.PrimExpr, *affine: tirx.PrimExpr) -> tirx.PrimExpr:
        n = (v - mean) * (one / tirx.sqrt(var + small))
        return n * affine[0] + affine[1] if affine else n

    return pointwise("normalize", at, *tensors)
