"""Squares of a matrix, transposed in registers.

A kernel that goes across a matrix copies a square of 16 x 16 to the stack, row by row, and stores it column by column.
LLVM puts each column together element by element. Here the columns are made of the rows in four rounds, in which pairs
of rows exchange halves: one instruction a register and round, with AVX-512, AVX and SSE alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from .common import rewritten

SIDE = 16  # rows, and numbers of 4 bytes in one: a cache line
ROUNDS = ((1, 4), (2, 4), (4, 8), (8, 16))
"""In a round each row and the one 1, 2, 4 or 8 below it interleave: `width` elements at a time, first halves of all
`lane` elements and second halves. The first two rounds stay within 16 bytes, as unpacking instructions do."""


def turned(code: tirx.SeqStmt) -> tirx.SeqStmt:
    """The statements, with the columns of a square made of its rows where all of them are read, one after another."""
    made: list[Any] = []
    run: list[tuple[Any, Any]] = []  # stores that read columns 0, 1, ... of one square, and these loads
    for statement in [*code.seq, None]:
        load = _column(statement)
        number = -1 if load is None else int(load.indices[0].base)
        if run and (number != len(run) or not load.source.same_as(run[0][1].source)):
            made += [store for store, _ in run]
            run = []
        if number == len(run):
            run.append((statement, load))
        elif statement is not None:
            made.append(statement)
        if len(run) == SIDE:
            made += _of_columns(run)
            run = []
    return tirx.SeqStmt(made) if len(made) > len(code.seq) else code


def _column(statement: Any) -> Any:
    """The load of a square's column, if a store's value has just that one; else None."""
    found: list[Any] = []

    def load(item: Any) -> None:
        at, source = item.indices[0], item.source
        own = len(source.shape) == 1 and str(source.shape[0]) == str(SIDE**2) and source.dtype.bits == 32
        if own and isinstance(at, tirx.Ramp) and str(at.stride) == str(at.lanes) == str(SIDE):
            found.extend([item] if isinstance(at.base, tirx.IntImm) else [])

    if isinstance(statement, tirx.BufferStore):
        tvm_ffi.structural_walk(statement.value, (ir.TensorLoad, load))
    return found[0] if len(found) == 1 else None


def _of_columns(run: Sequence[tuple[Any, Any]]) -> list[Any]:
    """What makes the columns, and the stores that read them."""
    made: list[Any] = []

    def known(value: Any) -> Any:
        made.append(tirx.Bind(variable := tirx.Var("row", value.ty), value))
        return variable

    square = run[0][1].source
    rows = [known(tirx.BufferLoad(square, [tirx.Ramp(i * SIDE, 1, SIDE)])) for i in range(SIDE)]
    for distance, (width, lane) in zip((1, 2, 4, 8), ROUNDS, strict=True):
        own = [i for first in range(0, SIDE, lane) for i in range(first, first + lane // 2)]
        parts = [own[i : i + width] for i in range(0, len(own), width)]
        places = [place for part in parts for place in (*part, *(SIDE + i for i in part))]
        for i in (i for i in range(SIDE) if not i & distance):
            pair = [rows[i], rows[i + distance]]
            rows[i] = known(tirx.Shuffle(pair, places))
            rows[i + distance] = known(tirx.Shuffle(pair, [place + lane // 2 for place in places]))
    for number, (store, load) in enumerate(run):
        row = rows[number & ~3 | (number & 1) << 1 | (number & 2) >> 1]  # so the first two rounds leave them
        value = rewritten(store.value, ir.TensorLoad, partial(_instead, load, row))
        made.append(tirx.BufferStore(store.buffer, value, store.indices))
    return made


def _instead(load: Any, row: Any, item: Any) -> Any:
    return row if item.same_as(load) else item
