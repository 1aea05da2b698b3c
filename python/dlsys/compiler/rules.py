"""The rules by which graphs become simpler, in one table: folding, arithmetic, functions, moved and repeated values,
taps of convolutions.

NaN and infinity stay what they are: nothing is rewritten that would lose one, so `x * 0` and `x - x` stay; but filters'
taps that meet nothing but padding are cut off, with the products with zeros there. All rules are to the bit, except
that the sign of a zero may change (`x + 0`, `-(a - b)`), that several constant factors become one to rounding, that a
sum of equal values, or a product of matrices of such, is the value times the count, and that a logarithm of a softmax
becomes the operator that does it without underflow, which is better than rounding. Folded constants are `full`, one
value at every index, so no array is made for them, however large their shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from ..checks import in_dtype
from ..graph import FLOATS, OPS, Node, Op, Shape
from ..ops import broadcast_rule, conv2d_op, full_op, mul_byconst_op, reducesum_op, slice_op
from ..ops.conv import Geometry, conv2d_filter_gradient_op, conv2d_input_gradient_op, geometry_of
from ..ops.rules import real_constant
from ..ops.shape import Transpose
from ..ops.slicing import slice_gradient_op
from .base import TypedGraph
from .patterns import Match, Pattern, Rule, p

RESHAPE, BROADCAST, TRANSPOSE = OPS["reshape"], OPS["broadcast_shape"], cast(Transpose, OPS["transpose"])
MATMUL, SUM, TIMES, BY = OPS["matmul"], OPS["reducesum"], OPS["mul_byconst"], OPS["div_byconst"]
CONV, IMAGES, FILTERS = OPS["conv2d"], OPS["conv2d_input_gradient"], OPS["conv2d_filter_gradient"]

# Folding ---------------------------------------------------------------------------------------------------

MOST_ELEMENTS = 4096  # of an array that is made to fold an operator that reads more than one index


def _reads_constants(op: Op, read: tuple[Op, ...]) -> bool:
    """Whether what an operator reads are values, all of them constant."""
    found = [one.constant for i, one in enumerate(read) if i not in op.shape_only]
    return bool(found) and all(found)


def _folded(m: Match) -> Node | None:
    found = _one_value(m.node, m.graph)
    return None if found is None else full_op(m.shape, in_dtype(found, m.dtype).item(), m.dtype)


def _one_value(node: Node, graph: TypedGraph) -> float | None:
    """The value at every index of the node's result, before it is rounded or wraps around; None if they differ, or it
    would take long to find out."""
    shape = graph.shapes[node]
    first = node.inputs[0].attrs["value"]
    if 0 in shape:
        return 0.0  # there is no index
    if node.op.picks:
        return first
    if node.op is SUM:
        return _times(graph.size(node.inputs[0]) // graph.size(node), first)
    if node.op is MATMUL:
        inner = graph.shapes[node.inputs[0]][-2 if node.matmul_attr_trans_A else -1]
        return _times(inner, first * node.inputs[1].attrs["value"])
    elementwise = node.op.kind == "elementwise"
    if not elementwise and max(graph.size(value) for value in [node, *node.inputs]) > MOST_ELEMENTS:
        return None
    arrays = []
    for value in node.inputs:
        number = value.attrs.get("value", 0.0)  # of what is read for its shape alone, any
        number = np.asarray(number, graph.dtypes[value])
        arrays.append(np.broadcast_to(number, () if elementwise else graph.shapes[value]))
    with np.errstate(all="ignore"):
        result = node.op.numpy(node, arrays).ravel()
    return result[0].item() if np.array_equal(result, np.full_like(result, result[0]), equal_nan=True) else None


def _times(count: int, value: float) -> float:
    return count * value if count else 0.0  # a sum of nothing is 0, also where infinity is not summed


# Arithmetic ------------------------------------------------------------------------------------------------

# Constant factors outside stay apart: merged, they could hide that a product between them overflows or vanishes.
SMALLEST, LARGEST = 2.0**-32, 2.0**32


def _c(m: Match) -> float:
    return real_constant("constant", m.c)


def _minus(m: Match) -> float:
    """-c, of integers modulo their range."""
    return real_constant("constant", in_dtype(-m.c, m.dtype).item()) if m.dtype not in FLOATS else -m.c


def _is(number: float) -> Any:
    """Whether c is the number, once it is rounded to the dtype."""
    return lambda m: abs(m.c - number) < 1e-6 and in_dtype(m.c, m.dtype) == number


def _one_factor(m: Match) -> Node | None:
    """(x * or / inner) * or / outer, where neither hides that a product overflows."""
    if not all(SMALLEST <= abs(factor) <= LARGEST for factor in (m.inner, m.outer)):
        return None
    outside, inside = (node.op is BY for node in (m.node, m.node.inputs[0]))
    if outside and inside:
        return Node(BY, [m.x], {"const": m.inner * m.outer})
    inner = 1 / m.inner if inside else m.inner
    return Node(TIMES, [m.x], {"const": inner / m.outer if outside else inner * m.outer})


def _ones(m: Match) -> Node:
    return full_op(m.shape, 1.0, m.dtype)  # also of NaN, as IEEE's pow


_FACTOR = ("mul_byconst", "div_byconst")
_WITH_SIGN = p.mul_byconst, p.div_byconst, p.const_div
NUMBER, SIGN = "the other operand is one number", "the sign is part of the constant"

OF_NUMBERS = [
    Rule(NUMBER, p.add("x", p.full(value="c")), p.add_byconst("x", const=_c)),
    Rule("x + -y is x - y", p.add("x", p.neg("y")), p.sub("x", "y")),
    Rule("x + x is 2 x", p.add("x", "x"), p.mul_byconst("x", const=2.0)),
    Rule("x - c is x + (-c)", p.sub("x", p.full(value="c")), p.add_byconst("x", const=_minus)),
    Rule("c - x is -x + c", p.sub(p.full(value="c"), "x"), p.add_byconst(p.neg("x"), const=_c)),
    Rule("x - -y is x + y", p.sub("x", p.neg("y")), p.add("x", "y")),
    Rule(NUMBER, p.mul("x", p.full(value="c")), p.mul_byconst("x", const=_c)),
    Rule("-x * -y is x * y", p.mul(p.neg("x"), p.neg("y")), p.mul("x", "y")),
]
OF_FLOATS = [
    Rule(NUMBER, p.div("x", p.full(value="c")), p.div_byconst("x", const=_c)),
    Rule(NUMBER, p.div(p.full(value="c"), "x"), p.const_div("x", const=_c)),
    Rule("-x / -y is x / y", p.div(p.neg("x"), p.neg("y")), p.div("x", "y")),
    Rule("-(-x) is x", p.neg(p.neg("x")), "x"),
    Rule("-(x - y) is y - x", p.neg(p.sub("x", "y")), p.sub("y", "x")),
    Rule("x + 0 is x", p.add_byconst("x", const="c"), "x", _is(0)),
    Rule("the factor is 1", Pattern(_FACTOR, ("x",), {"const": "c"}), "x", _is(1)),
    Rule("the factor is -1", Pattern(_FACTOR, ("x",), {"const": "c"}), p.neg("x"), _is(-1)),
    *(Rule(SIGN, p.neg(one("x", const="c")), one("x", const=_minus)) for one in _WITH_SIGN),
    *(Rule(SIGN, one(p.neg("x"), const="c"), one("x", const=_minus)) for one in _WITH_SIGN),
    Rule(
        "two constant factors are one",
        Pattern(_FACTOR, (Pattern(_FACTOR, ("x",), {"const": "inner"}),), {"const": "outer"}),
        _one_factor,
    ),
    Rule("x ** 0 is 1", p.power_byconst("x", const="c"), _ones, _is(0)),
    Rule("x ** 1 is x", p.power_byconst("x", const="c"), "x", _is(1)),
]

# Functions -------------------------------------------------------------------------------------------------


def _zeros(m: Match) -> Node:
    return full_op(m.shape, 0.0, m.dtype)


FUNCTIONS = [
    Rule("log(softmax(x)) without underflow", p.log(p.softmax("x")), p.log_softmax("x")),
    Rule("exp(log_softmax(x)) is softmax(x)", p.exp(p.log_softmax("x")), p.softmax("x")),
    Rule("relu(relu(x)) is relu(x)", p.relu(p.relu("x")), p.relu("x")),
    Rule("the gate is known", p.relu_gradient(p.full(value="c"), "g"), lambda m: m.g if m.c > 0 else _zeros(m)),
    Rule("the gradient is zero", p.relu_gradient("x", p.full(value="c")), _zeros, lambda m: m.c == 0),
    Rule(
        "the gradient has passed this gate already",
        p.relu_gradient("x", p.relu_gradient("x", "g")),
        p.relu_gradient("x", "g"),
    ),
]

# Moved and repeated values ---------------------------------------------------------------------------------


def _only_leads(shape: Shape, wide: Shape) -> bool:
    """Whether `wide` is `shape` behind extents of 1."""
    lead = len(wide) - len(shape)
    return lead >= 0 and wide == (1,) * lead + shape


def _bare(node: Node, graph: TypedGraph) -> Node:
    """The node without a reshape that only puts extents of 1 in front, as broadcasting does by itself."""
    leads = node.op is RESHAPE and _only_leads(graph.shapes[node.inputs[0]], graph.shapes[node])
    return node.inputs[0] if leads else node


def _order(axes: Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """For each axis of a transpose the input's axis that it is."""
    return tuple(reversed(range(rank))) if axes is None else tuple(axis % rank for axis in axes)


