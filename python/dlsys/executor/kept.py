"""A plan's kernels out of the cache: each is compiled once, for all plans that need it, of this process and of others.

So a network in evaluation after its training, or an eager loop whose steps differ, compiles only what is new in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tvm.target import Target

from .. import tvm_op
from . import cache


def kernels_of(specs: Mapping[str, tvm_op.KernelSpec], target: Target) -> dict[str, tvm_op.Kernel]:
    """The kernels of `specs`, by symbol: those that libraries of the cache hold, the rest compiled into one library
    more, or for this process alone where that cannot be kept."""
    if target.kind.name != "llvm" or cache.cache_directory() is None:
        return _built(specs, target)
    ours = tvm_op.uses_own_schedules()
    key_of = {symbol: cache.program_key(symbol, str(target), ours) for symbol in specs}
    held: dict[str, list[str]] = {}
    for symbol, key in key_of.items():
        if (library := cache.library_of(key)) is not None:
            held.setdefault(library, []).append(symbol)
    found: dict[str, tvm_op.Kernel] = {}
    for library, symbols in held.items():
        load = partial(tvm_op.load_library, specs=[specs[s] for s in symbols], target=target, ours=ours)
        if (kernels := cache.loaded(library, None, load)) is not None:
            found.update(zip(symbols, kernels, strict=True))
    missing = {symbol: spec for symbol, spec in specs.items() if symbol not in found}
    if not missing:
        return found
    library = cache.program_key(sorted(missing), str(target), ours)
    made = _compiled(missing, target, ours, library)
    if made is None:
        return found | _built(missing, target)
    cache.note([key_of[symbol] for symbol in missing], library)
    return found | made


def _built(specs: Mapping[str, tvm_op.KernelSpec], target: Target) -> dict[str, tvm_op.Kernel]:
    """The kernels, compiled for this process alone."""
    return dict(zip(specs, tvm_op.build(list(specs.values()), target), strict=True))


def _compiled(
    specs: Mapping[str, tvm_op.KernelSpec], target: Target, ours: bool, library: str
) -> dict[str, tvm_op.Kernel] | None:
    """The kernels, compiled into a library of this key; None where it cannot be kept."""
    lowered: dict[str, tvm_op.Lowered] = {}
    given = list(specs.values())

    def write(path: Path) -> None:
        lowered.update(tvm_op.write_library(given, target, ours, path))

    kernels = cache.loaded(library, write, lambda path: tvm_op.load_library(path, given, target, ours, lowered))
    return None if kernels is None else dict(zip(specs, kernels, strict=True))
