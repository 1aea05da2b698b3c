"""Products over a long k, in blocks of it: each is summed in accumulators of its own, which are added to the tile.

One accumulator for k = 100,000 terms loses four digits (see `blocked`, where other sums are cut). A schedule marks one
of the loops over k (`mark`); `insert` cuts it.

Gradients of weights, A^T B, become sums of products over blocks of k (`split`). A tile reads a cache line of such an A
in each step of k. The lines of some hundred steps stay in L1 until the next panel of B needs them; those of thousands
would be fetched anew for each panel.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV

from ..common import anew, near_divisor, renamed, rewritten, twin, with_buffers

MARK = "blocks"
TERMS = 512  # of k in a block: to add up a tile of 12 x 2 vectors takes some 40 cycles, so many steps of k 6,000


def mark_loop(sch: s_tir.Schedule, loop: LoopRV, extent: int, terms: int) -> None:
    """Has a loop of this extent cut, each of whose steps adds so many terms to an accumulator."""
    if extent * terms > 2 * TERMS:
        most = max(TERMS // terms, 1)
        sch.annotate(loop, MARK, near_divisor(extent, most) or most)


def insert(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with blocks in the loops that were marked."""
    made: dict[Any, Any] = {}  # accumulators of a block, by those of the tile

    def with_blocks(statements: tirx.SeqStmt) -> tirx.Stmt:
        found, clear = [], None
        for statement in statements.seq:
            block = _block(statement)
            if block is not None and block.name_hint.endswith("_init"):
                clear = statement
            elif clear is not None:
                statement = rewritten(statement, tirx.For, partial(_cut, clear, made))
            found.append(statement)
        return tirx.SeqStmt(found)

    body = rewritten(func.body.block.body, tirx.SeqStmt, with_blocks)
    return with_buffers(func, body, made.values()) if made else func


def _block(nest: tirx.Stmt) -> s_tir.SBlock | None:
    """The block within loops."""
    while isinstance(nest, tirx.For):
        nest = nest.body
    return nest.block if isinstance(nest, s_tir.SBlockRealize) else None


def _cut(clear: tirx.Stmt, made: dict[Any, Any], loop: tirx.For) -> tirx.Stmt:
    """A loop over k in blocks, if it is marked; `clear` are the loops that set a tile's accumulators to zero."""
    if MARK not in loop.annotations:
        return loop
    extent = int(loop.extent)
    length = min(int(loop.annotations[MARK]), extent)
    rest = {name: value for name, value in loop.annotations.items() if name != MARK}
    tile = _block(clear).body.buffer  # type: ignore[union-attr]
    if tile not in made:
        made[tile] = twin(tile, "block")
    own = made[tile]
    number, k = tirx.Var("block", "int32"), tirx.Var(loop.loop_var.name, "int32")
    steps = length if extent % length == 0 else tirx.min(length, extent - number * length)
    body = renamed(loop.body, {loop.loop_var: number * length + k, tile: own})
    inner = tirx.For(k, loop.min, steps, loop.kind, body, annotations=rest)
    parts = [renamed(clear, {tile: own, **anew(clear)}), inner, _added(clear, tile, own)]
    return tirx.For(number, 0, -(-extent // length), tirx.ForKind.SERIAL, tirx.SeqStmt(parts))


def _added(clear: tirx.Stmt, tile: Any, own: Any) -> tirx.Stmt:
    """The loops of `clear`, in which the block's accumulators are added to the tile's."""

    def with_sum(block: s_tir.SBlock) -> s_tir.SBlock:
        at, region = block.body.indices, block.writes[0].region
        both = tirx.BufferLoad(tile, at) + tirx.BufferLoad(own, at)
        reads = [tirx.BufferRegion(buffer, region) for buffer in (tile, own)]
        name = block.name_hint.removesuffix("_init") + "_blocks"
        return s_tir.SBlock(block.iter_vars, reads, block.writes, name, tirx.BufferStore(tile, both, at))

    return rewritten(renamed(clear, anew(clear)), s_tir.SBlock, with_sum)
