"""Random numbers from a counter: Philox4x32-10, and the distributions made of its bits.

J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. A block of
four words is a function of a key of two words and a counter of four; so every element knows its own bits, whichever
thread or machine computes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import te, tirx

from . import elementary
from .base import Shape, constant, full, pointwise, shape_of
from .loops import Buffer, Expr, Source, loop, program, sequence, store_flat

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # added to the key from round to round: the golden ratio, sqrt(3) - 1
CHUNK = 1024  # blocks of a thread's step


class _Words:
    """Straight-line code whose values are arrays of one word, which LLVM keeps in registers."""

    def __init__(self) -> None:
        self.code: list[tirx.Stmt] = []

    def keep(self, value: Expr) -> Expr:
        buffer = tirx.decl_buffer((1,), str(value.ty), "word", scope="local")
        self.code += [tirx.AllocBuffer(buffer), tirx.BufferStore(buffer, value, [0])]
        return tirx.BufferLoad(buffer, [0])


def _philox(words: _Words, key: Sequence[Expr], counter: Sequence[Expr]) -> list[Expr]:
    """The four words of a counter."""
    state, keys = [words.keep(c) for c in counter], [words.keep(k) for k in key]
    for _ in range(ROUNDS):
        products = [
            words.keep(state[i].astype("uint64") * tirx.const(m, "uint64"))
            for i, m in zip((0, 2), MULTIPLIERS, strict=True)
        ]
        (high0, low0), (high1, low1) = [
            ((p >> tirx.const(32, "uint64")).astype("uint32"), p.astype("uint32")) for p in products
        ]
        state = [
            words.keep(value)
            for value in (high1 ^ state[1] ^ keys[0], low1, high0 ^ state[3] ^ keys[1], low0)
        ]
        keys = [words.keep(k + tirx.const(w, "uint32")) for k, w in zip(keys, WEYL, strict=True)]
    return state


def random_bits(key: te.Tensor, shape: Shape) -> te.Tensor:
    """Words of uint32: element e is word e % 4 of the block with the counter (e // 4, 0, key[2], key[3]), under the
    Philox key (key[0], key[1]). A block is computed once for its four elements."""
    size = math.prod(shape)
    if size == 0:
        return full(shape, 0, "uint32")
    blocks = size // 4

    def body(sources: list[Source], out: Buffer) -> tirx.Stmt:
        given = [sources[0].load([i]) for i in range(4)]

        def block(index: Expr, count: int = 4) -> tirx.Stmt:
            words = _Words()
            counter = [index.astype("uint32"), tirx.const(0, "uint32"), given[2], given[3]]
            found = _philox(words, given[:2], counter)
            stores = [store_flat(out, index * 4 + i, found[i]) for i in range(count)]
            return sequence([*words.code, *stores])

        def chunk(number: Expr) -> tirx.Stmt:
            first = number * CHUNK
            whole = blocks % CHUNK == 0
            return loop(CHUNK if whole else tirx.min(CHUNK, blocks - first), lambda i: block(first + i))

        parts = [loop(-(-blocks // CHUNK), chunk, size)] if blocks else []
        if size % 4:
            parts.append(block(tirx.const(blocks, "int32"), size % 4))
        return sequence(parts)

    return program("random_bits", shape, "uint32", [key], body)


def _unit(words: Sequence[Expr], dtype: str, above: int = 0) -> Expr:
    """(n + above) / 2^b, where n is b random bits: 24 of one word, or 53 of two."""
    if dtype == "float32":
        n = (words[0] >> tirx.const(8, "uint32")).astype("int32")
        return (n + tirx.const(above, "int32")).astype(dtype) * constant(2.0**-24, dtype)
    high, low = (w >> tirx.const(s, "uint32") for w, s in zip(words, (5, 6), strict=True))
    n = (high.astype("int64") << tirx.const(26, "int64")) + low.astype("int64") + tirx.const(above, "int64")
    return n.astype(dtype) * constant(2.0**-53, dtype)


def _of_words(name: str, bits: te.Tensor, value: Callable[[list[Expr]], Expr]) -> te.Tensor:
    """`value` of the words along the first axis, at every index of the others."""
    count, *shape = shape_of(bits)

    def at(*index: Any) -> Expr:
        return value([bits(word, *index) for word in range(count)])

    return te.compute(tuple(shape), at, name=name)


def uniform(bits: te.Tensor, low: float, high: float, dtype: str) -> te.Tensor:
    """low + (high - low) u, u uniform in [0, 1), of one or two words an element along the first axis; below `high`
    also where that rounds up."""
    start, end = constant(low, dtype), constant(high, dtype)
    span = constant(float(np.subtract(high, low, dtype=dtype)), dtype)
    last = constant(float(np.nextafter(np.asarray(high, dtype), np.asarray(low, dtype))), dtype)

    def value(words: list[Expr]) -> Expr:
        unit = _unit(words, dtype)
        if (low, high) == (0.0, 1.0):
            return unit
        return elementary.bound(start + span * unit, lambda v: tirx.Select(v < end, v, last))

    return _of_words("uniform", bits, value)


# sin(x) = x + x^3 P(x^2) and cos(x) = 1 - x^2 / 2 + x^4 Q(x^2) for |x| <= pi / 4: Cephes' sin.c and sinf.c
_SIN = {
    "float32": (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1),
    "float64": (
        1.58962301576546568060e-10,
        -2.50507477628578072866e-8,
        2.75573136214857245213e-6,
        -1.98412698295895385996e-4,
        8.33333333332211858878e-3,
        -1.66666666666666307295e-1,
    ),
}
_COS = {
    "float32": (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2),
    "float64": (
        -1.13585365213876817300e-11,
        2.08757008419747316778e-9,
        -2.75573141792967388112e-7,
        2.48015872888517045348e-5,
        -1.38888888888730564116e-3,
        4.16666666666665929218e-2,
    ),
}


def _cos_turns(u: Expr, dtype: str) -> Expr:
    """cos(2 pi u) for u in [0, 1): the quarter turns are counted off exactly."""

    def polynomial(coefficients: Sequence[float], x: Expr) -> Expr:
        value: Expr = constant(coefficients[0], dtype)
        for coefficient in coefficients[1:]:
            value = value * x + constant(coefficient, dtype)
        return value

    def of_rest(quarter: Expr, rest: Expr) -> Expr:
        def at(x: Expr, z: Expr) -> Expr:
            sine = x + x * z * polynomial(_SIN[dtype], z)
            cosine = constant(1, dtype) - z * constant(0.5, dtype) + z * z * polynomial(_COS[dtype], z)
            one, two = (tirx.const(n, "int32") for n in (1, 2))
            odd = (quarter & one) == one  # cos(x + pi / 2) = -sin(x)
            value = tirx.Select(odd, sine, cosine)
            return tirx.Select(((quarter + one) & two) == two, -value, value)

        x = rest * constant(np.pi / 2, dtype)
        return elementary.bound(x, lambda v: elementary.bound(v * v, lambda z: at(v, z)))

    quarters = u * constant(4, dtype)
    return elementary.bound(tirx.nearbyint(quarters), lambda n: of_rest(n.astype("int32"), quarters - n))


def normal(bits: te.Tensor, mean: float, std: float, dtype: str) -> te.Tensor:
    """mean + std sqrt(-2 log u) cos(2 pi v), u uniform in (0, 1], v in [0, 1), of two or four words an element along
    the first axis: G. E. P. Box, M. E. Muller, "A note on the generation of random normal deviates", 1958."""

    def value(words: list[Expr]) -> Expr:
        half = len(words) // 2
        radius = tirx.sqrt(constant(-2, dtype) * elementary.log(_unit(words[:half], dtype, above=1)))
        unit = elementary.bound(_unit(words[half:], dtype), lambda v: radius * _cos_turns(v, dtype))
        return unit if (mean, std) == (0.0, 1.0) else constant(mean, dtype) + constant(std, dtype) * unit

    return _of_words("normal", bits, value)


def dropout(x: te.Tensor, bits: te.Tensor, threshold: int, scale: float) -> te.Tensor:
    """x * scale where bits >= threshold, else x * 0."""
    least, kept, dropped = tirx.const(threshold, "uint32"), constant(scale, x.dtype), constant(0, x.dtype)

    def at(v: Expr, b: Expr) -> Expr:
        return v * tirx.Select(b >= least, kept, dropped)

    return pointwise("dropout", at, x, bits)
