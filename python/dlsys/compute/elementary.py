"""exp, log, tanh and their like of one number, by arithmetic alone, so that vectors of them need no call per element.

The method is Cephes' (S. L. Moshier, exp.c, expf.c, log.c, logf.c, ndtr.c, ndtrf.c, tanh.c): the argument is reduced
by multiples of log 2, held in two parts so that the first subtraction is exact; the rest goes through a polynomial or a
quotient of two; powers of two are put together from their bits. Limits, infinities, NaN and denormal numbers are as
NumPy's. Largest error found over the whole range, in units in the last place (tests/test_schedule_fused.py): exp 1.0 in
float32 and 1.5 in float64, log 0.8 and 0.9, tanh 1.2 in both; erf at most 1.5 and 3.5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx

from .base import constant

_Function = Callable[[Any], Any]  # of expressions
_LOG2_E = 1.4426950408889634073599


@dataclass(frozen=True)
class _Format:
    """A floating point format, and the constants that a function needs for its precision."""

    integer: str  # as wide as the numbers
    bias: int
    mantissa: int  # bits
    smallest: float  # normal number
    root_half: int  # the bits of sqrt(1/2)
    log2: tuple[float, float]  # log 2 in two parts, the first of few bits
    exp_range: tuple[float, float]  # beyond it exp is 0 and infinity
    normal_range: tuple[float, float]  # below it exp is no normal number, and above infinity
    one_from: float  # where tanh is 1


_FORMATS = {
    "float32": _Format(
        "int32", 127, 23, 2.0**-126, 0x3F3504F3, (0.693359375, -2.12194440e-4), (-104.0, 89.0), (-87.0, 89.0), 9.1
    ),
    "float64": _Format(
        *("int64", 1023, 52, 2.0**-1022, 0x3FE6A09E667F3BCD, (6.93145751953125e-1, 1.42860682030941723212e-6)),
        *((-746.0, 710.0), (-708.0, 710.0), 19.1),
    ),
}

# exp(r) = 1 + r + r^2 P(r) for |r| < log(2) / 2 in float32,
_EXPF = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
# 1 + 2 w / (Q(r^2) - w) with w = r P(r^2) in float64
_EXP_P = (1.26177193074810590878e-4, 3.02994407707441961300e-2, 9.99999999999999999910e-1)
_EXP_Q = (3.00198505138664455042e-6, 2.52448340349684104192e-3, 2.27265548208155028766e-1, 2.0)

# log(1 + f) = f - f^2 / 2 + f^3 P(f) for sqrt(1/2) < 1 + f < sqrt(2) in float32,
_LOGF = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
# with P(f) / Q(f) in float64
_LOG_P = (
    1.01875663804580931796e-4, 4.97494994976747001425e-1, 4.70579119878881725854e0,
    1.44989225341610930846e1, 1.79368678507819816313e1, 7.70838733755885391666e0,
)  # fmt: skip
_LOG_Q = (
    1.0, 1.12873587189167450590e1, 4.52279145837532221105e1, 8.29875266912776603211e1,
    7.11544750618563894466e1, 2.31251620126765340583e1,
)  # fmt: skip
# log's two parts of log 2: their multiples by an exponent of 11 bits are exact
_LOG_LOG2 = (0.693359375, -2.121944400546905827679e-4)

# tanh(x) = x + x z P(z), z = x^2, for |x| < 0.625 in float32, P fitted with the least relative error of tanh,
_TANHF = (
    -5.591015331447125e-3, 2.053881995379925e-2, -5.370965600013733e-2, 1.333109289407730e-1,
    -3.333326876163483e-1,
)  # fmt: skip
# and x + x z P(z) / Q(z) in float64
_TANH_P = (-9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3)
_TANH_Q = (1.0, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3)
_TANH_SMALL = 0.625

# erf(x) = x + x P(x^2) for |x| < 0.9 in float32,
_ERFF = (
    -6.0903921663e-4, 5.0119702327e-3, -2.6778915133e-2, 1.1282141041e-1, -3.7612523311e-1, 1.2837915381e-1,
)  # fmt: skip
_ERFF_SMALL = 0.9
# and 1 - 2 ** P(x) beyond, P fitted to log2(erfc(x)) with the least error of erf; 1 from 3.95 on
_ERFF_LOG2 = (
    2.8597085596e-4, -4.4225709103e-3, 3.2194059767e-2, -1.5020431311e-1, -9.1896220885e-1,
    -1.6270675048, -2.4012945197e-4,
)  # fmt: skip
_ERFF_LAST = 3.95
# 2 ** r for |r| < 1/2 in float32
_EXP2F = (1.3276471997e-3, 9.6755417291e-3, 5.5507132769e-2, 2.4022119717e-1, 6.9314696706e-1, 1.0)
# erf(x) = x T(x^2) / U(x^2) for |x| < 1 in float64
_ERF_T = (
    9.60497373987051638749e0, 9.00260197203842689217e1, 2.23200534594684319226e3, 7.00332514112805075473e3,
    5.55923013010394962768e4,
)  # fmt: skip
_ERF_U = (
    1.0, 3.35617141647503099647e1, 5.21357949780152679795e2, 4.59432382970980127987e3,
    2.26290000613890934246e4, 4.92673942608635921086e4,
)  # fmt: skip
# and 1 - exp(-x^2) P(x) / Q(x) beyond, which is 1 from 6 on
_ERF_P = (
    2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687e0,
    4.86371970985681366614e1, 1.96520832956077098242e2, 5.26445194995477358631e2, 9.34528527171957607540e2,
    1.02755188689515710272e3, 5.57535335369399327526e2,
)  # fmt: skip
_ERF_Q = (
    1.0, 1.32281951154744992508e1, 8.67072140885989742329e1, 3.54937778887819891062e2,
    9.75708501743205489753e2, 1.82390916687909736289e3, 2.24633760818710981792e3, 1.65666309194161350182e3,
    5.57535340817727675546e2,
)  # fmt: skip
_ERF_LAST = 6.0


def bound(value: tirx.PrimExpr, function: _Function) -> tirx.PrimExpr:
    """function(value), where value is written once however often the function reads it."""
    var = tirx.Var("t", value.ty)
    return tirx.Let(var, value, function(var))


def horner(coefficients: tuple[float, ...], x: tirx.PrimExpr, dtype: str) -> tirx.PrimExpr:
    """The polynomial at x, highest power first."""
    value = constant(coefficients[0], dtype)
    for coefficient in coefficients[1:]:
        value = value * x + constant(coefficient, dtype)
    return value


def exp(x: tirx.PrimExpr) -> tirx.PrimExpr:
    """e ** x: 2 ** n * exp(r), n the integer nearest to x / log 2."""
    dtype = str(x.ty)

    def scaled(value: tirx.PrimExpr, n: tirx.PrimExpr) -> tirx.PrimExpr:
        # by two factors: 2 ** n itself may be out of range, where the result is not or is rounded
        half = n >> tirx.const(1, "int32")
        return value * _power_of_two(half, dtype) * _power_of_two(n - half, dtype)

    return _within(x, _FORMATS[dtype].exp_range, lambda v: _exp_of_finite(v, scaled), below=0.0)


def _exp_moderate(x: tirx.PrimExpr) -> tirx.PrimExpr:
    """e ** x of a finite x, where the result is a normal number, or infinite for 2 ** n so."""
    dtype = str(x.ty)
    return bound(x, lambda v: _exp_of_finite(v, lambda value, n: value * _power_of_two(n, dtype)))


def _within(x: tirx.PrimExpr, limits: tuple[float, float], function: _Function, below: float | None = None) -> Any:
    """function(x), or that of the limit beyond one, or NaN; `below` is the value beneath the low limit, where it is
    given: a result that underflows takes some CPUs a hundred cycles."""
    low, high, zero = (constant(limit, str(x.ty)) for limit in (*limits, 0.0))

    def at(v: tirx.PrimExpr) -> tirx.PrimExpr:
        inside = tirx.Select(v < high, tirx.Select(v > low, v, low if below is None else zero), high)
        result = bound(inside, function)
        if below is not None:
            result = tirx.Select(v > low, result, constant(below, str(x.ty)))
        return tirx.Select(tirx.isnan(v), v, result)

    return bound(x, at)


def sigmoid(x: tirx.PrimExpr) -> tirx.PrimExpr:
    """1 / (1 + exp(-x)). What would be no normal number is 0."""
    dtype = str(x.ty)
    one = constant(1, dtype)
    return _within(-x, _FORMATS[dtype].normal_range, lambda v: one / (one + _exp_moderate(v)))


def _power_of_two(n: tirx.PrimExpr, dtype: str) -> tirx.PrimExpr:
    """2 ** n for an int32 n in the format's normal range."""
    form = _FORMATS[dtype]
    biased = n.astype(form.integer) + tirx.const(form.bias, form.integer)
    return tirx.reinterpret(dtype, biased << tirx.const(form.mantissa, form.integer))


