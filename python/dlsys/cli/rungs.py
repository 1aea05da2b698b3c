"""From TVM's default loops to the schedule in use, rung by rung: what each step of a matmul's schedule gains.

A step is a function of a schedule of `compute.matmul` and a tile; rung n is the first n steps. The tile is the
contraction rule's, so that the steps end where the rule begins. The lines of code that a rung shows are the source of
the functions that made it.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import s_tir, te, tirx
from tvm.target import Target

from .. import compute
from ..device import panels
from ..schedule import Rule, apply, machine_code
from ..schedule.common import bound_once
from ..schedule.cpu.tiles import choose
from ..schedule.products import product_of
from ..schedule.stages import read_stages
from ..schedule.target import Machine, host_target, machine_of, with_threads


@dataclass(frozen=True)
class RegisterTile:
    """The part of C that the accumulators hold: rows x columns, in vectors of some lanes."""

    rows: int
    columns: int
    lanes: int


@dataclass(frozen=True)
class Rung:
    """One schedule of the matmul.

    Attributes:
        title: what it adds to the rung before.
        reason: why that helps, in a sentence.
        code: the lines that do it.
        function: the scheduled loops.
        target: what they are compiled for.
        threads: how many they run on.
    """

    title: str
    reason: str
    code: tuple[str, ...]
    function: tirx.PrimFunc
    target: Target
    threads: int


# The steps -------------------------------------------------------------------------------------------------


def default_loops(m: int, n: int, k: int, dtype: str) -> tirx.PrimFunc:
    """C[i, j] += A[i, k] * B[k, j] as TVM makes it: every step goes to another row of B, and waits for the last sum."""
    a, b = compute.placeholder((m, k), dtype, "in0"), compute.placeholder((k, n), dtype, "in1")
    return te.create_prim_func([a, b, compute.matmul(a, b)])


def tiling(sch: s_tir.Schedule, tile: RegisterTile) -> None:
    """C tile by tile, down one panel of columns after the other: that panel of B stays in cache."""
    i, j, k = sch.get_loops("matmul")
    i, rows = sch.split(i, [None, tile.rows])
    j, columns = sch.split(j, [None, tile.columns])
    sch.reorder(j, i, k, rows, columns)
    for loop in (i, j):  # a ragged last tile gets loops of its own
        sch.annotate(loop, "pragma_loop_partition_hint", 1)


def clear_before(sch: s_tir.Schedule, tile: RegisterTile) -> None:
    """The zeros that sums start from, before the loop over k instead of within. Always last."""
    _, _, k, *_ = sch.get_loops("matmul")
    sch.decompose_reduction("matmul", k)


def vectorization(sch: s_tir.Schedule, tile: RegisterTile) -> None:
    """The columns of a tile a vector at a time."""
    *_, columns = sch.get_loops("matmul")
    _, lanes = sch.split(columns, [None, tile.lanes])
    sch.vectorize(lanes)


def packing(sch: s_tir.Schedule, tile: RegisterTile) -> None:
    """The panel of B copied together, once for all rows: it is then read in a stream, not a row of B apart."""
    panel, width = sch.cache_read("matmul", 1, "global"), tile.columns
    sch.transform_layout(panel, ("write", 0), lambda k, j: (j // width, k, j % width), pad_value=0.0)
    j, *_ = sch.get_loops("matmul")
    sch.compute_at(panel, j)
    *_, columns = sch.get_loops(panel)
    sch.vectorize(columns)


def register_tile(sch: s_tir.Schedule, tile: RegisterTile) -> None:
    """The tile of C in registers while k runs: a load of B serves all rows, and nothing is stored till the end."""
    _, i, _, rows, vectors, _ = sch.get_loops("matmul")
    store = sch.cache_write("matmul", 0, "local")
    sch.reverse_compute_at(store, i, preserve_unit_loops=True)
    *_, store_rows, columns = sch.get_loops(store)
    store_vectors, lanes = sch.split(columns, [None, tile.lanes])
    for loop in (rows, vectors, store_rows, store_vectors):
        sch.unroll(loop)
    sch.vectorize(lanes)


def in_use(func: tirx.PrimFunc, target: Target) -> tuple[tirx.PrimFunc, Rule]:
    """The schedule that every kernel gets: blocks for the caches, padded edges, other tiles for other shapes."""
    return apply(func, target)


STEPS = (tiling, vectorization, register_tile, packing)

# The rungs -------------------------------------------------------------------------------------------------


def rungs(m: int, n: int, k: int, dtype: str = "float32", threads: int = 1) -> list[Rung]:
    """The rungs of the product of (m, k) and (k, n) matrices: one thread on all but the last, which runs on `threads`
    and is left out where they are one."""
    serial = _target(1)
    plain = default_loops(m, n, k, dtype).with_attr("global_symbol", "matmul")
    tile = tile_of(machine_of(serial), m, n, k, dtype)
    found = [Rung("default loops", _reason(default_loops), body(default_loops), plain, serial, 1)]
    for count, step in enumerate(STEPS, start=1):
        sch = s_tir.Schedule(plain)
        for taken in (*STEPS[:count], clear_before):
            taken(sch, tile)
        code = body(step) + (body(clear_before) if count == 1 else ())
        function = bound_once(next(iter(sch.mod.functions.values())))
        found.append(Rung(step.__name__.replace("_", " "), _reason(step), code, function, serial, 1))
    for count in dict.fromkeys((1, threads)):
        target = _target(count)
        function, rule = in_use(plain, target)
        title = f"in use: {rule.name} rule" if count == 1 else f"parallel, {count} threads"
        reason = _reason(in_use) if count == 1 else f"The same, compiled for {count} cores."
        found.append(Rung(title, reason, body(in_use), function, target, count))
    return found


def tile_of(machine: Machine, m: int, n: int, k: int, dtype: str) -> RegisterTile:
    """The tile that the contraction rule takes for this product."""
    stages = read_stages(default_loops(m, n, k, dtype))
    found = product_of(stages[0], in_runs=True) if stages else None
    if found is None or not (found.m and found.n):  # an extent of 1, of which the rule makes no product
        return RegisterTile(panels.row_counts(m, machine)[0], machine.lanes(dtype), machine.lanes(dtype))
    _, chosen = choose(found, machine)
    return RegisterTile(chosen.rows, chosen.columns, chosen.lanes)


def compiled(rung: Rung) -> Callable[..., Any]:
    """The rung's machine code: a function of TVM tensors A, B and C."""
    return machine_code.compiled({"matmul": rung.function}, rung.target)["matmul"]


def _target(threads: int) -> Target:
    return with_threads(host_target(), threads)


def body(function: Callable[..., Any]) -> tuple[str, ...]:
    """The lines of a function after its docstring."""
    source = textwrap.dedent(inspect.getsource(function))
    definition = ast.parse(source).body[0]
    assert isinstance(definition, ast.FunctionDef)
    first = definition.body[1].lineno - 1
    return tuple(textwrap.dedent("\n".join(source.splitlines()[first:])).splitlines())


def _reason(function: Callable[..., Any]) -> str:
    return " ".join((inspect.getdoc(function) or "").split())
