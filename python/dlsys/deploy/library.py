"""A whole run as one function of a shared library, for programs without dlsys: its kernels, and the table of its calls
(`kernels.runner.Table`), which the function copies, points to the memory that its caller gives, and works through.

The function is plain C, `step`, which takes pointers and is declared by a header; another by TVM's calling convention
checks its arrays and calls that one. Values of parameters are the caller's, and stand in a safetensors file beside the
library; or they are data of the library.

What a kernel needs of TVM's runtime (threads, memory) it calls through pointers in the library, which TVM's loader
fills. The library gets others in their place, which the system's loader fills, and the path of TVM's runtime.
"""

from __future__ import annotations

import itertools
import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import tvm_ffi
from tvm import ir, libinfo, tirx

from ..devices import get_num_threads
from ..devices.context import DLPACK_CPU
from ..errors import DlsysError
from ..kernels import disk
from ..kernels.build import build
from ..kernels.runner import CODES, HEAD, POINTER, RUN, Calls, Place, Table, each_call
from ..kernels.spec import ArrayType, KernelSpec, TargetName, target_name
from ..schedule.machine_code import compiled
from ..schedule.target import described
from ..storage import write_atomically

STEP = "step"
_OWN = "dlsys_step"  # as the library calls it: the C library has a `step` too
ALIGNED = 64  # bytes at a multiple of which a value in the library begins
_VALUES = "dlsys_values"  # the symbol of the values in the library
_PREFIX = "__tvm_ffi_"  # of the symbols of functions by TVM's calling convention
_POINTERS = re.compile(rb"__(TVM\w+)")  # in an object: names of pointers to functions of TVM's runtime
_TYPES = {"float32": "float", "float64": "double", "bool": "bool"}  # of C; others are int64_t and its like
_KEYWORDS = (
    "auto bool break case char const continue default do double else enum extern float for goto if inline int long "
    "register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while "
    "class delete false new operator private protected public template this throw true try typename using virtual"
)


@dataclass(frozen=True)
class Given:
    """An array that `step` is given, and may overwrite (`written`); the value of a parameter, as it is now."""

    name: str
    type: ArrayType
    written: bool = False
    value: np.ndarray | None = None


@dataclass(frozen=True)
class Exported:
    """The function of an exported library, as text its arguments and the CPU for which it was compiled."""

    arguments: tuple[Given, ...]  # what is given, memory for the values between if there are any, the results
    given: int  # how many
    results: int  # how many
    calls: Calls  # of kernels
    cpu: str

    def __str__(self) -> str:
        called = ", ".join(f"{one.name}: {one.type[1]}{list(one.type[0])}" for one in self.arguments)
        return f"{STEP}({called})\nfor {self.cpu}"


def export(
    specs: Sequence[KernelSpec],
    calls: Calls,
    given: Sequence[Given],
    results: Sequence[Place],
    arena: int,
    path: Path,
    mcpu: str | TargetName | None = None,
    constants: bool = False,
) -> Exported:
    """Writes the library, its header and, of parameters that are no `constants` of the library, their values. Returns
    how its function `step` is called: with what is given, with memory for the values between, `arena` bytes, if there
    are any, and with an array for each result. The CPU is this one, that of LLVM's name `mcpu`, or a target's.
    `results`: where each lies at the end. Raises DlsysError where a file cannot be written, TargetError."""
    own = {"kind": "llvm", "mcpu": mcpu, "num-cores": get_num_threads()}
    how = mcpu if isinstance(mcpu, TargetName) else target_name("llvm" if mcpu is None else own)
    once = {spec.symbol: spec for spec in [*specs, RUN]}
    kept = {i: array.value for i, array in enumerate(given) if constants and array.value is not None}
    taken = [array for i, array in enumerate(given) if i not in kept]
    taken += [Given("arena", ((arena,), "uint8"), True)] if arena else []
    taken += [Given(f"result_{i}", (place.shape, place.dtype), True) for i, place in enumerate(results)]
    names = unlike([array.name for array in taken])
    arguments = tuple([replace(array, name=name) for array, name in zip(taken, names, strict=True)])
    exported = Exported(arguments, len(given) - len(kept), len(results), calls, described(how.target))
    table = Table(calls, len(given))
    try:
        with tempfile.TemporaryDirectory() as folder:
            _, _, objects = build(list(once.values()), how, folder)
            step = compiled({STEP: _checked(arguments)}, how.target)
            objects.append(disk.written(step, Path(folder, "step.o")))
            text, places = _values_text(kept, Path(folder, "values"))
            text += _step_text(table, [call.symbol for call in each_call(calls)], places, results, arena > 0)
            source = Path(folder, "table.ll")
            source.write_text(text + _pointers(objects), encoding="utf-8")
            objects.append(disk.written(tvm_ffi.load_module(disk.utf8(source)), source.with_suffix(".o")))
            needed = tvm_ffi.libinfo.find_libtvm_ffi(), libinfo.find_libtvm_runtime()  # of TVM's libraries
            disk.link(objects, path, [Path(library) for library in needed])
        write_atomically(path.with_suffix(".h"), _header(exported, path.name).encode())
        if beside := {array.name: array.value for array in arguments if array.value is not None}:
            from safetensors.numpy import save

            content = save({name: np.ascontiguousarray(value) for name, value in beside.items()})
            write_atomically(path.with_suffix(".safetensors"), content)
    except OSError as error:
        raise DlsysError(f"{path} cannot be written: {error}") from None
    return exported


