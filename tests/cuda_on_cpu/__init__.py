"""A CUDA device that is this CPU: TVM's CUDA runtime, unchanged, on an emulated driver. See README.md.

`install()` before TVM is imported; `dl.cuda(0)` is then there.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dlsys.system import cuda_folders

HERE = Path(__file__).parent
SOURCES = ("threads.cpp", "shadow.cpp", "api.cpp")
ORDERS = {"up": 0, "down": 1, "shuffled": 2}
RED_ZONE = 64  # bytes between arrays in shared memory, and what each begins at a multiple of
WEEK = 7 * 24 * 3600.0  # seconds
MOST_STATIC = 48 * 1024  # bytes of shared memory that a kernel may declare
COMPILE = [
    "g++", "-O1", "-w", "-std=c++17", "-fPIC", "-shared", "-fno-strict-aliasing", "-ffp-contract=fast", "-mfma",
    "-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0", f"-I{HERE / 'include'}", "-c",
]  # fmt: skip
HEADERS = ("cuda.h", "math_constants.h", "cstdint", "type_traits")  # of all kernels, compiled once

_library: Any = None


class EmulatorError(Exception):
    """What TVM generated and the emulator does not know, or g++ does not take."""


def missing() -> str | None:
    """What is not there that the emulated device needs; None where all is."""
    if platform.machine() != "x86_64" or sys.platform != "linux":
        return "an x86-64 machine with Linux"
    if shutil.which("g++") is None:
        return "g++"
    return None if _headers() else "CUDA's headers: set CUDA_HOME, or pip install nvidia-cuda-runtime nvidia-cuda-crt"


def _headers() -> Path | None:
    """The folder with CUDA's headers."""
    places = [folder / "include" for folder in cuda_folders()]
    return next((place for place in places if (place / "crt" / "host_defines.h").exists()), None)


