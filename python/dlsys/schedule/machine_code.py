"""From scheduled functions to machine code: TVM's own passes, and three of ours (one is `strided`).

TVM's simplifier takes (x + y) - x for y and x - x for 0, as if numbers were not rounded and none were infinite.
`_sum_with_negative` writes differences of floating point numbers as sums, which it leaves alone.

LLVM's SLP vectorizer, which looks for scalars to put together, takes half of LLVM's time over an unrolled tile,
and more of a convolution's, and finds nothing there: functions of rules that are `unrolled` go without.

TVM takes the memory of a "local" array from a pool at run time. LLVM then holds the array in registers only where it
can prove that nothing else touches that memory: not in a loop with a prefetch. An array on the stack becomes registers
by itself: `_on_stack`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target

from . import strided
from .common import rewritten

PIPELINE = "dlsys"
SLP = {True: "-vectorize-slp:bool=true", False: "-vectorize-slp:bool=false"}  # TVM's notation for LLVM's options
STACK_BYTES = 16 * 1024  # the largest array that is put on the stack
_AS_IT_IS = {"disable_lower_builtin": tirx.IntImm("bool", 1)}  # TVM's: this allocation is left to LLVM


def compiled(functions: Mapping[str, tirx.PrimFunc], target: Target, slp: bool = True) -> tvm.runtime.Module:
    """A module of the functions' machine code. `slp`: whether LLVM's SLP vectorizer runs, a setting of the process: TVM
    sets it back, but to what another thread has set, so it is said each time, and threads at work at one time say the
    same."""
    if str(target.kind) == "llvm":
        options = [*target.attrs.get("cl-opt", ()), SLP[slp]]
        target = Target({**dict(target.export()), "cl-opt": options})
    with target:  # CUDA's compiler is called from within and asks for the architecture
        return tvm.compile(tvm.IRModule(dict(functions)), target=target, tir_pipeline=PIPELINE).mod


def _on_stack(allocation: tirx.AllocBuffer) -> tirx.AllocBuffer:
    """A small local array, marked to lie on the stack."""
    buffer = allocation.buffer
    if buffer.scope() != "local" or not all(isinstance(extent, tirx.IntImm) for extent in buffer.shape):
        return allocation
    bits = tvm.DataType(str(buffer.dtype)).bits
    for extent in buffer.shape:
        bits *= int(extent)
    if bits > 8 * STACK_BYTES:
        return allocation
    return tirx.AllocBuffer(buffer, {**dict(allocation.annotations or {}), **_AS_IT_IS})


def _sum_with_negative(difference: tirx.Sub) -> tirx.PrimExpr:
    """Of floating point numbers a + b * -1, which LLVM makes a - b again."""
    a, b, dtype = difference.a, difference.b, str(difference.ty)
    return a + b * tirx.const(-1, dtype) if dtype.startswith("float") else difference


def _rewriting(kind: type, rewrite: Callable[[Any], Any]) -> tvm.transform.Pass:
    """The pass that rewrites all objects of a kind."""

    def of_module(module: tvm.IRModule, _: Any) -> tvm.IRModule:
        for name, function in module.functions.items():
            module[name] = function.with_body(rewritten(function.body, kind, rewrite))
        return module

    return tvm.transform.module_pass(of_module, opt_level=0, name=f"dlsys{rewrite.__name__}")


def _pipeline() -> tuple[Any, Any, Any]:
    """TVM's passes for functions that were scheduled, with ours before them and before the host's allocations."""
    passes, host, device = tirx.get_tir_pipeline("s_tir")
    first = [_rewriting(tirx.Sub, _sum_with_negative), passes]
    own = [_rewriting(tirx.AllocBuffer, _on_stack), _rewriting(tvm.ir.TensorLoad, strided.contiguous)]
    return tvm.transform.Sequential(first), lambda: tvm.transform.Sequential([*own, host()]), device


tirx.register_tir_pipeline(PIPELINE, _pipeline)
