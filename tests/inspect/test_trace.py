"""The trace of a step, for trace viewers."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import dlsys as dl
import numpy as np
from dlsys import autodiff as ad
from dlsys import nn, optim


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
    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    kernels = [event for event in events if event["ph"] == "X"]
    assert [event["name"] for event in kernels] == [spec.name for spec in executor.specs()]
    assert [event["args"]["group"] for event in kernels] == [str(number) for number in range(len(kernels))]
    for first, second in pairwise(kernels):
        assert first["ts"] + first["dur"] <= second["ts"] + 0.01  # rounded
    in_use = [event["args"]["bytes"] for event in events if event["ph"] == "C"]
    assert max(in_use) == executor.memory_plan({x: feed[x], y: feed[y]}).lower_bound
    rows = executor.profile(feed, runs=1).rows
    assert sum(event["args"]["flop"] for event in kernels) == sum(row.flop for row in rows)


def test_a_trace_has_the_calls_of_loops(tmp_path: Path) -> None:
    lstm, x = nn.LSTM(3, 4), ad.Variable("x", (5, 2, 3))
    executor = ad.Executor([lstm(x)[0]])
    feed = {x: np.ones((5, 2, 3), "float32")}
    executor.trace(tmp_path / "step.json", feed)
    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    calls = sum(times for _, times in executor.specs_and_calls())
    assert sum(event["ph"] == "X" for event in events) == calls > len(executor.specs())
