"""From scheduled functions to machine code: TVM's own passes, and before and after them our corrections of TVM 0.27.
Each says what TVM does; tests/schedule/test_tvm_corrections.py tells when a later one needs it no more."""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, sym, tirx
from tvm.target import Target

from ..compute.elementary import power_of_two
from ..compute.loops import ravelled
from ..devices.context import DLPACK_CPU
from . import denormals, squares
from .common import AS_IT_IS, found_in, mutated, renamed, rewritten, with_places
from .target import Machine, features

PIPELINE = "dlsys"
NO_SLP = "-vectorize-slp:bool=false"
"""An option of LLVM's, in TVM's notation: TVM 0.27 has the SLP vectorizer on, which takes 40 % of the time to compile a
convolution's unrolled tile, and finds nothing."""
_LIKELY, _LLVM, _EXPECT = "prim.likely", "tirx.call_llvm_pure_intrin", "llvm.expect"
_EXPECT_NUMBER = tirx.call_llvm_pure_intrin("bool", _EXPECT, True, True).args[0]
_QUOTIENTS = (tirx.FloorDiv, tirx.FloorMod)
_OPAQUE = tvm.ir.Op.get("tirx.reinterpret")


def compiled(functions: Mapping[str, tirx.PrimFunc], target: Target) -> tvm.runtime.Module:
    """A module of the functions' machine code."""
    if str(target.kind) == "llvm":
        options = [*target.attrs.get("cl-opt", ()), NO_SLP]
        target = Target({**dict(target.export()), "cl-opt": options})
    with compiling(target):
        return tvm.compile(tvm.IRModule(dict(functions)), target=target, tir_pipeline=PIPELINE).mod


_is_ours: ContextVar[bool] = ContextVar("is_ours", default=False)


@contextlib.contextmanager
def compiling(target: Target) -> Iterator[None]:
    """Within it TVM compiles for the target, and CUDA C++ by our compiler, which asks for the architecture."""
    token = _is_ours.set(True)
    try:
        with target:
            yield
    finally:
        _is_ours.reset(token)


def is_compiling() -> bool:
    """Whether this thread compiles kernels of ours, and not a program's own of TVM."""
    return _is_ours.get()


def _on_host(function: tirx.PrimFunc) -> tirx.Stmt:
    """The body of a host's function. On the stack lie its local arrays of up to 16 KiB; and, where it runs on a CPU, so
    that they are its own, global ones of up to 1 KiB, as TVM 0.27 has it."""
    kinds = {int(mark.value) for mark in found_in(function.body, tirx.AttrStmt) if mark.attr_key == "device_type"}
    most = {"local": 16 << 10, **({"global": 1 << 10} if kinds == {DLPACK_CPU} else {})}
    kept: dict[Any, Any] = {tirx.Select: _branch, tvm.ir.TensorLoad: squares.contiguous}
    return rewritten(function.body, {**kept, tirx.AllocBuffer: partial(_on_stack, most=most)})


