"""Views: values that are their input's memory, or a part of it, and that no kernel computes."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import numpy as np

from .. import ops  # noqa: F401 - defines the operators
from ..graph import OPS, Node, Shape
from .base import TypedGraph, nbytes_of, size_of

LEAST_PART = 4  # views of less than a quarter of an array, together, are copies: else they keep all of it alive


@dataclass(frozen=True)
class View:
    """Elements of an array that lies row by row in memory: that at an index is number offset + index * strides there.

    A slice makes one, and a transpose of one another. An axis of one element has the stride 0, so that equal views are
    equal.
    """

    shape: Shape
    strides: tuple[int, ...]
    offset: int = 0

    @classmethod
    def of(cls, shape: Shape) -> View:
        """All of an array."""
        return cls(shape, tuple(row if extent != 1 else 0 for extent, row in zip(shape, rows_of(shape), strict=True)))

    @property
    def run(self) -> int | None:
        """The number of the first element, where all lie one behind another; else None."""
        return self.offset if 0 not in self.shape and self.strides == View.of(self.shape).strides else None

    def sliced(self, starts: tuple[int, ...], counts: Shape, steps: tuple[int, ...]) -> View:
        """Of each axis `count` elements, at start + step * i."""
        offset = self.offset + sum(start * stride for start, stride in zip(starts, self.strides, strict=True))
        strides = (
            step * stride if count != 1 else 0
            for count, step, stride in zip(counts, steps, self.strides, strict=True)
        )  # fmt: skip
        return View(counts, tuple(strides), offset)

    def permuted(self, order: tuple[int, ...]) -> View:
        """With the axes in another order."""
        return View(tuple(self.shape[a] for a in order), tuple(self.strides[a] for a in order), self.offset)


SLICE, TRANSPOSE = OPS["slice"], OPS["transpose"]


def view_of(node: Node, x: View) -> View:
    """What a slice or a transpose is of the array of which its input is the view x."""
    return x.sliced(**node.attrs) if node.op is SLICE else x.permuted(node.attrs["axes"])


def rows_of(shape: Shape) -> list[int]:
    """For each axis by how many elements its indices lie apart in memory, row by row."""
    found, row = [], 1
    for extent in reversed(shape):
        found.append(row)
        row *= extent
    return found[::-1]


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
            first = view_of(node, View.of(x.shape)).run
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
