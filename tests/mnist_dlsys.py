"""Trains logistic regression and a multilayer perceptron on MNIST with dlsys.

    python tests/mnist_dlsys.py -l -m mlp
    mpiexec -n 2 python tests/mnist_dlsys.py -l -m mlp   # the same training by two processes
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import dlsys as dl
import numpy as np
from dlsys import autodiff as ad
from dlsys import distributed, optim
from dlsys.data import MNIST, mnist, one_hot
from dlsys.data.digits import SOURCE as DIGITS
from dlsys.errors import DlsysError

CLASSES = 10
STEP = 1.0
"""The step on MNIST: the course's, for the mean of a batch of 1,000."""
STEP_ON_DIGITS = 0.4
"""The step on scikit-learn's digits, which take MNIST's place where it is not and are less stable: with the rows of the
batches in 20 orders, 1.0 ends at 0.08 to 0.97, and an epoch's loss is up to 70 times the least before it; by 0.7 up to
13 times, by 0.5 up to 2.9, and by 0.4 it falls in each epoch and ends at 0.956."""


# Two models ------------------------------------------------------------------------------------------------


@dataclass
class Model:
    """A graph and the parameters that it is trained by."""

    title: str
    X: ad.Node  # images, (batch, 784)
    y_: ad.Node  # one-hot labels, (batch, 10)
    logits: ad.Node  # (batch, 10)
    loss: ad.Node  # (1,): the mean over the batch
    parameters: list[ad.Parameter]


def logreg() -> Model:
    """Logistic regression: softmax(X W1 + b1)."""
    X, y_ = ad.Variable("X"), ad.Variable("y_")
    W1, b1 = parameter("W1", np.zeros((784, 10))), parameter("b1", np.zeros(10))

    z1 = ad.matmul_op(X, W1)
    logits = z1 + ad.broadcastto_op(b1, z1)
    loss = ad.softmaxcrossentropy_op(logits, y_)

    return Model("Logistic regression", X, y_, logits, loss, [W1, b1])


def mlp() -> Model:
    """Multilayer perceptron: 784 - 256 - 100 - 10, ReLU between the layers."""
    X, y_ = ad.Variable("X"), ad.Variable("y_")
    # the seed and the order of drawing are the course's: first the weights, then the biases
    rand = np.random.RandomState(seed=123)
    shapes = {"W1": (784, 256), "W2": (256, 100), "W3": (100, 10), "b1": 256, "b2": 100, "b3": 10}
    drawn = [parameter(name, rand.normal(scale=0.1, size=shape)) for name, shape in shapes.items()]
    W1, W2, W3, b1, b2, b3 = drawn

    z1 = ad.matmul_op(X, W1)
    h1 = ad.relu_op(z1 + ad.broadcastto_op(b1, z1))
    z2 = ad.matmul_op(h1, W2)
    h2 = ad.relu_op(z2 + ad.broadcastto_op(b2, z2))
    z3 = ad.matmul_op(h2, W3)
    logits = z3 + ad.broadcastto_op(b3, z3)
    loss = ad.softmaxcrossentropy_op(logits, y_)

    return Model("Multilayer perceptron", X, y_, logits, loss, drawn)


def parameter(name: str, value: np.ndarray) -> ad.Parameter:
    """A float32 parameter."""
    return ad.Parameter(value.astype(np.float32), name)


MODELS: dict[str, Callable[[], Model]] = {"logreg": logreg, "mlp": mlp}


# One training loop -----------------------------------------------------------------------------------------


