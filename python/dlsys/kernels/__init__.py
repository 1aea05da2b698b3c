"""Kernels: compiled functions of arrays, from the process, the disk or the compiler: `get(specs, target)` is the door.

    spec.py     what a kernel is: formula, types; its loops under the first schedule rule that takes them
    build.py    loops -> machine code, on all cores; `get`: each kernel is compiled once
    disk.py     machine code -> a shared library; where libraries are kept: found, checked, bounded
    kernel.py   `Kernel`: checks what it is called with, and prints itself
    runner.py   many calls as one table, worked through by one compiled function
"""

from __future__ import annotations

from .. import tvm_import
from .build import built, get, idle_functions
from .disk import CacheWarning
from .kernel import Kernel
from .runner import Call, Place, Runner
from .spec import ArrayType, KernelSpec, Lowered, default_schedules, panel_columns, runnable_target, symbol_of
