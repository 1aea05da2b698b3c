"""sin, cos and powers of float32 by arithmetic alone; those of float64 are the C library's.

By n mod 4, n the integer nearest to x 2/pi, the rest goes through the polynomial of sin or cos. Of x below _SMALL
n pi/2 is taken away in pieces, in float32 (W. J. Cody and W. Waite, "Software Manual for the Elementary Functions",
1980): within 1.6 units in the last place. Of a large x most bits of 2/pi give multiples of 4, so it is held in pieces
of 29 bits, whose products with 24 bits are exact in float64 (M. H. Payne and R. N. Hanek, "Radian reduction for
trigonometric functions", 1983), and four are chosen by the size of x.

Powers: a ** b = 2 ** (b log2 a) in float64, both functions by polynomials that meet them at Chebyshev's points. These
and large x are within 0.51 units (tests/ops/test_ops_math.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial
from tvm import tirx

from .base import Expr, constant
from .elementary import Name, by_library, exp2, horner, log_parts, naming

_BITS = 29  # of a piece: with 24 of a float32 a product has 53
# sin(pi/2 s) = s P(s^2) and cos(pi/2 s) = Q(s^2) for |s| < 0.57, highest power first: Taylor's
_SIN = tuple([(-1) ** i * (math.pi / 2) ** (2 * i + 1) / math.factorial(2 * i + 1) for i in range(6)][::-1])
_COS = tuple([(-1) ** i * (math.pi / 2) ** (2 * i) / math.factorial(2 * i) for i in range(7)][::-1])


def _meeting(function: Callable[..., Any], degree: int, ends: tuple[float, float]) -> tuple[float, ...]:
    """The polynomial that meets a function at Chebyshev's points between the ends, highest power first."""
    return tuple(Chebyshev.interpolate(function, degree, domain=ends).convert(kind=Polynomial).coef[::-1].tolist())


# log2(1 + f) / f between the roots of 1/2 and 2, within 2 ** -40 of it, and 2 ** r within 2 ** -34
_LOG2 = _meeting(lambda f: np.log1p(f) / (f * math.log(2)), 14, (math.sqrt(0.5) - 1, math.sqrt(2) - 1))
_EXP2 = _meeting(np.exp2, 7, (-0.5, 0.5))


