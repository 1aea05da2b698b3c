"""A program's calls as a table, and the one compiled function that makes these calls in each run.

For every call the table has the kernel's function and its arguments as C structures, by TVM's conventions (`dlpack.h`,
`tvm/ffi/c_api.h`): each array's pointer, shape and dtype. The pointers of feeds and parameters are written before each
run, in an exported library's table all. So a plan needs no code but its kernels'.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from ..devices import Graph, to_tensor
from ..devices.context import DLPACK_CPU
from ..errors import DeviceError
from ..graph import Shape
from ..system import warn
from ..tvm_import import with_compiler
from .cache import get
from .host import failure
from .spec import KernelSpec

POINTER = 7  # kTVMFFIDLTensorPtr
CODES = {"f": 2, "i": 0, "u": 1, "b": 6}  # DLDataTypeCode, by NumPy's kind
_TENSOR = np.dtype([
    ("data", "u8"), ("device", "i4", 2), ("ndim", "i4"), ("code", "u1"), ("bits", "u1"), ("lanes", "u2"),
    ("shape", "u8"), ("strides", "u8"), ("byte_offset", "u8"),
])  # fmt: skip
_ANY = np.dtype([("type_index", "i4"), ("padding", "u4"), ("value", "u8")])
HEAD = 5  # numbers with which the table begins
MOST_GRAPHS = 8  # of sets of given arrays whose graphs a GPU keeps: values that are fed lie in two places in turn


@dataclass(frozen=True)
class Place:
    """Where a value lies: `base` is the number of a given array of its dtype, or None for the arena, from byte `offset`
    on. `moves`: for each loop, the outermost first, the bytes a step lies further, and whether every other one does."""

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
    """Calls that are made so many times, with their arguments' places moved."""

    calls: tuple[Call | Repeat, ...]
    times: int


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
    written = [(number, place) for number, call in enumerate(flat) for place in call.places]
    rest = iter(_expanded(calls).T.tolist())
    found = []
    for first in rest:
        number, _ = written[first[0]]
        own = [first, *itertools.islice(rest, len(flat[number].places) - 1)]
        places = [(written[place][1], by) for place, by in own]
        where = tuple(replace(place, offset=place.offset + by, moves=()) for place, by in places)
        found.append((number, Call(flat[number].symbol, where)))
    return found


def _expanded(calls: Calls, depth: int = 0) -> np.ndarray:
    """The calls as they are made: two rows, of each place its number among those as written, and by how many bytes it
    is moved."""
    parts, count = [np.zeros((2, 0), np.int64)], 0
    for call in calls:
        places = [place for one in each_call([call]) for place in one.places]
        made = np.stack([np.arange(len(places)), np.zeros(len(places), np.int64)])
        if isinstance(call, Repeat):
            numbers, by = _expanded(call.calls, depth + 1)
            moves = np.array([place.moves[depth] for place in places], np.int64).reshape(-1, 2)
            stride, alternates = moves[numbers].T
            step = np.arange(call.times)[:, None]
            by = by + stride * np.where(alternates, step % 2, step)
            made = np.stack([np.tile(numbers, call.times), by.reshape(-1)])
        parts.append(made + np.array([[count], [0]], np.int64))
        count += len(places)
    return np.concatenate(parts, axis=1)


RUN = KernelSpec(
    "run_calls", ("run_calls", HEAD), (), lambda: (), outputs=(),
    loops=lambda: with_compiler("kernels.build").run_function(HEAD),
)  # fmt: skip
"""The function that makes the calls: a kernel like others, to be compiled and kept with them."""


