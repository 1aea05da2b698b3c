"""ResNet9 on CIFAR-10 in integers of eight bits: `python benchmarks/bench_quantize.py`.

The network of `apps/resnet9.py` is trained for some epochs, with flips and crops, on the training images that are there
but the last 4,000. Then it classifies those and the test images: frozen, in float32, and as `dl.quantize` makes it of
500 training images. The bar: the shares of right answers differ by no more than half a point.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import common  # noqa: F401 - before NumPy's threads
import dlsys as dl
import numpy as np
from dlsys import autodiff as ad
from dlsys import nn, optim
from dlsys.data import CIFAR10, Compose, DataLoader, Normalize, RandomCrop, RandomHorizontalFlip, Subset

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "apps"))
import resnet9

HELD_OUT, BATCH = 4000, 500
BAR = 0.5  # percent


def trained(train: Any, epochs: int) -> nn.Module:
    """The network after its epochs."""
    model = resnet9.ResNet9()
    changes = [RandomCrop(32, padding=4), RandomHorizontalFlip(), Normalize(resnet9.MEAN, resnet9.STD)]
    loader = DataLoader(train, 128, shuffle=True, seed=0, drop_last=True, transform=Compose(changes))
    optimizer = optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
    schedule = optim.CosineAnnealingLR(optimizer, epochs)
    dl.fit(model, nn.CrossEntropyLoss(), optimizer, loader, epochs=epochs, schedule=schedule)
    return model.eval()


def batches(data: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Whole batches of normalized images and labels."""
    yield from DataLoader(data, BATCH, drop_last=True, transform=Normalize(resnet9.MEAN, resnet9.STD))


def runner(network: Any) -> Callable[[np.ndarray], np.ndarray]:
    """A function from images to classes."""
    executor = ad.Executor(list(network.outputs))
    return lambda images: executor.run({network.inputs[0]: images}, True)[0].argmax(1)


def main() -> int:
    """Prints what was found; the status is 1 where the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    dl.set_num_threads(options.threads)
    dl.manual_seed(options.seed)
    train, test = CIFAR10(train=True), CIFAR10(train=False)
    start, cut = time.perf_counter(), len(train) - HELD_OUT
    model = trained(Subset(train, range(cut)), options.epochs)
    print(f"{cut:,} images, {options.epochs} epochs: {time.perf_counter() - start:.0f} s")
    typical = [images for images, _ in batches(Subset(train, range(BATCH)))]
    ways = {"float32": dl.freeze(model, {"image": typical[0]}), "int8": dl.quantize(model, typical)}
    right, seconds = dict.fromkeys(ways, 0), dict.fromkeys(ways, 1e9)
    count = same = 0
    runners = {name: runner(network) for name, network in ways.items()}
    for data in (Subset(train, range(cut, len(train))), test):
        for images, labels in batches(data):
            found = {}
            for name, run in runners.items():
                run(images)
                begin = time.perf_counter()
                found[name] = run(images)
                seconds[name] = min(seconds[name], time.perf_counter() - begin)
                right[name] += int((found[name] == labels).sum())
            same += int((found["float32"] == found["int8"]).sum())
            count += len(labels)
    for name in ways:
        print(f"{name:8} {right[name]:,} of {count:,} right, {100 * right[name] / count:.2f} %; "
              f"{BATCH} images in {seconds[name] * 1e3:.2f} ms")  # fmt: skip
    apart = 100 * abs(right["int8"] - right["float32"]) / count
    print(f"{apart:.2f} points apart (the bar: {BAR}); the same class for {100 * same / count:.2f} % of the images")
    return int(apart > BAR)


if __name__ == "__main__":
    sys.exit(main())