def exp2(y: tirx.PrimExpr, coefficients: tuple[float, ...]) -> tirx.PrimExpr:
    """2 ** y, where that is a normal number: the polynomial of what is left of y beside the nearest integer, which is
    added to its exponent."""
    dtype = str(y.ty)
    integer, mantissa = _FORMATS[dtype].integer, _FORMATS[dtype].mantissa

    def of_rest(n: tirx.PrimExpr) -> tirx.PrimExpr:
        part = bound(y - n, lambda r: tirx.reinterpret(integer, horner(coefficients, r, dtype)))
        return tirx.reinterpret(dtype, part + (n.astype("int32").astype(integer) << tirx.const(mantissa, integer)))

    return bound(tirx.nearbyint(y), of_rest)


def _exp_of_finite(
    x: tirx.PrimExpr, scaled: Callable[[tirx.PrimExpr, tirx.PrimExpr], tirx.PrimExpr]
) -> tirx.PrimExpr:
    """scaled(exp(r), n) of x = n log 2 + r."""
    dtype = str(x.ty)
    one = constant(1, dtype)
    part, rest = (constant(c, dtype) for c in _FORMATS[dtype].log2)

    def of_rest(r: tirx.PrimExpr) -> tirx.PrimExpr:
        if dtype == "float32":
            return horner(_EXPF, r, dtype) * (r * r) + r + one

        def quotient(z: tirx.PrimExpr) -> tirx.PrimExpr:
            return bound(
                r * horner(_EXP_P, z, dtype),
                lambda w: one + constant(2, dtype) * (w / (horner(_EXP_Q, z, dtype) - w)),
            )

        return bound(r * r, quotient)

    return bound(
        tirx.nearbyint(x * constant(_LOG2_E, dtype)),
        lambda n: bound(
            x - n * part - n * rest, lambda r: bound(n.astype("int32"), lambda i: scaled(of_rest(r), i))
        ),
    )


