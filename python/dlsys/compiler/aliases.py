"""Views: values that are their input's memory, or a part of it, and that no kernel computes."""

from __future__ import annotations

from collections.abc import Container

import numpy as np

from .. import ops  # noqa: F401 - defines the operators
from ..graph import OPS, Node
from .base import TypedGraph, nbytes_of, size_of

LEAST_PART = 4  # views of less than a quarter of an array, together, are copies: else they keep all of it alive


SLICE, TRANSPOSE = OPS["slice"], OPS["transpose"]


def first_of(node: Node) -> int | None:
    """The number in its input of a slice's first element, where all its elements lie one behind another; else None."""
    first, behind_it, whole = 0, 1, 1  # how many elements lie from one to the next along an axis: of the slice, of x
    axes = zip(node.inputs[0].shape, *(node.attrs[key] for key in ("starts", "counts", "steps")), strict=True)
    for extent, start, count, step in reversed(list(axes)):
        if count == 0 or (count > 1 and step * whole != behind_it):
            return None
        first, behind_it, whole = first + start * whole, behind_it * count, whole * extent
    return first


def find_views(graph: TypedGraph, boundary: int) -> dict[Node, int]:
    """The nodes that are their input's memory, each with the byte there at which it begins, a multiple of `boundary`.

    Reshapes and the like are views, and so are slices whose elements lie one behind another, unless they are a small
    part of their array."""
    views: dict[Node, int] = {}
    slices: dict[Node, int] = {}
    seen: dict[Node, int] = {}  # bytes of slices, by the array that they would keep alive
    for node in graph.nodes:
        if node.op.kind == "view":
            views[node] = 0
        elif node.op is SLICE:
            (x,) = node.inputs
            first = first_of(node)
            start = (first or 0) * np.dtype(node.dtype).itemsize
            if first is not None and start % boundary == 0:
                slices[node] = start
                source = behind(x, views)
                seen[source] = seen.get(source, 0) + nbytes_of(node)
    for node, start in slices.items():
        source = behind(node.inputs[0], views)
        if source in graph.fed or seen.get(source, 0) * LEAST_PART >= nbytes_of(source):
            views[node] = start
    return views


def behind(node: Node, views: Container[Node]) -> Node:
    """The node, of a kernel or given, in whose memory a view is; itself for others."""
    while node in views:
        node = node.inputs[0]
    return node


def whole_of(node: Node, views: Container[Node]) -> Node:
    """The node of which this one is all the memory."""
    while node in views and size_of(node.inputs[0]) == size_of(node):
        node = node.inputs[0]
    return node
