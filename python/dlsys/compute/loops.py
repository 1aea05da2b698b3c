"""Formulas written as loops: where an expression for one index would ask, index by index, which source it reads, or
would search all terms for its own.

The loops are one block, which the schedule rules leave as it is. They copy runs of memory or compute straight on, so
that LLVM makes vectors of them; the outermost goes to threads where there is work for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, s_tir, te, tirx

from .base import Shape, constant, shape_of

ORDERED = "dlsys_ordered"  # the mark of a loop whose indices must come in order
PARALLEL_WORK = 64 * 1024  # elements: fewer do not repay the start of the threads
PARTS = 16  # steps of a loop, at least, that threads share out, if those within it can be shared out instead

Buffer = Any  # of tirx
Expr = Any  # of tvm.ir


@dataclass(frozen=True)
class Source:
    """An input of loops: `load` gives its element at an index, one of each axis."""

    shape: Shape
    load: Callable[[Sequence[Expr]], Expr]

    def flat(self, index: Expr) -> Expr:
        """The element number `index` in row-major order."""
        return self.load(unravelled(index, self.shape))


def program(
    name: str,
    shape: Shape,
    dtype: str,
    inputs: Sequence[te.Tensor],
    body: Callable[..., tirx.Stmt],
    scratch: Sequence[tuple[Shape, str]] = (),
) -> te.Tensor:
    """The tensor that `body`, of the inputs, the output's buffer and one for each shape and dtype of `scratch`, fills.
    The output may not be empty, and an input is memory or a constant: other formulas cannot be computed within."""
    stored: list[te.Tensor] = []
    for x in inputs:
        if _constant_of(x) is None and not any(x.same_as(other) for other in stored):
            stored.append(x)

    def block(buffers: Sequence[Buffer], outputs: Sequence[Buffer]) -> tirx.Stmt:
        loops = body([_source(x, stored, buffers) for x in inputs], *outputs)
        reads, writes = ([_whole(buffer) for buffer in group] for group in (buffers, outputs))
        return s_tir.SBlockRealize([], True, s_tir.SBlock([], reads, writes, name, loops))

    # the schedules look for the block inside one called "root", which TVM puts around what has memory of its own, and
    # around formulas, but not around this
    shapes, dtypes = [shape, *(own for own, _ in scratch)], [dtype, *(kind for _, kind in scratch)]
    names = [name, *(f"scratch{i}" for i in range(len(scratch)))]
    buffers = [tirx.decl_buffer(*of) for of in zip(shapes, dtypes, names, strict=True)]
    found = te.extern(shapes, stored, block, name=name if scratch else "root", dtype=dtypes, out_buffers=buffers)
    return found[0] if scratch else found


def _constant_of(x: te.Tensor) -> Expr | None:
    """The value of a formula that is one value at every index."""
    value = x.op.body[0] if isinstance(x.op, te.ComputeOp) else None
    return value if _is_constant(value) else None


def _is_constant(value: Any) -> bool:
    """Whether an expression is a number, or a call or product of numbers, as the zero of `full`."""
    parts = value.args if isinstance(value, ir.Call) else (value.a, value.b) if isinstance(value, tirx.Mul) else ()
    return isinstance(value, (tirx.IntImm, tirx.FloatImm)) or (len(parts) > 0 and all(map(_is_constant, parts)))


def _source(x: te.Tensor, stored: Sequence[te.Tensor], buffers: Sequence[Buffer]) -> Source:
    value = _constant_of(x)
    if value is not None:
        return Source(shape_of(x), lambda _: value)
    buffer = next(b for other, b in zip(stored, buffers, strict=True) if x.same_as(other))
    return Source(shape_of(x), lambda index: tirx.BufferLoad(buffer, list(index)))


def _whole(buffer: Buffer) -> tirx.BufferRegion:
    return tirx.BufferRegion(buffer, [ir.Range(0, extent) for extent in extents(buffer)])


def extents(buffer: Buffer) -> Shape:
    """The buffer's shape as Python integers."""
    return tuple(int(extent) for extent in buffer.shape)


def loop(extent: int, body: Callable[[Expr], tirx.Stmt], work: int = 0, ordered: bool = False) -> tirx.Stmt:
    """`body` for every index below `extent`, on threads where all of it is `work` enough. `ordered`: one after the
    other, as they add to the same elements; if not, the indices may come in any order, also those of loops within an
    ordered one: each of them has elements of its own."""
    index = tirx.Var("i", "int32")
    kind = tirx.ForKind.PARALLEL if work >= PARALLEL_WORK and extent > 1 else tirx.ForKind.SERIAL
    return tirx.For(index, 0, extent, kind, body(index), None, {ORDERED: True} if ordered else None)


