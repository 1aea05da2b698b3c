"""The rungs of `python -m dlsys ladder`: matmul's loops from TVM's default to the schedule in use, step by step.

A step is a function of a TVM schedule of `compute.matmul` and a tile; a rung has its step and all before it. The tile
is the contraction rule's, so that the last step is close to the rule's loops. A rung shows the source lines of its
step.
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
from ..devices import panels
from ..schedule import Rule, apply, machine_code
from ..schedule.common import bound_once
from ..schedule.cpu.tiles import choose
from ..schedule.products import product_of
from ..schedule.stages import read_stages
from ..schedule.target import Machine, host_target, machine_of, with_threads


@dataclass(frozen=True)
class RegisterTile:
    """The part of C that the accumulators hold: rows x columns, in vectors of `lanes` elements."""

    rows: int
    columns: int
    lanes: int


@dataclass(frozen=True)
class Rung:
    """One schedule of the matmul.

    Attributes:
        title: its step.
        reason: why the step helps, in a sentence.
        code: the step's source lines.
        function: the scheduled loops.
        target: the target for which they are compiled.
        threads: the number of threads on which they run.
    """

    title: str
    reason: str
    code: tuple[str, ...]
    function: tirx.PrimFunc
    target: Target
    threads: int


# The steps -------------------------------------------------------------------------------------------------


def default_loops(m: int, k: int, n: int, dtype: str) -> tirx.PrimFunc:
    """C[i, j] += A[i, k] * B[k, j] as TVM makes it: each step reads another row of B, and waits for the last sum."""
    a, b = compute.placeholder((m, k), dtype, "in0"), compute.placeholder((k, n), dtype, "in1")
    return te.create_prim_func([a, b, compute.matmul(a, b)])


def tiling(sch: s_tir.Schedule, tile: RegisterTile) -> None:
    """C tile by tile, down one panel of columns after another, so that this panel of B stays in cache."""
    i, j, k = sch.get_loops("matmul")
    i, rows = sch.split(i, [None, tile.rows])
    j, columns = sch.split(j, [None, tile.columns])
    sch.reorder(j, i, k, rows, columns)
    for loop in (i, j):  # separate loops for a smaller last tile
        sch.annotate(loop, "pragma_loop_partition_hint", 1)


def clear_before(sch: s_tir.Schedule, tile: RegisterTile) -> None:
    """The zeros that sums start from, before the loop over k instead of inside it. Always the last call."""
    _, _, k, *_ = sch.get_loops("matmul")
    sch.decompose_reduction("matmul", k)


def vectorization(sch: s_tir.Schedule, tile: RegisterTile) -> None:
    """The columns of a tile a vector at a time."""
    *_, columns = sch.get_loops("matmul")
    _, lanes = sch.split(columns, [None, tile.lanes])
    sch.vectorize(lanes)


def packing(sch: s_tir.Schedule, tile: RegisterTile) -> None:
    """The panel of B is copied once for all rows, so that steps of k read consecutive memory, not rows of B 1 KB
    apart."""
    panel, width = sch.cache_read("matmul", 1, "global"), tile.columns
    sch.transform_layout(panel, ("write", 0), lambda k, j: (j // width, k, j % width), pad_value=0.0)
    j, *_ = sch.get_loops("matmul")
    sch.compute_at(panel, j)
    *_, columns = sch.get_loops(panel)
    sch.vectorize(columns)


def register_tile(sch: s_tir.Schedule, tile: RegisterTile) -> None:
    """The tile of C stays in registers while k runs: a load of B serves all rows, and nothing is stored until the
    end."""
    _, i, _, rows, vectors, _ = sch.get_loops("matmul")
    store = sch.cache_write("matmul", 0, "local")
    sch.reverse_compute_at(store, i, preserve_unit_loops=True)
    *_, store_rows, columns = sch.get_loops(store)
    store_vectors, lanes = sch.split(columns, [None, tile.lanes])
    for loop in (rows, vectors, store_rows, store_vectors):
        sch.unroll(loop)
    sch.vectorize(lanes)


def in_use(func: tirx.PrimFunc, target: Target) -> tuple[tirx.PrimFunc, Rule]:
    """The schedule of kernels: blocks that fit into the caches, and a tile that suits the shape."""
    return apply(func, target)


STEPS = (tiling, vectorization, register_tile, packing)

# The rungs -------------------------------------------------------------------------------------------------


def rungs(m: int, k: int, n: int, dtype: str = "float32", threads: int = 1) -> list[Rung]:
    """The rungs of the product of (m, k) and (k, n) matrices, on one thread; if `threads` is more, the schedule in use
    on that many threads is the last one."""
    serial = _target(1)
    plain = default_loops(m, k, n, dtype).with_attr("global_symbol", "matmul")
    tile = tile_of(machine_of(serial), m, k, n, dtype)
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


def tile_of(machine: Machine, m: int, k: int, n: int, dtype: str) -> RegisterTile:
    """The tile that the contraction rule takes for this product."""
    stages = read_stages(default_loops(m, k, n, dtype))
    found = product_of(stages[0], in_runs=True) if stages else None
    if found is None or not (found.m and found.n):  # an extent of 1: the rule declines
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
