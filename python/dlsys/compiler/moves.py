"""Rules for values that are moved or repeated: reshape, transpose, broadcast, sums of what is repeated, filters' taps.

To the bit, except that the sum of n equal values becomes n times the value to rounding. Taps of a convolution's filters
that meet nothing but padding are cut off: a 3 x 3 filter with a padding of 1 over images of one element is its middle
tap; networks that halve their images until little is left have such filters. What is cut off was multiplied with zeros,
so an infinity or NaN there no longer makes a NaN. A strided convolution of one tap reads a part of its images, and so
becomes the convolution of a slice.
"""

from __future__ import annotations

import math
from typing import Any, cast

from ..checks import in_dtype
from ..graph import OPS, Node, Shape
from ..ops import (
    broadcast_rule,
    broadcast_shape_op,
    conv2d_op,
    full_op,
    matmul_op,
    mul_byconst_op,
    reducesum_op,
    reshape_op,
    slice_op,
    transpose_op,
)
from ..ops.conv import Geometry, conv2d_filter_gradient_op, conv2d_input_gradient_op, geometry_of
from ..ops.shape import Transpose
from ..ops.slicing import slice_gradient_op
from ..scopes import precision
from .base import Change, Rule, TypedGraph, rewrite

RESHAPE, BROADCAST, MATMUL = OPS["reshape"], OPS["broadcast_shape"], OPS["matmul"]
TRANSPOSE = cast(Transpose, OPS["transpose"])
CONV, IMAGES, FILTERS = OPS["conv2d"], OPS["conv2d_input_gradient"], OPS["conv2d_filter_gradient"]


def _only_leads(shape: Shape, wide: Shape) -> bool:
    """Whether `wide` is `shape` behind extents of 1."""
    lead = len(wide) - len(shape)
    return lead >= 0 and wide == (1,) * lead + shape


def _bare(node: Node, graph: TypedGraph) -> Node:
    """The node without a reshape that only puts extents of 1 in front, as broadcasting does by itself."""
    if node.op is RESHAPE and _only_leads(graph.shapes[node.inputs[0]], graph.shapes[node]):
        return node.inputs[0]
    return node


def _reshape(node: Node, graph: TypedGraph) -> Change | None:
    (x,), shape = node.inputs, graph.shapes[node]
    if graph.shapes[x] == shape:
        return x, "the shape is the same"
    if x.op is RESHAPE:
        return reshape_op(x.inputs[0], shape), "two reshapes are one"
    return None if node.attrs["shape"] == shape else (reshape_op(x, shape), "-1 written out")


def _order(node: Node, graph: TypedGraph) -> tuple[int, ...]:
    """For each axis of a transpose the input's axis that it is."""
    return TRANSPOSE.order(node, len(graph.shapes[node]))


def _transpose(node: Node, graph: TypedGraph) -> Change | None:
    """Two transposes are one; one that moves only extents of 1 is a reshape; one of a product is part of the
    product."""
    (x,) = node.inputs
    shape = graph.shapes[x]
    order = _order(node, graph)
    if x.op is TRANSPOSE:
        inner = _order(x, graph)
        return transpose_op(x.inputs[0], tuple(inner[axis] for axis in order)), "two transposes are one"
    wide = [axis for axis in order if shape[axis] != 1]
    if wide == sorted(wide):
        return reshape_op(x, graph.shapes[node]), "a transpose that moves extents of 1 is a reshape"
    if (
        x.op is MATMUL and graph.uses[x] == 1 and _swaps_last_two(order)
    ):  # else the product would be computed twice
        (a, b), trans_a, trans_b = x.inputs, x.matmul_attr_trans_A, x.matmul_attr_trans_B
        if min(len(graph.shapes[a]), len(graph.shapes[b])) > 1:
            with precision(x.attrs.get("precision")):
                return matmul_op(b, a, not trans_b, not trans_a), "(a b)^T is b^T a^T"
    return None if node.attrs["axes"] == order else (transpose_op(x, order), "axes written out")


def _swaps_last_two(order: tuple[int, ...]) -> bool:
    rank = len(order)
    return rank > 1 and order == (*range(rank - 2), rank - 1, rank - 2)


def _matmul(node: Node, graph: TypedGraph) -> Change | None:
    """The product of matrices as they lie, its flags swapping the last two axes in a transpose's place."""
    (a, b), trans_a, trans_b = node.inputs, node.matmul_attr_trans_A, node.matmul_attr_trans_B
    for operand in (a, b):
        if operand.op is TRANSPOSE and _swaps_last_two(_order(operand, graph)):
            if operand is a:
                return matmul_op(a.inputs[0], b, not trans_a, trans_b), "a product reads transposed matrices"
            return matmul_op(a, b.inputs[0], trans_a, not trans_b), "a product reads transposed matrices"
    return None


def _broadcast_shape(node: Node, graph: TypedGraph) -> Change | None:
    (x,), shape = node.inputs, graph.shapes[node]
    if _only_leads(graph.shapes[x], shape):
        return reshape_op(x, shape), "a broadcast to extents of 1 is a reshape"
    if x.op is BROADCAST:
        return broadcast_shape_op(x.inputs[0], shape), "two broadcasts are one"
    bare = _bare(x, graph)
    return None if bare is x else (broadcast_shape_op(bare, shape), "a broadcast adds the extents of 1 in front")


