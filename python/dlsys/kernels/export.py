"""A whole run as one function of a shared library, for programs without dlsys: its kernels, and a function that calls
them with memory that its caller gives.

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
from tvm import libinfo, tirx

from ..device import get_num_threads
from ..errors import DlsysError
from ..schedule.machine_code import compiled
from ..schedule.target import described
from . import disk
from .build import build
from .runner import Call, Calls, Place, turns, unrolled_calls
from .spec import ArrayType, KernelSpec, symbol_of, target_name, uses_own_schedules

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
    named = target_name("llvm" if mcpu is None else own)
    target = named.target
    once = {symbol_of(spec): spec for spec in specs}
    _, _, objects = build(list(once.values()), named, uses_own_schedules(), False, True)
    between = [(ARENA, ((arena,), "uint8"))] if arena else []
    outputs = [(f"result_{i}", (place.shape, place.dtype)) for i, place in enumerate(results)]
    wanted = [*given, *outputs, *between]
    taken = list(zip(identifiers([name for name, _ in wanted]), (kind for _, kind in wanted), strict=True))
    made = [call for _, call in unrolled_calls(calls)]
    symbols, aliases = _symbols(made)
    function = _step(made, symbols, turns(calls), taken, len(given), results)
    objects = [*objects, disk.object_of(compiled({STEP: function}, target))]
    try:
        disk.link([*objects, _pointers(objects)], path, aliases, _runtime())
    except OSError as error:
        raise DlsysError(f"{path} cannot be written: {error}") from None
    called = ", ".join(f"{name}: {dtype}{list(shape)}" for name, (shape, dtype) in taken)
    return f"{STEP}({called})\nfor {described(target)}"


def _pointers(objects: Sequence[bytes | OSError]) -> bytes | OSError:
    """An object with the pointers to functions of TVM's runtime that the others refer to, for the system's loader to
    fill: theirs are weak and empty."""
    found = {name.decode() for content in objects if isinstance(content, bytes) for name in _POINTERS.findall(content)}
    lines = [f"@__{name} = global ptr @{name}\ndeclare ptr @{name}()\n" for name in sorted(found)]
    with tempfile.NamedTemporaryFile("w", suffix=".ll") as file:
        file.write("".join(lines))
        file.flush()
        return disk.object_of(tvm_ffi.load_module(file.name))


def _runtime() -> list[Path]:
    """TVM's libraries that a step needs."""
    return [Path(tvm_ffi.libinfo.find_libtvm_ffi()), Path(libinfo.find_libtvm_runtime())]


def _symbols(calls: Sequence[Call]) -> tuple[list[str], dict[str, str]]:
    """A symbol for each call, and those that stand for others: TVM renames what is called under one name twice."""
    symbols: list[str] = []
    aliases: dict[str, str] = {}
    for call in calls:
        symbol = _PREFIX + call.symbol
        if symbol in symbols:
            symbol = f"{symbol}_{len(symbols)}"
            aliases[symbol] = _PREFIX + call.symbol
        symbols.append(symbol)
    return symbols, aliases


def identifiers(names: Sequence[str]) -> list[str]:
    """The names as Python and C could have them, each another: `weight`, `weight_1`."""
    found: dict[str, None] = {}
    for name in (re.sub(r"\W|^(?=\d)", "_", name) for name in names):
        others = (f"{name}_{i}" for i in itertools.count(1))
        found[next(other for other in itertools.chain([name], others) if other not in found)] = None
    return list(found)


def _step(
    calls: Sequence[Call],
    symbols: Sequence[str],
    by: Sequence[tuple[int, int]],
    taken: Sequence[tuple[str, ArrayType]],
    count: int,
    results: Sequence[Place],
) -> tirx.PrimFunc:
    """The function of `taken` arrays, of which the first `count` are given, the next get the results, and the last is
    the arena. `by`: how many calls a thread makes, and how many threads do, in turn."""
    arrays = [tirx.decl_buffer(shape, dtype, name, data_alignment=4) for name, (shape, dtype) in taken]

    def pointer(array: Any, offset: int) -> Any:
        elements = offset // np.dtype(str(array.dtype)).itemsize
        return tirx.address_of(
            array[tuple(map(int, np.unravel_index(elements, tuple(map(int, array.shape)))))]
        )

    def address(place: Place) -> Any:
        return pointer(arrays[-1 if place.base is None else place.base], place.offset)

    def argument(place: Place) -> Any:
        extents = [tirx.const(extent, "int64") for extent in place.shape]
        shape = tirx.call_intrin("handle", "tirx.tvm_stack_make_shape", *extents)
        array = (address(place), shape, 0, len(extents), tirx.const(0, place.dtype), 0)
        return tirx.call_intrin("handle", "tirx.tvm_stack_make_array", *array)

    def copy(place: Place, array: Any) -> Any:
        size = tirx.const(math.prod(place.shape) * np.dtype(place.dtype).itemsize, "uint64")
        return tirx.call_extern("handle", "memcpy", pointer(array, 0), address(place), size)

    ran = iter([
        tirx.Evaluate(tirx.call_cpacked(symbol, *map(argument, call.places)))
        for symbol, call in zip(symbols, calls, strict=True)
    ])  # fmt: skip

    def turn(count: int, threads: int) -> Any:
        found = [tirx.SeqStmt([tirx.Evaluate(0), *itertools.islice(ran, count)]) for _ in range(threads)]
        if threads == 1:
            return found[0]
        thread = tirx.Var("thread", "int32")
        *rest, body = found
        for number, own in reversed(list(enumerate(rest))):
            body = tirx.IfThenElse(thread == number, own, body)
        return tirx.For(thread, tirx.const(0, "int32"), tirx.const(threads, "int32"), tirx.ForKind.PARALLEL, body)

    stored = zip(results, arrays[count:], strict=False)
    copies = [copy(place, array) for place, array in stored if 0 not in place.shape]
    # TVM takes no sequence of one or none
    body = tirx.SeqStmt([tirx.Evaluate(0), *(turn(*of) for of in by), *map(tirx.Evaluate, copies), tirx.Evaluate(0)])
    function = tirx.PrimFunc(arrays, body)
    return function.with_attr("global_symbol", STEP).with_attr("tirx.noalias", False)
