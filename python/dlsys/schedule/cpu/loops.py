"""Formulas that are loops (`compute.loops`) on threads, which share out the outermost that may come in any order."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tvm_ffi
from tvm import s_tir, sym, tirx

from ...compute.loops import COLUMNS
from .. import common
from ..codegen import block_of, unravelled
from ..common import PARALLEL_WORK, renamed, rewritten
from ..loops import is_ordered, loops_of, with_little_memory
from ..stages import with_nests
from ..target import Machine, Rule
from .sharing import least_parts

PARTS = 16  # steps that threads share out, at least, if those within can be shared out instead
CHUNK = 64  # columns that a thread adds up: some cache lines of each row


def schedule(func: tirx.PrimFunc, machine: Machine) -> s_tir.Schedule | None:
    """The formula's loops, shared out. Declines all others."""
    if loops_of(func) is None:
        return None
    (code, memory), parts = with_little_memory(func), least_parts(machine)
    if _work(code) >= PARALLEL_WORK:
        code = _shared(_in_chunks(code, parts), max(PARTS, parts))
    block = block_of(common.blocks_of(func)[0].name_hint, code, whole=True)
    return common.start(with_nests(func, [block], memory))


def _shared(code: tirx.Stmt, parts: int) -> tirx.Stmt:
    """The code with what is work enough shared out to threads, in so many parts if there are as many."""
    if isinstance(code, tirx.SeqStmt) and not any(map(is_ordered, code.seq)):
        found = [_shared(one, parts) for one in code.seq]
        return code if all(map(tirx.Stmt.same_as, found, code.seq)) else tirx.SeqStmt(found)
    if not isinstance(code, tirx.For) or is_ordered(code) or _work(code) < PARALLEL_WORK:
        return code
    if not isinstance(code.extent, tirx.IntImm):  # a part of what is shared out around it
        return code
    loops, body = [code], code.body
    while isinstance(body, tirx.For) and not is_ordered(body):
        loops, body = [*loops, body], body.body
    if len(loops) > 1 and not _has_loops(body):  # the last is for vectors
        body = loops.pop()
    if math.prod(int(loop.extent) for loop in loops) < parts and not (own := _shared(body, parts)).same_as(body):
        return _around(loops, own)
    count = 1
    while count < len(loops) and math.prod(int(loop.extent) for loop in loops[:count]) < parts:
        count += 1
    shape = [int(loop.extent) for loop in loops[:count]]
    if math.prod(shape) == 1:
        return code
    index = tirx.Var("i", "int32")
    names = {loop.loop_var: at for loop, at in zip(loops, unravelled(index, shape), strict=False)}
    shared = renamed(_around(loops[count:], body), names)
    return tirx.For(index, 0, math.prod(shape), tirx.ForKind.PARALLEL, shared)


def _around(loops: Sequence[tirx.For], body: tirx.Stmt) -> tirx.Stmt:
    """The loops around another body."""
    for loop in reversed(loops):
        body = tirx.For(loop.loop_var, 0, loop.extent, loop.kind, body, None, loop.annotations)
    return body


def _has_loops(code: tirx.Stmt) -> bool:
    found: list[tirx.For] = []
    tvm_ffi.structural_walk(code, (tirx.For, found.append))
    return bool(found)


def _work(code: tirx.Stmt) -> int:
    """Elements that the code stores, about: those in registers do not count."""
    if isinstance(code, tirx.For):
        return int(sym.Analyzer().const_int_bound(code.extent).max_value) * _work(code.body)
    if isinstance(code, tirx.SeqStmt):
        return sum(map(_work, code.seq))
    if isinstance(code, tirx.IfThenElse):
        return _work(code.then_case)
    return int(isinstance(code, tirx.BufferStore) and code.buffer.scope() != "local")


def _in_chunks(code: tirx.Stmt, parts: int) -> tirx.Stmt:
    """The code with the columns of each row, where it marks them, some at a time for all rows, if it has fewer parts
    else."""
    marked: list[tirx.For] = []
    tvm_ffi.structural_walk(code, (tirx.For, lambda loop: marked.append(loop) if COLUMNS in loop.annotations else None))
    outer = [code] if isinstance(code, tirx.For) and COLUMNS not in code.annotations else []
    enough = parts <= (int(outer[0].extent) if outer else 1)
    if not marked or enough or (width := int(marked[0].extent)) <= CHUNK:
        return code
    chunk = tirx.Var("chunk", "int32")
    first = chunk * CHUNK
    extent = CHUNK if width % CHUNK == 0 else tirx.min(CHUNK, width - first)

    def cut(loop: tirx.For) -> tirx.For:
        if COLUMNS not in loop.annotations:
            return loop
        body = renamed(loop.body, {loop.loop_var: first + loop.loop_var})
        return tirx.For(loop.loop_var, 0, extent, loop.kind, body)

    body = rewritten(code.body if outer else code, tirx.For, cut)
    return _around(outer, tirx.For(chunk, 0, -(-width // CHUNK), tirx.ForKind.SERIAL, body))


RULE = Rule("loops", "llvm", schedule, sums=False)
