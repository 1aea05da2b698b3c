"""Operators that move values without changing them: other shapes, other orders of axes, parts, and joins.

Six primitives do it, whose attributes are complete: shapes without -1, orders of all axes, slices with the first index,
the count and the step along each axis. The functions below compute these from the shapes of their arguments, so
`squeeze`, `flatten` and `stack` are no operators; `x[:, 2]` is a slice and a reshape that drops an axis.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from .. import compute
from ..checks import in_dtype, integer
from ..errors import GraphError, IndexRangeError, ShapeError
from ..graph import DTYPES, OPS, Made, Node, Shape, is_node
from .elementwise import add_op, full_op
from .primitive import Primitive, primitive
from .replay import function
from .rules import (
    axes_in,
    axes_of,
    axis_in,
    broadcast_to_shape,
    real_constant,
    require_constant,
    reshaped,
    shape_attribute,
)

Numbers = tuple[int, ...]

# Shapes ----------------------------------------------------------------------------------------------------


def _same_size(x: Shape, shape: Shape) -> Shape:
    if math.prod(x) != math.prod(shape):
        raise ShapeError(f"{x} of {math.prod(x)} elements does not fit {shape}")
    return shape


reshape: Primitive = primitive(
    "reshape", te=compute.reshape, numpy=lambda x, shape: np.reshape(x, shape),
    grad=lambda g, y, x, shape: reshape(g, shape=x.shape), shape=_same_size, dtypes=DTYPES, kind="view",
    picks=True, doc="x's elements in row-major order under another `shape`.",
)  # fmt: skip

broadcast_shape: Primitive = primitive(
    "broadcast_shape", te=compute.broadcast_to, numpy=lambda x, shape: np.broadcast_to(x, shape),
    grad=lambda g, y, x, shape: g,  # what was repeated is summed, as of every elementwise operator
    shape=broadcast_to_shape, dtypes=DTYPES, picks=True, doc="x repeated to `shape` by NumPy's rule.",
)  # fmt: skip


def _ordered(x: Shape, axes: Numbers) -> Shape:
    if sorted(axes) != list(range(len(x))):
        raise ShapeError(f"axes {axes} do not order {len(x)} dimensions")
    return tuple(x[axis] for axis in axes)


def _inverse(axes: Numbers) -> Numbers:
    return tuple(axes.index(axis) for axis in range(len(axes)))


transpose: Primitive = primitive(
    "transpose", te=compute.transpose, numpy=lambda x, axes: np.transpose(x, axes),
    grad=lambda g, y, x, axes: transpose(g, axes=_inverse(axes)), shape=_ordered, dtypes=DTYPES, kind="single",
    picks=True, doc="x with its axes in another order: axis i of the result is x's axis axes[i].",
)  # fmt: skip

# Parts and joins -------------------------------------------------------------------------------------------


def _require_inside(shape: Shape, starts: Numbers, counts: Numbers, steps: Numbers) -> None:
    """Raises ShapeError for a region that does not lie in an array of `shape`."""
    axes = zip(shape, starts, counts, steps, strict=False)
    inside = len(shape) == len(starts) == len(counts) == len(steps) and all(
        count == 0 or (0 <= start < extent and 0 <= start + (count - 1) * step < extent)
        for extent, start, count, step in axes
    )
    if not inside:
        raise ShapeError(f"{counts} elements from {starts} on, {steps} apart, do not lie in {shape}")


def _sliced_shape(x: Shape, starts: Numbers, counts: Numbers, steps: Numbers) -> Shape:
    _require_inside(x, starts, counts, steps)
    return counts


def _placed_shape(x: Shape, shape: Shape, starts: Numbers, steps: Numbers, value: float) -> Shape:
    _require_inside(shape, starts, x, steps)
    return shape


def _index(starts: Numbers, counts: Numbers, steps: Numbers) -> tuple[Any, ...]:
    """A region as NumPy's index."""
    return tuple(
        slice(start, start + count * step if start + count * step >= 0 else None, step)
        for start, count, step in zip(starts, counts, steps, strict=True)
    )


