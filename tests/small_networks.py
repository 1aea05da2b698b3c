"""Three small networks, one of each kind, and their training step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dlsys as dl
import numpy as np
from dlsys import autodiff as ad
from dlsys import nn, optim

Network = Callable[[], "tuple[nn.Module, tuple[int, ...]]"]
"""Makes a network; the shape of its input."""


def mlp() -> tuple[nn.Module, tuple[int, ...]]:
    """Fully connected layers."""
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)), (16, 20)


class Residual(nn.Module):
    """What ResNet9 consists of."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.1))
        self.third = nn.Sequential(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.MaxPool2d(2), nn.Flatten())
        self.head = nn.Linear(256, 10)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        return self.head(self.third(x + self.second(x)))


class Encoder(nn.Module):
    """A small Transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Any) -> Any:
        return self.head(self.layer(x).mean(1))


def residual() -> tuple[nn.Module, tuple[int, ...]]:
    return Residual(), (4, 3, 16, 16)


def encoder() -> tuple[nn.Module, tuple[int, ...]]:
    return Encoder(), (4, 6, 32)


ALL: tuple[Network, ...] = (mlp, residual, encoder)


def step(network: Network, ctx: Any) -> tuple[ad.Executor, dict[Any, np.ndarray], list[Any]]:
    """The executor of a training step, the same for each call, what it is fed, and the parameters."""
    dl.manual_seed(0)
    rng = np.random.default_rng(0)
    net, shape = network()
    x, y = ad.Variable("x", shape), ad.Variable("y")
    optimizer = optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    loss = ad.softmaxcrossentropy_op(net(x), y)
    executor = ad.Executor([loss, optimizer.minimize(loss)], ctx=ctx)
    labels = np.eye(10, dtype="float32")[rng.integers(0, 10, shape[0])]
    return executor, {x: rng.standard_normal(shape).astype("float32"), y: labels}, list(net.parameters())
