"""The trace of a step, for trace viewers."""

from __future__ import annotations

from pathlib import Path

import dlsys as dl
import numpy as np
from dlsys import autodiff as ad
from dlsys import distributed, nn, optim
from helpers import error_of
from trace_format import events_of


def test_a_trace_tells_each_call_and_the_bytes_in_use(tmp_path: Path) -> None:
    dl.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    x, y = ad.Variable("x"), ad.Variable("y", dtype="int64")
    loss = ad.cross_entropy_op(network(x), y)
    executor = ad.Executor([loss, optim.SGD(network.parameters(), lr=0.1).minimize(loss)])
    rng = np.random.default_rng(0)
    feed = {x: rng.standard_normal((4, 8)).astype("float32"), y: rng.integers(0, 3, 4)}
    before = [parameter.numpy().copy() for parameter in network.parameters()]
    executor.trace(tmp_path / "step.json", feed)
    for parameter, value in zip(network.parameters(), before, strict=True):
        np.testing.assert_array_equal(parameter.numpy(), value)
    events = events_of(tmp_path / "step.json")
    kernels = [event for event in events if event["ph"] == "X"]
    assert [event["name"] for event in kernels] == [s.name for s in executor.latest_plan().specs.values()]
    assert [event["args"]["group"] for event in kernels] == [str(number) for number in range(len(kernels))]
    in_use = [event["args"]["bytes"] for event in events if event["ph"] == "C"]
    assert max(in_use) == executor.memory_plan({x: feed[x], y: feed[y]}).lower_bound
    assert "cannot be written: No such file" in error_of(dl.DataError, executor.trace, tmp_path / "no" / "a", feed)
    rows = executor.profile(feed, runs=1).rows
    assert sum(event["args"]["flop"] for event in kernels) == sum(row.flop for row in rows)


def test_a_trace_has_calls_of_python_too(tmp_path: Path) -> None:
    weight, x = ad.Parameter(np.ones((8, 8)), "w"), ad.Variable("x")
    loss = ad.mean_op(x @ weight)
    with distributed.using(distributed.Simulated(2)):
        executor = ad.Executor([loss, optim.SGD([weight], lr=0.1).minimize(loss)])
        executor.trace(tmp_path / "step.json", {x: np.ones((4, 8))})
        groups = executor.groups().splitlines()[1:]
    slices = [event for event in events_of(tmp_path / "step.json") if event["ph"] == "X"]
    assert [event["name"] for event in slices] == [line.split()[1] for line in groups]
    assert "bucket" in [event["name"] for event in slices]
