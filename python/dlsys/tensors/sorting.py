"""Tensors in order, by PyTorch's names.

What sorts needs the values and computes them at once; gradients go through what is chosen. Of elements that
are equal the first comes first, and NaN counts as the largest.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import ops
from ..errors import ShapeError
from ..graph import Node
from ..ops import shape_of
from .functions import dims_of, node_of
from .leaves import leaf
from .reductions import Extremum
from .values import array_of


def _order(x: Node, dim: int, descending: bool) -> np.ndarray:
    """Where the elements in order are, along an axis; equal ones as they stand, NaN counts as the largest."""
    values = array_of(x).numpy()
    if not descending:
        return np.argsort(values, axis=dim, kind="stable")
    back = np.flip(values, dim)
    return values.shape[dim] - 1 - np.flip(np.argsort(back, axis=dim, kind="stable"), dim)


def argsort(x: Any, dim: int = -1, descending: bool = False, stable: bool = True) -> Node:
    """int64: where the elements in order are, along an axis. Computes x; raises GraphError for a graph of variables."""
    return leaf(_order(node_of(x), dims_of(node_of(x), dim)[0], descending))


def sort(x: Any, dim: int = -1, descending: bool = False, stable: bool = True) -> Extremum:
    """The elements in order along an axis, equal ones as they stand, and where they were; see `argsort`."""
    node = node_of(x)
    (axis,) = dims_of(node, dim)
    places = leaf(_order(node, axis, descending))
    return Extremum(ops.take_along_axis_op(node, places, axis), places)


def topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Extremum:
    """The k largest elements along an axis, or smallest, in order, and where they were; see `argsort`.

    Raises ShapeError for more than there are."""
    node = node_of(x)
    (axis,) = dims_of(node, dim)
    if not 0 <= k <= shape_of(node)[axis]:
        raise ShapeError(f"topk: there are no {k} elements along axis {dim} of {shape_of(node)}")
    places = leaf(np.take(_order(node, axis, largest), np.arange(k), axis))
    return Extremum(ops.take_along_axis_op(node, places, axis), places)
