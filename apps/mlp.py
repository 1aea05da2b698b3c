"""A multilayer perceptron on MNIST: `python apps/mlp.py`.

784-512-256-10 with ReLU and dropout, trained by Adam; without MNIST or internet, on scikit-learn's digits.
"""

from __future__ import annotations

import argparse
import sys

import dlsys as dl
import numpy as np
from dlsys import nn, optim
from dlsys.cli import run
from dlsys.data import DataLoader, TensorDataset, mnist


def network(dropout: float) -> nn.Module:
    """(N, 784) -> (N, 10)."""
    return nn.Sequential(
        nn.Linear(784, 512),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(512, 256),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(256, 10),
    )


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="directory of MNIST's files (default: DLSYS_DATA, the cache, the mirrors)")
    parser.add_argument("--epochs", type=int, default=10, help="0 only evaluates")
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--lr", type=float, default=1e-3, help="Adam's step, that decays to 0 as a cosine")
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="where to train: cpu, cuda, cuda:1")
    parser.add_argument("--threads", type=int, help="of the kernels (default: all cores)")
    parser.add_argument("--directory", help="folder of checkpoints and log, to continue from")
    return parser.parse_args(given)


def main(options: argparse.Namespace) -> float:
    """Trains; returns the accuracy on the validation set."""
    if options.threads is not None:
        dl.set_num_threads(options.threads)
    dl.manual_seed(options.seed)
    data = mnist(options.data)
    print(data)
    train = TensorDataset(data.train_images.astype(np.float32), data.train_labels.astype(np.int64))
    valid = TensorDataset(data.valid_images.astype(np.float32), data.valid_labels.astype(np.int64))

    model = network(options.dropout).to(options.device)
    print(model)
    optimizer = optim.Adam(model.parameters(), lr=options.lr)
    loss, metrics, validation = nn.CrossEntropyLoss(), {"accuracy": dl.accuracy}, DataLoader(valid, 1000)
    history = dl.fit(
        model,
        loss,
        optimizer,
        DataLoader(train, options.batch_size, shuffle=True, seed=options.seed),
        epochs=options.epochs,
        validation=validation,
        metrics=metrics,
        schedule=optim.CosineAnnealingLR(optimizer, max(options.epochs, 1)),
        directory=options.directory,
        best="accuracy",
    )
    if history.epochs:
        accuracy = history.epochs[-1]["validation_accuracy"]
    else:  # --epochs 0
        accuracy = dl.evaluate_on(model, loss, validation, metrics)["accuracy"]
    print(f"validation accuracy = {accuracy:.4f}")
    return accuracy


if __name__ == "__main__":
    sys.exit(run(sys.argv[0], lambda: main(arguments())))
