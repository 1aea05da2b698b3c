"""The rules by which graphs become simpler, in one table: folding, arithmetic, moved values, taps of convolutions; and
the passes, which go through a graph by them.

NaN and infinity stay what they are: nothing is rewritten that would lose one, so `x * 0` and `x - x` stay; but filters'
taps that meet nothing but padding are cut off, with the products with zeros there. All rules are to the bit, but for a
folded sum, which is the value times the count. Each keeps a kernel or a slow formula from a training step: what fusion
does as well (broadcasts, factors beside each other) has no rule.
Folded constants are `full`, one value at every index, so no array is made for them, however large their shape.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..checks import in_dtype
from ..errors import GraphError
from ..graph import FLOATS, OPS, Node, Op, Shape
from ..ops import constant_op, div_op, full_op
from ..ops.conv import ROLES, geometry_of, shapes_of
from ..ops.elementwise import whole_power
from ..ops.moves import place, reshape, sliced, transpose
from ..ops.types import number_of
from .base import TypedGraph, drop_dead, rewrite, size_of
from .patterns import Match, Pattern, Rule, Rules, p

MATMUL, SUM, FULL = OPS["matmul"], OPS["reducesum"], OPS["full"]
CONV, IMAGES, FILTERS = OPS["conv2d"], OPS["conv2d_input_gradient"], OPS["conv2d_filter_gradient"]

# Folding ---------------------------------------------------------------------------------------------------

def _reads_constants(op: Op, read: tuple[Op, ...]) -> bool:
    """Whether an operator of which each element depends on one of each input, or a sum, reads constants alone."""
    return bool(read) and (op.kind == "elementwise" or op.picks or op is SUM) and all(one.constant for one in read)


def _folded(m: Match) -> Node:
    """The constant that has the operator's result at every index."""
    first = m.node.inputs[0].attrs["value"]
    if 0 in m.shape or m.node.op.picks:
        value = 0.0 if 0 in m.shape else first
    elif m.node.op is SUM:
        count = size_of(m.node.inputs[0]) // size_of(m.node)
        value = count * first if count else 0.0  # a sum of nothing is 0, also where infinity is not summed
    else:
        numbers = [number_of(x) if x.op.immediate else np.asarray(x.attrs["value"], x.dtype) for x in m.node.inputs]
        with np.errstate(all="ignore"):
            value = np.ravel(m.node.op.numpy(m.node, numbers))[0].item()
    return full_op(m.shape, in_dtype(value, m.dtype).item(), m.dtype)


# Arithmetic ------------------------------------------------------------------------------------------------

MOST_FACTORS = 16  # of a power: beyond, pow is as fast as the product


def _product(m: Match) -> Node | None:
    """x ** c as a product, of a small integer."""
    count = int(abs(m.c)) if abs(m.c) <= MOST_FACTORS and m.c == int(m.c) else 0
    found = whole_power(m.x, count) if count else None
    return div_op(1.0, found) if found is not None and m.c < 0 else found


def _reads_full(op: Op, read: tuple[Op, ...]) -> bool:
    """Whether an elementwise operator that broadcasts reads a constant that is an array."""
    return op.builtin and op.broadcasts and len(read) > 1 and FULL in read


def _with_number(m: Match) -> Node | None:
    """The node with a number in the place of an array of equal values, beside an operand of its dtype."""
    *_, first, second = m.node.inputs
    for x, other in ((first, second), (second, first)):
        if x.op is FULL and not other.op.constant and other.shape == m.shape:
            number = constant_op(x.attrs["value"], x.dtype)
            return Node(m.node.op, [number if value is x else value for value in m.node.inputs], {})
    return None


C = p.constant(value="c")

NUMBERS = [
    Rule("the other operand is one number", Pattern(test=_reads_full), _with_number),
    Rule("the factor is 1", p.mul("x", C), "x", lambda m: m.c == 1),
    Rule("the divisor is 1", p.div("x", C), "x", lambda m: m.c == 1),
    Rule("a power is a product", p.power("x", C), _product, lambda m: m.dtype in FLOATS),
]

# Moved values ---------------------------------------------------------------------------------


