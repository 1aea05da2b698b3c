"""The list of a program's calls as a table, and the one function that works through it, again and again.

For every call the table holds the kernel's function and its arguments as C structures, by TVM's conventions
(`dlpack.h`, `tvm/ffi/c_api.h`): where each array lies, its shape and dtype. What lies in the arena never moves; of what
is given the pointers are written anew in each run. So a plan needs no code of its own but its kernels'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.target import Target

from ..device import to_tensor
from ..errors import DeviceError
from ..graph import Shape
from ..schedule.machine_code import compiled
from . import disk
from .disk import link

RUN = "run_calls"
_CPU, _POINTER = 1, 7  # kDLCPU, kTVMFFIDLTensorPtr
_CODES = {"f": 2, "i": 0, "u": 1, "b": 6}  # DLDataTypeCode, by NumPy's kind
_TENSOR = np.dtype([
    ("data", "u8"), ("device", "i4", 2), ("ndim", "i4"), ("code", "u1"), ("bits", "u1"), ("lanes", "u2"),
    ("shape", "u8"), ("strides", "u8"), ("byte_offset", "u8"),
])  # fmt: skip
_ANY = np.dtype([("type_index", "i4"), ("padding", "u4"), ("value", "u8")])
_WORDS = _TENSOR.itemsize // 8  # of a tensor, whose first is its pointer


def run_function() -> tirx.PrimFunc:
    """`run_calls(given, moves, tensors, calls, result)`, all arrays of int64.

    A move is three numbers: of a tensor, of what is given, and the byte there from which the tensor begins. A call is
    three: the address of a function, that of its arguments, and their number. After one that fails none is made, so
    that no parameter takes what came of it; `result[2]` is then 1, else 0. The rest of it is for what a function gives.
    """

    def array(name: str) -> Any:
        return tirx.decl_buffer((tirx.Var(f"{name}_size", "int64"),), "int64", name=name, data_alignment=8)

    given, moves, tensors, calls, result = map(array, ("given", "moves", "tensors", "calls", "result"))
    move, call = tirx.Var("move", "int64"), tirx.Var("call", "int64")
    pointer = given[moves[move * 3 + 1]] + moves[move * 3 + 2]
    moving = tirx.BufferStore(tensors, pointer, [moves[move * 3] * _WORDS])
    # TVMFFIFunctionCall(function, arguments, how many, result), which is None before
    given_to = (calls[call * 3], calls[call * 3 + 1], tirx.Cast("int32", calls[call * 3 + 2]))
    failed = tirx.call_extern("int32", "TVMFFIFunctionCall", *given_to, tirx.address_of(result[0])) != 0
    zeros = [tirx.BufferStore(result, tirx.const(0, "int64"), [i]) for i in range(3)]
    made = tirx.SeqStmt([*zeros[:2], tirx.BufferStore(result, tirx.Cast("int64", failed), [2])])
    calling = tirx.IfThenElse(result[2] == 0, made, None)

    def over(variable: tirx.Var, table: Any, body: Any) -> tirx.For:
        return tirx.For(
            variable, tirx.const(0, "int64"), tirx.floordiv(table.shape[0], 3), tirx.ForKind.SERIAL, body
        )

    body = tirx.SeqStmt([over(move, moves, moving), zeros[2], over(call, calls, calling)])
    function = tirx.PrimFunc([given, moves, tensors, calls, result], body)
    return function.with_attr("global_symbol", RUN).with_attr("tirx.noalias", False)


@dataclass(frozen=True)
class Place:
    """Where a value lies: `base` is the number of a given array of its dtype, or None for the arena, from byte `offset`
    on."""

    base: int | None
    offset: int
    shape: Shape
    dtype: str


@dataclass(frozen=True)
class Call:
    """A kernel's symbol and the places of its arguments."""

    symbol: str
    places: tuple[Place, ...]


@lru_cache
def runner(target: Target) -> tvm.runtime.Function:
    """`run_calls` compiled: from disk, kept there, or for this process alone."""
    key = disk.key(RUN, str(target))

    def read(path: Path) -> tvm.runtime.Function:
        return tvm.runtime.load_module(str(path))[RUN]

    found = disk.load(key, read)
    if found is None:
        module = compiled({RUN: run_function()}, target)
        found = disk.keep(key, lambda path: link([module], path), read) or module[RUN]
    return found


class Runner:
    """The calls of one program, made ready.

    Attributes:
        given: where each given array lies, to be set before a run.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        functions: Sequence[tvm.runtime.Function],
        count: int,
        arena: tvm.runtime.Tensor,
        target: Target,
    ) -> None:
        """`functions`: one for each call; `count`: how many arrays are given."""
        places = [place for call in calls for place in call.places]
        rank = [len(place.shape) for place in places]
        start = np.cumsum([0, *rank])
        extents = np.array([extent for place in places for extent in place.shape], np.int64)
        shapes = [place.shape for place in places]  # strides count the elements from one to the next along each axis
        strides = np.array([prod(shape[axis + 1 :]) for shape in shapes for axis in range(len(shape))], np.int64)
        tensors = np.zeros(len(places), _TENSOR)
        tensors["device"][:, 0] = _CPU
        tensors["ndim"], tensors["lanes"] = rank, 1
        kinds = [np.dtype(place.dtype) for place in places]
        tensors["code"] = [_CODES[kind.kind] for kind in kinds]
        tensors["bits"] = [8 * kind.itemsize for kind in kinds]
        tensors["shape"] = extents.ctypes.data + 8 * start[:-1]
        tensors["strides"] = strides.ctypes.data + 8 * start[:-1]
        tensors["data"] = [arena.data_ptr() + place.offset if place.base is None else 0 for place in places]
        arguments = np.zeros(len(places), _ANY)
        arguments["type_index"] = _POINTER
        arguments["value"] = tensors.ctypes.data + _TENSOR.itemsize * np.arange(len(places))
        moves = [(i, place.base, place.offset) for i, place in enumerate(places) if place.base is not None]
        first = np.cumsum([0, *(len(call.places) for call in calls)])
        table = [
            (function.__chandle__(), arguments.ctypes.data + _ANY.itemsize * int(at), len(call.places))
            for call, function, at in zip(calls, functions, first, strict=False)
        ]
        self.given = np.zeros(count, np.int64)
        self._kept = (functions, arena, extents, strides, arguments)  # all that the table points to
        self._result = np.zeros(3, np.int64)
        numbers = (np.array(moves, np.int64), tensors.view(np.int64), np.array(table, np.int64))
        self._arguments = [to_tensor(a.reshape(-1)) for a in (self.given, *numbers, self._result)]
        self._function = runner(target)

    def run(self) -> None:
        """Make all calls. Raises DeviceError where one failed, as its kernel got no memory to work in."""
        self._function(*self._arguments)
        if self._result[2]:
            raise DeviceError(f"one of {len(self._kept[0])} kernels failed, the rest was not run: is memory left?")
