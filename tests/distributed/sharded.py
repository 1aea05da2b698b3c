"""Trains with a sharded optimizer and SyncBatchNorm as one of several processes: `mpiexec -n 2 python sharded.py DIR`.

Two processes first, which leave a checkpoint of half the run, then one, which continues from it, too. Each rank saves
what it has found.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import dlsys as dl
import numpy as np
from dlsys import distributed, nn, optim
from dlsys.data import DataLoader, TensorDataset

HALF, WHOLE = 2, 4  # epochs


def fitted(epochs: int, directory: Path | None = None) -> dict[str, np.ndarray]:
    """Losses, parameters, buffers and the optimizer's state. The last batch has three samples: of three ranks and more
    one has none."""
    dl.manual_seed(0)
    layers = [
        nn.Conv2d(2, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(),
        nn.Linear(6 * 25, 5, bias=False), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3),
    ]  # fmt: skip
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(*layers)).double()
    assert [type(layer) for layer in model.modules()].count(nn.SyncBatchNorm) == 2
    optimizer = optim.ZeroRedundancyOptimizer(model.parameters(), optim.AdamW, lr=1e-2)
    assert type(optimizer) is optim.AdamW
    rng = np.random.default_rng(5)
    data = TensorDataset(rng.standard_normal((11, 2, 5, 5)) + 2, rng.integers(0, 3, 11))
    history = dl.fit(
        model, nn.CrossEntropyLoss(), optimizer, DataLoader(data, 4, shuffle=True), epochs=epochs, clip_norm=0.5,
        validation=DataLoader(data, 5), directory=directory, progress=False,
    )  # fmt: skip
    state = optimizer.state_dict()["state"]
    values = {name: np.asarray(value) for name, value in model.state_dict().items()}
    values |= {f"state.{i}.{key}": value for i, entry in state.items() for key, value in entry.items()}
    held = [np.asarray(value).nbytes for entry in optimizer.state.values() for value in entry.values()]
    return {"losses": np.array(history.losses), "bytes": np.array(sum(held)), **values}


def stepped() -> dict[str, np.ndarray]:
    """Parameters after steps by `grad`, of which one parameter has none at first; 7 and 3 elements, and one."""
    rng = np.random.default_rng(6)
    values = {"a": rng.standard_normal(7), "b": rng.standard_normal((3, 1)), "c": np.array(0.5)}
    tensors = {name: dl.tensor(value, requires_grad=True) for name, value in values.items()}
    optimizer = optim.ZeroRedundancyOptimizer(tensors.values(), optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01)
    x = rng.standard_normal((4, 3, 7))[distributed.share(4)]
    for number in range(4):
        optimizer.zero_grad()
        loss = ((dl.tensor(x) @ tensors["a"]) ** 2).mean() * tensors["c"]
        if number > 1:
            loss = loss + (dl.tensor(x[:, :, :3]) @ tensors["b"]).mean()
        loss.backward()
        optimizer.step()
    loaded = optim.ZeroRedundancyOptimizer(tensors.values(), optim.SGD, lr=0.1, momentum=0.9)
    loaded.load_state_dict(optimizer.state_dict())
    for tensor in tensors.values():
        for key, value in optimizer.state[tensor].items():
            np.testing.assert_array_equal(np.asarray(loaded.state[tensor][key]), np.asarray(value))
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def main(folder: Path) -> None:
    rank, size = distributed.rank(), distributed.size()
    if size > 1:
        fitted(HALF, folder / "run")
        if rank == 0:
            shutil.copytree(folder / "run", folder / "half")
        distributed.barrier()
        found = fitted(WHOLE, folder / "run")
    else:
        found = fitted(WHOLE)
        for name, value in fitted(WHOLE, folder / "half").items():
            np.testing.assert_allclose(value, found[name], rtol=1e-12, atol=1e-12, err_msg=name)
    np.savez(folder / f"{size}.{rank}.npz", **found, **stepped())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
