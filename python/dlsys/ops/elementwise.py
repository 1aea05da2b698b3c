"""Elementwise operators, one row each: arithmetic, functions of one value, comparisons, selections, casts.

All broadcast as NumPy does; what broadcasting repeated is summed back by `gradients`. A number beside a node is a
constant of its dtype. Unsigned integers wrap around.
"""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np

from .. import compute
from ..checks import in_dtype, word
from ..errors import DTypeError, GraphError, ShapeError
from ..graph import DTYPES, FLOATS, INTEGERS, NUMBERS, Made, Node
from .inputs import constant_op, is_number
from .primitive import Primitive, primitive, require_operands
from .replay import function
from .rules import dtype_attribute, holds, real_constant, require_constant, shape_attribute
from .state import with_gradient

BITS = ("bool", *INTEGERS)

# Constants and casts ---------------------------------------------------------------------------------------


_full: Primitive = primitive(
    "full", te=compute.full, grad=None, numpy=lambda shape, value, dtype: np.full(shape, value, dtype),
    shape=lambda shape, value, dtype: shape, dtype="dtype",
    broadcasts=False, constant=True, flops=0,
)  # fmt: skip


def full_op(shape: Any, value: float, dtype: Any = "float32") -> Made:
    """`value`, rounded to the dtype, at every index of the shape; of integers a fraction is cut off.

    Raises GraphError for a shape or dtype that is none, and a value that is no real number, DTypeError for one beyond
    the range of integers.
    """
    known, number = dtype_attribute("full", dtype), real_constant("full", value)
    if not holds(known, number):
        raise DTypeError(f"full: {value} is no {known}")
    return _full(shape=shape_attribute("full", shape), value=in_dtype(number, known).item(), dtype=known)


@function()
def oneslike_op(node: Node) -> Made:
    """Ones of the node's shape and dtype."""
    return _full(shape=node.shape, value=in_dtype(1, node.dtype).item(), dtype=node.dtype)


@function()
def zeroslike_op(node: Node) -> Made:
    """Zeros of the node's shape and dtype."""
    return _full(shape=node.shape, value=in_dtype(0, node.dtype).item(), dtype=node.dtype)


def _cast(x: np.ndarray, dtype: str) -> np.ndarray:
    """x in another dtype by NumPy, which leaves open what an integer beyond its limits gives."""
    if x.dtype.kind != "f" or np.dtype(dtype).kind not in "iu":
        return x.astype(dtype)
    beyond = ~(np.abs(x) < 2.0**63)  # of NaN too
    whole = np.where(beyond, 0, x).astype("int64")
    return np.where(beyond, np.iinfo("int64").min, whole).astype(dtype)


_cast_op: Primitive = primitive(
    "cast", te=compute.cast, numpy=_cast, dtypes=DTYPES, dtype="dtype", broadcasts=False, flops=0,
    grad=lambda g, y, x, dtype: cast_op(g, x.dtype) if dtype in FLOATS else None,
)  # fmt: skip


def cast_op(x: Node, dtype: Any) -> Made:
    """x as dtype, one of `dlsys.graph.DTYPES`, as NumPy's `astype`: fractions are cut off, a number is True unless 0.

    An integer dtype takes the low bits of a number beyond its limits, as NumPy and PyTorch do: 300.0 is 44 as int8. NaN
    and what int64 does not hold count as -2**63: 0 but as int64.

    Raises GraphError for any other dtype.
    """
    return _cast_op(x, dtype=dtype_attribute("cast", dtype))


@function()
def cast_like_op(x: Node, like: Node) -> Made:
    """x in the dtype of `like`, whose values are not read."""
    return cast("Made", x) if x.dtype == like.dtype else cast_op(x, like.dtype)


copy_op: Primitive = primitive(
    "copy", te=compute.copy, numpy=lambda x: np.array(x), grad=lambda g, y, x: g, dtypes=DTYPES, picks=True, flops=0,
    onnx="Identity", doc="The node's value in separate memory, which nothing else writes.",
)  # fmt: skip

# Arithmetic ------------------------------------------------------------------------------------------------

