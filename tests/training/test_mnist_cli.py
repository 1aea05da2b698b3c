"""The main job as a user starts it, and its training loop on small data."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import dlsys as dl
import mnist_dlsys
import numpy as np
import pytest
from dlsys.data import MNIST, one_hot
from dlsys.data.mnist import stand_in
from helpers import on_threads, python, running

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "mnist_dlsys.py"
EPOCH = re.compile(r"^epoch \d+\nloss = (\d+\.\d{6}); Time taken this epoch = \d+\.\d{3} s$", re.MULTILINE)
COMPILE = re.compile(r"^Time taken to compile = \d+\.\d{3} s$", re.MULTILINE)
ACCURACY = re.compile(r"^Validation set accuracy = (\d\.\d{6})$", re.MULTILINE)
OFFLINE = {"DLSYS_OFFLINE": "1", "DLSYS_DATA": "", "PYTHONPATH": str(ROOT / "python")}


def small_data(train: int = 250, valid: int = 130) -> MNIST:
    """Images whose label can be learnt: a bright band at the label's height, and noise."""
    rng = np.random.default_rng(3)

    def part(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = rng.integers(0, 10, count)
        images = rng.uniform(0, 0.2, (count, 28, 28))
        for image, label in zip(images, labels, strict=True):
            image[2 * label + 3 : 2 * label + 6] += 0.6
        return images.reshape(count, 784).astype(np.float32), labels

    return MNIST(*part(train), *part(valid), *part(20), "drawn")


def called(*arguments: Any, data: MNIST | None = None) -> tuple[object, str, str]:
    """Exit status, stdout and stderr of the program, in this process, with some data."""
    out, err = io.StringIO(), io.StringIO()
    of = mock.patch.object(mnist_dlsys, "mnist", lambda _: data) if data else contextlib.nullcontext()
    with of, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status: object = mnist_dlsys.main([str(word) for word in arguments])
        except SystemExit as exit_:
            status = exit_.code
    return status, out.getvalue(), err.getvalue()


@pytest.mark.slow
def test_main_job_on_the_embedded_digits(tmp_path: Path) -> None:
    done = python(PROGRAM, "-l", "-m", "all", "-e", "1", "-c", "cpu", DLSYS_CACHE=str(tmp_path), **OFFLINE)
    assert done.stderr == "" and done.stdout.count("scikit-learn's digits, augmented to its shape.\n") == 1
    assert "Data: scikit-learn's digits, augmented; step: 0.4\n" in done.stdout
    assert len(EPOCH.findall(done.stdout)) == len(COMPILE.findall(done.stdout)) == 2, done.stdout
    accuracies = ACCURACY.findall(done.stdout)
    assert len(accuracies) == 2 and all(float(accuracy) > 0.7 for accuracy in accuracies), done.stdout


def test_numpy_context_a_ragged_batch_and_a_plot(tmp_path: Path) -> None:
    path = tmp_path / "loss.png"
    arguments = ["-m", "logreg", "-c", "numpy", "-e", 2, "--batch-size", 100, "--plot", path, "--lr", 0.5]
    with on_threads(2):
        status, out, err = called(*arguments, "--threads", 1, data=small_data())
        assert dl.get_num_threads() == 1
    assert (status, err) == (0, "") and path.read_bytes().startswith(b"\x89PNG") and str(path) in out
    assert "loss =" not in out and out.count("Time taken this epoch") == 2  # without -l no loss
    assert "Data: drawn; step: 0.5\n" in out
    assert float(ACCURACY.findall(out)[0]) > 0.7


def test_help_names_the_options() -> None:
    status, out, err = called("-h")
    assert (status, err) == (0, "")
    for option in ("-m", "-c", "-e", "-l", "-h", "--data", "--lr", "--batch-size", "--threads", "--plot"):
        assert option in out, option


@pytest.mark.slow
def test_interruption_is_one_line_and_status_130(tmp_path: Path) -> None:
    arguments = ("-m", "logreg", "-c", "numpy", "-e", "100000")
    with running(PROGRAM, *arguments, DLSYS_CACHE=str(tmp_path), **OFFLINE) as process:
        assert process.stdout is not None
        while "this epoch" not in (line := process.stdout.readline()):
            assert line, "the program ended early"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=600)
    assert (process.returncode, err) == (130, "Interrupted.\n")


def test_wrong_requests_are_one_sentence_before_training(tmp_path: Path) -> None:
    for arguments, reason in (
        (["-e", -1], "--num-epoch must be 0 or more, given -1"),
        (["--batch-size", 0], "--batch-size must be 1 or more, given 0"),
        (["--batch-size", 251, "-c", "numpy"], "exceeds the 250 training images"),
        (["--threads", 0], "--threads must be 1 or more, given 0"),
        (["--lr", "nan"], "--lr must be positive"),
        (["-m", "resnet"], "resnet"),
        (["-c", "tpu"], "tpu"),
        (["--plot", tmp_path / "absent" / "loss.png"], "absent"),
        (["--data", tmp_path / "absent"], "absent"),
        (["--data", tmp_path], "train-images-idx3-ubyte"),
        (["surplus"], "surplus"),
        *([] if dl.cuda.is_available() else [(["-c", "gpu"], "cuda(0) is not available")]),
    ):
        status, out, err = called(*arguments, data=None if "--data" in arguments else small_data())
        assert status == 2 and reason in err and err.count("\n") == 1 and "epoch" not in out, (arguments, err)


