"""Formulas that are loops (`compute.loops`): a thread for each index of the loops that may run in any order.

Where such loops hold several statements, each is a launch of its own, over the same indices. A loop whose steps must
follow each other (`compute.loops.ORDERED`) runs within a thread, inside of the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import ir, s_tir, sym, tirx

from ...compute.loops import ORDERED
from .. import common
from ..codegen import sequence, unravelled
from ..common import renamed
from ..stages import Expr, with_nests
from ..target import Machine, Rule
from .threads import BLOCK, ceil_div, guarded, index, launch

Loops = list[tuple[tirx.For, int]]
"""Loops, and the most steps that each takes."""


def schedule(func: tirx.PrimFunc, machine: Machine) -> s_tir.Schedule | None:
    """The launches of a function that is one block of loops. Declines all others."""
    sch = common.start(func)
    blocks = common.stages(sch)
    if len(blocks) != 1 or sch.get(blocks[0]).iter_vars or sch.get_loops(blocks[0]):
        return None
    block = sch.get(blocks[0])
    found = [_launch(block.name_hint, loops, body) for loops, body in _parts(block.body, [], sym.Analyzer())]
    if scratch := list(sch.get(sch.get_sblock("root")).alloc_buffers):
        found.insert(0, _touch(scratch))
    return common.start(with_nests(func, found))


def _touch(scratch: Sequence[Any]) -> tirx.Stmt:
    """A launch that stores into each array. TVM allocates an array where all its uses are: those of one launch alone
    within it, where there is no memory of the device to be had."""
    stores = [tirx.BufferStore(one, tirx.const(0, str(one.dtype)), [0] * len(one.shape)) for one in scratch]
    return launch("touch", [(index("block"), 1)], [(index("thread"), 1)], sequence(stores))


def _parts(code: tirx.Stmt, around: Loops, analyzer: sym.Analyzer) -> list[tuple[Loops, tirx.Stmt]]:
    """The launches of a statement within loops: over which loops, and what a thread does."""
    if isinstance(code, tirx.For) and ORDERED not in code.annotations:
        most = int(analyzer.const_int_bound(code.extent).max_value)
        analyzer.bind(code.loop_var, ir.Range(0, most))
        return _parts(code.body, [*around, (code, most)], analyzer)
    if isinstance(code, tirx.SeqStmt) and all(isinstance(one, (tirx.For, tirx.BufferStore)) for one in code.seq):
        return [part for one in code.seq for part in _parts(one, around, analyzer)]
    if isinstance(code, tirx.For):
        inner = _parts(code.body, [], analyzer)
        if len(inner) == 1:
            loops, body = inner[0]
            ordered = tirx.For(code.loop_var, 0, code.extent, tirx.ForKind.SERIAL, body)
            return [([*around, *loops], ordered)]
    return [(around, code)]


def _launch(name: str, loops: Loops, body: tirx.Stmt) -> tirx.Stmt:
    """The launch of a thread's code, over loops."""
    shape = [most for _, most in loops]
    total = math.prod(shape)
    threads = min(BLOCK, total)
    block, thread = index("block"), index("thread")
    number = block * threads + thread
    names: dict[Any, Expr] = {}
    guards: list[Expr] = [number < total] if total % threads else []
    for (loop, most), place in zip(loops, unravelled(number, shape), strict=True):
        extent = renamed(loop.extent, names)
        names[loop.loop_var] = place
        if not isinstance(extent, tirx.IntImm) or int(extent) != most:
            guards.append(place < extent)
    body = guarded(guards[::-1], renamed(body, {**common.anew(body), **names}))
    return launch(name, [(block, ceil_div(total, threads))], [(thread, threads)], body)


RULE = Rule("loops", "cuda", schedule, sums=False)
