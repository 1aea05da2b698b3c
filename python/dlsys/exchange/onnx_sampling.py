"""ONNX's operators that read images at other places by ours; see `onnx_operators`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node
from ..errors import DataError, GraphError
from ..tensors import dtype_of, shape_of, tensor
from .network import Value
from .onnx_operators import axes_of, integers, known, operator
from .resampling import CUBIC, grid_sample, kernel

_NEAREST: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _places(mode: str, old: int, new: int, scale: float, roi: Sequence[float]) -> np.ndarray:
    """The place in `old` elements of each of `new`, by ONNX's coordinate transformation; `scale`: new / old, as
    given."""
    x, width = np.arange(new, dtype="float64"), scale * old
    if mode == "align_corners":
        return x * (old - 1) / (width - 1) if width != 1 else x * 0
    if mode == "asymmetric":
        return x / scale
    if mode == "tf_crop_and_resize":
        first, last = roi
        step = (last - first) * (old - 1)
        return first * (old - 1) + (x * step / (width - 1) if width != 1 else step / 2 + x * 0)
    if mode == "pytorch_half_pixel" and width == 1:
        return x * 0 - 0.5
    if mode not in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric"):
        raise GraphError(f"Resize: the coordinates {mode} are not supported")
    offset = old / 2 * (1 - new / width) if mode == "half_pixel_symmetric" else 0.0
    return offset + (x + 0.5) / scale - 0.5


def _weights(mode: str, old: int, at: np.ndarray, squeezed: float, excludes: bool, a: float) -> np.ndarray:
    """The matrix (new, old) that interpolates `old` elements at places. What is beyond an end is the last there, or is
    left out. `squeezed`: less than 1 for kernels that are so much wider, as to shrink without aliasing."""
    reach = math.ceil(2 / squeezed) + 1
    place = np.arange(-reach, old + reach)
    found = kernel(mode, (place - np.clip(at, -1, old)[:, None]) * squeezed, a)
    if excludes:
        found[:, (place < 0) | (place >= old)] = 0
    matrix = np.zeros((len(at), old))
    for column, to in enumerate(np.clip(place, 0, old - 1)):
        matrix[:, to] += found[:, column]
    return matrix / matrix.sum(1, keepdims=True)


def _weighed(x: Node, matrix: np.ndarray, axis: int) -> Node:
    """The matrix, most of which is 0, applied to x along an axis: a sum of elements times their weights."""
    count = int((matrix != 0).sum(1).max())
    place = np.argsort(matrix == 0, axis=1, kind="stable")[:, :count]
    weight = np.take_along_axis(matrix, place, 1)
    place = np.where(weight == 0, place[:, :1], place)
    ones, total = (1,) * (len(shape_of(x)) - axis - 1), None
    for index, own in zip(place.T, weight.T, strict=True):
        part = ad.take_op(x, tensor(index.copy()), axis) * tensor(own.reshape(-1, *ones).astype(dtype_of(x)))
        total = part if total is None else total + part
    assert total is not None
    return total


@operator("Resize", 1, 2, 3)
def resize(
    x: Node,
    roi: Value = None,
    scales: Value = None,
    sizes: Value = None,
    antialias: int = 0,
    axes: Any = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = CUBIC,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Node:
    """x in another size: along each axis a choice of elements, or sums of them times weights."""
    shape = shape_of(x)
    along = axes_of(len(shape), range(len(shape)) if axes is None else axes)
    factors = [] if scales is None else known(scales, "the scales of Resize").reshape(-1).tolist()
    wanted = [] if sizes is None else integers(sizes, "the sizes of Resize")
    if bool(factors) == bool(wanted) or len(factors or wanted) != len(along):
        raise DataError(f"Resize has {len(factors)} scales and {len(wanted)} sizes for {len(along)} axes")
    if mode not in ("nearest", "linear", "cubic") or nearest_mode not in _NEAREST:
        raise GraphError(f"Resize: the modes {mode} and {nearest_mode} are not supported")
    old = [shape[axis] for axis in along]
    if min(factors or wanted) <= 0 or 0 in old:
        raise DataError(f"Resize of extents {old} by {factors or wanted}")
    if wanted:
        factors = [new / extent for new, extent in zip(wanted, old, strict=True)]
        if keep_aspect_ratio_policy != "stretch":
            factors = [min(factors) if keep_aspect_ratio_policy == "not_larger" else max(factors)] * len(old)
            wanted = [math.floor(factor * extent + 0.5) for factor, extent in zip(factors, old, strict=True)]
    else:
        wanted = [math.floor(factor * extent) for factor, extent in zip(factors, old, strict=True)]
    crops = coordinate_transformation_mode == "tf_crop_and_resize"
    region = known(roi, "the roi of Resize").reshape(-1).tolist() if crops else [0.0] * len(old) + [1.0] * len(old)
    for i, (axis, new) in enumerate(zip(along, wanted, strict=True)):
        ends = region[i], region[len(old) + i]
        at = _places(coordinate_transformation_mode, old[i], new, factors[i], ends)
        if mode == "nearest":
            chosen = np.clip(_NEAREST[nearest_mode](at), 0, old[i] - 1).astype("int64")
            if not np.array_equal(chosen, np.arange(old[i])):
                x = ad.take_op(x, tensor(chosen), axis)
        else:
            squeezed = min(factors[i], 1.0) if antialias else 1.0
            matrix = _weights(mode, old[i], at, squeezed, bool(exclude_outside), cubic_coeff_a)
            if not np.array_equal(matrix, np.eye(old[i])):
                x = _weighed(x, matrix, axis)
        if crops and (beyond := (at < 0) | (at > old[i] - 1)).any():
            beyond = beyond.reshape(-1, *(1,) * (len(shape) - axis - 1))
            x = ad.where_op(tensor(beyond), tensor(np.asarray(extrapolation_value, dtype_of(x))), x)
    return x


@operator("GridSample")
def sampled(
    x: Node, grid: Node, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Node:
    """Images at the places of a grid."""
    mode = mode.removeprefix("bi")
    if mode == "cubic" and padding_mode == "border":
        raise GraphError("GridSample: cubic with padding_mode border is not supported: runtimes differ in it")
    return grid_sample(x, grid, mode, padding_mode, bool(align_corners))
