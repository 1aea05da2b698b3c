"""Kernels in a shared library: compiled ahead, linked into one file, loaded in a fraction of a millisecond."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import tvm
from tvm import tirx
from tvm.target import Target

from ..schedule.machine_code import compiled
from ..system import available_cores
from .build import KernelSpec, kernel_in, lower, shared, symbol_of
from .kernel import Kernel, Lowered

LINK_SECONDS = 60  # a linker that takes longer hangs


@cache
def linker() -> tuple[str, ...] | None:
    """The command that links objects into a shared library, without their names; None where there is none."""
    if sys.platform.startswith("linux") and (found := shutil.which("ld")):
        # ten times as fast as a compiler driver; "now": a symbol that is missing is an error of loading
        return (found, "-shared", "-z", "now")
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return (found, "-shared", *(("-undefined", "dynamic_lookup") if sys.platform == "darwin" else ()))
    return None


def _alias(name: str, symbol: str) -> str:
    """The linker's option that makes `name` another name of `symbol`."""
    if sys.platform == "darwin":
        return f"-Wl,-alias,_{symbol},_{name}"
    option = f"--defsym={name}={symbol}"
    return option if Path((linker() or ("",))[0]).name == "ld" else f"-Wl,{option}"


def write_library(
    specs: Sequence[KernelSpec],
    target: Target,
    ours: bool,
    more: Mapping[str, tirx.PrimFunc],
    aliases: Mapping[str, str],
    path: Path,
) -> dict[str, Lowered]:
    """Compile the kernels of `specs`, of which there is one, and the functions `more`, by symbol, into a library, on
    all cores.

    Functions of `more` call kernels as C symbols, `__tvm_ffi_<symbol>`, or by further names: `aliases` holds what each
    of those means. Returns what was lowered, by symbol. Raises OSError where linking fails.
    """
    command = linker()
    if command is None:
        raise OSError("no linker or C compiler was found")
    lowered: dict[str, Lowered] = {}
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:

        def write(number: int, share: Sequence[KernelSpec]) -> str:
            functions = {} if share else dict(more)  # apart: LLVM renames what a module both calls and defines
            for spec in share:
                made = lowered[symbol_of(spec)] = lower(spec, target, ours)
                functions[symbol_of(spec)] = made.function
            name = f"{folder}/{number}.o"
            compiled(functions, target).write_to_file(name)
            return name

        cores = available_cores()
        # A module costs some 20 ms beside its kernels; with two a core, one that takes long leaves no other idle.
        shares = [*shared(specs, 2 * cores if cores > 1 else 1, lambda spec: spec), *([[]] if more else [])]
        with ThreadPoolExecutor(cores) as pool:
            objects = list(pool.map(write, range(len(shares)), shares))
        try:
            subprocess.run(
                [*command, "-o", str(path), *objects, *(_alias(*names) for names in aliases.items())],
                check=True,
                capture_output=True,
                timeout=LINK_SECONDS,
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise OSError(f"{command[0]} failed: {(error.stderr or b'').decode(errors='replace').strip()}") from None
    return lowered


def load_library(
    path: Path,
    specs: Sequence[KernelSpec],
    target: Target,
    ours: bool,
    lowered: Mapping[str, Lowered] | None = None,
) -> tuple[tvm.runtime.Module, list[Kernel]]:
    """The library and its kernels of `specs`. Raises RuntimeError, AttributeError or OSError for a file that is none or
    lacks one."""
    module = tvm.runtime.load_module(str(path))
    found = lowered or {}
    return module, [kernel_in(module, spec, target, ours, found.get(symbol_of(spec))) for spec in specs]
