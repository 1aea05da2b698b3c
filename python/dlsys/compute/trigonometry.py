"""sin, cos and powers of float32 by arithmetic alone; those of float64 are the C library's.

sin and cos: x 2/pi is taken to its nearest integer n and the rest; by n mod 4 the rest goes through the polynomial of
one or the other. Of x below _SMALL n pi/2 is taken away in pieces, in float32 (W. J. Cody and W. Waite, "Software
Manual for the Elementary Functions", 1980): within 1.6 units in the last place. Of a large x most bits of 2/pi give
multiples of 4, so it is held in pieces of 29 bits, whose products with 24 bits are exact in float64 (M. H. Payne and
R. N. Hanek, "Radian reduction for trigonometric functions", 1983), and four are chosen by the size of x.

Powers: a ** b = 2 ** (b log2 a) in float64, both functions by polynomials that meet them at Chebyshev's points. These
and large x are within 0.51 units (tests/test_ops_math.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial
from tvm import tirx

from .base import constant
from .elementary import bound, exp2, horner, of_exponent

_BITS = 29  # of a piece: with 24 of a float32 a product has 53
# sin(pi/2 s) = s P(s^2) and cos(pi/2 s) = Q(s^2) for |s| < 0.57, highest power first: Taylor's
_SIN = tuple([(-1) ** i * (math.pi / 2) ** (2 * i + 1) / math.factorial(2 * i + 1) for i in range(6)][::-1])
_COS = tuple([(-1) ** i * (math.pi / 2) ** (2 * i) / math.factorial(2 * i) for i in range(7)][::-1])


def _meeting(function: Callable[..., Any], degree: int, ends: tuple[float, float]) -> tuple[float, ...]:
    """The polynomial that meets a function at Chebyshev's points between the ends, highest power first."""
    found = Chebyshev.interpolate(function, degree, domain=ends).convert(kind=Polynomial)
    return tuple(found.coef[::-1].tolist())


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


def of_quarter(number: tirx.PrimExpr, sine: tirx.PrimExpr, cosine: tirx.PrimExpr) -> tirx.PrimExpr:
    """sin(r + number pi/2) as float32, from the sine and the cosine of r."""
    value = tirx.Select((number & tirx.const(1, "int32")) != 0, cosine, sine).astype("float32")
    sign = (number & tirx.const(2, "int32")) << tirx.const(30, "int32")
    return tirx.reinterpret("float32", tirx.reinterpret("int32", value) ^ sign)


def _of_small(x: tirx.PrimExpr, quarter: int) -> tirx.PrimExpr:
    """sin(x + quarter pi/2) of a float32 below _SMALL, in float32."""
    f32 = "float32"
    first, second, third, last = (constant(-piece, f32) for piece in _HALF_PI)

    def of_turns(n: tirx.PrimExpr) -> tirx.PrimExpr:  # s is exact, r is not: the difference is `lost`
        return bound(x + n * first + n * second, lambda s: bound(s + n * third, lambda r: of_rest(n, s, r)))

    def of_rest(n: tirx.PrimExpr, s: tirx.PrimExpr, r: tirx.PrimExpr) -> tirx.PrimExpr:
        lost = ((s - r) + n * third) + n * last
        number = n.astype("int32") + tirx.const(quarter, "int32")

        def signed(z: tirx.PrimExpr, number: tirx.PrimExpr) -> tirx.PrimExpr:
            sine = r + (r * z * horner(_SIN_SMALL, z, f32) + lost)
            cosine = horner(_COS_SMALL, z, f32) * z + constant(1, f32)
            return of_quarter(number, sine, cosine)

        return bound(r * r, lambda z: bound(number, lambda k: signed(z, k)))

    return bound(tirx.nearbyint(x * constant(2 / math.pi, f32)), of_turns)


def _of_turns(x: tirx.PrimExpr, quarter: int) -> tirx.PrimExpr:
    """sin(x + quarter pi/2) of a float32."""
    small = tirx.likely(tirx.abs(x) < constant(_SMALL, "float32"))
    return tirx.Select(small, _of_small(x, quarter), _of_large(x, quarter))


