"""A whole run as one function of a shared library, for programs without dlsys: its kernels, and the table of its calls
(`runner.Table`), which the function copies, points to the memory that its caller gives, and works through.

The library has the function twice: by TVM's calling convention, and as plain C, `step`, which takes pointers; a header
beside the library declares that one. Values of parameters are the caller's, and stand in a safetensors file beside the
library; or they are data of the library.

What a kernel needs of TVM's runtime (threads, memory of its own) it calls through pointers in the library, as
`__TVMBackendAllocWorkspace`, which are empty until TVM's loader fills them. The library gets others in their place,
which the system's loader fills, and the path of TVM's runtime.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir, libinfo, tirx

from ..devices import get_num_threads
from ..errors import DlsysError
from ..graph import Shape
from ..schedule.machine_code import compiled
from ..schedule.target import described
from ..storage import write_atomically
from . import disk
from .build import build
from .choices import with_choices
from .export_c import Argument, header, identifiers, plain_function, unlike
from .runner import HEAD, RUN, Calls, Place, Table, each_call
from .spec import ArrayType, KernelSpec, TargetName, target_name

STEP = "step"
ARENA = "arena"
ALIGNED = 64  # bytes at a multiple of which a value in the library begins
_VALUES = "dlsys_values"  # the symbol of the values in the library
_PREFIX = "__tvm_ffi_"  # of the symbols of functions by TVM's calling convention
_POINTERS = re.compile(rb"__(TVM\w+)")  # in an object: names of pointers to functions of TVM's runtime


@dataclass(frozen=True)
class Given:
    """An array that a run is given.

    Attributes:
        written: whether the run overwrites it.
        value: of a parameter, as it is now.
    """

    name: str
    type: ArrayType
    written: bool = False
    value: np.ndarray | None = None


@dataclass(frozen=True)
class Exported:
    """The function of an exported library, as text its arguments and its CPU.

    Attributes:
        arguments: name, shape, dtype of each, and whether it is written: what is given, the arena, the results.
        given: what it is given, in order, with the values of parameters.
        results: how many arguments are results, the last ones.
        calls: the kernels' calls that it makes.
        cpu: for which it was compiled.
    """

    arguments: tuple[Argument, ...]
    given: tuple[Given, ...]
    results: int
    calls: Calls
    cpu: str

    def __str__(self) -> str:
        called = ", ".join(f"{name}: {dtype}{list(shape)}" for name, shape, dtype, _ in self.arguments)
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
    how its function `step` is called: with what is given, in order, with memory for the values between, if there are
    any, and with an array for each result. The CPU that it is for is this one, or that of LLVM's name `mcpu`, or a
    target's.

    `results`: where each lies at the end; `arena`: bytes of the memory between. Raises DlsysError where a file cannot
    be written, TargetError for an unknown CPU.
    """
    own = {"kind": "llvm", "mcpu": mcpu, "num-cores": get_num_threads()}
    how = mcpu if isinstance(mcpu, TargetName) else target_name("llvm" if mcpu is None else own)
    once = {spec.symbol: spec for spec in with_choices([*specs, RUN], how)}
    kept = {i: array.value for i, array in enumerate(given) if constants and array.value is not None}
    taken = [array for i, array in enumerate(given) if i not in kept]
    taken += [Given(ARENA, ((arena,), "uint8"), True)] if arena else []
    taken += [Given(f"result_{i}", (place.shape, place.dtype), True) for i, place in enumerate(results)]
    names = unlike([array.name for array in taken])
    wanted = [(name, *array.type, array.written) for name, array in zip(names, taken, strict=True)]
    symbols = identifiers(names)
    table = Table(calls, len(given))
    try:
        with tempfile.TemporaryDirectory() as folder:
            _, _, objects = build(list(once.values()), how, folder)
            arrays = [(symbol, shape, dtype) for symbol, (_, shape, dtype, _) in zip(symbols, wanted, strict=True)]
            step = compiled({STEP: _step(table, arrays, kept, results, arena)}, how.target)
            objects.append(disk.written(step, Path(folder, "step.o")))
            text, places = _values_text(kept, Path(folder, "values"))
            text += _table_text(table, [call.symbol for call in each_call(calls)], places)
            text += plain_function(STEP, _PREFIX + STEP, [(shape, dtype) for _, shape, dtype, _ in wanted])
            source = Path(folder, "table.ll")
            source.write_text(text + _pointers(objects), encoding="utf-8")
            objects.append(disk.written(tvm_ffi.load_module(disk.utf8(source)), source.with_suffix(".o")))
            needed = tvm_ffi.libinfo.find_libtvm_ffi(), libinfo.find_libtvm_runtime()  # of TVM's libraries
            disk.link(objects, path, [Path(library) for library in needed])
        told = described(how.target)
        write_atomically(path.with_suffix(".h"), header(STEP, path.name, told, wanted, ARENA if arena else "").encode())
        beside = {name: array.value for name, array in zip(names, taken, strict=False) if array.value is not None}
        if beside:
            from safetensors.numpy import save

            content = save({name: np.ascontiguousarray(value) for name, value in beside.items()})
            write_atomically(path.with_suffix(".safetensors"), content)
    except OSError as error:
        raise DlsysError(f"{path} cannot be written: {error}") from None
    left = tuple(array for i, array in enumerate(given) if i not in kept)
    return Exported(tuple(wanted), left, len(results), calls, told)


