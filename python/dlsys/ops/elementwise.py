"""Elementwise operators, one row each: arithmetic, functions of one value, comparisons, selections, casts.

All broadcast as NumPy does; what broadcasting repeated is summed back by `gradients`. A number beside a node is a
constant of its dtype. Unsigned integers wrap around. A row has the name, NumPy's function, the formula, the gradient
(of the result's gradient g, the result y, and the inputs) and ONNX's name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from .. import compute
from ..checks import in_dtype, word
from ..errors import DTypeError, GraphError, ShapeError
from ..graph import DTYPES, FLOATS, INTEGERS, NUMBERS, Made, Node
from .primitive import Primitive, primitive, require_operands
from .replay import function
from .rules import dtype_attribute, holds, real_constant, require_constant, shape_attribute
from .state import constant_op, is_number, with_gradient

BITS = ("bool", *INTEGERS)
Part = Callable[..., Any]


def _row(name: str, numpy: Part, te: Part, grad: Part | None, onnx: str, **facts: Any) -> Primitive:
    """An elementwise operator, see `primitive`."""
    return primitive(name, numpy=numpy, te=te, grad=grad, onnx=onnx, **facts)


# Constants and casts ---------------------------------------------------------------------------------------


_full: Primitive = primitive(
    "full", te=compute.full, grad=None, numpy=lambda shape, value, dtype: np.full(shape, value, dtype),
    shape=lambda shape, value, dtype: shape, dtype="dtype", broadcasts=False, constant=True,
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
    "cast", te=compute.cast, numpy=_cast, dtypes=DTYPES, dtype="dtype", broadcasts=False,
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


copy_op = _row("copy", lambda x: np.array(x), compute.copy, lambda g, y, x: g, "Identity", dtypes=DTYPES, picks=True,
               doc="The node's value in separate memory, which nothing else writes.")  # fmt: skip

# Arithmetic ------------------------------------------------------------------------------------------------

# fmt: off
neg_op = _row("neg", np.negative, compute.neg, lambda g, y, x: -g, "Neg", dtypes=NUMBERS, doc="-x.")
add_op = _row("add", np.add, compute.add, lambda g, y, a, b: (g, g), "Add", dtypes=NUMBERS, commutative=True,
              doc="a + b.")
sub_op = _row("sub", np.subtract, compute.sub, lambda g, y, a, b: (g, -g), "Sub", dtypes=NUMBERS, doc="a - b.")
mul_op: Primitive = _row("mul", np.multiply, compute.mul, lambda g, y, a, b: (mul_op(g, b), mul_op(g, a)), "Mul",
                         dtypes=NUMBERS, commutative=True, doc="a * b.")
div_op: Primitive = _row("div", np.divide, compute.div,
                         lambda g, y, a, b: (div_op(g, b), None if b.op.immediate else -(div_op(g, b) * y)), "Div",
                         doc="a / b; d/da = 1 / b, d/db = -(a / b) / b.")
# fmt: on

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


power_op = _row(
    "power", _power, compute.power, _power_gradient, "Pow", dtypes=NUMBERS, costly=True,
    doc="a ** b; of integers it wraps around, b counts as 126 or 127 from there on, and a negative power is 0, but of "
    "1 and -1; d/da = b a^(b - 1), 0 where b is 0; d/db = a^b log(a), 0 where a is 0 and b no less.",
)  # fmt: skip
power_byconst_op = power_op


def _quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a / b of integers by NumPy, rounded towards 0; NumPy's own is rounded down, 0 by 0."""
    down = np.asarray(a // b)
    return down + ((down < 0) & (down * b != a) & (b != 0)).astype(down.dtype)


quotient_op = _row(
    "quotient", _quotient, compute.quotient, None, "Div", dtypes=INTEGERS,
    doc="a / b of integers, rounded towards 0, in their dtype: 0 where b is 0; -a, which wraps around, where it is -1.",
)  # fmt: skip


def _fmod(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The remainder of a by b with the sign of a, by NumPy; 0 where an integer b is 0."""
    if a.dtype.kind == "f":
        return np.asarray(np.fmod(a, b))
    return np.where(b == 0, b, a - _quotient(a, b) * b)


fmod_op = _row(
    "fmod", _fmod, compute.fmod, lambda g, y, a, b: (g, -(g * div_op(a - y, b))), "", dtypes=NUMBERS, costly=True,
    doc="a - trunc(a / b) b, exactly: what is left of a, with its sign, after the whole times of b in it. Of floats "
    "NaN for b = 0, for infinite a and where |a / b| is no less than 2^53; of integers 0 for b = 0; d/da = 1, "
    "d/db = -trunc(a / b).",
)  # fmt: skip

# Functions of one value ------------------------------------------------------------------------------------

# fmt: off
exp_op = _row("exp", np.exp, compute.exp, lambda g, y, x: g * y, "Exp", costly=True,
              doc="exp(x); its derivative is itself.")
log_op = _row("log", np.log, compute.log, lambda g, y, x: g / x, "Log", costly=True,
              doc="The natural logarithm of x; d/dx = 1 / x.")
sqrt_op = _row("sqrt", np.sqrt, compute.sqrt, lambda g, y, x: g * 0.5 / y, "Sqrt",
               doc="The square root y of x; d/dx = 1 / (2 y).")
sin_op = _row("sin", np.sin, compute.sin, lambda g, y, x: g * cos_op(x), "Sin", costly=True, doc="sin(x).")
cos_op: Primitive = _row("cos", np.cos, compute.cos, lambda g, y, x: -(g * sin_op(x)), "Cos", costly=True,
                         doc="cos(x).")
tanh_op = _row("tanh", np.tanh, compute.tanh, lambda g, y, x: g * (1.0 - y * y), "Tanh", costly=True,
               doc="The hyperbolic tangent y of x; d/dx = 1 - y^2.")
sigmoid_op = _row("sigmoid", lambda x: 1 / (1 + np.exp(-x)), compute.sigmoid, lambda g, y, x: g * (y * (1.0 - y)),
                  "Sigmoid", costly=True, doc="y = 1 / (1 + exp(-x)); d/dx = y (1 - y).")
erf_op = _row("erf", lambda x: np.asarray(np.frompyfunc(math.erf, 1, 1)(x), x.dtype), compute.erf,  # NumPy has none
              lambda g, y, x: g * (exp_op(-(x * x)) * (2 / math.sqrt(math.pi))), "Erf", costly=True,
              doc="The error function of x, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x.")
abs_op = _row("abs", np.abs, compute.absolute, lambda g, y, x: g * sign_op(x), "Abs", dtypes=NUMBERS,
              doc="|x|; the derivative is the sign, 0 at 0.")
sign_op: Primitive = _row("sign", np.sign, compute.sign, None, "Sign", dtypes=NUMBERS,
                          doc="-1, 0 or 1, as the sign of x; NaN of NaN; the derivative is 0.")
floor_op = _row("floor", np.floor, compute.floor, None, "Floor",
                doc="The largest integer that is no larger than x; the derivative is 0.")
round_op = _row("round", np.rint, compute.nearest, None, "Round",
                doc="The nearest integer, of two the even one; the derivative is 0.")
# fmt: on

# Comparisons, logic, bits ----------------------------------------------------------------------------------

# fmt: off
equal_op = _row("equal", np.equal, compute.equal, None, "Equal", dtype="bool", dtypes=DTYPES, doc="Whether a == b.")
less_op = _row("less", np.less, compute.less, None, "Less", dtype="bool", dtypes=NUMBERS, doc="Whether a < b.")
less_equal_op = _row("less_equal", np.less_equal, compute.less_equal, None, "LessOrEqual", dtype="bool", dtypes=NUMBERS,
                     doc="Whether a <= b.")
bitwise_and_op = _row("bitwise_and", np.bitwise_and, compute.bitwise_and, None, "BitwiseAnd", dtypes=BITS,
                      commutative=True, doc="a & b, of integers bit by bit, of booleans a and b.")
bitwise_or_op = _row("bitwise_or", np.bitwise_or, compute.bitwise_or, None, "BitwiseOr", dtypes=BITS,
                     commutative=True, doc="a | b, of integers bit by bit, of booleans a or b.")
bitwise_xor_op = _row("bitwise_xor", np.bitwise_xor, compute.bitwise_xor, None, "BitwiseXor", dtypes=BITS,
                      commutative=True, doc="a ^ b, of integers bit by bit, of booleans either a or b.")
bitwise_not_op = _row("bitwise_not", np.bitwise_not, compute.bitwise_not, None, "BitwiseNot", dtypes=BITS,
                      doc="~x: every bit of an integer is the other one; of booleans not x.")
# fmt: on


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

where_op: Primitive = _row(
    "where", lambda condition, a, b: np.where(condition, a, b), compute.where,
    lambda g, y, condition, a, b: (None, where_op(condition, g, 0.0), where_op(condition, 0.0, g)), "Where",
    apart={0: ("bool",)}, dtypes=DTYPES,
    doc="a where the condition, of booleans, holds, else b: nothing leaks from the side that is not taken. One of a "
    "and b may be a number.",
)  # fmt: skip


def _larger_takes(g: Node, y: Node, a: Node, b: Node) -> tuple[Node, Node]:
    """The gradients of a maximum: g for the larger; half of it each where both are equal."""
    shared = where_op(equal_op(a, b), g * 0.5, g)
    return where_op(less_op(a, b), 0.0, shared), where_op(less_op(b, a), 0.0, shared)


maximum_op = _row(
    "maximum", np.maximum, compute.maximum, _larger_takes, "Max", dtypes=NUMBERS,
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


relu_op = _row(
    "relu", lambda x: np.maximum(x, 0), compute.relu, lambda g, y, x: relu_gradient_op(y, g), "Relu", dtypes=NUMBERS,
    doc="max(x, 0); the derivative at 0 is 0.",  # y > 0 exactly where x > 0, so the gradient does not read x
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
