"""Kernels by their specifications: from the process, the disk or the compiler, each compiled once."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import tvm_ffi

from ..system import free_at_fork
from ..tvm_import import with_compiler
from . import disk
from .kernel import Kernel
from .spec import KernelSpec, TargetName, target_name

MOST_BYTES = 128 * 2**20  # of the kernels that the process keeps; those go first that were asked for longest ago
_PAGES = 32 * 1024  # bytes that a kernel's library takes beside its code
_COMPILER = 2**20  # bytes that LLVM keeps for a module that is in no library

_compiled = 0  # kernels that this process has compiled
_kernels: dict[Hashable, Kernel] = {}  # in the order in which they were asked for last
_lock = free_at_fork(threading.Lock())


class Loaded(NamedTuple):
    """The module that has a kernel, and the bytes that it takes of the process for this one, about."""

    module: Any
    code_bytes: int


def built() -> int:
    """How many kernels this process has."""
    return len(_kernels)


def compiled() -> int:
    """How many kernels this process has compiled: those that were neither in it nor on disk."""
    return _compiled


def get(specs: Sequence[KernelSpec], target: Any = "llvm", checked: bool = False) -> list[Kernel]:
    """The kernels of `specs`, in order: those that the process has, then those on disk; the rest is compiled together,
    on all cores, and kept in both.

    `target` is "llvm" (this CPU), "cuda", a dict such as {"kind": "llvm", "mcpu": "znver3"}, or a TVM Target. For
    `checked` see `Kernel`. Raises TargetError for a target that is unknown. A CPU's code that this one cannot run can
    be read; calling its kernel raises TargetError.
    """
    how, directory = target_name(target, checked), disk.cache_directory()
    in_code = [spec for spec in specs if spec.host is None]
    if len(in_code) < len(specs):
        from .host import HostKernel

        made = iter(get(in_code, how))
        return [next(made) if spec.host is None else HostKernel(spec, how) for spec in specs]
    keys = [_key(spec, how, directory) for spec in specs]
    with _lock:
        missing = {key: spec for key, spec in zip(keys, specs, strict=True) if key not in _kernels}
        _kernels.update(_found_or_made(missing, how))
        for key in dict.fromkeys(keys):  # the latest last
            _kernels[key] = _kernels.pop(key)
        kernels = [_kernels[key].named(spec.name) for key, spec in zip(keys, specs, strict=True)]
        if missing:  # who holds one of those that go, as a plan does, calls it on
            total = sum(kernel.code_bytes for kernel in _kernels.values())
            while total > MOST_BYTES:
                total -= _kernels.pop(next(iter(_kernels))).code_bytes
        return kernels


def _key(spec: KernelSpec, how: TargetName, directory: Path | None) -> Hashable:
    """The key of a kernel in the process, the same under all names. Another directory is to have the kernel too."""
    return spec.digest, how.text, directory


def _key_on_disk(kernel: KernelSpec | Kernel, how: TargetName) -> str:
    """The key of a kernel in a library, where its symbol, of name and formula, is."""
    return disk.key(kernel.symbol, how.text)


def _on_disk(specs: Mapping[Hashable, KernelSpec], how: TargetName) -> dict[Hashable, Loaded]:
    """Those kernels that are on disk, by their keys in the process."""
    own = {_key_on_disk(spec, how): key for key, spec in specs.items()} if how.is_kept else {}

    def read(path: Path, keys: Sequence[str]) -> dict[str, Loaded]:
        module = tvm_ffi.load_module(disk.utf8(path), keep_module_alive=False)  # a kernel keeps it
        share = path.stat().st_size // len(keys) + _PAGES
        return {at: Loaded(module, share) for at in keys}

    return {own[at]: held for at, held in disk.load(own, read).items()}


def _found_or_made(specs: Mapping[Hashable, KernelSpec], how: TargetName) -> dict[Hashable, Kernel]:
    """The kernels of specifications by their keys, from disk, or compiled into one library more."""
    found = {key: Kernel(specs[key], how, *one) for key, one in _on_disk(specs, how).items()}
    missing = {key: spec for key, spec in specs.items() if key not in found}
    return found | (_made(missing, how) if missing else {})


def _made(specs: Mapping[Hashable, KernelSpec], how: TargetName) -> dict[Hashable, Kernel]:
    """The kernels of specifications, compiled; then loaded from one library more on disk, if it can be kept, since what
    is in no library takes more memory."""
    global _compiled
    build = with_compiler("kernels.build")
    with disk.folder() if how.is_kept else nullcontext() as folder:
        modules, lowered, objects = build.build([*specs.values()], how, folder)
        _compiled += len(specs)
        if folder is not None:
            disk.keep(folder, [_key_on_disk(spec, how) for spec in specs.values()], partial(disk.link, objects))
    size = _COMPILER // min(len(specs), build.SOME) + _PAGES
    made = {key: Loaded(modules[spec.symbol], size) for key, spec in specs.items()} | _on_disk(specs, how)
    return {key: Kernel(spec, how, *made[key], lowered[spec.symbol]) for key, spec in specs.items()}
