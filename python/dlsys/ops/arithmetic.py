"""Arithmetic of nodes with nodes, broadcast as NumPy does, and of nodes with Python constants.

Constants are weakly typed: they take the node's dtype. Sums, differences and products are also of integers, of which
unsigned ones wrap around. The gradients of broadcast operands are summed back to their shapes by `sum_to_like`, which
is the identity where nothing was broadcast.
"""

from __future__ import annotations

import numpy as np

from .. import compute
from ..graph import NUMBERS, OPS, Node
from .family import ZERO, OfConst, OfNode, OfNodes, Zero, binary, by_const, unary

neg_op: OfNode = unary("neg", "-node.", compute.neg, np.negative, lambda g, y, x: neg_op(g), dtypes=NUMBERS)

add_op = binary(
    "add", "a + b, broadcast.", compute.add, np.add,
    lambda g, y, a, b: (g, g),
    dtypes=NUMBERS,
    commutative=True,
)
sub_op = binary(
    "sub", "a - b, broadcast.", compute.sub, np.subtract, lambda g, y, a, b: (g, neg_op(g)), dtypes=NUMBERS
)
mul_op: OfNodes = binary(
    "mul", "a * b, broadcast.", compute.mul, np.multiply,
    lambda g, y, a, b: (mul_op(g, b), mul_op(g, a)),
    dtypes=NUMBERS,
    commutative=True,
)
div_op: OfNodes = binary(
    "div", "a / b, broadcast; d/da = 1 / b, d/db = -(a / b) / b.", compute.div, np.divide,
    lambda g, y, a, b: (div_op(g, b), neg_op(mul_op(div_op(g, b), y))),
)
add_byconst_op = by_const(
    "add_byconst", "node + const.", compute.add_by_const, np.add,
    lambda g, y, x, const: g, lambda x, const: add_op(x, const),
    dtypes=NUMBERS,
)
mul_byconst_op: OfConst = by_const(
    "mul_byconst", "node * const.", compute.mul_by_const, np.multiply,
    lambda g, y, x, const: mul_byconst_op(g, const), lambda x, const: mul_op(x, const),
    dtypes=NUMBERS,
)
div_byconst_op: OfConst = by_const(
    "div_byconst", "node / const.", compute.div_by_const, np.divide,
    lambda g, y, x, const: div_byconst_op(g, const), lambda x, const: div_op(x, const),
)
_const_div = by_const(
    "const_div", "const / node; d/dx = -(const / x) / x.",
    compute.const_div, lambda x, const: np.divide(const, x),
    lambda g, y, x, const: neg_op(mul_op(g, div_op(y, x))), lambda x, const: div_op(const, x),
)


def const_div_op(const: float, node: Node) -> Node:
    """const / node. Raises GraphError for a constant that is no real number."""
    return _const_div(node, const)


def _power_derivative(g: Node, y: Node, x: Node, const: float) -> Node | Zero:
    if const == 0:  # 0 * x ** -1 would be NaN at 0
        return ZERO
    return g if const == 1 else mul_op(g, mul_byconst_op(power_byconst_op(x, const - 1), const))


power_byconst_op = by_const(
    "power_byconst", "node ** const; d/dx = const * x ** (const - 1).", compute.power_by_const, np.power,
    _power_derivative, lambda x, const: OPS["power"].make([x, const]),
)
