"""Pointwise functions: comparisons and selections, functions of one value, powers: tables of formulas and derivatives.

All are broadcast as NumPy does. Beside a node a Python number is a constant of its dtype.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from .. import compute
from ..errors import GraphError
from ..graph import DTYPES, INTEGERS, NUMBERS, Formula, Made, Node, register
from .arithmetic import add_byconst_op, div_op, mul_byconst_op, mul_op, neg_op, sub_op
from .family import ZERO, OfConst, OfNode, OfNodes, Pointwise, Zero, binary, by_const, comparison, unary
from .inputs import constant_op, number_pair, zeroslike_op
from .replay import function
from .rules import real_constant, require_constant


def one_minus(node: Node) -> Made:
    """1 - node."""
    return sub_op(constant_op(1.0, node.dtype), node)


exp_op: OfNode = unary(
    "exp", "exp(node); its derivative is itself.", compute.exp, np.exp,
    lambda g, y, x: mul_op(g, y),
    costly=True, onnx="Exp",
)
log_op: OfNode = unary(
    "log", "The natural logarithm of the node; d/dx = 1 / x.", compute.log, np.log,
    lambda g, y, x: div_op(g, x),
    costly=True, onnx="Log",
)
sqrt_op: OfNode = unary(
    "sqrt", "The square root y of the node; d/dx = 1 / (2 y).", compute.sqrt, np.sqrt,
    lambda g, y, x: div_op(mul_byconst_op(g, 0.5), y),
    onnx="Sqrt",
)
rsqrt_op: OfNode = unary(
    "rsqrt", "y = 1 / sqrt(node); d/dx = -y^3 / 2.", compute.rsqrt, lambda x: 1 / np.sqrt(x),
    lambda g, y, x: mul_op(g, mul_byconst_op(mul_op(mul_op(y, y), y), -0.5)),
    onnx="Sqrt Reciprocal",
)
sin_op: OfNode = unary(
    "sin", "sin(node).", compute.sin, np.sin,
    lambda g, y, x: mul_op(g, cos_op(x)),
    costly=True, onnx="Sin",
)
cos_op: OfNode = unary(
    "cos", "cos(node).", compute.cos, np.cos,
    lambda g, y, x: neg_op(mul_op(g, sin_op(x))),
    costly=True, onnx="Cos",
)
tanh_op: OfNode = unary(
    "tanh", "The hyperbolic tangent y of the node; d/dx = 1 - y^2.", compute.tanh, np.tanh,
    lambda g, y, x: mul_op(g, one_minus(mul_op(y, y))),
    costly=True, onnx="Tanh",
)
sigmoid_op: OfNode = unary(
    "sigmoid", "y = 1 / (1 + exp(-node)); d/dx = y (1 - y).", compute.sigmoid, lambda x: 1 / (1 + np.exp(-x)),
    lambda g, y, x: mul_op(g, mul_op(y, one_minus(y))),
    costly=True, onnx="Sigmoid",
)
erf_op: OfNode = unary(
    "erf",
    "The error function of the node, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x.",
    compute.erf, lambda x: np.asarray(np.frompyfunc(math.erf, 1, 1)(x), x.dtype),  # NumPy has none
    lambda g, y, x: mul_op(g, mul_byconst_op(exp_op(neg_op(mul_op(x, x))), 2 / math.sqrt(math.pi))),
    costly=True, onnx="Erf",
)
abs_op: OfNode = unary(
    "abs", "|node|; the derivative is the sign, 0 at 0.", compute.absolute, np.abs,
    lambda g, y, x: mul_op(g, sign_op(x)),
    dtypes=NUMBERS, onnx="Abs",
)
sign_op: OfNode = unary(
    "sign", "-1, 0 or 1, as the node's sign; NaN of NaN; the derivative is 0.", compute.sign, np.sign, ZERO,
    dtypes=NUMBERS, onnx="Sign",
)
floor_op: OfNode = unary(
    "floor", "The largest integer that is no larger than the node; the derivative is 0.",
    compute.floor, np.floor, ZERO, onnx="Floor",
)
round_op: OfNode = unary(
    "round", "The nearest integer, of two the even one; the derivative is 0.", compute.nearest, np.rint, ZERO,
    onnx="Round",
)


def _quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a / b of integers by NumPy, rounded towards 0; NumPy's own is rounded down, 0 by 0."""
    down = np.asarray(a // b)
    return down + ((down < 0) & (down * b != a) & (b != 0)).astype(down.dtype)


def _fmod(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The remainder of a by b with the sign of a, by NumPy; 0 where an integer b is 0."""
    if a.dtype.kind == "f":
        return np.asarray(np.fmod(a, b))
    return np.where(b == 0, b, a - _quotient(a, b) * b)


def _power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a ** b by NumPy, which has no negative powers of integers: they are 0, but of 1 and -1."""
    if a.dtype.kind == "f":
        return np.asarray(np.power(a, b))
    one = b.dtype.type(1)
    most = np.where(b < 126, b, (b & one) + b.dtype.type(126))
    return np.where((b < 0) & (np.abs(a) != 1), a.dtype.type(0), np.power(a, np.where(b < 0, b & one, most)))


quotient_op: OfNodes = binary(
    "quotient",
    "a / b of integers, rounded towards 0, in their dtype: 0 where b is 0; -a, which wraps around, where it is -1.",
    compute.quotient, _quotient, ZERO,
    operands=number_pair, dtypes=INTEGERS, onnx="Div",
)


def _fmod_derivative(g: Node, y: Node, a: Node, b: Node) -> tuple[Node, Node]:
    quotient = div_op(sub_op(a, y), b)  # rounded towards zero
    return g, neg_op(mul_op(g, quotient))


fmod_op: OfNodes = binary(
    "fmod",
    "a - trunc(a / b) b, exactly: what is left of a, with its sign, after the whole times of b in it. Of floats NaN "
    "for b = 0, for infinite a and where |a / b| is no less than 2^53; of integers 0 for b = 0; d/da = 1, "
    "d/db = -trunc(a / b).",
    compute.fmod, _fmod, _fmod_derivative,
    dtypes=NUMBERS, costly=True,
)


def _power_derivative(g: Node, y: Node, a: Node, b: Node) -> tuple[Node | Zero, Node | Zero]:
    """d(a ** b) / da = b a ** (b - 1), d/db = y log(a); 0 where 0 * inf would be NaN."""
    if b.op.immediate:
        const = b.attrs["value"]
        if const == 0:  # 0 * x ** -1 would be NaN at 0
            return ZERO, ZERO
        return g if const == 1 else mul_op(g, mul_op(power_byconst_op(a, const - 1), b)), ZERO
    zero = zeroslike_op(y)
    by_a = mul_op(g, mul_op(b, power_op(a, add_byconst_op(b, -1.0))))
    by_b = mul_op(g, mul_op(y, log_op(a)))
    flat = logical_and_op(equal_op(a, 0.0), greater_equal_op(b, 0.0))
    return where_op(equal_op(b, 0.0), zero, by_a), where_op(flat, zero, by_b)


power_op: OfNodes = binary(
    "power",
    "a ** b, broadcast; of integers it wraps around, b counts as 126 or 127 from there on, and a negative power is 0, "
    "but of 1 and -1; d/da = b a^(b - 1), 0 where b is 0; d/db = a^b log(a), 0 where a is 0 and b no less.",
    compute.power, _power, _power_derivative,
    dtypes=NUMBERS, costly=True, onnx="Pow",
)
power_byconst_op: OfConst = by_const("power_byconst", "node ** const; d/dx = const * x ** (const - 1).", power_op)

copy_op: OfNode = unary(
    "copy", "The node's value in memory of its own, which nothing else writes.", compute.copy, np.array,
    lambda g, y, x: g,
    dtypes=DTYPES,
    picks=True,
    flops=0, onnx="Identity",
)


def _compared(
    name: str, sign: str, formula: Any, reference: Any, onnx: str, dtypes: Sequence[str] = NUMBERS
) -> OfNodes:
    """The function of a new comparison of numbers."""
    doc = f"Whether a {sign} b: bool, broadcast."
    return comparison(name, doc, formula, reference, operands=number_pair, dtypes=dtypes, onnx=onnx)


equal_op: OfNodes = _compared("equal", "==", compute.equal, np.equal, "Equal", DTYPES)
not_equal_op: OfNodes = _compared("not_equal", "!=", compute.not_equal, np.not_equal, "Equal Not", DTYPES)
less_op: OfNodes = _compared("less", "<", compute.less, np.less, "Less")
less_equal_op: OfNodes = _compared("less_equal", "<=", compute.less_equal, np.less_equal, "LessOrEqual")
greater_op: OfNodes = _compared("greater", ">", compute.greater, np.greater, "Greater")
greater_equal_op: OfNodes = _compared("greater_equal", ">=", compute.greater_equal, np.greater_equal, "GreaterOrEqual")
logical_and_op: OfNodes = comparison(
    "logical_and", "a and b, of booleans, broadcast.", compute.logical_and, np.logical_and, dtypes=("bool",),
    onnx="And",
)
logical_or_op: OfNodes = comparison(
    "logical_or", "a or b, of booleans, broadcast.", compute.logical_or, np.logical_or, dtypes=("bool",),
    onnx="Or",
)
logical_not_op: OfNode = unary(
    "logical_not", "not node, of booleans.", compute.logical_not, np.logical_not, ZERO, dtypes=("bool",),
    onnx="Not",
)
_BITS = ("bool", *INTEGERS)
bitwise_and_op: OfNodes = binary(
    "bitwise_and", "a & b, of integers bit by bit, of booleans a and b; broadcast.",
    compute.bitwise_and, np.bitwise_and, ZERO, dtypes=_BITS, commutative=True, onnx="BitwiseAnd",
)
bitwise_or_op: OfNodes = binary(
    "bitwise_or", "a | b, of integers bit by bit, of booleans a or b; broadcast.",
    compute.bitwise_or, np.bitwise_or, ZERO, dtypes=_BITS, commutative=True, onnx="BitwiseOr",
)
bitwise_xor_op: OfNodes = binary(
    "bitwise_xor", "a ^ b, of integers bit by bit, of booleans either a or b; broadcast.",
    compute.bitwise_xor, np.bitwise_xor, ZERO, dtypes=_BITS, commutative=True, onnx="BitwiseXor",
)
bitwise_not_op: OfNode = unary(
    "bitwise_not", "~node: every bit of an integer is the other one; of booleans not node.",
    compute.bitwise_not, np.bitwise_not, ZERO, dtypes=_BITS, onnx="BitwiseNot",
)


@register
class Where(Pointwise):
    """a where the condition holds, else b, by selection: nothing leaks from the side that is not taken."""

    name = "where"
    onnx = "Where"
    broadcasts = True
    dtypes = DTYPES
    apart: ClassVar[Mapping[int, tuple[str, ...]]] = {0: ("bool",)}
    formula: ClassVar[Formula] = compute.where
    reference: ClassVar[Formula] = np.where

    @staticmethod
    def derivative(g: Node, node: Node, condition: Node, a: Node, b: Node) -> tuple[Zero, Node, Node]:
        zero = zeroslike_op(g)
        return ZERO, where_op(condition, g, zero), where_op(condition, zero, g)


@function()
def where_op(condition: Node, a: Any, b: Any) -> Made:
    """a where the condition, of booleans, holds, else b; broadcast. One of a and b may be a number."""
    return Where.make([condition, *number_pair(a, b)])


def _shares(a: Node, b: Node, g: Node, beaten: Node, beats: Node) -> tuple[Made, Made]:
    """The gradients of an extremum, where `beaten` is whether a is not taken, and `beats` whether b is not."""
    zero = zeroslike_op(g)
    shared = where_op(equal_op(a, b), mul_byconst_op(g, 0.5), g)
    return where_op(beaten, zero, shared), where_op(beats, zero, shared)


maximum_op: OfNodes = binary(
    "maximum",
    "The larger of a and b, broadcast, NaN if either is; where both are equal each has half of the gradient.",
    compute.maximum, np.maximum,
    lambda g, y, a, b: _shares(a, b, g, less_op(a, b), greater_op(a, b)),
    operands=number_pair, dtypes=NUMBERS, onnx="Max",
)
minimum_op: OfNodes = binary(
    "minimum",
    "The smaller of a and b, broadcast, NaN if either is; where both are equal each has half of the gradient.",
    compute.minimum, np.minimum,
    lambda g, y, a, b: _shares(a, b, g, greater_op(a, b), less_op(a, b)),
    operands=number_pair, dtypes=NUMBERS, onnx="Min",
)


def _clipped(x: np.ndarray, low: float | None, high: float | None) -> np.ndarray:
    bounds: Any = (None if bound is None else np.asarray(bound, x.dtype) for bound in (low, high))
    return np.clip(x, *bounds)


@register
class Clip(Pointwise):
    """x within the bounds `low` and `high`; the derivative is 1 within them and on them, else 0."""

    name = "clip"
    dtypes = NUMBERS
    formula: ClassVar[Formula] = compute.clip
    reference: ClassVar[Formula] = _clipped
    takes: ClassVar[Sequence[str]] = ("low", "high")

    def infer_dtype(self, node: Node, input_dtypes: list[str]) -> str:
        dtype = super().infer_dtype(node, input_dtypes)
        for bound in (node.attrs["low"], node.attrs["high"]):
            if bound is not None:
                require_constant(node, bound, dtype)
        return dtype

    def gradient(self, node: Node, output_grad: Node) -> list[Node | None]:
        (x,), low, high = node.inputs, node.attrs["low"], node.attrs["high"]
        inside = [] if low is None else [greater_equal_op(x, low)]
        inside += [] if high is None else [less_equal_op(x, high)]
        held = inside[0] if len(inside) == 1 else logical_and_op(*inside)
        return [where_op(held, output_grad, zeroslike_op(output_grad))]


def clip_op(x: Node, low: float | None = None, high: float | None = None) -> Made:
    """x, but no less than `low` and no more than `high`, which comes last; None is no bound.

    Raises GraphError for bounds that are no real numbers, and where there is none.
    """
    if low is None and high is None:
        raise GraphError("clip: there is neither a low nor a high bound")
    bounds = [None if bound is None else real_constant("clip", bound) for bound in (low, high)]
    if any(bound != bound for bound in bounds if bound is not None):
        raise GraphError("clip: a bound is NaN")
    return Clip.make([x], {"low": bounds[0], "high": bounds[1]})
