"""What a GPU does beside Python, by CUDA's runtime itself: graphs of launches, and copies while it computes.

TVM asks everything of the default stream, which does one thing after the other. A graph is recorded on a stream of its
own and runs on the default one, as one call. Copies from the host go by another stream; events tell each stream how far
the other one is.
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
    """CUDA's runtime, which TVM's has loaded."""
    found = ctypes.CDLL("libcudart.so.13")
    found.cudaGetErrorString.restype = ctypes.c_char_p
    return found


def _call(name: str, *arguments: Any) -> None:
    """Calls a function of the runtime. Raises DeviceError with what it says."""
    if code := getattr(_library(), name)(*arguments):
        _library().cudaGetLastError()  # which forgets it
        raise DeviceError(f"{name}: {_library().cudaGetErrorString(code).decode()}")


def _made(name: str, *arguments: Any) -> ctypes.c_void_p:
    """The handle that a function of the runtime makes."""
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
    """Launches as one call, recorded while `ask` makes them. These must have run before, so that all code is loaded,
    and neither take memory nor wait. Raises DeviceError where CUDA does not record them."""

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
        """Asks for all launches. Raises DeviceError."""
        _call("cudaSetDevice", self._index)
        _call("cudaGraphLaunch", self._made, _DEFAULT)


class Staging:
    """A GPU's arrays for one value after another that comes from the host: two, so that the next one is copied while
    kernels still read the last one. From the second one on values are copied by way of memory that the GPU reads by
    itself, while Python goes on."""

    def __init__(self, ctx: Context, shape: Shape, dtype: str) -> None:
        """Raises DeviceError for a device that is not there."""
        self._ctx, self._shape, self._dtype = ctx.require(), shape, dtype
        self._places: list[_Place] = []
        self._turn = 0
        self._asked: Any = None  # the event that all is done which was asked for before the latest value

    def put(self, value: np.ndarray) -> Array:
        """The array that has the value for all that is asked of the GPU from now on until the next one but one. The
        value itself may change at once. Raises DeviceError."""
        _call("cudaSetDevice", self._ctx.index)
        if len(self._places) < 2:
            self._places.append(_Place(self._ctx, self._shape, self._dtype))
        if len(self._places) == 1:  # perhaps the only one
            return self._places[0].array.copyfrom(value)
        self._turn = 1 - self._turn
        place, copies = self._places[self._turn], _stream(self._ctx.index, "copies")
        if self._asked is None:
            self._asked = _made("cudaEventCreateWithFlags", _UNTIMED)
        else:  # what has read this place was asked for before the value in the other place came
            _call("cudaStreamWaitEvent", copies, self._asked, 0)
        place.fill(value, copies)
        _call("cudaStreamWaitEvent", _DEFAULT, place.copied, 0)
        _call("cudaEventRecord", self._asked, _DEFAULT)
        return place.array


class _Place:
    """An array of a GPU, and memory of the host by way of which it is filled.

    Attributes:
        copied: the event that it is.
    """

    def __init__(self, ctx: Context, shape: Shape, dtype: str) -> None:
        self.array = Array(allocate(shape, dtype, ctx), ctx, shape, dtype)
        self.copied = _made("cudaEventCreateWithFlags", _UNTIMED)
        self._host: Any = None

    def fill(self, value: np.ndarray, stream: ctypes.c_void_p) -> None:
        """Copies a value here, by a stream; waits until the last one has left the host's memory."""
        if self._host is None:
            self._pin(value)
        _call("cudaEventSynchronize", self.copied)
        np.copyto(self._host, value)
        target = ctypes.c_void_p(self.array.tensor.data_ptr())
        _call("cudaMemcpyAsync", target, self._pinned, ctypes.c_size_t(value.nbytes), _TO_DEVICE, stream)
        _call("cudaEventRecord", self.copied, stream)

    def _pin(self, like: np.ndarray) -> None:
        """Takes memory of the host, for values like this one."""
        self._pinned = _made("cudaMallocHost", ctypes.c_size_t(like.nbytes))
        memory: Any = (ctypes.c_char * like.nbytes).from_address(self._pinned.value or 0)
        self._host = np.ndarray(like.shape, like.dtype, memory)
        weakref.finalize(self, _release, self.copied, self._pinned).atexit = False


def _release(copied: ctypes.c_void_p, pinned: ctypes.c_void_p) -> None:
    """Gives memory of the host back when it was read."""
    _library().cudaEventSynchronize(copied)
    _library().cudaFreeHost(pinned)
    _library().cudaEventDestroy(copied)