neg_op: Primitive = primitive(
    "neg", te=compute.neg, numpy=np.negative, grad=lambda g, y, x: -g, dtypes=NUMBERS, onnx="Neg", doc="-x.",
)  # fmt: skip
add_op: Primitive = primitive(
    "add", te=compute.add, numpy=np.add, grad=lambda g, y, a, b: (g, g), dtypes=NUMBERS, commutative=True,
    onnx="Add", doc="a + b.",
)  # fmt: skip
sub_op: Primitive = primitive(
    "sub", te=compute.sub, numpy=np.subtract, grad=lambda g, y, a, b: (g, -g), dtypes=NUMBERS, onnx="Sub",
    doc="a - b.",
)  # fmt: skip
mul_op: Primitive = primitive(
    "mul", te=compute.mul, numpy=np.multiply, grad=lambda g, y, a, b: (mul_op(g, b), mul_op(g, a)), dtypes=NUMBERS,
    commutative=True, onnx="Mul", doc="a * b.",
)  # fmt: skip
div_op: Primitive = primitive(
    "div", te=compute.div, numpy=np.divide,
    grad=lambda g, y, a, b: (div_op(g, b), None if b.op.immediate else -(div_op(g, b) * y)),
    onnx="Div", doc="a / b; d/da = 1 / b, d/db = -(a / b) / b.",
)  # fmt: skip


add_byconst_op, mul_byconst_op, div_byconst_op, const_div_op = add_op, mul_op, div_op, div_op
"""The course's names; a number beside a node is a constant."""


def rsqrt_op(x: Node) -> Made:
    """1 / sqrt(x)."""
    return div_op(1.0, sqrt_op(x))


