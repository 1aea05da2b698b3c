"""What each step of a matrix product's schedule gains: `python apps/ladder.py M K N`.

Times the product of an M x K and a K x N matrix under one schedule after another, from TVM's default loops to the
schedule in use, each compared with NumPy before it is timed. The last rung runs on all threads, the others on one; peak
is the machine's multiply-adds, measured on as many.

A step is a function of a TVM schedule of `compute.matmul` and a tile; a rung has its step and all before it. The tile
is the contraction rule's, so that the last step is close to the rule's loops. A rung shows the source lines of its
step.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import math
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dlsys as dl
import numpy as np
from dlsys import cli, compute
from dlsys.devices import panels
from dlsys.errors import DlsysError
from dlsys.kernels.peak import measure_fma
from dlsys.planner import table
from dlsys.schedule import Rule, apply, machine_code
from dlsys.schedule.common import bound_once
from dlsys.schedule.cpu.cost import choose
from dlsys.schedule.cpu.nest import Nest
from dlsys.schedule.stages import read_stages
from dlsys.schedule.target import Machine, host_target, machine_of
from dlsys.system import memory
from threadpoolctl import ThreadpoolController
from tvm import s_tir, te, tirx
from tvm.target import Target

sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))
import timing

MOST_ELEMENTS = 2**31 - 1  # of a matrix: kernels count in 32 bits
PAUSE = 0.04  # seconds before each turn: thread pools spin after their last task, OpenBLAS's for some 20 ms
TURN = 0.05  # seconds of calls in a turn, at least
MOST = 1.0  # seconds of all turns of a contender; a slow one has fewer rounds
LARGEST = 4  # values are whole numbers from -LARGEST to LARGEST


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
    serial = host_target(1)
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
        target = host_target(count)
        function, rule = in_use(plain, target)
        title = f"in use: {rule.name} rule" if count == 1 else f"parallel, {count} threads"
        reason = _reason(in_use) if count == 1 else f"The same, compiled for {count} cores."
        found.append(Rung(title, reason, body(in_use), function, target, count))
    return found


def tile_of(machine: Machine, m: int, k: int, n: int, dtype: str) -> RegisterTile:
    """The tile that the contraction rule takes for this product."""
    stages = read_stages(default_loops(m, k, n, dtype))
    nest = Nest(stages[0], machine) if stages else None
    plan = choose(nest) if nest is not None and nest.is_linear else None
    lanes = machine.lanes(dtype)
    if plan is None or plan.along >= 2 or not plan.rows:  # of a vector, or with vectors along k
        return RegisterTile(panels.row_counts(m, machine)[0], lanes, lanes)
    return RegisterTile(plan.counts[0], plan.width, lanes)


def compiled(rung: Rung) -> Callable[..., Any]:
    """The rung's machine code: a function of TVM tensors A, B and C."""
    return machine_code.compiled({"matmul": rung.function}, rung.target)["matmul"]


def body(function: Callable[..., Any]) -> tuple[str, ...]:
    """The lines of a function after its docstring."""
    source = textwrap.dedent(inspect.getsource(function))
    definition = ast.parse(source).body[0]
    assert isinstance(definition, ast.FunctionDef)
    first = definition.body[1].lineno - 1
    return tuple(textwrap.dedent("\n".join(source.splitlines()[first:])).splitlines())


def _reason(function: Callable[..., Any]) -> str:
    return " ".join((inspect.getdoc(function) or "").split())


