"""exp, log, tanh and their like of a float32, by arithmetic alone, so that vectors of them need no call per element;
those of float64 are the C library's.

The method is Cephes' (S. L. Moshier, expf.c, logf.c, ndtrf.c, tanhf.c): the argument is reduced by multiples of log 2,
held in two parts so that the first subtraction is exact; the rest goes through a polynomial. Limits, infinities, NaN
and denormal numbers are as NumPy's. Largest error, in units in the last place (tests/schedule/test_schedule_fused.py):
exp 1.0, log 0.8, tanh 1.3, erf 1.5.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple

import numpy as np
from tvm import tirx
from tvm.tirx.analysis import undefined_vars

from .base import Expr, constant

Name = Callable[[Expr], Expr]
"""Gives a value a name, which stands for it: it is computed once, however often it is read."""
_LOG2_E = 1.4426950408889634073599
_LOG2 = (0.693359375, -2.12194440e-4)
"""log 2 in two parts, the first of few bits: its multiples by an exponent are exact."""


class Format(NamedTuple):
    """The bits of a floating point number."""

    integer: str  # as wide as the numbers
    bias: int
    mantissa: int  # bits
    root_half: int  # the bits of sqrt(1/2)


_FORMATS = {
    "float32": Format("int32", 127, 23, 0x3F3504F3),
    "float64": Format("int64", 1023, 52, 0x3FE6A09E667F3BCD),
}
_SINGLE = _FORMATS["float32"]

# exp(r) = 1 + r + r^2 P(r) for |r| < log(2) / 2; beyond the range exp is 0 and infinity
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_EXP_RANGE = (-104.0, 89.0)
_NORMAL_RANGE = (-87.0, 89.0)  # below it exp is no normal number, and above infinity

# log(1 + f) = f - f^2 / 2 + f^3 P(f) for sqrt(1/2) < 1 + f < sqrt(2)
_LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
    2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
_SMALLEST = 2.0**-126  # normal number

# tanh(x) = x + x z P(z), z = x^2, for |x| < 0.69, P with the least relative error of tanh,
_TANH = (
    -5.140458233654499e-3, 2.0094333216547966e-2, -5.3559962660074234e-2, 1.332913190126419e-1, -3.333319127559662e-1,
)  # fmt: skip
# beyond by exp(2 r) for |r| < log(2) / 4, with the least relative error of a polynomial that begins with 1 + 2 r; 1
# from 9.1 on
_TANH_EXP = tuple(
    c * 2.0**i
    for i, c in [
        (6, 1.383890281431377e-3), (5, 8.369192481040955e-3), (4, 4.166810214519501e-2), (3, 1.666651666164398e-1),
        (2, 4.9999994039535522e-1), (1, 1.0), (0, 1.0),
    ]
)  # fmt: skip
_TANH_SMALL, _TANH_LAST = 0.69, 9.1

# erf(x) = x + x P(x^2) for |x| < 0.9,
_ERF = (-6.0903921663e-4, 5.0119702327e-3, -2.6778915133e-2, 1.1282141041e-1, -3.7612523311e-1, 1.2837915381e-1)
# and 1 - 2 ** P(x) beyond, P fitted to log2(erfc(x)) with the least error of erf; 1 from 3.95 on
_ERF_LOG2 = (
    2.8597085596e-4, -4.4225709103e-3, 3.2194059767e-2, -1.5020431311e-1, -9.1896220885e-1, -1.6270675048,
    -2.4012945197e-4,
)  # fmt: skip
_ERF_SMALL, _ERF_LAST = 0.9, 3.95
# 2 ** r for |r| < 1/2
_EXP2 = (1.3276471997e-3, 9.6755417291e-3, 5.5507132769e-2, 2.4022119717e-1, 6.9314696706e-1, 1.0)


def naming(code: Callable[..., Expr]) -> Callable[..., Expr]:
    """A function of expressions; its code gives values names by its first argument, a `Name`."""

    @wraps(code)
    def function(*args: Any) -> Expr:
        named: list[tuple[tirx.Var, Expr]] = []

        def name(value: Expr) -> Expr:
            named.append((tirx.Var("t", value.ty), value))
            return named[-1][0]

        return _with_names(code(name, *args), named)

    return function


def by_library(function: Callable[..., Expr]) -> Callable[..., Expr]:
    """A function of float32; of float64 it is the C library's of that name."""

    @wraps(function)
    def either(*args: Expr) -> Expr:
        dtype = str(args[0].ty)
        return tirx.call_pure_extern(dtype, function.__name__, *args) if dtype == "float64" else function(*args)

    return either


def _single(*values: float) -> list[Expr]:
    """Constants of float32."""
    return [constant(value, "float32") for value in values]