def of_exponent(x: tirx.PrimExpr, function: Callable[[tirx.PrimExpr, tirx.PrimExpr], tirx.PrimExpr]) -> tirx.PrimExpr:
    """function(f, e) of a number x = 2 ** e * (1 + f) above 0 that is not denormal, 1 + f between the roots of 1/2 and
    2."""
    dtype = str(x.ty)
    form = _FORMATS[dtype]
    mantissa, root_half = tirx.const(form.mantissa, form.integer), tirx.const(form.root_half, form.integer)

    def of_bits(bits: tirx.PrimExpr) -> tirx.PrimExpr:
        def parts(exponent: tirx.PrimExpr) -> tirx.PrimExpr:
            fraction = tirx.reinterpret(dtype, bits - (exponent << mantissa)) - constant(1, dtype)
            return bound(fraction, lambda f: function(f, exponent.astype("int32").astype(dtype)))  # AVX2 has no int64's

        return bound((bits - root_half) >> mantissa, parts)

    return bound(tirx.reinterpret(form.integer, x), of_bits)


def log(x: tirx.PrimExpr) -> tirx.PrimExpr:
    """The natural logarithm: e log 2 + log(1 + f), where x = 2 ** e * (1 + f)."""
    dtype = str(x.ty)
    form = _FORMATS[dtype]
    zero, smallest = (constant(c, dtype) for c in (0.0, form.smallest))

    def of_rest(f: tirx.PrimExpr, e: tirx.PrimExpr) -> tirx.PrimExpr:
        def near_one(z: tirx.PrimExpr) -> tirx.PrimExpr:
            cubic = f * z
            if dtype == "float32":
                cubic = cubic * horner(_LOGF, f, dtype)
            else:
                cubic = cubic * horner(_LOG_P, f, dtype) / horner(_LOG_Q, f, dtype)
            small = cubic + e * constant(_LOG_LOG2[1], dtype) - constant(0.5, dtype) * z
            return f + small + e * constant(_LOG_LOG2[0], dtype)

        return bound(f * f, near_one)

    def at(v: tirx.PrimExpr) -> tirx.PrimExpr:
        denormal = v < smallest
        normal = tirx.Select(denormal, v * constant(2.0**form.mantissa, dtype), v)
        shift = tirx.Select(denormal, constant(form.mantissa, dtype), zero)
        result = of_exponent(normal, lambda f, e: bound(e - shift, lambda e: of_rest(f, e)))
        infinity, nan = constant(np.inf, dtype), constant(np.nan, dtype)
        limit = tirx.Select(v == zero, -infinity, tirx.Select(v == infinity, infinity, nan))
        return tirx.Select(tirx.all(v > zero, v < infinity), result, limit)

    return bound(x, at)


