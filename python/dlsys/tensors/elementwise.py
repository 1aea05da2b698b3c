"""Functions of one tensor or two at each index, see `table`. Dtypes are promoted as PyTorch does."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from .. import ops
from ..checks import flag, integer, number, word
from ..errors import DTypeError, GraphError
from ..graph import INTEGERS, is_node
from ..ops import beside_number, is_number, operand
from .arguments import bool_of, float_of, node_of, pair_of, require_operand
from .creation import leaf
from .table import TABLE, function, row
from .typing import ArrayLike, OfOne, OfTwo

if TYPE_CHECKING:
    from .base import Tensor


def _of_one(name: str, of: Callable[[Any], Any], doc: str | None) -> OfOne:
    """A function of one tensor."""

    def apply(x: Tensor) -> Tensor:
        return of(x)

    return row(apply, name, doc)


def _of_floats(name: str, of: Callable[[Any], Any], doc: str | None = None) -> OfOne:
    """A function of one tensor of floats: integers and booleans become float32."""
    return _of_one(name, lambda x: of(float_of(x)), of.__doc__ if doc is None else doc)


def _of_fractions(name: str, of: Callable[[Any], Any], doc: str) -> OfOne:
    """A function that rounds, which leaves integers as they are."""
    return _of_one(name, lambda x: x if x.dtype in INTEGERS else of(x), doc)


def _of_two(name: str, of: Callable[..., Any], of_booleans: Callable[..., Any], doc: str) -> OfTwo:
    """A function of two tensors in one dtype, with another operator for booleans."""

    def apply(x: Tensor, other: ArrayLike) -> Tensor:
        first, second = pair_of(x, other)
        return (of_booleans if first.dtype == "bool" else of)(first, second)

    return row(apply, name, doc)


def _of_truth(name: str, of: Callable[..., Any], doc: str) -> OfTwo:
    """A function of whether two tensors are not 0."""

    def apply(x: Tensor, other: ArrayLike) -> Tensor:
        return of(bool_of(x), bool_of(other))

    return row(apply, name, doc)


def _by_operator(name: str, symbol: str, of: Callable[[Any, Any], Any]) -> OfTwo:
    """One of Python's operators as a function."""

    def apply(x: Tensor, other: ArrayLike) -> Tensor:
        require_operand(other)
        return of(x, node_of(other) if symbol == "@" else other)

    told = f"x {symbol} other, at each index. Raises GraphError for what is neither tensor nor number."
    return row(apply, name, told, at_once=True)


exp: OfOne = _of_floats("exp", ops.exp_op)
log: OfOne = _of_floats("log", ops.log_op)
sqrt: OfOne = _of_floats("sqrt", ops.sqrt_op)
rsqrt: OfOne = _of_floats("rsqrt", ops.rsqrt_op)
sin: OfOne = _of_floats("sin", ops.sin_op)
cos: OfOne = _of_floats("cos", ops.cos_op)
tanh: OfOne = _of_floats("tanh", ops.tanh_op)
sigmoid: OfOne = _of_floats("sigmoid", ops.sigmoid_op)
erf: OfOne = _of_floats("erf", ops.erf_op)
exp2: OfOne = _of_floats("exp2", lambda x: 2.0**x, doc="2 to the power of x.")
log2: OfOne = _of_floats("log2", lambda x: ops.log_op(x) * (1 / math.log(2)), doc="The logarithm to base 2.")
log10: OfOne = _of_floats("log10", lambda x: ops.log_op(x) * (1 / math.log(10)), doc="The logarithm to base 10.")
isinf: OfOne = _of_floats("isinf", lambda x: ops.equal_op(ops.abs_op(x), math.inf), doc="Whether it is infinite.")
isfinite: OfOne = _of_floats("isfinite", lambda x: ops.abs_op(x) < math.inf, doc="Whether it is no infinity nor NaN.")

relu: OfOne = _of_one("relu", ops.relu_op, doc="max(x, 0).")
neg: OfOne = _of_one("neg", operator.neg, doc="-x.")
abs: OfOne = _of_one("abs", ops.abs_op, doc="|x|.")
square: OfOne = _of_one("square", lambda x: x**2, doc="x * x.")
reciprocal: OfOne = _of_one("reciprocal", lambda x: 1.0 / x, doc="1 / x.")
isnan: OfOne = _of_one("isnan", lambda x: ops.not_equal_op(x, x), doc="Whether it is NaN.")
logical_not: OfOne = _of_one("logical_not", lambda x: ops.logical_not_op(bool_of(x)), doc="Whether it is 0.")
bitwise_not: OfOne = _of_one("bitwise_not", operator.invert, doc="~x, of integers bit by bit; of booleans not x.")
sign: OfOne = _of_one(
    "sign", lambda x: x if x.dtype == "bool" else ops.sign_op(x), doc="-1, 0 or 1, as x's sign, in x's dtype."
)

