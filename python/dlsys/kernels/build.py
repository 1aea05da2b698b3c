"""From formulas to machine code: TE -> PrimFunc -> the first schedule rule that takes it -> modules, on all cores.
The one file of this room that needs TVM's compiler.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm import ir, s_tir, te, tirx
from tvm.runtime import Module
from tvm.target import Target

from .. import compute, schedule
from ..errors import DlsysError, ShapeError
from ..schedule.codegen import array
from ..schedule.common import found_in, places_of, renamed
from ..schedule.machine_code import compiled, is_compiling
from ..system import available_cores
from . import disk, progress
from .spec import MOST_COUNTED, ArrayType, KernelSpec, TargetName

SOME = 8  # kernels of a module, at most; each module takes as long as two small kernels by itself
UNCHECKED = {"tirx.disable_assert": True}  # TVM's setting for functions that take their arguments for right
TOO_FEW = "its loops count in 32 bits, too few for an array of shape"


@dataclass(frozen=True)
class Lowered:
    """A kernel before machine code: its scheduled loops, the rule that shaped them, and shape and dtype of the arrays
    that it is given behind its outputs, to work in."""

    function: tirx.PrimFunc
    rule: schedule.Rule
    scratch: tuple[ArrayType, ...] = ()


def lower(spec: KernelSpec, how: TargetName) -> Lowered:
    """The formula's loops as the first schedule rule that takes them has them, or as TVM makes them. What a GPU's
    launches tell each other lies in arrays of the caller's, or of TVM's."""
    if spec.loops:
        return Lowered(spec.loops().with_attr("global_symbol", spec.symbol), schedule.WRITTEN)
    function, rule = prim_func(spec), schedule.DEFAULT
    if how.ours:
        function, rule = schedule.apply(function, how.target, spec.precision)
    schedule.check(function, how.target)
    _require_counted(spec, function)
    function = function.with_attr("global_symbol", spec.symbol)
    if how.checked or how.kind != "cuda":
        return Lowered(function, rule)
    function, arrays = schedule.with_scratch_given(function)
    return Lowered(function, rule, tuple((tuple(map(int, array.shape)), str(array.dtype)) for array in arrays))


@contextlib.contextmanager
def _counted(specs: Iterable[KernelSpec]) -> Iterator[None]:
    """Within it an error of TVM's is a ShapeError where a kernel has an array of more elements than its loops count:
    those of one index for all elements count in 64 bits, others in 32."""
    try:
        yield
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        shapes = [(spec.name, shape) for spec in specs for shape, _ in (*spec.inputs, *spec.outputs)]
        large = next(((name, shape) for name, shape in shapes if math.prod(shape) > MOST_COUNTED), None)
        if large is None or isinstance(error, DlsysError):
            raise
        raise ShapeError(f"{large[0]}: {TOO_FEW} {large[1]}") from error


def _require_counted(spec: KernelSpec, function: tirx.PrimFunc) -> None:
    """Raises ShapeError for an array of more elements than the indices count by which the loops reach them."""
    if all(math.prod(shape) <= MOST_COUNTED for shape, _ in (*spec.inputs, *spec.outputs)):
        return
    for buffer, indices in places_of(function.body):
        shape = tuple(map(int, buffer.shape))
        if math.prod(shape) > MOST_COUNTED and any(str(index.ty) == "int32" for index in indices):
            raise ShapeError(f"{spec.name}: {TOO_FEW} {shape}")


def prim_func(spec: KernelSpec) -> tirx.PrimFunc:
    """The formula as plain loops over its inputs, then its outputs."""
    inputs = [compute.placeholder(*kind, f"in{i}") for i, kind in enumerate(spec.inputs)]
    formula, outputs = spec.te(*inputs), list[te.Tensor]()
    for value in formula if isinstance(formula, tuple) else (formula,):
        taken = any(value.same_as(other) for other in [*inputs, *outputs])
        outputs.append(compute.copy(value) if taken else value)  # a formula without a stage writes nothing
    function = any_alignment(te.create_prim_func([*inputs, *outputs]))
    return function.with_attr("tirx.noalias", False) if spec.in_place else function


def any_alignment(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with its arrays, each another buffer, assumed aligned to no more than a float32. TVM assumes 64
    bytes and does not check: on NumPy's memory such a kernel can end the process."""
    inner = (buffer for block in found_in(function.body, s_tir.SBlock) for buffer in block.alloc_buffers)
    return renamed(function, {x: array(x.shape, x.dtype, x.name, x.scope()) for x in [*function.params, *inner]})


