"""Stages that share rows (softmax, norms, cross-entropy and their gradients): one launch, a warp or a block for a row.

A thread holds every so many-th vector of the row in registers, from the first stage to the last, so memory is read
once; sums go through the warp's registers, and of a block through shared memory. What is one number a row, all of its
threads compute.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, s_tir, tirx

from .. import common
from ..codegen import sequence, unravelled
from ..common import renamed
from ..rows import Rows, find_rows
from ..stages import Expr, Stage, share, with_nests
from ..target import Machine, Rule
from . import reduction
from .threads import (
    BLOCK,
    MULTIPROCESSORS,
    WARP,
    ThreadCode,
    all_of_block,
    all_of_warp,
    ceil_div,
    folded,
    index,
    lanes,
    launch,
    local,
)

MOST_OF_WARP = 16  # elements of a row that a thread of a warp holds; longer rows are a block's
MOST = 32  # and of a block
MOST_THREADS = 512


def schedule(func: tirx.PrimFunc, machine: Machine) -> s_tir.Schedule | None:
    """One launch for what runs over rows, then those of what is behind. Declines functions without rows, with one sum
    alone or rows that registers do not hold."""
    func = share(func)
    sch = common.start(func)
    common.inline_spatial(sch)
    func = common.function_of(sch)
    rows = find_rows(func)
    if rows is None or rows.count < 1 or len(rows.stages) < 2 or not rows.fit():
        return None
    threads = _threads(rows.length)
    if threads is None:
        return None
    nest = _Code(func, rows, threads).nest()
    rest, arrays = reduction.nests(rows.rest, [*rows.stages, *rows.rest], set(func.params))
    return common.start(with_nests(func, [nest, *rest], arrays))


def _threads(length: int) -> int | None:
    """The threads that share a row: a warp, or a block of some; None where they cannot hold it."""
    if length <= WARP * MOST_OF_WARP:
        return WARP
    threads = BLOCK
    while threads * MOST_OF_WARP < length and threads < MOST_THREADS:
        threads *= 2
    return threads if threads * MOST >= length else None


class _Code:
    """The code of a thread.

    Attributes:
        width: elements side by side that it holds.
        steps: how many times as many.
    """

    def __init__(self, func: tirx.PrimFunc, rows: Rows, threads: int) -> None:
        self.rows, self.threads = rows, threads
        self.kept = rows.kept(func)
        dtypes = [str(stage.buffer.dtype) for stage in rows.stages]
        dtypes += [str(load.source.dtype) for stage in rows.stages for load in stage.loads()]
        width = lanes(dtypes)
        self.width = width if rows.length % width == 0 and rows.length >= width * threads else 1
        self.steps = ceil_div(rows.length, threads * self.width)
        self.side = BLOCK // WARP if threads == WARP and rows.count >= MULTIPROCESSORS * BLOCK // WARP else 1
        self.block, self.x, self.y = index("block"), index("x"), index("y")
        self.row = unravelled(self.block * self.side + self.y if self.side > 1 else self.block, rows.shape)
        self.long = {stage.buffer for stage in rows.stages if not stage.reduced and rows.along(stage)}
        self.held: dict[Any, list[ir.Var]] = {}  # by a stage's buffer: elements step by step, or the number
        self.code: list[tirx.Stmt] = []

    def nest(self) -> tirx.Stmt:
        """The launch."""
        for stage in self.rows.stages:
            if stage.reduced:
                self._reduce(stage)
            else:
                self._compute(stage)
        axes = [(self.x, self.threads), (self.y, self.side)] if self.side > 1 else [(self.x, self.threads)]
        blocks = ceil_div(self.rows.count, self.side)
        return launch(self.rows.stages[-1].name, [(self.block, blocks)], axes, sequence(self.code))

    def _column(self, step: int) -> Expr:
        """The first of the thread's elements of a step."""
        return (step * self.threads + self.x) * self.width

    def _guarded(self, step: int | None, body: tirx.Stmt) -> tirx.Stmt:
        """The body for a thread whose elements of a step are there; for None, whose row is."""
        guards = []
        if self.rows.count % self.side:
            guards.append(self.block * self.side + self.y < self.rows.count)
        if step is not None and (step + 1) * self.threads * self.width > self.rows.length:
            guards.append(self._column(step) < self.rows.length)
        return tirx.IfThenElse(tirx.all(*guards), body, None) if guards else body

    def _evaluated(self, code: ThreadCode, stage: Stage, value: Expr, column: Expr, step: int) -> Expr:
        """An expression of a stage at a column, from what the thread holds."""

        def known(load: ir.TensorLoad) -> Expr | None:
            held = self.held.get(load.source)
            if held is None:
                return None
            buffer = held[step] if load.source in self.long else held[0]
            return tirx.BufferLoad(buffer, [code.lane if load.source in self.long and code.width > 1 else 0])

        return code.evaluate(value, self.rows.names(stage, self.row, column), known)

    def _compute(self, stage: Stage) -> None:
        """A stage without a sum: each thread's elements, or the row's number."""
        long = stage.buffer in self.long
        width, steps = (self.width, self.steps) if long else (1, 1)
        self.held[stage.buffer] = held = []
        for step in range(steps):
            own = tirx.decl_buffer((width,), str(stage.buffer.dtype), f"{stage.name}_own", scope="local")
            held.append(own)
            code = ThreadCode(width)
            column = self._column(step) + code.lane if long else tirx.const(0, "int32")
            code.store(own, code.value(self._evaluated(code, stage, stage.value, column, step)), [code.lane])
            self.code += [tirx.AllocBuffer(own), self._guarded(step if long else None, code.loop())]
            self._keep(stage, own, step if long else None)

    def _keep(self, stage: Stage, own: ir.Var, step: int | None) -> None:
        """Stores a thread's elements of a step, or the row's number, where the function's result or a later stage needs
        them."""
        if stage.buffer not in self.kept:
            return
        code = ThreadCode(1 if step is None else self.width)
        column = tirx.const(0, "int32") if step is None else self._column(step) + code.lane
        names = self.rows.names(stage, self.row, column)
        code.store(stage.buffer, tirx.BufferLoad(own, [code.lane]), [renamed(i, names) for i in stage.indices])
        body = self._guarded(step, code.loop())
        self.code.append(tirx.IfThenElse(self.x == 0, body, None) if step is None else body)

    def _reduce(self, stage: Stage) -> None:
        """A sum along the row."""
        dtype, kind = str(stage.buffer.dtype), type(stage.value)
        sums, made = local(dtype, stage.init, self.width)
        self.code += made
        for step in range(self.steps):
            code = ThreadCode(self.width)
            term = self._evaluated(code, stage, stage.value.b, self._column(step) + code.lane, step)
            code.add_to(sums, kind, code.value(term))
            self.code.append(self._guarded(step, code.loop()))
        total, made = local(dtype, folded([tirx.BufferLoad(sums, [i]) for i in range(self.width)], kind))
        self.code += made
        if self.threads == WARP:
            self.code += all_of_warp(total, kind)
        else:
            self.code += all_of_block(total, kind, self.x, self.threads)
        self.held[stage.buffer] = [total]
        self._keep(stage, total, None)


RULE = Rule("rows", "cuda", schedule, sums=True)
