"""The networks that are timed, each written once for any `nn`: dlsys', PyTorch's or JAX's (jax_nn.py).

All are for `cross_entropy(network(x), y)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

CHARACTERS, CONTEXT = 65, 128  # of the Transformer
WORDS, STEPS = 1000, 35  # of LSTM and GRU


def mlp(nn: Any, sizes: tuple[int, ...]) -> Any:
    """Fully connected layers of these sizes, with ReLUs between them."""
    layers: list[Any] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def conv_bn(nn: Any, inputs: int, outputs: int, kernel: int, stride: int, groups: int = 1, bias: bool = False) -> list:
    """A convolution that keeps the images' size but for the stride, and batch norm."""
    convolution = nn.Conv2d(
        inputs, outputs, kernel, stride=stride, padding=(kernel - 1) // 2, groups=groups, bias=bias
    )
    return [convolution, nn.BatchNorm2d(outputs)]


def residual(nn: Any, layers: Any, shortcut: Any = None) -> Any:
    """A module that adds its input, or `shortcut` of it, to what its layers compute."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers
            if shortcut is not None:
                self.shortcut = shortcut

        def forward(self, x: Any) -> Any:
            return self.layers(x) + (x if shortcut is None else self.shortcut(x))

    return Residual()


def resnet9(nn: Any) -> Any:
    """needle's ResNet9, (N, 3, 32, 32) -> (N, 10)."""

    def conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> Any:
        return nn.Sequential(*conv_bn(nn, inputs, outputs, kernel, stride, bias=True), nn.ReLU())

    def twice(channels: int) -> Any:
        return residual(nn, nn.Sequential(conv(channels, channels), conv(channels, channels)))

    first = [conv(3, 16, 7, 4), conv(16, 32, 3, 2), twice(32)]
    second = [conv(32, 64, 3, 2), conv(64, 128, 3, 2), twice(128)]
    head = [nn.Flatten(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(*first, *second, *head)


def resnet18(nn: Any) -> Any:
    """He et al. (2015), (N, 3, 224, 224) -> (N, 1000)."""
    layers, inputs = [*conv_bn(nn, 3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for outputs in (64, 128, 256, 512):
        for stride in (1 if outputs == 64 else 2, 1):
            block = [*conv_bn(nn, inputs, outputs, 3, stride), nn.ReLU(), *conv_bn(nn, outputs, outputs, 3, 1)]
            shortcut = None if inputs == outputs else nn.Sequential(*conv_bn(nn, inputs, outputs, 1, stride))
            layers += [residual(nn, nn.Sequential(*block), shortcut), nn.ReLU()]
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def mobilenet(nn: Any) -> Any:
    """MobileNetV2, Sandler et al. (2018), (N, 3, 224, 224) -> (N, 1000)."""
    layers, inputs = [*conv_bn(nn, 3, 32, 3, 2), nn.ReLU6()], 32
    stages = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    for expansion, outputs, count, first in stages:
        for stride in (first, *[1] * (count - 1)):
            wide = inputs * expansion
            block = [*conv_bn(nn, inputs, wide, 1, 1), nn.ReLU6()] if expansion > 1 else []
            block += [*conv_bn(nn, wide, wide, 3, stride, wide), nn.ReLU6(), *conv_bn(nn, wide, outputs, 1, 1)]
            inverted = nn.Sequential(*block)
            layers.append(residual(nn, inverted) if stride == 1 and inputs == outputs else inverted)
            inputs = outputs
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000)]
    return nn.Sequential(*layers, *conv_bn(nn, 320, 1280, 1, 1), nn.ReLU6(), *head)


def blocks(nn: Any, count: int, width: int, heads: int, causal: bool) -> Any:
    """A Transformer's blocks with norms first, as GPT-2 and ViT have them."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.joint, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

        def forward(self, x: Any) -> Any:
            batch, length = x.shape[0], x.shape[1]
            parts = self.joint(x).reshape(batch, length, 3, heads, width // heads)
            q, k, v = (parts[:, :, i].swapaxes(1, 2) for i in range(3))
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
            return self.out(mixed.swapaxes(1, 2).reshape(batch, length, width))

    layers = []
    for _ in range(count):
        layers.append(residual(nn, nn.Sequential(nn.LayerNorm(width), Attention())))
        wide = [nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)]
        layers.append(residual(nn, nn.Sequential(*wide)))
    return nn.Sequential(*layers)


def transformer(nn: Any) -> Any:
    """A causal language model of characters, 4 layers of 128, int64 (N, T) -> (N T, characters)."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(CHARACTERS, 128), nn.Embedding(CONTEXT, 128)
            self.blocks = blocks(nn, 4, 128, 4, True)
            self.norm, self.head = nn.LayerNorm(128), nn.Linear(128, CHARACTERS, bias=False)

        def forward(self, x: Any) -> Any:
            h = self.blocks(self.tokens(x) + self.places.weight)
            return self.head(self.norm(h)).reshape(-1, CHARACTERS)

    return Network()


def vit(nn: Any) -> Any:
    """A vision Transformer of patches of 16, 6 layers of 192, that takes their mean: (N, 3, 224, 224) -> (N, 1000)."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches, self.places = nn.Conv2d(3, 192, 16, stride=16), nn.Embedding(196, 192)
            self.blocks = blocks(nn, 6, 192, 3, False)
            self.norm, self.head = nn.LayerNorm(192), nn.Linear(192, 1000)

        def forward(self, x: Any) -> Any:
            patches = self.patches(x).reshape(x.shape[0], 192, 196).swapaxes(1, 2)
            return self.head(self.norm(self.blocks(patches + self.places.weight)).mean(1))

    return Network()


def recurrent(nn: Any, kind: str) -> Any:
    """A language model of words by 2 layers of 256 of LSTM or GRU, int64 (N, T) -> (N T, words)."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(WORDS, 256)
            self.layers = getattr(nn, kind)(256, 256, 2, batch_first=True)
            self.head = nn.Linear(256, WORDS)

        def forward(self, x: Any) -> Any:
            return self.head(self.layers(self.tokens(x))[0]).reshape(-1, WORDS)

    return Network()


Batch = Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]]
"""Draws inputs and classes."""


