"""Formulas written as loops: where an expression for one index would ask, index by index, which source it reads, or
would search all terms for its own.

The loops are one block. A loop's indices come one after the other where it reads what it stored at another index, and
else in any order, which a target's rule finds and puts on threads (schedule/loops.py). No two indices of a loop store
the same element, but where it is read too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, s_tir, te, tirx
from tvm.tirx.analysis import undefined_vars

from .base import Expr, Shape, constant, full, shape_of

Buffer = Any  # of tirx


Source = Callable[[Sequence[Expr]], Expr]
"""An input of loops: its element at an index, one of each axis."""


def program(
    name: str, shape: Shape, dtype: str, inputs: Sequence[te.Tensor], body: Callable[..., tirx.Stmt]
) -> te.Tensor:
    """The tensor that `body`, of the inputs and the output's buffer, fills. It may not be empty; an input is memory or
    a constant."""
    stored: list[te.Tensor] = []
    for x in inputs:
        if _constant_of(x) is None and not any(x.same_as(other) for other in stored):
            stored.append(x)

    def block(buffers: Sequence[Buffer], outputs: Sequence[Buffer]) -> tirx.Stmt:
        loops = body([_source(x, stored, buffers) for x in inputs], *outputs)
        whole = lambda buffer: tirx.BufferRegion(buffer, [ir.Range(0, extent) for extent in buffer.shape])  # noqa: E731
        regions = list(map(whole, buffers)), list(map(whole, outputs))
        return s_tir.SBlockRealize([], True, s_tir.SBlock([], *regions, name, loops))

    # the schedules look for the block inside one called "root", which TVM puts around formulas, but not around this
    return te.extern(shape, stored, block, name="root", dtype=dtype, out_buffers=[tirx.decl_buffer(shape, dtype, name)])


def _constant_of(x: te.Tensor) -> Expr | None:
    """The value of a formula that reads no tensor and no index."""
    if not isinstance(x.op, te.ComputeOp) or x.op.input_tensors or undefined_vars(x.op.body[0], []):
        return None
    return x.op.body[0]


def _source(x: te.Tensor, stored: Sequence[te.Tensor], buffers: Sequence[Buffer]) -> Source:
    """A function that reads one element of a tensor: its constant, or the buffer in which it is stored."""
    if (value := _constant_of(x)) is not None:
        return lambda _: value
    buffer = next(b for other, b in zip(stored, buffers, strict=True) if x.same_as(other))
    return lambda index: tirx.BufferLoad(buffer, list(index))


def loop(extent: Expr, body: Callable[[Expr], tirx.Stmt]) -> tirx.Stmt:
    """`body` for every index below `extent`, a number or an expression; of one index without a loop."""
    if isinstance(extent, int) and extent == 1:
        return body(tirx.const(0, "int32"))
    index = tirx.Var("i", "int32")
    return tirx.For(index, 0, extent, tirx.ForKind.SERIAL, body(index))


def nest(shape: Sequence[int], body: Callable[[list[Expr]], tirx.Stmt]) -> tirx.Stmt:
    """`body` for every index of the shape."""
    if not shape:
        return body([])
    return loop(shape[0], lambda i: nest(shape[1:], lambda rest: body([i, *rest])))


def sequence(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """The statements, one after another."""
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def ravelled(index: Sequence[Expr], shape: Sequence[int]) -> Expr:
    """The number of an element in row-major order, from one index of each axis."""
    number: Expr = 0
    for extent, i in zip(shape, index, strict=False):
        number = number * extent + i
    return number


def unravelled(index: Expr, shape: Sequence[int]) -> list[Expr]:
    """The number of an element as one index of each axis."""
    found: list[Expr] = []
    wide = next((i for i, extent in enumerate(shape) if extent > 1), len(shape) - 1)  # all before are 0
    for extent in reversed(shape[wide + 1 :]):
        found.insert(0, tirx.floormod(index, extent))
        index = tirx.floordiv(index, extent)
    return [*(index * 0 for _ in range(wide)), index, *found] if shape else []


class Word:
    """A value in a register: `made` is its declaration."""

    def __init__(self, dtype: str) -> None:
        self._buffer = tirx.decl_buffer((1,), dtype, "word", scope="local")
        self.made: tirx.Stmt = tirx.AllocBuffer(self._buffer)

    @property
    def value(self) -> Expr:
        """The value."""
        return tirx.BufferLoad(self._buffer, [0])

    def put(self, value: Expr) -> tirx.Stmt:
        """The assignment of another value."""
        return tirx.BufferStore(self._buffer, value, [0])


@dataclass(frozen=True)
class Part:
    """The elements of a tensor in row-major order, which go to the indices `starts + steps * i`, i below `counts`."""

    tensor: te.Tensor
    counts: Shape
    starts: tuple[int, ...]
    steps: tuple[int, ...]


def place(name: str, shape: Shape, fill: float | None, parts: Sequence[Part], lead: int = 0) -> te.Tensor:
    """A tensor of `shape` put together from parts of its rank; elsewhere `fill`, which is None where parts leave
    nothing. The first `lead` axes all parts have whole: their loops go around all parts."""
    dtype = str(parts[0].tensor.dtype)
    if 0 in shape:
        return full(shape, 0.0, dtype)
    parts = [part for part in parts if 0 not in part.counts]
    whole = lambda part, axis: (part.counts[axis], part.steps[axis]) == (shape[axis], 1)  # noqa: E731
    while fill is not None and lead < len(shape) and all(whole(part, lead) for part in parts):
        lead += 1  # what is filled is in the cache when it is copied over
    filled, value = shape[lead:], constant(0 if fill is None else fill, dtype)

    def body(sources: list[Source], out: Buffer) -> tirx.Stmt:
        def rows(index: list[Expr]) -> tirx.Stmt:
            clear = lambda k: tirx.BufferStore(out, value, [*index, *unravelled(k, filled)])  # noqa: E731
            found = [_copy(out, s, p, index) for s, p in zip(sources, parts, strict=True)]
            return sequence([*([] if fill is None else [loop(math.prod(filled), clear)]), *found])

        return nest(shape[:lead], rows)

    if parts:
        return program(name, shape, dtype, [part.tensor for part in parts], body)
    return te.compute(shape, lambda *_: value, name=name)


def _copy(out: Buffer, source: Source, part: Part, lead: list[Expr]) -> tirx.Stmt:
    """The loops that copy a part, at an index of the first axes; the innermost runs straight through both arrays as far
    as they agree."""
    shape, counts, starts, steps = shape_of(out), part.counts, part.starts, part.steps
    axis = len(shape)
    while axis > len(lead) and (counts[axis - 1], steps[axis - 1]) == (shape[axis - 1], 1):
        axis -= 1
    if axis > len(lead) and steps[axis - 1] == 1:
        axis -= 1
    run = math.prod(counts[axis:])
    first = starts[axis] * math.prod(shape[axis + 1 :]) if axis < len(shape) else 0

    def line(index: list[Expr]) -> tirx.Stmt:
        index = [*lead, *index]
        row = ravelled(index, counts)
        target = [start + step * i for start, step, i in zip(starts, steps, index, strict=False)]

        def copy(k: Expr) -> tirx.Stmt:
            value = source(unravelled(row * run + k, shape_of(part.tensor)))
            return tirx.BufferStore(out, value, [*target, *unravelled(k + first, shape[axis:])])

        return loop(run, copy)

    return nest(counts[len(lead) : axis], line)
