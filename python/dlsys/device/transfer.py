"""Copies between this process's memory and a GPU's, and arrays there that begin within others."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import tvm_ffi

Shape = tuple[int, ...]

_to_host = tvm_ffi.get_global_func("runtime.TVMTensorCopyToBytes")
_from_host = tvm_ffi.get_global_func("runtime.TVMTensorCopyFromBytes")


def to_host(tensor: Any, dtype: str) -> np.ndarray:
    """A copy of a GPU's array, when all that was asked of the GPU before is done."""
    found = np.empty(tuple(tensor.shape), dtype)
    _to_host(tensor, ctypes.c_void_p(found.ctypes.data), found.nbytes)
    return found


def from_host(tensor: Any, value: np.ndarray) -> None:
    """Sets a GPU's array from a contiguous one of its shape and dtype."""
    _from_host(tensor, ctypes.c_void_p(value.ctypes.data), value.nbytes)


class _Tensor(ctypes.Structure):
    """DLPack's DLManagedTensor, of `dlpack.h`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_CODES = {"f": 2, "i": 0, "u": 1, "b": 6}  # DLDataTypeCode, by NumPy's kind
_lent: dict[int, tuple[Any, ...]] = {}  # what lent memory needs, until it is given back


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _give_back(address: int) -> None:
    _lent.pop(address, None)


_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype, _capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class _Part:
    """A part of a tensor's memory as DLPack hands it over. A view that TVM makes begins at a byte offset, and kernels
    take none but 0."""

    def __init__(self, tensor: Any, shape: Shape, dtype: str, offset: int) -> None:
        kind = np.dtype(dtype)
        extents = (ctypes.c_int64 * len(shape))(*shape)
        strides = (ctypes.c_int64 * len(shape))(*(math.prod(shape[axis + 1 :]) for axis in range(len(shape))))
        device = (int(tensor.device.dlpack_device_type()), int(tensor.device.index))
        made = _Tensor(tensor.data_ptr() + offset, device, len(shape), _CODES[kind.kind], 8 * kind.itemsize, 1)
        made.shape, made.strides = ctypes.addressof(extents), ctypes.addressof(strides)
        made.deleter = ctypes.cast(_give_back, ctypes.c_void_p).value
        self._device, self._address = device, ctypes.addressof(made)
        _lent[self._address] = (made, extents, strides, tensor)

    def __dlpack__(self, **options: Any) -> Any:
        return _capsule(self._address, b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


def part_of(tensor: Any, shape: Shape, dtype: str, offset: int) -> Any:
    """A GPU's tensor from byte `offset` on, the same memory under another shape and dtype."""
    return tvm_ffi.from_dlpack(_Part(tensor, shape, dtype, offset))
