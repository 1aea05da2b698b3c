"""What the benchmarks share: threads, timing in turn, the machine's FMA peak, tables.

A benchmark is a program that runs itself again, once per thread count, because every library reads its number
of threads when it is imported. Use nothing but this file before `thread_environment` has taken effect.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from timing import Runner, Timing, in_turn, repeat, summary  # noqa: F401 - the benchmarks' names

# Seconds before a turn. Thread pools spin after their last task: OpenBLAS's for 0.1 s, on a core that the next needs.
PAUSE = 0.2 if os.environ.get("OPENBLAS_NUM_THREADS") != "1" else 0.02
QUIET = 0.1  # cores that others may keep busy in a measurement worth keeping
RESULTS = Path(__file__).resolve().parent / "results"

# Threads ---------------------------------------------------------------------------------------------------


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_environment(threads: int) -> dict[str, str]:
    """The variables that give TVM, OpenMP, OpenBLAS, MKL and XLA that many threads."""
    names = ("TVM_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    environment = dict.fromkeys(names, str(threads))
    environment["JAX_PLATFORMS"] = "cpu"
    # XLA takes its pool's size from NPROC; the first flag keeps Eigen's own pool out of one-thread runs.
    environment["NPROC"] = str(threads)
    environment["XLA_FLAGS"] = f"--xla_cpu_multi_thread_eigen={str(threads > 1).lower()}"
    return environment


def run_with_threads(script: str, threads: int, arguments: Sequence[str]) -> Any:
    """Runs `script ARGUMENTS --child FILE` in a process with that many threads; returns the JSON of FILE.

    Where the child fails, and has said why, this process ends with its status.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        command = [sys.executable, script, *arguments, "--child", str(path)]
        if threads < 1:
            print(f"--threads: counts of 1 or more, not {threads}", file=sys.stderr)
            sys.exit(2)
        environment = {**os.environ, **thread_environment(threads)}
        if status := subprocess.run(command, env=environment, check=False).returncode:
            sys.exit(status if status > 0 else 128 - status)  # as a shell reports signals
        return json.loads(path.read_text(encoding="utf-8"))


# The machine -----------------------------------------------------------------------------------------------


def cpu_model() -> str:
    """The processor's name as the system gives it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def version(package: str) -> str | None:
    """The installed version of a package, None without it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def numpy_kernels() -> str:
    """The CPU for which NumPy's OpenBLAS has chosen its kernels, which OPENBLAS_CORETYPE can overrule; empty where it
    does not tell."""
    import numpy as np  # noqa: F401 - whose library is asked
    from threadpoolctl import threadpool_info

    found = [library for library in threadpool_info() if library.get("internal_api") == "openblas"]
    return str(found[0].get("architecture", "")) if found else ""


def machine() -> dict[str, Any]:
    """Processor, cores, and the versions of what takes part."""
    packages = ("dlsys", "apache-tvm", "apache-tvm-ffi", "numpy", "torch", "jax")
    versions = {package: version(package) for package in packages}
    return {
        "cpu": cpu_model(),
        "cores": available_cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {package: number for package, number in versions.items() if number},
        "kernels": numpy_kernels(),
    }


def machine_line(description: dict[str, Any]) -> str:
    """`machine()` in one line."""
    versions = ", ".join(f"{package} {number}" for package, number in description["versions"].items())
    return (
        f"{description['cpu']}, {description['cores']} cores, {description['system']}, "
        f"Python {description['python']}; {versions}"
        + (f"; NumPy's OpenBLAS for {description['kernels']}" if description.get("kernels") else "")
    )


class OtherLoad:
    """How many cores other processes kept busy since this object was made: what spoils a measurement."""

    def __init__(self) -> None:
        self.start = self._clocks()

    @staticmethod
    def _clocks() -> tuple[float, float] | None:
        """(wall clock, processor seconds used by others); None where the system does not tell."""
        stat = Path("/proc/stat")
        if not stat.exists():
            return None
        user, nice, system, _, _, irq, softirq = map(int, stat.read_text(encoding="utf-8").split()[1:8])
        own = os.times()
        busy = (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
        return time.monotonic(), busy - own.user - own.system - own.children_user - own.children_system

    def cores(self) -> float | None:
        """The mean number of busy cores; None where the system does not tell."""
        now = self._clocks()
        if now is None or self.start is None:
            return None
        return max(0.0, (now[1] - self.start[1]) / max(now[0] - self.start[0], 1e-9))


# Timing ----------------------------------------------------------------------------------------------------


def alternate(runners: dict[str, Runner], rounds: int, min_time: float) -> dict[str, Timing]:
    """Times contenders in turn, each turn after a pause."""
    return in_turn(runners, rounds, min_time, PAUSE)


def geometric_mean(values: Sequence[float]) -> float:
    """The n-th root of the product of n positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))


# The machine's peak ----------------------------------------------------------------------------------------


def host_target() -> Any:
    """TVM's LLVM target for this processor."""
    from tvm.target import Target

    return Target.from_device("cpu")


def fma_peak(threads: int) -> float:
    """GFLOP/s of float32 multiply-adds on that many threads: the best of all rounds."""
    from dlsys.kernels import peak  # imports TVM

    return peak.fma_peak(threads)


# Tables ----------------------------------------------------------------------------------------------------


def number(value: float | None) -> str:
    """Three significant digits, without exponents; whole an integer; a dash for None."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return str(value)
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 2
    return f"{value:.{min(digits, 4)}f}"


def table(header: Sequence[str], rows: Sequence[Sequence[str | float | None]]) -> str:
    """A Markdown table, its columns aligned; text at the left, numbers at the right."""
    cells = [[cell if isinstance(cell, str) else number(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(header), *cells]) for i in range(len(header))]
    left = [all(isinstance(row[i], str) for row in rows) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        padded = [
            c.ljust(w) if is_left else c.rjust(w) for c, w, is_left in zip(row, widths, left, strict=True)
        ]
        return "| " + " | ".join(padded) + " |"

    rule = ["-" * w if is_left else "-" * (w - 1) + ":" for w, is_left in zip(widths, left, strict=True)]
    return "\n".join([line(header), line(rule), *map(line, cells)])


def bars(rows: Sequence[tuple[str, float | None, float]]) -> str:
    """A section of what was aimed at: (what, measured or None, the most it may be) a row."""
    cells = []
    for text, measured, most in rows:
        verdict = "not measured"
        if measured is not None:
            verdict = "ok" if measured <= most else f"missed by {100 * (measured / most - 1):.1f} %"
        cells.append([text, measured, most, verdict])
    return "\n\n".join(["## Bars", table(["", "measured", "at most", "bar"], cells)])


def write_results(
    name: str,
    title: str,
    command: str,
    sections: Sequence[str],
    load: OtherLoad,
    folder: Path = RESULTS,
) -> str:
    """Writes NAME.md into `folder` with the machine and its load; returns the Markdown text."""
    description = machine()
    busy = load.cores()
    head = [f"# {title}", f"`{command}`", machine_line(description)]
    if busy is not None:
        head.append(f"Other processes kept {busy:.2f} cores busy meanwhile.")
        if busy > QUIET:
            # Threads that wait for each other then wait for a time slice, a thousand times as long.
            print("warning: the machine was not quiet; results on all cores mean nothing", file=sys.stderr)
    text = "\n\n".join([*head, *sections]) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(text, encoding="utf-8")
    return text