def _placed(x: np.ndarray, shape: Shape, starts: Numbers, steps: Numbers, value: float) -> np.ndarray:
    result = np.full(shape, in_dtype(value, x.dtype), x.dtype)
    result[_index(starts, x.shape, steps)] = x
    return result


strided_slice: Primitive = primitive(
    "slice", te=compute.strided_slice, numpy=lambda x, starts, counts, steps: x[_index(starts, counts, steps)],
    grad=lambda g, y, x, starts, counts, steps: place(g, shape=x.shape, starts=starts, steps=steps, value=0.0),
    shape=_sliced_shape, dtypes=DTYPES, kind="single", picks=True,
    doc="Along each axis of x the `counts` elements at starts + steps * i.",
)  # fmt: skip

place: Primitive = primitive(
    "place", te=compute.strided_place, numpy=_placed,
    grad=lambda g, y, x, shape, starts, steps, value: strided_slice(g, starts=starts, counts=x.shape, steps=steps),
    shape=_placed_shape, dtypes=DTYPES, kind="single",
    doc="An array of `shape` that is `value` but at starts + steps * i along each axis, where x's elements are.",
)  # fmt: skip


def _joined_shape(*shapes: Shape, axis: int) -> Shape:
    first = shapes[0]
    for shape in shapes:
        if len(shape) != len(first) or shape[:axis] + shape[axis + 1 :] != first[:axis] + first[axis + 1 :]:
            raise ShapeError(f"{first} and {shape} do not join along axis {axis}")
    return (*first[:axis], sum(shape[axis] for shape in shapes), *first[axis + 1 :])


def _parts(x: Node, axis: int, limits: Sequence[int]) -> list[Made]:
    """x between each limit along an axis and the next."""
    rank = len(x.shape)
    parts = []
    for start, stop in itertools.pairwise(limits):
        starts, counts = [0] * rank, list(x.shape)
        counts[axis] = max(stop - start, 0)
        starts[axis] = start if counts[axis] else 0
        parts.append(strided_slice(x, starts=tuple(starts), counts=tuple(counts), steps=(1,) * rank))
    return parts


def _split_gradient(g: Node, y: Node, *inputs: Node, axis: int) -> list[Made]:
    return _parts(g, axis, [0, *itertools.accumulate(x.shape[axis] for x in inputs)])


concatenate: Primitive = primitive(
    "concatenate", te=compute.concatenate, numpy=lambda *inputs, axis: np.concatenate(inputs, axis),
    grad=_split_gradient, shape=_joined_shape, dtypes=DTYPES, kind="join",
    doc="The inputs one behind another along `axis`.",
)  # fmt: skip


def as_shape(x: Node, shape: Shape) -> Node:
    """x's elements under another shape; x itself where that is its own."""
    return x if x.shape == shape else reshape(x, shape=shape)


def sum_to(x: Node, shape: Shape) -> Node:
    """x summed over what broadcasting `shape` to x's shape repeats: x itself where that is nothing. Where the sum is
    over leading axes alone they are dropped at once, so that no reshape follows."""
    if x.shape == shape:
        return x
    lead = len(x.shape) - len(shape)
    inner = [lead + i for i, extent in enumerate(shape) if extent == 1 != x.shape[lead + i]]
    if not inner and not lead:
        return x
    total = OPS["reducesum"](x, axes=(*range(lead), *inner), keepdims=bool(inner))
    return as_shape(total, shape)


