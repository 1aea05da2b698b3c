"""Formulas that are loops (`compute.loops`) on threads, which share out the outermost that may come in any order."""

from __future__ import annotations

import math
from typing import Any

from tvm import sym, tirx

from .. import common
from ..codegen import block_of, unravelled
from ..common import PARALLEL_WORK, renamed
from ..loops import around, is_ordered, loops_of, nest_of, with_little_memory
from ..stages import with_nests
from ..target import Machine, Rule
from .tiles import least_parts

PARTS = 16  # steps that threads share out, at least, if those within can be shared out instead
CHUNK = 64  # columns that a thread adds up: some cache lines of each row


def schedule(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc | None:
    """The formula's loops, shared out. Declines all others."""
    if loops_of(func) is None:
        return None
    (code, _), parts = with_little_memory(func), least_parts(machine)
    big = _work(code) >= PARALLEL_WORK
    code = _exchanged(code, parts if big else 1)
    if big:
        code = _shared(code, max(PARTS, parts))
    block = block_of(common.blocks_of(func)[0].name_hint, code, whole=True)
    return with_nests(func, [block])


def _shared(code: tirx.Stmt, parts: int) -> tirx.Stmt:
    """The code with what is work enough shared out to threads, in so many parts if there are as many."""
    if isinstance(code, tirx.SeqStmt) and not any(map(is_ordered, code.seq)):
        found = [_shared(one, parts) for one in code.seq]
        return code if all(map(tirx.Stmt.same_as, found, code.seq)) else tirx.SeqStmt(found)
    if not isinstance(code, tirx.For) or is_ordered(code) or _work(code) < PARALLEL_WORK:
        return code
    if not isinstance(code.extent, tirx.IntImm):  # a part of what is shared out around it
        return code
    loops, body = nest_of(code)
    if len(loops) > 1 and not common.found_in(body, tirx.For):  # the last is for vectors
        body = loops.pop()
    if math.prod(int(loop.extent) for loop in loops) < parts and not (own := _shared(body, parts)).same_as(body):
        return around(loops, own)
    count = 1
    while count < len(loops) and math.prod(int(loop.extent) for loop in loops[:count]) < parts:
        count += 1
    shape = [int(loop.extent) for loop in loops[:count]]
    if math.prod(shape) == 1:
        return code
    index = tirx.Var("i", "int32")
    names = {loop.loop_var: at for loop, at in zip(loops, unravelled(index, shape), strict=False)}
    shared = renamed(around(loops[count:], body), names)
    return tirx.For(index, 0, math.prod(shape), tirx.ForKind.PARALLEL, shared)


def _work(code: tirx.Stmt) -> int:
    """Elements that the code stores, about: those in registers do not count."""
    if isinstance(code, tirx.For):
        return int(sym.Analyzer().const_int_bound(code.extent).max_value) * _work(code.body)
    if isinstance(code, tirx.SeqStmt):
        return sum(map(_work, code.seq))
    if isinstance(code, tirx.IfThenElse):
        return _work(code.then_case)
    return int(isinstance(code, tirx.BufferStore) and code.buffer.scope() != "local")


def _exchanged(code: tirx.Stmt, parts: int) -> tirx.Stmt:
    """The code with vectors along what it stores: a loop over the last axis that is around one whose indices must come
    in order is within it; some indices at a time, for threads, if the loops around are fewer parts."""
    if isinstance(code, tirx.SeqStmt):
        return tirx.SeqStmt([_exchanged(one, parts) for one in code.seq])
    if not isinstance(code, tirx.For) or is_ordered(code):
        return code
    if not is_ordered(code.body) or not _along(code):
        return around([code], _exchanged(code.body, -(-parts // int(code.extent))))
    var, width, ordered, outer = code.loop_var, int(code.extent), code.body, list[tirx.For]()
    extent: Any = width
    if parts > 1 and width > CHUNK:
        chunk = tirx.Var("chunk", "int32")
        outer = [tirx.For(chunk, 0, -(-width // CHUNK), tirx.ForKind.SERIAL, ordered)]
        extent = CHUNK if width % CHUNK == 0 else tirx.min(CHUNK, width - chunk * CHUNK)
        ordered = renamed(ordered, {var: chunk * CHUNK + var})
    return around([*outer, ordered], tirx.For(var, 0, extent, tirx.ForKind.SERIAL, ordered.body))


def _along(loop: tirx.For) -> bool:
    """Whether the loop's index goes along the last axis of what a single store within stores."""
    inner = loop.body.body
    return isinstance(inner, tirx.BufferStore) and common.reads(inner.indices[-1], loop.loop_var)


RULE = Rule("loops", "llvm", schedule, sums=False)
