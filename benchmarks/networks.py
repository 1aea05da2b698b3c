"""The networks that bench_models.py trains, each written once for any `nn`: dlsys', PyTorch's and JAX's (jax_nn.py).

What differs between the three, as how arrays are turned, is avoided. All are for `cross_entropy(network(x), y)`.
"""

from __future__ import annotations

from typing import Any

CHARACTERS, WIDTH, HEADS, LAYERS, CONTEXT = 65, 128, 4, 4, 128  # of the Transformer
WORDS, STATE, DEPTH, STEPS = 1000, 256, 2, 35  # of LSTM and GRU


def mlp(nn: Any) -> Any:
    """Five layers, 784 - 512 x 4 - 10."""
    layers: list[Any] = []
    for i in range(5):
        layers += [nn.Linear(784 if i == 0 else 512, 512 if i < 4 else 10), *([nn.ReLU()] if i < 4 else [])]
    return nn.Sequential(*layers)


def _conv_bn(nn: Any, inputs: int, outputs: int, kernel: int, stride: int, groups: int = 1, bias: bool = False) -> list:
    """A convolution that keeps the images' size but for the stride, and batch norm."""
    convolution = nn.Conv2d(
        inputs, outputs, kernel, stride=stride, padding=(kernel - 1) // 2, groups=groups, bias=bias
    )
    return [convolution, nn.BatchNorm2d(outputs)]


def resnet9(nn: Any) -> Any:
    """needle's ResNet9, (N, 3, 32, 32) -> (N, 10)."""

    class Residual(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            layers = [conv(channels, channels, 3, 1), conv(channels, channels, 3, 1)]
            self.layers = nn.Sequential(*layers)

        def forward(self, x: Any) -> Any:
            return self.layers(x) + x

    def conv(inputs: int, outputs: int, kernel: int, stride: int) -> Any:
        return nn.Sequential(*_conv_bn(nn, inputs, outputs, kernel, stride, bias=True), nn.ReLU())

    features = [conv(3, 16, 7, 4), conv(16, 32, 3, 2), Residual(32), conv(32, 64, 3, 2), conv(64, 128, 3, 2)]
    return nn.Sequential(
        *features, Residual(128), nn.Flatten(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )


def resnet18(nn: Any) -> Any:
    """He et al. (2015), (N, 3, 224, 224) -> (N, 1000)."""

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            first, second = _conv_bn(nn, inputs, outputs, 3, stride), _conv_bn(nn, outputs, outputs, 3, 1)
            self.layers, self.relu = nn.Sequential(*first, nn.ReLU(), *second), nn.ReLU()
            self.turns = inputs != outputs
            if self.turns:
                self.shortcut = nn.Sequential(*_conv_bn(nn, inputs, outputs, 1, stride))

        def forward(self, x: Any) -> Any:
            return self.relu(self.layers(x) + (self.shortcut(x) if self.turns else x))

    blocks, channels = [], 64
    for outputs in (64, 128, 256, 512):
        blocks += [Block(channels, outputs, 1 if outputs == 64 else 2), Block(outputs, outputs, 1)]
        channels = outputs
    stem = [*_conv_bn(nn, 3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def mobilenet(nn: Any) -> Any:
    """MobileNetV2, Sandler et al. (2018), (N, 3, 224, 224) -> (N, 1000)."""

    class Inverted(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
            super().__init__()
            wide = inputs * expansion
            layers = [*_conv_bn(nn, inputs, wide, 1, 1), nn.ReLU6()] if expansion > 1 else []
            layers += [*_conv_bn(nn, wide, wide, 3, stride, wide), nn.ReLU6(), *_conv_bn(nn, wide, outputs, 1, 1)]
            self.layers = nn.Sequential(*layers)
            self.adds = stride == 1 and inputs == outputs

        def forward(self, x: Any) -> Any:
            return self.layers(x) + x if self.adds else self.layers(x)

    stages = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    blocks, channels = [], 32
    for expansion, outputs, count, stride in stages:
        for i in range(count):
            blocks.append(Inverted(channels, outputs, stride if i == 0 else 1, expansion))
            channels = outputs
    stem = [*_conv_bn(nn, 3, 32, 3, 2), nn.ReLU6()]
    last = [*_conv_bn(nn, 320, 1280, 1, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000)]
    return nn.Sequential(*stem, *blocks, *last)


def _block(nn: Any, width: int, heads: int, causal: bool) -> Any:
    """A Transformer's block with norms first, as GPT-2 and ViT have it."""

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

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.attention, self.second = nn.LayerNorm(width), Attention(), nn.LayerNorm(width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: Any) -> Any:
            x = x + self.attention(self.first(x))
            return x + self.mlp(self.second(x))

    return Block()


def transformer(nn: Any) -> Any:
    """A causal language model of characters, int64 (N, T) -> (N T, characters)."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(CHARACTERS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
            self.blocks = nn.Sequential(*(_block(nn, WIDTH, HEADS, True) for _ in range(LAYERS)))
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CHARACTERS, bias=False)

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
            self.blocks = nn.Sequential(*(_block(nn, 192, 3, False) for _ in range(6)))
            self.norm, self.head = nn.LayerNorm(192), nn.Linear(192, 1000)

        def forward(self, x: Any) -> Any:
            patches = self.patches(x).reshape(x.shape[0], 192, 196).swapaxes(1, 2)
            return self.head(self.norm(self.blocks(patches + self.places.weight)).mean(1))

    return Network()


def recurrent(nn: Any, kind: str) -> Any:
    """A language model of words by LSTM or GRU, int64 (N, T) -> (N T, words)."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(WORDS, STATE)
            self.layers = getattr(nn, kind)(STATE, STATE, DEPTH, batch_first=True)
            self.head = nn.Linear(STATE, WORDS)

        def forward(self, x: Any) -> Any:
            return self.head(self.layers(self.tokens(x))[0]).reshape(-1, WORDS)

    return Network()
