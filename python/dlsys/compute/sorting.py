"""The order of the elements along an axis.

Elements are compared by keys, integers in the same order. A sorting network puts them in order: it compares pairs of
places, which are the same whatever the elements are, and puts the lesser one first (Batcher's bitonic sort: Knuth, The
Art of Computer Programming, volume 3, section 5.3.4). So many rows can go through it side by side, as lanes of a
vector. Where few are wanted each element is inserted into a list of the first ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te, tirx

from .base import Expr, Shape, full, shape_of
from .elementary import ordered_bits, turned_bits
from .loops import Buffer, Source, loop, program, sequence, unravelled

GROUP = 3  # steps of the network that elements stay in registers for: 2 ** 3 vectors, and two more
FEW = 16  # so many times the square of the number of those wanted is no more than a row where each is inserted
SORT = "dlsys.sort"
"""The annotation of a block that sorts: axis, descending, and places or values, see `Order`."""


def sort(x: te.Tensor, axis: int, descending: bool) -> te.Tensor:
    """The elements in order along `axis`; NaN is larger than all numbers, -0 less than 0."""
    return _sorted("sort", Order(shape_of(x), str(x.dtype), axis, descending, False), x, shape_of(x)[axis])


def argsort(x: te.Tensor, axis: int, descending: bool, count: int) -> te.Tensor:
    """int64: along `axis` the places of the first `count` elements in order, equal ones as they stand; NaN is larger
    than all numbers."""
    order = Order(shape_of(x), str(x.dtype), axis, descending, True)
    if count and FEW * count * count <= order.extent:
        return _inserted(order, x, count)
    return _sorted("argsort", order, x, count)


@dataclass(frozen=True)
class Order:
    """The order of the elements along an axis of an array: how each becomes the words that the network moves. They are
    its key and, if `places` are wanted, its place, in one integer if that holds both. Of values -0 comes before 0."""

    shape: Shape
    dtype: str
    axis: int
    descending: bool
    places: bool

    @property
    def extent(self) -> int:
        """Elements of a row."""
        return self.shape[self.axis]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return math.prod(self.shape[: self.axis]) * self.inner

    @property
    def inner(self) -> int:
        """Rows side by side: how far the elements of a row are apart in memory."""
        return math.prod(self.shape[self.axis + 1 :])

    @property
    def integer(self) -> str:
        """The dtype of a key."""
        return f"int{8 * np.dtype(self.dtype).itemsize}"

    @property
    def words(self) -> tuple[str, ...]:
        """The dtype of each word of an element."""
        bits = 8 * np.dtype(self.dtype).itemsize
        if not self.places:
            return (self.integer,)
        return next(((f"int{word}",) for word in (32, 64) if bits + self._place_bits <= word), ("int64", "int64"))

    @property
    def _place_bits(self) -> int:
        return self.extent.bit_length()

    def at(self, row: Expr, i: Expr) -> list[Expr]:
        """The index of element i of a row."""
        lead, rest = tirx.floordiv(row, self.inner), tirx.floormod(row, self.inner)
        outer, inner = self.shape[: self.axis], self.shape[self.axis + 1 :]
        return [*unravelled(lead, outer), i, *unravelled(rest, inner)]

    def key(self, value: Expr) -> Expr:
        """A signed integer that is less where the value comes earlier, and equal where it is equal."""
        integer = self.integer
        if self.dtype.startswith("float"):
            number = ordered_bits(value)
            if self.places:
                number = tirx.Select(number == tirx.const(-1, integer), tirx.const(0, integer), number)  # -0 is 0
            value = tirx.Select(tirx.isnan(value), tirx.max_value(integer), number)
        elif self.dtype.startswith("uint"):
            value = tirx.reinterpret(integer, value) ^ tirx.min_value(integer)
        value = value.astype(integer)
        return value ^ tirx.const(-1, integer) if self.descending else value

    def packed(self, key: Expr, place: Expr) -> list[Expr]:
        """The words of an element."""
        word = self.words[0]
        if not self.places:
            return [key]
        if len(self.words) == 2:
            return [key, place.astype(word)]
        return [(key.astype(word) << tirx.const(self._place_bits, word)) | place.astype(word)]

    def last(self) -> list[Expr]:
        """The words of what comes behind all elements."""
        return [tirx.max_value(word) for word in self.words]

    def result(self, words: Sequence[Expr]) -> Expr:
        """The place of an element, int64, or its value."""
        *_, word = words
        if self.places:
            mask = tirx.const(2**self._place_bits - 1, self.words[-1])
            return (word & mask).astype("int64")
        integer = self.integer
        key = word ^ tirx.const(-1, integer) if self.descending else word
        if self.dtype.startswith("float"):
            return tirx.reinterpret(self.dtype, turned_bits(key))
        if self.dtype.startswith("uint"):
            return tirx.reinterpret(self.dtype, key ^ tirx.min_value(integer))
        return key.astype(self.dtype)

    @property
    def output(self) -> str:
        """The dtype of the result."""
        return "int64" if self.places else self.dtype


def _sorted(name: str, order: Order, x: te.Tensor, count: int) -> te.Tensor:
    """The first of all sorted, row by row."""
    shape = (*order.shape[: order.axis], count, *order.shape[order.axis + 1 :])
    if 0 in shape:
        return full(shape, 0, order.output)
    size = max(1 << GROUP, 1 << (order.extent - 1).bit_length())

    def body(sources: list[Source], out: Buffer, *arrays: Buffer) -> tirx.Stmt:
        def row(number: Expr) -> tirx.Stmt:
            network = Network(arrays, lambda i: [number, i], order.extent)
            key = lambda i: order.key(sources[0](order.at(number, i)))  # noqa: E731
            given = lambda i: network.put(i, order.packed(key(i), i))  # noqa: E731
            store = lambda i: tirx.BufferStore(out, order.result(network.get(i)), order.at(number, i))  # noqa: E731
            fill = lambda i: network.put(order.extent + i, order.last())  # noqa: E731
            rest = [loop(size - order.extent, fill)] if size > order.extent else []
            return sequence([loop(order.extent, given), *rest, *network.sorted(), loop(count, store)])

        return loop(order.rows, row)

    scratch: list[tuple[Shape, str]] = [((order.rows, size), word) for word in order.words]
    told = {"axis": order.axis, "descending": order.descending, "places": order.places}
    return program(name, shape, order.output, [x], body, scratch, {SORT: told})


def _inserted(order: Order, x: te.Tensor, count: int) -> te.Tensor:
    """The places of the first of each row: each element that comes before the last of them takes its place among
    them."""
    shape = (*order.shape[: order.axis], count, *order.shape[order.axis + 1 :])

    def body(sources: list[Source], out: Buffer, *scratch: Buffer) -> tirx.Stmt:
        return loop(order.rows, lambda number: _first_of(order, count, number, sources[0], out, *scratch))

    scratch = [((order.rows, count), order.integer), ((order.rows, count), "int32"), ((order.rows, 1), "int32")]
    return program("argsort", shape, "int64", [x], body, scratch)


def _first_of(
    order: Order, count: int, row: Expr, x: Source, out: Buffer, keys: Buffer, places: Buffer, at: Buffer
) -> tirx.Stmt:
    """The code of one row."""
    here = tirx.BufferLoad(at, [row, tirx.const(0, "int32")])
    before = tirx.max(here - 1, 0)

    set_here = lambda value: tirx.BufferStore(at, value, [row, 0])  # noqa: E731
    put = lambda buffer, value: tirx.BufferStore(buffer, value, [row, here])  # noqa: E731

    def insert(own: Expr, i: Expr, end: Expr) -> tirx.Stmt:
        """Element i, with that key, before those behind it, up to `end`."""
        moved = [put(buffer, tirx.BufferLoad(buffer, [row, before])) for buffer in (keys, places)]
        later = tirx.all(here > 0, tirx.BufferLoad(keys, [row, before]) > own)
        moving = tirx.While(later, sequence([*moved, set_here(here - 1)]))
        return sequence([set_here(end), moving, put(keys, own), put(places, i)])

    def look(i: Expr) -> tirx.Stmt:
        own = tirx.Var("key", str(keys.dtype))
        last = tirx.BufferLoad(keys, [row, tirx.const(count - 1, "int32")])
        return sequence([tirx.Bind(own, key(i)), tirx.IfThenElse(own < last, insert(own, i, count - 1), None)])

    def begin(i: Expr) -> tirx.Stmt:
        own = tirx.Var("key", str(keys.dtype))
        return sequence([tirx.Bind(own, key(i)), insert(own, i, i)])

    key = lambda i: order.key(x(order.at(row, i)))  # noqa: E731
    place = lambda i: tirx.BufferLoad(places, [row, i]).astype("int64")  # noqa: E731
    give = lambda i: tirx.BufferStore(out, place(i), order.at(row, i))  # noqa: E731
    rest = loop(order.extent - count, lambda i: look(count + i))
    return sequence([loop(count, begin), rest, loop(count, give)])


class Network:
    """The code that sorts columns side by side, in arrays, one for each word of an element: those of element i are at
    `at(i)`, a vector of `lanes` columns. There is memory for a power of two of elements, and 2 ** GROUP at least; those
    behind the first `count` come behind them in their order. Of `block` steps elements are near each other in memory:
    they go on with a part of 2 ** block elements as long as they can."""

    def __init__(
        self, arrays: Sequence[Buffer], at: Callable[[Expr], list[Any]], count: int, lanes: int = 1, block: int = 31
    ) -> None:
        self.arrays, self.at, self.count, self.lanes = arrays, at, count, lanes
        self.steps: int = max(GROUP, (count - 1).bit_length())  # of a merge of all
        self.block: int = max(GROUP, min(block, self.steps))

    def get(self, i: Expr) -> list[Expr]:
        """The words of element i of each column."""
        return [tirx.BufferLoad(array, self.at(i)) for array in self.arrays]

    def put(self, i: Expr, words: Sequence[Expr]) -> tirx.Stmt:
        """The store of element i of each column."""
        pairs = zip(self.arrays, words, strict=True)
        return sequence([tirx.BufferStore(array, word, self.at(i)) for array, word in pairs])

    def sorted(self) -> list[tirx.Stmt]:
        """The steps that sort the columns: runs of 8 elements, then merges of two runs as long as there are two. The
        first step of a merge compares elements at the same distance from both ends, the others those half as far apart
        each time."""

        def part(number: Expr) -> tirx.Stmt:
            start, own = self._part(number)

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
        return [*first, self._parts(lambda number: self._near(*self._part(number), near))]

    def _parts(self, body: Callable[[Expr], tirx.Stmt]) -> tirx.Stmt:
        """`body` for the number of each part."""
        return loop(-(-self.count // (1 << self.block)), body)

    def _part(self, number: Expr) -> tuple[Expr, Expr]:
        """The first element of a part, and how many it has."""
        whole = 1 << self.block
        return number * whole, tirx.min(self.count - number * whole, whole)

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
        held = Registers([str(array.dtype) for array in self.arrays], self.lanes, 2 * size)

        def code(number: Expr) -> tirx.Stmt:
            first, within = start + ((number >> shift) << (shift + GROUP)), number & (apart - 1)
            bank, half = 0, size // 2
            other = first + (half << shift) + (apart - 1 - within if turned else within)

            def each(body: Callable[[Expr, Expr], tirx.Stmt]) -> list[tirx.Stmt]:
                """`body` for the number of each register, and where its element is."""
                lower = loop(half, lambda e: body(e, first + within + (e << shift)))
                return [lower, loop(half, lambda e: body(half + e, other + (e << shift)))]

            found = [*held.made, *each(lambda number, at: sequence(held.put(number, self.get(at))))]
            for steps in range(1 if whole else GROUP, GROUP + 1):
                for distance in (1 << step for step in reversed(range(steps))):
                    ends = turned and 2 * distance == 1 << steps
                    found.append(held.exchanges(bank, size - bank, distance, 2 * distance - 1 if ends else distance))
                    bank = size - bank
            return sequence([*found, *each(lambda number, at: self.put(at, held[bank + number]))])

        groups = tirx.floordiv(count + ((apart << GROUP) - 1), apart << GROUP) << shift
        index = tirx.Var("i", "int32")
        return tirx.For(index, 0, groups, tirx.ForKind.SERIAL, code(index))


class Registers:
    """Registers for so many elements of each lane, of words of some dtypes."""

    def __init__(self, words: Sequence[str], lanes: int, count: int) -> None:
        self._own = [tirx.decl_buffer((count * lanes,), word, "registers", scope="local") for word in words]
        self._lanes = lanes
        self.made: list[tirx.Stmt] = [tirx.AllocBuffer(one) for one in self._own]

    def _at(self, number: Expr) -> list[Any]:
        return [tirx.Ramp(number * self._lanes, 1, self._lanes) if self._lanes > 1 else number]

    def __getitem__(self, number: Expr) -> list[Expr]:
        """The words of an element."""
        return [tirx.BufferLoad(own, self._at(number)) for own in self._own]

    def put(self, number: Expr, words: Sequence[Expr]) -> list[tirx.Stmt]:
        """The assignments to an element."""
        return [tirx.BufferStore(own, one, self._at(number)) for own, one in zip(self._own, words, strict=True)]

    def exchanges(self, source: int, to: int, distance: int, other: int) -> tirx.Stmt:
        """A step for the 2 ** GROUP elements from `source` on, which come to those from `to` on: of those whose number
        has not the bit `distance`, and that whose number has the bits `other` turned over, the lesser comes first."""

        def pair(number: Expr) -> tirx.Stmt:
            a = number // distance * (2 * distance) + number % distance
            b = a ^ _int(other)
            less, more = exchanged(self[source + a], self[source + b])
            return sequence([*self.put(to + a, less), *self.put(to + b, more)])

        return loop(1 << (GROUP - 1), pair)


def exchanged(a: Sequence[Expr], b: Sequence[Expr]) -> tuple[list[Expr], list[Expr]]:
    """The words of the lesser of two elements, and of the other."""
    first = [tirx.min(a[0], b[0])], [tirx.max(a[0], b[0])]
    if len(a) == 1:
        return first
    later = tirx.any(a[0] > b[0], tirx.all(a[0] == b[0], a[1] > b[1]))
    return [*first[0], tirx.Select(later, b[1], a[1])], [*first[1], tirx.Select(later, a[1], b[1])]


def _int(value: int) -> Expr:
    return tirx.const(value, "int32")


def _loop(extent: Any, body: Callable[[Expr], tirx.Stmt]) -> list[tirx.Stmt]:
    """`body` for each index below an extent, which may be an expression; nothing of none."""
    if isinstance(extent, (int, tirx.IntImm)):
        return [loop(int(extent), body)] if int(extent) > 0 else []
    index = tirx.Var("i", "int32")
    return [tirx.For(index, 0, extent, tirx.ForKind.SERIAL, body(index))]