def _on_stack(allocation: tirx.AllocBuffer, most: Mapping[str, int]) -> tirx.Stmt:
    """An array of at most so many bytes, by its scope, marked to lie on the stack, where a local one becomes registers.
    TVM 0.27 takes a local one's memory from a pool at run time, of which LLVM must prove that nothing else touches it:
    not in a loop with a prefetch. And it aligns what lies on the stack to 16 bytes, so that vectors cross cache lines:
    as an array of vectors of a line's size it begins at a line."""
    buffer = allocation.buffer
    if not all(isinstance(extent, tirx.IntImm) for extent in buffer.shape):
        return allocation
    dtype, size, scope = tvm.DataType(str(buffer.dtype)), math.prod(map(int, buffer.shape)), buffer.scope()
    nbytes = size * dtype.bits * dtype.lanes // 8
    if not 0 < nbytes <= most.get(scope, 0):
        return allocation
    annotations = {**dict(allocation.annotations or {}), **AS_IT_IS}
    if nbytes < Machine.line or dtype.lanes > 1 or str(dtype) == "bool":
        return tirx.AllocBuffer(buffer, annotations)
    own = 8 * Machine.line // dtype.bits
    lines = tirx.decl_buffer((-(-size // own),), f"{dtype}x{own}", buffer.name, scope=scope)
    return tirx.SeqStmt([tirx.AllocBuffer(lines, annotations), tirx.DeclBuffer(buffer, data=lines.data)])


def _sum_with_negative(difference: tirx.Sub) -> tirx.PrimExpr:
    """Of floating point numbers a + b * -1, which LLVM makes a - b again. TVM 0.27's simplifier takes (x + y) - x for y
    and x - x for 0, as if numbers were not rounded and none were infinite or NaN. Sums it leaves alone."""
    a, b, dtype = difference.a, difference.b, str(difference.ty)
    return a + b * tirx.const(-1, dtype) if dtype.startswith("float") else difference


def _expected(select: tirx.Select) -> tirx.Select:
    """For a CPU a choice whose condition is likely, so written that TVM makes vectors of it and leaves the condition in
    place, for `_branch`: TVM 0.27 computes both sides for each vector. Threads of a GPU branch as they are."""
    condition = select.condition
    if not isinstance(condition, tvm.ir.Call) or condition.op.name != _LIKELY or Target.current().kind.name != "llvm":
        return select
    likely = tirx.call_llvm_pure_intrin("bool", _EXPECT, condition.args[0], True)
    return tirx.Select(likely, select.true_value, select.false_value)


def _branch(select: tirx.Select) -> tirx.PrimExpr:
    """A choice by a condition that is likely, as a branch: the other value is computed where some lane needs it."""
    held = select.condition
    if not isinstance(held, tvm.ir.Call) or held.op.name != _LLVM or held.args[0] != _EXPECT_NUMBER:
        return select
    held = held.args[1]
    chosen = tirx.Select(held, select.true_value, select.false_value)
    if held.ty.is_scalar():  # LLVM may make vectors of it
        return chosen
    everywhere = tirx.call_llvm_pure_intrin("bool", "llvm.vector.reduce.and", held)
    return tirx.if_then_else(everywhere, select.true_value, chosen)


def _exact(number: tirx.FloatImm) -> tirx.PrimExpr:
    """A number for CUDA C: by its bits, where the 15 decimals of float64 that TVM 0.27 writes are too few."""
    value = float(number)
    if str(number.ty) != "float64" or not math.isfinite(value) or float(f"{value:.15f}") == value:
        return number
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return tirx.reinterpret("float64", tirx.const(bits, "int64"))


def _scaled(call: tvm.ir.Call) -> tirx.PrimExpr:
    """ldexp(value, n), value * 2 ** n rounded once, for n of both formats' exponents: AVX-512 has an instruction; else
    by two factors, as 2 ** n itself may be out of range where the result is not."""
    value, n = call.args
    target = Target.current()
    if target is not None and str(target.kind) == "llvm" and "avx512f" in features(str(target)):
        lanes = 512 // tvm.DataType(str(call.ty)).bits
        if isinstance(n, tirx.Cast) and n.value.ty == call.ty and tvm.DataType(str(call.ty)).lanes % lanes == 0:
            return _by_vectors(value, n.value, lanes)
        return tirx.call_llvm_pure_intrin(str(call.ty), "llvm.ldexp", value, n)
    half = n >> 1
    return value * power_of_two(half, str(call.ty)) * power_of_two(n - half, str(call.ty))


def _by_vectors(value: tirx.PrimExpr, n: tirx.PrimExpr, lanes: int) -> tirx.PrimExpr:
    """value * 2 ** n by AVX-512's instruction, which takes n as a number. LLVM's ldexp takes an integer, of which it
    makes a number again."""
    own, of_many = [tirx.Var(name, value.ty) for name in ("value", "n")], range(tvm.DataType(str(value.ty)).lanes)
    kind, name = ("float32", "ps") if lanes == 16 else ("float64", "pd")
    every, as_mxcsr = tirx.const(-1, f"int{lanes}"), tirx.const(4, "int32")  # lanes; the way of rounding

    def part(first: int) -> tirx.PrimExpr:
        x, power = (tirx.Shuffle([one], list(of_many[first : first + lanes])) for one in own)
        called = f"llvm.x86.avx512.mask.scalef.{name}.512"
        return tirx.call_llvm_pure_intrin(f"{kind}x{lanes}", called, x, power, x, every, as_mxcsr)

    found = tirx.Shuffle([part(first) for first in of_many[::lanes]], list(of_many))
    return tirx.Let(own[0], value, tirx.Let(own[1], n, found))


def _as_vectors(function: tirx.PrimFunc) -> tirx.Stmt:
    """The body with numbers that count up along a vector as a sum of two vectors, one of them constant: TVM 0.27
    computes them one by one. Places in memory stay: they say that elements are neighbours."""

    def ramp(item: tirx.Ramp, mutator: Any) -> tirx.PrimExpr:
        base, stride = mutator.mutate(item.base), item.stride
        return tirx.Broadcast(base, item.lanes) + tirx.Ramp(tirx.const(0, str(base.ty)), stride, item.lanes)

    def stays(index: tirx.PrimExpr) -> bool:
        return isinstance(index, tirx.Ramp) or index.ty.is_scalar()

    def places(indices: Any, mutator: Any) -> list[Any]:
        return [at if stays(at) else mutator.mutate(at) for at in indices]

    def load(item: tvm.ir.TensorLoad, mutator: Any) -> tirx.PrimExpr:
        return item if all(map(stays, item.indices)) else tirx.BufferLoad(item.source, places(item.indices, mutator))

    def store(item: tirx.BufferStore, mutator: Any) -> tirx.Stmt:
        return tirx.BufferStore(item.buffer, mutator.mutate(item.value), places(item.indices, mutator))

    return mutated(function.body, {tirx.Ramp: ramp, tvm.ir.TensorLoad: load, tirx.BufferStore: store})


def _changing(change: Callable[[tirx.PrimFunc], tirx.Stmt]) -> tvm.transform.Pass:
    """The pass that gives each function another body."""

    def of_module(module: tvm.IRModule, _: Any) -> tvm.IRModule:
        for name, function in module.functions.items():
            if not (body := change(function)).same_as(function.body):  # a function takes long to make
                module[name] = function.with_body(body)
        return module

    return tvm.transform.module_pass(of_module, opt_level=0, name="dlsys")


def _rewriting(functions: Mapping[type, Callable[[Any], Any]]) -> tvm.transform.Pass:
    """The pass that rewrites all objects of some kinds, by a function each, in one walk."""
    return _changing(lambda function: rewritten(function.body, functions))


def _in_one_axis(function: tirx.PrimFunc) -> tirx.Stmt:
    """The body with an element's place in memory as its last index, where an index has a quotient. TVM 0.27 computes
    places as maps of iterators, for which it takes (i % 4 + 1) // 2 for (i + 1) % 4 // 2: kernels read elsewhere, also
    beyond their arrays. Into calls it does not look; `_shown` takes these away again.

    While a place is simplified, a number that is divided has a name: else TVM makes (i + 6) % 7 of (i + 20) % 7, which
    no longer belongs to (i + 20) // 7."""
    analyzer = sym.Analyzer()
    for one in found_in(function.body, tirx.For):
        analyzer.bind(one.loop_var, tvm.ir.Range.from_min_extent(one.min, one.extent))

    def simple(place: Any) -> Any:
        names: dict[tirx.Var, tuple[Any, int]] = {}  # of numbers that are divided, as a number and what is added to it

        def named(quotient: Any) -> Any:
            number, offset, by = quotient.a, 0, quotient.b
            if found_in(number, *_QUOTIENTS) or not isinstance(by, tirx.IntImm):
                return quotient
            if isinstance(number, tirx.Add) and isinstance(number.b, tirx.IntImm):
                number, offset = number.a, int(number.b)
            for name, (other, more) in names.items():
                same = more == offset or (isinstance(quotient, tirx.FloorMod) and (more - offset) % int(by) == 0)
                if same and tvm_ffi.structural_equal(other, number):
                    return type(quotient)(name, by)
            names[name := tirx.Var("number", number.ty)] = number, offset
            bounds, of = analyzer.const_int_bound(quotient.a), partial(tirx.IntImm, number.ty)
            if bounds.max_value - bounds.min_value < 2**31 - 1:
                own = of(bounds.min_value), of(bounds.max_value - bounds.min_value + 1)
                analyzer.bind(name, tvm.ir.Range.from_min_extent(*own))
            return type(quotient)(name, by)

        found = analyzer.simplify(rewritten(place, dict.fromkeys(_QUOTIENTS, named)))
        return renamed(found, {name: number + offset for name, (number, offset) in names.items()})

    def place(buffer: Any, indices: list[Any]) -> tuple[Any, list[Any]]:
        if not found_in(indices, *_QUOTIENTS) or len(buffer.strides):
            return buffer, indices
        flat = simple(ravelled(indices, buffer.shape))
        hidden = tvm.ir.Call(_OPAQUE, [flat], ret_ty=flat.ty) if found_in(flat, *_QUOTIENTS) else flat
        return buffer, [*(tirx.const(0, str(index.ty)) for index in indices[:-1]), hidden]

    return with_places(function.body, place)


def _shown(call: Any) -> tirx.PrimExpr:
    """The place that a call hides; other calls as they are."""
    return call.args[0] if call.op.same_as(_OPAQUE) and call.args[0].ty == call.ty else call


def _pipeline() -> tuple[Any, Any, Any]:
    """TVM's passes for scheduled functions, those that our loops need, with ours among them: before all others, around
    what makes indices of one axis, and before the host's allocations."""
    loops, code, (_, host, device) = s_tir.transform, tirx.transform, tirx.get_tir_pipeline("s_tir")
    passes = [
        _rewriting({tirx.Sub: _sum_with_negative, tirx.Select: _expected}),
        loops.CanonicalizeLoop(),
        loops.LowerCrossThreadReduction(),
        loops.LowerInitBlock(),
        loops.PlanAndUpdateBufferAllocationLocation(),
        loops.ConvertBlocksToOpaque(),
        loops.LiftThreadBinding(),
        loops.CompactBufferAllocation(),
        loops.UnifyThreadBinding(),
        loops.LowerMatchBuffer(),
        loops.AnnotateIrregularLoop(),
        loops.LowerOpaqueBlock(),
        _changing(_in_one_axis),
        code.FlattenBuffer(),
        _rewriting({tvm.ir.Call: _shown}),
        code.StmtSimplify(),
        code.BF16ComputeLegalize(),
        code.NarrowDataType(32),
        loops.LoopPartition(),
        code.VectorizeLoop(True),
        code.StorageRewrite(),
        loops.HoistIfThenElse(),
        code.UnrollLoop(),
        loops.RenormalizeSplitPattern(),
        code.StmtSimplify(),
        code.RemoveNoOp(),
        loops.RewriteUnsafeSelect(),
        code.CommonSubexprElim(),
        code.VerifyMemory(),
        *map(loops.ThreadSync, ("shared", "shared.dyn", "warp")),
        loops.LowerThreadAllreduce(),
        loops.MergeSharedMemoryAllocations(),
        code.SplitHostDevice(),
        code.MakePackedAPI(),
        code.BF16StorageLegalize(),
    ]
    own = list(map(_changing, (denormals.flushed, _on_host, _as_vectors)))
    exact = _rewriting({tirx.FloatImm: _exact})
    final = (lambda: tvm.transform.Sequential([*own, host()]), lambda: tvm.transform.Sequential([exact, device()]))
    return tvm.transform.Sequential(passes), *final


tirx.register_tir_pipeline(PIPELINE, _pipeline)
tvm.ir.register_op_attr(
    "tirx.fma", "cuda.FLowerIntrinsic", lambda call: tirx.call_pure_extern(str(call.ty), "fma", *call.args)
)  # TVM knows no other target's than LLVM's
for _kind in ("llvm", "cuda"):
    tvm.ir.register_op_attr("tirx.ldexp", f"{_kind}.FLowerIntrinsic", _scaled, 11)
for _name in ("tirx.isnan", "tirx.nearbyint", "tirx.ldexp"):  # TVM 0.27 computes them one by one within a vector
    tvm.ir.register_op_attr(_name, "TVectorizable", True, 11)  # above what a later TVM says of itself
