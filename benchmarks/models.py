"""The models of bench_models.py: each in dlsys and in PyTorch, with the same weights and batches."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "apps"))


@dataclass(frozen=True)
class Model:
    """dlsys' and PyTorch's module, both for `loss(model(x), y)`, the optimizers' arguments, and a batch."""

    title: str
    ours: Callable[[], Any]
    theirs: Callable[[], Any]
    batch: Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]]
    optimizer: str  # "SGD" or "Adam"
    lr: float
    bar: float  # the most that a training step may take, in steps of PyTorch


def _mlp_ours() -> Any:
    from dlsys import nn

    layers: list[Any] = []
    for i in range(5):
        layers += [nn.Linear(784 if i == 0 else 512, 512 if i < 4 else 10), *([nn.ReLU()] if i < 4 else [])]
    return nn.Sequential(*layers)


def _mlp_theirs() -> Any:
    from torch import nn

    layers: list[Any] = []
    for i in range(5):
        layers += [nn.Linear(784 if i == 0 else 512, 512 if i < 4 else 10), *([nn.ReLU()] if i < 4 else [])]
    return nn.Sequential(*layers)


def _resnet9_ours() -> Any:
    from resnet9 import ResNet9

    return ResNet9()


def _resnet9_theirs() -> Any:
    from torch import nn

    def conv_bn(inputs: int, outputs: int, kernel: int, stride: int) -> Any:
        convolution = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=(kernel - 1) // 2)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())

    class Residual(nn.Module):
        def __init__(self, fn: Any) -> None:
            super().__init__()
            self.fn = fn

        def forward(self, x: Any) -> Any:
            return self.fn(x) + x

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(
                conv_bn(3, 16, 7, 4),
                conv_bn(16, 32, 3, 2),
                Residual(nn.Sequential(conv_bn(32, 32, 3, 1), conv_bn(32, 32, 3, 1))),
                conv_bn(32, 64, 3, 2),
                conv_bn(64, 128, 3, 2),
                Residual(nn.Sequential(conv_bn(128, 128, 3, 1), conv_bn(128, 128, 3, 1))),
            )
            self.head = nn.Sequential(nn.Flatten(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))

        def forward(self, x: Any) -> Any:
            return self.head(self.features(x))

    return Network()


WIDTH, HEADS, LAYERS, CONTEXT, CHARACTERS = 128, 4, 4, 128, 65


def _transformer_ours() -> Any:
    from transformer import Transformer

    return Transformer(CHARACTERS, WIDTH, HEADS, LAYERS, CONTEXT, dropout=0.0)


def _transformer_theirs() -> Any:
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.in_proj = nn.Linear(WIDTH, 3 * WIDTH)
            self.out_proj = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            batch, time, _ = x.shape
            parts = self.in_proj(x).view(batch, time, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
            return self.out_proj(mixed.transpose(1, 2).reshape(batch, time, WIDTH))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
            self.mlp = nn.Sequential()
            self.mlp.add_module("c_fc", nn.Linear(WIDTH, 4 * WIDTH))
            self.mlp.add_module("gelu", nn.GELU())
            self.mlp.add_module("c_proj", nn.Linear(4 * WIDTH, WIDTH))

        def forward(self, x: Any) -> Any:
            x = x + self.attn(self.ln_1(x))
            return x + self.mlp(self.ln_2(x))

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(CHARACTERS, WIDTH)
            self.positions = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
            self.norm = nn.LayerNorm(WIDTH)
            self.head = nn.Linear(WIDTH, CHARACTERS, bias=False)

        def forward(self, x: Any) -> Any:
            h = self.tokens(x) + self.positions
            for block in self.blocks:
                h = block(h)
            return self.head(self.norm(h)).flatten(0, 1)

    return Network()


LSTM_WIDTH, LSTM_LAYERS, STEPS, WORDS = 256, 2, 35, 1000


def _lstm_ours() -> Any:
    from transformer import LSTMLanguageModel

    return LSTMLanguageModel(WORDS, LSTM_WIDTH, LSTM_LAYERS, STEPS, dropout=0.0)


def _lstm_theirs() -> Any:
    from torch import nn

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(WORDS, LSTM_WIDTH)
            self.lstm = nn.LSTM(LSTM_WIDTH, LSTM_WIDTH, LSTM_LAYERS, batch_first=True)
            self.head = nn.Linear(LSTM_WIDTH, WORDS)

        def forward(self, x: Any) -> Any:
            return self.head(self.lstm(self.tokens(x))[0]).flatten(0, 1)

    return Network()


def _vectors(rows: int, columns: int, classes: int) -> Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]]:
    return lambda rng: (rng.standard_normal((rows, columns)).astype("float32"), rng.integers(0, classes, rows))


def _images(rows: int) -> Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]]:
    return lambda rng: (rng.standard_normal((rows, 3, 32, 32)).astype("float32"), rng.integers(0, 10, rows))


def _tokens(rows: int, length: int, words: int) -> Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]]:
    return lambda rng: (rng.integers(0, words, (rows, length)), rng.integers(0, words, rows * length))


MODELS = {
    "mlp": Model("MLP 784-512x4-10, batch 8", _mlp_ours, _mlp_theirs, _vectors(8, 784, 10), "Adam", 1e-3, 0.6),
    "resnet9": Model("ResNet9, batch 128", _resnet9_ours, _resnet9_theirs, _images(128), "Adam", 1e-3, 1.0),
    "transformer": Model(
        f"Transformer {LAYERS} x {WIDTH}, context {CONTEXT}, batch 32",
        _transformer_ours,
        _transformer_theirs,
        _tokens(32, CONTEXT, CHARACTERS),
        "Adam",
        1e-3,
        1.0,
    ),
    "lstm": Model(
        f"LSTM {LSTM_LAYERS} x {LSTM_WIDTH}, {STEPS} steps, batch 32",
        _lstm_ours,
        _lstm_theirs,
        _tokens(32, STEPS, WORDS),
        "SGD",
        0.1,
        0.8,
    ),
}
