"""From loops to machine code: modules of kernels, compiled on all cores, and found again in memory and on disk."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import tvm
from tvm import tirx
from tvm.runtime import Module
from tvm.target import Target

from ..schedule.machine_code import compiled
from ..system import at_fork, available_cores
from . import disk
from .disk import link
from .kernel import Kernel
from .spec import KernelSpec, Lowered, lower, runnable_target, symbol_of, uses_own_schedules

Types = tuple[Any, ...]
MANY = 32  # kernels: of more each core gets several modules, so that a long one leaves none idle
UNCHECKED = {"tirx.disable_assert": True}  # TVM's setting for functions that take their arguments for right


def build(
    specs: Sequence[KernelSpec], target: Target, ours: bool, checked: bool
) -> tuple[dict[str, Module], dict[str, Lowered]]:
    """The module of each kernel, by symbol, and what was lowered.

    `ours`: whether with our schedules; `checked`: whether the functions check their arguments, which takes a third to a
    half of the time to compile a small kernel."""
    lowered: dict[str, Lowered] = {}

    def of_share(share: Sequence[KernelSpec]) -> dict[str, Module]:
        made = {symbol_of(spec): lower(spec, target, ours) for spec in share}
        lowered.update(made)
        found: dict[str, Module] = {}
        for functions, vectorized in by_rule(made):
            with tvm.transform.PassContext(config={} if checked else UNCHECKED):
                module = compiled(functions, target, vectorized)
            found.update(dict.fromkeys(functions, module))
        return found

    cores = available_cores()
    shares = shared(specs, cores * (2 if len(specs) > MANY and cores > 1 else 1))
    if len(shares) == 1:
        return of_share(shares[0]), lowered
    modules: dict[str, Module] = {}
    with ThreadPoolExecutor(cores) as pool:
        for part in pool.map(of_share, shares):
            modules.update(part)
    return modules, lowered


def shared(specs: Iterable[KernelSpec], parts: int) -> list[list[KernelSpec]]:
    """The specs in some `parts`, a module each, filled in turn, so that large kernels spread.

    Kernels that work in place stand apart: where a module holds both kinds, TVM 0.27 may take it that the arrays of all
    its functions share no memory (test_tvm_op.py has such a pair).
    """
    found: list[list[KernelSpec]] = []
    items = list(specs)
    for in_place in (False, True):
        kind = [spec for spec in items if bool(spec.in_place) == in_place]
        count = min(parts, len(kind))
        found += [kind[part::count] for part in range(count)]
    return found


def by_rule(lowered: Mapping[str, Lowered]) -> Iterator[tuple[dict[str, tirx.PrimFunc], bool]]:
    """The functions, by symbol, that may share a module, and whether LLVM's SLP vectorizer is to run there."""
    for vectorized in (True, False):
        functions = {s: made.function for s, made in lowered.items() if made.rule.unrolled is not vectorized}
        if functions:
            yield functions, vectorized


def idle_functions(types: Iterable[Types], target: Target) -> dict[Types, Any]:
    """For each list of arguments' shapes and dtypes a compiled function that does nothing: what a call costs."""
    functions: dict[str, Any] = {}
    names: dict[Types, str] = {}
    for of in types:
        if of not in names:
            name = names[of] = f"idle_{len(names)}"
            buffers = [tirx.decl_buffer(shape, dtype, data_alignment=4) for shape, dtype in of]
            functions[name] = tirx.PrimFunc(buffers, tirx.Evaluate(0)).with_attr("global_symbol", name)
    with tvm.transform.PassContext(config=UNCHECKED):
        module = tvm.compile(tvm.IRModule(functions), target=target).mod
    return {of: module[name] for of, name in names.items()}


class Settings(NamedTuple):
    """How kernels are compiled: for which target, whether by our schedules, whether they check their arguments."""

    target: Target
    ours: bool
    checked: bool


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
    how = Settings(runnable_target(target), uses_own_schedules(), checked)
    where = (str(how.target), how.ours, checked, disk.cache_directory())
    keys: list[Hashable] = [(spec.key, spec.inputs, spec.in_place, *where) for spec in specs]
    with _lock:
        missing = {symbol_of(spec): (key, spec) for key, spec in zip(keys, specs, strict=True) if key not in _kernels}
        if missing:
            found = _found_or_made({symbol: spec for symbol, (_, spec) in missing.items()}, how)
            _kernels.update((key, found[symbol]) for symbol, (key, _) in missing.items())
        return [_kernels[key].named(spec.name) for key, spec in zip(keys, specs, strict=True)]


def _found_or_made(specs: Mapping[str, KernelSpec], how: Settings) -> dict[str, Kernel]:
    """The kernels by symbol, from disk or compiled into one library more."""
    if how.target.kind.name != "llvm":
        return _made(specs, how, None)
    settings = (str(how.target), how.ours, how.checked)
    key_of = {symbol: disk.key(symbol, *settings) for symbol in specs}
    held: dict[str, list[str]] = {}
    for symbol, key in key_of.items():
        if (library := disk.library_of(key)) is not None:
            held.setdefault(library, []).append(symbol)
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
    modules, lowered = build(list(specs.values()), *how)
    if library is not None:
        parts = list({id(module): module for module in modules.values()}.values())
        if (kernels := disk.keep(library, partial(link, parts), partial(_loaded, specs, how, lowered))) is not None:
            return kernels
    return {symbol: _kernel(modules[symbol], spec, how, lowered[symbol]) for symbol, spec in specs.items()}


def _loaded(
    specs: Mapping[str, KernelSpec], how: Settings, lowered: Mapping[str, Lowered], path: Path
) -> dict[str, Kernel]:
    """The kernels in a library; `lowered`: their loops, by symbol, where these are known. Raises RuntimeError,
    AttributeError or OSError for a file that is none or lacks one."""
    module = tvm.runtime.load_module(str(path))
    return {symbol: _kernel(module, spec, how, lowered.get(symbol)) for symbol, spec in specs.items()}


def _kernel(module: Module, spec: KernelSpec, how: Settings, lowered: Lowered | None) -> Kernel:
    """The kernel of a spec that `module` holds. Its loops, unless given, are made when somebody asks for them."""
    return Kernel(spec, how.target, module, lambda: lowered or lower(spec, how.target, how.ours), how.checked)