def joined_gradients(grads: Sequence[Node]) -> list[Node]:
    """The gradients of one value, of which those of several slices of it are one concat for each axis along which they
    lie side by side, with zeros where none does. So what is taken apart, by `split_op` or slice by slice, costs one
    pass backwards. A slice along several axes, and one that overlaps those before it, has a gradient of its own."""
    placed = [grad for grad in grads if grad.op is OPS["place"] and grad.attrs["value"] == 0]
    if len(placed) < 2:
        return [*grads]
    shape, dtype = placed[0].shape, placed[0].dtype
    terms = [grad for grad in grads if grad not in set(placed)]
    of_region: dict[tuple[Any, ...], list[Node]] = {}
    for grad in placed:
        of_region.setdefault((*grad.attrs.values(), grad.inputs[0].shape), []).append(grad)
    rows: dict[int, list[Node]] = {}
    for same in of_region.values():
        grad, *others = same
        if others:
            total = reduce(add_op, [one.inputs[0] for one in same])
            grad = place(total, **grad.attrs)
        cut = [axis for axis, extent in enumerate(shape) if grad.inputs[0].shape[axis] != extent]
        if len(cut) == 1 and grad.attrs["steps"][cut[0]] == 1:
            rows.setdefault(cut[0], []).append(grad)
        else:
            terms.append(grad)
    for axis, row in rows.items():
        parts, end = list[Node](), 0
        for grad in sorted(row, key=lambda grad: grad.attrs["starts"][axis]):
            start, part = grad.attrs["starts"][axis], grad.inputs[0]
            if start < end:
                terms.append(grad)
                continue
            parts += [*_zeros(shape, axis, start - end, dtype), part]
            end = start + part.shape[axis]
        terms.append(concatenate(*parts, *_zeros(shape, axis, shape[axis] - end, dtype), axis=axis))
    return terms


def _zeros(shape: Shape, axis: int, extent: int, dtype: str) -> list[Node]:
    return [full_op((*shape[:axis], extent, *shape[axis + 1 :]), 0.0, dtype)] if extent else []


# Functions of shapes ---------------------------------------------------------------------------------------


@function()
def broadcast_shape_op(node: Node, shape: Any) -> Node:
    """The node broadcast to `shape`, an int or a tuple. Raises GraphError for anything else, ShapeError."""
    wide = shape_attribute("broadcast_shape", shape, signed=True)
    return node if node.shape == wide else broadcast_shape(node, shape=wide)


@function()
def broadcastto_op(a: Node, b: Node) -> Node:
    """a broadcast to the shape of b, whose values are not read."""
    return a if a.shape == b.shape else broadcast_shape(a, shape=b.shape)


@function()
def sum_to_like_op(a: Node, b: Node) -> Node:
    """a summed back to the shape of b, from which it may be broadcast; b's values are not read."""
    broadcast_to_shape(b.shape, a.shape)
    return sum_to(a, b.shape)


@function()
def reshape_op(node: Node, shape: Any) -> Node:
    """The node under `shape`, an int or a tuple with at most one -1. Raises GraphError for anything else, ShapeError
    for another number of elements."""
    return as_shape(node, reshaped(node.shape, shape_attribute("reshape", shape, signed=True)))


@function()
def reshape_like_op(a: Node, b: Node) -> Node:
    """a under the shape of b, which has as many elements and whose values are not read."""
    return as_shape(a, b.shape)


@function()
def expand_dims_op(node: Node, axes: Any) -> Node:
    """The node with new axes of extent 1, the result's axes number `axes`, an int or a tuple."""
    if axes is None:
        raise GraphError("expand_dims: axes must be an integer or integers, not None")
    count = len(axes) if isinstance(axes, (list, tuple)) else 1
    new = axes_in("expand_dims", axes, len(node.shape) + count)
    rest = iter(node.shape)
    shape = tuple(1 if axis in new else next(rest) for axis in range(len(node.shape) + count))
    return as_shape(node, shape)


@function()
def squeeze_op(node: Node, axes: Any = None) -> Node:
    """The node without `axes`, an int or a tuple, of extent 1; for None without all such axes."""
    shape = node.shape
    dropped = {axis for axis, extent in enumerate(shape) if extent == 1}
    if axes is not None:
        dropped = set(axes_of("squeeze", node, axes))
        for axis in dropped:
            if shape[axis] != 1:
                raise ShapeError(f"squeeze: axis {axis} of {shape} has extent {shape[axis]}, not 1")
    return as_shape(node, tuple(extent for axis, extent in enumerate(shape) if axis not in dropped))


