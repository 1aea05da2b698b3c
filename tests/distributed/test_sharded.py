"""Sharded optimizers and SyncBatchNorm: the numbers of one process, half of the state on each of two."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import optim
from dlsys.distributed import Simulated, using
from dlsys.errors import GraphError
from helpers import error_of
from test_ranks import EXACT, HERE, LACKING, MPIEXEC

ROW = np.array([0.5, -1.0, 2.0])


def periodic(
    optimizer_class: type[optim.Optimizer], sharded: bool, clip: bool = False, **defaults: Any
) -> tuple[list[np.ndarray], optim.Optimizer, str]:
    """Parameters after steps by a simulated link, whose ranks all have rank 0's share: all shares are equal, so they
    are right. And the optimizer, and the groups."""
    parameters = [ad.Parameter(np.tile(ROW, (4, 1)), "a"), ad.Parameter(np.full((2, 2), 3.0), "b")]
    if sharded:
        optimizer: optim.Optimizer = optim.ZeroRedundancyOptimizer(parameters, optimizer_class, lr=0.1, **defaults)
    else:
        optimizer = optimizer_class(parameters, lr=0.1, **defaults)  # type: ignore[arg-type]
    a, b = parameters
    gradients = optimizer.gradients(ad.reducesum_op(a * a * a) * 0.1 + ad.reducesum_op(ad.exp_op(b)) * 0.01)
    step = optimizer.update(optim.clip_grad_norm([g for g in gradients if g is not None], 0.7) if clip else gradients)
    executor = ad.Executor([step])
    for _ in range(3):
        executor.run({})
    return [np.asarray(parameter) for parameter in parameters], optimizer, executor.groups()


@pytest.mark.parametrize(
    ("optimizer_class", "clip", "defaults"),
    [
        (optim.SGD, False, {"momentum": 0.9, "nesterov": True}),
        (optim.Adam, True, {"amsgrad": True}),
    ],
)
def test_a_sharded_optimizer_takes_the_same_steps(
    optimizer_class: type[optim.Optimizer], clip: bool, defaults: dict[str, Any]
) -> None:
    with using(Simulated(2, 0.0, 1e12)):
        whole, expected, _ = periodic(optimizer_class, False, clip, **defaults)
        own, optimizer, groups = periodic(optimizer_class, True, clip, **defaults)
        for a, b in zip(whole, own, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-13)
        assert groups.count("start_bucket") == 2 + clip  # a reduce-scatter, an all-gather, and a norm
        for i, entry in optimizer.state_dict()["state"].items():
            for key, value in entry.items():
                np.testing.assert_allclose(value, expected.state_dict()["state"][i][key], rtol=1e-13)


@pytest.mark.parametrize("ranks", [2, 3, 64])
def test_each_rank_has_a_share_of_the_state(ranks: int) -> None:
    shapes = (64, 96), (96,), (), (7,), (3, 3, 3)
    parameters = [ad.Parameter(np.ones(shape), f"p{i}") for i, shape in enumerate(shapes)]
    whole = optim.AdamW(parameters)
    with using(Simulated(ranks, 0.0, 1e12)):
        optimizer = optim.ZeroRedundancyOptimizer(parameters, optim.AdamW)
        for parameter, shape in zip(parameters, shapes, strict=True):
            assert optimizer.state[parameter]["exp_avg"].shape == (math.ceil(max(math.prod(shape), 1) / ranks),)
        state = whole.state_dict()
        state["state"][3]["exp_avg"] = np.arange(7.0)
        optimizer.load_state_dict(state)
        np.testing.assert_array_equal(np.asarray(optimizer.state[parameters[3]]["exp_avg"]), np.arange(-(-7 // ranks)))
    with using(Simulated(5, 0.0, 1e12)):  # another number of ranks takes it up
        optimizer.load_state_dict(state)
        np.testing.assert_array_equal(np.asarray(optimizer.state[parameters[3]]["exp_avg"]), [0.0, 1.0])
    optimizer.load_state_dict(state)
    np.testing.assert_array_equal(np.asarray(optimizer.state[parameters[3]]["exp_avg"]), np.arange(7.0))
    assert "needs a class of dlsys.optim" in error_of(GraphError, optim.ZeroRedundancyOptimizer, [], dict)


def test_reduce_scatters_start_before_the_last_gradient() -> None:
    rng = np.random.default_rng(3)
    parameters = [ad.Parameter(rng.standard_normal((32, 32)), f"p{i}") for i in range(3)]
    h = x = ad.Variable("x", (8, 32), "float64")
    for parameter in parameters:
        h = ad.relu_op(h @ parameter)
    with using(Simulated(2, 1e-6, 1e12), 8192) as group:
        step = optim.ZeroRedundancyOptimizer(parameters, optim.SGD, momentum=0.9).minimize(ad.mean_op(h))
        executor = ad.Executor([step])
        feed = {x: rng.standard_normal((8, 32))}
        executor.run(feed)
        names = [group.name for group in executor.latest_plan().program.groups]
        log = group.communicator.log  # type: ignore[attr-defined]
        log.clear()
        executor.run(feed)
    assert log == [("reduce_scatter", 8192)] * 3 + [("all_gather", 4096)] * 3
    last = max(i for i, name in enumerate(names) if name.startswith("matmul"))
    starts, waits = ([names.index(f"{what}_bucket_{i}") for i in range(6)] for what in ("start", "wait"))
    assert max(starts[:2]) < last < starts[2] < waits[0]
    for i in range(3):  # an update, whose share is sent, before the next one is waited for
        assert waits[i] < starts[3 + i] < waits[i + 1]
    assert names.count("copy") == 3  # from what was gathered to the parameters: nothing else is copied


@pytest.mark.slow
@pytest.mark.skipif(LACKING, reason="needs mpi4py and MPICH: pip install '.[mpi]'")
def test_two_ranks_find_what_one_finds_with_half_of_the_state(tmp_path: Path) -> None:
    for launcher in ([str(MPIEXEC), "-n", "2"], []):
        command = [*launcher, sys.executable, str(HERE / "sharded.py"), str(tmp_path)]
        found = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert found.returncode == 0, found.stdout + found.stderr
    alone, first, second = (dict(np.load(tmp_path / name)) for name in ("1.0.npz", "2.0.npz", "2.1.npz"))
    assert alone.keys() == first.keys() and any(name.startswith("state.") for name in alone)
    whole, *shares = (values.pop("bytes") for values in (alone, first, second))
    assert 0.5 <= shares[0] / whole <= 0.55 and shares[0] == shares[1]
    for name, value in alone.items():
        np.testing.assert_allclose(first[name], value, rtol=EXACT, atol=EXACT, err_msg=name)
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
