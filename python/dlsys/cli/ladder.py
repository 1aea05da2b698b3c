"""`python -m dlsys ladder`: the rungs of `cli.rungs`, checked, timed in turn with NumPy, and drawn."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from threadpoolctl import ThreadpoolController

from .. import timing
from ..devices import array, empty, get_num_threads, set_num_threads
from ..errors import DlsysError
from ..kernels.peak import measure_fma
from ..planner import table
from ..schedule import machine_of
from ..system import memory
from . import rungs as schedules

PAUSE = 0.04  # seconds before each turn: thread pools spin after their last task, OpenBLAS's for some 20 ms
TURN = 0.05  # seconds of calls in a turn, at least
MOST = 1.0  # seconds of all turns of a contender; a slow one has fewer rounds
LARGEST = 4  # values are whole numbers from -LARGEST to LARGEST


class WrongResult(DlsysError):
    """A rung whose result differs from NumPy's."""

    status = 1  # of the program


@dataclass(frozen=True)
class Row:
    """The measurement of one rung: GFLOP/s, and the ratios to the first rung, to the peak and to NumPy, the last two
    on as many threads."""

    title: str
    reason: str
    code: tuple[str, ...]
    threads: int
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
            (str(i), row.title, str(row.threads), number(row.gflops), f"{number(row.speed_up)}x",
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
            lines += [line, f"     # {row.reason}"]
            if row.code != shown:
                lines += [f"     {text}" for text in row.code]
            shown = row.code
        return "\n".join(lines)


def number(value: float) -> str:
    """The number with three significant digits, without an exponent."""
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 2
    return f"{value:.{min(digits, 4)}f}"


def climb(m: int, k: int, n: int, dtype: str, threads: int | None, rounds: int) -> Report:
    """Measures every rung of the product of (m, k) and (k, n) matrices: the last on `threads` threads (None: as many
    as kernels use now), the others on one.

    Raises WrongResult for a rung that differs from NumPy, DlsysError for sizes that do not fit into memory and for more
    threads than TVM's pool has.
    """
    needed = np.dtype(dtype).itemsize * (3 * m * k + 3 * k * n + 4 * m * n)  # operands, results and copies
    if needed > (held := memory()):
        told = f"it needs {needed / 2**30:.1f} GiB, this process has {held / 2**30:.1f} GiB"
        raise DlsysError(f"{m} x {k} x {n} is too large: {told}")
    before = get_num_threads()
    try:
        if threads is not None:
            set_num_threads(threads)
        return _climb((m, k, n), dtype, get_num_threads(), rounds)
    finally:
        set_num_threads(before)
        _status("")


def _climb(sizes: tuple[int, int, int], dtype: str, threads: int, rounds: int) -> Report:
    """The report of all rungs, timed in turn; see `climb`."""
    m, k, n = sizes
    counts = list(dict.fromkeys((1, threads)))
    _status("peak")
    peak = {count: measure_fma(count, dtype) for count in counts}
    rungs = schedules.rungs(m, k, n, dtype, threads)
    contenders = _contenders(rungs, sizes, dtype, counts)
    _status(f"timing, {rounds} rounds")
    timings = timing.in_turn(contenders, rounds, TURN, PAUSE, MOST)
    _status("peak")
    for count in counts:  # again, since the machine may have been busy the first time
        peak[count] = max(peak[count], measure_fma(count, dtype))

    gflops = [2 * m * n * k / timings[name].median / 1e9 for name in contenders]
    numpy = dict(zip(counts, gflops[len(rungs) :], strict=True))
    rows = []
    for rung, speed in zip(rungs, gflops, strict=False):
        ratios = speed / gflops[0], speed / peak[rung.threads], speed / numpy[rung.threads]
        rows.append(Row(rung.title, rung.reason, rung.code, rung.threads, speed, *ratios))
    machine, mcpu = machine_of(rungs[0].target), rungs[0].target.attrs["mcpu"]
    told = f"{mcpu}, vectors of {machine.vector_bits} bits, {machine.registers} registers"
    tile = schedules.tile_of(machine, m, k, n, dtype)
    shown = f"tile: {tile.rows} rows, {tile.columns} columns, {tile.lanes} lanes"
    return Report(sizes, dtype, told, shown, tuple(rows), peak, numpy)


def _contenders(
    rungs: Sequence[schedules.Rung], sizes: tuple[int, int, int], dtype: str, counts: Sequence[int]
) -> dict[str, timing.Runner]:
    """The rungs, each checked, then NumPy on each number of threads.

    The values are small whole numbers, so products and sums are exact, and results must agree to the bit whatever the
    order of the additions. Raises WrongResult.
    """
    m, k, n = sizes
    random = np.random.default_rng(0)
    a, b = (random.integers(-LARGEST, LARGEST + 1, of, np.int8).astype(dtype) for of in ((m, k), (k, n)))
    expected = a @ b
    arguments = [given.tensor for given in (array(a), array(b), empty((m, n), dtype))]
    result = np.from_dlpack(arguments[-1])
    contenders: dict[str, timing.Runner] = {}
    for i, rung in enumerate(rungs, start=1):
        _status(f"compiling and checking rung {i} of {len(rungs)}")
        contenders[rung.title] = timing.repeat(partial(schedules.compiled(rung), *arguments))
        result[...] = np.nan
        contenders[rung.title](1)
        if not np.array_equal(result, expected):
            raise WrongResult(f"rung {i}, {rung.title}, differs from NumPy at {m} x {k} x {n} in {dtype}")
    blas, multiply = ThreadpoolController(), timing.repeat(partial(np.matmul, a, b, out=np.empty_like(expected)))

    def on(count: int, times: int) -> None:
        with blas.limit(limits=count, user_api="blas"):
            multiply(times)

    return contenders | {f"NumPy, {count} threads": partial(on, count) for count in counts}


def _status(text: str) -> None:
    """Show the current action in a line of the terminal, which the next call replaces."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
