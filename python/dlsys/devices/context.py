"""Contexts: on which device arrays are and graphs run, and on how many threads."""

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


@dataclass(frozen=True, init=False)
class Context:
    """The device on which arrays are and graphs run: `kind` is "cpu", "cuda" or "numpy". `dl.device` is this class:
    `dl.device("cuda:1")`, `dl.device("cuda", 1)`; whether a GPU is there is asked where it is used."""

    kind: str
    index: int

    def __init__(self, kind: str | int | Context, index: int | None = None) -> None:
        """`kind`: also a context, or the number of a GPU, as in PyTorch. Raises DeviceError for an unknown kind, for an
        index that is no integer >= 0, and for two indices."""
        name, number = ("cuda", kind) if type(kind) is int else _parsed(kind) or (kind, None)
        if number is not None and index is not None:
            raise DeviceError(f"device: {kind!r} names an index, so no other one may be given, but {index!r} is")
        word("device", "the kind", name, ("cpu", "cuda", "numpy"), DeviceError)
        object.__setattr__(self, "kind", name)
        which = number if index is None else index
        object.__setattr__(self, "index", integer("device", "the index", 0 if which is None else which, 0, DeviceError))

    def __str__(self) -> str:
        """As PyTorch writes it: "cpu", "cuda:0"."""
        return f"{self.kind}:{self.index}" if self.kind == "cuda" or self.index else self.kind

    def __repr__(self) -> str:
        return "numpy()" if self.kind == "numpy" else f"{self.kind}({self.index})"

    def require(self) -> Context:
        """Itself, if this machine has the device. Raises DeviceError otherwise."""
        if self.kind == "cpu" and self.index:
            raise DeviceError(f"{self!r} is not available: all cores are one device, dlsys.cpu(0)")
        if self.kind == "cuda":
            if lacking := cuda.lacking():
                raise DeviceError(f"{self!r} is not available: {lacking}; use dlsys.cpu()")
            if not self.enabled():
                raise DeviceError(f"{self!r} is not available: this machine has no such device; use dlsys.cpu()")
        return self

    def enabled(self) -> bool:
        """Whether this machine has the device; needle's name."""
        return self.kind != "cuda" or self.index < cuda.device_count()

    @property
    def type(self) -> str:
        """`kind`, by PyTorch's name."""
        return self.kind

    @property
    def device(self) -> Any:
        """TVM's device; of the CPU always index 0."""
        return tvm_ffi.device("cuda", self.index) if self.kind == "cuda" else tvm_ffi.device("cpu", 0)

    def synchronize(self) -> None:
        """Waits until a GPU has finished all its work; for other devices returns at once."""
        if self.kind == "cuda":
            _runtime("Device_StreamSync")(self.device, 0)


device = Context


def _parsed(value: Any) -> tuple[str, int | None] | None:
    """The kind and the index that a context or a text like "cuda:1", "cuda(1)" or "gpu" names. The index is None if the
    text has none. None for anything else."""
    if isinstance(value, Context):
        return value.kind, value.index
    match = re.fullmatch(r"([a-z]+)(?::(\d+)|\((\d+)\))?", value.strip()) if isinstance(value, str) else None
    if match is None or match[1] not in _NAMES:
        return None
    index = match[2] or match[3]
    return _NAMES[match[1]], int(index) if index else None


_one = functools.cache(Context)  # so that equal contexts are one object


def cpu(index: int = 0) -> Context:
    """The CPU."""
    return _one("cpu", integer("cpu", "the index", index, 0, DeviceError))


class Cuda:
    """`cuda(index)` is a CUDA device. Whether it exists is checked when an array is made or a graph is run there."""

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
        """Why kernels cannot run on a GPU here, and what to install; empty if there are a driver and a runtime."""
        return load_cuda()

    def describe(self, index: int) -> str:
        """A device's name and compute capability: "NVIDIA H200 (compute 9.0)". Raises DeviceError if it is absent."""
        self(index).require()
        return f"{self.attribute(index, NAME)} (compute {self.attribute(index, COMPUTE_VERSION)})"

    def attribute(self, index: int, which: int) -> Any:
        """An attribute of a device, by its number in TVM's DeviceAttrKind."""
        return _runtime("GetDeviceAttr")(DLPACK_CUDA, index, which)


cuda: Cuda = Cuda()
gpu: Cuda = cuda


def numpy() -> Context:
    """The context that runs the operators' NumPy references instead of kernels, to compare with."""
    return _one("numpy", 0)


def context(value: Any = None) -> Context:
    """The context given as a Context, a TVM device, "cpu", "cuda:1", "gpu", "numpy", or None (the CPU).

    Raises DeviceError for anything else, and for a device that this machine does not have.
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
    if found := _parsed(value):
        return _one(found[0], found[1] or 0)
    raise DeviceError(f"unknown context {value!r}: use dlsys.cpu(0), dlsys.cuda(0) or dlsys.numpy()")


_thread_ceiling = int(os.environ[THREADS])


def _alone() -> None:
    """Let kernels run on one thread in a forked process: it does not have the parent's other threads."""
    global _thread_ceiling
    _thread_ceiling = 1
    _runtime("config_threadpool")(1, 1)


at_fork(_alone)


PRECISIONS = ("highest", "high", "medium")
_precision = PRECISIONS[0]
X86 = ("x86_64", "amd64", "i686")  # `platform.machine()`


def set_float32_matmul_precision(precision: str) -> None:
    """Choose how a GPU computes products and convolutions of float32, in kernels that are compiled afterwards.

    "highest", the default, computes in float32. The others use tensor cores, which round the factors to TF32 ("high",
    10 bits of mantissa) or bfloat16 ("medium", 7 bits) and add in float32. The CPU always computes in float32. Raises
    DTypeError for another name."""
    global _precision
    _precision = word("set_float32_matmul_precision", "the precision", precision, list(PRECISIONS), DTypeError)


def get_float32_matmul_precision() -> str:
    """The precision of products of float32 on a GPU, see `set_float32_matmul_precision`."""
    return _precision


_flush_denormal = True


def set_flush_denormal(flush: bool) -> bool:
    """Choose whether CPU kernels that are compiled afterwards flush denormal results to zero; by default they do.

    Denormal numbers are below 1.2e-38 in float32 and 2.2e-308 in float64; some CPUs take a hundred cycles for one. A
    kernel's inputs are read as they are. A GPU and the `numpy` context do not flush.

    Returns whether this CPU's kernels can flush: on x86. Raises DTypeError for an argument that is no boolean.
    PyTorch's function of this name sets the calling thread's register instead.
    """
    global _flush_denormal
    if not isinstance(flush, bool):
        raise DTypeError(f"set_flush_denormal takes True or False, not {flush!r}")
    _flush_denormal = flush
    return platform.machine().lower() in X86


def flushes_denormal() -> bool:
    """Whether kernels compiled now flush denormal results to zero, see `set_flush_denormal`."""
    return _flush_denormal


class ThreadCountError(DlsysError, ValueError):
    """A number of threads that TVM's pool cannot run."""


def set_num_threads(count: int) -> None:
    """Let kernels run on `count` threads: at most one per core of the process, or as many as the environment variable
    TVM_NUM_THREADS said when dlsys was imported, if that is less; one in a forked process.

    Raises ThreadCountError for another number.
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
