"""Angles, hyperbolic functions, numbers cut off and numbers mixed, by PyTorch's names; see `functions`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import DTypeError
from ..graph import INTEGERS, UNSIGNED
from ..ops import dtype_of, known_dtype
from .functions import abs, exp, float_of, maximum, node_of, pair_of
from .logic import isnan, where

# Of one tensor, at each index -----------------------------------------------------------------------------------


def tan(x: Any) -> Node:
    """The tangent."""
    return ad.tan_op(float_of(x))


def asin(x: Any) -> Node:
    """The angle of [-pi / 2, pi / 2] whose sine x is."""
    return ad.asin_op(float_of(x))


def acos(x: Any) -> Node:
    """The angle of [0, pi] whose cosine x is."""
    return ad.acos_op(float_of(x))


def atan(x: Any) -> Node:
    """The angle of [-pi / 2, pi / 2] whose tangent x is."""
    return ad.atan_op(float_of(x))


def sinh(x: Any) -> Node:
    """The hyperbolic sine."""
    return ad.sinh_op(float_of(x))


def cosh(x: Any) -> Node:
    """The hyperbolic cosine."""
    return ad.cosh_op(float_of(x))


def asinh(x: Any) -> Node:
    """The number whose hyperbolic sine x is."""
    return ad.asinh_op(float_of(x))


def acosh(x: Any) -> Node:
    """The number of [0, inf) whose hyperbolic cosine x is."""
    return ad.acosh_op(float_of(x))


def atanh(x: Any) -> Node:
    """The number whose hyperbolic tangent x is."""
    return ad.atanh_op(float_of(x))


arcsin, arccos, arctan, arcsinh, arccosh, arctanh = asin, acos, atan, asinh, acosh, atanh


def deg2rad(x: Any) -> Node:
    """Degrees as radians."""
    return float_of(x) * (math.pi / 180)


def rad2deg(x: Any) -> Node:
    """Radians as degrees."""
    return float_of(x) * (180 / math.pi)


def exp2(x: Any) -> Node:
    """2 to the power of x."""
    return exp(float_of(x) * math.log(2))


def erfc(x: Any) -> Node:
    """1 - erf(x)."""
    return 1 - ad.erf_op(float_of(x))


def logit(x: Any, eps: float | None = None) -> Node:
    """log(x / (1 - x)), of x within [eps, 1 - eps] unless that is None."""
    node = float_of(x)
    node = node if eps is None else ad.clip_op(node, eps, 1 - eps)
    return ad.log_op(node) - ad.log1p_op(-node)


def trunc(x: Any) -> Node:
    """The integer next to x towards 0, in x's dtype."""
    node = node_of(x)
    if known_dtype(node) in INTEGERS:
        return node
    return ad.where_op(node < 0, -ad.floor_op(-node), ad.floor_op(node))


fix = trunc


def frac(x: Any) -> Node:
    """What `trunc` cuts off."""
    node = node_of(x)
    return node - trunc(node)


