"""Products: gradients of matrix products, once shapes are known, become matrix products.

To the bit, but for the order in which one sum over batches is taken.
"""

from __future__ import annotations

import math

from ..graph import Node
from ..ops import matmul_op, reshape_op
from .base import TypedGraph


def product_of_gradient(node: Node, graph: TypedGraph) -> Node | None:
    """A matmul for a matmul_gradient: of batches, where broadcasting repeated nothing; of matrices, where it repeated
    the right operand and the batches lie so that they lengthen the sum. None for others, which sum by themselves."""
    other, grad, _ = node.inputs
    shape, others = graph.shapes[node], graph.shapes[other]
    left, trans_a, trans_b = node.attrs["operand"] == "A", node.attrs["trans_A"], node.attrs["trans_B"]
    a, b = (shape, others) if left else (others, shape)
    lead = graph.shapes[grad]
    lead = lead[: len(lead) - (len(a) > 1) - (len(b) > 1)]
    # A vector is a matrix of one row or column, and so is the gradient of its product.
    m = 1 if len(a) == 1 else a[-1 if trans_a else -2]
    n = 1 if len(b) == 1 else b[-2 if trans_b else -1]
    k = a[-2 if trans_a else -1]
    if len(others) == 1:
        other = reshape_op(other, (k, 1) if left else (1, k))
    if len(a) == 1 or len(b) == 1:
        grad = reshape_op(grad, (*lead, m, n))

    if math.prod(shape[:-2]) == math.prod(lead):
        if left:
            found = (
                matmul_op(other, grad, trans_b, True)
                if trans_a
                else matmul_op(grad, other, False, not trans_b)
            )
        else:
            found = (
                matmul_op(grad, other, True, trans_a)
                if trans_b
                else matmul_op(other, grad, not trans_a, False)
            )
    elif left or trans_a or math.prod(shape[:-2]) != 1 or math.prod(others[:-2]) != math.prod(lead):
        return None
    else:
        rows = math.prod(lead) * m
        other, grad = reshape_op(other, (rows, k)), reshape_op(grad, (rows, n))
        found = matmul_op(grad, other, True, False) if trans_b else matmul_op(other, grad, True, False)
    return reshape_op(found, shape)
