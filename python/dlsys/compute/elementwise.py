"""Formulas of elements: arithmetic, elementary functions, comparisons, selections, changes of dtype.

Each is written for one element, `u`, `v`, and taken for tensors (see `base.elementwise`). A comparison with NaN is
false, but `!=`. TVM's simplifier holds `x - x` and `x == x` for constant, whatever x is: hence `u.same_as(v)`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import te, tirx

from ..checks import in_dtype
from . import elementary, trigonometry
from .base import Expr, Pointwise, constant, copy, elementwise, full, immediate, pointwise
from .integers import compared, difference_of, power_of, product_of, quotient_of, remainder_of, sum_of


def is_float(x: Any) -> bool:
    """Whether a tensor, or an element, is of floating point numbers."""
    return str(x.dtype if isinstance(x, te.Tensor) else x.ty).startswith("float")


def _const(value: float, like: Expr) -> Expr:
    """A constant of an element's dtype."""
    return constant(value, like.ty)


# Arithmetic


def _scaled(u: Expr, factor: float) -> Expr:
    """u times a number."""
    return product_of(u, immediate(in_dtype(factor, str(u.ty))))


add: Pointwise = elementwise(sum_of, "add")
mul: Pointwise = elementwise(product_of, "mul")
div: Pointwise = elementwise(operator.truediv, "div")
add_by_const: Pointwise = elementwise(lambda u, c: sum_of(u, immediate(in_dtype(c, str(u.ty)))), "add_by_const")
mul_by_const: Pointwise = elementwise(_scaled, "mul_by_const")
sgd_update: Pointwise = elementwise(lambda u, grad, rate: u - _scaled(grad, rate), "sgd_update")


@elementwise
def sub(u: Expr, v: Expr) -> Expr:
    """u - v."""
    return _scaled(u, 0.0) if u.same_as(v) else difference_of(u, v)


@elementwise
def neg(u: Expr) -> Expr:
    """-u."""
    return -u if is_float(u) else difference_of(_const(0, u), u)


# Elementary functions

exp: Pointwise = elementwise(elementary.exp, "exp")
log: Pointwise = elementwise(elementary.log, "log")
tanh: Pointwise = elementwise(elementary.tanh, "tanh")
sigmoid: Pointwise = elementwise(elementary.sigmoid, "sigmoid")
erf: Pointwise = elementwise(elementary.erf, "erf")
power: Pointwise = elementwise(lambda u, v: (trigonometry.power if is_float(u) else power_of)(u, v), "power")
fmod: Pointwise = elementwise(lambda u, v: (elementary.fmod if is_float(u) else remainder_of)(u, v), "fmod")
quotient: Pointwise = elementwise(quotient_of, "quotient")
sqrt: Pointwise = elementwise(tirx.sqrt, "sqrt")
sin: Pointwise = elementwise(trigonometry.sin, "sin")
cos: Pointwise = elementwise(trigonometry.cos, "cos")
floor: Pointwise = elementwise(tirx.floor, "floor")
nearest: Pointwise = elementwise(tirx.nearbyint, "round")
absolute: Pointwise = elementwise(lambda u: u if str(u.ty).startswith("u") else tirx.abs(u), "absolute")
relu: Pointwise = elementwise(lambda u: tirx.Select(u <= _const(0, u), _const(0, u), u), "relu")  # NaN kept
# by selection, so that nothing leaks through a closed gate
relu_gradient: Pointwise = elementwise(lambda u, g: tirx.Select(u > _const(0, u), g, _const(0, u)), "relu_gradient")


@elementwise
def sign(u: Expr) -> Expr:
    """-1, 0 (of -0.0 too) or 1; NaN kept."""
    zero, one = _const(0, u), _const(1, u)
    below = zero if str(u.ty).startswith("u") else tirx.Select(u < zero, _const(-1, u), tirx.abs(u))
    return tirx.Select(u > zero, one, below)


# Comparisons and selections


def _is_number(u: Expr) -> Expr:
    return tirx.Not(tirx.isnan(u)) if is_float(u) else tirx.const(True, "bool")


_never = tirx.const(False, "bool")
less: Pointwise = elementwise(lambda u, v: _never if u.same_as(v) else compared(operator.lt, u, v), "less")
where: Pointwise = elementwise(tirx.Select, "where")


@elementwise
def less_equal(u: Expr, v: Expr) -> Expr:
    """u <= v."""
    return _is_number(u) if u.same_as(v) else compared(operator.le, u, v)


@elementwise
def equal(u: Expr, v: Expr) -> Expr:
    """u == v."""
    if u.same_as(v):
        return _is_number(u)
    if str(u.ty) == "bool":  # which TVM would compare as floating point numbers
        return tirx.Select(u, v, _not(v))
    return compared(tirx.EQ, u, v)


def _not(u: Expr) -> Expr:
    """not u, of a boolean; by a choice: TVM's simplifier makes u >= v of tirx.Not(u < v), which is false beside NaN."""
    return tirx.Select(u, tirx.const(False, "bool"), tirx.const(True, "bool"))


def _bitwise(name: str, of_integers: Callable[..., Expr], of_booleans: Callable[..., Expr]) -> Pointwise:
    """An operation on the bits of integers, which of booleans is logical."""

    return elementwise(lambda *x: (of_booleans if str(x[0].ty) == "bool" else of_integers)(*x), name)


bitwise_and: Pointwise = _bitwise("bitwise_and", operator.and_, tirx.And)
bitwise_or: Pointwise = _bitwise("bitwise_or", operator.or_, tirx.Or)
bitwise_xor: Pointwise = _bitwise("bitwise_xor", operator.xor, lambda u, v: tirx.Select(u, _not(v), v))
bitwise_not: Pointwise = _bitwise("bitwise_not", operator.invert, _not)


@elementwise
def maximum(u: Expr, v: Expr) -> Expr:
    """The larger of u and v, NaN if either is."""
    if u.same_as(v):
        return u
    larger = compared(operator.gt, u, v)
    return tirx.Select(tirx.any(larger, tirx.isnan(u)) if is_float(u) else larger, u, v)


def _whole(u: Expr) -> Expr:
    """The part of a floating point number before the point, int64; -2**63 of NaN and of what int64 does not hold."""
    limit, least = constant(2.0**63, u.ty), tirx.const(np.iinfo("int64").min, "int64")
    return tirx.Select(tirx.abs(u) < limit, u.astype("int64"), least)


def cast(x: te.Tensor, dtype: str) -> te.Tensor:
    """x in another dtype: of a fraction the part before the point, whose low bits narrower integers take; of a number
    whether it is not 0."""
    source = str(x.dtype)
    if source == dtype:
        return copy(x)
    if dtype == "bool":
        return bitwise_not(equal(x, full((), 0, source)))
    if is_float(x) and not dtype.startswith("float"):  # by C's rules one beyond the limits is undefined
        return pointwise("cast", lambda u: _whole(u).astype(dtype), x)
    if source == "bool" and dtype.startswith("float"):  # TVM 0.27 fails on whether a cast boolean of a vector is NaN
        return pointwise("cast", lambda u: tirx.Select(u, tirx.const(1.0, dtype), tirx.const(0.0, dtype)), x)
    return pointwise("cast", lambda u: u.astype(dtype), x)
