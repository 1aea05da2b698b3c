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
from .build import KernelSpec, by_rule, kernel_in, lower, shared, symbol_of
from .kernel import Kernel, Lowered

MANY = 32  # kernels of a library
LINK_SECONDS = 60  # a linker that takes longer hangs
UNCHECKED = {"tirx.disable_assert": True}  # TVM's setting for functions that take their arguments for right


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


def write_library(
    specs: Sequence[KernelSpec],
    target: Target,
    ours: bool,
    path: Path,
    more: Mapping[str, tirx.PrimFunc] | None = None,
) -> dict[str, Lowered]:
    """Compile the kernels of `specs`, and the functions `more`, by symbol, into a library, on all cores. None checks
    its arguments, which takes a third to a half of the time to compile a small kernel.

    Returns what was lowered, by symbol. Raises OSError where linking fails.
    """
    command = linker()
    if command is None:
        raise OSError("no linker or C compiler was found")
    lowered: dict[str, Lowered] = {}
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:

        def write(number: int, share: Sequence[KernelSpec]) -> list[str]:
            made = {symbol_of(spec): lower(spec, target, ours) for spec in share}
            lowered.update(made)
            names = []
            for functions, superwords in by_rule(made) if share else [(dict(more or {}), True)]:
                names.append(f"{folder}/{number}_{superwords}.o")
                with tvm.transform.PassContext(config=UNCHECKED):
                    compiled(functions, target, superwords).write_to_file(names[-1])
            return names

        cores = available_cores()
        # A module costs some 20 ms beside its kernels; of many kernels two a core, so that a long one leaves none idle.
        parts = cores * (2 if len(specs) > MANY and cores > 1 else 1)
        shares = [*shared(specs, parts, lambda spec: spec), *([[]] if more else [])]
        with ThreadPoolExecutor(cores) as pool:
            objects = [name for names in pool.map(write, range(len(shares)), shares) for name in names]
        try:
            subprocess.run(
                [*command, "-o", str(path), *objects],
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
) -> list[Kernel]:
    """The kernels of `specs` in a library. Raises RuntimeError, AttributeError or OSError for a file that is none or
    lacks one."""
    module = tvm.runtime.load_module(str(path))
    found = lowered or {}
    return [kernel_in(module, spec, target, ours, found.get(symbol_of(spec)), False) for spec in specs]
