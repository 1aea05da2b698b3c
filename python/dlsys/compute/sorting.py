"""The order of the elements along an axis.

Elements are compared by keys, unsigned integers in the same order. A radix sort puts them in order digit by digit, the
least one first: of each digit it counts the values, which tells where elements with each of them go (Knuth, The Art of
Computer Programming, volume 3, section 5.2.5). Where few are wanted each is inserted into a list of the first ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from tvm import te, tirx

from .base import Expr, Shape, full, shape_of
from .elementary import ordered_bits
from .loops import Buffer, Source, loop, nest, program, sequence, unravelled

DIGIT = 8  # bits that one pass sorts by
LONG_DIGIT, LONG = 11, 1 << 14  # of rows so long that clearing the counts takes no time
SHORT = 32  # elements that are put in order before the digits' counts would be cleared
WORD = 32  # bits of a key that lie beside an element's place, in one number that is moved


def argsort(x: te.Tensor, axis: int, descending: bool, count: int) -> te.Tensor:
    """int64: along `axis` the places of the first `count` elements in order, equal ones as they stand; NaN is larger
    than all numbers."""
    own = shape_of(x)
    extent, outer, inner = own[axis], own[:axis], own[axis + 1 :]
    shape = (*outer, count, *inner)
    if 0 in shape:
        return full(shape, 0, "int64")
    rows = math.prod(outer) * math.prod(inner)
    few = count * count <= max(extent, SHORT * SHORT)
    bits, digit = 8 * np.dtype(str(x.dtype)).itemsize, LONG_DIGIT if extent >= LONG else DIGIT
    passes = -(-min(bits, WORD) // digit)

    def body(sources: list[Source], out: Buffer, *scratch: Buffer) -> tirx.Stmt:
        def row(number: Expr) -> tirx.Stmt:
            lead, rest = tirx.floordiv(number, math.prod(inner)), tirx.floormod(number, math.prod(inner))

            at = lambda i: [*unravelled(lead, outer), i, *unravelled(rest, inner)]  # noqa: E731
            key = lambda i: _key(sources[0](at(i)), descending)  # noqa: E731
            store = lambda i, value: tirx.BufferStore(out, value, at(i))  # noqa: E731
            return (_inserted if few else _by_digits)(_Row(number, extent, count, key, store), *scratch)

        return loop(rows, row)

    scratch: list[tuple[Shape, str]] = [((2, rows, extent), "uint64"), ((2, rows, passes, 1 << digit), "int32")]
    if few:
        scratch = [((rows, count), f"uint{bits}"), ((rows, count), "int32"), ((rows, 1), "int32")]
    return program("argsort", shape, "int64", [x], body, scratch)


def _key(value: Expr, descending: bool) -> Expr:
    """An unsigned integer that is less where the value comes earlier, and equal where it is equal."""
    dtype = str(value.ty)
    bits = 8 * np.dtype(dtype).itemsize
    word, integer = f"uint{bits}", f"int{bits}"
    ones, sign = tirx.const(2**bits - 1, word), tirx.const(2 ** (bits - 1), word)
    if dtype.startswith("float"):
        number = ordered_bits(value)
        number = tirx.Select(number == tirx.const(-1, integer), tirx.const(0, integer), number)  # -0 is 0
        value = tirx.Select(tirx.isnan(value), tirx.max_value(integer), number)
    key = tirx.reinterpret(word, value) ^ sign if str(value.ty) == integer else value.astype(word)
    return key ^ ones if descending else key


@dataclass(frozen=True)
class _Row:
    """A row to be put in order, of which the first `count` are wanted: `key(i)` of its elements, and `store(i, place)`
    of the place of what comes as number i."""

    number: Expr
    extent: int
    count: int
    key: Callable[[Expr], Expr]
    store: Callable[[Expr, Expr], tirx.Stmt]


def _by_digits(row: _Row, elements: Buffer, counts: Buffer) -> tirx.Stmt:
    """Sorts one row: counts all digits, then moves the elements to and fro, a digit at a time. An element is a word of
    its key, of a longer one the lower word first, and its place."""
    _, _, passes, bins = (int(axis) for axis in counts.shape)
    width, word = bins.bit_length() - 1, tirx.const(WORD, "uint64")
    words = -(-int(str(row.key(tirx.const(0, "int32")).ty)[4:]) // WORD)

    def load(buffer: Buffer, side: int, *index: Any) -> Expr:
        found = (side, row.number, *index)
        return tirx.BufferLoad(buffer, [tirx.const(i, "int32") if isinstance(i, int) else i for i in found])

    put = lambda buffer, value, side, *index: tirx.BufferStore(buffer, value, [side, row.number, *index])  # noqa: E731

    def named(name: str, value: Expr) -> tuple[Expr, tirx.Stmt]:
        """The value, read once: what is stored in between could be what was read, for all that LLVM knows."""
        return (var := tirx.Var(name, value.ty)), tirx.Bind(var, value)

    place = lambda element: (element & tirx.const(2**WORD - 1, "uint64")).astype("int32")  # noqa: E731

    def digit(element: Expr, number: int) -> Expr:
        own = element >> tirx.const(WORD + number * width, "uint64") & tirx.const(bins - 1, "uint64")
        return own.astype("int32")

    def tally(upper: int, i: Expr) -> tirx.Stmt:
        here, at = named("place", place(load(elements, passes % 2, i)) if upper else i)
        key = row.key(here).astype("uint64") >> tirx.const(upper * WORD, "uint64")
        element, bound = named("element", key << word | here.astype("uint64"))
        found = [at, bound, put(elements, element, 0, i)]
        places = [(0, number, digit(element, number)) for number in range(passes)]
        return sequence([*found, *(put(counts, load(counts, *index) + 1, *index) for index in places)])

    def begin(number: Expr) -> tirx.Stmt:
        before = lambda b: load(counts, 1, number, b) + load(counts, 0, number, b)  # noqa: E731
        adding = loop(bins - 1, lambda b: put(counts, before(b), 1, number, b + 1))
        return sequence([put(counts, 0, 1, number, 0), adding])

    def move(last: bool, number: int, i: Expr) -> tirx.Stmt:
        element, read = named("element", load(elements, number % 2, i))
        own, found = named("digit", digit(element, number))
        to, counted = named("to", load(counts, 1, number, own))
        moved = put(elements, element, 1 - number % 2, to)
        if last and number == passes - 1:
            moved = row.store(to, place(element).astype("int64"))
            moved = moved if row.count == row.extent else tirx.IfThenElse(to < row.count, moved, None)
        return sequence([read, found, counted, put(counts, to + 1, 1, number, own), moved])

    steps = []
    for upper in range(words):
        steps += [
            nest((passes, bins), lambda index: put(counts, 0, 0, *index)),
            loop(row.extent, partial(tally, upper)),
            loop(passes, begin),
            *(loop(row.extent, partial(move, upper == words - 1, number)) for number in range(passes)),
        ]
    return sequence(steps)


def _inserted(row: _Row, keys: Buffer, places: Buffer, at: Buffer) -> tirx.Stmt:
    """The first of one row: each element that comes before the last of them takes its place among them."""
    here = tirx.BufferLoad(at, [row.number, tirx.const(0, "int32")])
    before = tirx.max(here - 1, 0)

    set_here = lambda value: tirx.BufferStore(at, value, [row.number, 0])  # noqa: E731
    put = lambda buffer, value: tirx.BufferStore(buffer, value, [row.number, here])  # noqa: E731

    def insert(own: Expr, i: Expr, end: Expr) -> tirx.Stmt:
        """Element i, with that key, before those behind it, up to `end`."""
        moved = [put(buffer, tirx.BufferLoad(buffer, [row.number, before])) for buffer in (keys, places)]
        later = tirx.all(here > 0, tirx.BufferLoad(keys, [row.number, before]) > own)
        moving = tirx.While(later, sequence([*moved, set_here(here - 1)]))
        return sequence([set_here(end), moving, put(keys, own), put(places, i)])

    def look(i: Expr) -> tirx.Stmt:
        own = tirx.Var("key", str(keys.dtype))
        last = tirx.BufferLoad(keys, [row.number, tirx.const(row.count - 1, "int32")])
        return sequence([tirx.Bind(own, row.key(i)), tirx.IfThenElse(own < last, insert(own, i, row.count - 1), None)])

    def begin(i: Expr) -> tirx.Stmt:
        own = tirx.Var("key", str(keys.dtype))
        return sequence([tirx.Bind(own, row.key(i)), insert(own, i, i)])

    give = lambda i: row.store(i, tirx.BufferLoad(places, [row.number, i]).astype("int64"))  # noqa: E731
    rest = loop(row.extent - row.count, lambda i: look(row.count + i))
    return sequence([loop(row.count, begin), rest, loop(row.count, give)])