@function()
def flatten_op(node: Node, start_axis: int = 0, end_axis: int = -1) -> Node:
    """The node with the axes from `start_axis` to `end_axis`, both included, as one, as `torch.flatten`; a number has
    one axis then."""
    shape = node.shape or (1,)
    start, end = (axis_in("flatten", axis, len(shape)) for axis in (start_axis, end_axis))
    if start > end:
        raise ShapeError(f"flatten: axis {start} of {shape} lies behind axis {end}")
    return as_shape(node, (*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :]))


@function()
def transpose_op(node: Node, axes: Any = None) -> Node:
    """The node with its axes in the order `axes`, reversed for None. Raises GraphError for axes that are no
    integers, ShapeError for those that do not order the node's."""
    rank = len(node.shape)
    order = tuple(reversed(range(rank))) if axes is None else axes_in("transpose", axes, rank)
    if len(order) != rank:
        raise ShapeError(f"transpose: axes {axes} do not order {rank} dimensions")
    return node if order == tuple(range(rank)) else transpose(node, axes=order)


@function()
def swapaxes_op(node: Node, a: int, b: int) -> Node:
    """The node with the axes a and b exchanged. Raises GraphError for an axis that is no integer."""
    rank = len(node.shape)
    first, second = (axis_in("swapaxes", axis, rank) for axis in (a, b))
    order = list(range(rank))
    order[first], order[second] = second, first
    return node if first == second else transpose(node, axes=tuple(order))


def _several(op: str, nodes: Any) -> None:
    if is_node(nodes) or not isinstance(nodes, Sequence) or not nodes:
        raise GraphError(f"{op}: takes a list of one node or more, not {nodes!r}")
    for position, node in enumerate(nodes):
        if not is_node(node):
            raise GraphError(f"{op}: input {position} must be a node, not {type(node).__name__}")


@function()
def concatenate_op(nodes: Sequence[Node], axis: int = 0) -> Made:
    """The nodes joined along `axis`. Raises GraphError for another argument than a list of nodes, ShapeError for an
    axis that is not there."""
    _several("concatenate", nodes)
    return concatenate(*nodes, axis=axis_in("concatenate", axis, len(nodes[0].shape)))


@function()
def stack_op(nodes: Sequence[Node], axis: int = 0) -> Made:
    """The nodes, all of one shape, along a new axis number `axis` of the result. Raises as `concatenate_op`."""
    _several("stack", nodes)
    first = nodes[0].shape
    for node in nodes:
        if node.shape != first:
            raise ShapeError(f"stack: shapes differ: {first} and {node.shape}")
    along = axis_in("stack", axis, len(first) + 1)
    return concatenate(*[reshape(node, shape=(*first[:along], 1, *first[along:])) for node in nodes], axis=along)


def _number_of_parts(x: Node, sections: Any, axis: int = 0) -> int:
    """How many nodes `split_op` returns. Raises GraphError."""
    if isinstance(sections, (list, tuple)):
        return len(sections) + 1
    return integer("split", "the number of parts", sections, 1)


