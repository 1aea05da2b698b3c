"""TVM is imported in two steps: its runtime, which kernels need, at once; its compiler when a kernel must be compiled.

Importing TVM's Python takes most of a second, which a process saves if its kernels are on disk. If PyTorch is
installed, TVM imports it too, which takes two more seconds; so PyTorch is hidden from the thread that imports TVM,
unless it is imported already.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from .errors import DlsysError
from .system import address_space, available_cores, cuda_folders

COMPILER_BYTES = 592 * 2**20  # of address space that TVM's compiler takes for a small kernel; with less it crashes
LONGEST_IMPORT = 60.0  # seconds that a fork waits for an import, which may wait for a lock of the forking thread
THREAD_BYTES = 16 * 2**20  # for one thread of the compiler and one of the kernels


def with_compiler(name: str) -> Any:
    """The module `dlsys.<name>`, which needs TVM's compiler; both are imported now. Raises DlsysError if the process is
    limited to less address space than the compiler takes."""
    _let_forks_wait()
    with _importing:
        if "tvm" not in sys.modules:
            _require_room()
        _import("tvm")
        return importlib.import_module(f"dlsys.{name}")


_importing = threading.RLock()
_forking = threading.local()


@cache
def _let_forks_wait() -> None:
    """Lets a fork wait until no other thread imports TVM: in the child that import would never end, nor any other one.

    What is registered last is called first: were locks of these two modules taken before, TVM, which imports them, and
    the fork would wait for each other."""
    for name in ("logging", "concurrent.futures.thread"):
        importlib.import_module(name)

    def before() -> None:
        _forking.waited = _importing.acquire(timeout=LONGEST_IMPORT)

    def after() -> None:
        if _forking.waited:
            _importing.release()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_parent=after, after_in_child=after)


def _require_room() -> None:
    """Raises DlsysError where the process has less address space left than TVM's compiler takes."""
    least, left = COMPILER_BYTES + THREAD_BYTES * available_cores(), address_space()
    if left is not None and left < least:
        raise DlsysError(
            f"TVM's compiler takes {least >> 20} MiB of address space or more, and the process may have {left >> 20} "
            "more (ulimit -v); kernels that are on disk need no compiler"
        )


class _Hiding:
    """An import finder that hides the modules of a name from one thread."""

    def __init__(self, name: str) -> None:
        self._name, self._thread = name, threading.get_ident()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """None, so that the next finder is asked. Raises ModuleNotFoundError for the hidden name."""
        if name == self._name and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"{name} is hidden while TVM is imported", name=name)


@contextlib.contextmanager
def _hidden(name: str) -> Iterator[None]:
    """Inside, this thread cannot import the module of that name, unless it is imported already."""
    hiding, before = _Hiding(name), sys.meta_path
    # The list is replaced, not changed: another thread may be iterating over it.
    sys.meta_path = [hiding, *before]
    try:
        yield
    finally:
        rest = [finder for finder in sys.meta_path if finder is not hiding]
        sys.meta_path = before if rest == before else rest


def _import(name: str) -> Any:
    """A module, imported with PyTorch hidden and the garbage collector off, which takes a sixth of the time."""
    collects = gc.isenabled()
    with contextlib.nullcontext() if name in sys.modules else _hidden("torch"):
        gc.disable()
        try:
            return importlib.import_module(name)
        finally:
            if collects:  # else another thread that imports may have switched it off, and will switch it on
                gc.enable()


def _load(name: str, mode: str) -> Any:
    """One of TVM's libraries. Raises OSError or RuntimeError."""
    folders = getattr(importlib.util.find_spec("tvm"), "submodule_search_locations", None) or ()
    load = _import("tvm_ffi").libinfo.load_lib_ctypes
    return load("tvm", name, mode, extra_lib_paths=[Path(folder, "lib") for folder in folders])


@cache
def load_cuda() -> str:
    """Loads the part of TVM's runtime for CUDA. Returns why that failed and what to install; empty if it is loaded."""
    if not _opened("libcuda.so.1"):
        return "no CUDA driver was found (libcuda.so.1)"
    runtimes = (str(path) for folder in cuda_folders() for path in sorted(folder.glob("lib*/libcudart.so.13")))
    if not any(_opened(name) for name in ("libcudart.so.13", *runtimes)):
        return "CUDA's runtime of version 13 was not found: pip install 'dlsys[cuda]'"
    try:
        _load("tvm_runtime_cuda", "RTLD_LOCAL")
    except (OSError, RuntimeError) as error:
        return f"TVM's runtime for CUDA cannot be loaded ({str(error).splitlines()[0]})"
    return ""


def _opened(library: str) -> bool:
    """Whether a library can be loaded, for others to use."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
        return True
    return False


if "tvm" not in sys.modules:  # else the library is loaded already
    try:
        _load("tvm_runtime", "RTLD_GLOBAL")
    except (OSError, RuntimeError):  # TVM is in an unusual place, or missing
        _import("tvm")

# Ctrl-C in a Python function that TVM calls, as its walks do, ended as a RuntimeError without a word.
sys.modules["tvm_ffi"].register_error(KeyboardInterrupt)
