"""TVM in two steps: the runtime library, which kernels need, at once; the compiler, when the first kernel is made.

Importing TVM's Python takes most of a second, which a process need not pay whose kernels are on disk. With PyTorch
installed it takes two more, to exchange arrays faster than DLPack does, so PyTorch is hidden unless it is imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any


def compiler() -> Any:
    """The module `tvm`: TVM's Python with its compiler, imported now."""
    return _import("tvm")


def with_compiler(name: str) -> Any:
    """The module `dlsys.<name>`, which needs TVM's compiler and is imported with it now."""
    compiler()
    return importlib.import_module(f"dlsys.{name}")


def _import(name: str) -> Any:
    """A module, imported without PyTorch."""
    if name not in sys.modules and "torch" not in sys.modules:
        sys.modules["torch"] = None  # type: ignore[assignment]  # Python's way to say that there is none
        try:
            return importlib.import_module(name)
        finally:
            del sys.modules["torch"]
    return importlib.import_module(name)


if "tvm" not in sys.modules:  # which loads this library first
    _folders = getattr(importlib.util.find_spec("tvm"), "submodule_search_locations", None) or ()
    _load = _import("tvm_ffi").libinfo.load_lib_ctypes
    try:
        _load("tvm", "tvm_runtime", "RTLD_GLOBAL", extra_lib_paths=[Path(folder, "lib") for folder in _folders])
    except (OSError, RuntimeError):  # where TVM lies otherwise, or not at all
        _import("tvm")