def _own_order(m: Match) -> tuple[int, ...]:
    return _order(m.axes, len(m.shape))


def _swaps_last_two(axes: Sequence[int] | None, shape: Shape) -> bool:
    rank = len(shape)
    return rank > 1 and _order(axes, rank) == (*range(rank - 2), rank - 1, rank - 2)


def _composed(m: Match) -> tuple[int, ...]:
    inner = _order(m.inner, len(m.shape))
    return tuple(inner[axis] for axis in _own_order(m))


def _moves_ones(m: Match) -> bool:
    wide = [axis for axis in _own_order(m) if m.shapes[m.x][axis] != 1]
    return wide == sorted(wide)


def _transposed_product(m: Match) -> Node:
    product = m.node.inputs[0]
    return Node(MATMUL, [m.y, m.x], {**product.attrs, "trans_A": not m.b, "trans_B": not m.a})


def _takes_transpose(m: Match) -> bool:
    """Whether a product may be transposed: where others read it, it would be computed twice."""
    alone = m.graph.uses[m.node.inputs[0]] == 1 and min(len(m.shapes[m.x]), len(m.shapes[m.y])) > 1
    return alone and _swaps_last_two(m.axes, m.shape)


def _with_flag(flag: str) -> Any:
    """The product of x and y, of which one is transposed as it is read."""
    return lambda m: Node(MATMUL, [m.x, m.y], {**m.node.attrs, flag: not m.node.attrs[flag]})


