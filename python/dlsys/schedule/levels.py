"""How a sum is cut: in levels, accumulators of accumulators, for accuracy; and in parts, with an array between, for
threads, and for the accuracy of sums down columns (`cpu.reduction`).

n equal terms added one after another in float32 are off by up to n / 8 units in the last place; a sum of ones stops at
2^24. With some 64 to 512 additions between two levels or parts the error stays below 4 log2(n) units. Where a sum is
cut depends on the shape and the vector width alone, so the number of threads does not change a result.

See Higham, "The accuracy of floating point summation" (1993), on blocked and pairwise sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tvm import ir, s_tir, tirx

from . import common
from .codegen import in_steps, lanes, sequence
from .stages import Expr, Stage

PARTS = 64  # results, or blocks of columns, that are enough for threads
IN_TURN = 128  # additions to an accumulator of a row, at most; its vector's sums are added up besides
_COMBINING = (tirx.Add, tirx.Mul, tirx.Max, tirx.Min)  # any order gives the same, but for rounding


def is_plain(stage: Stage) -> bool:
    """Whether a reduction adds terms to what it has, or the like."""
    value = stage.value
    own = isinstance(value, _COMBINING) and isinstance(value.a, ir.TensorLoad)
    return own and value.a.source.same_as(stage.buffer)


def rounds(stage: Stage) -> bool:
    """Whether a plain reduction has another result in another order: a sum or product of floats."""
    return isinstance(stage.value, tirx.Mul) or is_float_sum(stage)


def is_float_sum(stage: Stage) -> bool:
    """Whether a reduction adds up floats."""
    return isinstance(stage.value, tirx.Add) and is_plain(stage) and str(stage.buffer.dtype).startswith("float")


def of_array(stage: Stage, array: ir.Var, first: bool) -> Stage:
    """The reduction as one over the first axis of an array of partial results, or over its last; the others are those
    of the results."""
    dtype = str(stage.iters[0].var.ty)
    count = tirx.IntImm(dtype, int(array.shape[0 if first else -1]))
    part = tirx.IterVar(ir.Range(tirx.IntImm(dtype, 0), count), tirx.Var("part", dtype), tirx.IterVar.CommReduce)
    own = [v.var for v in stage.spatial]
    term = tirx.BufferLoad(array, [part.var, *own] if first else [*own, part.var])
    iters = (*stage.spatial, part)
    value = type(stage.value)(stage.value.a, term)
    block = s_tir.SBlock(iters, [], [], stage.name, tirx.BufferStore(stage.buffer, value, stage.indices))
    return replace(stage, iters=iters, value=value, loops=s_tir.SBlockRealize([*own, part.var], True, block))


@dataclass(frozen=True)
class _Loop:
    axis: int
    step: int
    count: int
    ends: bool = False  # whether a level ends behind it


class Levels:
    """Loops over a sum's terms, outermost first, cut so that between two levels there are no more than `most`
    additions.

    Attributes:
        count: how many levels there are.
    """

    def __init__(self, extents: Sequence[int], most: int, dtype: str = "int32") -> None:
        self.extents, self.dtype = extents, dtype
        self.loops: list[_Loop] = []
        added = 1
        for axis in reversed(range(len(extents))):
            step, left = 1, extents[axis]
            while most and added * left > most:
                length = most // 2 // added
                if length < 2:  # the loops within are a level
                    self.loops[0], added = replace(self.loops[0], ends=True), 1
                    continue
                length = common.near_divisor(left, length) or length
                self.loops.insert(0, _Loop(axis, step, length, ends=True))
                step, left, added = step * length, -(-left // length), 1
            self.loops.insert(0, _Loop(axis, step, left))
            added *= left
        self.count = 1 + sum(one.ends for one in self.loops)

    def nest(self, body: Callable[[list[Expr]], tirx.Stmt], moved: Callable[[int], list[tirx.Stmt]]) -> tirx.Stmt:
        """`body` for each index; `moved`, of a level, behind its steps."""

        def write(number: int, index: dict[int, Expr], level: int) -> tirx.Stmt:
            if number == len(self.loops):
                return body([index[axis] for axis in range(len(self.extents))])
            one = self.loops[number]
            start, whole = index.get(one.axis, 0), self.extents[one.axis]
            count: Expr = tirx.IntImm(self.dtype, one.count)
            if one.axis in index and whole % (one.step * one.count):
                count = tirx.min(count, tirx.floordiv(whole - start + (one.step - 1), one.step))
            at = tirx.Var("i", self.dtype)
            inner = write(number + 1, {**index, one.axis: start + at * one.step}, level - one.ends)
            loop = tirx.For(at, 0, count, tirx.ForKind.SERIAL, inner)
            return sequence([loop, *moved(level - 1)]) if one.ends else loop

        return write(0, {}, self.count - 1)


class Accumulators:
    """So many accumulators side by side for each level of a sum, of which the last level's hold the result.

    Attributes:
        arrays: one for each level.
    """

    def __init__(self, stage: Stage, width: int, levels: int, lanes: int, dtype: str = "int32") -> None:
        """`lanes`: of a vector. `dtype`: of an index."""
        self.stage, self.width, self.lanes, self.dtype = stage, width, lanes, dtype
        name, own = stage.name, str(stage.buffer.dtype)
        self.arrays = [tirx.decl_buffer((width,), own, name, data_alignment=4) for _ in range(levels)]

    def _each(self, code: Callable[[Expr], tirx.Stmt]) -> tirx.Stmt:
        """The code for each accumulator, along vectors."""

        def step(start: Expr, many: int) -> tirx.Stmt:
            return lanes(many, lambda lane: code(start + lane), self.dtype)

        return in_steps(self.width, common.MAX_VECTORS * self.lanes, step, self.dtype)

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
        """The sum of all accumulators, by vectors, then by halves: its code, and the value."""
        code, width, array = list[tirx.Stmt](), self.width, self.arrays[-1]

        def folded(half: int, count: int) -> tirx.Stmt:
            return lanes(count, lambda at: self._combined(array, at, array, at + half), self.dtype)

        while width > 1:
            half = width - self.lanes if width > self.lanes else (width + 1) // 2
            half = max(half, width - half)
            code.append(folded(half, width - half))
            width = half
        return code, tirx.BufferLoad(array, [0])

    def results(self, store: Callable[[Expr, Expr], tirx.Stmt]) -> tirx.Stmt:
        """Stores each by itself: `store`, of its place and its value."""
        return self._each(lambda at: store(at, tirx.BufferLoad(self.arrays[-1], [at])))
