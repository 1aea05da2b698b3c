"""From a graph to its first result: `python benchmarks/bench_start.py`.

Each sample is a process of its own that imports the library, then, timed apart, builds the MLP's training step and
trains on one batch until the loss is a Python float. "cold": with an empty folder for compiled code; "from the
cache": the same again, in a new process.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import common
import contenders
from contenders import CONTENDERS, MODELS, NEEDS

ROUNDS = 5
COMPILING = ("dlsys", "torch.compile", "JAX")
# What is imported before the clock starts, also where the library itself would import it at the first compilation.
IMPORTS = {
    "dlsys": ("dlsys", "dlsys.autodiff", "dlsys.optim", "dlsys.tvm_op", "tvm"),
    "torch.compile": ("torch", "torch._dynamo", "torch._inductor.compile_fx"),
    "JAX": ("jax", "jax.numpy"),
}
COLD_BAR, WARM_BAR = 1.2, 0.25  # seconds


def cache_environment(folder: str) -> dict[str, str]:
    """The variables that make each contender keep its compiled code in a folder, and keep all of it."""
    return {
        "DLSYS_COMPILE_CACHE": folder,
        "TORCHINDUCTOR_CACHE_DIR": folder,
        "JAX_COMPILATION_CACHE_DIR": folder,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def child(arguments: argparse.Namespace) -> None:
    """One sample: leaves the seconds of importing and of the first result, and the loss, as JSON."""
    name, batch = arguments.contender, arguments.batch
    images, labels = contenders.synthetic_mnist(batch)
    start = time.perf_counter()
    for module in IMPORTS[name]:
        importlib.import_module(module)
    imported = time.perf_counter()
    step, finish = CONTENDERS[name](MODELS["mlp"], images, labels, batch)
    loss = finish(step(0))
    result = {"import": imported - start, "first": time.perf_counter() - imported, "loss": loss}
    Path(arguments.child).write_text(json.dumps(result), encoding="utf-8")


def sample(name: str, threads: int, batch: int, folder: str) -> dict[str, float] | str:
    """A sample of a new process that keeps compiled code in `folder`; where it fails, the last line that it said."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "result.json"
        options = [f"--contender={name}", f"--batch={batch}", f"--child={path}"]
        environment = {**os.environ, **common.thread_environment(threads), **cache_environment(folder)}
        command = [sys.executable, os.path.abspath(__file__), *options]
        process = subprocess.run(command, env=environment, check=False, stderr=subprocess.PIPE, text=True)
        if process.returncode:
            if name == "torch.compile":  # which needs a C++ compiler
                said = [line for line in process.stderr.splitlines() if "Error" in line or "Invalid" in line]
                return (said or ["it ends with an error"])[-1][:200]
            sys.stderr.write(process.stderr)
            sys.exit(process.returncode if process.returncode > 0 else 128 - process.returncode)
        return json.loads(path.read_text(encoding="utf-8"))


def measure(names: list[str], threads: int, batch: int, rounds: int) -> dict[str, Any]:
    """The samples of each contender, cold and from the cache, in turn."""
    samples: dict[str, dict[str, list[dict[str, float]]]] = {name: {"cold": [], "warm": []} for name in names}
    failures: dict[str, str] = {}
    for _ in range(rounds):
        for name in names:
            with tempfile.TemporaryDirectory() as folder:
                for kind in ("cold", "warm"):
                    found = sample(name, threads, batch, folder) if name not in failures else failures[name]
                    if isinstance(found, str):
                        failures[name] = found
                        continue
                    samples[name][kind].append(found)
                    print(f"  {threads} thread(s), {name}, {kind}: {found['first']:.3f} s", flush=True)
    samples = {name: found for name, found in samples.items() if name not in failures}
    losses = {name: [s["loss"] for s in found["cold"] + found["warm"]] for name, found in samples.items()}
    if wrong := contenders.disagreement(losses):
        sys.exit(wrong)
    return {"threads": threads, "batch": batch, "samples": samples, "failures": failures}


def median(run: dict[str, Any], name: str, kind: str, what: str) -> float:
    """The median of a contender's samples."""
    samples = [found[what] for found in run["samples"][name][kind]]
    return common.summary(samples, 1).median


def sections(runs: list[dict[str, Any]]) -> list[str]:
    """The table, its note and the bars."""
    rows, lines = [], []
    for run in runs:
        for name in run["samples"]:
            cold, warm = (median(run, name, kind, "first") for kind in ("cold", "warm"))
            rows.append([name, run["threads"], median(run, name, "warm", "import"), cold, warm])
        count = f"{run['threads']} thread{'s' * (run['threads'] > 1)}"
        cold, warm = (median(run, "dlsys", kind, "first") for kind in ("cold", "warm"))
        lines.append((f"s to the first result, cold, {count}", cold, COLD_BAR))
        lines.append((f"s to the first result, from the cache, {count}", warm, WARM_BAR))
    samples = len(runs[0]["samples"]["dlsys"]["cold"])
    note = f"Medians of {samples} processes. Importing is not part of the two columns to its right."
    failures = {f"{name} fails: {why}" for run in runs for name, why in run["failures"].items()}
    return [
        f"## Seconds from graph to first result, the MLP's training step at batch {runs[0]['batch']}",
        common.table(["", "threads", "import", "cold", "from the cache"], rows),
        " ".join([note, *sorted(failures)]),
        common.bars(lines),
    ]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", default=str(common.available_cores()), help="thread counts, e.g. 1,2")
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--skip", default="", metavar="NAMES", help="contenders to leave out: torch.compile, JAX"
    )
    parser.add_argument("--name", default="start", help="of the files of results")
    parser.add_argument("--results", type=Path, default=common.RESULTS, metavar="FOLDER")
    parser.add_argument("--contender", choices=COMPILING, help=argparse.SUPPRESS)
    parser.add_argument("--child", metavar="FILE", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.child:
        return child(arguments)
    skipped = {name.strip() for name in arguments.skip.split(",") if name.strip()}
    if unknown := skipped - set(COMPILING[1:]):
        sys.exit(f"--skip takes {', '.join(COMPILING[1:])}, not {', '.join(sorted(unknown))}")
    absent = {name for name, package in NEEDS.items() if common.version(package) is None}
    names = [name for name in COMPILING if name not in skipped | absent]
    load = common.OtherLoad()
    counts = dict.fromkeys(int(text) for text in arguments.threads.split(","))
    runs = [measure(names, threads, arguments.batch, arguments.rounds) for threads in counts]
    command = " ".join(["python", "benchmarks/bench_start.py", *sys.argv[1:]])
    title = "From graph to first result"
    folder = arguments.results
    print(common.write_results(arguments.name, title, command, sections(runs), runs, load, folder))


if __name__ == "__main__":
    main()
