"""Denormal results become zero: kernels set x86's flush-to-zero while they compute, as XLA's and MKL's do.

Multiply-adds with denormal numbers, as small gradients are, take some Intel cores a hundred cycles. Results alone are
flushed (FTZ), what is given is read as it is (not DAZ): casts, comparisons and maxima stay right. The register of the
caller, and of each thread that takes a share, is set behind the argument checks and set back at the end, in 5 ns.
"""

from __future__ import annotations

import tvm_ffi
from tvm import tirx
from tvm.target import Target, codegen

from .common import AS_IT_IS, rewritten

KEPT = "denormals"  # a key of targets whose kernels compute denormal results


def flushes(target: Target) -> bool:
    """Whether kernels for the target flush: on x86, unless the target keeps denormal numbers."""
    triple = str(target.attrs.get("mtriple") or codegen.llvm_get_system_triple())
    return target.kind.name == "llvm" and triple.startswith(("x86_64", "i686")) and KEPT not in target.keys


def flushed(function: tirx.PrimFunc) -> tirx.Stmt:
    """The body of a host's function, which flushes where its target does, in each share of a parallel loop too."""
    if not flushes(function.attrs["target"]):
        return function.body

    def scope(item: tirx.AttrStmt) -> tirx.Stmt:
        if item.attr_key != "compute_scope":  # of which TVM makes a function of its own
            return item
        return tirx.AttrStmt(item.node, item.attr_key, item.value, _within(item.body))

    def loop(item: tirx.For) -> tirx.Stmt:
        if item.kind != tirx.ForKind.PARALLEL:
            return item
        # the body of this mark is a thread's share, of which the loop is a part
        zero, one = tirx.const(0, "int32"), tirx.const(1, "int32")
        return tirx.AttrStmt(zero, "pragma_parallel_launch_point", one, _within(item))

    return rewritten(function.body, {tirx.AttrStmt: scope, tirx.For: loop})


def _within(body: tirx.Stmt) -> tirx.Stmt:
    """The statement with the register saved and set before it, and set back behind it and before each return."""
    # a cache line, at which the stack then begins, and with it the vectors that LLVM keeps there
    state = tirx.decl_buffer((16,), "int32", name="mxcsr", scope="local", data_alignment=4, layout=None)

    def call(name: str, at: int) -> tirx.Stmt:
        return tirx.Evaluate(tirx.call_llvm_intrin("void", f"llvm.x86.sse.{name}", tirx.address_of(state[at])))

    body = tvm_ffi.structural_map(body, (tirx.Return, lambda item: tirx.SeqStmt([call("ldmxcsr", 0), item])))
    flush_to_zero = tirx.const(0x8000, "int32")  # of MXCSR: Intel's manual, volume 1, section 10.2.3
    setting = tirx.BufferStore(state, state[0] | flush_to_zero, [1])
    before = [tirx.AllocBuffer(state, AS_IT_IS), call("stmxcsr", 0), setting, call("ldmxcsr", 1)]
    return tirx.SeqStmt([*before, body, call("ldmxcsr", 0)])
