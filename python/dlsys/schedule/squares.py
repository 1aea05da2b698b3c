"""Squares of a matrix, transposed in registers: LLVM would put each column together element by element. The columns of
16 x 16 numbers of 4 bytes are made of the rows in four rounds, in which pairs of rows exchange halves: one instruction
a register and round, with AVX-512, AVX and SSE alike.

And vectors of every second element, as convolutions and pooling of stride 2 read images: loaded as whole vectors, whose
elements are picked in registers. LLVM would load each element by itself, three times as slow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import tirx

from .codegen import UNROLLED, array, lanes, loop, sequence
from .stages import Expr

SIDE = 16  # rows, and numbers of 4 bytes in one: a cache line
CONSTANTS = 4  # registers for what the exchanges need
STRIDES = (2, 3, 4)  # of elements further apart, most of what is loaded would be dropped


def turned(
    copy: Callable[[Expr, Expr], Expr], rows: int, columns: int, dtype: str, index: str
) -> tuple[tirx.Stmt, Callable[[Expr, Expr], Expr]]:
    """The code that copies so many rows and columns of a matrix to the stack, given an element of it, so that vectors
    run down its columns; and how an element is read then."""
    whole = rows == columns == SIDE and tvm.DataType(dtype).bits == 32
    square = array((rows, columns), dtype, "square", "local" if whole else "global")

    row = lambda r: lanes(columns, lambda c: tirx.BufferStore(square, copy(r, c), [r, c]), index)  # noqa: E731
    made = [tirx.AllocBuffer(square), loop(rows, row, dtype=index)]
    if not whole:
        return sequence(made), lambda r, c: tirx.BufferLoad(square, [r, c])
    for distance in (1, 2, 4, 8):  # rows so far apart interleave, first and second halves of all `lane` elements
        lane = max(2 * distance, 4)  # the first two rounds stay within 16 bytes, as unpacking instructions do
        own = [i for first in range(0, SIDE, lane) for i in range(first, first + lane // 2)]
        parts = [own[i : i + distance] for i in range(0, SIDE // 2, distance)]
        places = [place for part in parts for place in (*part, *(SIDE + i for i in part))]
        before, square = square, array((SIDE, SIDE), dtype, "square", "local")
        made += _exchanged(before, square, distance, places, lane // 2, index)

    def element(r: Expr, c: Expr) -> Expr:  # the first two rounds leave the rows in another order
        return tirx.BufferLoad(square, [c - c % 4 + c % 2 * 2 + c % 4 // 2, r])

    return sequence(made), element


def _exchanged(source: Any, to: Any, distance: int, places: list[int], half: int, index: str) -> list[tirx.Stmt]:
    """A round: rows so far apart in pairs, which become those of their elements at some places and behind these."""
    whole = tirx.Ramp(tirx.IntImm(index, 0), 1, SIDE)

    def pair(number: Expr) -> tirx.Stmt:
        first = number // distance * 2 * distance + number % distance
        both = [tirx.BufferLoad(source, [r, whole]) for r in (first, first + distance)]
        made = [tirx.Shuffle(both, own) for own in (places, [place + half for place in places])]
        return tirx.SeqStmt([tirx.BufferStore(to, made[i], [first + i * distance, whole]) for i in (0, 1)])

    return [tirx.AllocBuffer(to), loop(SIDE // 2, pair, kind=UNROLLED, dtype=index)]


def contiguous(load: Any) -> Any:
    """A load of a vector of elements some apart, as loads of neighbours; other loads as they are."""
    at = load.indices[0] if len(load.indices) == 1 else None
    if load.source.scope() == "local" or str(load.source.dtype) not in ("float32", "float64"):
        return load  # what is local becomes registers, if its elements are loaded as they were stored
    if not isinstance(at, tirx.Ramp) or not isinstance(at.stride, tirx.IntImm) or int(at.stride) not in STRIDES:
        return load
    stride, lanes = int(at.stride), int(at.lanes)
    firsts = range(0, lanes, SIDE)  # the elements of a part come from `stride` vectors
    parts = [_part(load.source, at.base + i * stride, min(SIDE, lanes - i), stride) for i in firsts]
    return parts[0] if len(parts) == 1 else tirx.Shuffle(parts, list(range(lanes)))


def _part(source: Any, base: Any, lanes: int, stride: int) -> Any:
    """Elements base, base + stride, ... from vectors of neighbours, of which none goes beyond the last element."""
    if lanes == 1:
        return tirx.BufferLoad(source, [base])
    span = (lanes - 1) * stride + 1
    width = min(SIDE, 1 << (span.bit_length() - 1))
    starts = [min(start, span - width) for start in range(0, span, width)]
    vectors = [tirx.BufferLoad(source, [tirx.Ramp(base + start, 1, width)]) for start in starts]
    places = [(at, min(at // width, len(starts) - 1)) for at in range(0, span, stride)]
    return tirx.Shuffle(vectors, [vector * width + at - starts[vector] for at, vector in places])
