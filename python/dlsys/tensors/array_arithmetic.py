"""Arithmetic of a device's arrays with arrays and numbers, by kernels on that device: `W - 0.1 * grad`."""

from __future__ import annotations

import operator
import threading
from collections import OrderedDict
from typing import Any

import numpy as np

from ..checks import in_dtype
from ..device import Array, Context, cpu, to_array
from ..errors import DTypeError
from ..executor import Executor
from ..graph import DTYPES, Node
from ..ops import Variable
from ..ops.operators import is_number, require_held
from ..ops.types import dtype_beside
from .trace import arena_of

_OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "@": operator.matmul,
    "**": operator.pow,
}
MOST = 256  # executors, each of one operator, two shapes and dtypes; some 20 KiB each; those used last
_executors: OrderedDict[tuple[Any, ...], tuple[Executor, list[Node]]] = OrderedDict()
_lock = threading.Lock()


def apply(symbol: str, a: Any, b: Any) -> Any:
    """`a <symbol> b` as a new Array on the device of the one that is an Array; by the rules of tensors for shapes and
    dtypes. NotImplemented for what is no array or number. Raises ShapeError, DTypeError, DeviceError."""
    one: Array = a if isinstance(a, Array) else b
    operands = []
    for value in (a, b):
        if isinstance(value, Node) or not (isinstance(value, (Array, np.ndarray)) or is_number(value)):
            return NotImplemented
        if not isinstance(value, Array):
            value = to_array(_beside(one, value) if is_number(value) else value, cpu())
        if value.dtype not in DTYPES:
            raise DTypeError(f"{symbol}: dtype {value.dtype} is not one of {', '.join(DTYPES)}")
        operands.append(value)
    executor, variables = _executor(symbol, one.context, *((value.shape, value.dtype) for value in operands))
    return executor.run_copied(dict(zip(variables, operands, strict=True)))[0]


def _beside(array: Array, number: Any) -> np.ndarray:
    """The number in the dtype that it takes beside the array. Raises DTypeError where that does not hold it."""
    dtype = dtype_beside(array.dtype, number)
    require_held(dtype, number, "the array")
    return in_dtype(number, dtype)


def _executor(symbol: str, context: Context, *types: tuple[Any, str]) -> tuple[Executor, list[Node]]:
    key = (symbol, context, types)
    with _lock:
        found = _executors.get(key)
        if found is not None:
            _executors.move_to_end(key)
            return found
    variables = [Variable(name, *of) for name, of in zip("ab", types, strict=True)]
    found = Executor([_OPERATORS[symbol](*variables)], context, arena=arena_of(context)), variables
    with _lock:
        _executors[key] = found
        while len(_executors) > MOST:
            _executors.popitem(last=False)
    return found
