"""`python -m dlsys info`: what dlsys runs on, in the words of a bug report."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import json
import os
import platform
from pathlib import Path
from typing import Any

from .. import __version__
from ..device import cuda, get_num_threads
from ..errors import DeviceError
from ..kernels.disk import cache_directory, cache_size
from ..schedule import host_target, machine_of
from ..schedule.cpu.peak import cpu_features
from ..system import available_cores, cache_folder

PACKAGES = {"TVM": "apache-tvm", "tvm-ffi": "apache-tvm-ffi", "NumPy": "numpy"}
THREADS = "TVM_NUM_THREADS"


def facts() -> dict[str, Any]:
    """Everything that `info` says, as numbers and words."""
    target = host_target()
    machine = machine_of(target)
    return {
        "versions": {
            "dlsys": __version__,
            "Python": platform.python_version(),
            **{name: _version(package) for name, package in PACKAGES.items()},
        },
        "system": f"{platform.system()} {platform.machine()}",
        "target": {
            "kind": machine.kind,
            "mcpu": str(target.attrs["mcpu"]),
            "vector_bits": machine.vector_bits,
            "vector_registers": machine.registers,
            "features": cpu_features(target),
        },
        "threads": {"cores": available_cores(), "used": get_num_threads(), THREADS: os.environ.get(THREADS)},
        "cuda": cuda_facts(),
        "caches": {"compiled plans": _plans(), "data": _files(cache_folder())},
    }


def cuda_facts() -> dict[str, Any]:
    """The devices, by name and compute capability, or why there is none."""
    devices: list[dict[str, str]] = []
    while (device := cuda(len(devices)).device).exist:
        devices.append({"name": str(device.device_name), "compute_capability": str(device.compute_version)})
    if devices:
        return {"devices": devices, "cuda-bindings": _version("cuda-bindings")}
    try:
        cuda(0).require()
    except DeviceError as error:
        return {"devices": [], "reason": _load_error() or str(error).split(": ", 1)[1].split(";")[0]}
    return {"devices": [], "reason": "no such device"}


def _load_error() -> str | None:
    """Why TVM's CUDA runtime cannot be loaded, in the loader's words; None where it can, or is not there."""
    spec = importlib.util.find_spec("tvm")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for library in sorted(Path(folder).glob("**/*tvm_runtime_cuda.*")):
            try:
                ctypes.CDLL(str(library))
            except OSError as error:
                return f"{library.name} cannot be loaded ({error})"
    return None


def _version(package: str) -> str | None:
    """The installed version of a package, None without it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _plans() -> dict[str, Any]:
    """Where the kernels of compiled plans are kept, in how many libraries, and their bytes."""
    folder = cache_directory()
    if folder is None:
        return {"directory": None, "entries": 0, "bytes": 0}
    entries, size = cache_size(folder)
    return {"directory": str(folder), "entries": entries, "bytes": size}


def _files(cache: Path | None) -> dict[str, Any]:
    """The directory of data sets, how many files it holds, and their bytes."""
    if cache is None:
        return {"directory": None, "entries": 0, "bytes": 0}
    folder = cache / "data"
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return {"directory": str(folder), "entries": len(sizes), "bytes": sum(sizes)}


def as_json(found: dict[str, Any]) -> str:
    """The facts as JSON."""
    return json.dumps(found, indent=2)


def as_text(found: dict[str, Any]) -> str:
    """The facts as lines of a name and what there is to say."""
    target, threads = found["target"], found["threads"]
    lanes = target["vector_bits"] // 32
    rows = [
        *((name, number or "not installed") for name, number in found["versions"].items()),
        ("system", found["system"]),
        ("target", f"{target['kind']}, mcpu {target['mcpu']}"),
        (
            "vectors",
            f"{target['vector_bits']} bits ({lanes} float32), {target['vector_registers']} registers",
        ),
        ("features", " ".join(target["features"]) or "none beyond the baseline"),
        (
            "threads",
            f"{threads['used']} of {_some(threads['cores'], 'core')} ({THREADS}={threads[THREADS]})",
        ),
        ("CUDA", _cuda_text(found["cuda"])),
        *((name, _cache_text(cache)) for name, cache in found["caches"].items()),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:{width}}  {text}" for name, text in rows)


def _cuda_text(found: dict[str, Any]) -> str:
    if not found["devices"]:
        return f"none: {found['reason']}"
    names = [f"{device['name']} (compute {device['compute_capability']})" for device in found["devices"]]
    bindings = found["cuda-bindings"]
    return "; ".join([*names, f"cuda-bindings {bindings or 'not installed: kernels cannot be compiled'}"])


def _cache_text(found: dict[str, Any]) -> str:
    """Where the cache is and how large: "/home/me/.cache/dlsys/data: 4 files, 11.1 MiB"."""
    if found["directory"] is None:
        return "not kept"
    size = float(found["bytes"])
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    amount = f"{size:.0f} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
    return f"{found['directory']}: {_some(found['entries'], 'file')}, {amount}"


def _some(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
