"""`python -m dlsys info`: versions, machine and caches, for bug reports."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

from .. import __version__
from ..devices import cuda, get_num_threads
from ..errors import DeviceError
from ..kernels.disk import cache_directory, cache_size
from ..planner import table
from ..schedule import host_target, machine_of
from ..schedule.target import described, features
from ..system import THREADS, available_cores, cache_folder

PACKAGES = {"TVM": "apache-tvm", "tvm-ffi": "apache-tvm-ffi", "NumPy": "numpy"}
INTERESTING = (
    *("sse4.2", "avx", "avx2", "fma", "f16c", "avxvnni", "avx512f", "avx512dq", "avx512bw", "avx512vl"),
    *("avx512vnni", "avx512bf16", "avx512fp16", "amx-tile", "amx-int8", "amx-bf16"),
    *("neon", "fullfp16", "dotprod", "bf16", "i8mm", "sve", "sve2", "sme"),
)


def facts() -> dict[str, str]:
    """Versions, target, features, threads and caches: a line of text for each name."""
    target, cache = host_target(), cache_folder()
    machine, plans = machine_of(target), cache_directory()
    files = [] if cache is None else [path.stat().st_size for path in (cache / "data").rglob("*") if path.is_file()]
    return {
        "dlsys": __version__,
        "Python": platform.python_version(),
        **{name: _version(package) for name, package in PACKAGES.items()},
        "system": f"{platform.system()} {platform.machine()}",
        "target": f"{machine.kind}, mcpu {described(target)}",
        "vectors": f"{machine.vector_bits} bits ({machine.lanes('float32')} float32), {machine.registers} registers",
        "features": " ".join(cpu_features(str(target))) or "none beyond the baseline",
        "threads": f"{get_num_threads()} of {available_cores()} cores ({THREADS}={os.environ.get(THREADS)})",
        "CUDA": _cuda(),
        "compiled kernels": "not stored" if plans is None else _cache(plans, *cache_size(plans)),
        "data": "not stored" if cache is None else _cache(cache / "data", len(files), sum(files)),
    }


def cpu_features(target: str) -> list[str]:
    """The features of a CPU target, given as its text, that matter to numerical kernels, in LLVM's names."""
    return [name for name in INTERESTING if name in features(target)]


def _cuda() -> str:
    """The GPUs' names and compute capabilities, or why there is none."""
    try:
        cuda(0).require()
    except DeviceError as error:
        return f"none: {str(error).split(': ', 1)[1].split(';')[0]}"
    names = [cuda.describe(i) for i in range(cuda.device_count())]
    return "; ".join([*names, f"nvidia-cuda-nvrtc {_version('nvidia-cuda-nvrtc')}"])


def _version(package: str) -> str:
    """The installed version of a package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _cache(folder: Path, count: int, nbytes: float) -> str:
    """Where a cache is and how large: "/home/me/.cache/dlsys/data: 4 files, 11.1 MiB"."""
    units = ["bytes", "KiB", "MiB", "GiB"]
    while nbytes >= 1024 and len(units) > 1:
        nbytes, units = nbytes / 1024, units[1:]
    amount = f"{nbytes:.0f}" if units[0] == "bytes" else f"{nbytes:.1f}"
    return f"{folder}: {count} file{'' if count == 1 else 's'}, {amount} {units[0]}"


def as_text(found: dict[str, str]) -> str:
    """The facts as text, one line each."""
    return table([*found.items()], "<<")