def _reads_repeated(op: Op, read: tuple[Op, ...]) -> bool:
    """Whether an elementwise operator that may broadcast reads what is broadcast."""
    own = op.kind == "elementwise" and op is not BROADCAST and (op.broadcasts or len(read) == 1)
    return own and BROADCAST in read


_OF_REPEATED = Pattern(test=_reads_repeated)


def _before_broadcasts(node: Node) -> list[Node]:
    return [value.inputs[0] if value.op is BROADCAST else value for value in node.inputs]


def _reached(m: Match) -> Shape:
    """The shape that the operator makes of the operands before they are broadcast."""
    return _together(_before_broadcasts(m.node), m.graph)


def _sunk(m: Match) -> Node:
    """An elementwise operator of what is repeated: it broadcasts by itself, or is computed once and then repeated."""
    operands, reached = _before_broadcasts(m.node), _reached(m)
    for i, operand in enumerate(operands):
        trial = [*operands[:i], _bare(operand, m.graph), *operands[i + 1 :]]
        if _together(trial, m.graph) == reached:
            operands = trial
    return Node(m.node.op, operands, m.node.attrs)


def _together(operands: list[Node], graph: TypedGraph) -> Shape:
    shape = graph.shapes[operands[0]]
    for operand in operands[1:]:
        shape = broadcast_rule(shape, graph.shapes[operand])
    return shape


def _summed(m: Match) -> tuple[int, ...]:
    """The axes of a sum, ascending."""
    rank = len(m.shapes[m.x])
    return tuple(range(rank)) if m.axes is None else tuple(sorted(axis % rank for axis in m.axes))