def dense(classes: int, *shape: int) -> Batch:
    """Inputs of a shape, of the standard normal distribution, and their classes."""
    return lambda rng: (rng.standard_normal(shape).astype("float32"), rng.integers(0, classes, shape[0]))


def tokens(words: int, rows: int, length: int) -> Batch:
    """Rows of tokens, and the next token of each."""
    return lambda rng: (rng.integers(0, words, (rows, length)), rng.integers(0, words, rows * length))


@dataclass(frozen=True)
class Model:
    """A network of any `nn`, its batch, and the optimizer's arguments."""

    title: str
    network: Callable[[Any], Any]
    batch: Batch
    optimizer: str  # "SGD" or "Adam"
    lr: float

    def state(self) -> dict[str, np.ndarray]:
        """Initial parameters and buffers by name, the same each time."""
        import dlsys as dl

        dl.manual_seed(0)
        return {name: np.array(value) for name, value in self.network(dl.nn).state_dict().items()}


def mnist(rows: int) -> Model:
    """The MLP of tests/mnist_dlsys.py."""
    network = partial(mlp, sizes=(784, 256, 100, 10))
    return Model(f"MLP 784-256-100-10, batch {rows}", network, dense(10, rows, 784), "SGD", 0.1)


DEEP = partial(mlp, sizes=(784, *[512] * 4, 10))
LSTM, GRU = partial(recurrent, kind="LSTM"), partial(recurrent, kind="GRU")
SENTENCES, IMAGES = tokens(WORDS, 32, STEPS), dense(1000, 8, 3, 224, 224)
MODELS = {
    "mlp": Model("MLP 784-512x4-10, batch 8", DEEP, dense(10, 8, 784), "Adam", 1e-3),
    "resnet9": Model("ResNet9, batch 128", resnet9, dense(10, 128, 3, 32, 32), "Adam", 1e-3),
    "transformer": Model(
        "Transformer 4 x 128, context 128, batch 32", transformer, tokens(CHARACTERS, 32, CONTEXT), "Adam", 1e-3
    ),
    "lstm": Model("LSTM 2 x 256, 35 steps, batch 32", LSTM, SENTENCES, "SGD", 0.1),
    "gru": Model("GRU 2 x 256, 35 steps, batch 32", GRU, SENTENCES, "SGD", 0.1),
    "resnet18": Model("ResNet-18, batch 8", resnet18, IMAGES, "SGD", 0.01),
    "mobilenet": Model("MobileNetV2, batch 8", mobilenet, IMAGES, "SGD", 1e-3),
    "vit": Model("ViT 6 x 192, batch 8", vit, IMAGES, "Adam", 1e-3),
    **{f"mnist{rows}": mnist(rows) for rows in (1000, 100, 32)},
}
