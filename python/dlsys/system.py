"""The process's surroundings: cores, CPU, memory, CUDA, the user's cache, the caller's line; locks and forks. Imports
nothing but Python's library."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.util
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

THREADS = "TVM_NUM_THREADS"
_CPUID_GROUPS = 9  # in glibc 2.33; for unknown ones it returns zeros
Value = TypeVar("Value")
Lock = TypeVar("Lock")
_LIBRARY = os.path.dirname(os.__file__) + os.sep
_PACKAGE = str(Path(__file__).resolve().parent) + os.sep


def available_cores() -> int:
    """The cores that this process may use."""
    return len(core_numbers())


def core_numbers() -> set[int]:
    """The numbers of these cores."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {*range(os.cpu_count() or 1)}


@cache
def cpu() -> str:
    """This CPU's model and the features that the process may use, as text; empty if neither glibc nor Linux tells them.
    """
    return _cpuid() or _cpuinfo()


def _cpuid() -> str:
    """CPUID's words from glibc, in hexadecimal: the model, and for each group the features that are switched on. Under
    an emulator these are the emulated CPU's, unlike those in /proc/cpuinfo."""
    try:
        leaf = ctypes.CDLL(None).__x86_get_cpuid_feature_leaf  # glibc 2.33 and newer, on x86
    except (AttributeError, OSError, TypeError):
        return ""
    leaf.restype, leaf.argtypes = ctypes.POINTER(ctypes.c_uint32 * 8), [ctypes.c_uint]
    words = [list(leaf(group).contents) for group in range(_CPUID_GROUPS)]
    return " ".join(f"{word:x}" for word in (words[0][0], *(word for group in words for word in group[4:])))


_FEATURES = {  # the word of `_cpuid` after the model, and the bit
    "avx": (2, 28), "avx2": (5, 5), "avx512f": (5, 16), "avx512bw": (5, 30), "avx512vnni": (6, 11), "avxvnni": (24, 4),
}  # fmt: skip


@cache
def cpu_features() -> set[str]:
    """The features of this CPU that schedules ask for, by LLVM's names."""
    import platform  # here, since its import is slow

    if platform.machine().lower() in ("aarch64", "arm64"):
        return {"neon"}
    if not (told := _cpuid()):
        return {*_cpuinfo().replace("_vnni", "vnni").split()} & {*_FEATURES}
    words = [int(word, 16) for word in told.split()[1:]]
    return {name for name, (word, bit) in _FEATURES.items() if words[word] >> bit & 1}


@cache
def cpu_model() -> tuple[int, int]:
    """This CPU's family and model in x86's numbering; zeros if they are unknown."""
    if told := _cpuid():
        word = int(told.split()[0], 16)
        family, model = word >> 8 & 15, word >> 4 & 15
        return (family + (word >> 20 & 255), model + (word >> 12 & 240)) if family == 15 else (family, model)
    lines = dict(line.replace("\t", "").split(":", 1) for line in _cpuinfo().splitlines() if ":" in line)
    numbers = [lines.get(name, "").strip() for name in ("cpu family", "model")]
    return (int(numbers[0]), int(numbers[1])) if all(map(str.isdecimal, numbers)) else (0, 0)


def _cpuinfo() -> str:
    """Model and features from Linux's /proc/cpuinfo."""
    told = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU")
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
        return "\n".join(line for line in lines if line.startswith(told))
    return ""


@cache
def cache_sizes() -> dict[int, int]:
    """The bytes of this CPU's data caches by level, 1 to 3, from Linux's facts of its first core: {1: 32768, ...}. An
    unknown level is left out."""
    found: dict[int, int] = {}
    for entry in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        with contextlib.suppress(OSError, ValueError):
            told = [(entry / name).read_text(encoding="ascii").strip() for name in ("level", "type", "size")]
            level, kind, size = told
            if kind in ("Data", "Unified") and (count := int(size.rstrip("KM"))) > 0:
                found[int(level)] = count << {"K": 10, "M": 20}.get(size[-1], 0)
    return dict(sorted(found.items()))


