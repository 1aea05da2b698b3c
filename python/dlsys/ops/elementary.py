"""Functions of one value, and powers of nodes: a table of formulas and derivatives."""

from __future__ import annotations

import math

import numpy as np

from .. import compute
from ..graph import DTYPES, NUMBERS, Node
from .arithmetic import add_byconst_op, div_op, mul_byconst_op, mul_op, neg_op
from .compare import equal_op, greater_equal_op, logical_and_op, where_op
from .family import OfNode, binary, unary
from .inputs import zeroslike_op


def one_minus(node: Node) -> Node:
    """1 - node."""
    return add_byconst_op(neg_op(node), 1.0)


exp_op = unary(
    "exp", "exp(node); its derivative is itself.", compute.exp, np.exp,
    lambda g, y, x: mul_op(g, y),
    costly=True,
)
log_op = unary(
    "log", "The natural logarithm of the node; d/dx = 1 / x.", compute.log, np.log,
    lambda g, y, x: div_op(g, x),
    costly=True,
)
sqrt_op = unary(
    "sqrt", "The square root y of the node; d/dx = 1 / (2 y).", compute.sqrt, np.sqrt,
    lambda g, y, x: div_op(mul_byconst_op(g, 0.5), y),
)
rsqrt_op = unary(
    "rsqrt", "y = 1 / sqrt(node); d/dx = -y^3 / 2.", compute.rsqrt, lambda x: 1 / np.sqrt(x),
    lambda g, y, x: mul_op(g, mul_byconst_op(mul_op(mul_op(y, y), y), -0.5)),
)
sin_op = unary("sin", "sin(node).", compute.sin, np.sin, lambda g, y, x: mul_op(g, cos_op(x)))
cos_op: OfNode = unary("cos", "cos(node).", compute.cos, np.cos, lambda g, y, x: neg_op(mul_op(g, sin_op(x))))
tanh_op = unary(
    "tanh", "The hyperbolic tangent y of the node; d/dx = 1 - y^2.", compute.tanh, np.tanh,
    lambda g, y, x: mul_op(g, one_minus(mul_op(y, y))),
    costly=True,
)
sigmoid_op = unary(
    "sigmoid", "y = 1 / (1 + exp(-node)); d/dx = y (1 - y).", compute.sigmoid, lambda x: 1 / (1 + np.exp(-x)),
    lambda g, y, x: mul_op(g, mul_op(y, one_minus(y))),
    costly=True,
)
erf_op = unary(
    "erf",
    "The error function of the node, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x.",
    compute.erf, lambda x: np.asarray(np.frompyfunc(math.erf, 1, 1)(x), x.dtype),  # NumPy has none
    lambda g, y, x: mul_op(g, mul_byconst_op(exp_op(neg_op(mul_op(x, x))), 2 / math.sqrt(math.pi))),
    costly=True,
)
abs_op = unary(
    "abs", "|node|; the derivative is the sign, 0 at 0.", compute.absolute, np.abs,
    lambda g, y, x: mul_op(g, sign_op(x)),
    dtypes=NUMBERS,
)
sign_op: OfNode = unary(
    "sign", "-1, 0 or 1, as the node's sign; NaN of NaN; the derivative is 0.", compute.sign, np.sign,
    dtypes=NUMBERS,
)
floor_op = unary(
    "floor", "The largest integer that is no larger than the node; the derivative is 0.", compute.floor, np.floor
)
round_op = unary(
    "round", "The nearest integer, of two the even one; the derivative is 0.", compute.nearest, np.rint
)


def _power_derivative(g: Node, y: Node, a: Node, b: Node) -> tuple[Node, Node]:
    zero = zeroslike_op(y)
    by_a = mul_op(g, mul_op(b, power_op(a, add_byconst_op(b, -1.0))))
    by_b = mul_op(g, mul_op(y, log_op(a)))
    flat = logical_and_op(equal_op(a, 0.0), greater_equal_op(b, 0.0))
    return where_op(equal_op(b, 0.0), zero, by_a), where_op(flat, zero, by_b)


power_op = binary(
    "power",
    "a ** b, broadcast; d/da = b a^(b - 1), 0 where b is 0; d/db = a^b log(a), 0 where a is 0 and b no less.",
    compute.power, np.power, _power_derivative,
)

copy_op = unary(
    "copy", "The node's value in memory of its own, which nothing else writes.", compute.copy, np.array,
    lambda g, y, x: g,
    dtypes=DTYPES,
    picks=True,
    flops=0,
)
