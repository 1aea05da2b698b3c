"""Arithmetic of nodes with nodes, broadcast as NumPy does, and with Python's numbers, which are constants.

A constant is weakly typed: it takes the dtype of the node beside it. Sums, differences and products are also of
integers, of which unsigned ones wrap around. The gradients of broadcast operands are summed back to their shapes by
`sum_to_like`, which is the identity where nothing was broadcast.
"""

from __future__ import annotations

import numpy as np

from .. import compute
from ..graph import NUMBERS, Made, Node
from .family import OfConst, OfNode, OfNodes, binary, by_const, unary
from .inputs import constant_op
from .replay import function
from .types import dtype_of

neg_op: OfNode = unary("neg", "-node.", compute.neg, np.negative, lambda g, y, x: neg_op(g), dtypes=NUMBERS, onnx="Neg")

add_op: OfNodes = binary(
    "add", "a + b, broadcast.", compute.add, np.add,
    lambda g, y, a, b: (g, g),
    dtypes=NUMBERS,
    commutative=True, shifts=np.positive, onnx="Add",
)
sub_op: OfNodes = binary(
    "sub", "a - b, broadcast.", compute.sub, np.subtract, lambda g, y, a, b: (g, neg_op(g)), dtypes=NUMBERS,
    shifts=np.negative, onnx="Sub",
)
mul_op: OfNodes = binary(
    "mul", "a * b, broadcast.", compute.mul, np.multiply,
    lambda g, y, a, b: (mul_op(g, b), mul_op(g, a)),
    dtypes=NUMBERS,
    commutative=True, scales=np.positive, onnx="Mul",
)
div_op: OfNodes = binary(
    "div", "a / b, broadcast; d/da = 1 / b, d/db = -(a / b) / b.", compute.div, np.divide,
    lambda g, y, a, b: (div_op(g, b), neg_op(mul_op(div_op(g, b), y))),
    scales=np.reciprocal, onnx="Div",
)
add_byconst_op: OfConst = by_const("add_byconst", "node + const.", add_op)
mul_byconst_op: OfConst = by_const("mul_byconst", "node * const.", mul_op)
div_byconst_op: OfConst = by_const("div_byconst", "node / const.", div_op)


@function()
def const_div_op(const: float, node: Node) -> Made:
    """const / node. Raises GraphError for a constant that is no real number."""
    return div_op(constant_op(const, dtype_of(node)), node)


def whole_power(node: Node, count: int) -> Node:
    """The product of `count` times the node, at least once."""
    if count == 1:
        return node
    half = whole_power(node, count // 2)
    square = mul_op(half, half)
    return mul_op(square, node) if count % 2 else square
