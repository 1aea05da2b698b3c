"""MNIST's two models as each library trains them: what `bench_mnist.py` and `bench_start.py` compare.

`CONTENDERS[name](sizes, images, labels, batch)` builds the model and returns step(i), which trains on batch i and
returns the loss as it lies, and finish(loss), which waits for all that was begun and gives the loss as a float. All
start from `initial_parameters`; each has the batches in arrays of its own kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

MODELS = {"mlp": (784, 256, 100, 10), "logreg": (784, 10)}
STORED = 10_000  # images drawn; 30 MB, beyond the caches
LEARNING_RATE = 1.0
TOLERANCE = 1e-5  # largest relative difference of the losses of the first steps: 30 times what rounding makes
NEEDS = {"PyTorch eager": "torch", "torch.compile": "torch", "JAX": "jax"}
"""The package of each contender that is not always there."""

Steps = tuple[Callable[[int], Any], Callable[[Any], float]]


def synthetic_mnist(count: int = STORED) -> tuple[Any, Any]:
    """Images (count, 784) in [0, 1), four fifths of the pixels black, and one-hot labels (count, 10) that a
    linear model gives, so that training behaves as on digits; float32."""
    import numpy as np

    random = np.random.RandomState(0)
    images = random.random_sample((count, 784)) * (random.random_sample((count, 784)) < 0.2)
    classes = ((images - 0.1) @ random.standard_normal((784, 10))).argmax(axis=1)
    return images.astype("float32"), np.eye(10, dtype="float32")[classes]


def initial_parameters(sizes: tuple[int, ...]) -> list[Any]:
    """[W1, b1, W2, b2, ...]: uniform in [-0.05, 0.05), biases zero."""
    import numpy as np

    random = np.random.RandomState(123)
    parameters = []
    for rows, columns in pairwise(sizes):
        parameters.append((0.1 * (random.random_sample((rows, columns)) - 0.5)).astype("float32"))
        parameters.append(np.zeros(columns, "float32"))
    return parameters


def step_flops(sizes: tuple[int, ...], batch: int) -> int:
    """Floating-point operations of the matrix products of one step: forward, weights', inputs' gradients; the
    images need none."""
    products = [rows * columns for rows, columns in pairwise(sizes)]
    return 2 * batch * (3 * sum(products) - products[0])


def cut(images: Any, labels: Any, batch: int) -> Iterator[tuple[Any, Any]]:
    """The full batches, as views."""
    for start in range(0, len(images) - batch + 1, batch):
        yield images[start : start + batch], labels[start : start + batch]


def disagreement(losses: dict[str, list[float]]) -> str | None:
    """Whose losses differ from those of the first contender, and how; None where all agree."""
    first, reference = next(iter(losses.items()))
    for name, values in losses.items():
        if not all(abs(a - b) <= TOLERANCE * abs(b) for a, b in zip(values, reference, strict=True)):
            return f"losses of {name} {values} are not those of {first} {reference}"
    return None


def dlsys_trainer(sizes: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """The variables of images and labels, and the executor of [loss, update], as in tests/mnist_dlsys.py."""
    import dlsys as dl
    from dlsys import autodiff as ad
    from dlsys import optim

    x, y = ad.Variable("X"), ad.Variable("y_")
    parameters = [
        ad.Parameter(value, f"{'Wb'[i % 2]}{i // 2 + 1}") for i, value in enumerate(initial_parameters(sizes))
    ]
    hidden = x
    for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
        out = hidden @ weight + bias
        hidden = ad.relu_op(out)
    loss = ad.softmaxcrossentropy_op(out, y)
    update = optim.SGD(parameters, lr=LEARNING_RATE).minimize(loss)
    return x, y, ad.Executor([loss, update], ctx=dl.cpu(0))


def make_dlsys(sizes: tuple[int, ...], images: Any, labels: Any, batch: int) -> Steps:
    """The public API: the parameters inside, the update part of the graph, the feeds on the device."""
    import dlsys as dl

    x, y, executor = dlsys_trainer(sizes)
    executor.compile_funcs({x: (batch, sizes[0]), y: (batch, sizes[-1])})
    batches = [{x: dl.array(a), y: dl.array(b)} for a, b in cut(images, labels, batch)]

    def step(i: int) -> Any:
        loss, _ = executor.run(batches[i % len(batches)])
        return loss

    return step, lambda loss: float(loss.numpy().item())


def make_dlsys_default(sizes: tuple[int, ...], images: Any, labels: Any, batch: int) -> Steps:
    """Ours, with every kernel as TVM compiles it without a schedule."""
    from dlsys import kernels

    with kernels.default_schedules():
        return make_dlsys(sizes, images, labels, batch)


def linear_model(sizes: tuple[int, ...], nn: Any, tensor: Callable[[Any], Any]) -> Any:
    """The network of the layers of PyTorch's `nn`, or of ours. (PyTorch's `addmm` of weights kept as (in, out) takes up
    to twice as long at 10 columns.)"""
    import numpy as np

    layers: list[Any] = []
    values = initial_parameters(sizes)
    for weight, bias in zip(values[::2], values[1::2], strict=True):
        layer = nn.Linear(*weight.shape)
        layer.weight.data, layer.bias.data = tensor(np.ascontiguousarray(weight.T)), tensor(bias)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def loop_steps(model: Any, loss_of: Any, optimizer: Any, batches: list[tuple[Any, Any]]) -> Steps:
    """A loop in PyTorch's style."""

    def step(i: int) -> Any:
        x, y = batches[i % len(batches)]
        loss = loss_of(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step, lambda loss: float(loss.item())


def make_dlsys_loop(sizes: tuple[int, ...], images: Any, labels: Any, batch: int) -> Steps:
    """Ours in PyTorch's style: each step makes its graph anew."""
    import dlsys as dl
    from dlsys import nn, optim

    model = linear_model(sizes, nn, dl.tensor)
    optimizer = optim.SGD(model.parameters(), lr=LEARNING_RATE)
    batches = [(dl.tensor(x), dl.tensor(y)) for x, y in cut(images, labels.argmax(axis=1), batch)]
    return loop_steps(model, nn.CrossEntropyLoss(), optimizer, batches)


def torch_batches(images: Any, labels: Any, batch: int) -> list[tuple[Any, Any]]:
    """The batches, with classes as PyTorch wants them."""
    import torch

    return [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in cut(images, labels.argmax(axis=1), batch)]


def make_torch(sizes: tuple[int, ...], images: Any, labels: Any, batch: int) -> Steps:
    """PyTorch eager with its SGD. (`foreach` and `fused` make no difference here.)"""
    import torch
    from torch.nn import functional

    model = linear_model(sizes, torch.nn, torch.from_numpy)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    return loop_steps(model, functional.cross_entropy, optimizer, torch_batches(images, labels, batch))


def make_torch_compile(sizes: tuple[int, ...], images: Any, labels: Any, batch: int) -> Steps:
    """torch.compile of the whole step, loss, gradients and update, as one graph.

    The usual form, which compiles the loss and leaves `backward` and SGD outside, takes longer: 1.1 times at batch
    1000, 1.3 times and more at batches of 32.
    """
    import torch
    from torch.nn import functional

    torch.compiler.reset()  # else a second batch size is taken for a dynamic one
    model = linear_model(sizes, torch.nn, torch.from_numpy)
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def loss_of(parameters: dict[str, Any], x: Any, y: Any) -> Any:
        return functional.cross_entropy(torch.func.functional_call(model, parameters, (x,)), y)

    @torch.compile(fullgraph=True, dynamic=False)
    def train(parameters: dict[str, Any], x: Any, y: Any) -> Any:
        gradients, loss = torch.func.grad_and_value(loss_of)(parameters, x, y)
        for name, value in parameters.items():
            value.sub_(LEARNING_RATE * gradients[name])
        return loss

    batches = torch_batches(images, labels, batch)
    return (lambda i: train(parameters, *batches[i % len(batches)])), float


def make_jax(sizes: tuple[int, ...], images: Any, labels: Any, batch: int) -> Steps:
    """JAX: the whole step jitted, the parameters donated."""
    from functools import partial

    import jax
    import jax.numpy as jnp

    def loss_of(parameters: list[Any], x: Any, y: Any) -> Any:
        hidden = x
        for p in range(0, len(parameters), 2):
            hidden = hidden @ parameters[p] + parameters[p + 1]
            if p + 2 < len(parameters):
                hidden = jax.nn.relu(hidden)
        return -jnp.mean(jnp.sum(y * jax.nn.log_softmax(hidden), axis=1))

    @partial(jax.jit, donate_argnums=0)
    def train(parameters: list[Any], x: Any, y: Any) -> tuple[Any, list[Any]]:
        loss, gradients = jax.value_and_grad(loss_of)(parameters, x, y)
        return loss, [p - LEARNING_RATE * g for p, g in zip(parameters, gradients, strict=True)]

    state = [jnp.asarray(value) for value in initial_parameters(sizes)]
    batches = [(jnp.asarray(x), jnp.asarray(y)) for x, y in cut(images, labels, batch)]

    def step(i: int) -> Any:
        nonlocal state
        loss, state = train(state, *batches[i % len(batches)])
        return loss

    def finish(loss: Any) -> float:
        jax.block_until_ready(state)
        return float(loss)

    return step, finish


def make_numpy(sizes: tuple[int, ...], images: Any, labels: Any, batch: int) -> Steps:
    """NumPy, the gradients by hand."""
    import numpy as np

    parameters = initial_parameters(sizes)
    batches = list(cut(images, labels, batch))

    def step(i: int) -> Any:
        x, y = batches[i % len(batches)]
        inputs = [x]  # of every layer; the last one holds the logits
        for p in range(0, len(parameters), 2):
            out = inputs[-1] @ parameters[p]
            out += parameters[p + 1]
            inputs.append(np.maximum(out, 0, out=out) if p + 2 < len(parameters) else out)
        shifted = inputs.pop()
        shifted -= shifted.max(axis=1, keepdims=True)
        exponentials = np.exp(shifted)
        sums = exponentials.sum(axis=1, keepdims=True)
        loss = -np.mean(np.sum(y * (shifted - np.log(sums)), axis=1))
        gradient = (exponentials / sums - y) / np.float32(len(x))
        for p in reversed(range(0, len(parameters), 2)):
            below = inputs.pop()
            bias_gradient, weight_gradient = gradient.sum(axis=0), below.T @ gradient
            if p:
                gradient = (gradient @ parameters[p].T) * (below > 0)
            parameters[p] -= LEARNING_RATE * weight_gradient
            parameters[p + 1] -= LEARNING_RATE * bias_gradient
        return loss

    return step, float


CONTENDERS: dict[str, Callable[[tuple[int, ...], Any, Any, int], Steps]] = {
    "dlsys": make_dlsys,
    "PyTorch eager": make_torch,
    "torch.compile": make_torch_compile,
    "JAX": make_jax,
    "NumPy": make_numpy,
    "TVM default": make_dlsys_default,
}
