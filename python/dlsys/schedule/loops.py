"""Formulas that are loops (`compute.loops`), as both targets read them."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx

from ..compute.loops import ORDERED
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
    """Whether the indices of a loop must come one after the other."""
    return isinstance(code, tirx.For) and ORDERED in code.annotations


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
            own[item.buffer] = tirx.decl_buffer(
                shape, str(item.buffer.dtype), item.buffer.name, data_alignment=4, layout=None
            )

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
    code = tvm_ffi.structural_mutate(
        outer.body, [(ir.TensorLoad, load), (tirx.BufferStore, store), (ir.Var, var)]
    )
    if steps % PARTS:
        code = tirx.IfThenElse(number < steps, code, None)
    serial = tirx.ForKind.SERIAL
    within = tirx.For(step, 0, each, serial, code, None, {ORDERED: True})
    return tirx.For(part, 0, PARTS, serial, within), [own[array] for array in memory]