floor: OfOne = _of_fractions("floor", ops.floor_op, doc="The largest integer that is no larger, in x's dtype.")
ceil: OfOne = _of_fractions("ceil", lambda x: -ops.floor_op(-x), doc="The smallest integer no smaller, in x's dtype.")
trunc: OfOne = _of_fractions(
    "trunc", lambda x: ops.where_op(x < 0, -ops.floor_op(-x), ops.floor_op(x)), doc="x without its fraction."
)

mul: OfTwo = _by_operator("mul", "*", operator.mul)
pow: OfTwo = _by_operator("pow", "**", operator.pow)
matmul: OfTwo = _by_operator("matmul", "@", operator.matmul)
eq: OfTwo = _by_operator("eq", "==", operator.eq)
ne: OfTwo = _by_operator("ne", "!=", operator.ne)
lt: OfTwo = _by_operator("lt", "<", operator.lt)
le: OfTwo = _by_operator("le", "<=", operator.le)
gt: OfTwo = _by_operator("gt", ">", operator.gt)
ge: OfTwo = _by_operator("ge", ">=", operator.ge)
bitwise_and: OfTwo = _by_operator("bitwise_and", "&", operator.and_)
bitwise_or: OfTwo = _by_operator("bitwise_or", "|", operator.or_)
bitwise_xor: OfTwo = _by_operator("bitwise_xor", "^", operator.xor)
maximum: OfTwo = _of_two("maximum", ops.maximum_op, ops.logical_or_op, doc="The larger; NaN if either is.")
minimum: OfTwo = _of_two("minimum", ops.minimum_op, ops.logical_and_op, doc="The smaller; NaN if either is.")
logical_and: OfTwo = _of_truth("logical_and", ops.logical_and_op, doc="Whether neither is 0.")
logical_or: OfTwo = _of_truth("logical_or", ops.logical_or_op, doc="Whether one at least is not 0.")
logical_xor: OfTwo = _of_truth("logical_xor", ops.bitwise_xor_op, doc="Whether one is 0, the other not.")
TABLE["__abs__"] = abs


@function(at_once=True)
def add(x: Tensor, other: ArrayLike, *, alpha: float = 1) -> Tensor:
    """x + alpha * other, at each index. Raises GraphError for what is neither tensor nor number."""
    require_operand(other)
    return x + (other if alpha == 1 else other * alpha)  # type: ignore[operator]


@function(at_once=True)
def sub(x: Tensor, other: ArrayLike, *, alpha: float = 1) -> Tensor:
    """x - alpha * other, at each index. Raises GraphError for what is neither tensor nor number."""
    require_operand(other)
    return x - (other if alpha == 1 else other * alpha)  # type: ignore[operator]


@function
def round(x: Tensor, *, decimals: int = 0) -> Tensor:
    """The nearest integer, of two the even one, in x's dtype; or the nearest number of so many decimals."""
    if x.dtype in INTEGERS:
        return x
    scale = 10.0 ** integer("round", "decimals", decimals)
    return ops.round_op(x) if decimals == 0 else ops.round_op(x * scale) / scale


@function
def log1p(x: Tensor) -> Tensor:
    """log(1 + x), without loss of digits near 0."""
    x = float_of(x)
    small = ops.where_op(ops.abs_op(x) < 1.0, x, 0.0)
    rounded = small + 1.0  # the sum lost small - (rounded - 1), and log's slope there is 1 / rounded
    return ops.log_op(x + 1.0) + (small - (rounded - 1.0)) / rounded


@function
def expm1(x: Tensor) -> Tensor:
    """exp(x) - 1, without loss of digits near 0."""
    x = float_of(x)
    is_small = ops.abs_op(x) < 1.0
    half = ops.tanh_op(ops.where_op(is_small, x, 0.0) * 0.5)
    return ops.where_op(is_small, half * 2.0 / (1.0 - half), ops.exp_op(x) - 1.0)