@function(results=_number_of_parts)
def split_op(x: Node, sections: Any, axis: int = 0) -> list[Made]:
    """x taken apart along `axis`, as by `np.split`: into a number of equal parts, or at a list of indices.

    Raises GraphError for sections that are neither, ShapeError where equal parts do not come out even.
    """
    along = axis_in("split", axis, len(x.shape))
    extent, count = x.shape[along], _number_of_parts(x, sections)
    if isinstance(sections, (list, tuple)):
        ends = [(None, *sections, None)[i : i + 2] for i in range(count)]
        limits = [slice(*map(_limit, pair)).indices(extent)[:2] for pair in ends]
        return [_parts(x, along, pair)[0] for pair in limits]
    if extent % count:
        raise ShapeError(f"split: axis {along} of {x.shape} does not split into {count} equal parts")
    return _parts(x, along, [part * (extent // count) for part in range(count + 1)])


def _limit(limit: Any) -> int | None:
    return None if limit is None else integer("split", "an index", limit)


@function()
def slice_op(x: Node, key: Any) -> Node:
    """x[key] by NumPy's basic indexing: an integer, a slice, None (a new axis), `...`, or a tuple of them.

    Raises GraphError for a key of something else, IndexRangeError for an integer that is out of range, ShapeError for
    more items than axes.
    """
    items = [_key_item(item) for item in (key if isinstance(key, tuple) else (key,))]
    if items.count(Ellipsis) > 1:
        raise GraphError("slice: an index has one ellipsis at most")
    rank, counted = len(x.shape), sum(item is not None and item is not Ellipsis for item in items)
    if counted > rank:
        raise ShapeError(f"slice: {counted} indices for an input of {rank} dimensions: {x.shape}")
    at = items.index(Ellipsis) if Ellipsis in items else len(items)
    items[at : at + 1] = [slice(None)] * (rank - counted)
    reads: list[range] = []
    shape: list[int] = []
    for item in items:
        if item is None:
            shape.append(1)
        elif isinstance(item, slice):
            reads.append(range(*item.indices(x.shape[len(reads)])))
            shape.append(len(reads[-1]))
        else:
            axis, extent = len(reads), x.shape[len(reads)]
            if not -extent <= item < extent:
                of = f"axis {axis} of {x.name} of shape {x.shape}"
                raise IndexRangeError(f"slice: index {item} is out of range for {of}")
            reads.append(range(item % extent, item % extent + 1))
    return as_shape(sliced(x, reads), tuple(shape))


def sliced(x: Node, reads: Sequence[range]) -> Node:
    """The elements of x with these indices along each axis; x itself where that is all."""
    if reads == [range(extent) for extent in x.shape]:
        return x
    starts = tuple(read.start if read else 0 for read in reads)
    steps = tuple(read.step if len(read) > 1 else 1 for read in reads)
    return strided_slice(x, starts=starts, counts=tuple(map(len, reads)), steps=steps)


def _key_item(item: Any) -> Any:
    """An item of an index: an integer, a slice of integers, None or `...`. Raises GraphError for anything else."""
    if item is None or item is Ellipsis:
        return item
    try:
        if isinstance(item, slice):
            limits = (None if n is None else operator.index(n) for n in (item.start, item.stop, item.step))
            part = slice(*limits)
            if part.step == 0:
                raise GraphError("slice: a step of 0")
            return part
        if not isinstance(item, (bool, np.bool_)):
            return operator.index(item)
    except TypeError:
        pass
    what = "a node or array" if (is_node(item) or isinstance(item, (np.ndarray, list))) else repr(item)
    raise GraphError(
        f"slice: an index is of integers, slices, None and ..., not {what}; "
        "integers in a node or array index the first axis alone, x[indices], or take_op any axis"
    )


@function()
def flip_op(x: Node, axes: Any = None) -> Node:
    """x in the reverse order along `axes`: None (all), an int or a tuple. Raises GraphError for axes that are no
    integers."""
    along = axes_of("flip", x, axes)
    return sliced(x, [range(n)[:: -1 if axis in along else 1] for axis, n in enumerate(x.shape)])


@function()
def pad_op(x: Node, padding: Any, value: float = 0.0) -> Node:
    """x with `value` around it: padding is ((before, after), ...), a pair for every axis, as `np.pad` takes it.

    Raises GraphError for padding that is no such pairs, or negative; ShapeError for another number of them, DTypeError
    for a value that x's dtype does not hold.
    """
    try:
        pairs = tuple((operator.index(before), operator.index(after)) for before, after in padding)
    except (TypeError, ValueError):
        raise GraphError(f"pad: padding must be a pair (before, after) an axis, not {padding!r}") from None
    if any(extent < 0 for pair in pairs for extent in pair):
        raise GraphError(f"pad: padding must not be negative: {padding!r}")
    if len(pairs) != len(x.shape):
        raise ShapeError(f"pad: {len(pairs)} pairs of padding for {len(x.shape)} dimensions: {x.shape}")
    number = real_constant("pad", value)
    require_constant("pad", number, x.dtype, x.name)
    if not any(map(any, pairs)):
        return x
    shape = tuple(before + extent + after for extent, (before, after) in zip(x.shape, pairs, strict=True))
    return place(x, shape=shape, starts=tuple(before for before, _ in pairs), steps=(1,) * len(shape), value=number)
