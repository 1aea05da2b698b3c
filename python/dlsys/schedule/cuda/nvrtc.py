"""From CUDA C++ to a GPU's machine code: NVRTC, CUDA's compiler as a library, or else the program nvcc.

TVM's own call of either asks for fast mathematics, which rounds divisions and roots, flushes small numbers to zero and
takes exp and sin from tables. Ours does not: a GPU's results are as exact as the CPU's.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from ...errors import TargetError
from ...system import cuda_folders
from .mma import sources

_HEADERS = {  # that TVM's code begins with, of CUDA's C++ library, with as much of them as it names
    "cuda/std/cstdint": """namespace cuda { namespace std {
typedef signed char int8_t; typedef unsigned char uint8_t; typedef short int16_t; typedef unsigned short uint16_t;
typedef int int32_t; typedef unsigned int uint32_t; typedef long long int64_t; typedef unsigned long long uint64_t;
} }""",
    "cuda/std/type_traits": """namespace cuda { namespace std {
template <class, class> struct is_same; template <class, class> constexpr bool is_same_v = false;
template <class> struct is_integral; template <class> struct is_signed; template <class> struct is_unsigned;
template <class> struct is_floating_point; template <bool, class> struct enable_if;
template <bool, class, class> struct conditional;
} }""",
}
_BOUNDS = re.compile(r"__launch_bounds__\((\d{1,2}|1\d\d|2[0-4]\d|25[0-6])\)")  # of up to 256 threads
COPIES = """
__device__ __forceinline__ void dlsys_copy(float* to, const float* from, int inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
      :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
__device__ __forceinline__ void dlsys_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void dlsys_wait() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }
"""
"""The functions of asynchronous copies to shared memory, which kernels call beside `mma.sources`."""
LACKING = "CUDA code cannot be compiled: pip install 'dlsys[cuda]', which has NVRTC, or put nvcc of CUDA 13 on the PATH"


@cache
def _library() -> Any:
    """NVRTC; None where it is not installed."""
    names = [path for folder in cuda_folders() for path in sorted(folder.glob("lib*/libnvrtc.so.1*"))]
    for name in [*names, Path("libnvrtc.so.13")]:
        with contextlib.suppress(OSError):
            nvrtc = ctypes.CDLL(str(name))
            # NVRTC opens its builtins by their name alone and, up to 13.0, not in its own folder: a library that is
            # loaded already is found by its name.
            with contextlib.suppress(OSError):
                ctypes.CDLL(str(name.with_name("libnvrtc-builtins.so.{}.{}".format(*_version_of(nvrtc)))))
            return nvrtc
    return None


def _version_of(nvrtc: Any) -> tuple[int, int]:
    """The library's version, major and minor."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def compiled(code: str, arch: str, form: str = "cubin") -> bytes:
    """Machine code ("cubin") or "ptx" of CUDA C++ as TVM generates it, for an architecture such as "sm_90". Kernels get
    as many registers as leave a multiprocessor two blocks of up to 256 threads: one computes while the other waits.
    Raises TargetError where there is no compiler, or it does not take the code."""
    code = _BOUNDS.sub(r"__launch_bounds__(\1, 2)", code)
    if "dlsys_" in code:
        code = code.replace('extern "C" __global__', COPIES + sources() + '\nextern "C" __global__', 1)
    if _library() is not None:
        return _by_nvrtc(code, arch, form)
    if (nvcc := shutil.which("nvcc")) is None:
        raise TargetError(LACKING)
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "kernels.cu"), Path(folder, "kernels")
        source.write_text(code, encoding="utf-8")
        command = [nvcc, f"-arch={arch}", f"-{form}", "-O3", "-std=c++17", str(source), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise TargetError(f"nvcc: {done.stderr.strip()}")
        return made.read_bytes()


def _by_nvrtc(code: str, arch: str, form: str) -> bytes:
    """As `compiled`, by the library."""
    nvrtc = _library()
    program = ctypes.c_void_p()
    texts = zip(*((text.encode(), name.encode()) for name, text in _HEADERS.items()), strict=True)
    headers = [(ctypes.c_char_p * len(_HEADERS))(*of) for of in texts]
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), code.encode(), b"kernels.cu", len(_HEADERS), *headers)
    try:
        target = arch if form == "cubin" else arch.replace("sm_", "compute_")
        options = [f"--gpu-architecture={target}", "--std=c++17", "-default-device"]
        options += [f"-I{folder / 'include'}" for folder in cuda_folders() if (folder / "include").is_dir()]
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if nvrtc.nvrtcCompileProgram(program, len(options), given):
            raise TargetError(f"NVRTC: {_result(program, 'ProgramLog').decode().strip()}")
        return _result(program, "CUBIN" if form == "cubin" else "PTX")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _result(program: Any, what: str) -> bytes:
    """A program's "CUBIN", "PTX" or "ProgramLog", as NVRTC hands it out."""
    nvrtc, size = _library(), ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    found = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, found)
    return found.raw.rstrip(b"\0") if what != "CUBIN" else found.raw


def version() -> str:
    """The compiler that `compiled` takes and its version; empty where there is none."""
    if (nvrtc := _library()) is not None:
        return "NVRTC {}.{}".format(*_version_of(nvrtc))
    if (nvcc := shutil.which("nvcc")) is None:
        return ""
    return subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout
