"""Diagonals and triangles of matrices, by PyTorch's names."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import ShapeError
from ..ops import known_shape, shape_of
from .creation import leaf
from .functions import dims_of, node_of
from .reductions import sum
from .shapes import atleast_2d, cat


def _triangle(op: str, x: Any, diagonal: int, lower: bool) -> Node:
    node = node_of(x)
    shape = known_shape(node)
    if shape is None or len(shape) < 2:
        raise ShapeError(f"{op}: takes matrices, of a shape that is known, not {shape} [{node.name}]")
    kept = np.tri(shape[-2], shape[-1], k=diagonal if lower else diagonal - 1, dtype=bool)
    return ad.where_op(leaf(kept if lower else ~kept), node, ad.zeroslike_op(node))


def tril(x: Any, diagonal: int = 0) -> Node:
    """Matrices without what lies above the diagonal number `diagonal`. Raises ShapeError for what are no matrices."""
    return _triangle("tril", x, diagonal, True)


def triu(x: Any, diagonal: int = 0) -> Node:
    """Matrices without what lies below the diagonal number `diagonal`. Raises ShapeError for what are no matrices."""
    return _triangle("triu", x, diagonal, False)


def tril_indices(row: int, col: int, offset: int = 0) -> Node:
    """int64 (2, n): rows and columns of what `tril` keeps."""
    return leaf(np.stack(np.tril_indices(row, offset, col)).astype(np.int64))


def triu_indices(row: int, col: int, offset: int = 0) -> Node:
    """int64 (2, n): rows and columns of what `triu` keeps."""
    return leaf(np.stack(np.triu_indices(row, offset, col)).astype(np.int64))


def diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Node:
    """The diagonals of the matrices in two axes, along a new last axis in their place; above the main one for an offset
    over 0. Raises ShapeError for two axes that are one."""
    node = node_of(x)
    (first,), (second,) = dims_of(node, dim1), dims_of(node, dim2)
    if first == second:
        raise ShapeError(f"diagonal: axes {dim1} and {dim2} are one of {shape_of(node)}")
    shape = shape_of(node)
    rest = [axis for axis in range(len(shape)) if axis not in (first, second)]
    rows, columns = shape[first], shape[second]
    count = max(min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns), 0)
    start = offset if offset >= 0 else -offset * columns
    moved = ad.transpose_op(node, (*rest, first, second))
    flat = ad.reshape_op(moved, (*(shape[axis] for axis in rest), rows * columns))
    stop = start + (count - 1) * (columns + 1) + 1 if count else start
    return ad.slice_op(flat, (..., slice(start, stop, columns + 1) if count else slice(0, 0)))


def diag_embed(x: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Node:
    """Matrices in two axes with the last axis of x on a diagonal, 0 elsewhere. Raises ShapeError for two axes that are
    one."""
    node = node_of(x)
    shape = shape_of(node)
    if not shape:
        raise ShapeError(f"diag_embed: a tensor of shape () has no diagonal [{node.name}]")
    size = shape[-1] + abs(offset)
    padding = ((0, 0),) * (len(shape) - 1) + ((max(-offset, 0), max(offset, 0)),)  # an element for every row
    rows = ad.expand_dims_op(ad.pad_op(node, padding) if offset else node, -1)
    made = ad.where_op(leaf(np.eye(size, k=offset, dtype=bool)), rows, ad.zeroslike_op(rows))
    rank = len(shape) + 1
    first, second = dim1 % rank, dim2 % rank
    if first == second:
        raise ShapeError(f"diag_embed: axes {dim1} and {dim2} are one")
    order = list(range(rank - 2))
    for axis, source in sorted(((first, rank - 2), (second, rank - 1))):
        order.insert(axis, source)
    return ad.transpose_op(made, tuple(order)) if order != list(range(rank)) else made


def diag(x: Any, diagonal: int = 0) -> Node:
    """Of a vector the matrix with it on a diagonal, of a matrix that diagonal. Raises ShapeError for others."""
    node = node_of(x)
    rank = len(shape_of(node))
    if rank not in (1, 2):
        raise ShapeError(f"diag: takes a vector or a matrix, not shape {shape_of(node)} [{node.name}]")
    return diag_embed(node, diagonal) if rank == 1 else _diagonal(node, diagonal)


_diagonal = diagonal


def block_diag(*matrices: Any) -> Node:
    """The matrices one behind another along the diagonal, 0 elsewhere; a vector is a row. Raises ShapeError for what
    has more axes."""
    nodes = [atleast_2d(x) for x in matrices]
    for node in nodes:
        if len(shape_of(node)) != 2:
            raise ShapeError(f"block_diag: takes matrices, not shape {shape_of(node)} [{node.name}]")
    widths = [shape_of(node)[1] for node in nodes]
    before, rows = 0, []
    for node, own in zip(nodes, widths, strict=True):
        after = builtins.sum(widths) - before - own
        rows.append(ad.pad_op(node, ((0, 0), (before, after))))
        before += own
    return cat(rows)


def trace(x: Any) -> Node:
    """The sum of a matrix's diagonal. Raises ShapeError for no matrix."""
    node = node_of(x)
    if len(shape_of(node)) != 2:
        raise ShapeError(f"trace: takes a matrix, not shape {shape_of(node)} [{node.name}]")
    return sum(diagonal(node))