def _of_large(x: tirx.PrimExpr, quarter: int) -> tirx.PrimExpr:
    """sin(x + quarter pi/2) of a float32 of any size, in float64."""
    f64 = "float64"
    zero, fourth = constant(0.0, f64), constant(0.25, f64)
    size, wide = tirx.abs(x), x.astype(f64)

    def piece(number: int) -> tirx.PrimExpr:
        """The one of this number from the first that is needed on."""
        found = constant(_PIECES[number], f64)
        for skipped, end in enumerate(_ENDS, 1):
            found = tirx.Select(size >= constant(end, "float32"), constant(_PIECES[number + skipped], f64), found)
        return found

    def of_rest(s: tirx.PrimExpr, n: tirx.PrimExpr) -> tirx.PrimExpr:
        z = s * s
        return of_quarter(n, s * horner(_SIN, z, f64), horner(_COS, z, f64))

    def of_first(t: tirx.PrimExpr) -> tirx.PrimExpr:
        return bound(tirx.nearbyint(t), lambda k: bound((t - k) + wide * piece(1), lambda s: of_second(s, k)))

    def of_second(s: tirx.PrimExpr, k: tirx.PrimExpr) -> tirx.PrimExpr:
        def of_turn(m: tirx.PrimExpr) -> tirx.PrimExpr:
            turns = (k - tirx.nearbyint(k * fourth) * constant(4.0, f64)) + m
            rest = ((s - m) + wide * piece(2)) + wide * piece(3)
            number = tirx.Select(tirx.abs(turns) < constant(2.0**30, f64), turns, zero).astype("int32")
            return bound(rest, lambda r: bound(number + tirx.const(quarter, "int32"), lambda n: of_rest(r, n)))

        return bound(tirx.nearbyint(s), of_turn)

    return bound(wide * piece(0), of_first)


def sin(x: tirx.PrimExpr) -> tirx.PrimExpr:
    """The sine."""
    if str(x.ty) != "float32":
        return tirx.sin(x)
    return bound(x, lambda v: tirx.Select(v == constant(0, "float32"), v, _of_turns(v, 0)))


def cos(x: tirx.PrimExpr) -> tirx.PrimExpr:
    """The cosine."""
    return bound(x, lambda v: _of_turns(v, 1)) if str(x.ty) == "float32" else tirx.cos(x)


def power(a: tirx.PrimExpr, b: tirx.PrimExpr) -> tirx.PrimExpr:
    """a ** b, as C has it: 1 for an exponent of 0 and a base of 1, NaN of a negative base but for integer exponents."""
    dtype = str(a.ty)
    if dtype != "float32":
        return tirx.call_intrin(dtype, "tirx.pow", a, b)

    zero, one, half, infinity, nan = (constant(c, dtype) for c in (0.0, 1.0, 0.5, np.inf, np.nan))
    most, huge = constant(160.0, "float64"), constant(1e300, "float64")  # 2 ** 160 is infinite, 2 ** -160 is 0
    # Zero, read of an array: TVM writes a bound value that reads nothing in the place of each of its names when it
    # simplifies, and the names of a logarithm within an exponential are so many that this takes seconds.
    nothing = tirx.min(tirx.abs(a), zero).astype("float64")

    def at(a: tirx.PrimExpr, b: tirx.PrimExpr) -> Any:
        whole = tirx.nearbyint(b) == b  # infinities too
        odd = tirx.all(whole, tirx.nearbyint(b * half) != b * half)
        negative = tirx.reinterpret("int32", a) < tirx.const(0, "int32")
        is_nan = tirx.any(tirx.isnan(a), tirx.isnan(b), tirx.all(a < zero, a > -infinity, tirx.Not(whole)))
        unit = tirx.any(a == one, b == zero, tirx.all(a == -one, tirx.abs(b) == infinity))

        def signed(value: tirx.PrimExpr) -> tirx.PrimExpr:
            value = value.astype(dtype)
            value = tirx.Select(tirx.all(negative, odd), -value, value)
            return tirx.Select(unit, one, tirx.Select(is_nan, nan, value))

        def raised(logarithm: tirx.PrimExpr) -> tirx.PrimExpr:
            limit = tirx.Select(a == zero, -huge, tirx.Select(tirx.abs(a) == infinity, huge, logarithm + nothing))
            exponent = b.astype("float64") * limit
            return bound(exp2(tirx.max(tirx.min(exponent, most), -most), _EXP2), signed)

        return of_exponent(
            tirx.abs(a).astype("float64"), lambda f, e: bound(e + f * horner(_LOG2, f, "float64"), raised)
        )

    return bound(a, lambda a: bound(b, lambda b: at(a, b)))
