"""The models of bench_models.py: a network for each library, a batch, the optimizer, and bars."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import networks
import numpy as np

Batch = Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Model:
    """A network of any `nn`, for `cross_entropy(network(x), y)`, its batch, and the optimizer's arguments.

    Attributes:
        bar: the most that a training step may take, in steps of PyTorch eager.
        best: the same in steps of the best of all others, on one thread and on two; None for no such bar.
    """

    title: str
    network: Callable[[Any], Any]
    batch: Batch
    optimizer: str  # "SGD" or "Adam"
    lr: float
    bar: float
    best: tuple[float, float] | None = None


def vectors(rows: int, columns: int, classes: int) -> Batch:
    return lambda rng: (rng.standard_normal((rows, columns)).astype("float32"), rng.integers(0, classes, rows))


def _images(rows: int, size: int, classes: int) -> Batch:
    shape = (rows, 3, size, size)
    return lambda rng: (rng.standard_normal(shape).astype("float32"), rng.integers(0, classes, rows))


def _tokens(rows: int, length: int, words: int) -> Batch:
    return lambda rng: (rng.integers(0, words, (rows, length)), rng.integers(0, words, rows * length))


_TEXT = f"{networks.LAYERS} x {networks.WIDTH}, context {networks.CONTEXT}, batch 32"
_WORDS = f"{networks.DEPTH} x {networks.STATE}, {networks.STEPS} steps, batch 32"
_SENTENCES = _tokens(32, networks.STEPS, networks.WORDS)
_LSTM, _GRU = (partial(networks.recurrent, kind=kind) for kind in ("LSTM", "GRU"))

MODELS = {
    "mlp": Model("MLP 784-512x4-10, batch 8", networks.mlp, vectors(8, 784, 10), "Adam", 1e-3, 0.6),
    "resnet9": Model("ResNet9, batch 128", networks.resnet9, _images(128, 32, 10), "Adam", 1e-3, 1.0),
    "transformer": Model(
        f"Transformer {_TEXT}",
        networks.transformer,
        _tokens(32, networks.CONTEXT, networks.CHARACTERS),
        "Adam",
        1e-3,
        1.0,
    ),
    "lstm": Model(f"LSTM {_WORDS}", _LSTM, _SENTENCES, "SGD", 0.1, 0.8, (0.85, 0.7)),
    "gru": Model(f"GRU {_WORDS}", _GRU, _SENTENCES, "SGD", 0.1, 0.8),
    "resnet18": Model("ResNet-18, batch 8", networks.resnet18, _images(8, 224, 1000), "SGD", 0.01, 0.9, (0.9, 0.9)),
    "mobilenet": Model("MobileNetV2, batch 8", networks.mobilenet, _images(8, 224, 1000), "SGD", 1e-3, 1.0),
    "vit": Model("ViT 6 x 192, batch 8", networks.vit, _images(8, 224, 1000), "Adam", 1e-3, 1.0),
}
