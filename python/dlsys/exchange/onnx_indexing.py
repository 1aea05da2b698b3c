"""ONNX's operators that read and write at indices by ours; see `onnx_operators`."""

from __future__ import annotations

import math

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import DataError, GraphError
from ..ops.indexing import in_range_op
from ..tensors import dtype_of, shape_of, tensor
from ..tensors.index import joint_index
from .network import Value
from .onnx_operators import axes_of, dtype_of_code, integers, node, one_of, operator


@operator("GatherND")
def gather_nd(x: Node, indices: Node, batch_dims: int = 0) -> Node:
    """The parts of x at rows of indices."""
    if batch_dims:
        raise GraphError("GatherND: batch_dims are not supported")
    shape, count = shape_of(x), shape_of(indices)[-1]
    if not 0 < count <= len(shape):
        raise DataError(f"GatherND: {count} indices for {len(shape)} axes")
    return x[tuple(indices[..., axis] for axis in range(count))]


def _scattered(name: str, x: Node, indices: Node, updates: Node, axis: int, reduction: str) -> Node:
    """x with updates at indices along an axis in place of its elements, or added to them."""
    if reduction == "add":
        return ad.scatter_add_op(x, indices, updates, axis)
    if reduction != "none":
        raise GraphError(f"{name}: the reduction {reduction} is not supported")
    zeros = ad.full_op(shape_of(x), 0.0)
    written = ad.scatter_add_op(zeros, indices, ad.full_op(shape_of(updates), 1.0), axis) > 0.5
    return ad.where_op(written, ad.scatter_add_op(ad.cast_op(zeros, dtype_of(x)), indices, updates, axis), x)


def _require_once(name: str, rows: np.ndarray) -> None:
    """Raises GraphError for rows of indices that occur twice: which update stands then, ONNX does not state."""
    if len(np.unique(rows, axis=0)) < len(rows):
        raise GraphError(f"{name}: an index occurs twice")


@operator("ScatterND", 1)
def scatter_nd(x: Node, indices: Value, updates: Node, reduction: str = "none") -> Node:
    """x with the updates at rows of indices."""
    if reduction == "none" and isinstance(indices, np.ndarray) and indices.size:
        _require_once("ScatterND", indices.reshape(-1, indices.shape[-1]))
    places, shape = node(indices), shape_of(x)
    count = shape_of(places)[-1]
    if not 0 < count <= len(shape):
        raise DataError(f"ScatterND: {count} indices for {len(shape)} axes")
    width, rows = math.prod(shape[count:]), math.prod(shape[:count])
    flat = ad.reshape_op(joint_index(x, [places[..., axis] for axis in range(count)], shape[:count]), (-1, 1))
    total = math.prod(shape_of(places)[:-1])
    index = ad.broadcast_shape_op(flat, (total, width))
    made = _scattered(
        "ScatterND", ad.reshape_op(x, (rows, width)), index, ad.reshape_op(updates, (total, width)), 0, reduction
    )
    return ad.reshape_op(made, shape)


@operator("ScatterElements", 1)
def scatter_elements(x: Node, indices: Value, updates: Node, axis: int = 0, reduction: str = "none") -> Node:
    """x with the updates where an index takes the place of theirs along an axis."""
    places, shape = node(indices), shape_of(x)
    (axis,) = axes_of(len(shape), [axis])
    own = np.indices(shape_of(places), dtype="int64")
    if reduction == "none" and isinstance(indices, np.ndarray) and indices.size:
        own[axis] = indices % shape[axis]
        _require_once("ScatterElements", own.reshape(len(shape), -1).T)
    own[axis] = 0
    strides = [math.prod(shape[at + 1 :]) for at in range(len(shape))]
    begin = sum(step * along for step, along in zip(strides, own, strict=True))
    flat = in_range_op(places, shape[axis]) * strides[axis] + tensor(begin)
    row, index, values = (ad.reshape_op(value, (-1,)) for value in (x, flat, updates))
    return ad.reshape_op(_scattered("ScatterElements", row, index, values, 0, reduction), shape)


@operator("Hardmax")
def hardmax(x: Node, axis: int = -1) -> Node:
    """1 at the first maximum along an axis, 0 elsewhere."""
    rank = len(shape_of(x))
    (axis,) = axes_of(rank, [axis])
    found = ad.one_hot_op(ad.argmax_op(x, axis), shape_of(x)[axis], dtype_of(x))
    return ad.transpose_op(found, (*range(axis), rank - 1, *range(axis, rank - 1)))


@operator("OneHot", 1, 2)
def one_hot(indices: Node, depth: Value, values: Value, axis: int = -1) -> Node:
    """The second of two values at the indices along a new axis, the first elsewhere."""
    classes, rank = int(one_of(depth, "the depth of OneHot")), len(shape_of(indices)) + 1
    (axis,) = axes_of(rank, [axis])
    off, on = (node(values)[i] for i in (0, 1))
    whole = ad.cast_op(indices, "int64")
    whole = ad.where_op(whole < 0, whole + classes, whole)
    steps = tensor(np.arange(classes).reshape(-1, *(1,) * (rank - 1 - axis)))
    return ad.where_op(ad.equal_op(ad.expand_dims_op(whole, axis), steps), on, off)


@operator("EyeLike")
def eye_like(x: Node, dtype: int | None = None, k: int = 0) -> np.ndarray:
    """Ones on a diagonal of a matrix of x's shape."""
    rows, columns = shape_of(x)
    return np.eye(rows, columns, k, dtype_of(x) if dtype is None else dtype_of_code(dtype))


@operator("ReverseSequence", 1)
def reverse_sequence(x: Node, lengths: Value, batch_axis: int = 1, time_axis: int = 0) -> Node:
    """x with the first steps of each sequence, so many as its length, in the other order."""
    if {batch_axis, time_axis} != {0, 1}:
        raise GraphError("ReverseSequence: the axes are 0 and 1")
    counts, extent = integers(lengths, "sequence_lens"), shape_of(x)[time_axis]
    steps = np.array([[n - 1 - t if t < n else t for t in range(extent)] for n in counts])
    steps = steps if batch_axis == 0 else steps.T
    index = tensor(steps.reshape(*steps.shape, *(1,) * (len(shape_of(x)) - 2)))
    return ad.take_along_axis_op(x, ad.broadcast_shape_op(index, shape_of(x)), time_axis)
