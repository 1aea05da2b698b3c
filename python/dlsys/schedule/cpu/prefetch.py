"""Memory fetched ahead of its use, where the processor does not foresee it: a tile's rows, which lie apart.

A schedule marks the loop over k of a product (`mark`); `insert` puts one prefetch into each of its steps. What is
fetched is at the address of the operand's load, so many steps on; beyond the end of an array that is harmless,
since a prefetch never faults.
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV

from ..common import renamed, rewritten

MARK, PANEL = "prefetch", "prefetch_panel"
COLD = 256 * 1024  # elements of a B that is not in the caches when its turn comes
STEPS = 40  # of k ahead: some 250 ns, the latency of memory, at 6 ns a step
INTO_L2 = 2  # LLVM's locality; into L1 was 4 % slower, where the panel of B lies
DATA_CACHE = 1


def mark(sch: s_tir.Schedule, loop: LoopRV, operand: int, rows: int) -> None:
    """Has each step of a loop over k prefetch a part of A, which is the product's factor `operand`.

    `rows` is the number of a tile's rows where A is contiguous along k: its steps together fetch the next tile. Where A
    is contiguous along its rows it is 0: each step fetches what a later one reads.
    """
    sch.annotate(loop, MARK, [operand, rows])


def mark_next_panel(sch: s_tir.Schedule, loop: LoopRV, operand: int, tile: tuple[int, int], m: int, k: int) -> None:
    """Has the steps of a loop over k together fetch the next panel of B, which is the product's factor `operand`.

    A panel comes from memory for the first tile of rows and from L2 for the others: while these run the memory is idle.
    `tile` is a tile's rows and the panels' columns, `m` the product's rows.
    """
    sch.annotate(loop, PANEL, [operand, *tile, m, k])


def insert(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with prefetches in the loops that were marked."""
    return func.with_body(rewritten(func.body, tirx.For, _with_prefetch))


def _with_prefetch(loop: tirx.For) -> tirx.For:
    """A marked loop that asks for what it reads some steps later."""
    name = next((name for name in (MARK, PANEL) if name in loop.annotations), None)
    if name is None:
        return loop
    operand, rows, *of_panel = map(int, loop.annotations[name])
    rest = {key: value for key, value in loop.annotations.items() if key != name}
    first: dict[Any, Any] = {}  # of the loops over the tile
    inner = loop.body
    while isinstance(inner, tirx.For):
        first[inner.loop_var] = tirx.IntImm("int32", rows if not first and name == MARK else 0)
        inner = inner.body
    values = dict(zip((v.var for v in inner.block.iter_vars), inner.iter_values, strict=True))
    product = inner.block.body.value.b
    load = (product.a, product.b)[operand]
    k = loop.loop_var
    if name == PANEL:
        columns, m, terms = of_panel
        row, column, term = (renamed(value, first) for value in list(values.values())[-3:])
        step = tirx.floordiv(row, rows) * terms + term
        element = tirx.floordiv(step * columns, -(-m // rows))
        index = (tirx.floordiv(column, columns) + 1, *(0,) * (len(load.indices) - 2), element)
    else:
        first[k] = k * rows if rows else k + STEPS
        index = tuple(renamed(renamed(i, values), first) for i in load.indices)
    at = tirx.address_of(load.source[index])
    numbers = [tirx.IntImm("int32", number) for number in (0, INTO_L2, DATA_CACHE)]  # 0: to be read
    fetch = tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", at, *numbers))
    return tirx.For(k, loop.min, loop.extent, loop.kind, tirx.SeqStmt([fetch, loop.body]), annotations=rest)