def _values_text(values: Mapping[int, np.ndarray], path: Path) -> tuple[str, dict[int, str]]:
    """The text that lets the assembler include values, which a file gets, and the address of each."""
    if not values:
        return "", {}
    places = {}
    with open(path, "wb") as file:
        for i, value in values.items():
            file.write(bytes(-file.tell() % ALIGNED))
            places[i] = f"getelementptr (i8, ptr @{_VALUES}, i64 {file.tell()})"
            file.write(np.ascontiguousarray(value).tobytes())
        file.write(bytes(1))  # a section has a byte, and its last value an address
    lines = [
        '.section .rodata,"a",@progbits', f".p2align {ALIGNED.bit_length() - 1}", f".globl {_VALUES}",
        f".hidden {_VALUES}", f"{_VALUES}:", f'.incbin "{disk.utf8(path)}"', ".text",
    ]  # fmt: skip
    asm = [f"module asm \"{line.replace(chr(34), chr(92) + '22')}\"\n" for line in lines]
    return "".join(asm) + f"@{_VALUES} = external hidden constant i8\n", places


def _pointers(objects: Sequence[Path]) -> str:
    """The pointers to functions of TVM's runtime in objects, for the system's loader to fill: theirs are weak."""
    found = {name.decode() for path in objects for name in _POINTERS.findall(path.read_bytes())}
    return "".join(f"@__{name} = global ptr @{name}\ndeclare ptr @{name}()\n" for name in sorted(found))


_STEP = """\
@table = internal constant [{count} x i64] [{words}]
@size = internal constant [1 x i64] [i64 {count}]
%tensor = type {{ ptr, i32, i32, i32, i8, i8, i16, ptr, ptr, i64 }}
%any = type {{ i32, i32, ptr }}
{declared}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare ptr @malloc(i64)
declare void @free(ptr)
@{name} = alias i32 ({kinds}), ptr @{own}
define hidden i32 @{own}({taken}) {{
  %own = alloca %tensor
  %given = alloca %any
  %nothing = alloca %any
  %words = call ptr @malloc(i64 {nbytes})
  %some = icmp ne ptr %words, null
  br i1 %some, label %made, label %none
none:
  ret i32 1
made:
  call void @llvm.memcpy.p0.p0.i64(ptr %words, ptr @table, i64 {nbytes}, i1 false)
  {begins}
  store %tensor {{ ptr null, i32 {cpu}, i32 0, i32 1, i8 {code}, i8 64, i16 1, ptr @size, ptr null, i64 0 }}, ptr %own
  store ptr %words, ptr %own
  %one = insertvalue %any {{ i32 {pointer}, i32 0, ptr null }}, ptr %own, 2
  store %any %one, ptr %given
  store %any zeroinitializer, ptr %nothing
  %wrong = call i32 @{run}(ptr null, ptr %given, i32 1, ptr %nothing)
  %at = getelementptr i64, ptr %words, i64 {results}
  %told = load i64, ptr %at
  %short = trunc i64 %told to i32
  %failed = or i32 %short, %wrong
  %right = icmp eq i32 %failed, 0
  br i1 %right, label %copying, label %done
copying:
  {copies}
  br label %done
done:
  call void @free(ptr %words)
  ret i32 %failed
}}
define hidden i32 @TVMFFIFunctionCall(ptr %function, ptr %arguments, i32 %count, ptr %result) {{
  %failed = call i32 %function(ptr null, ptr %arguments, i32 %count, ptr %result)
  ret i32 %failed
}}
"""
"""LLVM's text of `step`, with a tensor and an argument as TVM lays them out (`dlpack.h`, `tvm/ffi/c_api.h`); of a call
an address is a kernel's own here, not that of an object of TVM's."""


