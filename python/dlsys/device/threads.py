"""The threads that kernels run on."""

from __future__ import annotations

import numbers
import os

import tvm
from tvm import runtime

from ..errors import DlsysError
from ..system import at_fork

_setting = os.environ.get("TVM_NUM_THREADS", "")
_thread_ceiling = int(_setting) if _setting.isdecimal() and int(_setting) > 0 else int(runtime.num_threads())


def _alone() -> None:
    """Has kernels run on the one thread that a forked process has: they would wait for the parent's others."""
    global _thread_ceiling
    _thread_ceiling = 1
    tvm.get_global_func("runtime.config_threadpool")(1, 1)


at_fork(_alone)


class ThreadCountError(DlsysError, ValueError):
    """A number of threads that TVM's pool cannot run."""


def set_num_threads(count: int) -> None:
    """Let kernels run on `count` threads.

    The environment variable TVM_NUM_THREADS, read when dlsys is imported, is the ceiling; its default is the
    number of cores that the process may use; a forked process has one thread. Raises ThreadCountError beyond it.
    """
    if isinstance(count, bool) or not isinstance(count, numbers.Integral) or not 1 <= count <= _thread_ceiling:
        raise ThreadCountError(
            f"the number of threads must be an integer from 1 to {_thread_ceiling}, not {count!r} (the environment "
            "variable TVM_NUM_THREADS, set before the start, allows more; a forked process has one: use spawn)"
        )
    tvm.get_global_func("runtime.config_threadpool")(1, int(count))


def get_num_threads() -> int:
    """The number of threads that kernels run on."""
    return int(runtime.num_threads())
