"""Tensors made from sizes and numbers, with PyTorch's arguments.

`device` is the CPU, or None; DeviceError else.
"""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any

import numpy as np

from .. import device as devices
from ..errors import DTypeError, GraphError, ShapeError
from ..graph import INTEGERS, Node, Shape
from ..ops import dtype_name, dtype_of, known_shape, zeroslike_op
from .leaves import leaf, tensor


def size_of(sizes: tuple[Any, ...]) -> Shape:
    """Extents given one by one, or as one tuple or list. Raises ShapeError for what is no shape."""
    given = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
    try:
        shape = tuple(operator.index(extent) for extent in given)
    except TypeError:
        raise ShapeError(f"a shape must be a tuple of integers, not {given!r}") from None
    if min(shape, default=0) < 0:
        raise ShapeError(f"a shape has no negative extent: {shape}")
    if math.prod(shape) >= 2**60:
        raise ShapeError(f"an array of shape {shape} has more bytes than any memory")
    return shape


def _is_dtype(value: Any) -> bool:
    return isinstance(value, (str, type, np.dtype))


def _of_array(size: tuple[Any, ...], dtype: Any, ctx: Any) -> tuple[Shape, Any, Any]:
    """The arguments of a function of arrays, (shape, dtype, context), however they are given. Raises ShapeError."""
    given = list(size)
    if len(given) == 3 and _is_dtype(given[1]):
        ctx = given.pop()
    if len(given) == 2 and _is_dtype(given[1]):
        dtype = given.pop()
    return size_of(tuple(given)), "float32" if dtype is None else dtype, ctx


def zeros(*size: Any, dtype: Any = None, requires_grad: bool = False, ctx: Any = None, device: Any = None) -> Any:
    """A tensor of zeros; float32 for None. With a context, as in `zeros(shape, dtype, ctx)`, an array on that device,
    see `dlsys.device.zeros`. Raises ShapeError, DTypeError."""
    shape, dtype, ctx = _of_array(size, dtype, ctx)
    if ctx is not None:
        return devices.zeros(shape, dtype, ctx)
    return full(shape, 0, dtype=dtype, requires_grad=requires_grad, device=device)


def empty(*size: Any, dtype: Any = None, requires_grad: bool = False, ctx: Any = None, device: Any = None) -> Any:
    """A tensor of undefined values; float32 for None. With a context, as in `empty(shape, dtype, ctx)`, an array on
    that device, see `dlsys.device.empty`. Raises ShapeError, DTypeError."""
    shape, dtype, ctx = _of_array(size, dtype, ctx)
    if ctx is not None:
        return devices.empty(shape, dtype, ctx)
    return leaf(devices.empty(shape, dtype_name("empty", dtype)), requires_grad, device=device)


def ones(*size: Any, dtype: Any = None, requires_grad: bool = False, device: Any = None) -> Any:
    """A tensor of ones; float32 for None. Raises ShapeError, DTypeError."""
    return full(size_of(size), 1, dtype=dtype or "float32", requires_grad=requires_grad, device=device)


def full(
    size: Any, fill_value: Any, *, dtype: Any = None, requires_grad: bool = False, device: Any = None
) -> Any:
    """A tensor of one number, in the dtype that `tensor` gives it for None. Raises ShapeError, DTypeError."""
    number = np.asarray(fill_value)
    if number.ndim or number.dtype.kind not in "biuf":
        raise DTypeError(f"full: takes one number, not {fill_value!r}")
    if dtype is None:
        dtype = {"b": "bool", "f": "float32"}.get(number.dtype.kind, "int64")
    with np.errstate(over="ignore", invalid="ignore"):
        known = dtype_name("full", dtype)
        if number.dtype.kind in "iu" and known in INTEGERS:
            limits = np.iinfo(known)
            if not limits.min <= int(number) <= limits.max:
                raise DTypeError(f"full: {fill_value} is no {known}")
        made = devices.empty(size_of((size,)), known)
        made[...] = number.astype(known)
    return leaf(made, requires_grad, device=device)


def _like(x: Any, fill: Any, dtype: Any, requires_grad: bool, device: Any) -> Any:
    node = x if isinstance(x, Node) else tensor(x)
    shape = known_shape(node)
    if shape is None:  # of a variable: when it is fed
        return zeroslike_op(node) + fill if dtype is None else (zeroslike_op(node) + fill).to(dtype)
    return full(shape, fill, dtype=dtype or dtype_of(node), requires_grad=requires_grad, device=device)


def zeros_like(x: Any, *, dtype: Any = None, requires_grad: bool = False, device: Any = None) -> Any:
    """Zeros of x's shape, and its dtype for None."""
    return _like(x, 0, dtype, requires_grad, device)


def ones_like(x: Any, *, dtype: Any = None, requires_grad: bool = False, device: Any = None) -> Any:
    """Ones of x's shape, and its dtype for None."""
    return _like(x, 1, dtype, requires_grad, device)


def arange(
    start: Any, end: Any = None, step: Any = 1, *, dtype: Any = None, requires_grad: bool = False, device: Any = None
) -> Any:
    """start, start + step, ... below `end`; from 0 below `start` for None. int64 of integers, else float32.

    Raises GraphError for a step that does not lead from start to end.
    """
    if end is None:
        start, end = 0, start
    for value in (start, end, step):  # of any size: not by math.isfinite
        is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
        if not (is_number and abs(value) < 2.0**1023):
            raise GraphError(f"arange: takes finite numbers, not {value!r}")
    known = None if dtype is None else dtype_name("arange", dtype)
    if known in INTEGERS:  # PyTorch counts in integers then
        start, end, step = int(start), int(end), int(step)
    whole = all(isinstance(n, numbers.Integral) for n in (start, end, step))
    if not step or (end - start) * step < 0:
        raise GraphError(f"arange: a step of {step} does not lead from {start} to {end}")
    count = -((start - end) // step) if whole else int(np.ceil((end - start) / step))
    places = np.arange(count, dtype=np.int64 if whole else np.float64)
    made = start + step * places
    return leaf(
        np.asarray(made, known or ("int64" if whole else "float32")), requires_grad, device=device
    )


def eye(
    n: int, m: int | None = None, *, dtype: Any = None, requires_grad: bool = False, device: Any = None
) -> Any:
    """Ones on the diagonal of (n, m), m = n for None; float32 for None. Raises ShapeError for no extents."""
    rows, columns = size_of((n, n if m is None else m))
    return leaf(np.eye(rows, columns, dtype=dtype_name("eye", dtype or "float32")), requires_grad, device=device)
