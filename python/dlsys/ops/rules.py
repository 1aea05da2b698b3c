"""Shape rules that several operators share, and the gradients of operators that are linear in their first input."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..checks import as_integers, dtype_named, extents, integer
from ..errors import DlsysError, DTypeError, GraphError, ShapeError
from ..graph import DTYPES, INTEGERS, Shape, is_node


def broadcast_rule(shape_a: Shape, shape_b: Shape) -> Shape:
    """The shape to which NumPy broadcasts two shapes. Raises ShapeError where it would not."""
    try:
        return tuple(np.broadcast_shapes(tuple(shape_a), tuple(shape_b)))
    except ValueError:
        raise ShapeError(f"shapes do not broadcast: {tuple(shape_a)} and {tuple(shape_b)}") from None
    except TypeError:
        raise ShapeError(f"a shape is a tuple of integers, not {shape_a!r} or {shape_b!r}") from None


def broadcast_shapes(*shapes: Shape, **attrs: Any) -> Shape:
    """The shape to which NumPy broadcasts these. Raises ShapeError."""
    shape: Shape = ()
    for other in shapes:
        if other != shape:
            shape = broadcast_rule(shape, other) if shape and other else shape or other
    return shape


def broadcast_to_shape(x: Shape, shape: Shape) -> Shape:
    """`shape`, to which that of x must broadcast. Raises ShapeError."""
    fits = len(x) <= len(shape) and all(
        extent in (1, target) for extent, target in zip(reversed(x), reversed(shape), strict=False)
    )
    if not fits or min(shape, default=0) < 0:
        raise ShapeError(f"{x} does not broadcast to {shape}")
    return shape


def axes_in(op: str, axes: Any, rank: int) -> tuple[int, ...]:
    """An axis or axes of an array of so many dimensions, not negative, in the order in which they stand; all for None.
    Raises GraphError for what is no integer, ShapeError for an axis that is not there or stands twice."""
    try:
        asked = tuple(range(rank)) if axes is None else as_integers(axes)
    except TypeError:
        raise GraphError(f"{op}: axes must be None, an integer or integers, not {axes!r}") from None
    for axis in asked:
        if not -rank <= axis < rank:
            raise ShapeError(f"{op}: axis {axis} is out of range for {rank} dimensions")
    counted = tuple([axis % rank for axis in asked])
    if len(set(counted)) != len(counted):
        raise ShapeError(f"{op}: axes {asked} name one axis twice")
    return counted


def axis_in(op: str, axis: Any, rank: int) -> int:
    """One axis, as `axes_in`. Raises GraphError for what is no integer, ShapeError for an axis that is not there."""
    return axes_in(op, integer(op, "the axis", axis), rank)[0]


def axes_of(op: str, x: Any, axes: Any) -> tuple[int, ...]:
    """Axes of x, an int or ints, as non-negative numbers, ascending; all for None. As in PyTorch axis 0 or -1 of a
    number is none. Raises GraphError for what is no node or no axes, ShapeError for axes that x lacks."""
    if not is_node(x):
        raise GraphError(f"{op}: takes tensors and nodes, not {type(x).__name__}")
    if x.shape == () and isinstance(axes, (int, tuple)) and axes in (0, -1, (0,), (-1,)):
        return ()
    return tuple(sorted(axes_in(op, axes, len(x.shape))))


def reduced_shape(shape: Shape, axes: tuple[int, ...], keepdims: bool) -> Shape:
    """`shape` without `axes`, or with extents of 1 there."""
    return tuple(
        1 if axis in axes else extent for axis, extent in enumerate(shape) if keepdims or axis not in axes
    )


def shape_attribute(op: str, shape: Any, signed: bool = False) -> Shape:
    """An int or a sequence of ints as a shape, without negative extents unless `signed`. Raises GraphError."""
    return extents(shape, op, GraphError, signed)


def dtype_attribute(
    op: str, dtype: Any, known: Sequence[str] = DTYPES, error: type[DlsysError] = GraphError
) -> str:
    """The name of one of the known dtypes, from "int64", np.int64, a Python type or PyTorch's. Raises `error`."""
    name = None if dtype is None else dtype_named(dtype)
    if name is None or name not in known:
        raise error(f"{op}: dtype {dtype} is not one of {', '.join(known)}")
    return name


def dtype_name(op: str, dtype: Any) -> str:
    """The name of a dtype that operators take, see `dtype_attribute`. Raises DTypeError for any other."""
    return dtype_attribute(op, dtype, error=DTypeError)


def reshaped(shape: Shape, to_shape: Shape) -> Shape:
    """`to_shape` with its one -1 solved for `shape`'s number of elements. Raises ShapeError."""
    size, known = math.prod(shape), math.prod(extent for extent in to_shape if extent != -1)
    free = to_shape.count(-1)
    if free > 1 or any(extent < -1 for extent in to_shape):
        raise ShapeError(f"reshape: {to_shape} is not a shape with at most one -1")
    fits = (known != 0 and size % known == 0) if free else size == known
    if not fits:
        raise ShapeError(f"reshape: {shape} of {size} elements does not fit {to_shape}")
    return tuple(size // known if extent == -1 else extent for extent in to_shape)


def real_constant(op: str, value: Any) -> float:
    """A Python or NumPy real number as a float, or as an int where no float64 is equal to it. Raises GraphError."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if not isinstance(value, numbers.Real):
        raise GraphError(f"{op}: the constant must be a real number, not {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        raise GraphError(f"{op}: the constant is beyond the range of float64") from None
    return int(value) if isinstance(value, numbers.Integral) and int(value) != number else number


def holds(dtype: str, value: float) -> bool:
    """Whether the number lies within the limits of an integer dtype; of other dtypes all do."""
    return dtype not in INTEGERS or int(np.iinfo(dtype).min) <= value <= int(np.iinfo(dtype).max)


def require_constant(op: str, number: float, dtype: str, of: str) -> None:
    """Raises DTypeError for a number that an integer dtype does not hold; `of`: what has the dtype."""
    if dtype in INTEGERS and not (holds(dtype, number) and number == int(number)):
        raise DTypeError(f"{op}: the constant {number:g} is no {dtype}, which {of} is")


def product_dtype(a: str, b: str, **attrs: Any) -> str:
    """The dtype of a product: int32 of uint8 and int8, else that of both factors, for which "" stands."""
    return "int32" if sorted((a, b)) == ["int8", "uint8"] else ""


def in_product_dtype(*factors: np.ndarray) -> list[np.ndarray]:
    """The factors as NumPy is to multiply them, see `product_dtype`."""
    return [x.astype("int32") for x in factors] if factors[0].dtype != factors[1].dtype else list(factors)
