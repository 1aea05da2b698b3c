"""The layers of torch.nn that the networks need, in JAX: a network is made of them, and trained by jitted functions.

Batch norm computes no new running statistics, which a training step does not read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


class Module:
    """A network whose parameters are attributes, set by `load`."""

    training = True
    bias: Any = 0.0  # where `load` sets none

    def __call__(self, *inputs: Any) -> Any:
        return self.forward(*inputs)

    def forward(self, x: Any) -> Any:
        raise NotImplementedError

    def load(self, state: Mapping[str, Any]) -> None:
        """Sets parameters and buffers by PyTorch's names."""
        for name, value in state.items():
            *path, last = name.split(".")
            module = self
            for part in path:
                module = getattr(module, part)
            setattr(module, last, value)


class Sequential(Module):
    """Layers one after another; their names are their numbers."""

    def __init__(self, *layers: Module) -> None:
        self.layers = layers
        for i, layer in enumerate(layers):
            setattr(self, str(i), layer)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


def layer(function: Callable[..., Any]) -> type[Module]:
    """The class of a layer, by its function of itself, the input and the arguments that made it."""

    class Layer(Module):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            self.arguments, self.named = arguments, named

        def forward(self, x: Any) -> Any:
            return function(self, x, *self.arguments, **self.named)

    return Layer


def normalized(p: Module, x: Any, mean: Any, var: Any, shape: tuple[int, ...] = (-1,)) -> Any:
    """Scaled distances from the mean."""
    return (x - mean) * lax.rsqrt(var + 1e-5) * p.weight.reshape(shape) + p.bias.reshape(shape)


@layer
def Linear(p: Any, x: Any, inputs: int, outputs: int, bias: bool = True) -> Any:
    return x @ p.weight.T + p.bias


@layer
def Conv2d(
    p: Any, x: Any, inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0, groups: int = 1,
    bias: bool = True,
) -> Any:  # fmt: skip
    layout = ("NCHW", "OIHW", "NCHW")
    y = lax.conv_general_dilated(
        x, p.weight, (stride, stride), [(padding, padding)] * 2, dimension_numbers=layout, feature_group_count=groups
    )
    return y + p.bias[:, None, None] if bias else y


@layer
def BatchNorm2d(p: Any, x: Any, channels: int) -> Any:
    shape = (-1, 1, 1)
    if not Module.training:
        return normalized(p, x, p.running_mean.reshape(shape), p.running_var.reshape(shape), shape)
    return normalized(p, x, x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True), shape)


@layer
def MaxPool2d(p: Any, x: Any, kernel: int, stride: int, padding: int) -> Any:
    around = ((0, 0), (0, 0), (padding, padding), (padding, padding))
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, kernel, kernel), (1, 1, stride, stride), around)


def recurrent(gates: int, cell: Callable[..., Any]) -> type[Module]:
    """The class of several layers of a cell; the product of all steps' inputs comes before the loop over them."""

    def forward(p: Any, x: Any, inputs: int, size: int, layers: int, batch_first: bool) -> Any:
        h = x.swapaxes(0, 1)
        for i in range(layers):
            w, u, b, c = (
                getattr(p, f"{name}_l{i}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )

            def step(state: Any, x: Any, u: Any = u, c: Any = c) -> Any:
                return cell(state, jnp.split(x, gates, -1), jnp.split(state[0] @ u.T + c, gates, -1))

            zero = jnp.zeros((h.shape[1], size), h.dtype)
            h = lax.scan(step, (zero, zero), h @ w.T + b)[1]
        return h.swapaxes(0, 1), None

    return layer(forward)


def lstm_cell(state: Any, x: Any, h: Any) -> Any:
    """The next (state, memory) and output of an LSTM, by its four gates' terms."""
    i, f, g, o = (a + b for a, b in zip(x, h, strict=True))
    memory = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
    out = jax.nn.sigmoid(o) * jnp.tanh(memory)
    return (out, memory), out


def gru_cell(state: Any, x: Any, h: Any) -> Any:
    """The same of a GRU, which has no memory besides its state."""
    reset, update = jax.nn.sigmoid(x[0] + h[0]), jax.nn.sigmoid(x[1] + h[1])
    out = (1 - update) * jnp.tanh(x[2] + reset * h[2]) + update * state[0]
    return (out, state[1]), out


def attention(q: Any, k: Any, v: Any, is_causal: bool = False) -> Any:
    """softmax(q k^T / sqrt(d)) v."""
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    if is_causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    return jax.nn.softmax(scores, -1) @ v


LayerNorm = layer(lambda p, x, width: normalized(p, x, x.mean(-1, keepdims=True), x.var(-1, keepdims=True)))
Embedding = layer(lambda p, x, words, width: p.weight[x])
AdaptiveAvgPool2d = layer(lambda p, x, size: x.mean((2, 3), keepdims=True))
Flatten = layer(lambda p, x: x.reshape(len(x), -1))
ReLU = layer(lambda p, x: jax.nn.relu(x))
ReLU6 = layer(lambda p, x: jax.nn.relu6(x))
GELU = layer(lambda p, x: jax.nn.gelu(x, approximate=False))
LSTM, GRU = recurrent(4, lstm_cell), recurrent(3, gru_cell)
functional = SimpleNamespace(scaled_dot_product_attention=attention)
