"""Formulas that are loops (`compute.loops`), as both targets read them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, sym, tirx

from .codegen import array
from .common import mutated
from .stages import loads_of
from .sums import PARTS


def loops_of(func: tirx.PrimFunc) -> tirx.Stmt | None:
    """The loops of a function that is one formula of them; None of others."""
    code = func.body
    while isinstance(code, s_tir.SBlockRealize) and not code.block.iter_vars:  # one within another
        code = code.block.body
    blocks: list[s_tir.SBlock] = []
    tvm_ffi.structural_walk(code, (s_tir.SBlock, blocks.append))
    return None if blocks or isinstance(code, s_tir.SBlockRealize) else code


def is_ordered(code: tirx.Stmt) -> bool:
    """Whether it is a loop whose indices must come one after the other: it reads what it stored at another index (a
    dependence that the loop carries: Allen and Kennedy, Optimizing Compilers for Modern Architectures, chapter 2)."""
    if not isinstance(code, tirx.For):
        return False
    loads: list[Any] = []
    stores: list[tirx.BufferStore] = []
    tvm_ffi.structural_walk(code.body, [(ir.TensorLoad, loads.append), (tirx.BufferStore, stores.append)])
    written = {store.buffer for store in stores if store.buffer.scope() != "local"}  # registers are an index's own
    places: dict[Any, list[Any]] = {load.source: [] for load in loads if load.source in written}
    for buffer, place in [*((load.source, load.indices) for load in loads), *((s.buffer, s.indices) for s in stores)]:
        if buffer in places:
            places[buffer].append(list(place))
    return not all(_has_own_elements(code, buffer.shape, found) for buffer, found in places.items())


def _has_own_elements(loop: tirx.For, shape: Any, places: list[list[Any]]) -> bool:
    """Whether the places that a loop's body reads and stores in an array are other ones at each index: along some axes
    all have the same expression of the index, in which loops within add less than one step of the index does."""
    number, own = tirx.const(0, "int32"), False
    for extent, first, *others in zip(shape, *places, strict=True):
        told = any(loop.loop_var.same_as(var) for var in tirx.analysis.undefined_vars(first))
        if told and not loads_of([first]) and all(tvm_ffi.structural_equal(first, at) for at in others):
            number, own = number * extent + first, True
    if not own:
        return False
    within: list[tirx.For] = []
    tvm_ffi.structural_walk(loop.body, (tirx.For, within.append))
    analyzer, most = sym.Analyzer(), list[int]()
    for one in (loop, *within):
        most.append(int(analyzer.const_int_bound(one.extent).max_value) - 1)
        analyzer.bind(one.loop_var, ir.Range(0, most[-1] + 1))
    found = sym.detect_linear_equation(analyzer.simplify(number), [loop.loop_var, *(one.loop_var for one in within)])
    if len(found) != len(most) + 1 or not all(isinstance(step, tirx.IntImm) for step in found[:-1]):
        return False
    step, *others = (abs(int(one)) for one in found[:-1])
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


def with_little_memory(func: tirx.PrimFunc) -> tuple[tirx.Stmt, list[ir.Var]]:
    """The formula's loops, and the arrays that they work in, which have memory for PARTS steps of the outermost loop at
    most, where each step has its own: steps that follow each other have the same."""
    outer, memory = loops_of(func), list(func.body.block.alloc_buffers)
    assert outer is not None
    if not memory or not isinstance(outer, tirx.For) or (steps := int(outer.extent)) <= PARTS:
        return outer, memory
    part, step = tirx.Var("part", "int32"), tirx.Var("step", "int32")
    each = -(-steps // PARTS)
    number, known, own = part * each + step, set(memory), dict[Any, Any]()

    def smaller(item: tirx.BufferStore) -> None:
        if item.buffer in known:
            pairs = zip(item.buffer.shape, item.indices, strict=True)
            shape = [PARTS if at.same_as(outer.loop_var) else extent for extent, at in pairs]
            own[item.buffer] = array(shape, item.buffer.dtype, item.buffer.name)

    def places(indices: Any, mutator: Any) -> list[Any]:
        return [part if at.same_as(outer.loop_var) else mutator.mutate(at) for at in indices]

    def load(item: ir.TensorLoad, mutator: Any) -> Any:
        if item.source not in own:
            return mutator.default_mutate(item)
        return tirx.BufferLoad(own[item.source], places(item.indices, mutator))

    def store(item: tirx.BufferStore, mutator: Any) -> Any:
        if item.buffer not in own:
            return mutator.default_mutate(item)
        return tirx.BufferStore(own[item.buffer], mutator.mutate(item.value), places(item.indices, mutator))

    def var(item: ir.Var, _: Any) -> Any:
        return number if item.same_as(outer.loop_var) else item

    tvm_ffi.structural_walk(outer.body, (tirx.BufferStore, smaller))
    code = mutated(outer.body, {ir.TensorLoad: load, tirx.BufferStore: store, ir.Var: var})
    if steps % PARTS:
        code = tirx.IfThenElse(number < steps, code, None)
    serial = tirx.ForKind.SERIAL
    within = tirx.For(step, 0, each, serial, code)
    return tirx.For(part, 0, PARTS, serial, within), [own[one] for one in memory]
