"""Stages that share rows: softmax, its loss, their gradients. Each row runs through all of them at once.

Short rows become straight-line code over as many rows as a vector has lanes, everything in between in registers;
`long_rows` has the others.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from tvm import tirx

from ..codegen import VectorCode, block_of, sequence, steps, unravelled
from ..common import PARALLEL_WORK
from ..row_stages import Rows, find_rows, kept_buffers, work
from ..stages import Expr, Nests, extents, share, size
from ..sums import PARTS, is_plain, rounds
from ..target import Machine
from . import long_rows

SHORT_ROW = 16  # elements of a row that runs as straight-line code: its registers spill, and code grows
SHORT_VALUES = 160  # of all stages of such a row
PARALLEL_SHORT = 4 * PARALLEL_WORK  # simple operations; without memory to wait for, they take less time


def schedule(func: tirx.PrimFunc, machine: Machine) -> Nests | None:
    """The function with the loops of all that runs over rows; what is behind it has plain loops. None where there are
    no rows."""
    func = share(func)
    found = find_rows(func)
    if found is None or found.count < 1 or _is_for_parts(found):
        return None
    values = sum(size(stage.iters) // found.count for stage in found.stages)
    if found.length <= SHORT_ROW and values <= SHORT_VALUES:
        short = _short(func, found, machine)
        if short is not None:
            return short
    return long_rows.schedule(func, machine) if len(found.stages) > 1 else None


def _is_for_parts(rows: Rows) -> bool:
    """Whether rows are too few for threads, each long enough for several, and their reductions can be cut into parts
    without another result: maxima, minima and sums of integers."""
    exact = not any(rounds(stage) or not is_plain(stage) for stage in rows.stages if stage.reduced)
    return exact and rows.count < PARTS and work(rows) >= max(rows.count, 4) * PARALLEL_WORK


def _short(func: tirx.PrimFunc, rows: Rows, machine: Machine) -> Nests | None:
    """A vector of rows at a time, a row a lane."""
    lanes = machine.lanes(rows.stages[0].buffer.dtype)
    kept = kept_buffers(func, rows)
    if any(stage.reduced and not is_plain(stage) for stage in rows.stages):
        return None

    def code(index: Expr, vector: VectorCode) -> None:
        _row(rows, kept, unravelled(index, rows.shape), vector)

    parallel = work(rows) >= PARALLEL_SHORT
    loops = steps(0, rows.count, _width(rows.count, lanes), parallel, code)
    nest = block_of("rows", sequence(loops))
    return func, [(nest, None), *((stage.loops, stage) for stage in rows.rest)], []


def _width(count: int, lanes: int) -> int:
    """Rows at a time: a vector, or half or a quarter of one where that leaves no remainder, which doubles the code."""
    exact = next(
        (width for width in (lanes, lanes // 2, lanes // 4) if width >= 4 and count % width == 0), None
    )
    return exact or min(lanes, count)


def _row(rows: Rows, kept: set[Any], row: list[Expr], vector: VectorCode) -> None:
    """All stages of a row, without a loop."""
    rank = len(row)
    known: dict[tuple[Any, tuple[int, ...]], Expr] = {}
    inside = {stage.buffer for stage in rows.stages}

    def of_row(load: Expr) -> Expr | None:
        if load.source not in inside:
            return None
        return known[load.source, tuple(int(index) for index in load.indices[rank:])]

    for stage in rows.stages:
        columns = stage.spatial[rank:]
        for position in product(*map(range, extents(columns))):
            terms = []
            for term in product(*map(range, extents(stage.reduced))):
                names = {v.var: index for v, index in zip(stage.spatial, row, strict=False)}
                for v, number in zip([*columns, *stage.reduced], [*position, *term], strict=True):
                    names[v.var] = tirx.const(number, "int32")
                one = stage.value.b if stage.reduced else stage.value
                terms.append(vector.value(vector.evaluate(one, names, of_row)))
            if stage.reduced and len(terms) == 1:
                terms.insert(0, stage.init)
            while len(terms) > 1:  # by pairs: additions wait less for each other, and round less
                pairs = zip(terms[::2], terms[1::2], strict=False)
                terms = [vector.value(type(stage.value)(a, b)) for a, b in pairs] + terms[len(terms) & ~1 :]
            known[stage.buffer, position] = terms[0]
            if stage.buffer in kept:
                vector.store(stage.buffer, terms[0], [*row, *position])