def build(
    specs: Sequence[KernelSpec], how: TargetName, folder: str | None
) -> tuple[dict[str, Module], dict[str, Lowered], list[Path]]:
    """The module of each kernel, by symbol, what was lowered, and the modules' objects, written to a folder if there is
    one. While Python lowers, in one thread, the other cores make machine code of what is lowered."""
    lowered: dict[str, Lowered] = {}
    modules: dict[str, Module] = {}
    objects: list[Path] = []

    def make(share: Sequence[KernelSpec]) -> None:
        functions = {spec.symbol: lowered[spec.symbol].function for spec in share}
        with _counted(share), tvm.transform.PassContext(config={} if how.checked else UNCHECKED):
            modules.update(dict.fromkeys(functions, module := compiled(functions, how.target)))
        bar.update(len(share))
        if folder is not None:
            objects.append(path := Path(folder, f"{share[0].symbol[-12:]}.o"))
            with contextlib.suppress(OSError):  # no room: the linker misses it, and nothing is kept
                disk.written(module, path)

    def size(spec: KernelSpec) -> int:
        return len(found_in(lowered[spec.symbol].function.body, tirx.Stmt, ir.Expr))  # LLVM takes about as long

    cores, begun, waiting = available_cores(), list[Future[None]](), list[KernelSpec]()
    with progress.bar(len(specs)) as bar, ThreadPoolExecutor(cores) as pool:
        for spec in specs:
            with _counted([spec]):
                lowered[spec.symbol] = lower(spec, how)
            waiting.append(spec)
            if sum(not one.done() for one in begun) < cores - 1:
                begun += [pool.submit(make, share) for share in shared(waiting, 1, size)]
                waiting = []
        begun += [pool.submit(make, share) for share in shared(waiting, 2 * cores, size)]
        for one in begun:
            one.result()
    return modules, lowered, sorted(objects)  # which makes equal libraries of equal kernels


def shared(specs: Sequence[KernelSpec], parts: int, size: Callable[[KernelSpec], int]) -> list[list[KernelSpec]]:
    """The specs in so many parts, or more of SOME kernels, a module each, as much to compile in each by `size`; those
    in place apart: with both kinds TVM 0.27 may take it that all arrays share no memory (test_tvm_op.py has a pair)."""
    found: list[list[KernelSpec]] = []
    for in_place in (False, True):
        own = [spec for spec in specs if bool(spec.in_place) == in_place]
        count = min(parts * -(-len(own) // (parts * SOME)), len(own))
        if count > 1:  # dealt out from the largest on
            own.sort(key=size, reverse=True)
        found += [own[i::count] for i in range(count)]
    return found


_CUDA_COMPILER = "tvm_callback_cuda_compile"  # the name by which TVM calls it, of which a process has one
_compiled_by_tvm = tvm.get_global_func(_CUDA_COMPILER)


@tvm.register_global_func(_CUDA_COMPILER, override=True)
def _machine_code(code: str) -> bytes:
    """Machine code for a GPU from CUDA C++, or from disk; a program's own code goes to TVM's compiler."""
    if not is_compiling():
        return _compiled_by_tvm(code)
    arch = str(Target.current().attrs["arch"])
    compiler = schedule.extension("cuda").compiler
    key = disk.key(code, arch, compiler.version())
    if (made := disk.content(key)) is None:
        made = compiler.compiled(code, arch)
        disk.keep_content(key, made)
    return made


def run_function(head: int) -> tirx.PrimFunc:
    """A function of a table of int64, which begins with where its parts do: moves, calls, results, and how many calls
    and moves there are. Behind this `head` lies where arrays begin. A move is three numbers: of a word of the table, of
    an array, and the byte there which the word then points to. A call is three: the address of a function, that of its
    arguments, and their number. The first result is 1 after a call that failed, else 0, and is returned: then no more
    calls are made, so that no parameter takes what came of it. The two behind it are for what a function gives."""
    table = tirx.decl_buffer((tirx.Var("size", "int64"),), "int64", name="table", data_alignment=8)
    move, number = (tirx.Var(name, "int64") for name in ("move", "number"))
    moves, calls, results, many_calls, many_moves = (table[i] for i in range(head))
    word, array, byte = (table[moves + move * 3 + i] for i in range(3))
    function, arguments, count = (table[calls + number * 3 + i] for i in range(3))

    def put(at: int, value: Any) -> tirx.Stmt:
        return tirx.BufferStore(table, value, [results + at])

    def loop(variable: tirx.Var, extent: Any, body: Any) -> tirx.For:
        return tirx.For(variable, tirx.const(0, "int64"), extent, tirx.ForKind.SERIAL, body)

    zero, one = (tirx.const(value, "int64") for value in (0, 1))
    # TVMFFIFunctionCall(function, arguments, how many, result), which is None before
    given_to = function, arguments, tirx.Cast("int32", count), tirx.address_of(table[results + 1])
    failed = tirx.call_extern("int32", "TVMFFIFunctionCall", *given_to) != 0
    calling = tirx.SeqStmt([put(1, zero), put(2, zero), tirx.IfThenElse(failed, put(0, one), None)])
    moving = loop(move, many_moves, tirx.BufferStore(table, table[head + array] + byte, [word]))
    calling_all = loop(number, many_calls, tirx.IfThenElse(table[results] == 0, calling, None))
    return tirx.PrimFunc([table], tirx.SeqStmt([moving, put(0, zero), calling_all, tirx.Return(table[results])]))
