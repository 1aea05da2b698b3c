"""Values of an ONNX model while its nodes are applied, and what ONNX's operators read of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import DataError, GraphError
from ..graph import DTYPES, FLOATS, INTEGERS, Node, is_node
from ..tensors import is_leaf, known_dtype, shape_of, tensor

Value = Any
"""An `np.ndarray` where it follows from constants and shapes, else a node; None for an input that is left out."""
MOST_FOLDED = 2**28
"""Bytes of a value that is computed while a model's nodes are applied."""


def dtype_of_code(code: int) -> str:
    """The dtype of ONNX's number for it. Raises DataError for a number that has none, GraphError for a dtype that
    dlsys lacks."""
    import onnx

    try:
        dtype = str(onnx.helper.tensor_dtype_to_np_dtype(code))
    except KeyError:
        raise DataError(f"there is no dtype of number {code}") from None
    require_dtype(dtype)
    return dtype


def require_dtype(dtype: str) -> None:
    """Raises GraphError for a dtype that dlsys lacks."""
    if dtype not in DTYPES:
        raise GraphError(f"the dtype {dtype} is not one of {', '.join(DTYPES)}")


def node(value: Value) -> Node:
    """The value as a node."""
    return tensor(value) if isinstance(value, np.ndarray) else value


def known(value: Value, what: str) -> np.ndarray:
    """The array of an input that must follow from constants and shapes, or be an argument that has a value. Raises
    GraphError for another."""
    if is_leaf(value):
        value = value.detach().numpy()
    if not isinstance(value, np.ndarray):
        raise GraphError(f"{what} must follow from constants and shapes")
    return value


def integers(value: Value, what: str) -> list[int]:
    """The integers of an attribute, or of an input that must be known. Raises DataError for other numbers."""
    array = np.asarray(value) if isinstance(value, (int, list, tuple)) else known(value, what)
    if str(array.dtype) not in INTEGERS and array.size:
        raise DataError(f"{what} must be integers, not {array.dtype}")
    return [int(item) for item in array.reshape(-1)]


def number(value: Value, what: str, default: float | None = None) -> Any:
    """The one number of an input that must be known; the default where it is left out. Raises DataError for an array of
    more or none."""
    if value is None:
        return default
    if (array := known(value, what)).size != 1:
        raise DataError(f"{what} must be one number, not {array.size}")
    return array.item()


def axes_of(x: Node, *axes: int) -> list[int]:
    """Axes of x, counted from the first. Raises DataError for one that it has not, or twice."""
    rank = len(shape_of(x))
    if not all(-rank <= axis < rank for axis in axes):
        raise DataError(f"there are {rank} axes, and it names {', '.join(map(str, axes))}")
    counted = [axis % rank for axis in axes]
    if len(set(counted)) < len(axes):
        raise DataError(f"it names one of the axes {', '.join(map(str, axes))} twice")
    return counted


def pairs_of(pads: Sequence[int] | None, axes: int) -> list[tuple[int, int]]:
    """ONNX's pads, all before, then all behind, as a pair for each axis. Raises DataError for another count."""
    pads = [0] * (2 * axes) if pads is None else pads
    if len(pads) != 2 * axes:
        raise DataError(f"pads must be {2 * axes} numbers, not {len(pads)}")
    return list(zip(pads[:axes], pads[axes:], strict=True))


def operands(a: Value, b: Value) -> list[Node | float]:
    """Two operands as nodes; a known float beside a node of floats as a number, which is a constant in the kernels'
    code, of the node's dtype."""
    return [x.item() if is_number(x, other) else node(x) for x, other in ((a, b), (b, a))]


def is_number(value: Value, other: Value) -> bool:
    """Whether the value is one known, finite float, which does not change the shape of the node of floats beside it."""
    if not isinstance(value, np.ndarray) or not is_node(other) or value.size != 1:
        return False
    of_floats = value.dtype in FLOATS and known_dtype(other) in (None, *FLOATS)
    return of_floats and value.ndim <= len(shape_of(other)) and bool(np.isfinite(value).all())
