"""Products: gradients of matrix products and sums of products become single products, matrices are packed once.

Gradients, once shapes are known, become matrix products: to the bit, but for the order in which one sum over batches is
taken. What a network multiplies step by step with one matrix, or part by part, gives that matrix's gradient as the sum
of as many products a_t^T b_t. They are one product of the a_t and b_t, put together by rows, to rounding: what is
summed over is longer, so tiles stay in registers, and no sum of matrices is left. So with sums over rows, as of biases.
A product copies its right operand into panels of columns (see `schedule.cpu.contraction`); a matrix that several
products read, as that of a recurrent network, is laid out for them by a kernel of its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence

from ..graph import Node
from ..ops import concatenate_op, matmul_op, matmul_panels_op, pack_panels_op, reducesum_op, reshape_op
from .base import TypedGraph, rewrite
from .simplify import merge
from .slices import Terms, located, pieces, total


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
    return merge(rewrite(graph, rule))


def _shared(node: Node, graph: TypedGraph) -> tuple[Node, bool, int] | None:
    """Of a product of matrices, whose left one is not transposed: the right one, whether that is, and m."""
    if node.op.name != "matmul" or node.matmul_attr_trans_A:
        return None
    a, b = (graph.shapes[value] for value in node.inputs)
    if len(a) != 2 or len(b) != 2 or b[0] * b[1] < LEAST_ELEMENTS:
        return None
    return node.inputs[1], node.matmul_attr_trans_B, a[0]


COPIES = 2  # how often what is copied, to put operands together, must go into the sums that are not stored


def join_sums(graph: TypedGraph) -> TypedGraph:
    """Sums of products a_t^T b_t of one shape become one product, unless that copies more than it saves; sums over rows
    become one sum, if their operands lie in one array already."""
    terms, known = Terms(graph), _Together(graph)

    def rule(node: Node, typed: TypedGraph) -> Node | None:
        return _sum(terms.of(node), typed, terms, known)

    return rewrite(graph, rule, terms.origins)


def bare(node: Node) -> Node:
    """The node without reshapes around it."""
    while node.op.name == "reshape":
        (node,) = node.inputs
    return node


class _Together:
    """Which nodes lie in one array, or will, and where."""

    def __init__(self, graph: TypedGraph) -> None:
        self._places: dict[Node, dict[Node, int]] = {}
        for node in graph.nodes:
            if node.op.joins:
                for value, first in pieces(node, graph) or ():
                    self._places.setdefault(bare(value), {}).setdefault(node, first)

    def numbers(self, values: Sequence[Node], typed: TypedGraph, terms: Terms) -> list[int] | None:
        """The number of each value's first element in an array that holds all of them; None if none does."""
        found = [located(value, typed) for value in values]
        if all(base is found[0][0] for base, _ in found):
            return [first for _, first in found]
        places = [self._places.get(terms.origin(bare(value)), {}) for value in values]
        common = next((join for join in places[0] if all(join in place for place in places)), None)
        return None if common is None else [place[common] for place in places]


def _sum(terms: list[Node], graph: TypedGraph, found: Terms, known: _Together) -> Node | None:
    """The sum with fewer terms, where several are products that one product over a longer axis gives; else None."""
    alike: dict[Hashable, list[int]] = {}
    for number, term in enumerate(terms):
        key = _kind(term, graph)
        if key is not None and graph.uses[found.origin(term)] == 1:
            alike.setdefault(key, []).append(number)
    joined: dict[int, Node] = {}
    gone: set[int] = set()
    for numbers in alike.values():
        one = _one([terms[i] for i in numbers], graph, found, known) if len(numbers) > 1 else None
        if one is not None:
            joined[numbers[0]] = one
            gone.update(numbers)
    if not joined:
        return None
    return total([joined.get(i, term) for i, term in enumerate(terms) if i in joined or i not in gone])


def _kind(term: Node, graph: TypedGraph) -> Hashable:
    """Equal for terms that may become one; None for what may not."""
    shapes = [graph.shapes[value] for value in term.inputs]
    if any(0 in shape for shape in shapes):
        return None
    if term.op.name == "matmul" and term.matmul_attr_trans_A and not term.matmul_attr_trans_B:
        return ("matmul", shapes[0][1], shapes[1][1]) if len(shapes[0]) == len(shapes[1]) == 2 else None
    if term.op.name == "reducesum" and term.attrs["axes"] is not None:
        rank, keepdims = len(shapes[0]), term.attrs["keepdims"]
        axes = tuple(sorted(axis % rank for axis in term.attrs["axes"]))
        return ("reducesum", axes, keepdims, shapes[0][1:]) if 0 in axes else None
    return None


def _one(terms: list[Node], graph: TypedGraph, found: Terms, known: _Together) -> Node | None:
    """One node for the sum of terms of a kind."""
    columns = [list(column) for column in zip(*(term.inputs for term in terms), strict=True)]
    order = list(range(len(terms)))
    for column in columns:
        numbers = known.numbers(column, graph, found)
        if numbers is not None and len(set(numbers)) == len(numbers):
            order.sort(key=numbers.__getitem__)
            break
    copied = 0
    for column in columns:
        column[:] = [column[i] for i in order]
        numbers = known.numbers(column, graph, found)
        ends = [graph.size(value) + first for value, first in zip(column, numbers or (), strict=False)]
        if numbers is None or ends[:-1] != numbers[1:]:
            copied += sum(graph.size(value) for value in column)
    first = terms[0]
    saved = graph.size(first) * (len(terms) - 1) if first.op.name == "matmul" else 0
    if COPIES * copied > saved:
        return None
    operands = [concatenate_op(column) for column in columns]
    if first.op.name == "matmul":
        return matmul_op(operands[0], operands[1], True, False)
    return reducesum_op(operands[0], first.attrs["axes"], first.attrs["keepdims"])
