"""The list of a program's calls as a table, and the one function that works through it, again and again.

For every call the table holds the kernel's function and its arguments as C structures, by TVM's conventions
(`dlpack.h`, `tvm/ffi/c_api.h`): where each array lies, its shape and dtype. What lies in the arena never moves; of what
is given the pointers are written anew in each run. So a plan needs no code of its own but its kernels'.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from ..device import to_tensor
from ..errors import DeviceError
from ..graph import Shape
from ..tvm_import import with_compiler
from .cache import get
from .spec import KernelSpec

_POINTER = 7  # kTVMFFIDLTensorPtr
_CODES = {"f": 2, "i": 0, "u": 1, "b": 6}  # DLDataTypeCode, by NumPy's kind
_TENSOR = np.dtype([
    ("data", "u8"), ("device", "i4", 2), ("ndim", "i4"), ("code", "u1"), ("bits", "u1"), ("lanes", "u2"),
    ("shape", "u8"), ("strides", "u8"), ("byte_offset", "u8"),
])  # fmt: skip
_ANY = np.dtype([("type_index", "i4"), ("padding", "u4"), ("value", "u8")])
HEAD = 7  # numbers with which the table begins
WORDS = _TENSOR.itemsize // 8  # of a tensor, whose first is its pointer


@dataclass(frozen=True)
class Place:
    """Where a value lies: `base` is the number of a given array of its dtype, or None for the arena, from byte `offset`
    on. `moves`: for each loop around, the outermost first, the bytes by which it lies further in each step, and whether
    it does so in every other step only."""

    base: int | None
    offset: int
    shape: Shape
    dtype: str
    moves: tuple[tuple[int, bool], ...] = ()


@dataclass(frozen=True)
class Call:
    """A kernel's symbol and the places of its arguments."""

    symbol: str
    places: tuple[Place, ...]


@dataclass(frozen=True)
class Repeat:
    """Calls that are made so many times, with their arguments' places moved; `at_once`: by as many threads."""

    calls: tuple[Call | Repeat, ...]
    times: int
    at_once: bool = False


Calls = Sequence["Call | Repeat"]


def each_call(calls: Calls) -> Iterator[Call]:
    """The calls as written, those of a loop once."""
    for call in calls:
        if isinstance(call, Repeat):
            yield from each_call(call.calls)
        else:
            yield call


def unrolled_calls(calls: Calls) -> list[tuple[int, Call]]:
    """The calls as they are made, one by one, each with its number among those as written."""
    flat = list(each_call(calls))
    places = [place for call in flat for place in call.places]
    made, order, moved = _expanded(calls, flat, 0)
    rest = iter(zip(order.tolist(), moved.tolist(), strict=True))
    found = []
    for number in made.tolist():
        own = [(places[i], by) for i, by in itertools.islice(rest, len(flat[number].places))]
        where = tuple(replace(place, offset=place.offset + by, moves=()) for place, by in own)
        found.append((number, Call(flat[number].symbol, where)))
    return found


