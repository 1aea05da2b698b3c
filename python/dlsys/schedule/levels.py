"""How a sum is cut in levels, for accuracy: accumulators of accumulators. (In parts, for threads: see `sums`.)

n equal terms added one after another in float32 are off by up to n / 8 units in the last place; with 64 additions
between two levels by less than 4 log2(n). Where a sum is cut depends on shape and vector width alone, not on threads.
See Higham, "The accuracy of floating point summation" (1993), on blocked and pairwise sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tvm import ir, tirx

from . import common
from .codegen import UNROLLED, in_steps, lanes, loop, sequence
from .stages import Expr, Stage

LEVEL = 64  # additions to an accumulator before it is added to one of the next level


class Levels:
    """Loops over a sum's terms, outermost first, the last axis in steps of a width. After so many additions the sums
    are added to those of the next level, after LEVEL times as many these to the third's; 0 for one level."""

    outer: list[int]
    inner: int
    count: int  # of levels

    def __init__(self, extents: Sequence[int], width: int, additions: int, dtype: str = "int32") -> None:
        *self.outer, self.inner = extents
        self.width = width
        self.dtype = dtype
        steps = -(-self.inner // width)
        self.by_row: bool = 2 * steps <= additions  # short rows are counted, else steps along them
        self.steps: int = 1 if self.by_row else steps
        rows = additions // max(steps, 1)
        self.every: int = 1 << rows.bit_length() - 1 if self.by_row and rows else additions  # whose rest is soon found
        self.count = 1
        while additions and self.every * LEVEL ** (self.count - 1) < self.steps * math.prod(self.outer):
            self.count += 1

    def nest(self, body: Callable[[list[Expr], int], tirx.Stmt], moved: Callable[[int], list[tirx.Stmt]]) -> tirx.Stmt:
        """`body` of the place and width of each step; `moved`, of a level, adds its sums to the next."""

        def behind(steps: Expr, level: int = 0) -> list[tirx.Stmt]:
            """The moves from level to level that are due behind so many steps."""
            if level == self.count - 1:
                return []
            code = sequence([*moved(level), *behind(steps, level + 1)])
            return [tirx.IfThenElse(tirx.floormod(steps, self.every * LEVEL**level) == 0, code, None)]

        def over(index: list[Expr], number: Expr) -> tirx.Stmt:
            """The loops within an index of the outer axes, which has a number."""
            if (axis := len(index)) < len(self.outer):
                extent = self.outer[axis]
                return loop(extent, lambda i: over([*index, i], number * extent + i), dtype=self.dtype)

            def step(start: Expr, many: int) -> tirx.Stmt:
                done = number * self.steps + tirx.floordiv(start, self.width) + 1
                return sequence([body([*index, start], many), *([] if self.by_row else behind(done))])

            row = in_steps(self.inner, self.width, step, self.dtype)
            return sequence([row, *(behind(number + 1) if self.by_row else [])])

        return sequence([over([], tirx.IntImm(self.dtype, 0)), *(x for i in range(self.count - 1) for x in moved(i))])


class Accumulators:
    """So many accumulators side by side in an array for each level of a sum, of which the last one holds the result."""

    def __init__(self, stage: Stage, width: int, levels: int, lanes: int, dtype: str = "int32") -> None:
        """`lanes`: of a vector. `dtype`: of an index."""
        self.stage = stage
        self.width = width
        self.lanes = lanes
        self.dtype = dtype
        name, own = stage.name, str(stage.buffer.dtype)
        self.arrays: list[tirx.Buffer] = [
            tirx.decl_buffer((width,), own, name, data_alignment=4) for _ in range(levels)
        ]

    def _each(self, code: Callable[[Expr], tirx.Stmt]) -> tirx.Stmt:
        """The code for each accumulator, along vectors; as sums are added to, if registers hold them."""

        step = lambda start, many: lanes(many, lambda lane: code(start + lane), self.dtype)  # noqa: E731
        most = common.MAX_VECTORS * self.lanes
        if self.width <= most:
            return in_steps(self.width, self.lanes, step, self.dtype, UNROLLED)
        return in_steps(self.width, most, step, self.dtype)

    def before(self) -> list[tirx.Stmt]:
        """Allocates and clears them."""
        return [*map(tirx.AllocBuffer, self.arrays), *map(self._cleared, range(len(self.arrays)))]

    def _cleared(self, level: int) -> tirx.Stmt:
        return self._each(lambda at: tirx.BufferStore(self.arrays[level], self.stage.init, [at]))

    def moved(self, level: int) -> list[tirx.Stmt]:
        """Adds those of a level to those of the next, and clears them."""
        below, own = self.arrays[level : level + 2]
        return [self._each(lambda at: self._combined(own, at, below, at)), self._cleared(level)]

    def _combined(self, to: ir.Var, at: Expr, array: ir.Var, place: Expr) -> tirx.Stmt:
        both = type(self.stage.value)(tirx.BufferLoad(to, [at]), tirx.BufferLoad(array, [place]))
        return tirx.BufferStore(to, both, [at])

    def total(self) -> tuple[list[tirx.Stmt], Expr]:
        """The sum of all accumulators, by halves: its code, and the value."""
        code, width, array = list[tirx.Stmt](), self.width, self.arrays[-1]
        while width > 1:
            half = 1 << (width - 1).bit_length() - 1
            fold = lambda at, half=half: self._combined(array, at, array, at + half)  # noqa: E731
            code.append(lanes(width - half, fold, self.dtype))
            width = half
        return code, tirx.BufferLoad(array, [0])

    def results(self, store: Callable[[Expr, Expr], tirx.Stmt]) -> tirx.Stmt:
        """Stores each by itself: `store`, of its place and its value."""
        return self._each(lambda at: store(at, tirx.BufferLoad(self.arrays[-1], [at])))