def expected(name: str, batch_size: int, epochs: int) -> tuple[list[float], float]:
    """Losses and accuracy with steps of 0.5 on the small data, in float64, written out by hand."""
    data = small_data()
    widths, rand = [784, 10] if name == "logreg" else [784, 256, 100, 10], np.random.RandomState(123)
    shapes = list(itertools.pairwise(widths))
    parameters = [np.zeros(s) if name == "logreg" else rand.normal(scale=0.1, size=s) for s in shapes]
    parameters += [np.zeros(s[1]) if name == "logreg" else rand.normal(scale=0.1, size=s[1]) for s in shapes]
    weights, biases = parameters[: len(shapes)], parameters[len(shapes) :]

    def forward(images: np.ndarray) -> list[np.ndarray]:
        layers = [images.astype(np.float64)]
        for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            z = layers[-1] @ weight + bias
            layers.append(z if i == len(weights) - 1 else np.maximum(z, 0))
        return layers

    losses = []
    for _ in range(epochs):
        total = 0.0
        for begin in range(0, len(data.train_labels), batch_size):
            rows = slice(begin, begin + batch_size)
            target = one_hot(data.train_labels[rows], 10, "float64")
            layers = forward(data.train_images[rows])
            softmax = np.exp(layers[-1]) / np.exp(layers[-1]).sum(axis=1, keepdims=True)
            total -= np.log((softmax * target).sum(axis=1)).sum()
            delta = (softmax - target) / len(target)
            for i in reversed(range(len(weights))):
                below = (delta @ weights[i].T) * (layers[i] > 0)
                weights[i] -= 0.5 * layers[i].T @ delta
                biases[i] -= 0.5 * delta.sum(axis=0)
                delta = below
        losses.append(float(total) / len(data.train_labels))
    right = forward(data.valid_images)[-1].argmax(axis=1) == data.valid_labels
    return losses, float(right.mean())


@pytest.mark.slow
@pytest.mark.parametrize("context", ["numpy", "cpu"])
@pytest.mark.parametrize("name", ["logreg", "mlp"])
def test_training_equals_the_formulas_also_with_a_smaller_last_batch(name: str, context: str) -> None:
    for batch_size, epochs in ((50, 3), (100, 3), (100, 0)):  # 250 = 2 * 100 + 50; 130 = 100 + 30
        arguments = ["-l", "-m", name, "-c", context, "-e", epochs, "--batch-size", batch_size, "--lr", 0.5]
        status, out, _ = called(*arguments, data=small_data())
        losses, accuracy = expected(name, batch_size, epochs)
        assert status == 0
        np.testing.assert_allclose([float(loss) for loss in EPOCH.findall(out)], losses, rtol=1e-3, atol=1e-5)
        assert abs(float(ACCURACY.findall(out)[0]) - accuracy) < 0.02


def test_divergence_is_said() -> None:
    with np.errstate(all="ignore"):
        arguments = ["-m", "mlp", "-c", "numpy", "-e", 2, "--lr", 1e30, "--batch-size", 50]
        assert "The training diverged: try a smaller --lr." in called(*arguments, data=small_data())[1]


@pytest.mark.slow
def test_the_default_step_learns_the_digits_in_any_order_of_a_batchs_rows() -> None:
    """The rows of each batch of 1,000 in a drawn order: the same steps but for rounding."""
    data, rng = stand_in(), np.random.default_rng(0)
    rows = np.concatenate([begin + rng.permutation(1000) for begin in range(0, len(data.train_labels), 1000)])
    mixed = replace(data, train_images=data.train_images[rows], train_labels=data.train_labels[rows])
    status, out, _ = called("-l", "-m", "mlp", data=mixed)
    losses = [float(loss) for loss in EPOCH.findall(out)]
    assert status == 0 and len(losses) == 10
    assert all(b <= 3 * min(losses[:i]) for i, b in enumerate(losses) if i), losses
    assert float(ACCURACY.findall(out)[0]) >= 0.95, out


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("DLSYS_DATA"), reason="DLSYS_DATA names no directory with MNIST")
def test_mnist_gives_the_known_losses() -> None:
    """Ten epochs of each model, against a float32 NumPy program's numbers.

    Logistic regression is convex, so rounding stays rounding. The MLP's first steps of 1.0 are not: a change
    of 1e-7 in the initial weights moves the first epoch's loss between 1.27 and 1.30, the second's between
    0.30 and 0.32 and the tenth's by 0.0008, so the end is compared most closely.
    """
    _, out, _ = called("-l", "-m", "all")
    losses = [float(loss) for loss in EPOCH.findall(out)]
    logreg, mlp = losses[:10], losses[10:]
    assert np.allclose([logreg[0], logreg[1], logreg[9]], [0.721664, 0.380550, 0.295915], atol=2e-5), logreg
    assert 1.0 < mlp[0] < 1.6 and abs(mlp[9] - 0.058215) < 0.005, mlp
    accuracies = [float(accuracy) for accuracy in ACCURACY.findall(out)]
    assert np.allclose(accuracies, [0.9223, 0.9709], atol=0.003), accuracies
