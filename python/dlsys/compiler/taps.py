"""Taps of a convolution's filters that meet nothing but padding, at every position, are cut off.

A 3 x 3 filter with a padding of 1 over images of one element is its middle tap; networks that halve their images until
little is left have such filters. What is cut off was multiplied with zeros. To the bit, but for an infinity or NaN in
a tap that is cut off, which a zero would turn into NaN.
"""

from __future__ import annotations

from ..graph import Node
from ..ops import conv2d_op, slice_op
from ..ops.conv import conv2d_filter_gradient_op, conv2d_input_gradient_op, geometry_of
from ..ops.slicing import slice_gradient_op
from .base import TypedGraph, rewrite


def cut_taps(graph: TypedGraph) -> TypedGraph:
    """One sweep: convolutions and their gradients with the parts of their filters that meet an image."""
    return rewrite(graph, _rule)


def _rule(node: Node, graph: TypedGraph) -> Node | None:
    """A convolution without the rows and columns of its filters that lie in the padding at every place; else None."""
    if node.op.name not in ("conv2d", "conv2d_input_gradient", "conv2d_filter_gradient"):
        return None
    first, second, *third = (graph.shapes[value] for value in node.inputs)
    if node.op.name == "conv2d":
        images, filters, out = first, second, graph.shapes[node]
    elif node.op.name == "conv2d_input_gradient":
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
        return None
    geometry = (strides, tuple(less), dilations, groups)
    if node.op.name == "conv2d":
        x, f = node.inputs
        return conv2d_op(x, slice_op(f, key), *geometry)
    if node.op.name == "conv2d_input_gradient":
        f, g, like = node.inputs
        return conv2d_input_gradient_op(slice_op(f, key), g, like, *geometry)
    x, g, like = node.inputs
    return slice_gradient_op(conv2d_filter_gradient_op(x, g, slice_op(like, key), *geometry), like, key)


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
