"""Modules of machine code as one shared library, which loads in a fraction of a millisecond.

Objects go to the linker through memory: LLVM ends the process where it cannot write one to a disk that is full.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from tvm.runtime import Module

LINK_SECONDS = 60  # a linker that takes longer hangs
MOST_BYTES = 256 * 1024 * 1024  # of an object: more than any has


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


def link(modules: Sequence[Module], path: Path) -> None:
    """Writes the modules as a library. Raises OSError where that cannot be, as on a disk that is full."""
    command = linker()
    if command is None:
        raise OSError("no linker or C compiler was found")
    _require_room(path.parent)
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(_object(module, path.parent)) for module in modules]
        try:
            subprocess.run(
                [*command, "-o", str(path), *(name for name, _ in files)],
                check=True,
                capture_output=True,
                timeout=LINK_SECONDS,
                pass_fds=[number for _, number in files if number is not None],
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            told = (error.stderr or b"").decode(errors="replace").strip()
            raise OSError(f"{command[0]} failed: {told or error}") from None


def _require_room(folder: Path) -> None:
    """Raises OSError where LLVM could fail to write an object: it would end the process."""
    if sys.platform != "win32":
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        if limit != resource.RLIM_INFINITY and limit < MOST_BYTES:
            raise OSError(f"files are limited to {limit} bytes (ulimit -f)")
    if not hasattr(os, "memfd_create") and shutil.disk_usage(folder).free < MOST_BYTES:
        raise OSError(f"the disk of {folder} has less than {MOST_BYTES >> 20} MiB left")


@contextlib.contextmanager
def _object(module: Module, folder: Path) -> Iterator[tuple[str, int | None]]:
    """A name under which the linker finds a module's object, and the number of its file where that is in memory."""
    if not hasattr(os, "memfd_create"):
        with tempfile.NamedTemporaryFile(suffix=".o", dir=folder) as file:
            module.write_to_file(file.name, "o")
            yield file.name, None
        return
    number = os.memfd_create("kernels.o")
    try:
        name = f"/proc/self/fd/{number}"
        module.write_to_file(name, "o")
        yield name, number
    finally:
        os.close(number)
