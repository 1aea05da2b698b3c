"""Scaling of training steps over 2 to 64 ranks, by a simulated link: `python benchmarks/bench_scale.py`.

The kernels of one rank run as they are, on one thread; a message takes the time that a ring takes on the link, beside
them: 2 (n - 1) latency + 2 (n - 1) / n bytes / bandwidth (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms
for clusters of workstations", 2009). Weak scaling keeps a rank's batch, strong scaling divides one batch among the
ranks. The clock is the thread's processor time, to which waiting for a message is added instead of slept, so other
programs on the machine do not count. Not measured: what reduces the messages on the processor, stragglers, several
rings on one wire.

The links' constants: the rate of the wire, 10 Gbit/s (IEEE 802.3ae), 100 Gbit/s (802.3ba), 200 Gbit/s (InfiniBand HDR,
by the InfiniBand Trade Association's roadmap), and a latency of small messages between programs. That of InfiniBand,
2 us, is near what Open MPI's developers measured with ConnectX (1.4 to 1.9 us, devel@open-mpi.org, message 2158, 2007);
5 us for RDMA on 100 Gbit/s Ethernet is 1.93 us, back to back past the kernel (J. Squyres, "MPI over 40Gb Ethernet",
Cisco, 2014), and two switches; 30 us for TCP on 10 Gbit/s Ethernet is an assumption.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import common
import dlsys as dl
import numpy as np
from dlsys import autodiff as ad
from dlsys import nn, optim
from dlsys.distributed import Simulated, using
from models import MODELS, Model

LINKS = {"Ethernet 10": (30e-6, 1.25e9), "Ethernet 100": (5e-6, 12.5e9), "InfiniBand 200": (2e-6, 25e9)}
"""Seconds and bytes a second."""
NETWORKS = ("mlp", "resnet9", "resnet18", "transformer")
RANKS = (2, 8, 64)


@dataclass(frozen=True)
class Point:
    """A measured step.

    Attributes:
        alone, step: seconds of the step of one rank with the same batch, without and with messages.
        messages, ring: seconds of the messages one after another, and of a ring's bandwidth alone.
        buckets: how many messages.
    """

    model: str
    link: str
    ranks: int
    rows: int
    alone: float
    step: float
    messages: float
    ring: float
    buckets: int

    @property
    def limit(self) -> str:
        """What the step's time is owed to."""
        if self.step < 1.1 * self.alone:
            return "computation"
        if self.messages < 0.5 * (self.step - self.alone):  # updates apart from products, starts and tests
            return "more kernels"
        return "bandwidth" if self.ring > 0.5 * self.messages else "latency"


class Ring(Simulated):
    """The communicator whose all-reduces take a ring's time, by a clock of its own, `now`."""

    def __init__(self, ranks: int, latency: float, bandwidth: float) -> None:
        super().__init__(ranks, 2 * (ranks - 1) * latency, bandwidth * ranks / (2 * (ranks - 1)))
        self._waited, self._end = 0.0, 0.0

    def now(self) -> float:
        """Seconds for which this thread has computed or would have waited."""
        return time.thread_time() + self._waited

    def wait_until(self, end: float) -> None:
        """Let the clock be at `end` at least."""
        self._waited += max(end - self.now(), 0.0)

    def start(self, kind: str, send: np.ndarray, receive: np.ndarray, operation: str = "sum", root: int = 0) -> Until:
        super().start(kind, send, receive, operation, root)
        self._end = max(self._end, self.now()) + self.link.seconds(send.nbytes)
        return Until(self, self._end)


@dataclass(frozen=True)
class Until:
    """A message that arrives at a time of a ring's clock."""

    ring: Ring
    end: float

    def test(self) -> bool:
        return self.ring.now() >= self.end

    def wait(self) -> None:
        self.ring.wait_until(self.end)


