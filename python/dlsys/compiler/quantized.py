"""Rules for products of what was stored as bytes, as quantized ONNX models have them: the bytes themselves are
multiplied, and the sum is scaled.

The sum is exact in int32, where that of float32 numbers is rounded. A product of values scaled by one number with
weights scaled by a number for each output, both of bytes and the weights without a zero point, is one: ResNet-18 as
onnxruntime quantizes it takes 0.31 of its time in float32 (11.8 ms, one thread of a Zen 5). Convolutions of single
channels stay in float32: they have no channels to take in groups, and took 2.5 times as long (96 channels of
56 x 56 on a Zen 5: 323 us in bytes, 127 in float32).
"""

from __future__ import annotations

import math

from ..graph import OPS, Node, Shape
from ..ops import dequantize_linear_op, mul_op, reshape_op
from ..ops.quantization import BYTES, most_of_bytes, product_of_bytes
from .patterns import Match, Rule, p

CONV = OPS["conv2d"]


def _number(node: Node) -> float | None:
    """The value of a constant."""
    return node.attrs["value"] if node.op.constant else None


def _scale_of_outputs(m: Match) -> Shape | None:
    """The shape in which the weights' scale is broadcast with the product; None where it is not a number for each
    output."""
    weights, scale = m.shapes[m.w], m.shapes[m.t]
    if math.prod(scale) == 1:
        return ()
    whole = (1,) * (len(weights) - len(scale)) + scale
    outputs = 0 if m.node.op is CONV else len(weights) - (2 if m.node.attrs["trans_B"] else 1)
    if len(weights) < 2 or len(whole) > len(weights) or math.prod(whole) != whole[outputs]:
        return None
    return (-1, 1, 1) if m.node.op is CONV else (-1,)


def _of_bytes(m: Match) -> Node | None:
    zero, dtypes, scale = _number(m.z), (m.graph.dtypes[m.x], m.graph.dtypes[m.w]), _scale_of_outputs(m)
    centre, is_depthwise = _number(m.u), m.node.op is CONV and m.shapes[m.w][1] == 1
    if is_depthwise or zero is None or scale is None or m.graph.size(m.s) != 1 or not set(dtypes) <= set(BYTES):
        return None
    if (dtypes[1], centre) not in (("int8", 0), ("uint8", 128)):
        return None
    shapes = m.shapes[m.x], m.shapes[m.w]
    terms = m.node.op.flop(m.node, list(shapes), m.shape) // (2 * max(math.prod(m.shape), 1))
    if not most_of_bytes(terms):
        return None
    product = Node(m.node.op, [m.x, m.w], m.node.attrs)
    total = product_of_bytes(product, dtypes, (len(shapes[0]), len(shapes[1])), zero, centre)
    return dequantize_linear_op(total, mul_op(reshape_op(m.s, ()), reshape_op(m.t, scale)))


WHY = "a product of dequantized bytes is one of bytes"
_DEQUANTIZED = p.dequantize_linear("x", "s", "z"), p.dequantize_linear("w", "t", "u")
BYTE_PRODUCTS = [Rule(WHY, product(*_DEQUANTIZED), _of_bytes) for product in (p.matmul, p.conv2d)]
