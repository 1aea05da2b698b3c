"""Formulas that are loops (`compute.loops`): a thread for each index of the loops that may run in any order.

Where such loops hold several statements, each is a launch of its own, over the same indices. A loop whose steps must
follow each other runs within a thread, inside of the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import ir, sym, tirx

from .. import common
from ..codegen import array, sequence, unravelled
from ..common import renamed, with_places
from ..loops import around, is_ordered, loops_of, nest_of
from ..stages import Expr, inlined, with_nests
from ..target import Machine, Rule
from .threads import ceil_div, guarded, launch_over

Loops = list[tuple[tirx.For, int]]
"""Loops, and the most steps that each takes."""


def schedule(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc | None:
    """The launches of a function that is one block of loops. Declines all others."""
    if (code := loops_of(func)) is None:
        return None
    memory = list(func.body.block.alloc_buffers)
    if not memory:
        code, memory = _in_parts(code)
    name = common.blocks_of(func)[0].name_hint
    found = [launch_of(name, loops, body) for loops, body in _parts(code, [], sym.Analyzer())]
    if memory:
        found.insert(0, _touch(memory))
    return with_nests(func, found)


def _in_parts(code: tirx.Stmt) -> tuple[tirx.Stmt, list[ir.Var]]:
    """Sums of rows at places that data tell (`compute.loops.scatter_add`), of parts of the rows side by side, each in a
    copy of the result, and the sum of the copies; and their array. Others, and few rows, as they are."""
    outer, body = nest_of(code)
    if not isinstance(body, tirx.SeqStmt) or len(body.seq) != 2:
        return code, []
    clear, (columns, add) = body.seq[0], nest_of(body.seq[1])
    if not is_ordered(add) or not isinstance(store := add.body, tirx.BufferStore) or not _adds(store):
        return code, []
    out, elements, steps = store.buffer, math.prod(map(int, store.buffer.shape)), int(add.extent)
    parts = min(math.isqrt(steps), math.prod(int(loop.extent) for loop in [*outer, *columns]) * steps // elements)
    if parts < 2:
        return code, []
    copies = array([parts, *out.shape], out.dtype, "copies")
    part, at, serial = tirx.Var("part", "int32"), tirx.Var("at", "int32"), tirx.ForKind.SERIAL
    each = ceil_div(steps, parts)

    def of_part(code: tirx.Stmt) -> tirx.Stmt:
        """A statement, with the part's copy in place of the result."""
        return with_places(code, lambda x, at: (copies, [part, *at]) if x.same_as(out) else (x, at))

    step = tirx.Var("step", "int32")
    extent = each if steps % each == 0 else tirx.min(each, tirx.max(steps - part * each, 0))
    own = tirx.For(step, 0, extent, serial, renamed(of_part(store), {add.loop_var: part * each + step}))
    both = tirx.SeqStmt([of_part(clear), around(columns, own)])
    adding = around(outer, tirx.For(part, 0, parts, serial, both))
    place = unravelled(at, out.shape)
    number = tirx.Var("number", "int32")
    total = tirx.BufferLoad(out, place) + tirx.BufferLoad(copies, [number + 1, *place])
    others = tirx.For(number, 0, parts - 1, serial, tirx.BufferStore(out, total, place))
    first = tirx.BufferStore(out, tirx.BufferLoad(copies, [0, *place]), place)
    return sequence([adding, tirx.For(at, 0, elements, serial, tirx.SeqStmt([first, others]))]), [copies]


def _adds(store: tirx.BufferStore) -> bool:
    """Whether a store adds something to the element that it overwrites."""
    value = store.value
    own = isinstance(value, tirx.Add) and isinstance(value.a, ir.TensorLoad) and value.a.source.same_as(store.buffer)
    return own and all(tvm_ffi.structural_equal(*pair) for pair in zip(value.a.indices, store.indices, strict=True))


def _touch(scratch: Sequence[Any]) -> tirx.Stmt:
    """A launch that stores into each array. TVM allocates an array where all its uses are: those of one launch alone
    within it, where there is no memory of the device to be had."""
    stores = [tirx.BufferStore(one, tirx.const(0, str(one.dtype)), [0] * len(one.shape)) for one in scratch]
    return launch_over("touch", [(1, 1, lambda first: sequence(stores))])


def _parts(code: tirx.Stmt, around: Loops, analyzer: sym.Analyzer) -> list[tuple[Loops, tirx.Stmt]]:
    """The launches of a statement within loops: over which loops, and what a thread does."""
    if isinstance(code, tirx.For) and not is_ordered(code):
        most = int(analyzer.const_int_bound(code.extent).max_value)
        analyzer.bind(code.loop_var, ir.Range(0, most))
        return _parts(code.body, [*around, (code, most)], analyzer)
    if isinstance(code, tirx.SeqStmt) and all(isinstance(one, (tirx.For, tirx.BufferStore)) for one in code.seq):
        return [part for one in code.seq for part in _parts(one, around, analyzer)]
    inner = _parts(code.body, [], analyzer) if isinstance(code, tirx.For) else []
    if len(inner) == 1:
        loops, body = inner[0]
        around, code = [*around, *loops], tirx.For(code.loop_var, 0, code.extent, tirx.ForKind.SERIAL, body)
    return [(around, code)]


def launch_of(name: str, loops: Loops, body: tirx.Stmt) -> tirx.Stmt:
    """The launch of a thread's code, over loops."""
    shape = [most for _, most in loops]

    def code(number: Expr) -> tirx.Stmt:
        names, guards = dict[Any, Expr](), list[Expr]()
        for (loop, most), place in zip(loops, unravelled(number, shape), strict=True):
            extent = renamed(loop.extent, names)
            names[loop.loop_var] = place
            if not isinstance(extent, tirx.IntImm) or int(extent) != most:
                guards.append(place < extent)
        return guarded(guards, renamed(body, names))

    return launch_over(name, [(math.prod(shape), 1, code)])


def _alone(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc:
    """Every stage of a function by itself: a thread for each element, which adds up the terms of its sum."""
    stages, found = inlined(func), list[tirx.Stmt]()
    for block in common.blocks_of(func) if stages is None else [one.block for one in stages]:
        own = [tirx.For(v.var, 0, v.dom.extent, tirx.ForKind.SERIAL, block.body) for v in block.iter_vars]
        kinds = [v.iter_type == tirx.IterVar.DataPar for v in block.iter_vars]
        spatial, terms = ([loop for loop, kind in zip(own, kinds, strict=True) if kind == one] for one in (True, False))
        code = sequence([*([] if block.init is None else [block.init]), around(terms, block.body)])
        found.append(launch_of(block.name_hint, [(loop, int(loop.extent)) for loop in spatial], code))
    return with_nests(func, found)


RULE = Rule("loops", "cuda", schedule, sums=False)
FALLBACK = Rule("fallback", "cuda", _alone)
"""What always works."""
