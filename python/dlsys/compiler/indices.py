"""Indices that a run is fed: which feeds, of what range, so that one out of range is an error and not clamped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..checks import in_dtype
from ..graph import IndexRange, Node
from ..ops.indexing import require_in_range
from .base import TypedGraph


@dataclass(frozen=True)
class FedIndices:
    """Indices that a node takes from a feed, by way of the nodes `between`: slices, casts, `x + 1`."""

    feed: Node
    between: tuple[Node, ...]
    node: Node
    of: IndexRange

    def require_in_range(self, values: np.ndarray) -> None:
        """Raises IndexRangeError for a feed's values."""
        for node in self.between:
            inputs = (in_dtype(x.attrs["value"], values.dtype) if x.op.immediate else values for x in node.inputs)
            values = node.op.numpy(node, list(inputs))
        require_in_range(self.node, self.of, values)


def fed_indices(graph: TypedGraph, feeds: Mapping[Node, Node]) -> list[FedIndices]:
    """The indices among the feeds, which are named by what stands for them in the graph; those that several nodes take
    of one range, as an operator and its gradient do, once."""
    found: dict[tuple[Node, IndexRange], FedIndices] = {}
    for node in graph.nodes:
        if node.op.index_range is None:
            continue
        of = node.op.index_range(node, [value.shape for value in node.inputs])
        between: list[Node] = []
        value = indices = node.inputs[of.position]
        while value not in feeds and (value.op.kind == "elementwise" or value.op.picks):
            read = [x for x in value.inputs if not x.op.immediate]
            if len(read) != 1:
                break
            if between or value.op.kind != "view":  # the last one's shape does not matter
                between.insert(0, value)
            (value,) = read
        if value in feeds:
            found.setdefault((indices, of._replace(told="")), FedIndices(feeds[value], tuple(between), node, of))
    return list(found.values())
