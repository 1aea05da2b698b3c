"""Formulas that are loops (`compute.loops`) on threads, which share out the outermost that may come in any order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import sym, tirx

from .. import common
from ..codegen import PARALLEL, SERIAL, block_of, sequence, unravelled
from ..common import PARALLEL_WORK, enough, renamed, statements, with_places
from ..loops import around, is_ordered, loops_of, nest_of
from ..stages import with_nests
from ..sums import PARTS
from ..target import Machine, Rule

CHUNK = 64  # columns that a thread adds up: some cache lines of each row


def schedule(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc | None:
    """The formula's loops, shared out. Declines all others."""
    code, parts = loops_of(func), common.least_parts(machine.threads)
    if code is None:
        return None
    big = _work(code) >= PARALLEL_WORK
    code = _exchanged(code, parts if big else 1)
    if big:
        code = _shared(code, max(PARTS, parts))  # those within, if the outermost are fewer steps
    block = block_of(common.blocks_of(func)[0].name_hint, code)
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
    sizes = [int(loop.extent) for loop in loops]
    if math.prod(sizes) < parts and not (own := _shared(body, parts)).same_as(body):
        return around(loops, own)
    shape = sizes[: enough(sizes, parts)]
    if math.prod(shape) == 1:
        return code
    index = tirx.Var("i", "int32")
    names = {loop.loop_var: at for loop, at in zip(loops, unravelled(index, shape), strict=False)}
    return tirx.For(index, 0, math.prod(shape), PARALLEL, renamed(around(loops[len(shape) :], body), names))


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
    """The code with vectors along what it stores: a loop over the last axis around one in order is within it; some
    indices at a time, for threads, if the loops around are fewer parts, or for registers."""
    if isinstance(code, tirx.SeqStmt):
        return tirx.SeqStmt([_exchanged(one, parts) for one in code.seq])
    if not isinstance(code, tirx.For) or is_ordered(code):
        return code
    body, var, width = statements(code.body), code.loop_var, int(code.extent)
    if not any(map(is_ordered, body)) or not all(_is_along(one, var) for one in body):
        return around([code], _exchanged(code.body, -(-parts // width)))
    if width <= CHUNK or (parts == 1 and len(body) == 1):
        return _together(body, var, 0, width)
    chunk = tirx.Var("chunk", "int32")
    extent = CHUNK if width % CHUNK == 0 else tirx.min(CHUNK, width - chunk * CHUNK)
    return tirx.For(chunk, 0, -(-width // CHUNK), SERIAL, _together(body, var, chunk * CHUNK, extent))


def _is_along(code: tirx.Stmt, var: Any) -> bool:
    """Whether it stores, or is a loop that stores, in registers, or where an index goes along the last axis."""
    if isinstance(code, tirx.For) and is_ordered(code):
        return all(isinstance(one, tirx.BufferStore) and _is_along(one, var) for one in statements(code.body))
    if not isinstance(code, tirx.BufferStore):
        return isinstance(code, tirx.AllocBuffer)
    if code.buffer.scope() == "local":
        return True
    place = code.indices[-1]
    steps = sym.detect_linear_equation(place, [var])  # none of an index's remainder
    told = any(map(var.same_as, tirx.analysis.undefined_vars(place)))
    return told and (not steps or (isinstance(steps[0], tirx.IntImm) and int(steps[0]) == 1))


def _together(body: Sequence[tirx.Stmt], var: Any, start: Any, count: Any) -> tirx.Stmt:
    """A loop's statements, each for `count` indices, from `start` on, before the next one: in a statement that is a
    loop, within it. Each index has registers of its own."""
    width, own = count if isinstance(count, int) else CHUNK, dict[Any, Any]()

    def each(code: tirx.Stmt) -> tirx.Stmt:
        index = tirx.Var(var.name, "int32")

        def place(buffer: Any, indices: list[Any]) -> tuple[Any, list[Any]]:
            return (own[buffer], [indices[0] * width + index]) if buffer in own else (buffer, indices)

        return tirx.For(index, 0, count, SERIAL, renamed(with_places(code, place), {var: start + index}))

    def one(code: tirx.Stmt) -> tirx.Stmt:
        if isinstance(code, tirx.AllocBuffer):
            size = int(code.buffer.shape[0]) * width
            own[code.buffer] = tirx.decl_buffer((size,), str(code.buffer.dtype), code.buffer.name, scope="local")
            return tirx.AllocBuffer(own[code.buffer])
        if isinstance(code, tirx.For):
            return tirx.For(code.loop_var, 0, code.extent, SERIAL, each(code.body))
        return each(code)

    return sequence([one(code) for code in body])


RULE = Rule("loops", "llvm", schedule, sums=False)
