"""Stages that share rows (softmax, norms, cross-entropy and their gradients): one launch, a warp or a block for a row.

A thread holds every so many-th vector of the row in registers, from the first stage to the last, so memory is read
once; sums go through the warp's registers, and of a block through shared memory. What is one number a row, all of its
threads compute.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from ..codegen import sequence, unravelled
from ..common import renamed
from ..rows import Rows, find_rows
from ..stages import Expr, Stage, inlined, with_nests
from ..target import Gpu, Machine, Rule
from . import reduction
from .threads import BLOCK, WARP, ThreadCode, all_of, axis, ceil_div, index, lanes, launch, local

MOST = 32  # elements of a row that a thread of a block holds; of a warp half as many


def schedule(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc | None:
    """One launch for what runs over rows, then those behind. Declines one sum alone and rows beyond registers."""
    stages = inlined(func) or []
    rows = find_rows(stages)
    if rows is None or rows.count < 1 or len(rows.stages) < 2 or not rows.fit():
        return None
    if (threads := _threads(rows.length)) is None:
        return None
    nest = _Code(func, rows, threads, machine.gpu).nest()
    return with_nests(func, [nest, *reduction.nests(rows.rest, stages, set(func.params), machine.gpu)])


def _threads(length: int) -> int | None:
    """The threads that share a row: a warp, or a block of some; None where they cannot hold it."""
    near = (WARP, BLOCK, 2 * BLOCK)
    fast = next((threads for threads in near if threads * MOST // 2 >= length), near[-1])
    return fast if fast * MOST >= length else None


class _Code:
    """The code of a thread, of a block of `side` rows. It holds `width` elements side by side, `steps` times: `held`
    has by a stage's buffer their arrays, one for each step, or that of the row's number."""

    def __init__(self, func: tirx.PrimFunc, rows: Rows, threads: int, gpu: Gpu) -> None:
        self.rows, self.threads = rows, threads
        self.kept = rows.kept(func.params)
        width = lanes(rows.stages)
        self.width = width if rows.length % width == 0 and rows.length >= width * threads else 1
        self.steps = ceil_div(rows.length, threads * self.width)
        self.side = BLOCK // WARP if threads == WARP and rows.count >= gpu.multiprocessors * BLOCK // WARP else 1
        self.block, self.x, self.y = index("block"), index("x"), axis("y", self.side)
        self.number = self.block * self.side + self.y
        self.row = unravelled(self.number, rows.shape)
        self.long = {stage.buffer for stage in rows.stages if not stage.reduced and rows.along(stage)}
        self.held: dict[Any, list[ir.Var]] = {}
        self.code: list[tirx.Stmt] = []

    def nest(self) -> tirx.Stmt:
        """The launch."""
        for stage in self.rows.stages:
            (self._reduce if stage.reduced else self._compute)(stage)
        grid = [(self.block, ceil_div(self.rows.count, self.side))]
        block = [(self.x, self.threads), (self.y, self.side)]
        return launch(self.rows.stages[-1].name, grid, block, sequence(self.code))

    def _column(self, step: int | None) -> Expr:
        """The first of the thread's elements of a step; 0 for the row's number, whose step is None."""
        return tirx.const(0, "int32") if step is None else (step * self.threads + self.x) * self.width

    def _guarded(self, step: int | None, body: tirx.Stmt) -> tirx.Stmt:
        """The body for a thread whose elements of a step are there, and whose row is."""
        guards = [self.number < self.rows.count] if self.rows.count % self.side else []
        if step is not None and (step + 1) * self.threads * self.width > self.rows.length:
            guards.append(self._column(step) < self.rows.length)
        return tirx.IfThenElse(tirx.all(*guards), body, None) if guards else body

    def _at(self, stage: Stage, step: int | None) -> tuple[ThreadCode, dict[Any, Expr]]:
        """New code for the thread's elements of a step, and the values of a stage's iterators at them."""
        code = ThreadCode(1 if step is None else self.width)
        return code, self.rows.names(stage, self.row, self._column(step) + code.lane)

    def _valued(self, stage: Stage, expression: Expr, step: int | None) -> tuple[ThreadCode, Expr]:
        """New code for an expression of a stage at a step, from what the thread holds; and its value."""
        code, names = self._at(stage, step)

        def known(load: ir.TensorLoad) -> Expr | None:
            if (held := self.held.get(load.source)) is None:
                return None
            number, lane = (step or 0, code.lane) if load.source in self.long else (0, 0)
            return tirx.BufferLoad(held[number], [lane])

        return code, code.value(code.evaluate(expression, names, known))

    def _compute(self, stage: Stage) -> None:
        """A stage without a sum: each thread's elements, or the row's number."""
        self.held[stage.buffer] = held = []
        for step in range(self.steps) if stage.buffer in self.long else [None]:
            code, value = self._valued(stage, stage.value, step)
            own = tirx.decl_buffer((code.width,), str(stage.buffer.dtype), f"{stage.name}_own", scope="local")
            held.append(own)
            code.store(own, value, [code.lane])
            self.code += [tirx.AllocBuffer(own), self._guarded(step, code.loop())]
            self._keep(stage, own, step)

    def _keep(self, stage: Stage, own: ir.Var, step: int | None) -> None:
        """Stores a thread's elements of a step, or the row's number, where they are a result or read later."""
        if stage.buffer not in self.kept:
            return
        code, names = self._at(stage, step)
        code.store(stage.buffer, tirx.BufferLoad(own, [code.lane]), [renamed(i, names) for i in stage.indices])
        body = self._guarded(step, code.loop())
        self.code.append(tirx.IfThenElse(self.x == 0, body, None) if step is None else body)

    def _reduce(self, stage: Stage) -> None:
        """A sum along the row."""
        dtype, kind = str(stage.buffer.dtype), type(stage.value)
        sums, made = local(dtype, stage.init, self.width)
        self.code += made
        for step in range(self.steps):
            code, term = self._valued(stage, stage.value.b, step)
            code.add_to(sums, kind, term)
            self.code.append(self._guarded(step, code.loop()))
        total, made = all_of(sums, kind, self.x, self.threads)
        self.code += made
        self.held[stage.buffer] = [total]
        self._keep(stage, total, None)


RULE = Rule("rows", "cuda", schedule, sums=True)
