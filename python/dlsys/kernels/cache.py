"""Kernels by their specifications: from the process, the disk or the compiler, each compiled once."""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import tvm_ffi

from ..system import free_at_fork
from ..tvm_import import with_compiler
from . import disk
from .kernel import Kernel
from .spec import KernelSpec, TargetName, symbol_of, target_name, uses_own_schedules


class Settings(NamedTuple):
    """How kernels are compiled: for which target, whether by our schedules, whether they check their arguments."""

    target: TargetName
    ours: bool
    checked: bool


MOST_BYTES = 128 * 2**20  # of the kernels that the process keeps; those go first that were asked for longest ago
_PAGES = 32 * 1024  # bytes that a kernel's library takes beside its code
_COMPILER = 2**20  # bytes that LLVM keeps for a module that is in no library

_kernels: dict[Hashable, Kernel] = {}  # in the order in which they were asked for last
_sizes: dict[Hashable, int] = {}
_lock = free_at_fork(threading.Lock())


def built() -> int:
    """How many kernels this process has."""
    return len(_kernels)


def get(specs: Sequence[KernelSpec], target: Any = "llvm", checked: bool = False) -> list[Kernel]:
    """The kernels of `specs`, in order: those that the process has, then those on disk; the rest is compiled together,
    on all cores, and kept in both.

    `target` is "llvm" (this CPU), "cuda", a dict such as {"kind": "llvm", "mcpu": "znver3"}, or a TVM Target. For
    `checked` see `Kernel`. Raises TargetError for a target that is unknown. A CPU's code that this one cannot run can
    be read; calling its kernel raises TargetError.
    """
    how = Settings(target_name(target), uses_own_schedules(), checked)
    where = (how.target.text, how.ours, checked, disk.cache_directory())
    keys: list[Hashable] = [(spec.formula, *where) for spec in specs]
    with _lock:
        missing = {symbol_of(spec): (key, spec) for key, spec in zip(keys, specs, strict=True) if key not in _kernels}
        if missing:
            found = _found_or_made({symbol: spec for symbol, (_, spec) in missing.items()}, how)
            for symbol, (key, _) in missing.items():
                _kernels[key] = found[symbol]
                _sizes[key] = found[symbol].code_bytes + _PAGES
        for key in dict.fromkeys(keys):
            _kernels[key] = _kernels.pop(key)
        kernels = [_kernels[key].named(spec.name) for key, spec in zip(keys, specs, strict=True)]
        if missing:
            _forget()
        return kernels


def _forget() -> None:
    """Drops the kernels beyond MOST_BYTES; who holds one still, as a plan does, calls it on."""
    total = sum(_sizes.values())
    for key in list(_kernels):
        if total <= MOST_BYTES:
            break
        total -= _sizes.pop(key)
        del _kernels[key]


def _found_or_made(specs: Mapping[str, KernelSpec], how: Settings) -> dict[str, Kernel]:
    """The kernels by symbol, from disk or compiled into one library more."""
    if how.target.kind != "llvm" or how.target.refusal:
        return _made(specs, how, None)
    settings = (how.target.text, how.ours, how.checked)
    key_of = {symbol: disk.key(symbol, *settings) for symbol in specs}
    library_of, held = disk.libraries_of(key_of.values()), dict[str, list[str]]()
    for symbol, key in key_of.items():
        if key in library_of:
            held.setdefault(library_of[key], []).append(symbol)
    found: dict[str, Kernel] = {}
    for library, symbols in held.items():
        found.update(disk.load(library, partial(_loaded, {s: specs[s] for s in symbols}, how, {})) or {})
    missing = {symbol: spec for symbol, spec in specs.items() if symbol not in found}
    if missing:
        library = disk.key(sorted(missing), *settings)
        kernels = disk.load(library, partial(_loaded, missing, how, {})) or _made(missing, how, library)
        found.update(kernels)
        disk.note([key_of[symbol] for symbol in missing], library)
    return found


def _made(specs: Mapping[str, KernelSpec], how: Settings, library: str | None) -> dict[str, Kernel]:
    """The kernels compiled, and kept in a library of that key where they can be."""
    build = with_compiler("kernels.build")
    keeps = library is not None and disk.keeps()
    modules, lowered, objects = build.build(list(specs.values()), how.target, how.ours, how.checked, keeps)
    if library is not None:
        kernels = disk.keep(library, partial(disk.link, objects), partial(_loaded, specs, how, lowered))
        if kernels is not None:
            return kernels
    size = _COMPILER // min(len(specs), build.SOME)
    return {symbol: _kernel(modules[symbol], spec, how, lowered[symbol], size) for symbol, spec in specs.items()}


def _loaded(
    specs: Mapping[str, KernelSpec], how: Settings, lowered: Mapping[str, Any], path: Path
) -> dict[str, Kernel]:
    """The kernels in a library; `lowered`: their loops, by symbol, where these are known. Raises RuntimeError,
    AttributeError or OSError for a file that is none or lacks one."""
    text = os.fsencode(path).decode()  # TVM takes text for UTF-8, whatever the locale
    module = tvm_ffi.load_module(text, keep_module_alive=False)  # a kernel keeps it
    size = path.stat().st_size // len(specs)
    return {symbol: _kernel(module, spec, how, lowered.get(symbol), size) for symbol, spec in specs.items()}


def _kernel(module: Any, spec: KernelSpec, how: Settings, lowered: Any, code_bytes: int = 0) -> Kernel:
    """The kernel of a spec that `module` holds. Its loops, unless given, are made when somebody asks for them."""

    def lower() -> Any:
        return lowered or with_compiler("kernels.build").lower(spec, how.target, how.ours, how.checked)

    return Kernel(spec, how.target, module, lower, how.checked, code_bytes)
