"""Exchange between the GPUs of several processes, by calls of NVIDIA's NCCL.

Messages are sent on a stream of their own. An event lets it wait for what is sent; another one lets the kernels that
read the result wait for it. Nobody waits on the host, and CUDA records messages into a graph as it records kernels:
"Using NCCL with CUDA Graphs" in NCCL's user guide.
"""

from __future__ import annotations

import ctypes
import importlib.util
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi

from ..errors import CommunicationError, DeviceError
from . import streams
from .array import Array
from .context import Context

NAME, BYTES_OF_ID, BYTES_OF_NAME = "libnccl.so.2", 128, 128
LACKING = "GPUs exchange values by NCCL, which was not found (libnccl.so.2): pip install nvidia-nccl-cu13"
DTYPES = {"int8": 0, "uint8": 1, "int32": 2, "int64": 4, "float32": 7, "float64": 8}  # ncclDataType_t
OPERATIONS = {"sum": 0, "max": 2, "min": 3}  # ncclRedOp_t


class _UniqueId(ctypes.Structure):
    """ncclUniqueId, which is passed by value."""

    _fields_ = (("internal", ctypes.c_char * BYTES_OF_ID),)


@cache
def _library() -> Any:
    """NCCL. Raises DeviceError where it is not found."""
    places = getattr(importlib.util.find_spec("nvidia"), "submodule_search_locations", None) or ()
    for name in (NAME, *(str(Path(place, "nccl", "lib", NAME)) for place in places)):
        try:
            found = ctypes.CDLL(name)
        except OSError:
            continue
        found.ncclGetErrorString.restype = found.ncclGetLastError.restype = ctypes.c_char_p
        return found
    raise DeviceError(LACKING)


def _call(name: str, *arguments: Any) -> None:
    """Calls a function of NCCL. Raises CommunicationError with NCCL's message."""
    if code := getattr(_library(), name)(*arguments):
        told = [_library().ncclGetErrorString(code), _library().ncclGetLastError(None)]
        raise CommunicationError(f"{name}: {': '.join(text.decode() for text in told if text)}")


@cache
def connect(
    ctx: Context, rank: int, size: int, gather: Callable[[Any], Any], share: Callable[[Any], Any]
) -> Nccl:
    """NCCL's communicator of all ranks, each with a GPU of its own; all call this, and it is made once. `gather` gives
    all ranks the arrays of all, `share` rank 0's. Raises DeviceError without NCCL or a GPU, CommunicationError for two
    ranks on one GPU."""
    _library()
    streams._call("cudaSetDevice", ctx.require().index)
    bus = ctypes.create_string_buffer(32)
    streams._call("cudaDeviceGetPCIBusId", bus, ctypes.c_int(32), ctypes.c_int(ctx.index))
    machine = Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    own = np.zeros(BYTES_OF_NAME, np.uint8)
    name = bus.value + b" " + machine
    own[: len(name)] = np.frombuffer(name, np.uint8)
    rank_of: dict[bytes, int] = {}
    for other, found in enumerate(gather(own).reshape(size, -1)):
        if (first := rank_of.setdefault(bytes(found), other)) != other:
            told = "NCCL takes one rank for each: start as many processes on a node as it has GPUs"
            raise CommunicationError(f"ranks {first} and {other} are on one GPU ({bytes(found)[:12].decode()}): {told}")
    identity = _UniqueId()
    if rank == 0:
        _call("ncclGetUniqueId", ctypes.byref(identity))
    shared = share(np.frombuffer(bytes(identity), np.uint8))
    return Nccl(ctx, rank, size, shared.tobytes())


class Nccl:
    """The ranks of a group on one GPU each: a communicator as those of `dlsys.distributed`, of arrays on the GPU."""

    def __init__(self, ctx: Context, rank: int, size: int, identity: bytes) -> None:
        """`identity`: NCCL's unique id of the group. Returns when all ranks have come. Raises CommunicationError."""
        self.rank: int = rank
        self.size: int = size
        self._ctx, self._comm = ctx, ctypes.c_void_p()
        streams._call("cudaSetDevice", ctx.index)
        by_value = _UniqueId.from_buffer_copy(identity)
        _call("ncclCommInitRank", ctypes.byref(self._comm), ctypes.c_int(size), by_value, ctypes.c_int(rank))
        self._stream = streams._stream(ctx.index, "messages")
        self._events: list[ctypes.c_void_p] = []  # that nobody uses
        weakref.finalize(self, _library().ncclCommDestroy, self._comm).atexit = False

    def start(self, kind: str, send: Array, receive: Array, operation: str = "sum", root: int = 0) -> _Sent:
        """Begin an exchange, see `distributed.Communicator.start`, when all work that was started before is done.
        Raises CommunicationError, also for a dtype that NCCL does not have."""
        if send.dtype not in DTYPES:
            raise CommunicationError(f"NCCL exchanges no {send.dtype}, but {', '.join(DTYPES)}")
        ready = self._recorded(self.computing())
        streams._call("cudaStreamWaitEvent", self._stream, ready, 0)
        self._events.append(ready)
        places = [ctypes.c_void_p(array.tensor.data_ptr()) for array in (send, receive)]
        dtype, added, end = DTYPES[send.dtype], OPERATIONS[operation], (self._comm, self._stream)
        if kind == "all_reduce":
            _call("ncclAllReduce", *places, ctypes.c_size_t(send.size), dtype, added, *end)
        elif kind == "reduce_scatter":
            _call("ncclReduceScatter", *places, ctypes.c_size_t(receive.size), dtype, added, *end)
        elif kind == "all_gather":
            _call("ncclAllGather", *places, ctypes.c_size_t(send.size), dtype, *end)
        else:
            _call("ncclBroadcast", *places, ctypes.c_size_t(receive.size), dtype, root, *end)
        return _Sent(self, self._recorded(self._stream))

    def computing(self) -> ctypes.c_void_p:
        """The stream on which kernels are started now: the default one, or one that CUDA records."""
        return ctypes.c_void_p(tvm_ffi.get_raw_stream(self._ctx.device) or 0)

    def _recorded(self, stream: ctypes.c_void_p) -> ctypes.c_void_p:
        """An event behind all that a stream was asked for."""
        streams._call("cudaSetDevice", self._ctx.index)
        made = self._events.pop() if self._events else streams._made("cudaEventCreateWithFlags", streams._UNTIMED)
        streams._call("cudaEventRecord", made, stream)
        return made

    def let_wait(self, event: ctypes.c_void_p) -> None:
        """Let kernels that are started from now on wait for an event, which is used no more."""
        streams._call("cudaStreamWaitEvent", self.computing(), event, 0)
        self._events.append(event)


class _Sent:
    """An exchange on NCCL's stream: a request, on which the host does not wait."""

    def __init__(self, by: Nccl, done: ctypes.c_void_p) -> None:
        self._by, self._done = by, done

    def test(self) -> bool:
        return False  # it makes progress by itself

    def wait(self) -> None:
        self._by.let_wait(self._done)