def _with_names(result: Expr, named: Sequence[tuple[tirx.Var, Expr]]) -> Expr:
    """The expression with the values of its names around it. What one side of a choice alone reads is computed there:
    a value that lives long costs a register."""
    if isinstance(result, tirx.Select) and named:
        sides = (result.condition, result.true_value, result.false_value)
        reads = [set(undefined_vars(side, [])) for side in sides]
        places: list[list[tuple[tirx.Var, Expr]]] = [[], [], [], []]  # of a side, and of several
        for var, value in reversed(named):
            readers = [i for i in range(3) if var in reads[i]]
            places[readers[0] if len(readers) == 1 else 3].insert(0, (var, value))
            for i in readers:
                reads[i].update(undefined_vars(value, []))
        result = tirx.Select(*(_with_names(side, own) for side, own in zip(sides, places, strict=False)))
        named = places[3]
    for var, value in reversed(named):
        result = tirx.Let(var, value, result)
    return result


def horner(coefficients: tuple[float, ...], x: Expr) -> Expr:
    """The polynomial at x, highest power first."""
    value, *rest = (constant(coefficient, x.ty) for coefficient in coefficients)
    for coefficient in rest:
        value = value * x + coefficient
    return value


def power_of_two(n: Expr, dtype: str) -> Expr:
    """2 ** n for an int32 n in the format's normal range; of vectors a vector."""
    name, *lanes = dtype.split("x")
    form = _FORMATS[name]
    biased = n.astype("x".join([form.integer, *lanes])) + tirx.const(form.bias, form.integer)
    return tirx.reinterpret(dtype, biased << tirx.const(form.mantissa, form.integer))


def _nearest(name: Name, x: Expr, factor: float, offset: int = 0) -> tuple[Expr, Expr]:
    """The integer n nearest to x * factor, as a number, and 2 ** (n + offset), where that is 0, normal or infinite. A
    sum with 1.5 * 2 ** mantissa is a whole number; its last bits count up by one."""
    factored, large = _single(factor, 1.5 * 2.0**_SINGLE.mantissa + _SINGLE.bias + offset)
    shifted = name(x * factored + large)
    bits = tirx.reinterpret("int32", shifted) << tirx.const(_SINGLE.mantissa, "int32")
    return name(shifted - large), tirx.reinterpret("float32", bits)


def _exp_rest(name: Name, x: Expr, n: Expr) -> Expr:
    """exp(x - n log 2) where n is the integer nearest to x / log 2."""
    part, rest, one = _single(*_LOG2, 1)
    r = name(x - n * part - n * rest)
    return horner(_EXP, r) * (r * r) + r + one  # each sum monotonic in r


@by_library
@naming
def exp(name: Name, x: Expr) -> Expr:
    """e ** x."""
    low, high, zero = _single(*_EXP_RANGE, 0)
    v = name(x)
    inside = name(tirx.Select(v > high, high, v))
    n, _ = _nearest(name, inside, _LOG2_E)
    # a result that underflows takes some CPUs a hundred cycles
    return tirx.Select(v < low, zero, tirx.ldexp(_exp_rest(name, inside, n), n.astype("int32")))


@naming
def _reciprocal(name: Name, x: Expr) -> Expr:
    """1 / x within 2 ** -14 of it, of a float32 from 2 ** -125 to 2 ** 125, where a division takes Intel's cores as
    long as 30 multiply-adds. A difference of bits negates the exponent, and is within 5 %; then one step of Halley's
    method, y (3 - 3 x y + (x y)^2), with the coefficients of the least error."""
    y = name(tirx.reinterpret("float32", tirx.const(0x7EF34000, "int32") - tirx.reinterpret("int32", x)))
    e = name(x * y - constant(1.5009690523147583, "float32"))
    return y * (e * e + constant(0.7490311861038208, "float32"))


