"""Copies between host memory and a GPU, and views of arrays on a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm_ffi

Shape = tuple[int, ...]

_to_host = tvm_ffi.get_global_func("runtime.TVMTensorCopyToBytes")
between: Callable[[Any, Any], None] = tvm_ffi.get_global_func("runtime.TVMTensorCopyFromTo")
"""Copies a GPU's array, the first one, to another one on it, of the same shape and dtype."""
_from_host = tvm_ffi.get_global_func("runtime.TVMTensorCopyFromBytes")


def to_host(tensor: Any, dtype: str) -> np.ndarray:
    """A copy of a GPU's array as a NumPy array; waits for the GPU's earlier work."""
    found = np.empty(tuple(tensor.shape), dtype)
    _to_host(tensor, ctypes.c_void_p(found.ctypes.data), found.nbytes)
    return found


def from_host(tensor: Any, value: np.ndarray) -> None:
    """Set a GPU's array from a contiguous NumPy array of its shape and dtype."""
    _from_host(tensor, ctypes.c_void_p(value.ctypes.data), value.nbytes)


_view = tvm_ffi.get_global_func("runtime.TVMTensorCreateView")
_HEADER = 24  # bytes of an object of TVM's before its DLTensor, see `tvm/ffi/c_api.h`
_DATA, _BYTE_OFFSET = _HEADER, _HEADER + 40  # the places of these fields, see `dlpack.h`


def part_of(tensor: Any, shape: Shape, dtype: str, offset: int) -> Any:
    """A GPU's tensor from byte `offset` on: the same memory with another shape and dtype.

    TVM's views have the same pointer and a byte offset, which kernels refuse; so the view's pointer is moved instead.
    """
    view = _view(tensor, tvm_ffi.Shape(shape), tvm_ffi.dtype(dtype), offset)
    told = ctypes.c_uint64.from_address(view.__chandle__() + _BYTE_OFFSET)
    ctypes.c_uint64.from_address(view.__chandle__() + _DATA).value += told.value
    told.value = 0
    return view
