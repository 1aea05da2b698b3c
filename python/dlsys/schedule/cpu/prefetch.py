"""Memory fetched ahead of its use, where the processor does not foresee it: a tile's rows, which lie apart, the next
panel of weights (`mark_next_source`), rows that elements are picked of (`next_row`), and huge arrays beyond the page
being read (`lines_from`).

A product's schedule marks the loop over k (`mark`); `insert` puts one prefetch into each of its steps. What is fetched
is at the address of the operand's load, so many steps on; beyond the end of an array that is harmless, since a prefetch
never faults. The lines that a tile is stored to are fetched before it is computed (`mark_store`): a product of 64 x 27
and 27 x 12,321 matrices took 420 us where it had taken 600 to 800.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import tvm_ffi
from tvm import DataType, ir, s_tir, sym, tirx
from tvm.s_tir.schedule import LoopRV

from ..common import renamed, rewritten, strides_of
from ..roles import Roles
from ..stages import Stage

MARK, PANEL, SOURCE, STORE = "prefetch", "prefetch_panel", "prefetch_source", "prefetch_store"
LINE = 64  # bytes that are fetched at once
FAR = 16 * 1024  # elements of a C that L1 does not hold, whose rows lie apart
COLD = 256 * 1024  # elements of a B that is not in the caches when its turn comes
BEYOND_L1 = 32 * 1024  # elements of a B that may lie in L3
HUGE = 8 * 1024 * 1024  # elements of an array that no cache holds
AHEAD = 2048  # elements ahead of what a sum reads straight on: beyond a page, where the processor's own fetches end
STEPS = 40  # of k ahead: some 250 ns, the latency of memory, at 6 ns a step
INTO_L2 = 2  # LLVM's locality; into L1 was 4 % slower, where the panel of B lies
DATA_CACHE = 1


def mark(sch: s_tir.Schedule, loop: LoopRV, operand: int, rows: int) -> None:
    """Has each step of a loop over k prefetch a part of A, which is the product's factor `operand`.

    `rows` is the number of a tile's rows where A is contiguous along k: its steps together fetch the next tile. Where A
    is contiguous along its rows it is 0: each step fetches what a later one reads.
    """
    sch.annotate(loop, MARK, [operand, rows])


def mark_next_panel(sch: s_tir.Schedule, loop: LoopRV, operand: int, tile: tuple[int, int], r: Roles) -> None:
    """Has the steps of a loop over k together fetch the next panel of B, which is the product's factor `operand`.

    A panel comes from memory for the first tile of rows and from L2 for the others: while these run the memory is idle.
    `tile` is a tile's rows and the panels' columns.
    """
    sch.annotate(loop, PANEL, [operand, *tile, r.size(r.m), r.size(r.k), len(r.k)])


def mark_next_source(sch: s_tir.Schedule, loop: LoopRV, sources: Any, tile: tuple[int, int], r: Roles) -> None:
    """Has the steps of a loop over k together fetch the columns of B that the next panel is made of, or is, where B is
    a matrix that the function is given: weights, which a network reads once a pass.

    `sources` are the buffers that B is made of, `tile` a tile's rows and the panels' columns. A product of 80 x 256 x
    256 with weights from L3 took 104 us where it had taken 124.
    """
    if len(sources) != 1 or len(sources[0].shape) != 2:
        return
    params = next(iter(sch.mod.functions.values())).params
    place = next((i for i, given in enumerate(params) if given.same_as(sources[0])), None)
    if place is not None:
        along_k = int(r.contiguous[1 - r.a] == r.last(r.k))
        sch.annotate(loop, SOURCE, [place, along_k, *tile, r.size(r.m), r.size(r.k)])


def mark_store(sch: s_tir.Schedule, loop: LoopRV) -> None:
    """Has the lines of C that a tile is stored to, by loops of which this is the outermost, fetched before the tile is
    computed."""
    sch.annotate(loop, STORE, 1)


def next_row(stage: Stage, row: Sequence[Any]) -> list[tirx.Stmt]:
    """The fetches of the row of an array behind the one that the stage picks elements of at this index, where so many
    are picked that most of a row's lines are read. Their order tells the processor nothing."""
    *rows, last = stage.iters
    for load in stage.loads():
        shape, line = [int(extent) for extent in load.source.shape], _line(load.source)
        own = len(shape) == len(rows) + 1 and all(i.same_as(v.var) for i, v in zip(load.indices, rows, strict=False))
        many = int(last.dom.extent) * line >= shape[-1] and math.prod(shape) >= COLD
        if own and many and strides_of(stage.block, load.source, load.indices) is None:
            at = tirx.Var("line", "int32")
            fetch = _fetch(load.source, [*row, shape[-1] + at * line], to_write=0)
            return [tirx.For(at, 0, -(-shape[-1] // line), tirx.ForKind.SERIAL, fetch)]
    return []


def is_huge(load: Any) -> bool:
    """Whether a load is of an array that no cache holds."""
    return math.prod(int(extent) for extent in load.source.shape) >= HUGE


def lines_from(buffer: Any, indices: Sequence[Any], count: int) -> list[tirx.Stmt]:
    """The fetches of the lines of so many elements from an index on."""
    *lead, last = indices
    starts = range(0, count, _line(buffer))
    return [_fetch(buffer, [*lead, last + at], to_write=0) for at in starts]


def lines(buffer: Any, indices: Sequence[Any], lane: Any, width: int) -> list[tirx.Stmt]:
    """The fetches of the lines of a vector of so many lanes."""
    lanes = (tirx.IntImm("int32", at) for at in range(0, width, _line(buffer)))
    return [_fetch(buffer, renamed(tvm_ffi.convert(list(indices)), {lane: at}), to_write=0) for at in lanes]


def is_far(load: Any) -> bool:
    """Whether a load is of a large array, at a place that no other array says."""
    found: list[Any] = []
    tvm_ffi.structural_walk(load, (ir.TensorLoad, found.append))
    return len(found) == 1 and math.prod(int(extent) for extent in load.source.shape) >= COLD


def _loads(block: s_tir.SBlock) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(block.body, (ir.TensorLoad, found.append))
    return found


def _line(buffer: Any) -> int:
    """Elements of a cache line."""
    return LINE * 8 // max(DataType(str(buffer.dtype)).bits, 8)


def insert(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with prefetches in the loops that were marked."""
    body = rewritten(func.body, tirx.For, lambda loop: _with_prefetch(loop, func.params))
    return func.with_body(rewritten(body, tirx.SeqStmt, _with_stores))


def _with_stores(statements: tirx.SeqStmt) -> tirx.SeqStmt:
    """A tile's statements, the last of which is a marked store, with prefetches before them."""
    *before, store = statements.seq
    if not (isinstance(store, tirx.For) and STORE in store.annotations):
        return statements
    loop = tirx.For(store.loop_var, store.min, store.extent, store.kind, store.body)
    return tirx.SeqStmt([_fetches(loop, {}), *before, loop])


def _fetches(nest: tirx.Stmt, names: dict[Any, Any]) -> tirx.Stmt:
    """The loops of a store, each of whose vectors is fetched."""
    if isinstance(nest, s_tir.SBlockRealize):
        store = nest.block.body
        values = dict(zip((v.var for v in nest.block.iter_vars), nest.iter_values, strict=True))
        place = [sym.Analyzer().simplify(renamed(renamed(index, values), names)) for index in store.indices]
        return _fetch(store.buffer, place, to_write=1)
    if nest.kind == tirx.ForKind.VECTORIZED:
        return _fetches(nest.body, {**names, nest.loop_var: tirx.IntImm("int32", 0)})
    var = tirx.Var(nest.loop_var.name, nest.loop_var.ty)
    return tirx.For(var, nest.min, nest.extent, nest.kind, _fetches(nest.body, {**names, nest.loop_var: var}))


def _with_prefetch(loop: tirx.For, given: Sequence[Any]) -> tirx.For:
    """A marked loop that asks for what it reads some steps later; `given` are the function's arguments."""
    marks = {name: [*map(int, loop.annotations[name])] for name in (MARK, PANEL, SOURCE) if name in loop.annotations}
    if not marks:
        return loop
    fetches = []
    if MARK in marks:
        fetches.append(_next_rows(loop, *marks[MARK]))
    if PANEL in marks:
        fetches.append(_next_panel(loop, *marks[PANEL]))
    if SOURCE in marks:
        place, *numbers = marks[SOURCE]
        fetches += _next_source(loop, given[place], *numbers)
    rest = {key: value for key, value in loop.annotations.items() if key not in marks}
    body = tirx.SeqStmt([*fetches, loop.body])
    return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, annotations=rest)


def _step(loop: tirx.For, operand: int, first: int) -> tuple[Any, dict[Any, Any], dict[Any, Any]]:
    """Of a loop over k the load of an operand, the iterators' values, and the start of the loops over the tile; the
    outermost of them starts at `first`."""
    start: dict[Any, Any] = {}
    inner = loop.body
    while isinstance(inner, tirx.For):
        start[inner.loop_var] = tirx.IntImm("int32", 0 if start else first)
        inner = inner.body
    load = (inner.block.body.value.b.a, inner.block.body.value.b.b)[operand]
    return load, dict(zip((v.var for v in inner.block.iter_vars), inner.iter_values, strict=True)), start


def _next_rows(loop: tirx.For, operand: int, rows: int) -> tirx.Stmt:
    """The fetch of the rows of A that a later step of the loop reads, see `mark`."""
    load, values, start = _step(loop, operand, rows)
    start[loop.loop_var] = loop.loop_var * rows if rows else loop.loop_var + STEPS
    return _fetch(load.source, [renamed(renamed(i, values), start) for i in load.indices], to_write=0)


def _next_panel(
    loop: tirx.For, operand: int, rows: int, columns: int, m: int, terms: int, axes: int
) -> tirx.Stmt:
    """The fetch of a line of the next panel, in a step of the loop over this one, see `mark_next_panel`."""
    load, values, start = _step(loop, operand, 0)
    *batch, row, column, term = (renamed(value, start) for value in values.values())
    element = tirx.floordiv((tirx.floordiv(row, rows) * terms + term) * columns, -(-m // rows))
    own = len(load.indices) - axes - 2  # indices of a batch, whose last panel is followed by the next one's first
    index = [*batch[len(batch) - own :], tirx.floordiv(column, columns) + 1, *(0,) * axes, element]
    return _fetch(load.source, index, to_write=0)


def _next_source(
    loop: tirx.For, source: Any, along_k: int, rows: int, columns: int, m: int, terms: int
) -> list[tirx.Stmt]:
    """The fetches of lines of B, in a step of the loop over a panel, see `mark_next_source`."""
    _, values, start = _step(loop, 0, 0)
    simple = sym.Analyzer().simplify
    *_, row, column, term = (renamed(value, start) for value in values.values())
    tiles, line = -(-m // rows), _line(source)
    lines = -(-(terms if along_k else columns) // line)  # of a row of B, as far as the panel has it
    share = Fraction(columns, line * tiles) if along_k else Fraction(lines, tiles)  # lines a step
    step = simple(tirx.floordiv(row, rows)) * terms + term
    first = simple(tirx.floordiv(column, columns) + 1) * columns
    fetches = []
    for number in range(math.ceil(share)):
        if share > 1:
            place = step * math.ceil(share) + number
        else:
            place = tirx.floordiv(step * share.numerator, share.denominator)
        outer, inner = tirx.floordiv(place, lines), tirx.floormod(place, lines) * line
        index = [first + outer, inner] if along_k else [outer, first + inner]
        fetches.append(_fetch(source, index, to_write=0))
    return fetches


def _fetch(buffer: Any, indices: Any, to_write: int) -> tirx.Stmt:
    """The fetch of the line of an element."""
    at = tirx.address_of(buffer[tuple(indices)])
    numbers = [tirx.IntImm("int32", number) for number in (to_write, INTO_L2, DATA_CACHE)]
    return tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", at, *numbers))
