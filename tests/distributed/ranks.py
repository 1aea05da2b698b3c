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

import dlsys as dl
import numpy as np
from dlsys import autodiff as ad
from dlsys import distributed, nn, optim
from dlsys.data import DataLoader, TensorDataset

FAULT_STEP = 8  # in the second of six epochs
KEPT = "die", "resume"  # runs that have checkpoints


def main(what: str, folder: Path) -> None:
    rng = np.random.default_rng(7)
    x = rng.standard_normal((33, 12))  # in batches of 8 the last one has a single sample
    y = (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0)
    if what == "step":
        found = step(x, y)
    elif what == "eager":
        found = eager(x, y)
    else:
        found = trained(what, x, y, folder / "run" if what in KEPT else None)
    np.savez(folder / f"{distributed.size()}.{distributed.rank()}.npz", **found)


def trained(what: str, x: np.ndarray, y: np.ndarray, directory: Path | None) -> dict[str, np.ndarray]:
    """Losses, accuracies and parameters of a small network."""
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

    data = DataLoader(TensorDataset(x, y), 8, shuffle=True)
    history = dl.fit(
        model, nn.CrossEntropyLoss(), optim.Adam(model.parameters(), lr=1e-2), data, clip_norm=1.0, epochs=6,
        directory=directory, validation=DataLoader(TensorDataset(x, y), 5), metrics={"accuracy": dl.accuracy},
        on_step=on_step,
    )  # fmt: skip
    rows = [[row["loss"], row["accuracy"], row["validation_loss"]] for row in history.epochs]
    values = {f"p{i}": np.asarray(parameter) for i, parameter in enumerate(model.parameters())}
    return {"losses": np.array(history.losses), "rows": np.array(rows), **values}


def step(x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """Parameters after steps of an Executor, in several buckets, and what the functions for arrays give."""
    distributed.init(bucket_bytes=400)
    rng = np.random.default_rng(1)
    shapes = (12, 40), (40,), (40, 20), (20,), (20, 3)
    parameters = [ad.Parameter(rng.standard_normal(shape), f"p{i}") for i, shape in enumerate(shapes)]
    X, y_, weight = ad.Variable("X"), ad.Variable("y_"), ad.Variable("weight", (), "float64")
    w1, b1, w2, b2, w3 = parameters
    h = ad.relu_op(ad.relu_op(X @ w1 + b1) @ w2 + b2)
    loss = ad.softmaxcrossentropy_op(h @ w3, y_)
    executor = ad.Executor([loss, optim.SGD(parameters, lr=0.1, momentum=0.9).minimize(loss * weight)])
    one_hot = np.eye(3)[y]
    rank, size = distributed.rank(), distributed.size()
    for number in range(20):
        rows = 33 - number % 2  # two plans on each rank, at other times
        own = distributed.share(rows)
        executor.run({X: x[own], y_: one_hot[own], weight: np.float64((own.stop - own.start) * size / rows)})
    assert distributed.all_reduce(rank + 1) == size * (size + 1) // 2
    assert distributed.all_reduce(np.float32(rank), "max") == size - 1
    pairs = distributed.all_gather(np.array([rank, -rank]))
    np.testing.assert_array_equal(pairs, np.outer(np.arange(size), [1, -1]).ravel())
    given = dl.tensor([[1.0, float(rank)]])
    np.testing.assert_array_equal(np.asarray(distributed.broadcast(given, size - 1)), [[1, size - 1]])
    distributed.barrier()
    a = ad.Variable("a")
    mean = distributed.mean_over_ranks(a)
    nodes = [mean, *ad.gradients(ad.reducesum_op(mean * mean), [a])]
    for ctx in (dl.cpu(), dl.numpy()):
        values = [np.array(value) for value in ad.Executor(nodes, ctx).run({a: np.array([1.0, 2.0]) + rank})]
        np.testing.assert_allclose(values[0], np.array([1.0, 2.0]) + (size - 1) / 2)
        np.testing.assert_allclose(values[1], 2 * values[0])
    if size > 1:
        assert executor.groups().count("bucket_") > 2
    return {parameter.name: np.asarray(parameter) for parameter in parameters}


def eager(x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """Parameters after steps of a loop as in PyTorch."""
    dl.manual_seed(distributed.rank())  # rank 0's parameters count
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 3)).double()
    distributed.synchronize(model.parameters())
    optimizer, loss_of = optim.AdamW(model.parameters(), lr=1e-2), nn.CrossEntropyLoss(reduction="sum")
    losses = []
    for _ in range(10):
        own = distributed.share(len(x))
        optimizer.zero_grad()
        loss = loss_of(model(dl.tensor(x[own])), dl.tensor(y[own])) * (distributed.size() / len(x))
        loss.backward()
        optimizer.step()
        losses.append(distributed.all_reduce(loss.item()) / distributed.size())
    return {"losses": np.array(losses), **{f"p{i}": np.asarray(p) for i, p in enumerate(model.parameters())}}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
