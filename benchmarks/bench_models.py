"""Training steps and inference of eight networks: `python benchmarks/bench_models.py`.

Beside dlsys, compiled, stand PyTorch eager, torch.compile (loss, gradients and update) and JAX (the whole step jitted),
and the MLP of MNIST besides the eight. All start from the same weights; losses of the first steps are compared before
they are timed. The peak of memory is that of a process of its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import common
import contenders
import numpy as np
from models import MODELS

LEAST = 0.5  # seconds a turn
CHECKED = 3  # steps whose losses are compared
TIMED_RATE = 1e-7  # a batch learned by heart leaves denormal numbers, which take some CPUs a hundred cycles each
TOLERANCE = 2e-3  # relative; three steps of Adam part rounding errors
PEAKS = ("dlsys", "PyTorch")  # whose memory is measured
NAMES = tuple(contenders.CONTENDERS)


def measure(arguments: argparse.Namespace, threads: int) -> dict[str, Any]:
    """By model: seconds of training steps and inference of each contender, and what memory dlsys' step takes."""
    skipped = {name for name, package in contenders.NEEDS.items() if common.version(package) is None}
    names = [name for name in NAMES if name not in {*skipped, *arguments.skip.split(",")}]
    found = {}
    for key in arguments.models.split(","):
        found[key] = measured(key, names, arguments.rounds)
        train = found[key]["train"]
        shown = ", ".join(f"{name} {1e3 * train[name]:.3g}" for name in names)
        print(f"  {threads} thread(s), {key}, ms of a step: {shown}", file=sys.stderr, flush=True)
    return found


def measured(key: str, names: list[str], rounds: int) -> dict[str, Any]:
    """The figures of one model; the program ends where losses differ."""
    model = MODELS[key]
    state, (x, y) = model.state(), model.batch(np.random.default_rng(0))
    peaks = memory_peaks(key, state, [name for name in names if name in PEAKS])
    losses, first = {}, 0.0
    for name in names:
        start = time.perf_counter()
        train = contenders.CONTENDERS[name](model, state, x, y).train
        losses[name] = [train(1)]
        if name == "dlsys":
            first = time.perf_counter() - start
        losses[name] += [train(1) for _ in range(CHECKED - 1)]
        if not np.allclose(losses[name], losses[names[0]], rtol=TOLERANCE):
            sys.exit(f"{key}: the losses differ: {losses}")
    timed = dataclasses.replace(model, lr=TIMED_RATE)
    made = {name: contenders.CONTENDERS[name](timed, state, x, y) for name in names}
    figures: dict[str, Any] = {"first": first, "peaks": peaks}
    figures["train"] = common.alternate({name: one.train for name, one in made.items()}, rounds, LEAST)
    infer = {name: one.infer for name, one in made.items() if one.infer is not None}
    figures["infer"] = common.alternate(infer, rounds, LEAST)
    plan = made["dlsys"].step.executor.latest_plan()
    figures["kernels"] = len(plan.groups)
    figures["arena"] = [plan.memory.bytes_unplanned, plan.memory.bytes_planned, plan.memory.lower_bound]
    return figures


def memory_peaks(key: str, state: contenders.State, names: list[str]) -> dict[str, int]:
    """Bytes of processes that make some steps, their kernels being on disk."""
    peaks = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.npz"
        np.savez(path, **state)
        for name in names:
            command = [sys.executable, contenders.__file__, name, key, str(path), str(CHECKED)]
            for _ in range(2):  # the first may compile
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            peaks[name] = int(done.stdout.split()[1])
    return peaks


def sections(runs: Mapping[int, Any]) -> list[str]:
    """The tables of steps, inference and memory."""
    steps, passes, memory = [], [], []
    for threads, found in runs.items():
        for key, figures in found.items():
            for rows, kind, names in ((steps, "train", NAMES), (passes, "infer", NAMES)):
                seconds = figures[kind]
                times = [1e3 * seconds[name] if name in seconds else None for name in names]
                best = common.ratio(seconds) if len(seconds) > 1 else None
                rows.append([MODELS[key].title, threads, *times, best])
            if threads == min(runs):
                unplanned, planned, bound = figures["arena"]
                peaks = [figures["peaks"][name] / 2**20 if name in figures["peaks"] else None for name in PEAKS]
                arena = [figures["kernels"], unplanned / 2**20, planned / 2**20, planned / bound]
                memory.append([MODELS[key].title, *arena, *peaks, figures["first"]])
    return [
        "## Milliseconds of a training step",
        common.table(["model", "threads", *NAMES, "of the best"], steps),
        "Medians, in turn in one process. Of the best: dlsys over the fastest of the others.",
        "## Milliseconds of inference",
        common.table(["model", "threads", *NAMES, "of the best"], passes),
        "## Memory of a training step, in MiB",
        common.table(MEMORY, memory),
        "Peaks are those of whole processes, interpreter and libraries included. The first result counts from the "
        "network on; kernels that are not on disk are compiled.",
    ]


MEMORY = ("model", "kernels", "a buffer a value", "arena", "over the lower bound", "peak", "PyTorch's", "first, s")

if __name__ == "__main__":
    options = {
        "--models": {"default": ",".join(MODELS), "help": "of " + ", ".join(MODELS)},
        "--skip": {"default": "", "metavar": "NAMES", "help": "contenders to leave out"},
    }
    common.main(__doc__, "models", measure, sections, options)