def _tanh_near_zero(v: tirx.PrimExpr) -> tirx.PrimExpr:
    """tanh for |v| < 0.625."""
    dtype = str(v.ty)

    def series(z: tirx.PrimExpr) -> tirx.PrimExpr:
        if dtype == "float32":
            return horner(_TANHF, z, dtype)
        return horner(_TANH_P, z, dtype) / horner(_TANH_Q, z, dtype)

    return bound(v * v, lambda z: v + v * (z * series(z)))


def tanh(x: tirx.PrimExpr) -> tirx.PrimExpr:
    """The hyperbolic tangent. TVM's own loses all digits near 0."""
    dtype = str(x.ty)
    one, two = constant(1, dtype), constant(2, dtype)
    limit = _FORMATS[dtype].one_from

    def at(v: tirx.PrimExpr) -> tirx.PrimExpr:
        small = _tanh_near_zero(v)
        size = tirx.Select(tirx.abs(v) < constant(limit, dtype), tirx.abs(v), constant(limit, dtype))

        def by_size(size: tirx.PrimExpr) -> tirx.PrimExpr:
            large = bound(
                one - two / (_exp_moderate(size + size) + one),
                lambda t: tirx.Select(v < constant(0, dtype), -t, t),
            )
            return tirx.Select(size < constant(_TANH_SMALL, dtype), small, large)

        return tirx.Select(tirx.abs(v) > constant(0, dtype), bound(size, by_size), v)  # NaN and both zeros stay

    return bound(x, at)


def _erf_single(x: tirx.PrimExpr) -> tirx.PrimExpr:
    """The error function of a float32."""
    f32, i32 = "float32", "int32"
    last, one = constant(_ERFF_LAST, f32), constant(1, f32)

    def at(v: tirx.PrimExpr) -> tirx.PrimExpr:
        def of_size(size: tirx.PrimExpr) -> tirx.PrimExpr:
            small = size + size * bound(size * size, lambda z: horner(_ERFF, z, f32))
            large = one - bound(horner(_ERFF_LOG2, size, f32), lambda power: exp2(power, _EXP2F))
            found = tirx.reinterpret(i32, tirx.Select(size < constant(_ERFF_SMALL, f32), small, large))
            return tirx.reinterpret(f32, found | (tirx.reinterpret(i32, v) & tirx.min_value(i32)))  # with v's sign

        return tirx.Select(tirx.isnan(v), v, bound(tirx.Select(tirx.abs(v) < last, tirx.abs(v), last), of_size))

    return bound(x, at)


def erf(x: tirx.PrimExpr) -> tirx.PrimExpr:
    """The error function, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x."""
    dtype = str(x.ty)
    if dtype == "float32":
        return _erf_single(x)
    zero, one, last = (constant(c, dtype) for c in (0.0, 1.0, _ERF_LAST))

    def at(v: tirx.PrimExpr) -> tirx.PrimExpr:
        def by_size(size: tirx.PrimExpr) -> tirx.PrimExpr:
            complement = exp(zero - size * size) * (horner(_ERF_P, size, dtype) / horner(_ERF_Q, size, dtype))
            large = bound(one - complement, lambda t: tirx.Select(v < zero, zero - t, t))
            small = bound(v * v, lambda z: v * (horner(_ERF_T, z, dtype) / horner(_ERF_U, z, dtype)))
            return tirx.Select(size < one, small, large)

        return tirx.Select(tirx.isnan(v), v, bound(tirx.Select(tirx.abs(v) < last, tirx.abs(v), last), by_size))

    return bound(x, at)
