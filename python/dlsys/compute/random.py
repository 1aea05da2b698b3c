"""Random bits from a counter, see `philox`."""

from __future__ import annotations

import math

from tvm import te, tirx

from .base import Expr, Shape, full
from .loops import Buffer, Source, Word, loop, program, sequence, unravelled
from .philox import philox


def random_bits(key: te.Tensor, shape: Shape) -> te.Tensor:
    """Word of uint32: element e is word e % 4 of the block with the counter (e // 4, 0, key[2], key[3]), under the
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
                word = Word(str(value.ty))
                code.extend([word.made, word.put(value)])
                return word.value

            found = philox(counter, given[:2], tirx.const, keep)
            stores = [tirx.BufferStore(out, found[i], unravelled(index * 4 + i, shape)) for i in range(count)]
            return sequence([*code, *stores])

        rest = [block(tirx.const(blocks, "int32"), size % 4)] if size % 4 else []
        return sequence([*([loop(blocks, block)] if blocks else []), *rest])

    return program("random_bits", shape, "uint32", [key], body)
