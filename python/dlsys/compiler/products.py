"""Products: gradients of matrix products become matrix products, and matrices are packed once.

Gradients, once shapes are known, become matrix products: to the bit, but for the order in which one sum over batches is
taken. A product copies its right operand into panels of columns (see `schedule.cpu.contraction`); a matrix that several
products read, or all steps of a loop, is laid out for them by a kernel of its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

from ..graph import FLOATS, Node
from ..ops import matmul_op, matmul_panels_op, pack_panels_op, reshape_op
from .base import TypedGraph, rewrite
from .simplify import merge


def product_of_gradient(node: Node, graph: TypedGraph) -> Node | None:
    """A matmul that computes a matmul_gradient: of batches where no operand was broadcast; of matrices, with all
    batches in one longer sum, where the right operand was. None elsewhere: that operator sums over batches itself."""
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


LEAST_ELEMENTS = 4096  # of a matrix: below, a kernel costs more than the copies

Columns = Callable[[int, int, str], int]
"""From a product's m, n and dtype to the columns of the panels that it reads; 0 where it packs none."""


def pack(graph: TypedGraph, columns: Columns, same: frozenset[Node] = frozenset()) -> TypedGraph:
    """The graph in which products that share their right operand read it from panels. `same`: what many runs read."""
    counts = Counter(key for node in graph.nodes if (key := _shared(node, graph)) is not None)
    counts.update(key for key in list(counts) if key[0] in same)

    def rule(node: Node, typed: TypedGraph) -> Node | None:
        key = _shared(node, typed)
        if key is None or counts[key] < 2:
            return None
        b, trans, m = key
        n = typed.shapes[node][1]
        width = columns(m, n, typed.dtypes[node])
        if width == 0 or n % width:
            return None
        return matmul_panels_op(node.inputs[0], pack_panels_op(b, width, n, trans), n, width)

    if max(counts.values(), default=0) < 2:
        return graph
    return merge(rewrite(graph, rule, name="pack", why="products share the right matrix: it is packed once"))


def _shared(node: Node, graph: TypedGraph) -> tuple[Node, bool, int] | None:
    """Of a product of matrices of floats, whose left one is not transposed: the right one, whether that is, and m."""
    if node.op.name != "matmul" or node.matmul_attr_trans_A or graph.dtypes[node] not in FLOATS:
        return None
    a, b = (graph.shapes[value] for value in node.inputs)
    if len(a) != 2 or len(b) != 2 or b[0] * b[1] < LEAST_ELEMENTS:
        return None
    return node.inputs[1], node.matmul_attr_trans_B, a[0]
