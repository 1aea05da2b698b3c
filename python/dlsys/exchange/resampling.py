"""Images at places between their elements: formulas that ONNX and torch.export have."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import GraphError
from ..tensors import Tensor, shape_of

CUBIC = -0.75
"""The parameter of PyTorch's cubic kernel, and the default of ONNX's."""


def kernel(mode: str, t: Any, a: float) -> Any:
    """The weight of an element at distance |t|: of "linear" a triangle, of "cubic" Keys' function with parameter a
    (1981), 1 at 0 and 0 from 2 on. Of arrays, or of nodes."""
    where: Any = ad.where_op if isinstance(t, Node) else np.where
    t = ad.abs_op(t) if isinstance(t, Node) else np.abs(t)
    if mode == "linear":
        return where(t < 1, 1.0 - t, 0.0)
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return where(t <= 1, near, where(t < 2, far, 0.0))


def _reflected(at: Tensor, low: float, high: float) -> Tensor:
    """Places beyond `low` and `high` mirrored there, as often as they must be."""
    span = high - low
    if span == 0:
        return at * 0.0 + low
    turns = ad.abs_op(at - low) / span
    whole = ad.floor_op(turns)
    rest = (turns - whole) * span
    odd = whole - 2.0 * ad.floor_op(whole / 2.0)
    return low + ad.where_op(odd > 0.5, span - rest, rest)


def grid_sample(x: Node, grid: Node, mode: str, padding: str, align_corners: bool) -> Node:
    """Images (N, C, H, W) at the places (x, y) of a grid (N, H', W', 2), from -1 at the first edge to 1 at the last:
    (N, C, H', W').

    Args:
        mode: "nearest", "linear" or "cubic".
        padding: what is beyond the edges: "zeros", "border", the last element, or "reflection".
        align_corners: whether -1 and 1 are the centres of the outermost elements.

    Raises GraphError for other images or modes.
    """
    if len(shape_of(x)) != 4 or mode not in ("nearest", "linear", "cubic"):
        raise GraphError(f"images of shape {shape_of(x)} in mode {mode} are not supported")
    (n, c, *extents), made = shape_of(x), shape_of(grid)[1:3]
    taps: list[list[tuple[Node, Node]]] = []  # along each axis the elements that are read, and their weights
    for axis, extent in enumerate(extents):
        low, high = (0.0, extent - 1.0) if align_corners else (-0.5, extent - 0.5)
        at = (grid[..., 1 - axis] + 1.0) * ((extent - 1) / 2 if align_corners else extent / 2)
        at = at if align_corners else at - 0.5
        at = ad.round_op(at) if mode == "nearest" else at
        if padding == "border" and mode != "cubic":  # whose elements are chosen one by one, as PyTorch does
            at = ad.clip_op(at, 0.0, extent - 1.0)
        elif padding == "reflection":
            at = _reflected(at, low, high)
        base = at if mode == "nearest" else ad.floor_op(at)
        found: list[tuple[Node, Node]] = []
        for step in {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}[mode]:
            place = base + float(step)
            weight = ad.oneslike_op(at) if mode == "nearest" else kernel(mode, place - at, CUBIC)
            if padding == "zeros":
                weight = ad.where_op((place >= 0.0) & (place <= extent - 1.0), weight, 0.0)
            elif padding == "reflection":
                place = ad.round_op(_reflected(place, low, high))
            found.append((ad.cast_op(ad.clip_op(place, 0.0, extent - 1.0), "int64"), weight))
        taps.append(found)
    flat, total = ad.reshape_op(x, (n, c, math.prod(extents))), None
    for (row, of_row), (column, of_column) in itertools.product(*taps):
        index = ad.reshape_op(row * extents[1] + column, (n, 1, math.prod(made)))
        read = ad.take_along_axis_op(flat, ad.broadcast_shape_op(index, (n, c, math.prod(made))), 2)
        weighed = ad.reshape_op(read, (n, c, *made)) * ad.expand_dims_op(of_row * of_column, 1)
        total = weighed if total is None else total + weighed
    assert total is not None
    return total