def _expanded(calls: Calls, flat: Sequence[Call], depth: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As the calls are made: the number of each as `each_call` gives them, of each of its places, and by how many bytes
    that is moved. `flat` begins with these calls."""
    numbers, order, moved = [], [], []
    at = first = 0
    for call in calls:
        own = len(list(each_call([call])))
        if isinstance(call, Repeat):
            inner, of_places, by = _expanded(call.calls, flat[at : at + own], depth + 1)
            moves = [p.moves[depth] for one in flat[at : at + own] for p in one.places]
            stride = np.array([stride for stride, _ in moves], np.int64)[of_places]
            alternates = np.array([every for _, every in moves], bool)[of_places]
            step = np.arange(call.times)[:, None]
            numbers.append(np.tile(inner + at, call.times))
            order.append(np.tile(of_places + first, call.times))
            moved.append((by + stride * np.where(alternates, step % 2, step)).reshape(-1))
        else:
            count = len(call.places)
            numbers.append(np.array([at]))
            order.append(np.arange(first, first + count))
            moved.append(np.zeros(count, np.int64))
        first += sum(len(one.places) for one in flat[at : at + own])
        at += own
    nothing = [np.zeros(0, np.int64)]
    return np.concatenate(numbers or nothing), np.concatenate(order or nothing), np.concatenate(moved or nothing)


def turns(calls: Calls) -> list[tuple[int, int]]:
    """How many calls are made one after another, and by how many threads as many each, in the order of their making."""
    found: list[tuple[int, int]] = []
    for call in calls:
        own = [(1, 1)]
        if isinstance(call, Repeat):
            own = turns(call.calls)
            own = [(sum(count for count, _ in own), call.times)] if call.at_once else own * call.times
        for count, threads in own:
            if found and threads == found[-1][1] == 1:
                count += found.pop()[0]
            found.append((count, threads))
    return found


RUN = KernelSpec(
    "run_calls", ("run_calls", HEAD, WORDS), (), lambda: (), outputs=(),
    loops=lambda: with_compiler("kernels.build").run_function(HEAD, WORDS),
)  # fmt: skip
"""The function that makes the calls: a kernel like others, to be compiled and kept with them."""


class Runner:
    """The calls of one program, made ready.

    Attributes:
        given: where each given array lies, to be set before a run.
    """

    def __init__(
        self,
        calls: Calls,
        functions: Sequence[Any],
        count: int,
        arena: Any,
    ) -> None:
        """`functions`: one for each call as written; `count`: how many arrays are given. All lie on the arena's
        device."""
        flat = list(each_call(calls))
        made, order, moved = _expanded(calls, flat, 0)
        places = [place for call in flat for place in call.places]
        rank = [len(place.shape) for place in places]
        start = np.cumsum([0, *rank])
        extents = np.array([extent for place in places for extent in place.shape], np.int64)
        shapes = [place.shape for place in places]  # strides count the elements from one to the next along each axis
        strides = np.array([prod(shape[axis + 1 :]) for shape in shapes for axis in range(len(shape))], np.int64)
        tensors = np.zeros(len(order), _TENSOR)
        tensors["device"] = arena.device.dlpack_device_type(), arena.device.index
        tensors["ndim"], tensors["lanes"] = np.array(rank, "i4")[order], 1
        kinds = [np.dtype(place.dtype) for place in places]
        tensors["code"] = np.array([_CODES[kind.kind] for kind in kinds], "u1")[order]
        tensors["bits"] = np.array([8 * kind.itemsize for kind in kinds], "u1")[order]
        tensors["shape"] = extents.ctypes.data + 8 * start[order]
        tensors["strides"] = strides.ctypes.data + 8 * start[order]
        offset = np.array([place.offset for place in places], np.int64)[order] + moved
        base = np.array([-1 if place.base is None else place.base for place in places], np.int64)[order]
        tensors["data"] = np.where(base < 0, arena.data_ptr() + offset, 0)
        arguments = np.zeros(len(order), _ANY)
        arguments["type_index"] = _POINTER
        (given,) = np.nonzero(base >= 0)
        moves = np.stack([given, base[given], offset[given]], 1)
        counts = np.array([len(call.places) for call in flat], np.int64)[made]
        handles = np.array([function.__chandle__() for function in functions], np.int64)[made]
        first = arguments.ctypes.data + _ANY.itemsize * (np.cumsum(counts) - counts)
        table = np.stack([handles, first, counts], 1)
        ranges = np.array([(0, 0, 0), *((0, *turn) for turn in turns(calls))], np.int64)[1:]
        ranges[:, 0] = (made_by := ranges[:, 1] * ranges[:, 2]).cumsum() - made_by
        results = np.zeros(1 + 2 * int(ranges[:, 2].max(initial=1)), np.int64)
        parts = [part.reshape(-1) for part in (moves, tensors.view(np.int64), table, ranges, results)]
        starts = np.cumsum([HEAD + count, *(part.size for part in parts)])[:-1]
        whole = np.concatenate([starts, [len(moves), len(ranges)], np.zeros(count, np.int64), *parts])
        arguments["value"] = whole.ctypes.data + 8 * (starts[1] + WORDS * np.arange(len(order)))
        self.given = whole[HEAD : HEAD + count].data  # a view that is written thrice as fast as NumPy does
        self._kept = (functions, arena, extents, strides, arguments)  # all that the table points to
        self._calls = len(table)
        self._table = to_tensor(whole)
        (run,) = get([RUN])
        self._function = run.function

    def __len__(self) -> int:
        """How many calls a run makes."""
        return self._calls

    def run(self) -> None:
        """Make all calls. Raises DeviceError where one failed, as its kernel got no memory to work in."""
        if self._function(self._table):
            raise DeviceError(f"one of {len(self._kept[0])} kernels failed, the rest was not run: is memory left?")
