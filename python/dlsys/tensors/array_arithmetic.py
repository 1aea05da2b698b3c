"""Arithmetic of a device's arrays with arrays and numbers, by kernels on that device: `W - 0.1 * grad`."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ..device import Array, Context
from ..errors import DTypeError
from ..executor import Executor
from ..graph import DTYPES, Node
from ..ops import Variable

_OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "@": operator.matmul,
    "**": operator.pow,
}
_executors: dict[tuple[Any, ...], tuple[Executor, list[Node]]] = {}


def apply(symbol: str, a: Any, b: Any) -> Any:
    """`a <symbol> b` as a new Array on the device of the one that is an Array; by the rules of tensors for shapes and
    dtypes. NotImplemented for what is no array or number. Raises ShapeError, DTypeError, DeviceError."""
    context: Context = (a if isinstance(a, Array) else b).context
    operands = []
    for value in (a, b):
        if isinstance(value, (bool, int, float, np.generic)):
            wanted = None if isinstance(value, np.generic) else {bool: "bool", int: "int64"}.get(type(value), "float32")
            value = np.asarray(value, wanted)
        elif isinstance(value, Node) or not isinstance(value, (Array, np.ndarray)):
            return NotImplemented
        if str(value.dtype) not in DTYPES:
            raise DTypeError(f"{symbol}: dtype {value.dtype} is not one of {', '.join(DTYPES)}")
        operands.append(value)
    types = [(() if value.ndim == 0 else None, str(value.dtype)) for value in operands]
    key = (symbol, context, *types)
    if key not in _executors:
        variables = [Variable(name, *of) for name, of in zip("ab", types, strict=True)]
        _executors[key] = Executor([_OPERATORS[symbol](*variables)], context), variables
    executor, variables = _executors[key]
    return executor.run_copied(dict(zip(variables, operands, strict=True)))[0]
