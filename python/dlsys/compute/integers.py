"""Arithmetic of elements that is exact for integers, which wrap around: sums, products, quotients, powers.

TVM assumes that integers of 32 and 64 bits never overflow, and tells LLVM so, which makes x | 2**31 of x + 2**31. So 32
bits are computed by way of 64; of 64 bits only x + -2**63 came out wrong. Quotients by 0, and of the least integer by
-1, are undefined in C, and end the process on some CPUs: such elements are divided by 1, and get NumPy's result.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
from tvm import tirx

from .base import Expr, constant
from .elementary import Name, naming

_WIDER = {"int8": "int64", "int32": "int64", "uint8": "int64", "uint32": "int64"}


def is_unsigned(u: Expr) -> bool:
    """Whether an element is of unsigned integers."""
    return str(u.ty).startswith("u")


def _wrapping(operation: Callable[[Expr, Expr], Expr], u: Expr, v: Expr, unsigned: str = "int64") -> Expr:
    """The operation of two elements; `unsigned`: the wider dtype in which it is computed for unsigned integers."""
    dtype = str(u.ty)
    wide = unsigned if dtype in ("uint8", "uint32") else _WIDER.get(dtype)
    return operation(u, v) if wide is None else operation(u.astype(wide), v.astype(wide)).astype(dtype)


def product_of(u: Expr, v: Expr) -> Expr:
    """u v."""
    return _wrapping(operator.mul, u, v, "uint64")


def _is_least(u: Expr) -> bool:
    """Whether an element is the constant -2**63, which TVM's simplifier cannot negate."""
    return isinstance(u, tirx.IntImm) and u.value == np.iinfo("int64").min


def difference_of(u: Expr, v: Expr) -> Expr:
    """u - v."""
    return u ^ v if _is_least(v) else _wrapping(operator.sub, u, v)


def sum_of(u: Expr, v: Expr) -> Expr:
    """u + v."""
    return u ^ v if _is_least(u) or _is_least(v) else _wrapping(operator.add, u, v)


def compared(operation: Callable[[Expr, Expr], Expr], u: Expr, v: Expr) -> Expr:
    """A comparison; to compare x with c TVM's simplifier takes x - c, which overflows where c is int32's -2**31."""
    return operation(u.astype("int64"), v.astype("int64")) if str(u.ty) == "int32" else operation(u, v)


def _is_zero(u: Expr) -> Expr:
    """1 where an integer of 32 or 64 bits is 0, else 0; by its bits: TVM's simplifier drops a comparison that a choice
    around it implies, and divides before it chooses."""
    sign = constant(np.iinfo(str(u.ty)).bits - 1, u.ty)
    return constant(1, u.ty) + ((u | (constant(0, u.ty) - u)) >> sign)


def _by_constant(u: Expr, divisor: int) -> Expr:
    """An element divided by a number, rounded towards 0."""
    dtype, zero, one = str(u.ty), constant(0, u.ty), constant(1, u.ty)
    if divisor == np.iinfo("int64").min:
        return tirx.Select((u ^ tirx.const(divisor, dtype)) == zero, one, zero)
    if divisor in (0, -1):
        return difference_of(zero, u) if divisor else zero
    wide = _WIDER.get(dtype, dtype)
    return tirx.truncdiv(u.astype(wide), tirx.const(divisor, wide)).astype(dtype)


def quotient_of(u: Expr, v: Expr) -> Expr:
    """u / v, rounded towards 0; 0 where v is 0, and -u where v is -1. Nothing has a name: TVM 0.27 fails on names of
    integers whose limits a choice around them narrows."""
    if isinstance(v, tirx.IntImm):
        return _by_constant(u, int(v.value))
    dtype = str(u.ty)
    wide = "int64" if dtype in ("int64", "uint32") else "int32"  # no more bits: a GPU's code is narrowed to 32
    a, b = u.astype(wide), v.astype(wide)
    is_zero, twice = _is_zero(b), constant(0, wide)
    if not is_unsigned(u):
        twice = constant(2, wide) * _is_zero(~b)  # where v is -1
    found = tirx.truncdiv(a, b + is_zero + twice).astype(dtype)
    return product_of(found, (constant(1, wide) - is_zero - twice).astype(dtype))


def remainder_of(u: Expr, v: Expr) -> Expr:
    """The remainder of the division of u by v, with u's sign; 0 where v is 0."""
    rest = difference_of(u, product_of(quotient_of(u, v), v))
    if isinstance(v, tirx.IntImm):
        return rest if v.value else constant(0, u.ty)
    return tirx.Select(v == constant(0, u.ty), constant(0, u.ty), rest)


@naming
def power_of(name: Name, u: Expr, v: Expr) -> Expr:
    """u to the power of v, by squaring; for a negative v the quotient of 1 by the power of -v: 0 but of 1 and -1. From
    126 on v counts as 126 or 127, as it is even or odd: the result wraps around, but for 0, 1 and -1."""
    zero, one = constant(0, u.ty), constant(1, u.ty)
    if isinstance(u, tirx.IntImm):  # TVM multiplies constants itself, and refuses a product beyond their dtype
        u = u ^ (v ^ v)
    base, exponent = name(u), name(v)
    limit = constant(126, u.ty)
    bits = name(tirx.Select(exponent < limit, exponent, limit + (exponent & one)).astype("int64"))
    square, found = base, one
    for bit in range(7):
        square = name(product_of(square, square)) if bit else square
        is_set = (bits >> tirx.const(bit, "int64")) & tirx.const(1, "int64")
        found = name(tirx.Select(is_set == tirx.const(0, "int64"), found, product_of(found, square)))
    if is_unsigned(u):
        return found
    inverse = tirx.Select(tirx.abs(base) == one, tirx.Select((exponent & one) == zero, one, base), zero)
    return tirx.Select(exponent < zero, inverse, found)
