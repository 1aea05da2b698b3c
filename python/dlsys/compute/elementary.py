"""exp, log, tanh and their like of one number, by arithmetic alone, so that vectors of them need no call per element.

The method is Cephes' (S. L. Moshier, exp.c, expf.c, log.c, logf.c, ndtr.c, ndtrf.c, tanh.c): the argument is reduced
by multiples of log 2, held in two parts so that the first subtraction is exact; the rest goes through a polynomial or a
quotient of two. Limits, infinities, NaN and denormal numbers are as NumPy's. Largest error found, in units in the last
place (tests/schedule/test_schedule_fused.py): exp 1.0 in float32 and 1.5 in float64, log 0.8 and 0.9, tanh 1.3 and 1.5;
erf at most 1.5 and 3.5.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.analysis import undefined_vars

from .base import Expr, constant

Name = Callable[[Expr], Expr]
"""Gives a value a name, which stands for it: it is computed once, however often it is read."""
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
        *("int32", 127, 23, 2.0**-126, 0x3F3504F3, (0.693359375, -2.12194440e-4), (-104.0, 89.0), (-87.0, 89.0), 9.1)
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
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
    2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
# with P(f) / Q(f) in float64
_LOG_P = (
    1.01875663804580931796e-4, 4.97494994976747001425e-1, 4.70579119878881725854e0, 1.44989225341610930846e1,
    1.79368678507819816313e1, 7.70838733755885391666e0,
)  # fmt: skip
_LOG_Q = (
    1.0, 1.12873587189167450590e1, 4.52279145837532221105e1, 8.29875266912776603211e1, 7.11544750618563894466e1,
    2.31251620126765340583e1,
)  # fmt: skip
# log's two parts of log 2: their multiples by an exponent of 11 bits are exact
_LOG_LOG2 = (0.693359375, -2.121944400546905827679e-4)

# tanh(x) = x + x z P(z), z = x^2, for |x| < 0.7 in float32, P with the least relative error of tanh,
_TANHF = (
    -5.140458233654499e-3, 2.0094333216547966e-2, -5.3559962660074234e-2, 1.332913190126419e-1, -3.333319127559662e-1,
)  # fmt: skip
# beyond by exp(2 r) for |r| < log(2) / 4, with the least relative error of a polynomial that begins with 1 + 2 r,
_TANHF_EXP = tuple(
    c * 2.0**i
    for i, c in [
        (6, 1.383890281431377e-3), (5, 8.369192481040955e-3), (4, 4.166810214519501e-2), (3, 1.666651666164398e-1),
        (2, 4.9999994039535522e-1), (1, 1.0), (0, 1.0),
    ]
)  # fmt: skip
# and for |x| < 0.625 with P(z) / Q(z) for P in float64
_TANH_P = (-9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3)
_TANH_Q = (1.0, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3)
_TANH_SMALL = {"float32": 0.69, "float64": 0.625}

# erf(x) = x + x P(x^2) for |x| < 0.9 in float32,
_ERFF = (-6.0903921663e-4, 5.0119702327e-3, -2.6778915133e-2, 1.1282141041e-1, -3.7612523311e-1, 1.2837915381e-1)
_ERFF_SMALL = 0.9
# and 1 - 2 ** P(x) beyond, P fitted to log2(erfc(x)) with the least error of erf; 1 from 3.95 on
_ERFF_LOG2 = (
    2.8597085596e-4, -4.4225709103e-3, 3.2194059767e-2, -1.5020431311e-1, -9.1896220885e-1, -1.6270675048,
    -2.4012945197e-4,
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
    1.0, 3.35617141647503099647e1, 5.21357949780152679795e2, 4.59432382970980127987e3, 2.26290000613890934246e4,
    4.92673942608635921086e4,
)  # fmt: skip
# and 1 - exp(-x^2) P(x) / Q(x) beyond, which is 1 from 6 on
_ERF_P = (
    2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687e0, 4.86371970985681366614e1,
    1.96520832956077098242e2, 5.26445194995477358631e2, 9.34528527171957607540e2, 1.02755188689515710272e3,
    5.57535335369399327526e2,
)  # fmt: skip
_ERF_Q = (
    1.0, 1.32281951154744992508e1, 8.67072140885989742329e1, 3.54937778887819891062e2, 9.75708501743205489753e2,
    1.82390916687909736289e3, 2.24633760818710981792e3, 1.65666309194161350182e3, 5.57535340817727675546e2,
)  # fmt: skip
_ERF_LAST = 6.0


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
    dtype = str(x.ty)
    form = _FORMATS[dtype]
    large = constant(1.5 * 2.0**form.mantissa + form.bias + offset, dtype)
    shifted = name(x * constant(factor, dtype) + large)
    bits = tirx.reinterpret(form.integer, shifted) << tirx.const(form.mantissa, form.integer)
    return name(shifted - large), tirx.reinterpret(dtype, bits)


def _exp_rest(name: Name, x: Expr, n: Expr) -> Expr:
    """exp(x - n log 2) where n is the integer nearest to x / log 2."""
    dtype = str(x.ty)
    part, rest = (constant(c, dtype) for c in _FORMATS[dtype].log2)
    r = name(x - n * part - n * rest)
    if dtype == "float32":
        return horner(_EXPF, r) * (r * r) + r + constant(1, dtype)  # each sum monotonic in r
    z = name(r * r)
    w = name(r * horner(_EXP_P, z))
    return constant(1, dtype) + constant(2, dtype) * (w / (horner(_EXP_Q, z) - w))


@naming
def exp(name: Name, x: Expr) -> Expr:
    """e ** x."""
    dtype = str(x.ty)
    low, high, zero = (constant(c, dtype) for c in (*_FORMATS[dtype].exp_range, 0))
    v = name(x)
    inside = name(tirx.Select(v > high, high, v))
    n, _ = _nearest(name, inside, _LOG2_E)
    # a result that underflows takes some CPUs a hundred cycles
    return tirx.Select(v < low, zero, tirx.ldexp(_exp_rest(name, inside, n), n.astype("int32")))


@naming
def _exp_moderate(name: Name, x: Expr) -> Expr:
    """e ** x of a finite x, where the result is a normal number, or infinite for 2 ** n so."""
    v = name(x)
    n, power = _nearest(name, v, _LOG2_E)
    return _exp_rest(name, v, n) * power


@naming
def _reciprocal(name: Name, x: Expr) -> Expr:
    """1 / x within 2 ** -14 of it, of a float32 from 2 ** -125 to 2 ** 125, where a division takes Intel's cores as
    long as 30 multiply-adds. A difference of bits negates the exponent, and is within 5 %; then one step of Halley's
    method, y (3 - 3 x y + (x y)^2), with the coefficients of the least error."""
    y = name(tirx.reinterpret("float32", tirx.const(0x7EF34000, "int32") - tirx.reinterpret("int32", x)))
    e = name(x * y - constant(1.5009690523147583, "float32"))
    return y * (e * e + constant(0.7490311861038208, "float32"))


@naming
def sigmoid(name: Name, x: Expr) -> Expr:
    """1 / (1 + exp(-x)). What would be no normal number is 0."""
    low, high, one = (constant(c, x.ty) for c in (*_FORMATS[str(x.ty)].normal_range, 1))
    v = name(-x)
    below = name(tirx.Select(v > high, high, v))
    inside = name(tirx.Select(below < low, low, below))
    return one / (one + _exp_moderate(inside))


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


@naming
def log(name: Name, x: Expr) -> Expr:
    """The natural logarithm: e log 2 + log(1 + f), where x = 2 ** e * (1 + f)."""
    dtype = str(x.ty)
    form = _FORMATS[dtype]
    zero, half, smallest, infinity, nan = (constant(c, dtype) for c in (0, 0.5, form.smallest, np.inf, np.nan))
    v = name(x)
    denormal = v < smallest
    normal = tirx.Select(denormal, v * constant(2.0**form.mantissa, dtype), v)
    f, exponent = log_parts(name, normal)
    e = name(exponent - tirx.Select(denormal, constant(form.mantissa, dtype), zero))
    z = name(f * f)
    cubic = f * z
    cubic = cubic * horner(_LOGF, f) if dtype == "float32" else cubic * horner(_LOG_P, f) / horner(_LOG_Q, f)
    small = cubic + e * constant(_LOG_LOG2[1], dtype) - half * z
    result = f + small + e * constant(_LOG_LOG2[0], dtype)
    limit = tirx.Select(v == zero, -infinity, tirx.Select(v == infinity, infinity, nan))
    return tirx.Select(tirx.all(v > zero, v < infinity), result, limit)


@naming
def tanh(name: Name, x: Expr) -> Expr:
    """The hyperbolic tangent. TVM's own loses all digits near 0."""
    dtype = str(x.ty)
    one, two, small_end, last = (constant(c, dtype) for c in (1, 2, _TANH_SMALL[dtype], _FORMATS[dtype].one_from))
    v = name(x)
    size = name(tirx.Select(tirx.abs(v) > last, last, tirx.abs(v)))
    z = name(size * size)
    if dtype == "float32":
        series, large = horner(_TANHF, z), _tanh_single(size)
    else:
        series, large = horner(_TANH_P, z) / horner(_TANH_Q, z), one - two / (_exp_moderate(size + size) + one)
    return _with_sign(tirx.Select(size < small_end, size + size * (z * series), large), v)