def whole_power(node: Node, count: int) -> Node:
    """The product of `count` times the node, at least once."""
    if count == 1:
        return node
    half = whole_power(node, count // 2)
    square = mul_op(half, half)
    return mul_op(square, node) if count % 2 else square


def _power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a ** b by NumPy, which has no negative powers of integers: they are 0, but of 1 and -1."""
    if a.dtype.kind == "f":
        return np.asarray(np.power(a, b))
    one = b.dtype.type(1)
    most = np.where(b < 126, b, (b & one) + b.dtype.type(126))
    return np.where((b < 0) & (np.abs(a) != 1), a.dtype.type(0), np.power(a, np.where(b < 0, b & one, most)))


def _power_gradient(g: Node, y: Node, a: Node, b: Node) -> tuple[Node | None, Node | None]:
    """d(a ** b) / da = b a ** (b - 1), d/db = y log(a); 0 where 0 * inf would be NaN."""
    if b.op.immediate:
        const = b.attrs["value"]
        if const == 0:  # 0 * x ** -1 would be NaN at 0
            return None, None
        return g if const == 1 else mul_op(g, mul_op(power_op(a, const - 1), b)), None
    by_a = mul_op(g, mul_op(b, power_op(a, sub_op(b, 1.0))))
    by_b = mul_op(g, mul_op(y, log_op(a)))
    flat = bitwise_and_op(equal_op(a, 0.0), less_equal_op(0.0, b))
    return where_op(equal_op(b, 0.0), 0.0, by_a), where_op(flat, 0.0, by_b)


power_op: Primitive = primitive(
    "power", te=compute.power, numpy=_power, grad=_power_gradient, dtypes=NUMBERS, costly=True, onnx="Pow",
    doc="a ** b; of integers it wraps around, b counts as 126 or 127 from there on, and a negative power is 0, but of "
    "1 and -1; d/da = b a^(b - 1), 0 where b is 0; d/db = a^b log(a), 0 where a is 0 and b no less.",
)  # fmt: skip


power_byconst_op = power_op


def _quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a / b of integers by NumPy, rounded towards 0; NumPy's own is rounded down, 0 by 0."""
    down = np.asarray(a // b)
    return down + ((down < 0) & (down * b != a) & (b != 0)).astype(down.dtype)


quotient_op: Primitive = primitive(
    "quotient", te=compute.quotient, grad=None, numpy=_quotient, dtypes=INTEGERS, onnx="Div",
    doc="a / b of integers, rounded towards 0, in their dtype: 0 where b is 0; -a, which wraps around, where it is -1.",
)  # fmt: skip


def _fmod(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The remainder of a by b with the sign of a, by NumPy; 0 where an integer b is 0."""
    if a.dtype.kind == "f":
        return np.asarray(np.fmod(a, b))
    return np.where(b == 0, b, a - _quotient(a, b) * b)


fmod_op: Primitive = primitive(
    "fmod", te=compute.fmod, numpy=_fmod, dtypes=NUMBERS, costly=True,
    grad=lambda g, y, a, b: (g, -(g * div_op(a - y, b))),  # the quotient, rounded towards zero
    doc="a - trunc(a / b) b, exactly: what is left of a, with its sign, after the whole times of b in it. Of floats "
    "NaN for b = 0, for infinite a and where |a / b| is no less than 2^53; of integers 0 for b = 0; d/da = 1, "
    "d/db = -trunc(a / b).",
)  # fmt: skip

# Functions of one value ------------------------------------------------------------------------------------

exp_op: Primitive = primitive(
    "exp", te=compute.exp, numpy=np.exp, grad=lambda g, y, x: g * y, costly=True, onnx="Exp",
    doc="exp(x); its derivative is itself.",
)  # fmt: skip
log_op: Primitive = primitive(
    "log", te=compute.log, numpy=np.log, grad=lambda g, y, x: g / x, costly=True, onnx="Log",
    doc="The natural logarithm of x; d/dx = 1 / x.",
)  # fmt: skip
sqrt_op: Primitive = primitive(
    "sqrt", te=compute.sqrt, numpy=np.sqrt, grad=lambda g, y, x: g * 0.5 / y, onnx="Sqrt",
    doc="The square root y of x; d/dx = 1 / (2 y).",
)  # fmt: skip
sin_op: Primitive = primitive(
    "sin", te=compute.sin, numpy=np.sin, grad=lambda g, y, x: g * cos_op(x), costly=True, onnx="Sin", doc="sin(x).",
)  # fmt: skip
cos_op: Primitive = primitive(
    "cos", te=compute.cos, numpy=np.cos, grad=lambda g, y, x: -(g * sin_op(x)), costly=True, onnx="Cos", doc="cos(x).",
)  # fmt: skip
tanh_op: Primitive = primitive(
    "tanh", te=compute.tanh, numpy=np.tanh, grad=lambda g, y, x: g * (1.0 - y * y), costly=True, onnx="Tanh",
    doc="The hyperbolic tangent y of x; d/dx = 1 - y^2.",
)  # fmt: skip
sigmoid_op: Primitive = primitive(
    "sigmoid", te=compute.sigmoid, numpy=lambda x: 1 / (1 + np.exp(-x)), grad=lambda g, y, x: g * (y * (1.0 - y)),
    costly=True, onnx="Sigmoid", doc="y = 1 / (1 + exp(-x)); d/dx = y (1 - y).",
)  # fmt: skip
erf_op: Primitive = primitive(
    "erf", te=compute.erf, numpy=lambda x: np.asarray(np.frompyfunc(math.erf, 1, 1)(x), x.dtype),  # NumPy has none
    grad=lambda g, y, x: g * (exp_op(-(x * x)) * (2 / math.sqrt(math.pi))), costly=True, onnx="Erf",
    doc="The error function of x, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x.",
)  # fmt: skip
abs_op: Primitive = primitive(
    "abs", te=compute.absolute, numpy=np.abs, grad=lambda g, y, x: g * sign_op(x), dtypes=NUMBERS, onnx="Abs",
    doc="|x|; the derivative is the sign, 0 at 0.",
)  # fmt: skip
sign_op: Primitive = primitive(
    "sign", te=compute.sign, grad=None, numpy=np.sign, dtypes=NUMBERS, onnx="Sign",
    doc="-1, 0 or 1, as the sign of x; NaN of NaN; the derivative is 0.",
)  # fmt: skip
floor_op: Primitive = primitive(
    "floor", te=compute.floor, grad=None, numpy=np.floor, onnx="Floor",
    doc="The largest integer that is no larger than x; the derivative is 0.",
)  # fmt: skip
round_op: Primitive = primitive(
    "round", te=compute.nearest, grad=None, numpy=np.rint, onnx="Round",
    doc="The nearest integer, of two the even one; the derivative is 0.",
)  # fmt: skip

# Comparisons, logic, bits ----------------------------------------------------------------------------------

equal_op: Primitive = primitive(
    "equal", te=compute.equal, grad=None, numpy=np.equal, dtype="bool", dtypes=DTYPES, onnx="Equal",
    doc="Whether a == b.",
)  # fmt: skip
less_op: Primitive = primitive(
    "less", te=compute.less, grad=None, numpy=np.less, dtype="bool", dtypes=NUMBERS, onnx="Less", doc="Whether a < b.",
)  # fmt: skip
less_equal_op: Primitive = primitive(
    "less_equal", te=compute.less_equal, grad=None, numpy=np.less_equal, dtype="bool", dtypes=NUMBERS,
    onnx="LessOrEqual", doc="Whether a <= b.",
)  # fmt: skip
bitwise_and_op: Primitive = primitive(
    "bitwise_and", te=compute.bitwise_and, grad=None, numpy=np.bitwise_and, dtypes=BITS, commutative=True,
    onnx="BitwiseAnd", doc="a & b, of integers bit by bit, of booleans a and b.",
)  # fmt: skip
bitwise_or_op: Primitive = primitive(
    "bitwise_or", te=compute.bitwise_or, grad=None, numpy=np.bitwise_or, dtypes=BITS, commutative=True,
    onnx="BitwiseOr", doc="a | b, of integers bit by bit, of booleans a or b.",
)  # fmt: skip
bitwise_xor_op: Primitive = primitive(
    "bitwise_xor", te=compute.bitwise_xor, grad=None, numpy=np.bitwise_xor, dtypes=BITS, commutative=True,
    onnx="BitwiseXor", doc="a ^ b, of integers bit by bit, of booleans either a or b.",
)  # fmt: skip
bitwise_not_op: Primitive = primitive(
    "bitwise_not", te=compute.bitwise_not, grad=None, numpy=np.bitwise_not, dtypes=BITS, onnx="BitwiseNot",
    doc="~x: every bit of an integer is the other one; of booleans not x.",
)  # fmt: skip


def greater_op(a: Any, b: Any) -> Made:
    """Whether a > b."""
    return less_op(b, a)


def greater_equal_op(a: Any, b: Any) -> Made:
    """Whether a >= b."""
    return less_equal_op(b, a)


def not_equal_op(a: Any, b: Any) -> Made:
    """Whether a != b."""
    return bitwise_not_op(equal_op(a, b))


def _truth(x: Any) -> Any:
    """Whether each number is not 0; of a number whether it is not."""
    if isinstance(x, Node):
        return x if x.dtype == "bool" else cast_op(x, "bool")
    return bool(x) if is_number(x) else x


@function()
def logical_and_op(a: Any, b: Any) -> Made:
    """Whether a and b both are true, which a number is unless it is 0."""
    return bitwise_and_op(_truth(a), _truth(b))


@function()
def logical_or_op(a: Any, b: Any) -> Made:
    """Whether a or b is true, which a number is unless it is 0."""
    return bitwise_or_op(_truth(a), _truth(b))


@function()
def logical_not_op(x: Node) -> Made:
    """Whether x is false, or 0."""
    return bitwise_not_op(_truth(x))


# Selections ------------------------------------------------------------------------------------------------

where_op: Primitive = primitive(
    "where", te=compute.where, numpy=lambda condition, a, b: np.where(condition, a, b),
    apart={0: ("bool",)}, dtypes=DTYPES, onnx="Where",
    grad=lambda g, y, condition, a, b: (None, where_op(condition, g, 0.0), where_op(condition, 0.0, g)),
    doc="a where the condition, of booleans, holds, else b: nothing leaks from the side that is not taken. One of a "
    "and b may be a number.",
)  # fmt: skip


def _larger_takes(g: Node, y: Node, a: Node, b: Node) -> tuple[Node, Node]:
    """The gradients of a maximum: g for the larger; half of it each where both are equal."""
    shared = where_op(equal_op(a, b), g * 0.5, g)
    return where_op(less_op(a, b), 0.0, shared), where_op(less_op(b, a), 0.0, shared)


maximum_op: Primitive = primitive(
    "maximum", te=compute.maximum, numpy=np.maximum, dtypes=NUMBERS, grad=_larger_takes, onnx="Max",
    doc="The larger of a and b, NaN if either is; where both are equal each has half of the gradient.",
)  # fmt: skip


def reversed_order(x: Node) -> Made:
    """x in the opposite order: the largest becomes the smallest, within the limits of integers too."""
    return neg_op(x) if x.dtype in FLOATS else bitwise_not_op(x)


@function()
def minimum_op(a: Any, b: Any) -> Made:
    """The smaller of a and b, NaN if either is; where both are equal each has half of the gradient."""
    require_operands("minimum", (a, b))
    dtype = (a if isinstance(a, Node) else b).dtype
    a, b = (x if isinstance(x, Node) else constant_op(x, dtype) for x in (a, b))
    return reversed_order(maximum_op(reversed_order(a), reversed_order(b)))


@function()
def relu_gradient_op(node: Node, grad: Node) -> Made:
    """grad where node > 0, else 0, by selection: an infinite or NaN grad does not leak through a closed gate. Raises
    ShapeError for two shapes."""
    if node.shape != grad.shape:
        raise ShapeError(f"relu_gradient: shapes differ: {node.shape} and {grad.shape}")
    return where_op(greater_op(node, 0.0), grad, 0.0)


relu_op: Primitive = primitive(
    "relu", te=compute.relu, numpy=lambda x: np.maximum(x, 0), dtypes=NUMBERS, onnx="Relu",
    grad=lambda g, y, x: relu_gradient_op(y, g),  # y > 0 exactly where x > 0, so x can go
    doc="max(x, 0); the derivative at 0 is 0.",
)  # fmt: skip


def of_clip(g: Node, y: Node, x: Node, low: float | None, high: float | None) -> Node:
    """g where x is within the bounds and on them, else 0."""
    inside = [] if low is None else [less_equal_op(low, x)]
    inside += [] if high is None else [less_equal_op(x, high)]
    return where_op(inside[0] if len(inside) == 1 else bitwise_and_op(*inside), g, 0.0)


@function()
def clip_op(x: Node, low: float | None = None, high: float | None = None) -> Made:
    """x, but no less than `low` and no more than `high`, which comes last; None is no bound. The derivative is 1 within
    the bounds and on them, else 0.

    Raises GraphError for bounds that are no real numbers, and where there is none, DTypeError for one that x's dtype
    does not hold.
    """
    if low is None and high is None:
        raise GraphError("clip: there is neither a low nor a high bound")
    bounds = [None if bound is None else real_constant("clip", bound) for bound in (low, high)]
    for bound in bounds:
        if bound is not None and bound != bound:
            raise GraphError("clip: a bound is NaN")
        if bound is not None:
            require_constant("clip", bound, x.dtype, x.name)
    least, most = bounds
    y = x if least is None else where_op(less_op(x, least), least, x)
    y = y if most is None else where_op(less_op(most, y), most, y)
    return with_gradient(y, [x], of_clip, low=least, high=most)


@function()
def gelu_op(x: Node, approximate: str = "none") -> Made:
    """x times the normal distribution's function, x (1 + erf(x / sqrt 2)) / 2, or with approximate="tanh"
    x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 (Hendrycks and Gimpel 2016).

    Raises GraphError for any other `approximate`.
    """
    if word("gelu", "approximate", approximate, ("none", "tanh")) == "none":
        inner = erf_op(x * math.sqrt(0.5))
    else:
        inner = tanh_op((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi))
    return x * 0.5 * (inner + 1.0)
