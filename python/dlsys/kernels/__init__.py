"""Kernels: compiled functions of arrays, from the process, the disk or the compiler: `get(specs, target)` is the door.

    spec.py     what a kernel is: formula, types, target
    cache.py    `get`: each kernel is compiled once
    build.py    formulas -> loops -> machine code, on all cores; it alone needs TVM's compiler, and is loaded for that
    disk.py     machine code -> a shared library; where libraries are kept: found, checked, bounded
    kernel.py   `Kernel`: checks what it is called with, and prints itself
    host.py     a kernel that is a function of NumPy's arrays, as a sort's
    runner.py   many calls as one table, worked through by one compiled function; on a GPU as one CUDA graph
    progress.py what compiling tells: lines of a log, a progress bar
    peak.py     what this machine can do at most, measured
"""

from __future__ import annotations

from .. import tvm_import  # first: it imports tvm_ffi without PyTorch
from ..scopes import default_schedules
from .cache import built, compiled, get
from .disk import CacheWarning
from .kernel import Kernel
from .progress import tell_compiled, tell_of_shapes
from .runner import RUN, Call, Calls, Place, Repeat, Replay, ReplayWarning, Runner, each_call
from .runner import unrolled_calls
from .spec import ArrayType, KernelSpec, target_name
