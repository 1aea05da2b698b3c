"""Formulas that are loops (`compute.loops`), as both targets read them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, sym, tirx

from .common import found_in, linear, places_of, reads
from .stages import loads_of


def loops_of(func: tirx.PrimFunc) -> tirx.Stmt | None:
    """The loops of a function that is one formula of them; None of others."""
    code = func.body
    while isinstance(code, s_tir.SBlockRealize) and not code.block.iter_vars:  # one within another
        code = code.block.body
    return None if found_in(code, s_tir.SBlock) or isinstance(code, s_tir.SBlockRealize) else code


def is_ordered(code: tirx.Stmt) -> bool:
    """Whether it is a loop whose indices must come one after the other: it reads what it stored at another index (a
    dependence that the loop carries: Allen and Kennedy, Optimizing Compilers for Modern Architectures, chapter 2)."""
    if not isinstance(code, tirx.For):
        return False
    stores = {one.buffer for one in found_in(code.body, tirx.BufferStore)}
    written = stores - {made.buffer for made in found_in(code.body, tirx.AllocBuffer)}  # an index's own registers
    places: dict[Any, list[Any]] = {load.source: [] for load in loads_of([code.body]) if load.source in written}
    for buffer, place in places_of(code.body):
        if buffer in places:
            places[buffer].append(list(place))
    return not all(_has_own_elements(code, buffer.shape, found) for buffer, found in places.items())


def _has_own_elements(loop: tirx.For, shape: Any, places: list[list[Any]]) -> bool:
    """Whether the places that a loop's body reads and stores in an array are other ones at each index: along some axes
    all have the same expression of the index, in which loops within add less than one step of the index does."""
    number, own = tirx.const(0, "int32"), False
    for extent, first, *others in zip(shape, *places, strict=True):
        same = all(tvm_ffi.structural_equal(first, at) for at in others)
        if same and reads(first, loop.loop_var) and not loads_of([first]):
            number, own = number * extent + first, True
    loops, analyzer, most = [loop, *found_in(loop.body, tirx.For)], sym.Analyzer(), list[int]()
    for one in loops:
        most.append(int(analyzer.const_int_bound(one.extent).max_value) - 1)
        analyzer.bind(one.loop_var, ir.Range(0, most[-1] + 1))
    found = linear(analyzer.simplify(number), [one.loop_var for one in loops]) if own else None
    step, *others = map(abs, (0,) if found is None else found[0])
    return step > sum(map(operator.mul, others, most[1:]))


def nest_of(code: tirx.Stmt) -> tuple[list[tirx.For], tirx.Stmt]:
    """Loops around each other whose indices may come in any order, and what is within."""
    loops = list[tirx.For]()
    while isinstance(code, tirx.For) and not is_ordered(code):
        loops, code = [*loops, code], code.body
    return loops, code


def around(loops: Sequence[tirx.For], body: tirx.Stmt) -> tirx.Stmt:
    """The loops around another body."""
    for loop in reversed(loops):
        body = tirx.For(loop.loop_var, 0, loop.extent, loop.kind, body)
    return body
