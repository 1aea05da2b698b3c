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


def weighted(dtype: str) -> list[Pair]:
    """Losses of classes that count differently."""
    logits, image = rng.standard_normal((6, 4)).astype(dtype), rng.standard_normal((2, 4, 3, 2)).astype(dtype)
    classes, many = np.array([0, 3, 1, -1, 2, 3]), rng.integers(0, 4, (2, 3, 2))
    many[0, 1] = -100
    shares = rng.dirichlet(np.ones(4), 6).astype(dtype)
    logs, image_logs = (np.log(np.exp(x) / np.exp(x).sum(1, keepdims=True)) for x in (logits, image))
    weight = rng.uniform(0.5, 2, 4).astype(dtype)
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
        mine, theirs = (m.CrossEntropyLoss(w, **kwargs) for m, w in ((nn, weight), (t, torch.tensor(weight))))
        found.append(Pair(mine, theirs, [x, y], dtype))
    for x, y, kwargs in (
        (logs, classes, {"ignore_index": -1}),
        (image_logs, many, {"reduction": "none"}),
        (image_logs, many, {"reduction": "sum"}),
    ):
        for w in (None, weight):
            theirs = t.NLLLoss(None if w is None else torch.tensor(w), **kwargs)
            found.append(Pair(nn.NLLLoss(w, **kwargs), theirs, [x, y], dtype))
    return found


def test_losses_compute_what_pytorchs_do() -> None:
    for dtype in ("float32", "float64"):
        compare(weighted(dtype), "numpy")


def test_compiled_losses_do_too() -> None:
    compare(weighted("float32")[:4], dl.cpu(0))


def test_one_hot_and_cross_entropy_of_declared_variables() -> None:
    numbers = np.array([[0, 3], [1, 1]])
    np.testing.assert_array_equal(F.one_hot(dl.tensor(numbers)).numpy(), t.functional.one_hot(torch.tensor(numbers)))

    weight = np.array([1.0, 2.0, 3.0])
    logits, targets = ad.Variable("logits", (2, 3), "float64"), ad.Variable("targets", (2,), "int64")
    unknown = ad.Variable("unknown")
    loss = nn.CrossEntropyLoss(weight)(logits, targets)
    values, numbers = rng.standard_normal((2, 3)), np.array([2, 7])
    assert np.isnan(ad.Executor([loss], "numpy").run({logits: values, targets: numbers})[0])
    assert np.isnan(F.nll_loss(dl.tensor(values), dl.tensor(numbers)).numpy())
    assert "dtype of unknown must be known" in error_of(GraphError, F.cross_entropy, logits, unknown, weight)
    assert "shape of unknown must be known" in error_of(GraphError, F.nll_loss, unknown, targets)
    assert "class numbers, not float64" in error_of(GraphError, F.nll_loss, logits, logits)
    assert "(3,), one for each class" in error_of(ShapeError, F.cross_entropy, logits, targets, weight[:2])
    told = error_of(ShapeError, nn.CrossEntropyLoss(weight[:2]), logits, targets)
    assert told.startswith("CrossEntropyLoss(weight of 2 classes) got (2, 3)"), told
    assert "[0, 1], not 2" in error_of(GraphError, nn.CrossEntropyLoss, label_smoothing=2)
    assert nn.CrossEntropyLoss(weight).state_dict().keys() == {"weight"}
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