def _swaps_last_two(axes: tuple[int, ...]) -> bool:
    return len(axes) > 1 and axes == (*range(len(axes) - 2), len(axes) - 1, len(axes) - 2)


def _with_flag(flag: str) -> Any:
    """The product of x and y, of which one is transposed as it is read."""
    return lambda m: Node(MATMUL, [m.x, m.y], {**m.node.attrs, flag: not m.node.attrs[flag]})


def _dropped_last(m: Match) -> Node | None:
    """The transpose of a slice of which an axis of one element was dropped: first the transpose, which one kernel
    computes with the slice, then the reshape."""
    dropped = m.node.inputs[0]
    part = dropped.inputs[0]
    before, behind = ([axis for axis, n in enumerate(x.shape) if n != 1] for x in (part, dropped))
    if [part.shape[axis] for axis in before] != [dropped.shape[axis] for axis in behind]:
        return None
    axis_of = dict(zip(behind, before, strict=True))
    ones = (axis for axis, n in enumerate(part.shape) if n == 1)
    return reshape(transpose(part, axes=(*ones, *(axis_of[a] for a in m.axes if a in axis_of))), shape=m.shape)


TRANSPOSE_OF_X = p.transpose("x", axes="axes")
SUM_OF_X = p.reducesum("x", axes="axes", keepdims="keepdims")
TRANSPOSED = "a product reads transposed matrices"

MOVES = [
    Rule("the shape is the same", p.reshape("x"), "x", lambda m: m.x.shape == m.shape),
    Rule("two reshapes are one", p.reshape(p.reshape("x")), lambda m: reshape(m.x, shape=m.shape)),
    Rule("a dropped axis is dropped last", p.transpose(p.reshape(p.slice("x")), axes="axes"), _dropped_last),
    Rule(TRANSPOSED, p.matmul(TRANSPOSE_OF_X, "y"), _with_flag("trans_A"), lambda m: _swaps_last_two(m.axes)),
    Rule(TRANSPOSED, p.matmul("x", p.transpose("y", axes="axes")), _with_flag("trans_B"),
         lambda m: _swaps_last_two(m.axes)),
    Rule("a sum over extents of 1 is a reshape", SUM_OF_X, lambda m: reshape(m.x, shape=m.shape),
         lambda m: all(m.x.shape[axis] == 1 for axis in m.axes)),
]  # fmt: skip

# Taps of convolutions --------------------------------------------------------------------------------------
#
# A 3 x 3 filter with a padding of 1 over images of one element is its middle tap; networks that halve their images
# until little is left have such filters: ResNet9's training step takes 1.5 times as long with all taps. The images'
# gradient of a strided convolution of one tap is one without stride, put apart: it takes three times as long at once.


def _used(image: int, taps: int, out: int, stride: int, padding: int, dilation: int) -> tuple[slice, int]:
    """The taps of an axis that meet the image at some position, and the padding of the convolution with those alone;
    all where that is not one with the same padding on both sides."""
    firsts = [tap * dilation - padding for tap in range(taps)]
    used = [i for i, first in enumerate(firsts) if any(0 <= at * stride + first < image for at in range(out))]
    if used:
        less, count = -firsts[used[0]], used[-1] + 1 - used[0]
        if less >= 0 and (image + 2 * less - dilation * (count - 1) - 1) // stride + 1 == out:
            return slice(used[0], used[-1] + 1), less
    return slice(0, taps), padding


def _part(x: Node, parts: Sequence[slice]) -> Node:
    """Of images or filters the part along rows and columns."""
    reads = [range(*part.indices(n)) for part, n in zip((slice(None), slice(None), *parts), x.shape, strict=True)]
    return sliced(x, reads)


def _placed(part: Node, shape: Shape, parts: Sequence[slice]) -> Node:
    """Zeros of a shape, with that part of it."""
    starts, steps = (one.start for one in parts), (one.step or 1 for one in parts)
    return place(part, shape=shape, starts=(0, 0, *starts), steps=(1, 1, *steps), value=0.0)