def _cut(value: Fraction, widths: Sequence[int]) -> list[float]:
    """A number above 0 as numbers of so many bits each, whose sum it is but for what is below the last."""
    found = []
    for bits in widths:
        unit = Fraction(2) ** (math.frexp(value)[1] - bits)
        found.append(float(value // unit * unit))
        value %= unit
    return found


_PI = Fraction("3.1415926535897932384626433832795028841971693993751058209749445923078164062862089986280348253421170679")
_PIECES = _cut(2 / _PI, (_BITS,) * 7)
# From each on, one piece more gives multiples of 4 alone: x is a multiple of 2 ** -23 times the power of two below it.
_ENDS = [2.0 ** (25 + _BITS - math.frexp(piece)[1]) for piece in _PIECES[:3]]


def _alternating(z: float, odd: int) -> float:
    """(sin(s) / s - 1) / s^2 for `odd` 1, (cos(s) - 1) / s^2 for 0, where z = s^2: the first terms of Taylor's sum."""
    return sum((-1) ** i * z ** (i - 1) / math.factorial(2 * i + odd) for i in range(1, 9))


_SMALL = 1e4  # multiples of pi/2 up to here have 13 bits: their products with pieces of 11 are exact in float32
_HALF_PI = _cut(_PI / 2, (11, 11, 11, 24))
_SIN_SMALL = _meeting(lambda z: _alternating(z, 1), 2, (0.0, 0.62))  # a little more than (pi/4)^2
_COS_SMALL = _meeting(lambda z: _alternating(z, 0), 3, (0.0, 0.62))


def of_quarter(number: Expr, sine: Expr, cosine: Expr) -> Expr:
    """sin(r + number pi/2) as float32, from the sine and the cosine of r."""
    value = tirx.Select((number & tirx.const(1, "int32")) != 0, cosine, sine).astype("float32")
    sign = (number & tirx.const(2, "int32")) << tirx.const(30, "int32")
    return tirx.reinterpret("float32", tirx.reinterpret("int32", value) ^ sign)


@naming
def _of_small(name: Name, x: Expr, quarter: Expr) -> Expr:
    """sin(x + quarter pi/2) of a float32 below _SMALL, in float32."""
    first, second, third, last = (constant(-piece, "float32") for piece in _HALF_PI)
    n = name(tirx.nearbyint(x * constant(2 / math.pi, "float32")))
    s = name(x + n * first + n * second)  # which is exact; r is not: the difference is `lost`
    r = name(s + n * third)
    lost = ((s - r) + n * third) + n * last
    z = name(r * r)
    number = name(n.astype("int32") + quarter)
    sine = r + (r * z * horner(_SIN_SMALL, z) + lost)
    return of_quarter(number, sine, horner(_COS_SMALL, z) * z + constant(1, "float32"))


@naming
def _of_large(name: Name, x: Expr, quarter: Expr) -> Expr:
    """sin(x + quarter pi/2) of a float32 of any size, in float64."""
    f64 = "float64"
    zero, fourth, four, most = (constant(c, f64) for c in (0.0, 0.25, 4.0, 2.0**30))
    size, wide = tirx.abs(x), x.astype(f64)

    def piece(number: int) -> Expr:
        """The one of this number from the first that is needed on."""
        found = constant(_PIECES[number], f64)
        for skipped, end in enumerate(_ENDS, 1):
            found = tirx.Select(size >= constant(end, "float32"), constant(_PIECES[number + skipped], f64), found)
        return found

    t = name(wide * piece(0))
    k = name(tirx.nearbyint(t))
    s = name((t - k) + wide * piece(1))
    m = name(tirx.nearbyint(s))
    turns = (k - tirx.nearbyint(k * fourth) * four) + m
    r = name(((s - m) + wide * piece(2)) + wide * piece(3))
    n = name(tirx.Select(tirx.abs(turns) < most, turns, zero).astype("int32") + quarter)
    z = r * r
    return of_quarter(n, r * horner(_SIN, z), horner(_COS, z))


def _of_quarters(x: Expr, number: int) -> Expr:
    """sin(x + number pi/2) of a float32."""
    quarter = tirx.const(number, "int32")
    small = tirx.likely(tirx.abs(x) < constant(_SMALL, "float32"))
    return tirx.Select(small, _of_small(x, quarter), _of_large(x, quarter))


@by_library
@naming
def sin(name: Name, x: Expr) -> Expr:
    """The sine."""
    v = name(x)
    return tirx.Select(v == constant(0, "float32"), v, _of_quarters(v, 0))


@by_library
@naming
def cos(name: Name, x: Expr) -> Expr:
    """The cosine."""
    return _of_quarters(name(x), 1)


@naming
def power(name: Name, base: Expr, exponent: Expr) -> Expr:
    """a ** b, as C has it: 1 for an exponent of 0 and a base of 1, NaN of a negative base but for integer exponents."""
    dtype = str(base.ty)
    if dtype != "float32":
        return tirx.call_intrin(dtype, "tirx.pow", base, exponent)
    zero, one, half, infinity, nan = (constant(c, dtype) for c in (0.0, 1.0, 0.5, np.inf, np.nan))
    most, huge = constant(160.0, "float64"), constant(1e300, "float64")  # 2 ** 160 is infinite, 2 ** -160 is 0
    # zero, read of an array: TVM writes a bound value that reads nothing in place of its names, which takes seconds
    nothing = tirx.min(tirx.abs(base), zero).astype("float64")
    a, b = name(base), name(exponent)
    whole = tirx.nearbyint(b) == b  # infinities too
    odd = tirx.all(whole, tirx.nearbyint(b * half) != b * half)
    negative = tirx.reinterpret("int32", a) < tirx.const(0, "int32")
    is_nan = tirx.any(tirx.isnan(a), tirx.isnan(b), tirx.all(a < zero, a > -infinity, tirx.Not(whole)))
    unit = tirx.any(a == one, b == zero, tirx.all(a == -one, tirx.abs(b) == infinity))
    f, e = log_parts(name, tirx.abs(a).astype("float64"))
    logarithm = name(e + f * horner(_LOG2, f))
    limit = tirx.Select(a == zero, -huge, tirx.Select(tirx.abs(a) == infinity, huge, logarithm + nothing))
    product = tirx.max(tirx.min(b.astype("float64") * limit, most), -most)
    size = name(exp2(product, _EXP2).astype(dtype))
    value = tirx.Select(tirx.all(negative, odd), -size, size)
    return tirx.Select(unit, one, tirx.Select(is_nan, nan, value))