def nan_to_num(x: Any, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Node:
    """x with numbers for NaN and the infinities, for which None are the largest and the least of x's dtype."""
    node = node_of(x)
    if known_dtype(node) in (*INTEGERS, "bool"):
        return node
    limits = np.finfo(dtype_of(node))
    high = float(limits.max) if posinf is None else posinf
    low = float(limits.min) if neginf is None else neginf
    finite = ad.where_op(node > float(limits.max), high, ad.where_op(node < float(limits.min), low, node))
    return ad.where_op(isnan(node), nan, finite)


# Of several tensors, at each index ------------------------------------------------------------------------------


def atan2(y: Any, x: Any) -> Node:
    """The angle of [-pi, pi] of the point (x, y)."""
    first, second = pair_of(y, x)
    return ad.atan2_op(float_of(first), float_of(second))


arctan2 = atan2


def fmod(a: Any, b: Any) -> Node:
    """The remainder of the quotient cut off, of a's sign; `remainder` has b's. Of integers by 0 it is 0."""
    first, second = pair_of(a, b)
    if known_dtype(first) in UNSIGNED:
        return ad.remainder_op(first, second)
    is_negative = first < 0
    rest = ad.remainder_op(ad.where_op(is_negative, -first, first), ad.abs_op(second))
    return ad.where_op(is_negative, -rest, rest)


def hypot(a: Any, b: Any) -> Node:
    """sqrt(a^2 + b^2), the distance of the point (a, b)."""
    first, second = (float_of(node) for node in pair_of(a, b))
    return ad.sqrt_op(first * first + second * second)


def lerp(start: Any, end: Any, weight: Any) -> Node:
    """start + weight (end - start), with the weight 1 exactly `end`."""
    first, second = pair_of(start, end)
    apart = second - first
    if not isinstance(weight, Node):
        return first + weight * apart if weight < 0.5 else second - (1 - weight) * apart
    return where(weight < 0.5, first + weight * apart, second - (1 - weight) * apart)


def logaddexp(a: Any, b: Any) -> Node:
    """log(exp(a) + exp(b)), without overflow."""
    first, second = (float_of(node) for node in pair_of(a, b))
    # of two that are equal, infinities too, the difference is 0
    apart = ad.where_op(ad.equal_op(first, second), 0.0, abs(first - second))
    return maximum(first, second) + ad.log1p_op(ad.exp_op(-apart))


def xlogy(a: Any, b: Any) -> Node:
    """a log(b), 0 where a is 0 unless b is NaN."""
    first, second = (float_of(node) for node in pair_of(a, b))
    is_zero = ad.equal_op(first, 0.0)
    plain = ad.logical_and_op(is_zero, ad.logical_not_op(isnan(second)))
    return ad.where_op(plain, 0.0, first * ad.log_op(ad.where_op(plain, 1.0, second)))


def addcmul(x: Any, a: Any, b: Any, *, value: Any = 1) -> Node:
    """x + value a b."""
    product = node_of(a) * b
    return node_of(x) + (product if value == 1 else value * product)


def addcdiv(x: Any, a: Any, b: Any, *, value: Any = 1) -> Node:
    """x + value a / b."""
    quotient = node_of(a) / b
    return node_of(x) + (quotient if value == 1 else value * quotient)


# Of two tensors of integers --------------------------------------------------------------------------------------


def _bits(name: str, a: Any, b: Any) -> tuple[Node, Node]:
    """Two operands of one integer dtype. Raises DTypeError for others."""
    first, second = pair_of(a, b)
    for node in (first, second):
        if dtype_of(node) not in INTEGERS:
            raise DTypeError(f"{name}: takes integers, and {node.name} is {dtype_of(node)}")
    return first, second


def bitwise_left_shift(a: Any, b: Any) -> Node:
    """a * 2**b, of which the lowest bits are kept: `a << b`. Raises DTypeError for what are no integers."""
    first, second = _bits("bitwise_left_shift", a, b)
    return first * ad.integer_power_op(ad.full_op((), 2, dtype_of(second)), second)


def bitwise_right_shift(a: Any, b: Any) -> Node:
    """floor(a / 2**b): `a >> b`. Raises DTypeError for what are no integers."""
    first, second = _bits("bitwise_right_shift", a, b)
    dtype = dtype_of(first)
    two = ad.full_op((), 2, dtype)
    if dtype.startswith("u"):
        return ad.floor_divide_op(first, ad.integer_power_op(two, second))  # by 2**bits, which is 0, it is 0
    most = np.iinfo(dtype).bits - 1
    within = ad.floor_divide_op(first, ad.integer_power_op(two, ad.minimum_op(second, most - 1)))
    sign = ad.cast_op(first < 0, dtype)
    return ad.where_op(second >= most, -sign, within)


def _reversed(shift: Any) -> Any:
    def method(self: Node, other: Any) -> Node:
        return shift(other, self)

    return method


for _name, _shift in (("lshift", bitwise_left_shift), ("rshift", bitwise_right_shift)):
    setattr(Node, f"__{_name}__", _shift)
    setattr(Node, f"__r{_name}__", _reversed(_shift))
