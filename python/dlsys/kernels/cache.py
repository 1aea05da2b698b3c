"""Kernels by their specifications: from the process, the disk or the compiler, each compiled once."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import tvm_ffi

from ..system import free_at_fork
from ..tvm_import import with_compiler
from . import disk, rows
from .choices import with_choices
from .kernel import Kernel
from .spec import KernelSpec, TargetName, target_name

MOST_BYTES = 128 * 2**20  # of the kernels that the process keeps; those go first that were asked for longest ago
_PAGES = 32 * 1024  # bytes that a kernel's library takes beside its code
_PLACE = 2048  # bytes of a kernel whose code is that of one for many numbers of rows
MOST_FUNCTIONS = 8192
_COMPILER = 2**20  # bytes that LLVM keeps for a module that is in no library

_calls = itertools.count()  # of `get`
_compiled = 0  # kernels that this process has compiled
_functions: dict[str, tuple[Any, Any]] = {}  # by key on disk, of kernels of which nothing else was asked for
_kernels: dict[Hashable, Kernel] = {}  # in the order in which they were asked for last
_lock = free_at_fork(threading.Lock())


def built() -> int:
    """How many kernels this process has."""
    return len(_kernels)


def compiled() -> int:
    """How many kernels this process has compiled: those that were neither in it nor on disk."""
    return _compiled


def get(
    specs: Sequence[KernelSpec], target: Any = "llvm", checked: bool = False, plans: Sequence[int] = ()
) -> list[Kernel]:
    """The kernels of `specs`, in order: those that the process has, then those on disk; the rest is compiled together,
    on all cores, and kept in both.

    `target` is "llvm" (this CPU), "cuda", a dict such as {"kind": "llvm", "mcpu": "znver3"}, or a TVM Target. For
    `checked` see `Kernel`; `plans` numbers the plan of each spec where there are several. Raises TargetError for a
    target that is unknown. A CPU's code that this one cannot run can be read; calling its kernel raises TargetError.
    """
    how, directory = target_name(target, checked), disk.cache_directory()
    specs = with_choices(specs, how)
    keys: list[Hashable] = [(spec.formula, spec.choice, how.text, directory) for spec in specs]
    with _lock:
        missing = {key: spec for key, spec in zip(keys, specs, strict=True) if key not in _kernels}
        if missing:
            call = next(_calls)
            numbers = {key: (call, plan) for key, plan in zip(keys, plans or [0] * len(keys), strict=True)}
            _kernels.update(_found_or_made(missing, how, directory, numbers))
        for key in dict.fromkeys(keys):
            _kernels[key] = _kernels.pop(key)
        kernels = [_kernels[key].named(spec.name) for key, spec in zip(keys, specs, strict=True)]
        if missing:  # who holds one of those that go, as a plan does, calls it on
            total = sum(kernel.code_bytes for kernel in _kernels.values())
            while total > MOST_BYTES:
                total -= _kernels.pop(next(iter(_kernels))).code_bytes
        return kernels


def keys_on_disk(made: Sequence[Kernel]) -> list[tuple[str, str]] | None:
    """The key on disk, and the symbol, of each kernel; None where one is not kept there, or was found by a search."""
    directory, known = disk.cache_directory(), dict[str, tuple[str, str]]()
    for kernel in made:
        if kernel.symbol not in known:
            key = disk.key(kernel.symbol, kernel.spec.choice, kernel.named_target.text)
            if directory is None or kernel.spec.choice or not disk.is_kept(key):
                return None
            known[kernel.symbol] = key, kernel.symbol
    return [known[kernel.symbol] for kernel in made]


def first_members(made: Sequence[Kernel]) -> list[rows.Member]:
    """The kernels that are among the first of their formulas, or were compiled for one axis that varies."""
    own = {kernel.symbol: kernel for kernel in made if kernel.after < rows.EXACT_OF_ANY}
    found = (rows.member_of(kernel.spec, kernel.named_target) for kernel in own.values())
    return [member for member in found if member is not None]


def note_members(members: Iterable[tuple[str, Sequence[Sequence[int]], Sequence[float]]], plan: Hashable) -> None:
    """Notes that a plan has these kernels, see `kernels.rows`."""
    for key, shapes, numbers in members:
        rows.note(rows.Member(key, tuple(map(tuple, shapes)), tuple(numbers)), plan)


def functions_on_disk(wanted: Sequence[tuple[str, str]]) -> dict[str, tuple[Any, Any]] | None:
    """The functions of kernels, each with the module that must stay, by their keys on disk, from there or the process;
    None where one is missing. `wanted`: keys and symbols."""
    symbols = dict(wanted)

    def read(path: Path, keys: Sequence[str]) -> dict[str, tuple[Any, Any]]:
        module = tvm_ffi.load_module(disk.utf8(path), keep_module_alive=False)
        return {key: (module[symbols[key]], module) for key in keys}

    found = {key: _functions[key] for key in symbols if key in _functions}
    if missing := [key for key in symbols if key not in found]:
        found |= disk.load(missing, read)
        if len(_functions) > MOST_FUNCTIONS:
            _functions.clear()
        _functions.update(found)
    return found if len(found) == len(symbols) else None


def _found_or_made(
    specs: Mapping[Hashable, KernelSpec], how: TargetName, directory: Path | None, plans: Mapping[Hashable, Hashable]
) -> dict[Hashable, Kernel]:
    """The kernels of specifications by their keys, from disk, or compiled into one library more. A kernel for many
    numbers of rows serves where there is one, or can be; the process has it under a key of its own. `plans`: by key."""
    global _compiled
    many = {key: rows.of_many(spec, how, plans[key]) for key, spec in specs.items()}
    serving: dict[Hashable, KernelSpec] = {}  # those of many that are found to be one

    def place(spec: KernelSpec) -> Hashable:
        return spec.formula, spec.choice, how.text, directory

    for key, candidates in many.items():
        serving.update((key, one) for one in candidates[::-1] if place(one) in _kernels)
    open_ones = {key: spec for key, spec in specs.items() if key not in serving}
    lacking = [one for key, spec in open_ones.items() for one in (*many[key], spec)]
    lowered: dict[str, Any] = {}  # by symbol, of those that are compiled

    def kernel(spec: KernelSpec, module: Any, code_bytes: int) -> Kernel:
        return Kernel(spec, how, module, code_bytes + _PAGES, lowered.get(spec.symbol))

    by_key = {disk.key(spec.symbol, spec.choice, how.text): spec for spec in lacking}

    def read(path: Path, keys: Sequence[str]) -> dict[str, Kernel]:
        """The kernels in a library, by symbol. Raises RuntimeError or AttributeError for a file that lacks one."""
        module = tvm_ffi.load_module(disk.utf8(path), keep_module_alive=False)  # a kernel keeps it
        return {by_key[key].symbol: kernel(by_key[key], module, path.stat().st_size // len(keys)) for key in keys}

    keeps = how.kind == "llvm" and not how.refusal
    found = disk.load(by_key, read) if keeps else {}
    missing: dict[str, KernelSpec] = {}
    for key, spec in open_ones.items():
        chosen = next((one for one in (*many[key], spec) if one.symbol in found), None)
        if chosen is None:
            chosen = next((one for one in many[key] if rows.is_one(one)), spec)
            missing[chosen.symbol] = chosen
        if chosen is not spec:
            serving[key] = chosen
    if missing:
        build = with_compiler("kernels.build")
        with disk.folder() if keeps else nullcontext() as folder:
            try:
                modules, made, objects = build.build([*missing.values()], how, folder)
            except Exception:
                if not rows.refuse(missing.values()):
                    raise
                return _found_or_made(specs, how, directory, plans)
            lowered.update(made)
            _compiled += len(missing)
            if folder is not None:
                keys = [key for key, spec in by_key.items() if spec.symbol in missing]
                found |= disk.keep(folder, keys, partial(disk.link, objects), read)
        size = _COMPILER // min(len(missing), build.SOME)
        found |= {s: kernel(spec, modules[s], size) for s, spec in missing.items() if s not in found}
    result: dict[Hashable, Kernel] = {}
    for key, spec in specs.items():
        if (chosen := serving.get(key)) is None:
            result[key] = found[spec.symbol]
            continue
        own = place(chosen)
        result[own] = one = result.get(own) or _kernels.pop(own, None) or found[chosen.symbol]
        result[key] = Kernel(spec, how, one.module, _PLACE, one.lowered, of=chosen)
    return result