@naming
def _exp_normal(name: Name, x: Expr) -> Expr:
    """e ** x of a float32, but the least normal number where it is none."""
    low, high = _single(*_NORMAL_RANGE)
    v = name(x)
    below = name(tirx.Select(v > high, high, v))
    inside = name(tirx.Select(below < low, low, below))
    n, power = _nearest(name, inside, _LOG2_E)
    return _exp_rest(name, inside, n) * power


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + exp(-x)). Of float32 what would be no normal number is 0."""
    one = constant(1, x.ty)
    return one / (one + (exp if str(x.ty) == "float64" else _exp_normal)(-x))


@naming
def exp2(name: Name, power: Expr, coefficients: tuple[float, ...]) -> Expr:
    """2 ** power, where that is a normal number: the polynomial of what is left of the power beside the nearest
    integer, which is added to its exponent."""
    dtype = str(power.ty)
    integer, mantissa = _FORMATS[dtype].integer, _FORMATS[dtype].mantissa
    y = name(power)
    n = name(tirx.nearbyint(y))
    part = tirx.reinterpret(integer, horner(coefficients, name(y - n)))
    return tirx.reinterpret(dtype, part + (n.astype("int32").astype(integer) << tirx.const(mantissa, integer)))


def log_parts(name: Name, x: Expr) -> tuple[Expr, Expr]:
    """f and e of a number x = 2 ** e * (1 + f) above 0 that is not denormal, 1 + f between the roots of 1/2 and 2."""
    dtype = str(x.ty)
    form = _FORMATS[dtype]
    mantissa, root_half = tirx.const(form.mantissa, form.integer), tirx.const(form.root_half, form.integer)
    bits = name(tirx.reinterpret(form.integer, x))
    exponent = name((bits - root_half) >> mantissa)
    f = name(tirx.reinterpret(dtype, bits - (exponent << mantissa)) - constant(1, dtype))
    return f, exponent.astype("int32").astype(dtype)  # AVX2 has no int64's


@by_library
@naming
def log(name: Name, x: Expr) -> Expr:
    """The natural logarithm: e log 2 + log(1 + f), where x = 2 ** e * (1 + f)."""
    zero, half, smallest, infinity, nan, bits = _single(0, 0.5, _SMALLEST, np.inf, np.nan, _SINGLE.mantissa)
    most, least = _single(*_LOG2)
    v = name(x)
    denormal = v < smallest
    normal = tirx.Select(denormal, v * constant(2.0**_SINGLE.mantissa, "float32"), v)
    f, exponent = log_parts(name, normal)
    e = name(exponent - tirx.Select(denormal, bits, zero))
    z = name(f * f)
    small = f * z * horner(_LOG, f) + e * least - half * z
    result = f + small + e * most
    limit = tirx.Select(v == zero, -infinity, tirx.Select(v == infinity, infinity, nan))
    return tirx.Select(tirx.all(v > zero, v < infinity), result, limit)


@by_library
@naming
def tanh(name: Name, x: Expr) -> Expr:
    """The hyperbolic tangent: a series near 0, and 1 - 2 / (exp(2 size) + 1) beyond. TVM's own loses all digits near 0.
    """
    one, half, small_end, last, log2 = _single(1, 0.5, _TANH_SMALL, _TANH_LAST, math.log(2) / 2)
    v = name(x)
    size = name(tirx.Select(tirx.abs(v) > last, last, tirx.abs(v)))
    z = name(size * size)
    n, power = _nearest(name, size, 2 * _LOG2_E, -1)
    r = name(size - n * log2)
    divisor = name(power * horner(_TANH_EXP, r) + half)
    y = name(_reciprocal(divisor))
    large = one - (y + y * (one - divisor * y))
    return _with_sign(tirx.Select(size < small_end, size + size * (z * horner(_TANH, z)), large), v)


def _with_sign(size: Expr, x: Expr) -> Expr:
    """A float32 of no sign with that of x."""
    sign = tirx.reinterpret("int32", x) & tirx.min_value("int32")
    return tirx.reinterpret("float32", tirx.reinterpret("int32", size) | sign)


@by_library
@naming
def erf(name: Name, x: Expr) -> Expr:
    """The error function, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x."""
    one, small_end, last = _single(1, _ERF_SMALL, _ERF_LAST)
    v = name(x)
    size = name(tirx.Select(tirx.abs(v) > last, last, tirx.abs(v)))
    small = size + size * horner(_ERF, name(size * size))
    y = name(horner(_ERF_LOG2, size))
    n, power = _nearest(name, y, 1.0)
    return _with_sign(tirx.Select(size < small_end, small, one - power * horner(_EXP2, name(y - n))), v)


@naming
def ordered_bits(name: Name, x: Expr) -> Expr:
    """The bits of a number as an integer: two numbers' are in their order, -0 before 0."""
    return turned_bits(name(tirx.reinterpret(_FORMATS[str(x.ty)].integer, x)))


def turned_bits(bits: Expr) -> Expr:
    """Negative integers with all bits but the sign turned over; turned twice they are as before."""
    integer = str(bits.ty)
    last = tirx.const(int(integer[3:]) - 1, integer)
    return bits ^ ((bits >> last) & tirx.max_value(integer))


@naming
def fmod(name: Name, u: Expr, v: Expr) -> Expr:
    """u - trunc(u / v) v, exactly, by one fused multiply-add in float64: NaN where |u / v| is no less than 2 ** 53."""
    a, b = name(u.astype("float64")), name(v.astype("float64"))
    zero, nan = constant(0.0, "float64"), constant(np.nan, "float64")
    size, quotient = name(tirx.abs(b)), name(tirx.trunc(a / b))
    rest = name(tirx.call_intrin("float64", "tirx.fma", zero - quotient, b, a))
    step = name(tirx.Select(a < zero, zero - size, size))
    under = tirx.Select(a < zero, rest > zero, rest < zero)  # the quotient was rounded
    rest = name(tirx.Select(under, rest + step, tirx.Select(tirx.abs(rest) >= size, rest - step, rest)))
    rest = name(tirx.Select(tirx.abs(quotient) < constant(2.0**53, "float64"), rest, nan))
    rest = tirx.Select(rest == zero, zero * a, rest)  # with u's sign
    return tirx.Select(tirx.abs(a) < size, a, rest).astype(str(u.ty))
