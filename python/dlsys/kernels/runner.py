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
import tvm_ffi

from ..device import to_tensor
from ..errors import DeviceError
from ..graph import Shape
from ..tvm_import import with_compiler
from . import disk
from .spec import TargetName, target_name

RUN = "run_calls"
_POINTER = 7  # kTVMFFIDLTensorPtr
_CODES = {"f": 2, "i": 0, "u": 1, "b": 6}  # DLDataTypeCode, by NumPy's kind
_TENSOR = np.dtype([
    ("data", "u8"), ("device", "i4", 2), ("ndim", "i4"), ("code", "u1"), ("bits", "u1"), ("lanes", "u2"),
    ("shape", "u8"), ("strides", "u8"), ("byte_offset", "u8"),
])  # fmt: skip
_ANY = np.dtype([("type_index", "i4"), ("padding", "u4"), ("value", "u8")])
WORDS = _TENSOR.itemsize // 8  # of a tensor, whose first is its pointer


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
def runner(target: TargetName) -> Any:
    """`build.run_function` compiled: from disk, kept there, or for this process alone."""
    key = disk.key(RUN, target.text)

    def read(path: Path) -> Any:
        return tvm_ffi.load_module(str(path))[RUN]

    found = disk.load(key, read)
    if found is None:
        function = with_compiler("kernels.build").run_function(RUN, WORDS)
        module = with_compiler("schedule.machine_code").compiled({RUN: function}, target.target)
        found = disk.keep(key, lambda path: disk.link([module], path), read) or module[RUN]
    return found


class Runner:
    """The calls of one program, made ready.

    Attributes:
        given: where each given array lies, to be set before a run.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        functions: Sequence[Any],
        count: int,
        arena: Any,
    ) -> None:
        """`functions`: one for each call; `count`: how many arrays are given. All lie on the arena's device."""
        places = [place for call in calls for place in call.places]
        rank = [len(place.shape) for place in places]
        start = np.cumsum([0, *rank])
        extents = np.array([extent for place in places for extent in place.shape], np.int64)
        shapes = [place.shape for place in places]  # strides count the elements from one to the next along each axis
        strides = np.array([prod(shape[axis + 1 :]) for shape in shapes for axis in range(len(shape))], np.int64)
        tensors = np.zeros(len(places), _TENSOR)
        tensors["device"] = arena.device.dlpack_device_type(), arena.device.index
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
        self._function = runner(target_name("llvm"))

    def run(self) -> None:
        """Make all calls. Raises DeviceError where one failed, as its kernel got no memory to work in."""
        self._function(*self._arguments)
        if self._result[2]:
            raise DeviceError(f"one of {len(self._kept[0])} kernels failed, the rest was not run: is memory left?")
