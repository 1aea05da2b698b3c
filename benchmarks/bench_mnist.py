"""Training steps of MNIST's two models, against other libraries: `python benchmarks/bench_mnist.py`.

Contenders train the same model from the same values on the same batches, in turn, in blocks of steps; reading
data from disk and compiling are not in the times. "ratio" is ours over the other's: below 1 ours is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import common
from common import Runner

MODELS = {"mlp": (784, 256, 100, 10), "logreg": (784, 10)}
IMAGES = 50_000  # in an epoch
STORED = 10_000  # images drawn; 30 MB, beyond the caches
LEARNING_RATE = 1.0
ROUNDS, MIN_TIME = 9, 0.5
DEFAULT_STEPS = 2  # timed with TVM's default schedules: 10 to 100 times the others' time
TOLERANCE = 1e-3  # largest relative difference of the losses of the first steps
CHECKED_STEPS = 3


def synthetic_mnist() -> tuple[Any, Any]:
    """Images (STORED, 784) in [0, 1), four fifths of the pixels black, and one-hot labels (STORED, 10) that a
    linear model gives, so that training behaves as on digits; float32."""
    import numpy as np

    random = np.random.RandomState(0)
    images = random.random_sample((STORED, 784)) * (random.random_sample((STORED, 784)) < 0.2)
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


# Contenders: `make(sizes, images, labels, batch)` returns step(i), which trains on batch i and returns the
# loss as it lies, and finish(loss), which waits for all that was begun and gives the loss as a float.


def make_dlsys(sizes: tuple[int, ...], images: Any, labels: Any, batch: int) -> tuple[Any, Any]:
    """The public API, as in tests/mnist_dlsys.py."""
    import dlsys as dl
    from dlsys import autodiff as ad
    from dlsys import tvm_op
    from tvm import runtime

    values = [runtime.tensor(value) for value in initial_parameters(sizes)]
    x, y = ad.Variable("X"), ad.Variable("y_")
    parameters = [ad.Variable(f"{'Wb'[i % 2]}{i // 2 + 1}") for i in range(len(values))]
    hidden = x
    for i in range(0, len(parameters), 2):
        product = hidden @ parameters[i]
        hidden = product + ad.broadcastto_op(parameters[i + 1], product)
        if i + 2 < len(parameters):
            hidden = ad.relu_op(hidden)
    loss = ad.softmaxcrossentropy_op(hidden, y)
    executor = ad.Executor([loss, *ad.gradients(loss, parameters)], ctx=dl.cpu(0))
    updates = [
        tvm_op.make_sgd_update(tuple(value.shape), LEARNING_RATE, "llvm", "llvm", "sgd_update")
        for value in values
    ]
    feeds = dict(zip(parameters, values, strict=True))
    batches = list(cut(images, labels, batch))

    def step(i: int) -> Any:
        feeds[x], feeds[y] = batches[i % len(batches)]
        loss_value, *gradients = executor.run(feeds)
        for update, value, gradient in zip(updates, values, gradients, strict=True):
            update(value, gradient, value)
        return loss_value

    return step, lambda loss_value: float(loss_value.numpy().item())


def make_dlsys_default(sizes: tuple[int, ...], images: Any, labels: Any, batch: int) -> tuple[Any, Any]:
    """Ours, with every kernel as TVM compiles it without a schedule."""
    from dlsys import tvm_op

    with tvm_op.default_schedules():
        step, finish = make_dlsys(sizes, images, labels, batch)

    def default_step(i: int) -> Any:
        with tvm_op.default_schedules():  # the plan is compiled in the first step
            return step(i)

    return default_step, finish


def make_torch(sizes: tuple[int, ...], images: Any, labels: Any, batch: int) -> tuple[Any, Any]:
    """PyTorch eager with its own layers and SGD. (Weights kept as (in, out) for `addmm` take up to twice as
    long at 10 columns.)"""
    import torch
    from torch.nn import functional

    layers: list[Any] = []
    values = [torch.from_numpy(value) for value in initial_parameters(sizes)]
    for weight, bias in zip(values[::2], values[1::2], strict=True):
        layer = torch.nn.Linear(*weight.shape)
        layer.weight.data.copy_(weight.T)
        layer.bias.data.copy_(bias)
        layers += [layer, torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1])
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    classes = labels.argmax(axis=1)
    batches = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in cut(images, classes, batch)]

    def step(i: int) -> Any:
        x, y = batches[i % len(batches)]
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step, lambda loss: float(loss.detach())


def make_jax(sizes: tuple[int, ...], images: Any, labels: Any, batch: int) -> tuple[Any, Any]:
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


def make_numpy(sizes: tuple[int, ...], images: Any, labels: Any, batch: int) -> tuple[Any, Any]:
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


CONTENDERS = {
    "dlsys": make_dlsys,
    "dlsys, TVM default": make_dlsys_default,
    "PyTorch": make_torch,
    "JAX": make_jax,
    "NumPy": make_numpy,
}
NEEDS = {"PyTorch": "torch", "JAX": "jax"}


def cut(images: Any, labels: Any, batch: int) -> Iterator[tuple[Any, Any]]:
    """The full batches, as views."""
    for start in range(0, len(images) - batch + 1, batch):
        yield images[start : start + batch], labels[start : start + batch]


# Measuring and reporting -----------------------------------------------------------------------------------


def steps_runner(step: Any, finish: Any, start: int) -> Runner:
    """A runner of steps that follow each other; it returns when the last is done."""
    done = start

    def runner(times: int) -> None:
        nonlocal done
        loss = None
        for _ in range(times):
            loss = step(done)
            done += 1
        finish(loss)

    return runner


def first_losses(step: Any, finish: Any) -> list[float]:
    """The losses of the first steps, by which contenders are compared."""
    return [finish(step(i)) for i in range(CHECKED_STEPS)]


def measure(model: str, batch: int, names: list[str], rounds: int) -> dict[str, Any]:
    """Milliseconds per step of each contender, quartiles and median."""
    images, labels = synthetic_mnist()
    runners, losses = {}, {}
    for name in names:
        step, finish = CONTENDERS[name](MODELS[model], images, labels, batch)
        losses[name] = first_losses(step, finish)
        runners[name] = steps_runner(step, finish, CHECKED_STEPS)
    for name, values in losses.items():
        reference = losses[names[0]]
        if any(abs(a - b) > TOLERANCE * abs(b) for a, b in zip(values, reference, strict=True)):
            sys.exit(
                f"{model}, batch {batch}: losses of {name} {values} are not those of {names[0]} {reference}"
            )
    slow = runners.pop("dlsys, TVM default", None)
    timings = common.alternate(runners, rounds, MIN_TIME)
    if slow is not None:
        start = time.perf_counter()
        slow(DEFAULT_STEPS)
        seconds = (time.perf_counter() - start) / DEFAULT_STEPS
        timings["dlsys, TVM default"] = common.summary([seconds], DEFAULT_STEPS)
    milliseconds = {name: [1e3 * t.lower, 1e3 * t.median, 1e3 * t.upper] for name, t in timings.items()}
    shown = "  ".join(f"{name} {common.number(quartiles[1])}" for name, quartiles in milliseconds.items())
    print(f"  {model}, batch {batch}, ms per step: {shown}", flush=True)
    return {"model": model, "batch": batch, "ms_per_step": milliseconds}


def section(run: dict[str, Any]) -> str:
    """A heading and a table of the time of one epoch, with ours over each contender."""
    threads, peak = run["threads"], run["peak_gflops"]
    names = [name for name in CONTENDERS if any(name in row["ms_per_step"] for row in run["rows"])]
    others = [name for name in names if name != "dlsys"]
    ratios = [f"ratio to {name}" for name in others] if "dlsys" in names else []
    header = ["model", "batch", *names, "matmul limit", *ratios]
    rows = []
    for row in run["rows"]:
        steps = IMAGES / row["batch"]
        epochs = {name: steps * quartiles[1] / 1e3 for name, quartiles in row["ms_per_step"].items()}
        limit = steps * step_flops(MODELS[row["model"]], row["batch"]) / (peak * 1e9)
        compared = [epochs["dlsys"] / epochs[n] if n in epochs else None for n in others] if ratios else []
        times = [epochs.get(name) for name in names]
        rows.append([row["model"], str(row["batch"]), *times, limit, *compared])
    heading = f"## Seconds per epoch of {IMAGES:,} images, {threads} thread{'s' * (threads > 1)}"
    note = (
        "Medians. The matmul limit is the time of the matrix products alone "
        f"at the machine's FMA peak, {peak:.0f} GFLOP/s."
    )
    return "\n\n".join([heading, common.table(header, rows), note])


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", default=f"1,{common.available_cores()}", help="thread counts, e.g. 1,2")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--batches", default="1000,100,32")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--skip", default="", metavar="NAMES", help=f"contenders to leave out: {', '.join(NEEDS)}"
    )
    parser.add_argument("--skip-default", action="store_true", help="without TVM's default schedules")
    parser.add_argument("--name", default="mnist", help="of the files under results/")
    parser.add_argument("--child", metavar="FILE", help=argparse.SUPPRESS)
    return parser.parse_args()


def child(arguments: argparse.Namespace) -> None:
    """One thread count: measures and leaves JSON in the file that the parent named."""
    threads = int(arguments.threads)
    skipped = {name.strip() for name in arguments.skip.split(",")}
    skipped |= {name for name, package in NEEDS.items() if common.version(package) is None}
    peak = common.fma_peak(threads)
    print(f"{threads} thread(s), FMA peak {peak:.0f} GFLOP/s", flush=True)
    rows = []
    for model in arguments.models.split(","):
        for batch in map(int, arguments.batches.split(",")):
            names = [name for name in CONTENDERS if name not in skipped]
            # Unscheduled kernels are shown once: on one thread, at the largest batch.
            if arguments.skip_default or threads > 1 or batch != 1000:
                names.remove("dlsys, TVM default")
            rows.append(measure(model, batch, names, arguments.rounds))
    result = {"threads": threads, "peak_gflops": peak, "rows": rows}
    Path(arguments.child).write_text(json.dumps(result), encoding="utf-8")


def main() -> None:
    arguments = parse_arguments()
    if arguments.child:
        return child(arguments)
    load = common.OtherLoad()
    passed_on = [f"--{name}={getattr(arguments, name)}" for name in ("models", "batches", "rounds", "skip")]
    passed_on += ["--skip-default"] * arguments.skip_default
    runs = []
    for threads in dict.fromkeys(int(text) for text in arguments.threads.split(",")):
        runs.append(
            common.run_with_threads(os.path.abspath(__file__), threads, [f"--threads={threads}", *passed_on])
        )
    command = " ".join(["python", "benchmarks/bench_mnist.py", *sys.argv[1:]])
    title = "Training steps of MNIST's models"
    print(common.write_results(arguments.name, title, command, [section(run) for run in runs], runs, load))


if __name__ == "__main__":
    main()
