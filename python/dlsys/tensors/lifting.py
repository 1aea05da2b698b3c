"""Numbers of attributes that a compiled trace takes as inputs: where slices start, and what constants hold.

`x[i]` and `x[i : i + 32]` for an i that changes are compiled once: a training loop over batches needs it. A step of a
linear layer takes 0.8 ms so, else 12, planned anew at each i. How many elements a slice has stays part of the trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..graph import OPS, Node
from ..ops.indexing import index_add, take
from ..ops.moves import broadcast_shape, place, strided_slice

SLICE, PLACE, FULL = OPS["slice"], OPS["place"], OPS["full"]


def numbers_of(node: Node) -> tuple[Any, Sequence[Any]] | None:
    """The node's attributes without the numbers that may become inputs, and these; None where it has none."""
    attrs = node.attrs
    if node.op is SLICE:
        return (attrs["counts"], attrs["steps"]), attrs["starts"]
    if node.op is PLACE and str(attrs["value"]) == "0.0":  # not -0.0
        return (attrs["shape"], attrs["steps"]), attrs["starts"]
    if node.op is FULL:
        return (attrs["shape"], attrs["dtype"]), (attrs["value"],)
    return None


def number_of(node: Node, which: int) -> np.ndarray:
    """One of these numbers as the array to feed: the indices along an axis, or a constant."""
    attrs = node.attrs
    if node.op is FULL:
        return np.asarray(attrs["value"], attrs["dtype"])
    count = (attrs["counts"] if node.op is SLICE else node.inputs[0].shape)[which]
    return attrs["starts"][which] + attrs["steps"][which] * np.arange(count)


def lifted(node: Node, inputs: Sequence[Node], numbers: Mapping[int, Node]) -> Node:
    """The same operator applied to `inputs`, with nodes in place of some of its numbers, by their positions: along
    these axes a slice takes what has these indices, and its gradient adds there."""
    attrs = node.attrs
    if node.op is FULL:
        return broadcast_shape(numbers[0], shape=attrs["shape"])
    (x,), axes = inputs, sorted(numbers)
    whole = x.shape if node.op is SLICE else attrs["shape"]
    counts = attrs["counts"] if node.op is SLICE else x.shape
    part = tuple(whole[axis] if axis in numbers else count for axis, count in enumerate(counts))
    starts, steps = (
        tuple(of_all if axis in numbers else value for axis, value in enumerate(attrs[name]))
        for name, of_all in (("starts", 0), ("steps", 1))
    )
    if node.op is SLICE:
        x = x if part == whole else strided_slice(x, starts=starts, counts=part, steps=steps)
        for axis in axes:
            x = take(x, numbers[axis], axis=axis, from_start=False)
        return x
    for axis in axes:
        shape = (*x.shape[:axis], whole[axis], *x.shape[axis + 1 :])
        x = index_add(x, numbers[axis], shape=shape, axis=axis, from_start=False)
    return x if part == whole else place(x, shape=whole, starts=starts, steps=steps, value=0.0)
