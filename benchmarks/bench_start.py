"""Whole processes: `python benchmarks/bench_start.py`.

Each sample is a process of its own, timed from its start to its end: it imports the library, builds the MLP of MNIST,
trains on one batch of 1,000 and prints the loss. "cold": with an empty folder for compiled code; "from the cache": the
same again, in a new process. In turn with them run `python -m dlsys info`, `import dlsys.autodiff`, and `nano_gpt.py`,
whose imports are not counted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import common
import contenders
import numpy as np
from models import MODELS

MODEL = "mnist1000"
GENERATED = "100 tokens of a GPT, without imports"
KINDS = ("cold", "from the cache")
CACHES = ("DLSYS_COMPILE_CACHE", "TORCHINDUCTOR_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR")
KEEP_ALL = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
TOLERANCE = 1e-5  # of the losses


def sample(arguments: list[str], cache: str) -> tuple[float, str]:
    """Seconds of a Python that keeps compiled code in a folder, and what it prints. Raises CalledProcessError."""
    environment = {**os.environ, **dict.fromkeys(CACHES, cache), **KEEP_ALL}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # a library that is installed is not compiled at each start
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return time.perf_counter() - start, done.stdout


def measure(arguments: argparse.Namespace, threads: int) -> dict[str, Any]:
    """By program and kind of start the seconds of its processes."""
    skipped = {name for name, package in contenders.NEEDS.items() if common.version(package) is None}
    folder = str(common.FOLDER)
    with tempfile.TemporaryDirectory() as place:
        state = f"{place}/state.npz"
        np.savez(state, **MODELS[MODEL].state())
        programs = {
            name: [f"{folder}/contenders.py", name, MODEL, state, "1"]
            for name in contenders.CONTENDERS
            if name not in {*skipped, *arguments.skip.split(",")}
        }
        losses = dict.fromkeys(programs, 0.0)
        programs[GENERATED] = [f"{folder}/nano_gpt.py", "100"]
        programs["python -m dlsys info"] = ["-m", "dlsys", "info"]
        programs["import dlsys.autodiff"] = ["-c", "import dlsys.autodiff"]
        found: dict[str, Any] = {name: {kind: [] for kind in KINDS} for name in programs}
        for _ in range(arguments.rounds):
            for name, command in programs.items():
                cache = tempfile.mkdtemp(dir=place)
                for kind in KINDS:
                    seconds, text = sample(command, cache)
                    found[name][kind].append(float(text.split()[0]) if name == GENERATED else seconds)
                    if name in losses:
                        losses[name] = float(text.split()[0])
                    print(f"  {threads} thread(s), {name}, {kind}: {seconds:.3f} s", file=sys.stderr, flush=True)
    if not np.allclose(list(losses.values()), losses["dlsys"], rtol=TOLERANCE):
        sys.exit(f"the losses differ: {losses}")
    return found


def sections(runs: Mapping[int, Any]) -> list[str]:
    """The table and its note."""
    rows = [
        [name, threads, *(statistics.median(kinds[kind]) for kind in KINDS)]
        for threads, found in runs.items()
        for name, kinds in found.items()
    ]
    return [
        "## Seconds of a process that trains an MLP on one batch, its start and imports included",
        common.table(["", "threads", *KINDS], rows),
        "Medians. The last three do something else.",
    ]


if __name__ == "__main__":
    skip = {"--skip": {"default": "", "metavar": "NAMES", "help": "contenders to leave out"}}
    common.main(__doc__, "start", measure, sections, skip)
