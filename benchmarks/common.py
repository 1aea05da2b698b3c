"""What the benchmarks share: a process for each number of threads, the machine in words, tables.

A benchmark measures in a process of its own for each number of threads, because every library reads that number when it
is imported: a benchmark's file imports none of them at its top.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from timing import Runner, in_turn

# Seconds before a turn. Thread pools spin after their last task: OpenBLAS's for 0.1 s, on a core that the next needs.
PAUSE = 0.2 if os.environ.get("OPENBLAS_NUM_THREADS") != "1" else 0.02
FOLDER = Path(__file__).resolve().parent
PACKAGES = ("dlsys", "apache-tvm", "apache-tvm-ffi", "numpy", "torch", "jax", "onnxruntime")

Measure = Callable[[argparse.Namespace, int], Any]
"""Measures with so many threads, in a process that has them; returns what JSON can hold."""
Sections = Callable[[Mapping[int, Any]], list[str]]
"""The parts of a Markdown text, of what `Measure` returned for each number of threads."""


def main(
    text: str, name: str, measure: Measure, sections: Sections, options: Mapping[str, Mapping[str, Any]] | None = None
) -> None:
    """A benchmark's program: measures for each number of threads, prints and writes the tables.

    `text` describes it, its first line being the title; `name` is that of the file of results; `options` are further
    arguments of the command, with what argparse takes for each.
    """
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    counts = ",".join(str(count) for count in range(1, available_cores() + 1))
    parser.add_argument("--threads", default=counts, help=f"thread counts (default: {counts})")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each contender (default: 7)")
    parser.add_argument("--name", default=name, help="of the file of results")
    parser.add_argument("--results", type=Path, default=FOLDER / "results", metavar="FOLDER")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    for option, described in (options or {}).items():
        parser.add_argument(option, **described)
    arguments = parser.parse_args()
    if arguments.child:
        found = measure(arguments, int(arguments.threads))
        Path(arguments.child).write_text(json.dumps(found), encoding="utf-8")
        return
    runs = {threads: measured(threads) for threads in map(int, arguments.threads.split(","))}
    command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    title = text.split(": `")[0]
    written = "\n\n".join([f"# {title}", f"`{command}`", machine(), *sections(runs)]) + "\n"
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / f"{arguments.name}.md").write_text(written, encoding="utf-8")
    print(written)


def measured(threads: int) -> Any:
    """What this program measures in a process with so many threads. Where that fails, and has said why, this process
    ends with its status."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        command = [sys.executable, *sys.argv, f"--threads={threads}", f"--child={path}"]
        if status := subprocess.run(command, env=environment(threads), check=False).returncode:
            sys.exit(status if status > 0 else 128 - status)  # as a shell reports signals
        return json.loads(path.read_text(encoding="utf-8"))


def environment(threads: int) -> dict[str, str]:
    """This process' variables, and those that give TVM, OpenMP, OpenBLAS, MKL and XLA that many threads."""
    names = ("TVM_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC")
    flags = f"--xla_cpu_multi_thread_eigen={str(threads > 1).lower()}"  # XLA's pool has NPROC threads, Eigen another
    return {**os.environ, **dict.fromkeys(names, str(threads)), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def version(package: str) -> str | None:
    """The installed version of a package, None without it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def machine() -> str:
    """A line with processor, cores, the commit, and the versions of what takes part."""
    info, processor = Path("/proc/cpuinfo"), platform.processor() or platform.machine()
    if info.exists():
        lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
        processor = next((line.split(": ")[1] for line in lines if line.startswith("model name")), processor)
    asked = ["git", "-C", str(FOLDER), "describe", "--always", "--dirty"]
    commit = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    versions = ", ".join(f"{package} {version(package)}" for package in PACKAGES if version(package))
    return (
        f"{processor}, {available_cores()} cores, {platform.system()} {platform.machine()}; "
        f"commit {commit or 'unknown'}; Python {platform.python_version()}, {versions}"
    )


def alternate(runners: Mapping[str, Runner], rounds: int, least: float) -> dict[str, float]:
    """Median seconds per call of contenders timed in turn, each turn after a pause."""
    return in_turn(runners, rounds, least, PAUSE)


def ratio(seconds: Mapping[str, float], who: str = "dlsys") -> float:
    """One contender's time over the best other's."""
    return seconds[who] / min(value for other, value in seconds.items() if other != who)


def geometric_mean(values: Sequence[float]) -> float:
    """The n-th root of the product of n positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))


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
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    left = [all(isinstance(row[i], str) for row in rows) for i in range(len(header))]

    def line(row: Sequence[str], fill: str = " ", end: str = "") -> str:
        aligned = [
            cell.ljust(width, fill) if at_left else (cell + end).rjust(width, fill)
            for cell, width, at_left in zip(row, widths, left, strict=True)
        ]
        return f"| {' | '.join(aligned)} |"

    return "\n".join([line(header), line([""] * len(header), "-", ":"), *map(line, cells)])
