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


_forked = False  # whether this process was forked from one that had TVM's threads, which it has not


def _alone() -> None:
    """Has kernels run on the one thread that a forked process has: they would wait for the parent's others."""
    global _forked
    _forked = True
    tvm.get_global_func("runtime.config_threadpool")(1, 1)


at_fork(_alone)


class ThreadCountError(DlsysError, ValueError):
    """A number of threads that TVM's pool cannot run."""


def set_num_threads(count: int) -> None:
    """Let kernels run on `count` threads.

    The environment variable TVM_NUM_THREADS, read when dlsys is imported, is the ceiling; its default is the
    number of cores that the process may use; a forked process has one thread. Raises ThreadCountError beyond it.
    """
    ceiling = 1 if _forked else _thread_ceiling
    if isinstance(count, bool) or not isinstance(count, numbers.Integral) or not 1 <= count <= ceiling:
        raise ThreadCountError(
            f"the number of threads must be an integer from 1 to {ceiling}, not {count!r} "
            + (
                "(a forked process has no more: start it by multiprocessing's spawn)"
                if _forked
                else "(set the environment variable TVM_NUM_THREADS before the start to allow more)"
            )
        )
    tvm.get_global_func("runtime.config_threadpool")(1, int(count))


def get_num_threads() -> int:
    """The number of threads that kernels run on."""
    return int(runtime.num_threads())
