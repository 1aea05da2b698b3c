"""Maxima of windows with the places where they are, windows with holes, and pooling undone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..autodiff import OPS, Node
from ..eager import dtype_of, no_grad, tensor
from ..eager.running import is_data
from ..errors import GraphError, IndexRangeError, ShapeError
from ..graph import FLOATS
from ..ops.function import function_op
from .checks import extents, shape_of


def max_pool_with_indices(
    op: str,
    input: Node,
    axes: int,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> tuple[Node, Node]:
    """The maxima of windows along the last `axes` axes, of known shape, and their places, int64: the number of the
    element, in row-major order, within these axes. Of equal ones the first counts. Raises GraphError, ShapeError."""
    shape = shape_of(op, input)
    kernel = extents(op, "kernel_size", kernel_size, 1, axes)
    step = kernel if stride is None else extents(op, "stride", stride, 1, axes)
    before, holes = extents(op, "padding", padding, 0, axes), extents(op, "dilation", dilation, 1, axes)
    if any(2 * p > k for p, k in zip(before, kernel, strict=True)):
        raise GraphError(f"{op}: padding {before} is more than half of the windows {kernel}")
    lead, space = shape[: len(shape) - axes], shape[len(shape) - axes :]
    if not 1 <= len(lead) <= 2:
        raise ShapeError(f"{op}: needs {axes + 1} or {axes + 2} axes, not {shape}")
    counts, after = [], []
    for n, k, s, p, d in zip(space, kernel, step, before, holes, strict=True):
        count = (n + 2 * p - d * (k - 1) - 1 + (s - 1 if ceil_mode else 0)) // s + 1
        count -= ceil_mode and (count - 1) * s >= n + p  # a window begins in the input or before it
        if count < 1:
            raise ShapeError(f"{op}: windows {kernel} with dilation {holes} do not fit {shape} padded by {before}")
        counts.append(count)
        after.append(max((count - 1) * s + d * (k - 1) + 1 - n - p, 0))
    widths = [*[(0, 0)] * len(lead), *zip(before, after, strict=True)]
    padded = ad.pad_op(input, widths, -math.inf) if any(map(any, widths)) else input
    offsets = list(itertools.product(*(range(k) for k in kernel)))
    parts = [ad.slice_op(padded, (..., *_window(offset, counts, step, holes))) for offset in offsets]
    stacked = ad.stack_op(parts, -1)
    which = ad.argmax_op(stacked, -1)
    values = ad.squeeze_op(ad.take_along_axis_op(stacked, ad.expand_dims_op(which, -1), -1), -1)
    starts = np.zeros((), np.int64)  # of each window, its first element's number, which may be before the input's
    steps = np.zeros(len(offsets), np.int64)  # from there to each of its elements
    for axis in range(axes):
        own = np.arange(counts[axis]) * step[axis] - before[axis]
        within = np.array([offset[axis] for offset in offsets]) * holes[axis]
        starts = starts[..., None] * space[axis] + own
        steps = steps * space[axis] + within
    return values, ad.take_op(tensor(steps), which) + tensor(starts)


def _window(offset: Sequence[int], counts: Sequence[int], step: Sequence[int], holes: Sequence[int]) -> list[slice]:
    """Of every window the element at an offset."""
    return [
        slice(i * d, i * d + (count - 1) * s + 1, s) for i, d, count, s in zip(offset, holes, counts, step, strict=True)
    ]


def max_unpool(
    op: str,
    input: Node,
    indices: Node,
    axes: int,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    output_size: Any = None,
) -> Node:
    """Zeros, with the input at the places `indices`, as `max_pool_with_indices` gives them; of equal places the mean of
    their numbers. Raises GraphError, ShapeError, IndexRangeError for places beyond the output, where they are data."""
    shape = shape_of(op, input)
    if shape_of(op, indices) != shape:
        raise ShapeError(f"{op}: indices of shape {shape_of(op, indices)} for an input of {shape}")
    if dtype_of(indices) in FLOATS:
        raise GraphError(f"{op}: indices must be integers, not {dtype_of(indices)}")
    kernel = extents(op, "kernel_size", kernel_size, 1, axes)
    step = kernel if stride is None else extents(op, "stride", stride, 1, axes)
    before = extents(op, "padding", padding, 0, axes)
    lead, own = shape[: len(shape) - axes], shape[len(shape) - axes :]
    usual = [(n - 1) * s - 2 * p + k for n, s, p, k in zip(own, step, before, kernel, strict=True)]
    space = usual if output_size is None else [int(n) for n in tuple(output_size)[-axes:]]
    fits = all(u - s < n < u + s for u, s, n in zip(usual, step, space, strict=False)) and len(space) == axes
    if output_size is not None and not fits:
        raise ShapeError(f"{op}: output_size {tuple(output_size)} is not within {tuple(step)} of {tuple(usual)}")
    rows, size = math.prod(lead), math.prod(space)
    if is_data(indices):
        numbers = np.asarray(indices)
        wrong = numbers[(numbers < 0) | (numbers >= size)]
        if wrong.size:
            raise IndexRangeError(f"{op}: index {wrong[0]} is out of range for an output of {tuple(space)}")
    flat = ad.reshape_op(ad.cast_op(indices, "int64"), (rows, math.prod(own)))
    with no_grad():
        starts = tensor((np.arange(rows) * size).reshape(rows, 1))
        places = ad.reshape_op(flat + starts, (-1,))
        empty = tensor(np.zeros(rows * size), dtype_of(input))
        values = ad.reshape_op(input, (-1,))
        total, count = (
            OPS["take_gradient"].make([given, places, empty], {"axis": 0}) for given in (values, values * 0.0 + 1.0)
        )
        found = ad.reshape_op(total / ad.maximum_op(count, 1.0), (*lead, *space))

    def backward(grad: Node) -> list[Node]:
        taken = ad.take_along_axis_op(ad.reshape_op(grad, (rows, size)), flat, -1)
        return [ad.reshape_op(taken, shape)]

    return function_op(found, [input], backward)
