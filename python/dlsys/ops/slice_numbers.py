"""The integers of a slice's key as inputs: `x[i]` and `x[i:j]` for an i that changes are compiled once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..graph import OPS, Node
from .indexing import take_op
from .types import shape_of

_WHOLE = (None, None, None)


def split(node: Node) -> tuple[Any, Sequence[Any]]:
    """The key of a slice, or of the gradient of one, without its integers and slices, and these."""
    items = node.attrs["key"]
    rest = tuple(len(i) if _is_range(i) else "i" if isinstance(i, int) else (i,) for i in items)
    return rest, [item for item in items if isinstance(item, int) or _is_range(item)]


def _is_range(item: Any) -> bool:
    """Whether the item of a key is a slice of less than a whole axis."""
    return isinstance(item, tuple) and len(item) == 3 and item != _WHOLE


def _places(node: Node) -> list[tuple[int, int]]:
    """For each of the numbers the item of the key without `...` that it is, and the axis of x."""
    found = []
    axis = 0
    for position, item in enumerate(_spelled(node)):
        if isinstance(item, int) or _is_range(item):
            found.append((position, axis))
        axis += item is not None
    return found


def _spelled(node: Node) -> list[Any]:
    """The key with an item for every axis of x."""
    key = list(node.attrs["key"])
    rank = len(shape_of(node.inputs[-1]))
    rest = [_WHOLE] * (rank - sum(item is not None and item is not Ellipsis for item in key))
    at = next((i for i, item in enumerate(key) if item is Ellipsis), len(key))
    return [*key[:at], *rest, *key[at + 1 :]]


def indices(node: Node, which: int) -> np.ndarray:
    """The indices that one of the numbers reads along its axis."""
    position, axis = _places(node)[which]
    item, extent = _spelled(node)[position], shape_of(node.inputs[-1])[axis]
    if isinstance(item, int):
        return np.asarray(item % extent)
    return np.arange(*slice(*item).indices(extent))


def lifted(node: Node, inputs: list[Node], numbers: Mapping[int, Node]) -> Node:
    """A slice, or the gradient of one, in which nodes of indices stand for some of its numbers."""
    key = _spelled(node)
    places = _places(node)
    chosen = [places[which][0] for which in sorted(numbers)]
    # First the items that stay, then along each other axis what it takes, from the last one on: so axes stay in place.
    rest = [_WHOLE if i in chosen else item for i, item in enumerate(key)]
    steps: list[tuple[Node, int]] = []
    for position, which in zip(reversed(chosen), sorted(numbers, reverse=True), strict=True):
        steps.append((numbers[which], sum(not isinstance(item, int) for item in rest[:position])))
    whole = inputs[-1]  # of a gradient what was sliced, for its shape
    taken = [whole if all(item == _WHOLE for item in rest) else OPS["slice"].make([whole], {"key": tuple(rest)})]
    for index, axis in steps:
        taken.append(take_op(taken[-1], index, axis))
    if node.op.name == "slice":
        return taken[-1]
    grad = inputs[0]
    for (index, axis), like in zip(reversed(steps), reversed(taken[:-1]), strict=True):
        grad = OPS["take_gradient"].make([grad, index, like], {"axis": axis})
    return grad if taken[0] is whole else OPS["slice_gradient"].make([grad, whole], {"key": tuple(rest)})
