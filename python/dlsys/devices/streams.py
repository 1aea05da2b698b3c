"""CUDA graphs of launches, and copies from the host while the GPU computes, by calls of CUDA's runtime.

TVM uses the default stream for everything, so work runs one after another. A graph is recorded on a separate stream
and runs on the default one, as one call. Copies from the host use a third stream; events let the streams wait for each
other.
"""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import tvm_ffi

from ..errors import DeviceError
from ..system import free_at_fork
from .array import Array, Shape, allocate
from .context import Context

_APART, _UNTIMED, _THIS_THREAD, _TO_DEVICE = 1, 2, 1, 1  # CUDA's numbers of these kinds of stream, event, capture, copy
_DEFAULT = ctypes.c_void_p(0)


@cache
def _library() -> Any:
    """CUDA's runtime, which TVM has loaded."""
    found = ctypes.CDLL("libcudart.so.13")
    found.cudaGetErrorString.restype = ctypes.c_char_p
    return found


def _call(name: str, *arguments: Any) -> None:
    """Calls a function of CUDA's runtime. Raises DeviceError with CUDA's message."""
    if code := getattr(_library(), name)(*arguments):
        _library().cudaGetLastError()  # clears the error
        raise DeviceError(f"{name}: {_library().cudaGetErrorString(code).decode()}")


def _made(name: str, *arguments: Any) -> ctypes.c_void_p:
    """The handle that a function of CUDA's runtime creates."""
    found = ctypes.c_void_p()
    _call(name, ctypes.byref(found), *arguments)
    return found


@cache
def _stream(index: int, purpose: str) -> ctypes.c_void_p:
    """A stream of a device that does not wait for the default one."""
    _call("cudaSetDevice", index)
    return _made("cudaStreamCreateWithFlags", _APART)


_recording = free_at_fork(threading.Lock())  # a device has one stream to record on


class Graph:
    """Launches as one call, recorded while `ask` makes them. They must have run before, so that all code is loaded, and
    must neither allocate memory nor wait. Raises DeviceError if CUDA cannot record them."""

    def __init__(self, device: Any, ask: Callable[[], None]) -> None:
        """`device`: TVM's."""
        self._index = device.index
        graph, collects = ctypes.c_void_p(), gc.isenabled()
        with _recording:
            stream = _stream(device.index, "graphs")
            _call("cudaSetDevice", device.index)
            gc.disable()  # an array that is freed in between would end the recording
            try:
                _call("cudaStreamBeginCapture", stream, _THIS_THREAD)
                try:
                    with tvm_ffi.use_raw_stream(device, stream.value or 0):
                        ask()
                finally:
                    _call("cudaStreamEndCapture", stream, ctypes.byref(graph))
            finally:
                if collects:
                    gc.enable()
        self._made = _made("cudaGraphInstantiate", graph, ctypes.c_ulonglong(0))
        _call("cudaGraphDestroy", graph)
        weakref.finalize(self, _library().cudaGraphExecDestroy, self._made).atexit = False

    def launch(self) -> None:
        """Start all launches. Raises DeviceError."""
        _call("cudaSetDevice", self._index)
        _call("cudaGraphLaunch", self._made, _DEFAULT)


class Staging:
    """Two arrays on a GPU for a sequence of values from the host, so that the next value is copied while kernels still
    read the last one. From the second value on, values are copied through pinned memory, while Python continues."""

    def __init__(self, ctx: Context, shape: Shape, dtype: str) -> None:
        """Raises DeviceError for an absent device."""
        self._ctx, self._shape, self._dtype = ctx.require(), shape, dtype
        self._places: list[_Place] = []
        self._turn = 0
        self._asked: Any = None  # the event after all work that was started before the latest value

    def put(self, value: np.ndarray) -> Array:
        """An Array with the value on the GPU, valid until the second next `put`; `value` may change at once. Raises
        DeviceError."""
        _call("cudaSetDevice", self._ctx.index)
        if len(self._places) < 2:
            self._places.append(_Place(self._ctx, self._shape, self._dtype))
        if len(self._places) == 1:  # perhaps the only one
            return self._places[0].array.copyfrom(value)
        self._turn = 1 - self._turn
        place, copies = self._places[self._turn], _stream(self._ctx.index, "copies")
        if self._asked is None:
            self._asked = _made("cudaEventCreateWithFlags", _UNTIMED)
        else:  # kernels that read this array were started before the value in the other array came
            _call("cudaStreamWaitEvent", copies, self._asked, 0)
        place.fill(value, copies)
        _call("cudaStreamWaitEvent", _DEFAULT, place.copied, 0)
        _call("cudaEventRecord", self._asked, _DEFAULT)
        return place.array


class _Place:
    """An array on a GPU and pinned host memory through which it is filled.

    Attributes:
        array: the Array.
        copied: the event after the latest copy.
    """

    def __init__(self, ctx: Context, shape: Shape, dtype: str) -> None:
        self.array = Array(allocate(shape, dtype, ctx), ctx, shape, dtype)
        self.copied = _made("cudaEventCreateWithFlags", _UNTIMED)
        self._host: Any = None

    def fill(self, value: np.ndarray, stream: ctypes.c_void_p) -> None:
        """Copy a value into the array, on a stream; first wait until the last copy has left the pinned memory."""
        if self._host is None:
            self._pin(value)
        _call("cudaEventSynchronize", self.copied)
        np.copyto(self._host, value)
        target = ctypes.c_void_p(self.array.tensor.data_ptr())
        _call("cudaMemcpyAsync", target, self._pinned, ctypes.c_size_t(value.nbytes), _TO_DEVICE, stream)
        _call("cudaEventRecord", self.copied, stream)

    def _pin(self, like: np.ndarray) -> None:
        """Allocate pinned memory for values like this one."""
        self._pinned = _made("cudaMallocHost", ctypes.c_size_t(like.nbytes))
        memory: Any = (ctypes.c_char * like.nbytes).from_address(self._pinned.value or 0)
        self._host = np.ndarray(like.shape, like.dtype, memory)
        weakref.finalize(self, _release, self.copied, self._pinned).atexit = False


def _release(copied: ctypes.c_void_p, pinned: ctypes.c_void_p) -> None:
    """Free pinned memory after the last copy from it."""
    _library().cudaEventSynchronize(copied)
    _library().cudaFreeHost(pinned)
    _library().cudaEventDestroy(copied)