def _cut_taps(m: Match) -> Node | None:
    """A convolution, or a gradient of one, without the rows and columns of the filters that lie in the padding at every
    place; the filters' gradient is zero there."""
    op, attrs = m.node.op, dict(m.node.attrs)
    images, filters, out = shapes_of(op.name, [*(x.shape for x in m.node.inputs), m.shape])
    if 0 in (*images, *filters):
        return None
    axes = zip(images[2:], filters[2:], out[2:], *geometry_of(m.node)[:3], strict=True)
    parts, attrs["padding"] = zip(*(_used(*axis) for axis in axes), strict=True)
    if parts == tuple(slice(0, taps) for taps in filters[2:]):
        return None
    pairs = zip(ROLES[op.name], m.node.inputs, strict=False)
    inputs = [_part(x, parts) if what == "filters" else x for what, x in pairs]
    if op is not FILTERS:
        return Node(op, inputs, attrs)
    attrs["shape"] = (*filters[:2], *(part.stop - part.start for part in parts))
    return _placed(Node(op, inputs, attrs), m.shape, parts)


def _put_apart(m: Match) -> Node:
    """The gradient of the images, of which the convolution reads a part."""
    space = m.g.shape[2:]
    parts = [slice(0, stride * out, stride) for stride, out in zip(m.stride, space, strict=True)]
    attrs = {**m.node.attrs, "shape": (*m.shape[:2], *space), "stride": (1, 1)}
    return _placed(Node(IMAGES, [m.f, m.g], attrs), m.shape, parts)


TAPS = [
    Rule("the other taps meet nothing but padding", Pattern((CONV, IMAGES, FILTERS)), _cut_taps),
    Rule("a stride of one tap reads a part of the images",
         p.conv2d_input_gradient("f", "g", stride="stride", padding="padding"), _put_apart,
         lambda m: 0 not in m.shape and m.stride != (1, 1) and (*m.padding, *m.f.shape[2:]) == (0, 0, 1, 1)),
]  # fmt: skip

TABLE = {
    "fold": [Rule("all that it reads is constant", Pattern(test=_reads_constants), _folded)],
    "simplify": [*NUMBERS, *MOVES],
    "taps": TAPS,
}
"""All rules, by the pass that a user may choose, in the order in which they are tried."""

# Passes ----------------------------------------------------------------------------------------------------

PASSES = (*TABLE, "cse", "dead")
"""From graph to graph: rules by their names, common subexpressions, what nothing depends on."""

NAMES = (*PASSES, "views", "fuse")
"""All that a user can choose: the passes, then what is done as the graph becomes kernels."""

_extensions: list[Callable[[TypedGraph], TypedGraph]] = []


def extend(change: Callable[[TypedGraph], TypedGraph]) -> None:
    """Lets every graph go through one more pass, after the others and whichever of those are chosen."""
    _extensions.append(change)


def extended(graph: TypedGraph) -> TypedGraph:
    """The graph through the passes by which other packages have extended the compiler."""
    for change in _extensions:
        graph = change(graph)
    return graph


def select(passes: Any) -> tuple[str, ...]:
    """The names of the passes to use, in order: all for None or "all", else those of a sequence.

    Raises GraphError for what names no pass.
    """
    if passes is None or passes == "all":
        return NAMES
    chosen = [passes] if isinstance(passes, str) or not isinstance(passes, Iterable) else list(passes)
    for name in chosen:
        if name not in NAMES:
            raise GraphError(f"passes: {name!r} is not one of {', '.join(NAMES)}")
    return tuple(name for name in NAMES if name in chosen)


def run_passes(graph: TypedGraph, names: Collection[str]) -> TypedGraph:
    """The graph through those of PASSES that are named: one sweep of the rules, in which equal nodes are merged; then
    dead nodes go."""
    users, chosen = {*graph.nodes, *graph.current}, tuple([name for name in TABLE if name in names])
    if chosen or "cse" in names:
        graph = rewrite(graph, _rules(chosen), merge="cse" in names)
    graph = drop_dead(graph) if "dead" in names else graph
    return replace(graph, current={old: node for old, node in graph.current.items() if old in users})


@functools.cache
def _rules(names: tuple[str, ...]) -> Rules:
    return Rules({name: TABLE[name] for name in names})