@function
def logit(x: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), which sigmoid undoes; of x within [eps, 1 - eps] for a number."""
    p = float_of(x) if eps is None else float_of(x).clamp(eps, 1 - eps)
    return ops.log_op(p / (1.0 - p))


@function
def logaddexp(x: Tensor, other: ArrayLike) -> Tensor:
    """log(exp(x) + exp(other)), without overflow."""
    a, b = pair_of(float_of(x), other)
    larger, apart = ops.maximum_op(a, b), ops.abs_op(a - b)
    return larger + log1p(ops.exp_op(-ops.where_op(ops.equal_op(a, b), 0.0, apart)))


# Bounds, sums of products, interpolation -------------------------------------------------------------------------


@function
def clamp(x: Tensor, min: ArrayLike | None = None, max: ArrayLike | None = None) -> Tensor:
    """x, no less than `min` and no more than `max`, numbers or tensors; None is no bound. Raises GraphError for two."""
    if min is None and max is None:
        raise GraphError("clamp: there is neither a min nor a max")
    bounds = [bound for bound in (min, max) if bound is not None]
    if all(operand(bound) is bound and not is_node(bound) for bound in bounds):
        return ops.clip_op(functools.reduce(beside_number, bounds, x), min, max)  # type: ignore[arg-type]
    found = x if min is None else maximum(x, min)
    return found if max is None else minimum(found, max)


clip = TABLE["clip"] = clamp


@function
def lerp(x: Tensor, end: ArrayLike, weight: ArrayLike) -> Tensor:
    """x + weight * (end - x)."""
    return x + (end - x) * weight


@function
def addcmul(x: Tensor, tensor1: ArrayLike, tensor2: ArrayLike, *, value: float = 1) -> Tensor:
    """x + value * tensor1 * tensor2."""
    return x + node_of(tensor1) * tensor2 * value


@function
def addcdiv(x: Tensor, tensor1: ArrayLike, tensor2: ArrayLike, *, value: float = 1) -> Tensor:
    """x + value * tensor1 / tensor2."""
    return x + node_of(tensor1) / tensor2 * value


@function
def nan_to_num(x: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """x with numbers in place of NaN and the infinities, for None the limits of x's dtype."""
    if x.dtype in INTEGERS or x.dtype == "bool":
        return x
    most = float(np.finfo(x.dtype).max)
    x = ops.where_op(isnan(x), nan, x)
    x = ops.where_op(ops.equal_op(x, math.inf), most if posinf is None else posinf, x)
    return ops.where_op(ops.equal_op(x, -math.inf), -most if neginf is None else neginf, x)


# Quotients -------------------------------------------------------------------------------------------------------


def _dividend_and_divisor(op: str, a: ArrayLike, b: ArrayLike) -> tuple[Tensor, Tensor]:
    """Two operands as nodes of one dtype. Raises GraphError for integers by the number 0."""
    first, second = pair_of(a, b)
    if second.op.immediate and not second.attrs["value"] and first.dtype in INTEGERS:
        raise GraphError(f"{op}: {first.name} by 0")
    return first, second


