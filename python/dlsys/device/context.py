"""Contexts: where arrays live and a graph runs, on how many threads."""

from __future__ import annotations

import functools
import itertools
import numbers
import os
import platform
import re
from dataclasses import dataclass
from typing import Any

import tvm_ffi

from ..checks import integer, word
from ..errors import DeviceError, DlsysError, DTypeError
from ..system import THREADS, at_fork
from ..tvm_import import load_cuda

_NAMES = {"cpu": "cpu", "cuda": "cuda", "gpu": "cuda", "numpy": "numpy"}
DLPACK_CPU, DLPACK_CUDA = 1, 2
KINDS = {DLPACK_CPU: "cpu", DLPACK_CUDA: "cuda"}
EXISTS, COMPUTE_VERSION, NAME = 0, 4, 5  # of TVM's DeviceAttrKind


def _runtime(name: str) -> Any:
    """A function of TVM's runtime."""
    return tvm_ffi.get_global_func(f"runtime.{name}")


@dataclass(frozen=True)
class Context:
    """Where arrays live and a graph runs: `kind` is "cpu", "cuda" or "numpy"."""

    kind: str
    index: int = 0

    def __post_init__(self) -> None:
        """Raises DeviceError for what is no kind, and no index."""
        word("Context", "the kind", self.kind, ("cpu", "cuda", "numpy"), DeviceError)
        integer("Context", "the index", self.index, 0, DeviceError)

    def __repr__(self) -> str:
        return "numpy()" if self.kind == "numpy" else f"{self.kind}({self.index})"

    def require(self) -> Context:
        """Itself, if this machine has it. Raises DeviceError."""
        if self.kind == "cpu" and self.index:
            raise DeviceError(f"{self} is not available: all cores are one device, dlsys.cpu(0)")
        if self.kind == "cuda":
            if lacking := cuda.lacking():
                raise DeviceError(f"{self} is not available: {lacking}; use dlsys.cpu()")
            if not self.enabled():
                raise DeviceError(f"{self} is not available: this machine has no such device; use dlsys.cpu()")
        return self

    def enabled(self) -> bool:
        """Whether this machine has it, needle's question."""
        return self.kind != "cuda" or self.index < cuda.device_count()

    @property
    def device(self) -> Any:
        """TVM's device. All indices of the CPU are one memory, which TVM knows as index 0."""
        return tvm_ffi.device("cuda", self.index) if self.kind == "cuda" else tvm_ffi.device("cpu", 0)

    def synchronize(self) -> None:
        """Returns when all that was asked of a GPU is done; at once elsewhere."""
        if self.kind == "cuda":
            _runtime("Device_StreamSync")(self.device, 0)


_one = functools.cache(Context)  # so that `is` tells whether two are the same


def cpu(index: int = 0) -> Context:
    """The CPU."""
    return _one("cpu", integer("cpu", "the index", index, 0, DeviceError))


class Cuda:
    """`cuda(index)` is a CUDA device. That it exists is checked where arrays or executors are made on it."""

    def __call__(self, index: int = 0) -> Context:
        return _one("cuda", integer("cuda", "the index", index, 0, DeviceError))

    def is_available(self) -> bool:
        """Whether this machine has a CUDA device and its runtime."""
        return self.device_count() > 0

    def device_count(self) -> int:
        """How many CUDA devices this machine has."""
        enabled = not self.lacking()
        return next(i for i in itertools.count() if not (enabled and self.attribute(i, EXISTS)))

    def lacking(self) -> str:
        """Why kernels cannot run on a GPU here, and what to install; empty where driver and runtime are there."""
        return load_cuda()

    def describe(self, index: int) -> str:
        """A device's name and compute capability: "NVIDIA H200 (compute 9.0)". Raises DeviceError where it is not."""
        self(index).require()
        return f"{self.attribute(index, NAME)} (compute {self.attribute(index, COMPUTE_VERSION)})"

    def attribute(self, index: int, which: int) -> Any:
        """A fact of a device, by its number among TVM's attributes."""
        return _runtime("GetDeviceAttr")(DLPACK_CUDA, index, which)


cuda: Cuda = Cuda()
gpu: Cuda = cuda


