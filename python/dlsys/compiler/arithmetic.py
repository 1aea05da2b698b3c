"""Rules of arithmetic: constants beside nodes, signs, products with several constants.

NaN and infinity stay what they are: nothing is rewritten that would lose one, so `x * 0` and `x - x` stay. All rules
are to the bit, except that the sign of a zero may change (`x + 0`, `-(a - b)`) and that several constant factors become
one to rounding.
"""

from __future__ import annotations

from ..checks import in_dtype
from ..graph import FLOATS, OPS, Node
from ..ops import (
    add_byconst_op,
    add_op,
    broadcast_shape_op,
    const_div_op,
    div_byconst_op,
    div_op,
    full_op,
    mul_byconst_op,
    mul_op,
    neg_op,
    sub_op,
)
from .base import Change, Rule, TypedGraph

NEG, SUB = OPS["neg"], OPS["sub"]
TIMES, BY, CONST_DIV = OPS["mul_byconst"], OPS["div_byconst"], OPS["const_div"]

# Constant factors outside stay apart: merged, they could hide that a product between them overflows or vanishes.
SMALLEST, LARGEST = 2.0**-32, 2.0**32


def _constant(node: Node) -> float | None:
    """The value of a constant, None for what is none."""
    return node.attrs["value"] if node.op.constant else None


def _rounded(node: Node, graph: TypedGraph) -> float:
    """The constant of a `_byconst` operator in the node's dtype."""
    return in_dtype(node.attrs["const"], graph.dtypes[node]).item()


def _like(node: Node, result: Node, x: Node, graph: TypedGraph) -> Node:
    """`result`, which has x's shape, in the node's."""
    return result if graph.shapes[x] == graph.shapes[node] else broadcast_shape_op(result, graph.shapes[node])


def _add(node: Node, graph: TypedGraph) -> Change | None:
    a, b = node.inputs
    for x, other in ((a, b), (b, a)):
        if (const := _constant(other)) is not None:
            return _like(node, add_byconst_op(x, const), x, graph), "the other operand is one number"
        if other.op is NEG:
            return sub_op(x, other.inputs[0]), "x + -y is x - y"
    return (mul_byconst_op(a, 2.0), "x + x is 2 x") if a is b else None


def _sub(node: Node, graph: TypedGraph) -> Change | None:
    a, b = node.inputs
    if (const := _constant(b)) is not None:
        negative = in_dtype(-const, graph.dtypes[node]).item()
        return _like(node, add_byconst_op(a, negative), a, graph), "x - c is x + (-c)"
    if (const := _constant(a)) is not None:
        return _like(node, add_byconst_op(neg_op(b), const), b, graph), "c - x is -x + c"
    return (add_op(a, b.inputs[0]), "x - -y is x + y") if b.op is NEG else None


def _mul(node: Node, graph: TypedGraph) -> Change | None:
    a, b = node.inputs
    for x, other in ((a, b), (b, a)):
        if (const := _constant(other)) is not None:
            return _like(node, mul_byconst_op(x, const), x, graph), "the other operand is one number"
    both = a.op is NEG and b.op is NEG
    return (mul_op(a.inputs[0], b.inputs[0]), "-x * -y is x * y") if both else None


def _div(node: Node, graph: TypedGraph) -> Change | None:
    a, b = node.inputs
    if (const := _constant(b)) is not None:
        return _like(node, div_byconst_op(a, const), a, graph), "the other operand is one number"
    if (const := _constant(a)) is not None:
        return _like(node, const_div_op(const, b), b, graph), "the other operand is one number"
    both = a.op is NEG and b.op is NEG
    return (div_op(a.inputs[0], b.inputs[0]), "-x / -y is x / y") if both else None


def _neg(node: Node, graph: TypedGraph) -> Change | None:
    (x,) = node.inputs
    if x.op is NEG:
        return x.inputs[0], "-(-x) is x"
    if x.op is SUB:
        return sub_op(x.inputs[1], x.inputs[0]), "-(x - y) is y - x"
    if x.op is TIMES or x.op is BY or x.op is CONST_DIV:
        return Node(x.op, x.inputs, {"const": -x.attrs["const"]}), "the sign is part of the constant"
    return None


def _add_byconst(node: Node, graph: TypedGraph) -> Change | None:
    return (node.inputs[0], "x + 0 is x") if _rounded(node, graph) == 0 else None


def _by_factor(node: Node, graph: TypedGraph) -> Change | None:
    """For x * const and x / const."""
    (x,), const = node.inputs, _rounded(node, graph)
    if const == 1:
        return x, "the factor is 1"
    if const == -1:
        return neg_op(x), "the factor is -1"
    if x.op is NEG:
        return Node(node.op, x.inputs, {"const": -node.attrs["const"]}), "the sign is part of the constant"
    if not (x.op is TIMES or x.op is BY):
        return None
    inner, outer = x.attrs["const"], node.attrs["const"]
    if not all(SMALLEST <= abs(factor) <= LARGEST for factor in (inner, outer)):
        return None
    if x.op is BY and node.op is BY:
        return div_byconst_op(x.inputs[0], inner * outer), "two constant factors are one"
    inner = 1 / inner if x.op is BY else inner
    factor = inner / outer if node.op is BY else inner * outer
    return mul_byconst_op(x.inputs[0], factor), "two constant factors are one"


def _const_div(node: Node, graph: TypedGraph) -> Change | None:
    (x,) = node.inputs
    negative = const_div_op(-node.attrs["const"], x.inputs[0]) if x.op is NEG else None
    return None if negative is None else (negative, "the sign is part of the constant")


def _power_byconst(node: Node, graph: TypedGraph) -> Change | None:
    const = _rounded(node, graph)
    if const == 0:  # also of NaN, as IEEE's pow
        return full_op(graph.shapes[node], 1.0, graph.dtypes[node]), "x ** 0 is 1"
    return (node.inputs[0], "x ** 1 is x") if const == 1 else None


def _of_floats(rule: Rule) -> Rule:
    """The rule for floats alone: a merged constant may be none of the integers."""
    return lambda node, graph: rule(node, graph) if graph.dtypes[node] in FLOATS else None


_RULES: dict[str, Rule] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "neg": _neg,
    "add_byconst": _add_byconst,
    "mul_byconst": _by_factor,
    "div_byconst": _by_factor,
    "const_div": _const_div,
    "power_byconst": _power_byconst,
}
_OF_INTEGERS = ("add", "sub", "mul")  # constants wrap around in them as elements do
RULES: dict[str, list[Rule]] = {
    name: [rule if name in _OF_INTEGERS else _of_floats(rule)] for name, rule in _RULES.items()
}
"""By the operator's name, tried in turn."""