def train(model: Model, data: MNIST, ctx: Any, options: argparse.Namespace) -> list[float]:
    """Stochastic gradient descent on `model`; prints as it goes; returns the mean loss of each epoch."""
    optimizer = optim.SGD(model.parameters, lr=options.lr)
    trainer = ad.Executor([model.loss, optimizer.minimize(loss_of_share(model))], ctx=ctx)
    predictor = ad.Executor([model.logits], ctx=ctx)

    start = time.perf_counter()
    for size in share_sizes(len(data.train_labels), options.batch_size):
        trainer.compile_funcs({model.X: (size, 784), model.y_: (size, CLASSES)})
    for size in batch_sizes(len(data.valid_labels), options.batch_size):
        predictor.compile_funcs({model.X: (size, 784)})
    print(f"Time taken to compile = {time.perf_counter() - start:.3f} s", flush=True)

    targets = one_hot(data.train_labels, CLASSES)
    batches = [
        {model.X: on_device(data.train_images[rows], ctx), model.y_: on_device(targets[rows], ctx)}
        for rows in map(distributed.share, slices(len(targets), options.batch_size))
    ]
    losses = []
    for epoch in range(1, options.num_epoch + 1):
        print(f"epoch {epoch}", flush=True)
        start = time.perf_counter()
        total = 0.0
        for batch in batches:
            loss_val, _ = trainer.run(batch)
            total += np.asarray(loss_val).item() * batch[model.y_].shape[0]  # the mean over the batch, times its size
        losses.append(distributed.all_reduce(total) / len(targets))
        seconds = time.perf_counter() - start
        loss_text = f"loss = {losses[-1]:.6f}; " if options.print_loss else ""
        print(f"{loss_text}Time taken this epoch = {seconds:.3f} s", flush=True)
    if losses and not math.isfinite(losses[-1]):
        print("The training diverged: try a smaller --lr.", flush=True)

    right = 0
    for rows in slices(len(data.valid_labels), options.batch_size):
        feed = {model.X: on_device(data.valid_images[rows], ctx)}
        (logits_val,) = predictor.run(feed, convert_to_numpy_ret_vals=True)
        right += int((logits_val.argmax(axis=1) == data.valid_labels[rows]).sum())
    print(f"Validation set accuracy = {right / len(data.valid_labels):.6f}", flush=True)
    return losses


def loss_of_share(model: Model) -> ad.Node:
    """The loss of which the mean over all processes is that of a whole batch; of one process its own."""
    if distributed.size() == 1:
        return model.loss
    rows = ad.reducesum_op(model.y_)  # each row of y_ adds up to 1; processes may have one row more than others
    return model.loss * (rows / distributed.mean_over_ranks(rows))


def on_device(value: np.ndarray, ctx: Any) -> Any:
    """A float32 array on the device of `ctx`; a NumPy array for the numpy context."""
    value = np.ascontiguousarray(value, dtype=np.float32)
    return value if ctx == dl.numpy() else dl.array(value, ctx)


def slices(count: int, batch_size: int) -> Iterator[slice]:
    """The rows of each batch, in order; the last batch may be smaller."""
    for begin in range(0, count, batch_size):
        yield slice(begin, min(begin + batch_size, count))


def share_sizes(count: int, batch_size: int) -> set[int]:
    """The sizes of this process's shares of the batches; those of the batches where it is alone."""
    shares = map(distributed.share, slices(count, batch_size))
    return {rows.stop - rows.start for rows in shares}


def batch_sizes(count: int, batch_size: int) -> set[int]:
    """The one or two sizes of batch that occur."""
    return {rows.stop - rows.start for rows in slices(count, batch_size)}


