"""Random numbers from a counter: Philox4x32-10, and the distributions made of its bits.

J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. A block of
four words is a function of a key of two words and a counter of four; so every element knows its own bits, whichever
thread or machine computes it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from tvm import te, tirx

from .base import Expr, Pointwise, Shape, constant, elementwise, full, shape_of
from .elementary import Name, horner, log, naming
from .loops import Buffer, Source, Words, loop, program, sequence, unravelled
from .trigonometry import of_quarter

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # added to the key from round to round: the golden ratio, sqrt(3) - 1


def _philox(key: Sequence[Expr], counter: Sequence[Expr]) -> tuple[list[tirx.Stmt], list[Expr]]:
    """The four words of a counter, and the code that computes them in registers."""
    code = list[tirx.Stmt]()

    def keep(value: Expr) -> Expr:
        word = Words(1, str(value.ty), "word")
        code.extend([word.made, word.put(0, value)])
        return word[0]

    state, keys = list(map(keep, counter)), list(map(keep, key))
    for _ in range(ROUNDS):
        pairs = zip((0, 2), MULTIPLIERS, strict=True)
        products = [keep(state[i].astype("uint64") * tirx.const(m, "uint64")) for i, m in pairs]
        high0, high1 = ((p >> tirx.const(32, "uint64")).astype("uint32") for p in products)
        low0, low1 = (p.astype("uint32") for p in products)
        state = list(map(keep, (high1 ^ state[1] ^ keys[0], low1, high0 ^ state[3] ^ keys[1], low0)))
        keys = [keep(k + tirx.const(w, "uint32")) for k, w in zip(keys, WEYL, strict=True)]
    return code, state


def random_bits(key: te.Tensor, shape: Shape) -> te.Tensor:
    """Words of uint32: element e is word e % 4 of the block with the counter (e // 4, 0, key[2], key[3]), under the
    Philox key (key[0], key[1]). A block is computed once for its four elements."""
    size = math.prod(shape)
    if size == 0:
        return full(shape, 0, "uint32")
    blocks = size // 4

    def body(sources: list[Source], out: Buffer) -> tirx.Stmt:
        given = [sources[0]([i]) for i in range(4)]

        def block(index: Expr, count: int = 4) -> tirx.Stmt:
            counter = [index.astype("uint32"), tirx.const(0, "uint32"), given[2], given[3]]
            code, found = _philox(given[:2], counter)
            stores = [tirx.BufferStore(out, found[i], unravelled(index * 4 + i, shape)) for i in range(count)]
            return sequence([*code, *stores])

        rest = [block(tirx.const(blocks, "int32"), size % 4)] if size % 4 else []
        return sequence([*([loop(blocks, block)] if blocks else []), *rest])

    return program("random_bits", shape, "uint32", [key], body)


def _unit(word: Expr, above: int = 0) -> Expr:
    """(n + above) / 2^24, where n are the upper 24 bits of a word; float32."""
    n = (word >> tirx.const(8, "uint32")).astype("int32") + tirx.const(above, "int32")
    return n.astype("float32") * constant(2.0**-24, "float32")


uniform: Pointwise = elementwise(_unit, "uniform")  # of a word: a number of [0, 1)

# sin(x) = x + x^3 P(x^2) and cos(x) = 1 - x^2 / 2 + x^4 Q(x^2) for |x| <= pi / 4: Cephes' sinf.c
_SIN = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COS = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)


def _cos_turns(name: Name, u: Expr) -> Expr:
    """cos(2 pi u) for u in [0, 1), float32: the quarter turns are counted off exactly."""
    one, half, four, half_pi = (constant(c, "float32") for c in (1, 0.5, 4, np.pi / 2))
    quarters = u * four
    n = name(tirx.nearbyint(quarters))
    x = name((quarters - n) * half_pi)
    z = name(x * x)
    sine, cosine = x + x * z * horner(_SIN, z), one - z * half + z * z * horner(_COS, z)
    return of_quarter(n.astype("int32") + tirx.const(1, "int32"), sine, cosine)


@naming
def _box_muller(name: Name, first: Expr, second: Expr) -> Expr:
    radius = tirx.sqrt(constant(-2, "float32") * log(_unit(first, above=1)))
    return radius * _cos_turns(name, name(_unit(second)))


def normal(bits: te.Tensor) -> te.Tensor:
    """sqrt(-2 log u) cos(2 pi v), u uniform in (0, 1], v in [0, 1), of two words along the first axis, float32:
    G. E. P. Box, M. E. Muller, "A note on the generation of random normal deviates", 1958."""
    shape = shape_of(bits)[1:]
    return te.compute(shape, lambda *index: _box_muller(bits(0, *index), bits(1, *index)), name="normal")


@elementwise
def dropout(v: Expr, bits: Expr, threshold: int, scale: float) -> Expr:
    """v * scale where bits >= threshold, else v * 0."""
    kept, dropped = constant(scale, v.ty), constant(0, v.ty)
    return v * tirx.Select(bits >= tirx.const(threshold, "uint32"), kept, dropped)
