"""Denormal results become zero: kernels set x86's flush-to-zero while they compute, as XLA's and MKL's do.

Multiply-adds with denormal numbers, as small gradients are, take some Intel cores a hundred cycles. Results alone are
flushed (FTZ), what is given is read as it is (not DAZ): casts, comparisons and maxima stay right. The register of the
caller, and of each thread that takes a share, is set behind the argument checks and set back at the end, in 5 ns.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.target import Target, codegen

from .common import AS_IT_IS, mutated

KEPT = "denormals"  # a key of targets whose kernels compute denormal results
_FLUSH_TO_ZERO = 0x8000  # of MXCSR: Intel's manual, volume 1, section 10.2.3


def flushes(target: Target) -> bool:
    """Whether kernels for the target flush: on x86, unless the target keeps denormal numbers."""
    triple = str(target.attrs.get("mtriple") or codegen.llvm_get_system_triple())
    return target.kind.name == "llvm" and triple.startswith(("x86_64", "i686")) and KEPT not in target.keys


def flushed(function: tirx.PrimFunc) -> tirx.Stmt:
    """The body of a host's function, which flushes where its target does, in each share of a parallel loop too."""
    if not flushes(function.attrs["target"]):
        return function.body

    def scope(item: tirx.AttrStmt, mutator: Any) -> tirx.Stmt:
        inner = mutator.mutate(item.body)  # TVM makes a function of its own of "compute_scope"
        inner = _within(inner) if item.attr_key == "compute_scope" else inner
        return tirx.AttrStmt(item.node, item.attr_key, item.value, inner)

    def loop(item: tirx.For, mutator: Any) -> tirx.Stmt:
        inner = mutator.mutate(item.body)
        inner = tirx.For(item.loop_var, item.min, item.extent, item.kind, inner, annotations=item.annotations)
        if item.kind != tirx.ForKind.PARALLEL:
            return inner
        # the body of this mark is a thread's share, of which the loop is a part
        zero, one = tirx.const(0, "int32"), tirx.const(1, "int32")
        return tirx.AttrStmt(zero, "pragma_parallel_launch_point", one, _within(inner))

    return mutated(function.body, {tirx.AttrStmt: scope, tirx.For: loop})


def _within(body: tirx.Stmt) -> tirx.Stmt:
    """The statement with the register saved and set before it, and set back behind it and before each return."""
    # a cache line, at which the stack then begins, and with it the vectors that LLVM keeps there
    state = tirx.decl_buffer((16,), "int32", name="mxcsr", scope="local", data_alignment=4, layout=None)

    def call(name: str, at: int) -> tirx.Stmt:
        return tirx.Evaluate(tirx.call_llvm_intrin("void", f"llvm.x86.sse.{name}", tirx.address_of(state[at])))

    body = tvm_ffi.structural_map(body, (tirx.Return, lambda item: tirx.SeqStmt([call("ldmxcsr", 0), item])))
    setting = tirx.BufferStore(state, state[0] | tirx.const(_FLUSH_TO_ZERO, "int32"), [1])
    before = [tirx.AllocBuffer(state, AS_IT_IS), call("stmxcsr", 0), setting, call("ldmxcsr", 1)]
    return tirx.SeqStmt([*before, body, call("ldmxcsr", 0)])