def _values_text(values: Mapping[int, np.ndarray], path: Path) -> tuple[str, dict[int, str]]:
    """Data of the library, written to a file that the assembler includes: the text for that, and the address of each
    value."""
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
    """The pointers to functions of TVM's runtime that objects refer to, for the system's loader to fill: theirs are
    weak and empty."""
    found = {name.decode() for path in objects for name in _POINTERS.findall(path.read_bytes())}
    return "".join(f"@__{name} = global ptr @{name}\ndeclare ptr @{name}()\n" for name in sorted(found))


def _table_text(table: Table, symbols: Sequence[str], places: Mapping[int, str]) -> str:
    """The table as data, a function that copies it and notes where arrays begin (those with `places` in the library it
    is not given), and the function by which a call is made: an address is a kernel's own here, not that of an object of
    TVM's."""
    words = list(map(str, table.with_moves(table.moves).tolist()))
    for word, call in zip(*(numbers.tolist() for numbers in table.handles), strict=True):
        words[word] = f"ptrtoint (ptr @{_PREFIX}{symbols[call]} to i64)"
    arrays = [places.get(i, f"%array{i}") for i in range(table.count + 2)]
    taken = [array for i, array in enumerate(arrays) if i not in places]
    kind = f"[{len(words)} x i64]"
    return "\n".join([
        f"@table = internal constant {kind} [{', '.join(f'i64 {word}' for word in words)}]",
        *(f"declare i32 @{_PREFIX}{symbol}(ptr, ptr, i32, ptr)" for symbol in dict.fromkeys(symbols)),
        "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
        f"define hidden i32 @dlsys_begin(ptr %to, {', '.join(f'ptr {array}' for array in taken)}, ptr %last) {{",
        f"  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr @table, i64 {8 * len(words)}, i1 false)",
        *(
            f"  %word{i} = getelementptr i64, ptr %to, i64 {HEAD + i}\n  store ptr {array}, ptr %word{i}"
            for i, array in enumerate(arrays)
        ),
        "  ret i32 0\n}",
        "define hidden i32 @TVMFFIFunctionCall(ptr %function, ptr %arguments, i32 %count, ptr %result) {",
        "  %failed = call i32 %function(ptr null, ptr %arguments, i32 %count, ptr %result)\n  ret i32 %failed\n}",
        "",
    ])  # fmt: skip


def _step(
    table: Table,
    taken: Sequence[tuple[str, Shape, str]],
    kept: Mapping[int, np.ndarray],
    results: Sequence[Place],
    arena: int,
) -> tirx.PrimFunc:
    """The function of `taken` arrays: those that are given and not `kept` in the library, the arena, and those that get
    the results."""
    arrays = [tirx.decl_buffer(shape, dtype, name, data_alignment=4) for name, shape, dtype in taken]
    size = len(table.words) + table.moves.size
    words = tirx.decl_buffer((size,), "int64", "table", data_alignment=8)

    def pointer(array: Any) -> Any:
        shape = tuple(map(int, array.shape))
        return tirx.address_of((words if 0 in shape else array)[(0,) * len((0,) if 0 in shape else shape)])

    def copy(place: Place, array: Any) -> Any:
        """Of a value whose array's address stands in the table."""
        size = tirx.const(math.prod(place.shape) * np.dtype(place.dtype).itemsize, "uint64")
        base = words[HEAD + (table.count if place.base is None else place.base)]
        source = tirx.reinterpret("handle", base + place.offset)
        return tirx.call_extern("handle", "memcpy", pointer(array), source, size)

    vector = tirx.call_intrin("handle", "tirx.tvm_stack_make_shape", tirx.const(size, "int64"))
    rest = 0, 1, tirx.const(0, "int64"), 0  # strides, rank, an element for its dtype, offset
    own = tirx.call_intrin("handle", "tirx.tvm_stack_make_array", pointer(words), vector, *rest)
    count = table.count - len(kept)
    bases = [*map(pointer, arrays[:count]), pointer(arrays[count] if arena else words)]
    # TVM keeps as much of an array as it sees used, so the last word's address is given too
    ends = pointer(words), tirx.address_of(words[size - 1])
    begin = tirx.call_extern("int32", "dlsys_begin", pointer(words), *bases, *ends)
    run = tirx.call_cpacked(_PREFIX + RUN.symbol, own)
    stored = zip(results, arrays[len(arrays) - len(results) :], strict=True)
    copies = [copy(place, array) for place, array in stored if 0 not in place.shape]
    told = words[table.results] == 0, ir.StringImm("RuntimeError"), [ir.StringImm("a kernel failed")]
    body = [tirx.AllocBuffer(words), *map(tirx.Evaluate, (begin, run)), tirx.AssertStmt(*told)]
    body += map(tirx.Evaluate, copies)
    function = tirx.PrimFunc(arrays, tirx.SeqStmt(body))
    return function.with_attr("global_symbol", STEP).with_attr("tirx.noalias", False)