def nest(
    shape: Sequence[int], body: Callable[[list[Expr]], tirx.Stmt], work: int = 0, ordered: bool = False
) -> tirx.Stmt:
    """`body` for every index of the shape, on threads where all of it is `work` enough; all `ordered` or not."""
    if not shape:
        return body([])
    count = 1
    while work >= PARALLEL_WORK and count < len(shape) and math.prod(shape[:count]) < PARTS:
        count += 1
    first = shape[:count]

    def step(index: Expr) -> tirx.Stmt:
        return nest(shape[count:], lambda rest: body([*unravelled(index, first), *rest]), 0, ordered)

    return loop(math.prod(first), step, work, ordered)


def sequence(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """The statements, one after another."""
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def store_flat(buffer: Buffer, index: Expr, value: Expr) -> tirx.Stmt:
    """Stores the element number `index` in row-major order."""
    return tirx.BufferStore(buffer, value, unravelled(index, extents(buffer)))


def unravelled(index: Expr, shape: Sequence[int]) -> list[Expr]:
    """The number of an element as one index of each axis."""
    found: list[Expr] = []
    wide = next((i for i, extent in enumerate(shape) if extent > 1), len(shape) - 1)  # all before are 0
    for extent in reversed(shape[wide + 1 :]):
        found.insert(0, tirx.floormod(index, extent))
        index = tirx.floordiv(index, extent)
    return [*(index * 0 for _ in range(wide)), index, *found] if shape else []


@dataclass(frozen=True)
class Part:
    """The elements of a tensor in row-major order, which go to the indices `starts + steps * i`, i below `counts`."""

    tensor: te.Tensor
    counts: Shape
    starts: tuple[int, ...]
    steps: tuple[int, ...]


def place(name: str, shape: Shape, fill: float | None, parts: Sequence[Part], lead: int = 0) -> te.Tensor:
    """A tensor of `shape`, which may not be empty, put together from parts of its rank; elsewhere `fill`, which is None
    where parts leave nothing. The first `lead` axes all parts have whole: their loops go around all parts."""
    dtype = str(parts[0].tensor.dtype)
    parts = [part for part in parts if 0 not in part.counts]
    size = math.prod(shape)
    while fill is not None and lead < len(shape) and all(p.counts[lead] == shape[lead] for p in parts):
        lead += 1  # what is filled is in the cache when it is copied over
    filled, value = shape[lead:], constant(0 if fill is None else fill, dtype)
    counts = [math.prod(part.counts[lead:]) for part in parts] + [math.prod(filled)] * (fill is not None)
    outer = math.prod(shape[:lead])
    within = outer < PARTS and max(counts, default=0) >= PARALLEL_WORK  # threads share out each part instead

    def body(sources: list[Source], out: Buffer) -> tirx.Stmt:
        def rows(index: list[Expr]) -> tirx.Stmt:
            def clear(k: Expr) -> tirx.Stmt:
                return tirx.BufferStore(out, value, [*index, *unravelled(k, filled)])

            found = [_copy(out, s, p, index, within) for s, p in zip(sources, parts, strict=True)]
            count = math.prod(filled)
            clearing = [loop(count, clear, count if within else 0)] if fill is not None else []
            return sequence([*clearing, *found])

        return nest(shape[:lead], rows, 0 if within else size)

    if parts:
        return program(name, shape, dtype, [part.tensor for part in parts], body)
    return te.compute(shape, lambda *_: value, name=name)


def _copy(out: Buffer, source: Source, part: Part, lead: list[Expr], parallel: bool) -> tirx.Stmt:
    """The loops that copy a part, at an index of the first axes, to be shared out to threads or not; the innermost runs
    straight through both arrays as far as they agree."""
    shape, counts, starts, steps = extents(out), part.counts, part.starts, part.steps
    axis = len(shape)
    while axis > len(lead) and (counts[axis - 1], steps[axis - 1]) == (shape[axis - 1], 1):
        axis -= 1
    if axis > len(lead) and steps[axis - 1] == 1:
        axis -= 1
    run = math.prod(counts[axis:])
    first = starts[axis] * math.prod(shape[axis + 1 :]) if axis < len(shape) else 0

    def line(index: list[Expr]) -> tirx.Stmt:
        index = [*lead, *index]
        row: Expr = 0
        for count, i in zip(counts, index, strict=False):
            row = row * count + i
        target = [start + step * i for start, step, i in zip(starts, steps, index, strict=False)]

        def copy(k: Expr) -> tirx.Stmt:
            value = source.flat(row * run + k)
            return tirx.BufferStore(out, value, [*target, *unravelled(k + first, shape[axis:])])

        return loop(run, copy, run if few else 0)

    rows = counts[len(lead) : axis]
    few = parallel and math.prod(rows) < PARTS and run >= PARALLEL_WORK
    return nest(rows, line, math.prod(rows) * run if parallel and not few else 0)


def part_of(tensor: te.Tensor, starts: Sequence[int]) -> Part:
    """A tensor as a part that begins at the index `starts`."""
    counts = shape_of(tensor)
    return Part(tensor, counts, tuple(starts), (1,) * len(counts))