def _rest(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """fmod(a, b), and where its sign is not b's."""
    rest = ops.fmod_op(a, b)
    if b.op.immediate:
        return rest, rest > 0 if b.attrs["value"] < 0 else rest < 0
    return rest, (rest != 0) & ((rest < 0) != (b < 0))


def _float_quotient(a: Tensor, b: Tensor) -> Tensor:
    """a / b rounded down; by 0, and from 2^53 on, where it has no fraction, as it is."""
    quotient = ops.floor_op(ops.div_op(a, b))
    if b.op.immediate and not b.attrs["value"]:
        return quotient
    rest, below = _rest(a, b)
    whole = ops.div_op(ops.sub_op(a, rest), b)  # but for rounding
    down = ops.floor_op(whole)
    nearest = down + ops.cast_op(whole - down > 0.5, rest.dtype)
    found = nearest - ops.cast_op(below, rest.dtype)
    is_whole = (ops.abs_op(quotient) >= 2.0**53) & (ops.abs_op(a) < math.inf)
    if not b.op.immediate:
        is_whole = is_whole | ops.equal_op(b, 0.0)
    return ops.where_op(is_whole, quotient, found)


@function
def fmod(x: Tensor, other: ArrayLike) -> Tensor:
    """The rest of x after the whole times of `other` in it, with x's sign; see `autodiff.fmod_op`. Raises GraphError
    for integers by the number 0."""
    return ops.fmod_op(*_dividend_and_divisor("fmod", x, other))


@function
def div(x: Tensor, other: ArrayLike, *, rounding_mode: str | None = None) -> Tensor:
    """x / other; with `rounding_mode` "floor" rounded down, with "trunc" towards 0, in the operands' dtype. Raises
    GraphError for what is neither tensor nor number, and what `floor_divide` raises."""
    require_operand(other)
    if rounding_mode is None:
        return x / other
    if word("div", "rounding_mode", rounding_mode, ("floor", "trunc")) == "floor":
        return floor_divide(x, other)
    if pair_of(x, other)[0].dtype in INTEGERS:
        return ops.quotient_op(*_dividend_and_divisor("div", x, other))
    return trunc(x / other)


@function
def floor_divide(x: Tensor, other: ArrayLike) -> Tensor:
    """The quotient, rounded down; of integers in their dtype, in which -x wraps around, and by a 0 in a tensor 0, as
    NumPy's. Raises GraphError for integers by the number 0."""
    a, b = _dividend_and_divisor("floor_divide", x, other)
    if a.dtype not in INTEGERS:
        return _float_quotient(a, b)
    _, below = _rest(a, b)
    return ops.quotient_op(a, b) - ops.cast_op(below, a.dtype)


@function
def remainder(x: Tensor, other: ArrayLike) -> Tensor:
    """The remainder of `floor_divide`, which has the other's sign; of integers by a 0 in a tensor 0. Raises GraphError
    for integers by the number 0."""
    a, b = _dividend_and_divisor("remainder", x, other)
    rest, below = _rest(a, b)
    return ops.where_op(below, ops.add_op(rest, b), rest)


TABLE |= {"__floordiv__": floor_divide, "__mod__": remainder}


@function(at_once=True)
def __rfloordiv__(x: Tensor, other: ArrayLike) -> Tensor:
    return floor_divide(other, x)


@function(at_once=True)
def __rmod__(x: Tensor, other: ArrayLike) -> Tensor:
    return remainder(other, x)


# Conditions ------------------------------------------------------------------------------------------------------


@function
def isclose(
    x: Tensor, other: ArrayLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Whether |x - other| <= atol + rtol |other| or both are equal; or both NaN with `equal_nan`."""
    a, b = pair_of(x, node_of(other))
    if a.dtype == "bool":
        return a == b
    apart, least = (a - b).abs(), number("isclose", "atol", atol)
    near = apart.isfinite() & (apart <= b.abs() * number("isclose", "rtol", rtol) + least) | (a == b)
    return near | (a.isnan() & b.isnan()) if flag("isclose", "equal_nan", equal_nan) else near


@function
def masked_fill(x: Tensor, mask: ArrayLike, value: ArrayLike) -> Tensor:
    """x, but `value`, cast to x's dtype, where the mask holds: fractions are cut off beside integers. Raises DTypeError
    for a number that x's dtype does not hold, as infinity beside integers."""
    if is_node(value):
        return ops.where_op(node_of(mask), ops.cast_like_op(value, x), x)
    if not is_number(value):
        raise GraphError(f"masked_fill: the value must be a number or a tensor, not {value!r}")
    filling: Any = value
    if x.dtype == "bool":
        filling = leaf(np.asarray(bool(filling)))
    elif x.dtype in INTEGERS:
        limits = np.iinfo(x.dtype)
        if not limits.min <= filling <= limits.max:
            raise DTypeError(f"masked_fill: {value!r} is no {x.dtype}, which {x.name} is")
        filling = leaf(np.asarray(int(filling), x.dtype))
    return ops.where_op(node_of(mask), filling, x)


@overload
def where(condition: ArrayLike) -> tuple[Tensor, ...]: ...
@overload
def where(condition: ArrayLike, input: ArrayLike, other: ArrayLike) -> Tensor: ...
def where(condition: ArrayLike, input: Any = None, other: Any = None) -> Tensor | tuple[Tensor, ...]:
    """`input` where the condition holds, else `other`; of a condition alone the indices along each axis where it holds,
    see `nonzero`."""
    if input is None and other is None:
        return node_of(condition).nonzero(as_tuple=True)
    return _chosen(condition, input, other)


@function(method=False)
def _chosen(condition: Tensor, a: ArrayLike, b: ArrayLike) -> Tensor:
    return ops.where_op(condition, *pair_of(a, b))
