"""NumPy's functions of elements, applied to tensors: their arrays; the operators between arrays and tensors; and those
of a device's arrays with arrays and numbers, `W - 0.1 * grad`, which are the operators of tensors."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ..devices import Array, copied
from ..errors import GraphError
from ..graph import Handle
from ..ops import is_number, leaf
from .evaluate import array_of
from .typing import ArrayLike

_REFLECTED = {
    np.add: "__radd__",
    np.subtract: "__rsub__",
    np.multiply: "__rmul__",
    np.true_divide: "__rtruediv__",
    np.floor_divide: "__rfloordiv__",
    np.remainder: "__rmod__",
    np.power: "__rpow__",
    np.matmul: "__rmatmul__",
    np.bitwise_and: "__rand__",
    np.bitwise_or: "__ror__",
    np.bitwise_xor: "__rxor__",
    np.equal: "__eq__",
    np.not_equal: "__ne__",
    np.less: "__gt__",
    np.less_equal: "__ge__",
    np.greater: "__lt__",
    np.greater_equal: "__le__",
}
"""For a function that NumPy calls for `array <operator> tensor` the tensor's method of it."""
_ARRAYS = (np.ndarray, np.generic)


class UFuncs(Handle):
    """The method by which NumPy asks for a ufunc of a tensor."""

    __slots__ = ()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **settings: Any) -> Any:
        """An array, of tensors that hold data; a tensor of `array + tensor`, as of `tensor + array`. Raises GraphError
        for a tensor without a value and for one that requires a gradient, which NumPy would not follow."""
        name = _REFLECTED.get(ufunc)
        if name and method == "__call__" and not settings and inputs[1] is self and isinstance(inputs[0], _ARRAYS):
            return getattr(self, name)(inputs[0])
        return getattr(ufunc, method)(*(_array(ufunc, x) for x in inputs), **settings)


def _array(ufunc: Any, value: Any) -> Any:
    """The value of a tensor, anything else as it is. Raises GraphError for a tensor without a value or with a history.
    """
    if not isinstance(value, Handle):
        return value
    if value.is_open:
        raise GraphError(f"numpy.{ufunc.__name__}: {value.name} has no value before a run: use operators of dlsys")
    if value.node.tracks:
        told = "requires a gradient, which NumPy does not follow: use .detach(), or operators of dlsys"
        raise GraphError(f"numpy.{ufunc.__name__}: {value.name} {told}")
    return np.asarray(array_of(value))


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
    return copied(value) if found.op.leaf else value  # x ** 1 of integers is x