@functools.cache
def _folder() -> Path:
    """Where compiled code is kept: beside the CPU's kernels, by the sources' hash, so that nothing stale is taken.
    Folders of other sources go when they are a week old."""
    sources = (path for path in sorted(HERE.glob("**/*")) if path.suffix in (".cpp", ".h") or path == Path(__file__))
    text = b"".join(path.read_bytes() for path in sources)
    kernels = os.environ.get("DLSYS_COMPILE_CACHE", "")
    place = Path(kernels if os.path.isabs(kernels) else tempfile.gettempdir())
    folder = place / f"cuda_on_cpu_{os.getuid()}_{hashlib.sha256(text).hexdigest()[:16]}"
    if not folder.exists():
        for other in place.glob(f"cuda_on_cpu_{os.getuid()}_*"):
            if time.time() - other.stat().st_mtime > WEEK:
                shutil.rmtree(other, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _made(to: Path, *command: str | Path) -> None:
    """Runs what writes a file."""
    part = to.with_suffix(f".{os.getpid()}")
    _run([*map(str, command), "-o", str(part)])
    part.rename(to)  # at once, for other processes


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EmulatorError(f"{' '.join(command[:1])}: {done.stderr[:3000]}")


def install() -> None:
    """Makes this process's CUDA device the CPU. Raises RuntimeError where TVM was imported before."""
    global _library
    if _library is not None:
        return
    if "tvm" in sys.modules:
        raise RuntimeError("the emulated device comes before TVM, which is imported already")
    folder = _folder()
    runtime, driver = folder / "libcudart.so.13", folder / "libcuda.so.1"
    if not driver.exists():
        objects = [folder / f"{source}.{os.getpid()}.o" for source in SOURCES]
        for source, made in zip(SOURCES, objects, strict=True):
            options = ["-O2", "-std=c++17", "-fPIC", f"-I{_headers()}"]
            _run(["g++", *options, "-c", str(HERE / source), "-o", str(made)])
        script = f"-Wl,--version-script={HERE / 'libcudart.map'}"
        _made(runtime, "g++", "-shared", *objects, "-Wl,-soname,libcudart.so.13", script, "-ldl")
        header = folder / "kernels.h"
        header.write_text("".join(f"#include <{name}>\n" for name in HEADERS), encoding="utf-8")
        _made(folder / "kernels.h.gch", *COMPILE, "-x", "c++-header", header)
        _made(driver, "g++", "-shared", "-Wl,-soname,libcuda.so.1")  # empty: the functions are in the other one
    _library = ctypes.CDLL(str(runtime), ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(driver), ctypes.RTLD_GLOBAL)
    for name in ("allocations", "graphs", "launches", "used", "waiting"):
        getattr(_library, f"emulated_{name}").restype = ctypes.c_long
    _library.emulated_failure.restype = ctypes.c_char_p
    _library.emulated_declare.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    from dlsys.tvm_import import with_compiler

    with_compiler("kernels.build")  # registers the compiler for GPUs, which this one replaces
    import tvm

    tvm.register_global_func("tvm_callback_cuda_compile", compiled, override=True)


def count(what: str) -> int:
    """How many "allocations", "launches" or "graphs" launched there were, bytes "used", or calls "waiting"."""
    return int(getattr(_library, f"emulated_{what}")())


def declare(kernel: str, parameter: str, nbytes: int) -> None:
    """Says how large the array is that a kernel finds behind a parameter: not all of the memory that was allocated."""
    _library.emulated_declare(kernel.encode(), parameter.encode(), nbytes)


def failure() -> str:
    """What went wrong on the device, which then does nothing more; empty where nothing did."""
    return str(_library.emulated_failure().decode())


def recover() -> None:
    """Has the device work again after a failure."""
    _library.emulated_recover()


@contextmanager
def settings(order: str = "up", early: bool = False, races: bool = True) -> Iterator[None]:
    """Within it a block's threads run in this `order`, and asynchronous copies are made `early` or late."""
    _library.emulated_settings(ORDERS[order], early, races)
    try:
        yield
    finally:
        _library.emulated_settings(0, False, True)


def compiled(code: str, *_: Any) -> bytes:
    """TVM's CUDA C++ as the path of a library: what TVM hands to `cuModuleLoadData`."""
    text = translated(code)
    base = _folder() / hashlib.sha256(text.encode()).hexdigest()
    library = base.with_suffix(".so")
    if not library.exists():
        source, made = base.with_suffix(f".{os.getpid()}.cpp"), base.with_suffix(f".{os.getpid()}.o")
        source.write_text(text, encoding="utf-8")
        _run([*COMPILE, "-include", str(_folder() / "kernels.h"), str(source), "-o", str(made)])
        _made(library, "ld", "-shared", made, "-lm", "-lc")  # not the sanitizer's own library: its functions are ours
        made.unlink()
    return f"{library}\0".encode()


_KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(([^;{]*)\) \{')
_SHARED = re.compile(
    r'\s*(extern )?(?:"C" )?__shared__ (?:(?:__align__|alignas)\(\d+\) )?([\w ]+?) (\w+)\[(\d*)\];'
)
_UNKNOWN = re.compile(r"^(?!\s*(?://|#)).*(__shared__|\basm\w* volatile)")


def translated(code: str) -> str:
    """CUDA C++ as C++: shared arrays as places in the block's memory; behind it a table of each kernel's parameters and
    shared arrays."""
    lines: list[str] = []
    kernels: dict[str, tuple[str, list[str]]] = {}  # parameters, and entries of shared arrays
    offset, kernel = 0, ""
    for line in code.splitlines():
        if found := _KERNEL.match(line):
            kernel, offset = found[1], 0
            kernels[kernel] = (found[2], [])
            lines += [line, "  EMULATED_INDICES"]
        elif found := _SHARED.match(line):
            dynamic, element, name, extent = found.groups()
            entries = kernels[kernel][1]
            entries.append(f'{{"{name}", {offset}, {0 if dynamic else f"sizeof({element}) * {extent}"}}}, ')
            lines.append(f"  {element}* const {name} = ({element}*)emulated_shared({offset});")
            if not dynamic:
                offset += -(-_size_of(element) * int(extent) // RED_ZONE) * RED_ZONE + RED_ZONE
            if offset > MOST_STATIC + RED_ZONE * len(entries):
                raise EmulatorError(f"{kernel}: more than {MOST_STATIC} bytes of static shared memory")
        elif _UNKNOWN.search(line):
            raise EmulatorError(f"what the emulator does not know: {line}")
        else:
            lines.append(line)
    return "\n".join([*lines, *(_table(name, *parts) for name, parts in kernels.items())])


def _table(kernel: str, parameters: str, shared: list[str]) -> str:
    """What calls a kernel with pointers to its arguments, their names and sizes, and its shared arrays."""
    names, types = [], []
    for parameter in filter(None, map(str.strip, parameters.split(","))):
        bare = re.sub(r"__restrict__|__grid_constant__|\bconst\b", "", parameter)
        kind, name = bare.strip().rsplit(None, 1)
        types.append(kind.strip())
        names.append(name)
    arguments = ", ".join(f"*({kind}*)p[{i}]" for i, kind in enumerate(types))
    quoted = "".join(f'"{name}", ' for name in names)
    sizes = "".join(f"sizeof({kind}), " for kind in types)
    return "\n".join([
        f'extern "C" __attribute__((no_sanitize("thread"))) void {kernel}__run(void** p) {{ {kernel}({arguments}); }}',
        f'extern "C" const char* const {kernel}__parameters[] = {{{quoted}nullptr}};',
        f'extern "C" const unsigned {kernel}__sizes[] = {{{sizes}0}};',
        f'extern "C" const emulated_range {kernel}__shared[] = {{{"".join(shared)}{{nullptr, 0, 0}}}};',
    ])


_SIZES = {"char": 1, "bool": 1, "uchar": 1, "short": 2, "ushort": 2, "half": 2, "nv_bfloat16": 2, "double": 8}


def _size_of(element: str) -> int:
    """The bytes of an element of a shared array."""
    last = element.split()[-1]
    if last in ("long", "int64_t", "uint64_t", "longlong"):
        return 8
    match = re.fullmatch(r"(\D+)(\d?)", last)
    assert match is not None
    return _SIZES.get(match[1], 4) * int(match[2] or 1)
