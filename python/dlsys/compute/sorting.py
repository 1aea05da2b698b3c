"""The order of the elements along an axis.

Elements are compared by keys, integers in the same order. A sorting network puts them in order: it compares pairs of
places, which are the same whatever the elements are, and puts the lesser one first (Batcher's bitonic sort: Knuth, The
Art of Computer Programming, volume 3, section 5.3.4). Rules know a sort by the loops of `network`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm import te, tirx

from .base import Expr, full, pointwise, shape_of
from .elementary import ordered_bits, turned_bits
from .loops import Buffer, Source, loop, nest, program, sequence


def sort(x: te.Tensor, axis: int, descending: bool) -> te.Tensor:
    """The elements in order along `axis`; NaN is larger than all numbers, -0 less than 0."""
    shape, dtype = shape_of(x), str(x.dtype)
    if 0 in shape:
        return full(shape, 0, dtype)
    keys = pointwise("keys", lambda v: _key(v, descending), x)
    return pointwise("sort", lambda key: _number(key, dtype, descending), _in_order([keys], axis))


def argsort(x: te.Tensor, axis: int, descending: bool, count: int) -> te.Tensor:
    """int64: along `axis` the places of the first `count` elements in order, equal ones as they stand; NaN is larger
    than all numbers. An element is sorted as its key and its place, in one integer if that holds both."""
    extents = shape_of(x)
    shape, extent = (*extents[:axis], count, *extents[axis + 1 :]), extents[axis]
    if 0 in shape:
        return full(shape, 0, "int64")
    bits = extent.bit_length()  # of a place
    needed = bits + 8 * np.dtype(str(x.dtype)).itemsize
    word = "int32" if needed <= 32 else "int64"
    keys = pointwise("keys", lambda v: _key(v, descending, places=True), x)
    place = lambda *index: index[axis].astype(word)  # noqa: E731
    both = lambda *index: (keys(*index).astype(word) << tirx.const(bits, word)) | place(*index)  # noqa: E731
    words = te.compute(extents, both if needed <= 64 else place, name="words")
    last = _in_order([words] if needed <= 64 else [keys, words], axis)
    mask = tirx.const(2**bits - 1, word)
    return te.compute(shape, lambda *index: (last(*index) & mask).astype("int64"), name="argsort")


def _key(value: Expr, descending: bool, places: bool = False) -> Expr:
    """A signed integer that is less where the value comes earlier; if `places` are wanted, equal where it is equal."""
    dtype = str(value.ty)
    integer = f"int{8 * np.dtype(dtype).itemsize}"
    if dtype.startswith("float"):
        number = ordered_bits(value)
        if places:
            number = tirx.Select(number == tirx.const(-1, integer), tirx.const(0, integer), number)  # -0 is 0
        value = tirx.Select(tirx.isnan(value), tirx.max_value(integer), number)
    elif dtype.startswith("uint"):
        value = tirx.reinterpret(integer, value) ^ tirx.min_value(integer)
    return _either_way(value.astype(integer), descending)


def _number(key: Expr, dtype: str, descending: bool) -> Expr:
    """The value that has a key."""
    key = _either_way(key, descending)
    if dtype.startswith("float"):
        return tirx.reinterpret(dtype, turned_bits(key))
    return tirx.reinterpret(dtype, key ^ tirx.min_value(str(key.ty))) if dtype.startswith("uint") else key.astype(dtype)


def _either_way(key: Expr, descending: bool) -> Expr:
    """A key, turned over for the other order."""
    return key ^ tirx.const(-1, str(key.ty)) if descending else key


def _in_order(words: Sequence[te.Tensor], axis: int) -> te.Tensor:
    """The last words of elements in order along `axis`: by their first words, and of equal ones by the next."""
    *others, last = [(shape_of(word), str(word.dtype)) for word in words]
    body = lambda sources, out, *first: network(sources, [*first, out], axis)  # noqa: E731
    return program("sorted", *last, words, body, others)


def network(given: Sequence[Source], arrays: Sequence[Buffer], axis: int) -> tirx.Stmt:
    """The loops that sort elements along `axis`, each of a word in each array. Runs of two elements, of four and so on
    are merged: the first step of a merge compares elements at the same distance from both ends of two runs, the others
    those half as far apart each time."""
    shape = shape_of(arrays[0])
    extent, steps = shape[axis], max((shape[axis] - 1).bit_length(), 1)

    def row(index: list[Expr]) -> tirx.Stmt:
        at = lambda i: [*index[:axis], i, *index[axis:]]  # noqa: E731

        def pair(i: Expr, shift: Expr, turned: Expr) -> tirx.Stmt:
            half = 1 << shift
            a = ((i >> shift) << (shift + 1)) + (i & (half - 1))
            places = a, a ^ (half + turned * (half - 1))
            names = [[tirx.Var("word", str(array.dtype)) for array in arrays] for _ in places]

            def each(make: Callable[..., tirx.Stmt], words: Sequence[Sequence[Expr]]) -> list[tirx.Stmt]:
                both = zip(places, words, strict=True)
                return [make(array, word, at(i)) for i, own in both for array, word in zip(arrays, own, strict=True)]

            read = each(lambda array, name, index: tirx.Bind(name, tirx.BufferLoad(array, index)), names)
            stores = each(tirx.BufferStore, exchanged(*names))
            return tirx.IfThenElse(places[1] < extent, sequence([*read, *stores]), None)

        def merge(level: Expr) -> tirx.Stmt:
            def step(n: Expr) -> tirx.Stmt:
                return loop(1 << (steps - 1), lambda i: pair(i, level - n, (n == 0).astype("int32")))

            return loop(level + 1, step)

        def copy(i: Expr) -> tirx.Stmt:
            pairs = zip(arrays, given, strict=True)
            return sequence([tirx.BufferStore(array, source(at(i)), at(i)) for array, source in pairs])

        return sequence([loop(extent, copy), loop(steps, merge)])

    return nest((*shape[:axis], *shape[axis + 1 :]), row)


def exchanged(a: Sequence[Expr], b: Sequence[Expr]) -> tuple[list[Expr], list[Expr]]:
    """The words of the lesser of two elements, and of the other."""
    first = [tirx.min(a[0], b[0])], [tirx.max(a[0], b[0])]
    if len(a) == 1:
        return first
    later = tirx.any(a[0] > b[0], tirx.all(a[0] == b[0], a[1] > b[1]))
    return [*first[0], tirx.Select(later, b[1], a[1])], [*first[1], tirx.Select(later, a[1], b[1])]
