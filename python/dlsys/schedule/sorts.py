"""Sorts (`compute.sorting`), as both targets read them, by the loops of `network`, and write them: some steps of the
network at a time in registers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tvm_ffi
from tvm import s_tir, tirx

from ..compute.loops import loop as counted
from ..compute.sorting import exchanged, network
from .codegen import array, loop, sequence, unravelled
from .common import found_in, renamed, with_loads
from .stages import Expr, Stage, nests_of, with_nests

GROUP = 3  # steps of the network that elements stay in registers for: 2 ** 3 vectors, and two more
FEW = 16  # so many times the square of the number of those wanted is no more than a row where each is inserted


class Sort:
    """A sort of x along an axis, by its stages: those of the elements' keys and words, and of the result, which is made
    of each last word."""

    def __init__(self, x: Any, keys: Stage, words: Sequence[Stage], result: Stage, axis: int) -> None:
        self._x, self._keys, self._words, self._result, self._axis = x, keys, words, result, axis
        self._shape = tuple(map(int, x.shape))
        self.extent: int = self._shape[axis]  # elements of a row
        self.inner: int = math.prod(self._shape[axis + 1 :])  # rows side by side
        self.rows: int = math.prod(self._shape[:axis]) * self.inner
        self.count = int(result.buffer.shape[axis])  # of the first elements, which are stored
        self.few = FEW * self.count**2 <= self.extent and self._words[-1] is not keys  # places
        self.name, self.key_dtype, self.dtype = result.name, str(keys.buffer.dtype), str(result.buffer.dtype)
        self.dtypes: list[str] = [str(stage.buffer.dtype) for stage in words]
        self.last: list[Expr] = [tirx.max_value(word) for word in self.dtypes]  # what comes behind all elements

    def _at(self, row: Expr, i: Expr) -> list[Expr]:
        """The index of element i of a row."""
        outer, inner = self._shape[: self._axis], self._shape[self._axis + 1 :]
        lead, rest = tirx.floordiv(row, self.inner), tirx.floormod(row, self.inner)
        return [*unravelled(lead, outer), i, *unravelled(rest, inner)]

    def key(self, row: Expr, i: Expr) -> Expr:
        """The key of element i of a row."""
        return with_loads(self._keys.value, lambda _: tirx.BufferLoad(self._x, self._at(row, i)))

    def words(self, key: Expr, i: Expr) -> list[Expr]:
        """The words of element i of a row from its key."""
        own = lambda stage: renamed(stage.value, {stage.iters[self._axis].var: i})  # noqa: E731
        return [key if stage is self._keys else with_loads(own(stage), lambda _: key) for stage in self._words]

    def result(self, word: Expr) -> Expr:
        """The result of an element."""
        return with_loads(self._result.value, lambda _: word)

    def store(self, row: Expr, i: Expr, value: Expr) -> tirx.BufferStore:
        """The store of element i of a row of results."""
        return tirx.BufferStore(self._result.buffer, value, self._at(row, i))


def sort_of(func: tirx.PrimFunc) -> Sort | None:
    """The sort that a function is of an array in memory; None of others."""
    stages = nests_of(func)
    found = [i for i, one in enumerate(stages) if not isinstance(one, Stage)]
    if len(func.params) != 2 or len(stages) < 3 or found != [len(stages) - 2]:
        return None
    *before, loops, result = stages
    while isinstance(loops, s_tir.SBlockRealize):
        loops = loops.block.body
    arrays = list(dict.fromkeys(store.buffer for store in found_in(loops, tirx.BufferStore)))
    words = before[-len(arrays) :]
    given = [partial(tirx.BufferLoad, stage.buffer) for stage in words]
    axes = (i for i in range(len(arrays[0].shape)) if tvm_ffi.structural_equal(loops, network(given, arrays, i)))
    if len(given) != len(arrays) or (axis := next(axes, None)) is None:
        return None
    return Sort(func.params[0], before[0], words, result, axis)


def as_loops(func: tirx.PrimFunc, sort: Sort) -> tirx.PrimFunc:
    """The function that is a sort with its loops anew, for threads: row by row in arrays of its own."""
    size = sort.count if sort.few else 1 << max(GROUP, (sort.extent - 1).bit_length())
    dtypes = [sort.key_dtype, "int32"] if sort.few else sort.dtypes
    arrays = [array((sort.rows, size), word, "scratch") for word in dtypes]
    end = array((sort.rows, 1), "int32", "end")

    def row(number: Expr) -> tirx.Stmt:
        own = Elements(arrays, lambda i: [number, i])
        if sort.few:
            code = _first_of(sort, number, own, Elements([end], lambda i: [number, i]))
        else:
            given = loop(sort.extent, lambda i: own.put(i, sort.words(sort.key(number, i), i)))
            code = [given, *own.filled(sort.extent, size, sort.last), *Network(own, sort.extent).sorted()]
        result = lambda i: sort.result(own[i][-1].astype(sort.dtypes[-1]))  # noqa: E731
        return sequence([*code, loop(sort.count, lambda i: sort.store(number, i, result(i)))])

    block = s_tir.SBlock([], [], [], sort.name, loop(sort.rows, row))
    return with_nests(func, [s_tir.SBlockRealize([], True, block)])


def _first_of(sort: Sort, row: Expr, first: Elements, end: Elements) -> list[tirx.Stmt]:
    """The code that finds the keys and the places of the first elements of a row: each that comes before the last of
    them takes its place among them."""
    zero, last = _int(0), _int(sort.count - 1)
    (here,) = end[zero]
    before = first[tirx.max(here - 1, 0)]

    def look(i: Expr, to: Expr, always: bool = False) -> tirx.Stmt:
        """Element i, before those behind it up to a place: `always`, or if it comes before the one there."""
        key = tirx.Var("key", sort.key_dtype)
        moved = sequence([first.put(here, before), end.put(zero, [here - 1])])
        moving = tirx.While(tirx.all(here > 0, before[0] > key), moved)
        put = sequence([end.put(zero, [to]), moving, first.put(here, [key, i])])
        code = put if always else tirx.IfThenElse(key < first[to][0], put, None)
        return sequence([tirx.Bind(key, sort.key(row, i)), code])

    begin = loop(sort.count, lambda i: look(i, i, always=True))
    return [begin, loop(sort.extent - sort.count, lambda i: look(sort.count + i, last))]


class Elements:
    """Elements of some words, each in an array, where element i is at `at(i)`."""

    def __init__(self, arrays: Sequence[Any], at: Callable[[Expr], list[Any]]) -> None:
        self.arrays, self._at = arrays, at
        self.made: list[tirx.Stmt] = [tirx.AllocBuffer(one) for one in arrays]

    def __getitem__(self, i: Expr) -> list[Expr]:
        """The words of an element."""
        return [tirx.BufferLoad(one, self._at(i)) for one in self.arrays]

    def put(self, i: Expr, words: Sequence[Expr]) -> tirx.Stmt:
        """The store of an element."""
        stores = zip(self.arrays, words, strict=True)
        return sequence([tirx.BufferStore(one, word, self._at(i)) for one, word in stores])

    def filled(self, first: int, size: int, words: Sequence[Expr]) -> list[tirx.Stmt]:
        """The stores of the same words in the elements from `first` on, below `size`."""
        return _loop(size - first, lambda i: self.put(first + i, words))


def registers(dtypes: Sequence[str], count: int, lanes: int) -> Elements:
    """Registers for so many elements of each lane."""
    arrays = [tirx.decl_buffer((count * lanes,), word, "registers", scope="local") for word in dtypes]
    return Elements(arrays, lambda i: [tirx.Ramp(i * lanes, 1, lanes) if lanes > 1 else i])


class Network:
    """The code that sorts `lanes` columns side by side, which are `elements`: a power of two of them, and 2 ** GROUP at
    least; those behind the first `count` come behind them in their order. Of `block` steps elements are near each other
    in memory: they go on with a part of 2 ** block elements as long as they can."""

    def __init__(self, elements: Elements, count: int, lanes: int = 1, block: int = 31) -> None:
        self.elements, self.count, self.lanes = elements, count, lanes
        self.steps: int = max(GROUP, (count - 1).bit_length())  # of a merge of all
        self.block: int = max(GROUP, min(block, self.steps))

    def sorted(self) -> list[tirx.Stmt]:
        """The steps that sort the columns: runs of 8 elements, then merges of two runs as long as there are two."""

        def part(start: Expr, own: Expr) -> tirx.Stmt:
            def merge(level: Expr) -> tirx.Stmt:
                return sequence([self._group(start, own, level + 1, turned=True), self._near(start, own, level + 1)])

            runs = self._group(start, own, _int(0), turned=True, whole=True)
            return sequence([runs, *_loop(self.block - GROUP, merge)])

        def merge(level: Expr) -> tirx.Stmt:
            steps = level + (self.block + 1 - GROUP)  # that are left behind the first ones
            return sequence([self._group(_int(0), _int(self.count), steps, turned=True), *self.merged(steps)])

        return [self._parts(part), *_loop(self.steps - self.block, merge)]

    def merged(self, steps: Expr) -> list[tirx.Stmt]:
        """The last so many steps of a merge of all, in which elements are 2 ** (steps - 1), ..., 2, 1 apart."""
        far = tirx.floordiv(tirx.max(steps - self.block, 0) + (GROUP - 1), GROUP)
        first = _loop(far, lambda i: self._group(_int(0), _int(self.count), steps - GROUP * (i + 1)))
        near = steps - GROUP * far
        return [*first, self._parts(lambda start, own: self._near(start, own, near))]

    def _parts(self, body: Callable[[Expr, Expr], tirx.Stmt]) -> tirx.Stmt:
        """`body` for the first element of each part, and how many it has."""
        whole = 1 << self.block
        return loop(-(-self.count // whole), lambda i: body(i * whole, tirx.min(self.count - i * whole, whole)))

    def _near(self, start: Expr, count: Expr, steps: Expr) -> tirx.Stmt:
        """The last steps of merges within a part. Where they are no multiple of a group's, some are made again, which
        changes nothing: what they compare is in order."""
        groups = tirx.floordiv(steps + (GROUP - 1), GROUP)
        shift = lambda i: tirx.max(steps - GROUP * (i + 1), 0)  # noqa: E731
        return sequence(_loop(groups, lambda i: self._group(start, count, shift(i))))

    def _group(self, start: Expr, count: Expr, shift: Expr, turned: bool = False, whole: bool = False) -> tirx.Stmt:
        """GROUP steps for all elements from `start` on: those that are 2 ** shift apart come to registers together.
        `turned`: in the first step elements at the same distance from both ends are compared; `whole`: all merges of
        what is in the registers."""
        size, apart = 1 << GROUP, _int(1) << shift
        held = registers([str(one.dtype) for one in self.elements.arrays], 2 * size, self.lanes)

        def code(number: Expr) -> tirx.Stmt:
            first, within = start + ((number >> shift) << (shift + GROUP)), number & (apart - 1)
            bank, half = 0, size // 2
            other = first + (half << shift) + (apart - 1 - within if turned else within)

            def each(body: Callable[[Expr, Expr], tirx.Stmt]) -> list[tirx.Stmt]:
                """`body` for the number of each register, and where its element is."""
                lower = loop(half, lambda e: body(e, first + within + (e << shift)))
                return [lower, loop(half, lambda e: body(half + e, other + (e << shift)))]

            found = [*held.made, *each(lambda number, at: held.put(number, self.elements[at]))]
            for steps in range(1 if whole else GROUP, GROUP + 1):
                for distance in (1 << step for step in reversed(range(steps))):
                    ends = turned and 2 * distance == 1 << steps
                    found.append(_step(held, bank, size - bank, distance, 2 * distance - 1 if ends else distance))
                    bank = size - bank
            return sequence([*found, *each(lambda number, at: self.elements.put(at, held[bank + number]))])

        return sequence(_loop(tirx.floordiv(count + ((apart << GROUP) - 1), apart << GROUP) << shift, code))


def _step(held: Elements, source: int, to: int, distance: int, other: int) -> tirx.Stmt:
    """A step for the 2 ** GROUP registers from `source` on, which come to those from `to` on: of those whose number has
    not the bit `distance`, and that whose number has the bits `other` turned over, the lesser comes first."""

    def pair(number: Expr) -> tirx.Stmt:
        a = number // distance * (2 * distance) + number % distance
        b = a ^ _int(other)
        less, more = exchanged(held[source + a], held[source + b])
        return sequence([held.put(to + a, less), held.put(to + b, more)])

    return loop(1 << (GROUP - 1), pair)


def _int(value: int) -> Expr:
    return tirx.const(value, "int32")


def _loop(extent: Any, body: Callable[[Expr], tirx.Stmt]) -> list[tirx.Stmt]:
    """`body` for each index below an extent, which may be an expression; nothing of none."""
    own = int(extent) if isinstance(extent, (int, tirx.IntImm)) else extent
    return [] if isinstance(own, int) and own <= 0 else [counted(own, body)]