def _step_text(
    table: Table, symbols: Sequence[str], places: Mapping[int, str], results: Sequence[Place], arena: bool
) -> str:
    """The function `step` of pointers: it copies the table, notes there where arrays begin (not those with `places` in
    the library), makes the calls, and copies the results. Without memory, or after a failed call, it returns not 0."""
    words = list(map(str, table.with_moves(table.moves).tolist()))
    for word, call in zip(*(numbers.tolist() for numbers in table.handles), strict=True):
        words[word] = f"ptrtoint (ptr @{_PREFIX}{symbols[call]} to i64)"
    taken = [f"%p{i}" for i in range(table.count - len(places) + arena + len(results))]
    rest = iter(taken)
    arrays = [places.get(i) or next(rest) for i in range(table.count)]
    arrays += [next(rest) if arena else "%words", "%words"]
    begins, copies = list[str](), list[str]()
    for i, array in enumerate(arrays):
        begins += [f"%word{i} = getelementptr i64, ptr %words, i64 {HEAD + i}", f"store ptr {array}, ptr %word{i}"]
    for i, (place, to) in enumerate(zip(results, rest, strict=True)):
        base = arrays[table.count if place.base is None else place.base]
        nbytes = math.prod(place.shape) * np.dtype(place.dtype).itemsize
        copies.append(f"%result{i} = getelementptr i8, ptr {base}, i64 {place.offset}")
        copies.append(f"call void @llvm.memcpy.p0.p0.i64(ptr {to}, ptr %result{i}, i64 {nbytes}, i1 false)")
    functions = dict.fromkeys(f"{_PREFIX}{symbol}" for symbol in (*symbols, RUN.symbol))
    return _STEP.format(
        count=len(words), words=", ".join(f"i64 {word}" for word in words), nbytes=8 * len(words), name=STEP, own=_OWN,
        declared="\n".join(f"declare i32 @{name}(ptr, ptr, i32, ptr)" for name in functions),
        kinds=", ".join("ptr" for _ in taken),
        taken=", ".join(f"ptr {one}" for one in taken), begins="\n  ".join(begins), copies="\n  ".join(copies),
        cpu=DLPACK_CPU, code=CODES["i"], pointer=POINTER, run=_PREFIX + RUN.symbol, results=table.results,
    )  # fmt: skip


def _checked(arguments: Sequence[Given]) -> tirx.PrimFunc:
    """The same function by TVM's calling convention: it checks its arrays, and calls `step` with where they begin."""
    names = identifiers([one.name for one in arguments])
    taken = [tirx.decl_buffer(*one.type, name, data_alignment=4) for name, one in zip(names, arguments, strict=True)]
    nowhere = tirx.reinterpret("handle", tirx.const(0, "uint64"))
    pointers = [nowhere if 0 in array.shape else tirx.address_of(array[(0,) * len(array.shape)]) for array in taken]
    worked = tirx.call_extern("int32", _OWN, *pointers) == 0
    calling = tirx.AssertStmt(worked, ir.StringImm("RuntimeError"), [ir.StringImm("a kernel failed")])
    function = tirx.PrimFunc(taken, calling)
    return function.with_attr("global_symbol", STEP).with_attr("tirx.noalias", False)


def unlike(names: Sequence[str]) -> list[str]:
    """The names, each another: `weight`, `weight_1`."""
    found: dict[str, None] = {}
    for name in names:
        others = itertools.chain([name], (f"{name}_{i}" for i in itertools.count(1)))
        found[next(other for other in others if other not in found)] = None
    return list(found)


def identifiers(names: Sequence[str]) -> list[str]:
    """The names as Python and C could have them, each another: `_0_weight`, `_0_weight_1`."""
    return unlike([re.sub(r"\W|^(?=\d)", "_", name) for name in names])


_HEADER = """\
/* The function step of {library}, which dlsys has written for {cpu}. */
#ifndef STEP_OF_DLSYS_H
#define STEP_OF_DLSYS_H
#include <stdbool.h>
#include <stdint.h>
{defined}
#ifdef __cplusplus
extern "C" {{
#endif
/* Returns 0; another number where a kernel has failed, as it got no memory. */
int step(
{declared}
#ifdef __cplusplus
}}
#endif
#endif
"""


def _header(exported: Exported, library: str) -> str:
    """The text of the header."""
    arguments, declared, defined = exported.arguments, list[str](), ""
    for i, own in enumerate(identifiers([one.name for one in arguments])):
        one, (shape, dtype) = arguments[i], arguments[i].type
        if exported.given <= i < len(arguments) - exported.results:
            defined = f"\n#define STEP_ARENA {shape[0]} /* bytes */\n"
            kind, told = "void", "memory to work in, STEP_ARENA bytes; two calls at the same time need two"
        else:
            kind = ("" if one.written else "const ") + _TYPES.get(dtype, f"{dtype}_t")
            told = re.sub(r"[^ -~]|\*/|/\*", "_", one.name)  # ends no comment
            told += f": {dtype}{''.join(f'[{extent}]' for extent in shape)}"
        end = ");" if i == len(arguments) - 1 else ","
        declared.append(f"    {kind}* {own}{'_' * (own in _KEYWORDS.split())}{end} /* {told} */")
    return _HEADER.format(library=library, cpu=exported.cpu, defined=defined, declared="\n".join(declared))