def sink_broadcast(node: Node, graph: TypedGraph) -> Change | None:
    """An elementwise operator of what is repeated: it broadcasts by itself, or is computed once and then repeated."""
    broadcasts = [value.op is BROADCAST for value in node.inputs]
    if node.op is BROADCAST or node.op.kind != "elementwise" or not any(broadcasts):
        return None
    if len(node.inputs) > 1 and not node.op.broadcasts:
        return None
    operands = [value.inputs[0] if b else value for value, b in zip(node.inputs, broadcasts, strict=True)]
    reached = _together(operands, graph)
    for i, operand in enumerate(operands):
        trial = [*operands[:i], _bare(operand, graph), *operands[i + 1 :]]
        if _together(trial, graph) == reached:
            operands = trial
    result, shape = Node(node.op, operands, node.attrs), graph.shapes[node]
    if reached == shape:
        return result, "the operator broadcasts by itself"
    return broadcast_shape_op(result, shape), "computed once, then repeated"


def _together(operands: list[Node], graph: TypedGraph) -> Shape:
    shape = graph.shapes[operands[0]]
    for operand in operands[1:]:
        shape = broadcast_rule(shape, graph.shapes[operand])
    return shape


def _reducesum(node: Node, graph: TypedGraph) -> Change | None:
    """A sum over extents of 1 is a reshape, a sum of a broadcast a product with the number of its terms."""
    (x,), keepdims, shape = node.inputs, node.attrs["keepdims"], graph.shapes[node]
    wide = graph.shapes[x]
    rank, axes = len(wide), node.attrs["axes"]
    resolved = tuple(range(rank)) if axes is None else tuple(sorted(axis % rank for axis in axes))
    if all(wide[axis] == 1 for axis in resolved):
        return reshape_op(x, shape), "a sum over extents of 1 is a reshape"
    if x.op is BROADCAST:
        return _sum_of_broadcast(node, resolved, graph), "a sum of equal values is a product"
    return None if axes == resolved else (reducesum_op(x, resolved, keepdims), "axes written out")


def _sum_of_broadcast(node: Node, axes: tuple[int, ...], graph: TypedGraph) -> Node:
    """The sum over what was there before the broadcast, times how often that was repeated, broadcast along the rest."""
    x, shape = node.inputs[0], graph.shapes[node]
    value, wide = x.inputs[0], graph.shapes[x]
    lead = len(wide) - len(graph.shapes[value])
    times = math.prod(wide[axis] for axis in axes if axis < lead or graph.shapes[value][axis - lead] == 1)
    if times == 0:  # nothing is summed; zero times infinity would be NaN
        return full_op(shape, 0.0, graph.dtypes[node])
    own = tuple(axis - lead for axis in axes if axis >= lead)
    times = in_dtype(times, graph.dtypes[node]).item()  # of integers modulo their range, as the sum is
    return broadcast_shape_op(mul_byconst_op(reducesum_op(value, own, node.attrs["keepdims"]), times), shape)


RULES: dict[str, list[Rule]] = {
    "reshape": [_reshape],
    "transpose": [_transpose],
    "matmul": [_matmul],
    "broadcast_shape": [_broadcast_shape],
    "reducesum": [_reducesum],
}
"""By the operator's name, tried in turn."""


def cut_taps(graph: TypedGraph) -> TypedGraph:
    """One sweep: convolutions and their gradients with the parts of their filters that meet an image."""
    return rewrite(graph, _rule, name="taps")


def _rule(node: Node, graph: TypedGraph) -> Change | None:
    """A convolution without the rows and columns of its filters that lie in the padding at every place; else None."""
    if node.op not in (CONV, IMAGES, FILTERS):
        return None
    first, second, *third = (graph.shapes[value] for value in node.inputs)
    if node.op is CONV:
        images, filters, out = first, second, graph.shapes[node]
    elif node.op is IMAGES:
        images, filters, out = third[0], first, second
    else:
        images, filters, out = first, third[0], second
    strides, paddings, dilations, groups = geometry_of(node)
    if 0 in (*images, *filters):
        return None
    cuts, less = [], []
    for axis in (0, 1):
        found = _used(
            images[2 + axis], filters[2 + axis], out[2 + axis], strides[axis], paddings[axis], dilations[axis]
        )
        if found is None:
            return None
        cuts.append(slice(*found))
        less.append(paddings[axis] - dilations[axis] * found[0])
    key = (slice(None), slice(None), *cuts)
    if [(cut.start, cut.stop) for cut in cuts] == [(0, extent) for extent in filters[2:]]:
        return _of_one_tap(node, out) if filters[2:] == (1, 1) else None
    smaller = _of_parts(node, None, key, (strides, (less[0], less[1]), dilations, groups))
    return smaller, "the other taps meet nothing but padding"


def _of_one_tap(node: Node, out: Shape) -> Change | None:
    """A strided convolution of one tap, which reads a part of its images, as the same of that part without a stride."""
    strides, paddings, dilations, groups = geometry_of(node)
    if strides == (1, 1) or paddings != (0, 0):
        return None
    read = [slice(0, stride * extent, stride) for stride, extent in zip(strides, out[2:], strict=True)]
    found = _of_parts(node, (slice(None), slice(None), *read), None, ((1, 1), paddings, dilations, groups))
    return found, "a stride of one tap reads a part of the images"


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
    return spread(
        conv2d_filter_gradient_op(part(first, images), second, part(like, filters), *geometry), like, filters
    )


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
