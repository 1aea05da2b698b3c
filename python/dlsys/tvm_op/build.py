"""From formulas to compiled kernels: TE -> PrimFunc -> schedule -> machine code, each kernel built once a process."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import te, tirx
from tvm.target import Target

from .. import compute, schedule
from ..device import get_num_threads
from ..errors import TargetError
from ..schedule.target import resolve_target
from .kernel import ArrayType, Kernel, Program


@dataclass(frozen=True)
class KernelSpec:
    """A kernel to be built.

    Attributes:
        name: what it is called in errors, listings and machine code.
        key: with `inputs`, what tells its formula from others; `te` is not compared.
        inputs: shape and dtype of each input.
        te: the formula, from one `te.Tensor` per input to the output's.
    """

    name: str
    key: Hashable
    inputs: tuple[ArrayType, ...]
    te: Callable[..., te.Tensor]


_cache: dict[Hashable, Kernel] = {}
_lock = threading.Lock()
_scheduled: ContextVar[bool] = ContextVar("scheduled", default=True)


@contextmanager
def default_schedules() -> Iterator[None]:
    """Within it kernels are built with TVM's default loops instead of our schedules: to compare with."""
    token = _scheduled.set(False)
    try:
        yield
    finally:
        _scheduled.reset(token)


def cache_size() -> int:
    """How many kernels this process has built."""
    return len(_cache)


def build(specs: Sequence[KernelSpec], target: Any = "llvm") -> list[Kernel]:
    """The kernels of `specs`, in order. What was not built before is compiled together, on all cores.

    `target` is "llvm" (this CPU), "cuda", a dict such as {"kind": "llvm", "mcpu": "znver3"}, or a TVM Target.
    Raises TargetError for one that is unknown or that this machine cannot run.
    """
    resolved = _runnable(resolve_target(target))
    ours = _scheduled.get()
    keys: list[Hashable] = [(spec.key, spec.inputs, str(resolved), ours) for spec in specs]
    with _lock:
        missing = {key: spec for key, spec in zip(keys, specs, strict=True) if key not in _cache}
        _cache.update(_compile_all(missing, resolved, ours))
        return [_cache[key].named(spec.name) for key, spec in zip(keys, specs, strict=True)]


def _runnable(target: Target) -> Target:
    """The target, if this machine can run its code. Raises TargetError."""
    if target.kind.name == "cuda" and not (tvm.runtime.enabled("cuda") and tvm.cuda(0).exist):
        raise TargetError("target cuda: this machine has no usable CUDA device; use 'llvm'")
    return target


def _compile_all(missing: dict[Hashable, KernelSpec], target: Target, ours: bool) -> dict[Hashable, Kernel]:
    """One module per core, filled in turn, so that large kernels spread."""
    if not missing:
        return {}
    items = list(missing.items())
    parts = min(get_num_threads(), len(items))
    shares = [items[part::parts] for part in range(parts)]
    if parts == 1:
        return _compile(shares[0], target, ours)
    built: dict[Hashable, Kernel] = {}
    with ThreadPoolExecutor(parts) as pool:
        for kernels in pool.map(lambda share: _compile(share, target, ours), shares):
            built.update(kernels)
    return built


def _compile(
    items: Sequence[tuple[Hashable, KernelSpec]], target: Target, ours: bool
) -> dict[Hashable, Kernel]:
    functions: dict[str, tirx.PrimFunc] = {}
    made = []
    for number, (key, spec) in enumerate(items):
        inputs = [compute.placeholder(*kind, f"in{i}") for i, kind in enumerate(spec.inputs)]
        output = spec.te(*inputs)
        if any(output.same_as(value) for value in inputs):  # a formula without a stage writes nothing
            output = compute.copy(output)
        function = any_alignment(te.create_prim_func([*inputs, output]))
        rule = "default"
        if ours:
            function, rule = schedule.apply(function, target)
        symbol = f"{_identifier(spec.name)}_{number}" if len(items) > 1 else _identifier(spec.name)
        functions[symbol] = function.with_attr("global_symbol", symbol)
        made.append((key, spec, (compute.shape_of(output), str(output.dtype)), functions[symbol], rule))
    program = Program(tvm.compile(tvm.IRModule(functions), target=target).mod, target)
    return {key: Kernel(spec.name, spec.inputs, kind, f, rule, program) for key, spec, kind, f, rule in made}


def any_alignment(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with its arrays assumed aligned to no more than a float32.

    TVM assumes 64 bytes and does not check: on NumPy's memory such a kernel can end the process. Unaligned
    vector loads cost nothing on aligned data. The alignment is part of a buffer's type, which has no setter
    from Python; in the function's JSON it is one field.
    """
    text = tvm.ir.save_json(function)
    return tvm.ir.load_json(text.replace('"data_alignment":64', '"data_alignment":4'))


def _identifier(name: str) -> str:
    """A legal symbol close to `name`."""
    return "k_" + re.sub(r"\W", "_", name, flags=re.ASCII)
