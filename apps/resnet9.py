"""ResNet9 of the CMU course's needle on CIFAR-10: `python apps/resnet9.py`.

Four convolutions with stride, two residual blocks, batch norm after each convolution. Without CIFAR-10 or internet,
on scikit-learn's digits.
"""

from __future__ import annotations

import argparse
import sys

import dlsys as dl
from dlsys import autodiff as ad
from dlsys import nn, optim
from dlsys.cli import run
from dlsys.data import CIFAR10, Compose, DataLoader, Normalize, RandomCrop, RandomHorizontalFlip

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of CIFAR-10's training images


def conv_bn(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Module:
    """Convolution, batch norm, ReLU; "same" padding but for the stride."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=(kernel - 1) // 2),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


class ResNet9(nn.Module):
    """(N, 3, 32, 32) -> (N, classes)."""

    def __init__(self, classes: int = 10) -> None:
        self.features = nn.Sequential(
            conv_bn(3, 16, 7, 4),
            conv_bn(16, 32, 3, 2),
            nn.Residual(nn.Sequential(conv_bn(32, 32, 3, 1), conv_bn(32, 32, 3, 1))),
            conv_bn(32, 64, 3, 2),
            conv_bn(64, 128, 3, 2),
            nn.Residual(nn.Sequential(conv_bn(128, 128, 3, 1), conv_bn(128, 128, 3, 1))),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, classes))

    def forward(self, x: ad.Node) -> ad.Node:
        return self.head(self.features(x))


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="directory of the binary files (default: DLSYS_DATA, the cache, the mirror)")
    parser.add_argument("--epochs", type=int, default=20, help="0 only evaluates")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-3, help="AdamW's step, that decays to 0 as a cosine")
    parser.add_argument("--weight-decay", type=float, default=1e-2)
    parser.add_argument("--plain", action="store_true", help="neither flips nor crops, to see the network overfit")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="where to train: cpu, cuda, cuda:1")
    parser.add_argument("--threads", type=int, help="of the kernels (default: all cores)")
    parser.add_argument("--directory", help="folder of checkpoints and log, to continue from")
    return parser.parse_args(given)


def main(options: argparse.Namespace) -> dict[str, float]:
    """Trains; returns the last epoch's numbers."""
    if options.threads is not None:
        dl.set_num_threads(options.threads)
    dl.manual_seed(options.seed)
    train, test = CIFAR10(options.data, train=True), CIFAR10(options.data, train=False)
    normalize = Normalize(MEAN, STD)
    changes = [] if options.plain else [RandomCrop(32, padding=4), RandomHorizontalFlip()]

    model = ResNet9(len(train.classes)).to(options.device)
    print(model)
    optimizer = optim.AdamW(model.parameters(), lr=options.lr, weight_decay=options.weight_decay)
    loss, metrics = nn.CrossEntropyLoss(), {"accuracy": dl.accuracy}
    validation = DataLoader(test, 500, transform=normalize)
    history = dl.fit(
        model,
        loss,
        optimizer,
        DataLoader(
            train,
            options.batch_size,
            shuffle=True,
            seed=options.seed,
            drop_last=len(train) > options.batch_size,
            transform=Compose([*changes, normalize]),
        ),
        epochs=options.epochs,
        validation=validation,
        metrics=metrics,
        schedule=optim.CosineAnnealingLR(optimizer, max(options.epochs, 1)),
        directory=options.directory,
        best="accuracy",
    )
    if not history.epochs:  # --epochs 0
        found = dl.evaluate_on(model, loss, validation, metrics)
        print(f"test accuracy = {found['accuracy']:.4f}")
        return {f"validation_{name}": value for name, value in found.items()}
    last = history.epochs[-1]
    best = max(row["validation_accuracy"] for row in history.epochs)
    print(f"training accuracy = {last['accuracy']:.4f}, "
          f"test accuracy = {last['validation_accuracy']:.4f} (best {best:.4f})")  # fmt: skip
    return last


if __name__ == "__main__":
    sys.exit(run(sys.argv[0], lambda: main(arguments())))