class Table:
    """The calls of a program as numbers, see `build.run_function`, without the addresses.

    Attributes:
        words: the numbers but for the moves; addresses are 0.
        moves: for each address the word, the array (the `count` given ones, the arena, the table) and the byte there.
        handles: the words that are addresses of functions, and the numbers of their calls as written.
        results: the word that is not 0 after a call that failed.
    """

    results: int

    def __init__(self, calls: Calls, count: int, device: tuple[int, int] = (DLPACK_CPU, 0)) -> None:
        """`device`: where all arrays lie, as DLPack says it."""
        self.count = count
        flat = list(each_call(calls))
        order, moved = _expanded(calls)
        written = np.array([len(call.places) for call in flat], np.int64)
        owner = np.repeat(np.arange(len(flat)), written)[order]
        made = owner[np.isin(order, written.cumsum() - written)]  # each call once, by its first place
        places = [place for call in flat for place in call.places]
        shapes = [place.shape for place in places]
        rank, extents = list(map(len, shapes)), np.array([extent for shape in shapes for extent in shape], np.int64)
        # strides count the elements from one to the next along each axis
        strides = np.array([prod(shape[axis + 1 :]) for shape in shapes for axis in range(len(shape))], np.int64)
        kinds = [np.dtype(place.dtype) for place in places]
        tensors = np.zeros(len(order), _TENSOR)
        tensors["device"], tensors["lanes"] = device, 1
        tensors["ndim"] = np.array(rank, "i4")[order]
        tensors["code"] = np.array([CODES[kind.kind] for kind in kinds], "u1")[order]
        tensors["bits"] = np.array([8 * kind.itemsize for kind in kinds], "u1")[order]
        arguments = np.zeros(len(order), _ANY)
        arguments["type_index"] = POINTER
        table = np.zeros((len(made), 3), np.int64)
        table[:, 2] = counts = written[made]
        parts = [part.reshape(-1).view(np.int64) for part in (table, np.zeros(3, np.int64), tensors, arguments)]
        parts += [extents, strides]
        starts = np.cumsum([HEAD + count + 2, *(part.size for part in parts)])
        of_calls, self.results, of_tensors, of_arguments, of_extents, of_strides, end = starts.tolist()
        head = [end, of_calls, self.results, len(made), 0]
        self.words: np.ndarray = np.concatenate([np.array(head, np.int64), np.zeros(count + 2, np.int64), *parts])
        self.handles: tuple[np.ndarray, np.ndarray] = of_calls + 3 * np.arange(len(made)), made
        base = np.array([count if place.base is None else place.base for place in places], np.int64)[order]
        offset = np.array([place.offset for place in places], np.int64)[order] + moved
        number, start = np.arange(len(order)), np.cumsum([0, *rank])[order]
        tensor, argument = of_tensors + _TENSOR.itemsize // 8 * number, of_arguments + 2 * number
        data, its_shape, its_strides = (tensor + _TENSOR.fields[name][1] // 8 for name in ("data", "shape", "strides"))  # type: ignore[index]

        def within(words: np.ndarray, to: np.ndarray) -> np.ndarray:
            """Moves that let words point to others."""
            return np.stack([words, np.full(len(words), count + 1), 8 * to], 1)

        self.moves: np.ndarray = np.concatenate([
            np.stack([data, base, offset], 1),
            within(its_shape, of_extents + start),
            within(its_strides, of_strides + start),
            within(argument + 1, tensor),
            within(self.handles[0] + 1, of_arguments + 2 * (np.cumsum(counts) - counts)),
        ])  # fmt: skip

    def with_moves(self, moves: np.ndarray) -> np.ndarray:
        """The numbers with the moves that a run makes."""
        whole = np.concatenate([self.words, moves.reshape(-1)])
        whole[HEAD - 1] = len(moves)
        return whole


class Runner:
    """The calls of one program, made ready; `given`, where each given array lies, is to be set before a run."""

    def __init__(self, calls: Calls, functions: Sequence[Any], count: int, arena: Any) -> None:
        """`functions`: one for each call as written; `count`: how many arrays are given. All lie on the arena's device.
        """
        table = Table(calls, count, (arena.device.dlpack_device_type(), arena.device.index))
        of_given = table.moves[:, 1] < count
        whole = table.with_moves(table.moves[of_given])
        word, array, byte = table.moves[~of_given].T
        whole[word] = np.array([*[0] * count, arena.data_ptr(), whole.ctypes.data], np.int64)[array] + byte
        word, call = table.handles
        whole[word] = np.array([function.__chandle__() for function in functions], np.int64)[call]
        # a view that is written thrice as fast as NumPy does
        self.given: memoryview[int] = whole[HEAD : HEAD + count].data
        self._kept = (functions, arena)  # what the table points to
        self._calls = len(word)
        self._table = to_tensor(whole)
        (run,) = get([RUN])
        self._function = run.function

    def __len__(self) -> int:
        """How many calls a run makes."""
        return self._calls

    def run(self) -> None:
        """Make all calls. Raises DeviceError where one failed, as its kernel got no memory to work in, and what a
        function of NumPy's has raised."""
        if self._function(self._table):
            if (error := failure()) is not None:
                raise error
            raise DeviceError(f"one of {len(self._kept[0])} kernels failed, the rest was not run: is memory left?")


class ReplayWarning(UserWarning):
    """CUDA did not record a program's launches: they are asked for one by one."""


class Replay(Runner):
    """A runner whose calls are made one by one with given arrays that are new to it, recorded the second time, and
    replayed from then on."""

    def __init__(self, calls: Any, functions: Any, count: int, arena: Any) -> None:
        super().__init__(calls, functions, count, arena)
        self._device = arena.device
        self._graphs: dict[bytes, Graph | None] = {}  # by where the given arrays lie, the latest one last
        self._records = len(self) > 1

    def run(self) -> None:
        """Make all calls. Raises DeviceError."""
        graph = None
        if self._records:
            given = self.given.tobytes()
            known = given in self._graphs
            graph = self._graphs.pop(given, None)
            if known and graph is None:
                graph = self._recorded()
            self._graphs[given] = graph
            if len(self._graphs) > MOST_GRAPHS:
                del self._graphs[next(iter(self._graphs))]
        if graph is None:
            super().run()
        else:
            graph.launch()

    def _recorded(self) -> Graph | None:
        """The graph of the calls; None where CUDA does not record them, which is told once."""
        try:
            return Graph(self._device, super().run)
        except DeviceError as error:
            self._records = False
            warn(f"the launches are asked for one by one: {error}", ReplayWarning)
            return None
