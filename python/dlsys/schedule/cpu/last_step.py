"""The last step of a loop that runs in parallel, in code of its own.

Where panels do not divide the columns of a product, the last one is narrower: loops over columns have a condition, for
which TVM loads and stores element by element. It splits the last step off a serial loop, but not off a parallel one,
and a second loop after that would leave all cores but one idle. So the loop's body becomes `if not the last: ... else:
...`, where the first half needs no condition. Each half has its own arrays, so that the tile stays in registers.
"""

from __future__ import annotations

import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV

from ..common import anew, renamed, rewritten, twin, with_buffers

MARK = "last_step"


def mark(sch: s_tir.Schedule, loop: LoopRV) -> None:
    """Has the last step of a loop be done by a copy of the loop's body."""
    sch.annotate(loop, MARK, 1)


def insert(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with a body for the last step in the loops that were marked."""
    root, own = func.body.block, {}

    def split(loop: tirx.For) -> tirx.For:
        if MARK not in loop.annotations:
            return loop
        written: list[tirx.Buffer] = []
        tvm_ffi.structural_walk(loop.body, (tirx.BufferStore, lambda store: written.append(store.buffer)))
        for buffer in root.alloc_buffers:
            if any(buffer.same_as(one) for one in written):
                own[buffer] = twin(buffer, "last")
        last = renamed(loop.body, {**anew(loop.body), **own})
        body = tirx.IfThenElse(loop.loop_var < int(loop.extent) - 1, loop.body, last)
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body)

    body = rewritten(root.body, tirx.For, split)
    return with_buffers(func, body, own.values()) if own else func