def _sum_of_broadcast(m: Match) -> Node:
    """The sum over what was there before the broadcast, times how often that was repeated."""
    value, wide, axes = m.x.inputs[0], m.shapes[m.x], _summed(m)
    shape = m.shapes[value]
    lead = len(wide) - len(shape)
    times = math.prod(wide[axis] for axis in axes if axis < lead or shape[axis - lead] == 1)
    if times == 0:  # nothing is summed; zero times infinity would be NaN
        return _zeros(m)
    own = tuple(axis - lead for axis in axes if axis >= lead)
    times = in_dtype(times, m.dtype).item()  # of integers modulo their range, as the sum is
    return mul_byconst_op(reducesum_op(value, own, m.keepdims), times)


SAME_SHAPE = {"shape": lambda m: m.shape}
_SUM = {"axes": "axes", "keepdims": "keepdims"}
TRANSPOSED = "a product reads transposed matrices"

MOVES = [
    Rule("the shape is the same", p.reshape("x"), "x", lambda m: m.shapes[m.x] == m.shape),
    Rule("two reshapes are one", p.reshape(p.reshape("x")), p.reshape("x", **SAME_SHAPE)),
    Rule("-1 written out", p.reshape("x", shape="s"), p.reshape("x", **SAME_SHAPE), lambda m: m.s != m.shape),
    Rule(
        "two transposes are one",
        p.transpose(p.transpose("x", axes="inner"), axes="axes"),
        p.transpose("x", axes=_composed),
    ),
    Rule(
        "a transpose that moves extents of 1 is a reshape",
        p.transpose("x", axes="axes"),
        p.reshape("x", **SAME_SHAPE),
        _moves_ones,
    ),
    Rule(
        "(a b)^T is b^T a^T",
        p.transpose(p.matmul("x", "y", trans_A="a", trans_B="b"), axes="axes"),
        _transposed_product,
        _takes_transpose,
    ),
    Rule(
        "axes written out",
        p.transpose("x", axes="axes"),
        p.transpose("x", axes=_own_order),
        lambda m: m.axes != _own_order(m),
    ),
    Rule(
        TRANSPOSED,
        p.matmul(p.transpose("x", axes="axes"), "y"),
        _with_flag("trans_A"),
        lambda m: _swaps_last_two(m.axes, m.shapes[m.x]),
    ),
    Rule(
        TRANSPOSED,
        p.matmul("x", p.transpose("y", axes="axes")),
        _with_flag("trans_B"),
        lambda m: _swaps_last_two(m.axes, m.shapes[m.y]),
    ),
    Rule(
        "a broadcast to extents of 1 is a reshape",
        p.broadcast_shape("x"),
        p.reshape("x", **SAME_SHAPE),
        lambda m: _only_leads(m.shapes[m.x], m.shape),
    ),
    Rule("two broadcasts are one", p.broadcast_shape(p.broadcast_shape("x")), p.broadcast_shape("x", **SAME_SHAPE)),
    Rule(
        "a broadcast adds the extents of 1 in front",
        p.broadcast_shape(p.reshape("x")),
        p.broadcast_shape("x", **SAME_SHAPE),
        lambda m: _bare(m.node.inputs[0], m.graph) is m.x,
    ),
    Rule(
        "a sum over extents of 1 is a reshape",
        p.reducesum("x", axes="axes"),
        p.reshape("x", **SAME_SHAPE),
        lambda m: all(m.shapes[m.x][axis] == 1 for axis in _summed(m)),
    ),
    Rule(
        "a sum of equal values is a product",
        p.reducesum("x", **_SUM),
        _sum_of_broadcast,
        lambda m: m.x.op is BROADCAST,
    ),
    Rule(
        "axes written out",
        p.reducesum("x", **_SUM),
        p.reducesum("x", axes=_summed, keepdims=lambda m: m.keepdims),
        lambda m: m.axes != _summed(m),
    ),
    Rule("the operator broadcasts by itself", _OF_REPEATED, _sunk, lambda m: _reached(m) == m.shape),
    Rule("computed once, then repeated", _OF_REPEATED, _sunk),
]

