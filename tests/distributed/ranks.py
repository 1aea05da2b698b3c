"""Trains as one of several processes: `mpiexec -n 2 python ranks.py WHAT FOLDER`.

WHAT is "fit"; "step", by an Executor; "eager", by `backward` and `optimizer.step()`; "resume", which continues from
what "die" has saved; "odd", whose ranks have other parameters; or a fault: "raise", "die", "hang". Each rank saves what
it has found.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import dlsys as dl
import numpy as np
from dlsys import autodiff as ad
from dlsys import distributed, nn, optim
from dlsys.data import DataLoader, TensorDataset

FAULT_STEP = 8  # in the second of six epochs
KEPT = "die", "resume"  # runs that have checkpoints
RNG = np.random.default_rng(7)
X = RNG.standard_normal((33, 12))  # in batches of 8 the last one has a single sample
Y = (X[:, 0] > 0).astype(np.int64) + (X[:, 1] > 1)


def network(
    momentum: float = 0.9, scale: Any = 1.0
) -> tuple[ad.Executor, dict[ad.Node, np.ndarray], list[ad.Parameter]]:
    """A training step of three layers, what it is fed, and its parameters; the loss is times `scale`."""
    rng = np.random.default_rng(3)
    shapes = (64, 96), (96,), (96, 80), (80,), (80, 10)
    drawn = [ad.Parameter(0.1 * rng.standard_normal(shape), f"p{i}") for i, shape in enumerate(shapes)]
    w1, b1, w2, b2, w3 = drawn
    x, y = ad.Variable("x"), ad.Variable("y")
    h = ad.relu_op(ad.relu_op(x @ w1 + b1) @ w2 + b2)
    loss = ad.mse_loss_op(h @ w3, y)
    executor = ad.Executor([loss, optim.SGD(drawn, lr=0.1, momentum=momentum).minimize(loss * scale)])
    return executor, {x: rng.standard_normal((32, 64)), y: rng.standard_normal((32, 10))}, drawn


def step() -> dict[str, Any]:
    """Parameters after steps of an Executor, in several buckets, and what the functions for arrays give."""
    distributed.init(bucket_bytes=6_000)
    weight = ad.Variable("weight", (), "float64")
    executor, feed, parameters = network(scale=weight)
    rank, size = distributed.rank(), distributed.size()
    for number in range(20):
        rows = 32 - number % 2  # two plans on each rank, at other times
        own = distributed.share(rows)
        part = {node: value[own] for node, value in feed.items()}
        executor.run({**part, weight: np.float64((own.stop - own.start) * size / rows)})
    assert distributed.all_reduce(rank + 1) == size * (size + 1) // 2
    assert distributed.all_reduce(np.float32(rank), "max") == size - 1
    pairs = distributed.all_gather(np.array([rank, -rank]))
    np.testing.assert_array_equal(pairs, np.outer(np.arange(size), [1, -1]).ravel())
    given = dl.tensor([[1.0, float(rank)]])
    np.testing.assert_array_equal(np.asarray(distributed.broadcast(given, size - 1)), [[1, size - 1]])
    distributed.barrier()
    assert size == 1 or executor.groups().count("bucket_") > 2
    return {f"p{i}": np.asarray(parameter) for i, parameter in enumerate(parameters)}


def eager() -> dict[str, Any]:
    """Parameters after steps of a loop as in PyTorch."""
    dl.manual_seed(distributed.rank())  # rank 0's parameters count
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 3)).double()
    distributed.synchronize(model.parameters())
    optimizer, loss_of = optim.AdamW(model.parameters(), lr=1e-2), nn.CrossEntropyLoss(reduction="sum")
    losses = []
    for _ in range(10):
        own = distributed.share(len(X))
        optimizer.zero_grad()
        loss = loss_of(model(dl.tensor(X[own])), dl.tensor(Y[own])) * (distributed.size() / len(X))
        loss.backward()
        optimizer.step()
        losses.append(distributed.all_reduce(loss.item()) / distributed.size())
    return {"losses": losses, **{f"p{i}": np.asarray(p) for i, p in enumerate(model.parameters())}}


def fitted(what: str, directory: Path | None) -> dict[str, Any]:
    """Losses, accuracies and parameters of a small network after `fit`."""
    dl.manual_seed(0)
    width = 4 if what == "odd" and distributed.rank() else 3
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, width)).double()
    if distributed.rank() == 1 and what == "fit":
        dict(model.named_parameters())["0.bias"].value = np.ones(32)  # rank 0's count

    def on_step(number: int, loss: float) -> None:
        if number == FAULT_STEP and distributed.rank() == 1:
            if what == "raise":
                raise ValueError("broken")
            if what == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "hang":
                time.sleep(1000)

    history = dl.fit(
        model, nn.CrossEntropyLoss(), optim.Adam(model.parameters(), lr=1e-2),
        DataLoader(TensorDataset(X, Y), 8, shuffle=True), clip_norm=1.0, epochs=6, directory=directory,
        validation=DataLoader(TensorDataset(X, Y), 5), metrics={"accuracy": dl.accuracy}, on_step=on_step,
    )  # fmt: skip
    rows = [[row["loss"], row["accuracy"], row["validation_loss"]] for row in history.epochs]
    values = {f"p{i}": np.asarray(parameter) for i, parameter in enumerate(model.parameters())}
    return {"losses": history.losses, "rows": rows, **values}


def main(what: str, folder: Path) -> None:
    programs = {"step": step, "eager": eager}
    found = programs[what]() if what in programs else fitted(what, folder / "run" if what in KEPT else None)
    np.savez(folder / f"{distributed.size()}.{distributed.rank()}.npz", **found)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
