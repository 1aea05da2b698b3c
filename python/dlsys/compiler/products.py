"""Matrices that are packed once.

A product copies its right operand into panels of columns (see `schedule.cpu.contraction`); a matrix that several
products read, or all steps of a loop, is laid out for them by a kernel of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from ..graph import FLOATS, OPS, Node
from ..ops.linalg import matmul_panels, panels_of
from .base import TypedGraph, rewrite

LEAST_ELEMENTS = 4096  # of a matrix: below, a kernel costs more than the copies

Columns = Callable[[int, int, str], int]
"""From a product's m, n and dtype to the columns of the panels that it reads; 0 where it packs none."""


def pack(graph: TypedGraph, columns: Columns, same: frozenset[Node] = frozenset()) -> TypedGraph:
    """The graph in which products that share their right operand read it from panels. `same`: what many runs read."""
    products = [node for node in graph.nodes if node.op is OPS["matmul"]]
    counts = Counter([key for node in products if (key := _shared(node)) is not None])
    counts.update(key for key in list(counts) if key[0] in same)

    def rule(node: Node, typed: TypedGraph) -> Node | None:
        key = _shared(node)
        if key is None or counts[key] < 2:
            return None
        b, trans, m = key
        n = node.shape[1]
        width = columns(m, n, node.dtype)
        if width == 0 or n % width:
            return None
        return matmul_panels(node.inputs[0], panels_of(b, width, trans))

    if max(counts.values(), default=0) < 2:
        return graph
    return rewrite(graph, rule, name="pack", why="products share the right matrix: it is packed once", merge=True)


def _shared(node: Node) -> tuple[Node, bool, int] | None:
    """Of a product of matrices of floats, whose left one is not transposed: the right one, whether that is, and m."""
    if node.op is not OPS["matmul"] or node.matmul_attr_trans_A or node.dtype not in FLOATS:
        return None
    a, b = (value.shape for value in node.inputs)
    if len(a) != 2 or len(b) != 2 or b[0] * b[1] < LEAST_ELEMENTS:
        return None
    return node.inputs[1], node.matmul_attr_trans_B, a[0]
