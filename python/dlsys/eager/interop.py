"""NumPy's functions of tensors: `np.exp(x)`, `np.sum(x)` and the rest compute with x's value and give NumPy's arrays.

What Python's operators mean, as `array + x`, gives tensors, also by NumPy's names, as `np.add(array, x)`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..autodiff import Node
from ..errors import GraphError

_OPERATORS: dict[
    Any, tuple[str, str]
] = {  # the tensor's method where it is the first operand, and the second
    np.add: ("__add__", "__radd__"),
    np.subtract: ("__sub__", "__rsub__"),
    np.multiply: ("__mul__", "__rmul__"),
    np.divide: ("__truediv__", "__rtruediv__"),
    np.floor_divide: ("__floordiv__", "__rfloordiv__"),
    np.remainder: ("__mod__", "__rmod__"),
    np.power: ("__pow__", "__rpow__"),
    np.matmul: ("__matmul__", "__rmatmul__"),
    np.equal: ("__eq__", "__eq__"),
    np.not_equal: ("__ne__", "__ne__"),
    np.less: ("__lt__", "__gt__"),
    np.less_equal: ("__le__", "__ge__"),
    np.greater: ("__gt__", "__lt__"),
    np.greater_equal: ("__ge__", "__le__"),
    np.bitwise_and: ("__and__", "__rand__"),
    np.bitwise_or: ("__or__", "__ror__"),
    np.bitwise_xor: ("__xor__", "__rxor__"),
}
_TYPES: dict[Any, str] = {np.shape: "shape", np.ndim: "ndim"}  # which need no value


def _values(given: Any) -> Any:
    """Tensors as arrays, also within lists, tuples and dictionaries."""
    if isinstance(given, Node):
        return given.numpy()  # type: ignore[attr-defined]
    if isinstance(given, (list, tuple)):
        return [_values(item) for item in given] if isinstance(given, list) else tuple(map(_values, given))
    if isinstance(given, dict):
        return {key: _values(item) for key, item in given.items()}
    return given


def _require_no_tensor(function: Any, out: Any) -> None:
    """Raises GraphError where NumPy would write to a tensor."""
    if any(isinstance(item, Node) for item in (out if isinstance(out, tuple) else (out,))):
        raise GraphError(f"np.{function.__name__}: a tensor cannot be `out`: use copy_ or x[...] = value")


class Interop:
    """NumPy's protocols, as methods of tensors."""

    def __array_ufunc__(self: Any, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method == "__call__" and not kwargs and ufunc in _OPERATORS:
            first, second = inputs
            if isinstance(first, Node):
                return getattr(first, _OPERATORS[ufunc][0])(second)
            return getattr(second, _OPERATORS[ufunc][1])(first)
        _require_no_tensor(ufunc, kwargs.get("out"))
        return getattr(ufunc, method)(*_values(inputs), **_values(kwargs))

    def __array_function__(self: Any, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function in _TYPES:
            return getattr(args[0], _TYPES[function])
        _require_no_tensor(function, kwargs.get("out"))
        return function(*_values(args), **_values(kwargs))
