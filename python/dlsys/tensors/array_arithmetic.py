"""Arithmetic of a device's arrays with arrays and numbers, which is that of tensors: `W - 0.1 * grad`."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ..devices import Array, copied
from ..ops import is_number, leaf
from .typing import ArrayLike
from .values import array_of

_OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "@": operator.matmul,
    "**": operator.pow,
}


def computed(symbol: str, left: ArrayLike, right: ArrayLike) -> Any:
    """`left <symbol> right` as a new Array, on the device of the one that is an Array; by the rules of tensors for
    shapes and dtypes. NotImplemented for what is no array or number. Raises ShapeError, DTypeError, DeviceError."""
    operands = []
    for value in (left, right):
        if not (isinstance(value, (Array, np.ndarray)) or is_number(value)):
            return NotImplemented
        operands.append(value if is_number(value) else leaf(value))
    found = _OPERATORS[symbol](*operands)
    value = array_of(found)
    return value if found.cell is None else copied(value)  # x ** 1 of integers is x
