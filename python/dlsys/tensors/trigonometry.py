"""Trigonometric and hyperbolic functions at each index, see `table`: compositions of sin, cos, exp and log."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .. import ops
from ..ops.state import with_gradient
from .arguments import float_of, pair_of
from .elementwise import expm1, log1p
from .table import function
from .typing import ArrayLike

if TYPE_CHECKING:
    from .base import Tensor


@function
def tan(x: Tensor) -> Tensor:
    """sin(x) / cos(x)."""
    x = float_of(x)
    return ops.sin_op(x) / ops.cos_op(x)


def _atan_of_size(size: Any) -> Any:
    """The angle, up to pi / 2, whose tangent is `size`, at least 0: of a fourth of the angle by its series."""
    t = ops.where_op(size > 1.0, 1.0 / size, size)
    for _ in range(2):
        t = t / (1.0 + ops.sqrt_op(1.0 + t * t))  # the tangent of half the angle
    series: Any = 1 / 23
    for n in range(21, 0, -2):
        series = 1 / n - t * t * series
    angle = t * series * 4.0
    return ops.where_op(size > 1.0, math.pi / 2 - angle, angle)


def _of_atan(g: Any, y: Any, x: Any) -> Any:
    return g / (1.0 + x * x)


def _of_asin(g: Any, y: Any, x: Any) -> Any:
    return g / ops.sqrt_op((1.0 - x) * (1.0 + x))


def _of_acos(g: Any, y: Any, x: Any) -> Any:
    return -_of_asin(g, y, x)


def _of_atan2(g: Any, angle: Any, y: Any, x: Any) -> Any:
    size = x * x + y * y
    return g * x / size, -(g * y) / size


@function
def atan(x: Tensor) -> Tensor:
    """The angle between -pi / 2 and pi / 2 whose tangent is x."""
    x = float_of(x)
    size = _atan_of_size(ops.abs_op(x))
    return with_gradient(ops.where_op(x < 0.0, -size, size), [x], _of_atan)


@function
def asin(x: Tensor) -> Tensor:
    """The angle between -pi / 2 and pi / 2 whose sine is x; NaN beyond 1."""
    x = float_of(x)
    size = _atan_of_size(ops.abs_op(x) / ops.sqrt_op((1.0 - x) * (1.0 + x)))
    return with_gradient(ops.where_op(x < 0.0, -size, size), [x], _of_asin)


@function
def acos(x: Tensor) -> Tensor:
    """The angle between 0 and pi whose cosine is x; NaN beyond 1."""
    x = float_of(x)
    return with_gradient(_atan_of_size(ops.sqrt_op((1.0 - x) / (1.0 + x))) * 2.0, [x], _of_acos)


@function
def atan2(y: Tensor, other: ArrayLike) -> Tensor:
    """The angle, from -pi to pi, of the point (other, y) from the first axis; 0 of (0, 0)."""
    y, x = pair_of(float_of(y), other)
    across, along = ops.abs_op(y), ops.abs_op(x)
    is_one = ops.equal_op(across, along)  # of zeros and of infinities too
    first = _atan_of_size(ops.where_op(is_one, 1.0, across) / ops.where_op(is_one, 1.0, along))
    first = ops.where_op(ops.equal_op(across, 0.0), 0.0, first)
    angle = ops.where_op(x < 0.0, math.pi - first, first)
    return with_gradient(ops.where_op(y < 0.0, -angle, angle), [y, x], _of_atan2)


@function
def cosh(x: Tensor) -> Tensor:
    """(e^x + e^-x) / 2, by squares of e^(x / 2): it overflows only where the result does."""
    x = float_of(x)
    up, down = ops.exp_op(x * 0.5), ops.exp_op(x * -0.5)
    return up * 0.5 * up + down * 0.5 * down


@function
def sinh(x: Tensor) -> Tensor:
    """(e^x - e^-x) / 2, as 2 sinh(x / 2) cosh(x / 2): it overflows only where the result does."""
    half = float_of(x) * 0.5
    return (expm1(half) - expm1(-half)) * ((ops.exp_op(half) + ops.exp_op(-half)) * 0.5)


_FAR = 1e8
"""From here on the square root of x^2 + 1 is x, for numbers of 53 bits too."""


def _of_far(size: Any, near: Any) -> Any:
    """log(2 size) from `_FAR` on, `near` before. The one that is not taken is computed of a clipped size, so that its
    gradient is finite."""
    far = ops.log_op(ops.clip_op(size, _FAR, None)) + math.log(2.0)
    return ops.where_op(size > _FAR, far, near)


@function
def asinh(x: Tensor) -> Tensor:
    """log(x + sqrt(x^2 + 1)), with the sign of x; by log1p, which is exact around 0."""
    x = float_of(x)
    size = ops.abs_op(x)
    a = ops.clip_op(size, 0.0, _FAR)
    return ops.sign_op(x) * _of_far(size, log1p(a + a * a / (1.0 + ops.sqrt_op(a * a + 1.0))))


@function
def acosh(x: Tensor) -> Tensor:
    """log(x + sqrt(x^2 - 1)), NaN below 1; by log1p of what is above 1."""
    x = float_of(x)
    above = ops.clip_op(x, None, _FAR) - 1.0
    return _of_far(x, log1p(above + ops.sqrt_op(above) * ops.sqrt_op(above + 2.0)))


@function
def atanh(x: Tensor) -> Tensor:
    """log((1 + x) / (1 - x)) / 2."""
    x = float_of(x)
    return (log1p(x) - log1p(-x)) * 0.5
