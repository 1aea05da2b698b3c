"""Random bits from a counter, see `philox`, and the distributions that are computed from them."""

from __future__ import annotations

import math

import numpy as np
from tvm import te, tirx

from .base import Expr, Pointwise, Shape, constant, elementwise, full, shape_of
from .elementary import Name, horner, log, naming
from .loops import Buffer, Source, Words, loop, program, sequence, unravelled
from .philox import philox
from .trigonometry import of_quarter


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
            code = list[tirx.Stmt]()

            def keep(value: Expr) -> Expr:
                """The value in a register."""
                word = Words(1, str(value.ty), "word")
                code.extend([word.made, word.put(0, value)])
                return word[0]

            found = philox(counter, given[:2], tirx.const, keep)
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
