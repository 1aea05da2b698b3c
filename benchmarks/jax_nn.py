"""The layers of torch.nn that the networks need, in JAX: a network is made of them, and trained as one jitted step.

Batch norm computes no running statistics, which a training step does not read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


class Module:
    """A layer whose parameters are attributes: None until they are given."""

    parameters: tuple[str, ...] = ()

    def __call__(self, *inputs: Any) -> Any:
        return self.forward(*inputs)

    def forward(self, x: Any) -> Any:
        raise NotImplementedError

    def slots(self, prefix: str = "") -> Iterator[tuple[str, Module, str]]:
        """PyTorch's name of each parameter, and whose attribute it is."""
        for name in self.parameters:
            yield prefix + name, self, name
        for name, child in vars(self).items():
            if isinstance(child, Module):
                yield from child.slots(f"{prefix}{name}.")


class Sequential(Module):
    def __init__(self, *layers: Module) -> None:
        for i, layer in enumerate(layers):
            setattr(self, str(i), layer)

    def forward(self, x: Any) -> Any:
        for layer in vars(self).values():
            x = layer(x)
        return x


class Linear(Module):
    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        self.parameters = ("weight", "bias") if bias else ("weight",)

    def forward(self, x: Any) -> Any:
        y = x @ self.weight.T
        return y + self.bias if len(self.parameters) > 1 else y


class Conv2d(Module):
    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int = 1,
        padding: int = 0,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        self.parameters = ("weight", "bias") if bias else ("weight",)
        self.how = {"window_strides": (stride,) * 2, "padding": [(padding,) * 2] * 2, "feature_group_count": groups}

    def forward(self, x: Any) -> Any:
        y = lax.conv_general_dilated(x, self.weight, dimension_numbers=("NCHW", "OIHW", "NCHW"), **self.how)
        return y + self.bias[:, None, None] if len(self.parameters) > 1 else y


class BatchNorm2d(Module):
    parameters = ("weight", "bias")

    def __init__(self, channels: int) -> None:
        pass

    def forward(self, x: Any) -> Any:
        mean, var = x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True)
        return (x - mean) * lax.rsqrt(var + 1e-5) * self.weight[:, None, None] + self.bias[:, None, None]


class LayerNorm(Module):
    parameters = ("weight", "bias")

    def __init__(self, width: int) -> None:
        pass

    def forward(self, x: Any) -> Any:
        mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) * lax.rsqrt(var + 1e-5) * self.weight + self.bias


class Embedding(Module):
    parameters = ("weight",)

    def __init__(self, words: int, width: int) -> None:
        pass

    def forward(self, x: Any) -> Any:
        return self.weight[x]


class MaxPool2d(Module):
    def __init__(self, kernel: int, stride: int, padding: int) -> None:
        around = ((0, 0), (0, 0), (padding,) * 2, (padding,) * 2)
        self.how = (1, 1, kernel, kernel), (1, 1, stride, stride), around

    def forward(self, x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, *self.how)


class AdaptiveAvgPool2d(Module):
    def __init__(self, size: int) -> None:
        pass

    def forward(self, x: Any) -> Any:
        return x.mean((2, 3), keepdims=True)


class Flatten(Module):
    def forward(self, x: Any) -> Any:
        return x.reshape(x.shape[0], -1)


class ReLU(Module):
    def forward(self, x: Any) -> Any:
        return jax.nn.relu(x)


class ReLU6(Module):
    def forward(self, x: Any) -> Any:
        return jax.nn.relu6(x)


class GELU(Module):
    def forward(self, x: Any) -> Any:
        return jax.nn.gelu(x, approximate=False)


class _Recurrent(Module):
    """Layers of a cell by `lax.scan`; the product of all steps' inputs comes before it, as PyTorch's formulas allow."""

    def __init__(self, inputs: int, state: int, layers: int, batch_first: bool) -> None:
        self.state, self.layers = state, layers
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        self.parameters = tuple(f"{name}_l{i}" for i in range(layers) for name in names)

    def forward(self, x: Any) -> Any:
        h = x.swapaxes(0, 1)
        for i in range(self.layers):
            w, u, b, c = (
                getattr(self, f"{name}_l{i}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            h = self.scanned(h @ w.T + b, jnp.zeros((h.shape[1], self.state), h.dtype), u, c)
        return h.swapaxes(0, 1), None


class LSTM(_Recurrent):
    @staticmethod
    def scanned(xs: Any, zero: Any, u: Any, c: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            h, cell = carry
            i, f, g, o = jnp.split(x + h @ u.T + c, 4, -1)
            cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(cell)
            return (h, cell), h

        return lax.scan(step, (zero, zero), xs)[1]


class GRU(_Recurrent):
    @staticmethod
    def scanned(xs: Any, zero: Any, u: Any, c: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            xr, xz, xn = jnp.split(x, 3, -1)
            hr, hz, hn = jnp.split(h @ u.T + c, 3, -1)
            z = jax.nn.sigmoid(xz + hz)
            h = (1 - z) * jnp.tanh(xn + jax.nn.sigmoid(xr + hr) * hn) + z * h
            return h, h

        return lax.scan(step, zero, xs)[1]


def _attention(q: Any, k: Any, v: Any, is_causal: bool = False) -> Any:
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    if is_causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    return jax.nn.softmax(scores, -1) @ v


functional = SimpleNamespace(scaled_dot_product_attention=_attention)


def trainer(
    network: Module, state: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray, optimizer: str, lr: float
) -> Any:
    """A function that makes so many steps and returns the last loss, waiting for it; state by PyTorch's names."""
    slots = {name: slot for name, *slot in network.slots()}
    parameters = {name: jnp.asarray(state[name]) for name in slots}
    x, y = jnp.asarray(x), jnp.asarray(y)

    def loss_of(parameters: Any) -> Any:
        for name, (module, attribute) in slots.items():
            setattr(module, attribute, parameters[name])
        logits = jax.nn.log_softmax(network(x))
        return -jnp.take_along_axis(logits, y[:, None], 1).mean()

    def adam(parameter: Any, gradient: Any, moments: Any, step: Any) -> Any:
        first, second = 0.9 * moments[0] + 0.1 * gradient, 0.999 * moments[1] + 0.001 * gradient**2
        scaled = first / (1 - 0.9**step) / (jnp.sqrt(second / (1 - 0.999**step)) + 1e-8)
        return parameter - lr * scaled, (first, second)

    def sgd(parameter: Any, gradient: Any, moments: Any, step: Any) -> Any:
        return parameter - lr * gradient, moments

    update = {"Adam": adam, "SGD": sgd}[optimizer]
    moments = {
        name: (jnp.zeros_like(p), jnp.zeros_like(p)) if optimizer == "Adam" else () for name, p in parameters.items()
    }

    @partial(jax.jit, donate_argnums=(0, 1, 2))
    def train(parameters: Any, moments: Any, step: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(parameters)
        found = {name: update(p, gradients[name], moments[name], step) for name, p in parameters.items()}
        return loss, {n: p for n, (p, _) in found.items()}, {n: m for n, (_, m) in found.items()}, step + 1

    kept = [parameters, moments, jnp.float32(1)]

    def run(times: int) -> float:
        for _ in range(times):
            loss, *kept[:] = train(*kept)
        jax.block_until_ready(kept)
        return float(loss)

    return run
