"""Losses against torch.nn: values and all gradients, by the NumPy rules and compiled; and what only functions have."""

from __future__ import annotations

import dlsys as dl
import numpy as np
import torch
from dlsys import autodiff as ad
from dlsys import nn
from dlsys.errors import GraphError, ShapeError
from dlsys.nn import functional as F
from helpers import error_of
from test_nn_layers import Pair, close, compare

rng = np.random.default_rng(1)
t = torch.nn


def losses(dtype: str) -> list[Pair]:
    logits, image = rng.standard_normal((6, 4)).astype(dtype), rng.standard_normal((2, 4, 3, 2)).astype(dtype)
    classes, many = np.array([0, 3, 1, -1, 2, 3]), rng.integers(0, 4, (2, 3, 2))
    many[0, 1] = -100
    shares = rng.dirichlet(np.ones(4), 6).astype(dtype)
    found = []
    for x, y, kwargs in (
        (logits, classes, {"ignore_index": -1}),
        (logits, classes, {"ignore_index": -1, "label_smoothing": 0.2}),
        (logits, classes, {"ignore_index": -1, "label_smoothing": 0.2, "reduction": "none"}),
        (image, many, {"reduction": "sum", "label_smoothing": 0.1}),
        (image, many, {}),
        (logits, shares, {"label_smoothing": 0.3}),
        (logits, shares, {"reduction": "none"}),
    ):
        mine, theirs = (m.CrossEntropyLoss(**kwargs) for m in (nn, t))
        found.append(Pair(mine, theirs, [x, y], dtype))
    for reduction in ("mean", "sum", "none"):
        mine, theirs = (m.MSELoss(reduction=reduction) for m in (nn, t))
        found.append(Pair(mine, theirs, [logits, logits[::-1].copy()], dtype))
    return found


def test_losses_compute_what_pytorchs_do() -> None:
    for dtype in ("float32", "float64"):
        compare(losses(dtype), "numpy")


def test_compiled_losses_do_too() -> None:
    compare(losses("float32"), dl.cpu(0))


def test_one_hot_and_cross_entropy_of_declared_variables() -> None:
    numbers = np.array([[0, 3], [1, 1]])
    np.testing.assert_array_equal(F.one_hot(dl.tensor(numbers)).numpy(), t.functional.one_hot(torch.tensor(numbers)))

    logits, targets = ad.Variable("logits", (2, 3), "float64"), ad.Variable("targets", (2,), "int64")
    loss = nn.CrossEntropyLoss()(logits, targets)
    values, numbers = rng.standard_normal((2, 3)), np.array([2, 7])
    assert np.isnan(ad.Executor([loss], "numpy").run({logits: values, targets: numbers})[0])
    told = error_of(ShapeError, nn.CrossEntropyLoss(), logits, ad.Variable("y", (3,)))
    assert told.startswith("CrossEntropyLoss() got (2, 3)") and "beside (3,)" in told
    unknown = [ad.Variable("x"), ad.Variable("y")]  # probabilities are known by their dtype or shape
    step = ad.Executor([ad.cross_entropy_op(*unknown)], "numpy")
    told = error_of(ShapeError, step.run, {unknown[0]: values, unknown[1]: np.full((2, 3), 1 / 3)})
    assert "are not class numbers (2,); variables of probabilities declare their dtype" in told
    assert "[0, 1], not 2" in error_of(GraphError, nn.CrossEntropyLoss, label_smoothing=2)
    assert repr(nn.CrossEntropyLoss(ignore_index=0, label_smoothing=0.1)) == (
        "CrossEntropyLoss(ignore_index=0, label_smoothing=0.1)"
    )


def test_no_classes_make_no_error() -> None:
    logits, numbers = ad.Variable("x", (2, 0), "float32"), ad.Variable("y", (2,), "int64")
    for smoothing in (0.0, 0.1):
        loss = ad.cross_entropy_op(logits, numbers, label_smoothing=smoothing, reduction="none")
        for ctx in ("numpy", "cpu"):
            found = ad.Executor([loss, *ad.gradients(loss, [logits])], ctx).run(
                {logits: np.zeros((2, 0), "float32"), numbers: np.zeros(2, "int64")}, convert_to_numpy_ret_vals=True
            )
            assert np.isnan(found[0]).all() and found[1].shape == (2, 0)


def test_class_numbers_of_8_bits_and_more_classes_than_those_count() -> None:
    x, y = rng.standard_normal((6, 300)), np.array([0, 3, 44, 255, 43, 7], "uint8")
    for smoothing in (0.0, 0.1):
        a, b = dl.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
        mine = F.cross_entropy(a, dl.tensor(y), label_smoothing=smoothing)
        theirs = t.functional.cross_entropy(b, torch.tensor(y.astype("int64")), label_smoothing=smoothing)
        mine.backward(), theirs.backward()
        close(mine.numpy(), theirs, "float64", smoothing)
        close(a.grad.numpy(), b.grad, "float64", smoothing)