def step_of(model: Model, parts: int) -> tuple[ad.Executor, dict[ad.Node, Any], int]:
    """A training step of a `parts`-th of a model's batch, what it is fed, and its rows."""
    dl.manual_seed(0)
    x, y = model.batch(np.random.default_rng(0))
    rows = max(len(x) // parts, 1)
    x, y = x[:rows], y[: len(y) // len(x) * rows]
    X, Y = ad.Variable("X", x.shape, str(x.dtype)), ad.Variable("Y", y.shape, str(y.dtype))
    network = model.network(nn)
    loss = ad.cross_entropy_op(network.train()(X), Y)
    optimizer = getattr(optim, model.optimizer)(network.parameters(), lr=1e-7)
    executor = ad.Executor([loss, optimizer.minimize(loss)])
    feed = {X: dl.array(x), Y: dl.array(y)}
    executor.run(feed)
    return executor, feed, rows


@cache
def alone_of(name: str, parts: int) -> tuple[ad.Executor, dict[ad.Node, Any], int]:
    """`step_of` for one rank alone."""
    return step_of(MODELS[name], parts)


def measured(name: str, link: str, ranks: int, parts: int, seconds: float) -> Point:
    alone, own, rows = alone_of(name, parts)
    with using(communicator := Ring(ranks, *LINKS[link])):
        together, feed, _ = step_of(MODELS[name], parts)
    communicator.log.clear()
    together.run(feed)
    sizes = [nbytes for _, nbytes in communicator.log]
    best, end, count = [np.inf, np.inf], time.perf_counter() + seconds, 0
    while time.perf_counter() < end or count < 4:
        count += 1
        for i, (executor, fed) in enumerate(((alone, own), (together, feed))):
            began = communicator.now()
            executor.run(fed)
            best[i] = min(best[i], communicator.now() - began)
    messages = sum(map(communicator.link.seconds, sizes))
    return Point(name, link, ranks, rows, *best, messages, sum(sizes) / communicator.link.bandwidth, len(sizes))


def with_least(points: list[Point]) -> list[Point]:
    """The points with the least time alone of all that have the same step."""
    return [replace(p, alone=min(q.alone for q in points if (q.model, q.rows) == (p.model, p.rows))) for p in points]


def rows_of(points: list[Point], whole: dict[str, float]) -> list[list[str | float | None]]:
    """The table's rows; `whole`: for strong scaling the seconds of a step of one rank with the whole batch."""
    found: list[list[str | float | None]] = []
    for p in points:
        speedup = whole[p.model] / p.step if whole else p.ranks * p.alone / p.step
        numbers = [p.alone * 1e3, p.step * 1e3, p.messages * 1e3, p.ring * 1e3]
        found.append([p.model, p.link, str(p.ranks), str(p.rows), str(p.buckets), *numbers, speedup, p.limit])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(NETWORKS), help="of " + ", ".join(MODELS))
    parser.add_argument("--ranks", default=",".join(map(str, RANKS)))
    parser.add_argument("--seconds", type=float, default=1.0, help="for which each step is repeated (default: 1)")
    parser.add_argument("--results", type=Path, default=common.RESULTS, metavar="FOLDER")
    options = parser.parse_args()
    names, ranks = options.models.split(","), [int(count) for count in options.ranks.split(",")]
    if unknown := set(names) - set(MODELS):
        sys.exit(f"--models takes {', '.join(MODELS)}, not {', '.join(sorted(unknown))}")
    load = common.OtherLoad()
    dl.set_num_threads(1)
    weak = [measured(name, link, n, 1, options.seconds) for name in names for link in LINKS for n in ranks]
    whole = {name: min(p.alone for p in weak if p.model == name) for name in names}
    rows = {name: len(MODELS[name].batch(np.random.default_rng(0))[0]) for name in names}
    runs = [(name, link, n) for name in names for link in LINKS for n in ranks if rows[name] >= n]
    strong = [measured(name, link, n, n, options.seconds) for name, link, n in runs]
    weak, strong = with_least(weak), with_least(strong)
    times = "alone ms", "step ms", "on the link ms", "ring ms"
    header = ["model", "link", "ranks", "rows", "messages", *times, "speedup", "limited by"]
    sections = [
        f"## Weak scaling: a batch for each rank\n\n{common.table(header, rows_of(weak, {}))}",
        f"## Strong scaling: one batch for all\n\n{common.table(header, rows_of(strong, whole))}",
    ]
    data = {"weak": [asdict(p) for p in weak], "strong": [asdict(p) for p in strong]}
    command = f"python benchmarks/bench_scale.py --models {options.models} --ranks {options.ranks}"
    title = "Scaling over ranks, by a simulated link"
    print(common.write_results("scale", title, command, sections, data, load, options.results))


if __name__ == "__main__":
    main()
