"""Whole processes: `python benchmarks/bench_start.py`.

Each sample is a process of its own, timed from its start to its end: it imports the library, builds the MLP of MNIST,
trains on one batch and prints the loss. "cold": with an empty folder for compiled code; "from the cache": the same
again, in a new process. In turn with them run `python -m dlsys info`, `import dlsys.autodiff`, and `nano_gpt.py`, whose
imports are not counted.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import common
import contenders

ROUNDS = 5
BATCH = 1000
LOOP = "dlsys, a loop in PyTorch's style"
TRAINING = {  # by name, the function of `contenders`
    "dlsys": "make_dlsys",
    LOOP: "make_dlsys_loop",
    "PyTorch eager": "make_torch",
    "torch.compile": "make_torch_compile",
    "JAX": "make_jax",
}
OTHERS = [*contenders.NEEDS]  # which may be left out
TRAIN = """
import sys; sys.path.insert(0, sys.argv[1]); import contenders
images, labels = contenders.synthetic_mnist(int(sys.argv[3]))
step, finish = getattr(contenders, sys.argv[2])(contenders.MODELS["mlp"], images, labels, int(sys.argv[3]))
print(finish(step(0)))
"""
GENERATE = "a GPT's 100 tokens, without imports"
PROGRAMS = {"python -m dlsys info": ["-m", "dlsys", "info"], "import dlsys.autodiff": ["-c", "import dlsys.autodiff"]}
BARS = (  # seconds of a process
    ("dlsys", "cold", 1.8),
    ("dlsys", "from the cache", 0.5),
    (LOOP, "from the cache", 0.6),
    ("python -m dlsys info", "from the cache", 1.0),
    ("import dlsys.autodiff", "from the cache", 0.25),
    (GENERATE, "cold", 15.0),
    (GENERATE, "from the cache", 1.0),
)


def cache_environment(folder: str) -> dict[str, str]:
    """The variables that make each contender keep its compiled code in a folder, and keep all of it."""
    return {
        "DLSYS_COMPILE_CACHE": folder,
        "TORCHINDUCTOR_CACHE_DIR": folder,
        "JAX_COMPILATION_CACHE_DIR": folder,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def sample(arguments: list[str], threads: int, folder: str) -> tuple[float, str]:
    """Seconds of a Python that keeps compiled code in `folder`, and what it printed. Raises RuntimeError with the last
    line that it said of an error."""
    environment = {**os.environ, **common.thread_environment(threads), **cache_environment(folder)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # a library that is installed is not compiled at each start
    start = time.perf_counter()
    process = subprocess.run([sys.executable, *arguments], env=environment, check=False, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    if process.returncode:
        said = [line for line in process.stderr.splitlines() if "Error" in line or "Invalid" in line]
        raise RuntimeError((said or [f"it ends with {process.returncode}"])[-1][:200])
    return seconds, process.stdout


def measure(names: list[str], threads: int, rounds: int) -> dict[str, Any]:
    """The seconds of each contender's processes, cold and from the cache, in turn; and why some failed."""
    seconds: dict[str, dict[str, list[float]]] = {name: {"cold": [], "from the cache": []} for name in names}
    losses: dict[str, list[float]] = {name: [] for name in names}
    failures: dict[str, str] = {}
    folder = str(Path(__file__).parent)
    for _ in range(rounds):
        for name in [name for name in names if name not in failures]:
            with tempfile.TemporaryDirectory() as cache:
                for kind, samples in seconds[name].items():
                    try:
                        found, said = sample(["-c", TRAIN, folder, TRAINING[name], str(BATCH)], threads, cache)
                    except RuntimeError as error:
                        if name != "torch.compile":  # which needs a C++ compiler
                            sys.exit(f"{name} fails: {error}")
                        failures[name] = str(error)
                        break
                    samples.append(found)
                    losses[name].append(float(said))
                    print(f"  {threads} thread(s), {name}, {kind}: {found:.3f} s", flush=True)
        with tempfile.TemporaryDirectory() as cache:
            for kind in ("cold", "from the cache"):
                _, said = sample([f"{folder}/nano_gpt.py", "100"], threads, cache)
                wall, cpu = map(float, said.split())
                seconds.setdefault(GENERATE, {}).setdefault(kind, []).append(wall)
                print(f"  {threads} thread(s), {GENERATE}, {kind}: {wall:.2f} s, of the CPU {cpu:.2f}", flush=True)
        for name, arguments in PROGRAMS.items():
            found, _ = sample(arguments, threads, "")
            seconds.setdefault(name, {"from the cache": []})["from the cache"].append(found)
    if wrong := contenders.disagreement({name: found for name, found in losses.items() if name not in failures}):
        sys.exit(wrong)
    return {"threads": threads, "seconds": seconds, "failures": failures}


def sections(runs: list[dict[str, Any]]) -> list[str]:
    """The table, its note and the bars."""
    rows, lines = [], []
    for run in runs:
        found = {
            (name, kind): common.summary(samples, 1).median
            for name, kinds in run["seconds"].items()
            for kind, samples in kinds.items()
            if samples and name not in run["failures"]
        }
        for name in run["seconds"]:
            cells = [found.get((name, kind)) for kind in ("cold", "from the cache")]
            rows.append([name, run["threads"], *cells])
        count = f"{run['threads']} thread{'s' * (run['threads'] > 1)}"
        for name, kind, most in BARS:
            what = name if name in PROGRAMS else f"{name}, {kind}"
            lines.append((f"{what}, {count}", found.get((name, kind)), most))
    note = f"Medians of {len(runs[0]['seconds']['dlsys']['cold'])} processes, batches of {BATCH}."
    failures = {f"{name} fails: {why}" for run in runs for name, why in run["failures"].items()}
    return [
        "## Seconds of a process that trains an MLP on one batch, its start and imports included",
        common.table(["", "threads", "cold", "from the cache"], rows),
        " ".join([note, *sorted(failures)]),
        common.bars(lines),
    ]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default=str(common.available_cores()), help="thread counts, e.g. 1,2")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--skip", default="", metavar="NAMES", help=f"leave out, of {', '.join(OTHERS)}")
    parser.add_argument("--name", default="start", help="of the files of results")
    parser.add_argument("--results", type=Path, default=common.RESULTS, metavar="FOLDER")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    skipped = {name.strip() for name in arguments.skip.split(",") if name.strip()}
    if unknown := skipped - set(OTHERS):
        sys.exit(f"--skip takes {', '.join(OTHERS)}, not {', '.join(sorted(unknown))}")
    absent = {name for name, package in contenders.NEEDS.items() if common.version(package) is None}
    names = [name for name in TRAINING if name not in skipped | absent]
    load = common.OtherLoad()
    counts = dict.fromkeys(int(text) for text in arguments.threads.split(","))
    runs = [measure(names, threads, arguments.rounds) for threads in counts]
    command = " ".join(["python", "benchmarks/bench_start.py", *sys.argv[1:]])
    written = (arguments.name, "Whole processes", command, sections(runs), load, arguments.results)
    print(common.write_results(*written))


if __name__ == "__main__":
    main()