# The command line ------------------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """Says in one sentence what is wrong with the arguments."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The options, each checked as far as it can be without the data."""
    parser = Parser(description="Train models on MNIST with dlsys.", allow_abbrev=False)
    parser.add_argument("-m", "--model", choices=[*MODELS, "all"], default="all", help="default: all")
    parser.add_argument("-c", "--context", choices=["cpu", "numpy", "gpu"], default="cpu",
                        help="where to compute (default: cpu)")  # fmt: skip
    parser.add_argument("-e", "--num-epoch", type=int, default=10, metavar="EPOCHS", help="default: 10")
    parser.add_argument("-l", "--print-loss", action="store_true", help="print the mean loss of each epoch")
    parser.add_argument("--data", metavar="DIRECTORY",
                        help="folder of MNIST's IDX files, plain or .gz (default: DLSYS_DATA, then the "
                        "cache, the mirrors, scikit-learn's digits)")  # fmt: skip
    parser.add_argument("--lr", type=float, help=f"step on the mean loss (default: {STEP} on MNIST, {STEP_ON_DIGITS} "
                        "on scikit-learn's digits)")  # fmt: skip
    parser.add_argument("--batch-size", type=int, default=1000, help="default: 1000")
    parser.add_argument("--threads", type=int, metavar="N", help="default: all cores")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the loss of each epoch")
    options = parser.parse_args(argv)

    if options.num_epoch < 0:
        parser.error(f"--num-epoch must be 0 or more, given {options.num_epoch}")
    if options.batch_size < 1:
        parser.error(f"--batch-size must be 1 or more, given {options.batch_size}")
    if options.threads is not None and options.threads < 1:
        parser.error(f"--threads must be 1 or more, given {options.threads}")
    if options.lr is not None and not (options.lr > 0 and math.isfinite(options.lr)):
        parser.error(f"--lr must be positive and finite, given {options.lr}")
    if options.plot is not None:
        folder = options.plot.parent
        if options.plot.suffix.lower() != ".png" or options.plot.is_dir():
            parser.error(f"--plot takes the name of a .png file, given {str(options.plot)!r}")
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            parser.error(f"--plot cannot write to the folder {str(folder)!r}")
    return options


def plot(curves: dict[str, list[float]], path: Path) -> None:
    """The loss of each epoch, one curve a model, as a PNG file."""
    import matplotlib

    matplotlib.use("Agg")  # no display needed
    from matplotlib import pyplot as plt
    from matplotlib.ticker import MaxNLocator

    figure, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    for (title, losses), colour in zip(curves.items(), ("#2f6db5", "#d9822b"), strict=False):
        epochs = range(1, len(losses) + 1)
        axes.plot(epochs, losses, marker="o", markersize=4, linewidth=1.8, color=colour, label=title)
        if losses:
            axes.annotate(f"{losses[-1]:.3f}", (epochs[-1], losses[-1]), xytext=(7, 0), va="center",
                          textcoords="offset points", color=colour)  # fmt: skip
    axes.set_title("Training loss, mean of each epoch", loc="left")
    axes.set(xlabel="epoch", ylabel="cross-entropy", ylim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def run(options: argparse.Namespace) -> None:
    """Trains what the options ask for. Raises DlsysError for whatever they ask in vain."""
    distributed.init()  # of several processes the first alone prints
    ctx = {"cpu": dl.cpu, "gpu": dl.gpu}[options.context](0) if options.context != "numpy" else dl.numpy()
    if options.threads is not None:
        dl.set_num_threads(options.threads)
    on_device(np.zeros(1), ctx)  # a missing device is said before any data is read
    data = mnist(options.data)
    if options.batch_size > len(data.train_labels):
        raise DlsysError(
            f"--batch-size {options.batch_size} exceeds the {len(data.train_labels)} training images"
        )
    if options.lr is None:
        options.lr = STEP_ON_DIGITS if data.source == DIGITS else STEP
    print(f"Data: {data.source}; step: {options.lr:g}")
    curves = {}
    for name in MODELS if options.model == "all" else [options.model]:
        model = MODELS[name]()
        print(f"{model.title}, {options.context}, batches of {options.batch_size}:", flush=True)
        curves[model.title] = train(model, data, ctx, options)
    if options.plot is not None:
        plot(curves, options.plot)
        print(f"Loss curve in {options.plot}")


def main(argv: list[str] | None = None) -> int:
    """The program; returns its exit status: 0, 2 for a wrong request, 130 after Ctrl-C."""
    options = parse(argv)
    try:
        run(options)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    except (DlsysError, OSError) as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
