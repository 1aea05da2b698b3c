"""A model's training step and inference in each library, from the same state on the same batch.

`CONTENDERS[name](model, state, x, y)` returns a `Contender`. `python contenders.py NAME MODEL STATE.npz STEPS` makes so
many steps in a process of its own; it prints the last loss and the peak of the process' memory in bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from models import MODELS, Model
from timing import Runner

State = dict[str, np.ndarray]


@dataclass(frozen=True)
class Contender:
    """What a library does with a model.

    Attributes:
        train: train(n) makes n steps and returns the last one's loss.
        infer: infer(n) computes the network n times; None where that is another contender's.
        step: dlsys' compiled step, whose `executor` shows every stage.
    """

    train: Callable[[int], float]
    infer: Runner | None = None
    step: Any = None


def dlsys(*given: Any) -> Contender:
    """The step, in PyTorch's words, and the network as compiled functions."""
    import dlsys as dl
    from dlsys import nn, optim

    network, X, Y, optimizer = loop(nn, optim, dl.tensor, *given)

    @dl.compile
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(x), y)
        loss.backward()
        optimizer.step()
        return loss

    predict = dl.compile(network)

    def train(times: int) -> float:
        network.train()
        for _ in range(times):
            loss = step(X, Y)
        return float(loss)

    def infer(times: int) -> None:
        network.eval()
        for _ in range(times):
            predict(X)

    return Contender(train, infer, step)


def loop(nn: Any, optim: Any, tensor: Any, model: Model, state: State, x: np.ndarray, y: np.ndarray) -> Any:
    """The network, the tensors of `x` and `y`, and the optimizer, of dlsys or PyTorch."""
    network = model.network(nn)
    network.load_state_dict({name: tensor(value.copy()) for name, value in state.items()})
    return network, tensor(x), tensor(y), getattr(optim, model.optimizer)(network.parameters(), lr=model.lr)


def trained(network: Any, loss_of: Callable[[], Any], optimizer: Any, update: Callable[[], Any]) -> Runner:
    """A loop in PyTorch's style; `update` is the optimizer's step."""

    def train(times: int) -> float:
        network.train()
        for _ in range(times):
            optimizer.zero_grad()
            loss = loss_of()
            loss.backward()
            update()
        return float(loss.detach())

    return train


def torch(*given: Any, compiled: bool = False) -> Contender:
    """PyTorch; torch.compile makes the loss, its gradients and the update if `compiled`."""
    import torch

    network, X, Y, optimizer = loop(torch.nn, torch.optim, torch.from_numpy, *given)
    predict, update = network, optimizer.step

    def loss_of() -> Any:
        return torch.nn.functional.cross_entropy(network(X), Y)

    if compiled:
        torch._dynamo.config.recompile_limit = 64  # beyond its limit Dynamo runs eagerly and says nothing
        torch._dynamo.config.fail_on_recompile_limit_hit = torch._dynamo.config.allow_rnn = True
        torch.compiler.reset()
        loss_of, predict = (torch.compile(f, fullgraph=True, dynamic=False) for f in (loss_of, network))
        update = torch.compile(optimizer.step)

    def infer(times: int) -> None:
        network.eval()
        with torch.no_grad():
            for _ in range(times):
                predict(X)

    return Contender(trained(network, loss_of, optimizer, update), infer)


def jax(model: Model, state: State, x: np.ndarray, y: np.ndarray) -> Contender:
    """JAX: the whole step jitted, parameters and moments donated."""
    import jax
    import jax.numpy as jnp
    import jax_nn

    network, X, Y = model.network(jax_nn), jnp.asarray(x), jnp.asarray(y)
    arrays = {name: jnp.asarray(value) for name, value in state.items()}
    statistics = {name: value for name, value in arrays.items() if "running" in name or "tracked" in name}
    start = {name: jnp.copy(value) for name, value in arrays.items() if name not in statistics}

    def computed(parameters: Any, training: bool) -> Any:
        jax_nn.Module.training = training
        network.load({**statistics, **parameters})
        return network(X)

    def loss_of(parameters: Any) -> Any:
        logarithms = jax.nn.log_softmax(computed(parameters, True))
        return -jnp.take_along_axis(logarithms, Y[:, None], 1).mean()

    def adam(parameter: Any, gradient: Any, moments: Any, step: Any) -> Any:
        first, second = 0.9 * moments[0] + 0.1 * gradient, 0.999 * moments[1] + 0.001 * gradient**2
        scaled = first / (1 - 0.9**step) / (jnp.sqrt(second / (1 - 0.999**step)) + 1e-8)
        return parameter - model.lr * scaled, (first, second)

    def sgd(parameter: Any, gradient: Any, moments: Any, step: Any) -> Any:
        return parameter - model.lr * gradient, moments

    def step(parameters: Any, moments: Any, number: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(parameters)
        update = adam if model.optimizer == "Adam" else sgd
        both = {name: update(p, gradients[name], moments[name], number) for name, p in parameters.items()}
        return loss, *({name: pair[i] for name, pair in both.items()} for i in (0, 1)), number + 1

    count = 2 if model.optimizer == "Adam" else 0
    zeros = {name: tuple(jnp.zeros_like(p) for _ in range(count)) for name, p in start.items()}
    jitted, kept = jax.jit(step, donate_argnums=(0, 1, 2)), [start, zeros, jnp.float32(1)]
    predict = jax.jit(lambda parameters: computed(parameters, False))

    def train(times: int) -> float:
        for _ in range(times):
            loss, *kept[:] = jitted(*kept)
        jax.block_until_ready(kept)
        return float(loss)

    def infer(times: int) -> None:
        for _ in range(times):
            result = predict(kept[0])
        jax.block_until_ready(result)

    return Contender(train, infer)


CONTENDERS: dict[str, Callable[..., Contender]] = {
    "dlsys": dlsys,
    "PyTorch": torch,
    "torch.compile": lambda *given: torch(*given, compiled=True),
    "JAX": jax,
}
NEEDS = {"PyTorch": "torch", "torch.compile": "torch", "JAX": "jax"}
"""The package of each contender that is not always there."""


def main(name: str, model: str, state: str, steps: str) -> None:
    """Makes the steps of a process of its own."""
    x, y = MODELS[model].batch(np.random.default_rng(0))
    contender = CONTENDERS[name](MODELS[model], dict(np.load(state)), x, y)
    loss = contender.train(int(steps))
    status = Path("/proc/self/status").read_text(encoding="utf-8")  # `getrusage` would begin with the parent's peak
    print(loss, 1024 * int(status.split("VmHWM:")[1].split()[0]))


if __name__ == "__main__":
    main(*sys.argv[1:])
