"""From loops to machine code: modules of kernels, compiled on all cores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tvm
from tvm import tirx
from tvm.runtime import Module
from tvm.target import Target

from ..schedule.machine_code import compiled
from ..system import available_cores
from .spec import KernelSpec, Lowered, lower, symbol_of

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
