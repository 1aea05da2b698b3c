"""A compiled Relax module in Relax's virtual machine, called with arrays. Needs TVM's runtime only."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import tvm_ffi

from ..devices import Array, Context, context, to_array
from ..devices.context import DLPACK_CPU, DLPACK_CUDA
from ..errors import DlsysError, KernelArgumentError
from ..system import free_at_fork

MAIN = "main"
_WRONG = re.compile(r"param=(\w+), annotation=R\.Tensor\((.*)\)\)")  # the virtual machine's error for an input
_POOLED = 2  # the number of TVM's allocator that keeps freed memory for the next call


class Machine:
    """The function `main` of a compiled module. Calls from several threads take turns.

    Attributes:
        names: the inputs' names, in order.
        ctx: the context in which it runs.
    """

    def __init__(self, library: Any, ctx: Context) -> None:
        """`library`: the loaded module with the virtual machine's code and the kernels."""
        machine = library["vm_load_executable"]()
        devices = [(DLPACK_CUDA, ctx.index, _POOLED)] if ctx.kind == "cuda" else []
        machine["vm_initialization"](*(number for device in [*devices, (DLPACK_CPU, 0, _POOLED)] for number in device))
        count = machine["get_function_arity"](MAIN)
        self.names: tuple[str, ...] = tuple(machine["get_function_param_name"](MAIN, i) for i in range(count))
        self.ctx = ctx
        self._main = machine[MAIN]
        self._lock = free_at_fork(threading.Lock())

    def __call__(self, *inputs: Any) -> list[Array]:
        """The results, in new memory; but the new value of an assigned parameter is written into the input, if that is
        an Array or a contiguous NumPy array.

        Raises KernelArgumentError for another number of inputs and for another shape or dtype, DTypeError for an input
        that is no array, DeviceError for one on another device.
        """
        if len(inputs) != len(self.names):
            raise KernelArgumentError(f"takes {len(self.names)} arrays, {', '.join(self.names)}; got {len(inputs)}")
        tensors = [to_array(value, self.ctx).tensor for value in inputs]
        try:
            with self._lock:
                results = self._main(*tensors)
        except (RuntimeError, TypeError, ValueError) as error:
            message = str(error).strip().splitlines()[0]
            wrong = _WRONG.search(message)
            raise KernelArgumentError(f"{wrong[1]} must be {wrong[2]}" if wrong else message) from None
        return [Array(value, self.ctx) for value in (results if isinstance(results, tvm_ffi.Array) else [results])]


def load(path: Any, ctx: Any = None) -> Machine:
    """The module that `Compiled.export` has written, whose code is run. Raises DlsysError for another file."""
    try:
        return Machine(tvm_ffi.load_module(str(Path(path).resolve())), context(ctx))
    except (AttributeError, OSError, RuntimeError) as error:
        raise DlsysError(f"{path} is not a compiled module: {str(error).strip().splitlines()[0]}") from None