# The measurement -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """The measurement of one rung: GFLOP/s, and the ratios to the first rung, to the peak and to NumPy, the last two
    on as many threads."""

    rung: Rung
    gflops: float
    speed_up: float
    of_peak: float
    of_numpy: float


@dataclass(frozen=True)
class Report:
    """The ladder of one product; `print` it. Peak and NumPy are GFLOP/s by number of threads."""

    sizes: tuple[int, int, int]
    dtype: str
    machine: str
    tile: str
    rows: tuple[Row, ...]
    peak: dict[int, float]
    numpy: dict[int, float]

    @property
    def title(self) -> str:
        """The product and its dtype, as a heading."""
        m, k, n = self.sizes
        return f"matmul {m} x {k} by {k} x {n}, {self.dtype}"

    def __str__(self) -> str:
        """The machine, and of each rung its speed, the reason, and the lines of code that it adds."""
        head = ("", "rung", "threads", "GFLOP/s", "speed-up", "of peak", "of NumPy")
        cells = [
            (str(i), row.rung.title, str(row.rung.threads), number(row.gflops), f"{number(row.speed_up)}x",
             f"{row.of_peak:.1%}", f"{row.of_numpy:.1%}")
            for i, row in enumerate(self.rows, start=1)
        ]  # fmt: skip
        first, *told = table([head, *cells], "><>>>>>").splitlines()
        lines = [f"{self.title}; {self.machine}", self.tile]
        for threads, peak in self.peak.items():
            on = "1 thread" if threads == 1 else f"{threads} threads"
            lines.append(f"{on}: peak {number(peak)} GFLOP/s, NumPy {number(self.numpy[threads])}")
        lines += ["", first]
        shown: tuple[str, ...] = ()
        for row, line in zip(self.rows, told, strict=True):
            lines += [line, f"     # {row.rung.reason}"]
            if row.rung.code != shown:
                lines += [f"     {text}" for text in row.rung.code]
            shown = row.rung.code
        return "\n".join(lines)


def number(value: float) -> str:
    """The number with three significant digits, without an exponent."""
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 2
    return f"{value:.{min(digits, 4)}f}"


def climb(m: int, k: int, n: int, dtype: str, threads: int | None, rounds: int) -> Report:
    """Measures every rung of the product of (m, k) and (k, n) matrices: the last on `threads` threads (None: as many
    as kernels use now), the others on one.

    Raises DlsysError for a rung that differs from NumPy, for sizes that do not fit into memory, and for more threads
    than TVM's pool has.
    """
    if max(m * k, k * n, m * n) > MOST_ELEMENTS:
        raise DlsysError(f"{m} x {k} x {n} is too large: each matrix must have fewer than 2**31 elements")
    needed = np.dtype(dtype).itemsize * (3 * m * k + 3 * k * n + 4 * m * n)  # operands, results and copies
    if needed > (held := memory()):
        told = f"it needs {needed / 2**30:.1f} GiB, this process has {held / 2**30:.1f} GiB"
        raise DlsysError(f"{m} x {k} x {n} is too large: {told}")
    before = dl.get_num_threads()
    try:
        if threads is not None:
            dl.set_num_threads(threads)
        return _climb((m, k, n), dtype, dl.get_num_threads(), rounds)
    finally:
        dl.set_num_threads(before)
        _status("")


def _climb(sizes: tuple[int, int, int], dtype: str, threads: int, rounds: int) -> Report:
    """The report of all rungs, timed in turn; see `climb`."""
    m, k, n = sizes
    counts = list(dict.fromkeys((1, threads)))
    _status("peak")
    peak = {count: measure_fma(count, dtype) for count in counts}
    compared = rungs(m, k, n, dtype, threads)
    contenders = _contenders(compared, sizes, dtype, counts)
    _status(f"timing, {rounds} rounds")
    timings = timing.in_turn(contenders, rounds, TURN, PAUSE, MOST)
    _status("peak")
    for count in counts:  # again, since the machine may have been busy the first time
        peak[count] = max(peak[count], measure_fma(count, dtype))

    gflops = [2 * m * n * k / timings[name] / 1e9 for name in contenders]
    numpy = dict(zip(counts, gflops[len(compared) :], strict=True))
    rows = []
    for rung, speed in zip(compared, gflops, strict=False):
        ratios = speed / gflops[0], speed / peak[rung.threads], speed / numpy[rung.threads]
        rows.append(Row(rung, speed, *ratios))
    machine, mcpu = machine_of(compared[0].target), compared[0].target.attrs["mcpu"]
    told = f"{mcpu}, vectors of {machine.vector_bits} bits, {machine.registers} registers"
    tile = tile_of(machine, m, k, n, dtype)
    shown = f"tile: {tile.rows} rows, {tile.columns} columns, {tile.lanes} lanes"
    return Report(sizes, dtype, told, shown, tuple(rows), peak, numpy)


def _contenders(
    compared: Sequence[Rung], sizes: tuple[int, int, int], dtype: str, counts: Sequence[int]
) -> dict[str, timing.Runner]:
    """The rungs, each checked, then NumPy on each number of threads.

    The values are small whole numbers, so products and sums are exact, and results must agree to the bit whatever the
    order of the additions. Raises DlsysError.
    """
    m, k, n = sizes
    random = np.random.default_rng(0)
    a, b = (random.integers(-LARGEST, LARGEST + 1, of, np.int8).astype(dtype) for of in ((m, k), (k, n)))
    expected = a @ b
    operands = [array.tensor for array in (dl.array(a), dl.array(b), dl.empty((m, n), dtype=dtype))]
    result = np.from_dlpack(operands[-1])
    contenders: dict[str, timing.Runner] = {}
    for i, rung in enumerate(compared, start=1):
        _status(f"compiling and checking rung {i} of {len(compared)}")
        contenders[rung.title] = timing.repeat(partial(compiled(rung), *operands))
        result[...] = np.nan
        contenders[rung.title](1)
        if not np.array_equal(result, expected):
            raise DlsysError(f"rung {i}, {rung.title}, differs from NumPy at {m} x {k} x {n} in {dtype}")
    blas, multiply = ThreadpoolController(), timing.repeat(partial(np.matmul, a, b, out=np.empty_like(expected)))

    def on(count: int, times: int) -> None:
        with blas.limit(limits=count, user_api="blas"):
            multiply(times)

    return contenders | {f"NumPy, {count} threads": partial(on, count) for count in counts}


def _status(text: str) -> None:
    """Show the current action in a line of the terminal, which the next call replaces."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", type=count, metavar="M K N", help="default: 1024 1024 1024")
    parser.add_argument("--threads", type=count, metavar="N",
                        help="threads of the last rung (default: all); 1 leaves it out")  # fmt: skip
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32", help="default: float32")
    parser.add_argument("--rounds", type=count, default=7, metavar="N",
                        help="times that each is timed, slow ones less often (default: 7)")  # fmt: skip
    options = parser.parse_args(given)
    if len(options.sizes) not in (0, 3):
        parser.error(f"takes the three sizes M K N of an M x K and a K x N matrix, or none; given {len(options.sizes)}")
    return options


def count(text: str) -> int:
    """An argument that is an integer of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of 1 or more, not {text!r}")
    return int(text)


def main(options: argparse.Namespace) -> None:
    """Prints the measurements."""
    m, k, n = options.sizes or (1024, 1024, 1024)
    print(climb(m, k, n, options.dtype, options.threads, options.rounds))


if __name__ == "__main__":
    sys.exit(cli.run(sys.argv[0], lambda: main(arguments())))
