"""Squares of a matrix, transposed in registers.

A kernel that goes across a matrix copies a square of 16 x 16 to the stack, row by row, and stores it column by column.
LLVM puts each column together element by element. Here the columns are made of the rows in four rounds, in which pairs
of rows exchange halves: one instruction a register and round, with AVX-512, AVX and SSE alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, tirx

SIDE = 16  # rows, and numbers of 4 bytes in one: a cache line
ROUNDS = ((1, 4), (2, 4), (4, 8), (8, 16))
"""In a round each row and the one 1, 2, 4 or 8 below it interleave: `width` elements at a time, first halves of all
`lane` elements and second halves. The first two rounds stay within 16 bytes, as unpacking instructions do."""


def turned(code: tirx.SeqStmt) -> tirx.SeqStmt:
    """The statements, with the columns of a square made of its rows where all of them are copied, one after another."""
    if len(code.seq) < SIDE:
        return code
    made: list[Any] = []
    run: list[Any] = []  # stores of columns 0, 1, ... of one square
    for statement in [*code.seq, None]:
        number = _column(statement)
        if run and (number != len(run) or not statement.value.source.same_as(run[0].value.source)):
            made += run
            run = []
        if number == len(run):
            run.append(statement)
        elif statement is not None:
            made.append(statement)
        if len(run) == SIDE:
            made += _of_columns(run)
            run = []
    return tirx.SeqStmt(made) if len(made) > len(code.seq) else code


def _column(statement: Any) -> int:
    """Which column of a square a statement copies; -1 for none."""
    load = statement.value if isinstance(statement, tirx.BufferStore) else None
    if not isinstance(load, ir.TensorLoad) or not isinstance(at := load.indices[0], tirx.Ramp):
        return -1
    square = len(load.source.shape) == 1 and str(load.source.shape[0]) == str(SIDE**2)
    across = square and load.source.dtype.bits == 32 and str(at.stride) == str(at.lanes) == str(SIDE)
    return int(at.base) if across and isinstance(at.base, tirx.IntImm) else -1


def _of_columns(run: Sequence[Any]) -> list[Any]:
    """The code that makes the columns of the rows, and stores them."""
    made: list[Any] = []

    def known(value: Any) -> Any:
        made.append(tirx.Bind(variable := tirx.Var("row", value.ty), value))
        return variable

    square = run[0].value.source
    rows = [known(tirx.BufferLoad(square, [tirx.Ramp(i * SIDE, 1, SIDE)])) for i in range(SIDE)]
    for distance, (width, lane) in zip((1, 2, 4, 8), ROUNDS, strict=True):
        own = [i for first in range(0, SIDE, lane) for i in range(first, first + lane // 2)]
        parts = [own[i : i + width] for i in range(0, len(own), width)]
        places = [place for part in parts for place in (*part, *(SIDE + i for i in part))]
        for i in (i for i in range(SIDE) if not i & distance):
            pair = [rows[i], rows[i + distance]]
            rows[i] = known(tirx.Shuffle(pair, places))
            rows[i + distance] = known(tirx.Shuffle(pair, [place + lane // 2 for place in places]))
    order = [i & ~3 | (i & 1) << 1 | (i & 2) >> 1 for i in range(SIDE)]  # so the first two rounds leave the rows
    return made + [tirx.BufferStore(s.buffer, rows[i], s.indices) for s, i in zip(run, order, strict=True)]
