"""`get`: a kernel is compiled once, for all that need it, of this process and of others."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tvm
from tvm.runtime import Module
from tvm.target import Target

from ..schedule import Rule
from ..system import at_fork
from . import disk
from .build import build
from .kernel import Kernel, Lowered
from .library import link
from .spec import KernelSpec, lower, output_types, runnable_target, symbol_of, uses_own_schedules

_kernels: dict[Hashable, Kernel] = {}
_lock = threading.Lock()


def _unlock() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it


at_fork(_unlock)


def built() -> int:
    """How many kernels this process has."""
    return len(_kernels)


def get(specs: Sequence[KernelSpec], target: Any = "llvm", checked: bool = False) -> list[Kernel]:
    """The kernels of `specs`, in order: those that the process has, then those on disk; the rest is compiled together,
    on all cores, and kept in both.

    `target` is "llvm" (this CPU), "cuda", a dict such as {"kind": "llvm", "mcpu": "znver3"}, or a TVM Target. For
    `checked` see `Kernel`. Raises TargetError for a target that is unknown or that this machine cannot run.
    """
    resolved = runnable_target(target)
    ours = uses_own_schedules()
    settings = (str(resolved), ours, checked, disk.cache_directory())
    keys: list[Hashable] = [(spec.key, spec.inputs, spec.in_place, *settings) for spec in specs]
    with _lock:
        missing = {symbol_of(spec): (key, spec) for key, spec in zip(keys, specs, strict=True) if key not in _kernels}
        if missing:
            found = _found_or_made({s: spec for s, (_, spec) in missing.items()}, resolved, ours, checked)
            _kernels.update((key, found[symbol]) for symbol, (key, _) in missing.items())
        return [_kernels[key].named(spec.name) for key, spec in zip(keys, specs, strict=True)]


def _found_or_made(specs: Mapping[str, KernelSpec], target: Target, ours: bool, checked: bool) -> dict[str, Kernel]:
    """The kernels by symbol, from disk or compiled into one library more."""
    if target.kind.name != "llvm":
        return _made(specs, target, ours, checked, None)
    settings = (str(target), ours, checked)
    key_of = {symbol: disk.key(symbol, *settings) for symbol in specs}
    held: dict[str, list[str]] = {}
    for symbol, key in key_of.items():
        if (library := disk.library_of(key)) is not None:
            held.setdefault(library, []).append(symbol)
    found: dict[str, Kernel] = {}
    for library, symbols in held.items():
        load = partial(_loaded, {s: specs[s] for s in symbols}, target, ours, checked, {})
        if (kernels := disk.load(library, load)) is not None:
            found.update(kernels)
    missing = {symbol: spec for symbol, spec in specs.items() if symbol not in found}
    if missing:
        library = disk.key(sorted(missing), *settings)
        load = partial(_loaded, missing, target, ours, checked, {})
        found.update(disk.load(library, load) or _made(missing, target, ours, checked, library))
        disk.note([key_of[symbol] for symbol in missing], library)
    return found


def _made(
    specs: Mapping[str, KernelSpec], target: Target, ours: bool, checked: bool, library: str | None
) -> dict[str, Kernel]:
    """The kernels compiled, and kept in a library of that key where they can be."""
    modules, lowered = build(list(specs.values()), target, ours, checked)
    if library is not None:
        parts = list({id(module): module for module in modules.values()}.values())
        rules = {symbol: made.rule for symbol, made in lowered.items()}
        load = partial(_loaded, specs, target, ours, checked, rules)  # the loops are made again for who asks
        if (kernels := disk.keep(library, partial(link, parts), load)) is not None:
            return kernels
    return {s: _kernel(modules[s], spec, target, ours, checked, lowered[s]) for s, spec in specs.items()}


def _loaded(
    specs: Mapping[str, KernelSpec],
    target: Target,
    ours: bool,
    checked: bool,
    rules: Mapping[str, Rule],
    path: Path,
) -> dict[str, Kernel]:
    """The kernels in a library; `rules` shaped them, by symbol, where that is known. Raises RuntimeError,
    AttributeError or OSError for a file that is none or lacks one."""
    module = tvm.runtime.load_module(str(path))
    return {s: _kernel(module, spec, target, ours, checked, rule=rules.get(s)) for s, spec in specs.items()}


def _kernel(
    module: Module,
    spec: KernelSpec,
    target: Target,
    ours: bool,
    checked: bool,
    lowered: Lowered | None = None,
    rule: Rule | None = None,
) -> Kernel:
    """The kernel of a spec that `module` holds. Its loops, unless given, are made when somebody asks for them."""
    later = (lambda: lower(spec, target, ours)) if lowered is None else (lambda: lowered)
    symbol, outputs = symbol_of(spec), output_types(spec)
    return Kernel(spec.name, spec.inputs, outputs, target, symbol, module, later, checked, spec.flat, rule)