@naming
def _tanh_single(name: Name, size: Expr) -> Expr:
    """1 - 2 / (exp(2 size) + 1) of a float32 from _TANH_SMALL to 9.1."""
    one, half, log2 = (constant(c, "float32") for c in (1, 0.5, math.log(2) / 2))
    n, power = _nearest(name, size, 2 * _LOG2_E, -1)
    r = name(size - n * log2)
    divisor = name(power * horner(_TANHF_EXP, r) + half)
    y = name(_reciprocal(divisor))
    return one - (y + y * (one - divisor * y))


def _with_sign(size: Expr, x: Expr) -> Expr:
    """A number of no sign with that of x."""
    dtype = str(x.ty)
    integer = _FORMATS[dtype].integer
    sign = tirx.reinterpret(integer, x) & tirx.min_value(integer)
    return tirx.reinterpret(dtype, tirx.reinterpret(integer, size) | sign)


@naming
def erf(name: Name, x: Expr) -> Expr:
    """The error function, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x."""
    dtype = str(x.ty)
    zero, one, last = (constant(c, dtype) for c in (0, 1, _ERFF_LAST if dtype == "float32" else _ERF_LAST))
    v = name(x)
    size = name(tirx.Select(tirx.abs(v) > last, last, tirx.abs(v)))
    if dtype == "float32":
        return _with_sign(_erf_single(size), v)
    z = name(size * size)
    small = size * (horner(_ERF_T, z) / horner(_ERF_U, z))
    complement = exp(zero - z) * (horner(_ERF_P, size) / horner(_ERF_Q, size))
    return _with_sign(tirx.Select(size < one, small, one - complement), v)


@naming
def _erf_single(name: Name, size: Expr) -> Expr:
    """The error function of a float32 from 0 to _ERFF_LAST."""
    small = size + size * horner(_ERFF, name(size * size))
    y = name(horner(_ERFF_LOG2, size))
    n, power = _nearest(name, y, 1.0)
    large = constant(1, "float32") - power * horner(_EXP2F, name(y - n))
    return tirx.Select(size < constant(_ERFF_SMALL, "float32"), small, large)


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