# Taps of convolutions --------------------------------------------------------------------------------------
#
# A 3 x 3 filter with a padding of 1 over images of one element is its middle tap; networks that halve their images
# until little is left have such filters. A strided convolution of one tap is the convolution of a slice.


def _types_of_convolution(m: Match) -> tuple[Shape, Shape, Shape]:
    """The shapes of images, filters and result of a convolution, or of that whose gradient the node is."""
    first, second, *like = (m.shapes[value] for value in m.node.inputs)
    if m.node.op is CONV:
        return first, second, m.shape
    return (like[0], first, second) if m.node.op is IMAGES else (first, like[0], second)


def _cut_taps(m: Match) -> Node | None:
    """A convolution without the rows and columns of its filters that lie in the padding at every place."""
    images, filters, out = _types_of_convolution(m)
    strides, paddings, dilations, groups = geometry_of(m.node)
    if 0 in (*images, *filters):
        return None
    cuts, less = [], []
    for image, taps, count, *axis in zip(images[2:], filters[2:], out[2:], strides, paddings, dilations, strict=True):
        found = _used(image, taps, count, *axis)
        if found is None:
            return None
        cuts.append(slice(*found))
        less.append(axis[1] - axis[2] * found[0])
    if all(cut == slice(0, extent) for cut, extent in zip(cuts, filters[2:], strict=True)):
        return None
    return _of_parts(m.node, None, (..., *cuts), (strides, (less[0], less[1]), dilations, groups))


def _used(image: int, taps: int, out: int, stride: int, padding: int, dilation: int) -> tuple[int, int] | None:
    """The first tap of an axis that meets the image at some position, and the one behind the last; None where the
    convolution with those alone is not one with the same padding on both sides."""

    def meets(tap: int) -> bool:
        first = tap * dilation - padding
        return any(0 <= position * stride + first < image for position in range(out))

    used = [tap for tap in range(taps) if meets(tap)]
    if not used:
        return None
    first, count = used[0], used[-1] + 1 - used[0]
    less = padding - dilation * first
    same = less >= 0 and (image + 2 * less - dilation * (count - 1) - 1) // stride + 1 == out
    return (first, first + count) if same else None


def _without_stride(m: Match) -> Node | None:
    """A convolution of one tap, which reads a part of its images, as that of this part."""
    images, filters, out = _types_of_convolution(m)
    strides, paddings, dilations, groups = geometry_of(m.node)
    if 0 in (*images, *filters) or filters[2:] != (1, 1) or paddings != (0, 0) or strides == (1, 1):
        return None
    read = [slice(0, stride * extent, stride) for stride, extent in zip(strides, out[2:], strict=True)]
    return _of_parts(m.node, (..., *read), None, ((1, 1), paddings, dilations, groups))


def _of_parts(node: Node, images: Any, filters: Any, geometry: Geometry) -> Node:
    """A convolution, or a gradient of one, of the parts of images and filters at these keys, of all for None; elsewhere
    a gradient is zero."""

    def part(value: Node, key: Any) -> Node:
        return value if key is None else slice_op(value, key)

    def spread(grad: Node, like: Node, key: Any) -> Node:
        return grad if key is None else slice_gradient_op(grad, like, key)

    first, second, *third = node.inputs
    if node.op is CONV:
        return conv2d_op(part(first, images), part(second, filters), *geometry)
    (like,) = third
    if node.op is IMAGES:
        grad = conv2d_input_gradient_op(part(first, filters), second, part(like, images), *geometry)
        return spread(grad, like, images)
    grad = conv2d_filter_gradient_op(part(first, images), second, part(like, filters), *geometry)
    return spread(grad, like, filters)


_CONVOLUTION = Pattern((CONV.name, IMAGES.name, FILTERS.name))
TAPS = [
    Rule("the other taps meet nothing but padding", _CONVOLUTION, _cut_taps),
    Rule("a stride of one tap reads a part of the images", _CONVOLUTION, _without_stride),
]

TABLE = {
    "fold": [Rule("all that it reads is constant", Pattern(test=_reads_constants), _folded)],
    "simplify": [*OF_NUMBERS, *(replace(rule, dtypes=FLOATS) for rule in OF_FLOATS), *FUNCTIONS, *MOVES],
    "taps": TAPS,
}
"""All rules, by the pass that a user may choose, in the order in which they are tried."""