def numpy() -> Context:
    """The operators' NumPy rules in place of kernels: the reference."""
    return _one("numpy", 0)


def context(value: Any = None) -> Context:
    """The context meant by a Context, a TVM device, "cpu", "cuda:1", "gpu", "numpy", or None (the CPU).

    Raises DeviceError for anything else, and for a device that this machine lacks.
    """
    return named(value).require()


def named(value: Any) -> Context:
    """As `context`, whether this machine has the device or not."""
    if value is None:
        return cpu()
    if isinstance(value, Context):
        return value
    if isinstance(value, tvm_ffi.Device) and value.dlpack_device_type() in KINDS:
        return _one(KINDS[value.dlpack_device_type()], value.index)
    match = re.fullmatch(r"([a-z]+)(?:[:(](\d+)\)?)?", value.strip()) if isinstance(value, str) else None
    if match and match[1] in _NAMES:
        return _one(_NAMES[match[1]], int(match[2] or 0))
    raise DeviceError(f"unknown context {value!r}: use dlsys.cpu(0), dlsys.cuda(0) or dlsys.numpy()")


_thread_ceiling = int(os.environ[THREADS])


def _alone() -> None:
    """Has kernels run on the one thread that a forked process has: they would wait for the parent's others."""
    global _thread_ceiling
    _thread_ceiling = 1
    _runtime("config_threadpool")(1, 1)


at_fork(_alone)


PRECISIONS = ("highest", "high", "medium")
_precision = PRECISIONS[0]
X86 = ("x86_64", "amd64", "i686")  # `platform.machine()`


def set_float32_matmul_precision(precision: str) -> None:
    """How products and convolutions of float32 are computed on a GPU: "highest", in float32, which is the default; or
    on tensor cores, of numbers rounded to TF32 ("high", 10 bits behind the point) or to bfloat16 ("medium", 7 bits),
    added up in float32. It is for what is compiled from now on; the CPU knows no other than "highest". Raises
    DTypeError for another name."""
    global _precision
    _precision = word("set_float32_matmul_precision", "the precision", precision, list(PRECISIONS), DTypeError)


def get_float32_matmul_precision() -> str:
    """The precision of products of float32 on a GPU, see `set_float32_matmul_precision`."""
    return _precision


_flush_denormal = True


def set_flush_denormal(flush: bool) -> bool:
    """Whether kernels on the CPU take results for zero that are denormal, below 1.2e-38 in float32 and 2.2e-308 in
    float64; they do unless told otherwise, since some CPUs take a hundred cycles for one. What is given to a kernel is
    read as it is. It is for what is compiled from now on; a GPU and the `numpy` context compute denormal numbers.

    Returns whether this CPU's kernels can do it: x86's. Raises DTypeError for what is no boolean. As PyTorch's
    function of this name, which sets the calling thread's register.
    """
    global _flush_denormal
    if not isinstance(flush, bool):
        raise DTypeError(f"set_flush_denormal takes True or False, not {flush!r}")
    _flush_denormal = flush
    return platform.machine().lower() in X86


def flushes_denormal() -> bool:
    """Whether kernels compiled now take denormal results for zero, see `set_flush_denormal`."""
    return _flush_denormal


class ThreadCountError(DlsysError, ValueError):
    """A number of threads that TVM's pool cannot run."""


def set_num_threads(count: int) -> None:
    """Let kernels run on `count` threads.

    The number of cores that the process may use is the ceiling, or the environment variable TVM_NUM_THREADS, read when
    dlsys is imported, where that is less; a forked process has one thread. Raises ThreadCountError beyond it.
    """
    if isinstance(count, bool) or not isinstance(count, numbers.Integral) or not 1 <= count <= _thread_ceiling:
        raise ThreadCountError(
            f"the number of threads must be an integer from 1 to {_thread_ceiling}, not {count!r} (one for each core, "
            f"or as many as {THREADS} says, set before the start; a forked process has one: use spawn)"
        )
    _runtime("config_threadpool")(1, int(count))


def get_num_threads() -> int:
    """The number of threads that kernels run on."""
    return int(_runtime("NumThreads")())