def memory() -> int:
    """The bytes of memory that this process may use: the machine's, or a limit of the process or its control group."""
    limits = [sys.maxsize]
    if hasattr(os, "sysconf"):
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with contextlib.suppress(ImportError):
        import resource  # of POSIX alone

        if (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
            limits.append(limit)
    with contextlib.suppress(OSError, ValueError):  # no group, or one without a limit: "max"
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return min(limit for limit in limits if limit > 0)


def setting(name: str) -> str:
    """A variable of the environment; empty where it is unset or blank."""
    found = os.environ.get(name, "")
    return found if found.strip() else ""


def limit_threads() -> None:
    """Set `TVM_NUM_THREADS`, which TVM's thread pool reads at its start, to the cores of the process, unless it is
    less.

    More threads would wait for each other: with 1,000 on two cores a small kernel takes minutes."""
    cores, asked = available_cores(), setting(THREADS)
    count = int(asked) if asked.isdecimal() and len(asked) < 10 else 0
    if 1 <= count <= cores:
        return
    os.environ[THREADS] = str(cores)
    if asked:
        told = f"kernels run on {cores} thread{'s' * (cores > 1)}, one for each core of the process"
        warn(f"{THREADS}={asked:.20}: {told}", RuntimeWarning)


def address_space() -> int | None:
    """The bytes of address space that the process may still take; None if there is no limit or it is unknown."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource  # of POSIX alone

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            return limit - int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return None


def cache_folder() -> Path | None:
    """dlsys' cache folder: `DLSYS_CACHE`, or `$XDG_CACHE_HOME/dlsys`, or `~/.cache/dlsys`; None for a user without a
    home, as in some containers."""
    if own := setting("DLSYS_CACHE"):
        return Path(os.path.expanduser(own))
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if xdg.is_absolute():  # the XDG specification: a relative path is invalid and to be ignored
        return xdg / "dlsys"
    home = os.path.expanduser("~")
    return Path(home, ".cache", "dlsys") if os.path.isabs(home) and home != os.devnull else None


def cuda_folders() -> Iterator[Path]:
    """The folders in which CUDA may be: `CUDA_HOME`, packages from PyPI, the usual place."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(name):
            yield Path(os.environ[name])
    for place in getattr(importlib.util.find_spec("nvidia"), "submodule_search_locations", None) or ():
        yield from sorted(Path(place).glob("cu1*"))
    yield Path("/usr/local/cuda")


def warn(text: str, category: type[Warning]) -> None:
    """Warns, with the line of the first caller outside this package and Python's library."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_inner(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


def _is_inner(path: str) -> bool:
    return path.startswith(_PACKAGE) or (path.startswith(_LIBRARY) and "site-packages" not in path)


def at_fork(function: Callable[[], None]) -> None:
    """Call the function in each process that is forked from this one."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def free_at_fork(lock: Lock) -> Lock:
    """The lock, a `threading.Lock` or `RLock`, which will be freed in each process that is forked from this one: a
    thread that holds it does not exist there."""
    _locks.add(lock)
    return lock


def freed(lock: Any) -> bool:
    """Frees a lock in a forked process. Returns whether a thread of the parent held it, whose work is then
    incomplete."""
    if lock.acquire(blocking=False):  # free, or held by this thread
        lock.release()
        return False
    lock._at_fork_reinit()  # as modules of Python's library do
    return True


def _free() -> None:
    for lock in _locks:
        freed(lock)


at_fork(_free)


@contextlib.contextmanager
def collecting_later() -> Iterator[None]:
    """Within it Python does not search for circles of dead objects: a plan makes many objects, all of which stay, and
    each search visits all of them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class lazy(Generic[Value]):
    """A property that is computed at its first use, and is an attribute of its object afterwards.

    As `functools.cached_property` from Python 3.12 on, it has no lock; objects that threads share have their own. That
    of Python 3.11 has one lock for all objects: threads wait for each other, and a process that is forked meanwhile
    waits for ever.
    """

    def __init__(self, function: Callable[[Any], Value]) -> None:
        self._function, self.__doc__ = function, function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> lazy[Value]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Value: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        """The value, computed at the first request and then kept among the object's attributes."""
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._function(instance)
        return value
