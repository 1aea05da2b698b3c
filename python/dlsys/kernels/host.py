"""Kernels that are functions of NumPy's arrays, called on the host in the place of machine code."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import tvm_ffi

from ..devices import lies_on
from ..devices.transfer import from_host, to_host
from .kernel import Kernel
from .spec import KernelSpec, TargetName


class HostKernel(Kernel):
    """The function `host` of a specification as a kernel. A GPU's arrays are copied to the host, and the results back.
    """

    scratch = ()
    rule = SimpleNamespace(name="numpy")

    def __init__(self, spec: KernelSpec, how: TargetName) -> None:
        assert spec.host is not None
        function = tvm_ffi.convert(partial(_run, spec.host))
        super().__init__(spec, replace(how, checked=False), {spec.symbol: function}, 0)

    def script(self) -> str:
        """A comment in place of loops."""
        return f"# {self.name}: a function of NumPy's, on the host"

    def source(self, form: str = "asm") -> str:
        """A comment in place of code."""
        return self.script()


def _run(host: Callable[..., Any], *tensors: Any) -> None:
    """Fill the last tensor with the function of those before it. What that raises `failure` has: who calls a table of
    kernels learns only that one of them has failed."""
    try:
        _filled(host, *tensors)
    except BaseException as error:
        _failed.error = error
        raise


_failed = threading.local()


def failure() -> BaseException | None:
    """The exception of this thread's latest function, returned once; None if it raised none."""
    error, _failed.error = getattr(_failed, "error", None), None
    return error


def _filled(host: Callable[..., Any], *tensors: Any) -> None:
    *inputs, output = tensors
    if lies_on(output).kind == "cpu":
        _memory(output)[...] = host(*map(_memory, inputs))
    else:
        found = host(*[to_host(tensor, str(tensor.dtype)) for tensor in inputs])
        from_host(output, np.ascontiguousarray(found, str(output.dtype)))


def _memory(tensor: Any) -> np.ndarray:
    """A tensor of the CPU as a NumPy array, the same memory: by its address, since a table's arguments have no owner,
    without which DLPack ends the process."""
    shape, dtype = tuple(map(int, tensor.shape)), np.dtype(str(tensor.dtype))
    memory = (ctypes.c_byte * (math.prod(shape) * dtype.itemsize)).from_address(tensor.data_ptr())
    return np.frombuffer(memoryview(memory), dtype).reshape(shape)
