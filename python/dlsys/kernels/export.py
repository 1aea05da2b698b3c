"""A whole run as one function of a shared library, for programs without dlsys: its kernels, and the table of its calls
(`runner.Table`), which the function copies, points to the memory that its caller gives, and works through.

What a kernel needs of TVM's runtime (threads, memory of its own) it calls through pointers in the library, as
`__TVMBackendAllocWorkspace`, which are empty until TVM's loader fills them. The library gets others in their place,
which the system's loader fills, and the path of TVM's runtime.
"""

from __future__ import annotations

import itertools
import math
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir, libinfo, tirx

from ..devices import get_num_threads
from ..errors import DlsysError
from ..schedule.machine_code import compiled
from ..schedule.target import described
from . import disk
from .build import build
from .choices import with_choices
from .runner import HEAD, RUN, Calls, Place, Table, each_call
from .spec import ArrayType, KernelSpec, target_name

STEP = "step"
ARENA = "arena"
_PREFIX = "__tvm_ffi_"  # of the symbols of functions by TVM's calling convention
_POINTERS = re.compile(rb"__(TVM\w+)")  # in an object: names of pointers to functions of TVM's runtime


def export(
    specs: Sequence[KernelSpec],
    calls: Calls,
    given: Sequence[tuple[str, ArrayType]],
    results: Sequence[Place],
    arena: int,
    path: Path,
    mcpu: str | None = None,
) -> str:
    """Writes the library, and returns how its function `step` is called: with what is given, in order, an array for
    each result, and memory for the values between, if there are any; and on a second line the CPU that it is for: this
    one, or that of LLVM's name `mcpu`.

    `given`: names and types; `results`: where each lies at the end; `arena`: bytes of the memory between. Raises
    DlsysError where the file cannot be written, TargetError for an unknown CPU.
    """
    own = {"kind": "llvm", "mcpu": mcpu, "num-cores": get_num_threads()}
    how = target_name("llvm" if mcpu is None else own)
    once = {spec.symbol: spec for spec in with_choices([*specs, RUN], how)}
    between = [(ARENA, ((arena,), "uint8"))] if arena else []
    outputs = [(f"result_{i}", (place.shape, place.dtype)) for i, place in enumerate(results)]
    wanted = [*given, *outputs, *between]
    taken = list(zip(identifiers([name for name, _ in wanted]), (kind for _, kind in wanted), strict=True))
    table = Table(calls, len(given))
    text = _table_text(table, [call.symbol for call in each_call(calls)])
    try:
        with tempfile.TemporaryDirectory() as folder:
            _, _, objects = build(list(once.values()), how, folder)
            step = compiled({STEP: _step(table, taken, results)}, how.target)
            objects.append(disk.written(step, Path(folder, "step.o")))
            source = Path(folder, "table.ll")
            source.write_text(text + _pointers(objects), encoding="utf-8")
            objects.append(disk.written(tvm_ffi.load_module(disk.utf8(source)), source.with_suffix(".o")))
            needed = tvm_ffi.libinfo.find_libtvm_ffi(), libinfo.find_libtvm_runtime()  # of TVM's libraries
            disk.link(objects, path, [Path(library) for library in needed])
    except OSError as error:
        raise DlsysError(f"{path} cannot be written: {error}") from None
    called = ", ".join(f"{name}: {dtype}{list(shape)}" for name, (shape, dtype) in taken)
    return f"{STEP}({called})\nfor {described(how.target)}"


def _pointers(objects: Sequence[Path]) -> str:
    """The pointers to functions of TVM's runtime that objects refer to, for the system's loader to fill: theirs are
    weak and empty."""
    found = {name.decode() for path in objects for name in _POINTERS.findall(path.read_bytes())}
    return "".join(f"@__{name} = global ptr @{name}\ndeclare ptr @{name}()\n" for name in sorted(found))


def _table_text(table: Table, symbols: Sequence[str]) -> str:
    """The table as data, a function that copies it and notes where arrays begin, and the function by which a call is
    made: an address is a kernel's own here, not that of an object of TVM's."""
    words = list(map(str, table.with_moves(table.moves).tolist()))
    for word, call in zip(*(numbers.tolist() for numbers in table.handles), strict=True):
        words[word] = f"ptrtoint (ptr @{_PREFIX}{symbols[call]} to i64)"
    arrays = [f"%array{i}" for i in range(table.count + 2)]
    kind = f"[{len(words)} x i64]"
    return "\n".join([
        f"@table = internal constant {kind} [{', '.join(f'i64 {word}' for word in words)}]",
        *(f"declare i32 @{_PREFIX}{symbol}(ptr, ptr, i32, ptr)" for symbol in dict.fromkeys(symbols)),
        "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
        f"define hidden i32 @dlsys_begin(ptr %to, {', '.join(f'ptr {array}' for array in arrays)}, ptr %last) {{",
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


def identifiers(names: Sequence[str]) -> list[str]:
    """The names as Python and C could have them, each another: `weight`, `weight_1`."""
    found: dict[str, None] = {}
    for name in (re.sub(r"\W|^(?=\d)", "_", name) for name in names):
        others = (f"{name}_{i}" for i in itertools.count(1))
        found[next(other for other in itertools.chain([name], others) if other not in found)] = None
    return list(found)


def _step(table: Table, taken: Sequence[tuple[str, ArrayType]], results: Sequence[Place]) -> tirx.PrimFunc:
    """The function of `taken` arrays: those that are given, those that get the results, and the arena."""
    arrays = [tirx.decl_buffer(shape, dtype, name, data_alignment=4) for name, (shape, dtype) in taken]
    size = len(table.words) + table.moves.size
    words = tirx.decl_buffer((size,), "int64", "table", data_alignment=8)

    def pointer(array: Any, offset: int = 0) -> Any:
        shape = tuple(map(int, array.shape))
        if 0 in shape:  # any address serves
            return pointer(words)
        elements = offset // np.dtype(str(array.dtype)).itemsize
        return tirx.address_of(array[tuple(map(int, np.unravel_index(elements, shape)))])

    def copy(place: Place, array: Any) -> Any:
        size = tirx.const(math.prod(place.shape) * np.dtype(place.dtype).itemsize, "uint64")
        source = pointer(arrays[-1 if place.base is None else place.base], place.offset)
        return tirx.call_extern("handle", "memcpy", pointer(array), source, size)

    vector = tirx.call_intrin("handle", "tirx.tvm_stack_make_shape", tirx.const(size, "int64"))
    rest = 0, 1, tirx.const(0, "int64"), 0  # strides, rank, an element for its dtype, offset
    own = tirx.call_intrin("handle", "tirx.tvm_stack_make_array", pointer(words), vector, *rest)
    bases = map(pointer, [words, *arrays[: table.count], arrays[-1], words])
    # TVM keeps as much of an array as it sees used, so the last word's address is given too
    begin = tirx.call_extern("int32", "dlsys_begin", *bases, tirx.address_of(words[size - 1]))
    run = tirx.call_cpacked(_PREFIX + RUN.symbol, own)
    stored = zip(results, arrays[table.count :], strict=False)
    copies = [copy(place, array) for place, array in stored if 0 not in place.shape]
    told = words[table.results] == 0, ir.StringImm("RuntimeError"), [ir.StringImm("a kernel failed")]
    body = [tirx.AllocBuffer(words), *map(tirx.Evaluate, (begin, run)), tirx.AssertStmt(*told)]
    body += map(tirx.Evaluate, copies)
    function = tirx.PrimFunc(arrays, tirx.SeqStmt(body))
    return function.with_attr("global_symbol", STEP).with_attr("tirx.noalias", False)
