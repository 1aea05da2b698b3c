"""A network that learns one batch by heart: `python benchmarks/bench_denormals.py`.

Its gradients become denormal, which some CPUs compute in a hundred cycles each. The MLP 784-512x4-10 is trained with
Adam on one batch of 8, once with kernels that flush denormal results and once with kernels that do not, in turn, a
hundred steps at a time. The bar: the last hundred steps take no more than 1.1 of the first hundred's time.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable

import common
import dlsys as dl
import numpy as np
from dlsys import autodiff as ad
from dlsys import optim

SIZES = (784, 512, 512, 512, 512, 10)
BATCH = 8
BLOCK = 100  # steps whose median is one number
BAR = 1.1


def make_step(flush: bool) -> Callable[[], float]:
    """A function that trains one step and returns its seconds."""
    dl.set_flush_denormal(flush)
    random = np.random.default_rng(0)
    x, y = ad.Variable("x"), ad.Variable("y")
    parameters, hidden = [], x
    for number, (rows, columns) in enumerate(itertools.pairwise(SIZES)):
        weight = random.normal(0, np.sqrt(2 / rows), (rows, columns)).astype("float32")
        parameters += [ad.Parameter(weight, f"w{number}"), ad.Parameter(np.zeros(columns, "float32"), f"b{number}")]
        hidden = hidden @ parameters[-2] + parameters[-1]
        if columns != SIZES[-1]:
            hidden = ad.relu_op(hidden)
    loss = ad.softmaxcrossentropy_op(hidden, y)
    executor = ad.Executor([loss, optim.Adam(parameters, lr=1e-3).minimize(loss)])
    images = random.normal(size=(BATCH, SIZES[0])).astype("float32")
    feed = {x: images, y: np.eye(SIZES[-1], dtype="float32")[random.integers(0, SIZES[-1], BATCH)]}
    executor.run(feed)

    def step() -> float:
        start = time.perf_counter()
        executor.run(feed)
        return time.perf_counter() - start

    return step


def main() -> int:
    """Prints the table; the status is 1 where the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    dl.set_num_threads(options.threads)
    steps = {name: make_step(flush) for name, flush in (("flushed", True), ("computed", False))}
    dl.set_flush_denormal(True)
    blocks: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options.steps // BLOCK):
        for name, step in steps.items():
            blocks[name].append(1e3 * statistics.median(step() for _ in range(BLOCK)))
    threads = f"{options.threads} thread{'s' * (options.threads > 1)}"
    print(common.machine_line(common.machine()), f"{threads}, medians of {BLOCK} steps, ms\n", sep="\n")
    marks = sorted({0, *range(4, len(blocks["flushed"]), 5), len(blocks["flushed"]) - 1})
    header = ("denormal results", *(f"{(mark + 1) * BLOCK}" for mark in marks), "last of first")
    rows = [[name, *(times[mark] for mark in marks), times[-1] / times[0]] for name, times in blocks.items()]
    print(common.table(header, rows))
    found = blocks["flushed"][-1] / blocks["flushed"][0]
    print(common.bars([("the last hundred steps, of the first", found, BAR)]))
    return int(found > BAR)


if __name__ == "__main__":
    raise SystemExit(main())
