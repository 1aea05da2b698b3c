"""Losses against torch.nn: values and all gradients, by the NumPy rules and compiled; and what only functions have."""

from __future__ import annotations

import warnings

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


def kl_div(**kwargs: object) -> t.Module:
    """PyTorch's, which warns of the mean."""

    class Loss(t.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            with warnings.catch_warnings(action="ignore"):
                return t.functional.kl_div(x, y, **kwargs)

    return Loss()


def of_pairs(dtype: str) -> list[Pair]:
    """Losses of two arrays."""
    x, y = (1.5 * rng.standard_normal((5, 4)).astype(dtype) for _ in range(2))
    y[0] = x[0]
    p, q = (rng.dirichlet(np.ones(4), 5).astype(dtype) for _ in range(2))
    q[0, 1] = 0
    signs = np.array([1, -1, 1, -1, -1])
    probabilities, labels = rng.uniform(size=(5, 4)).astype(dtype), rng.integers(0, 2, (5, 4)).astype(dtype)
    found = []
    for reduction in ("mean", "sum", "none"):
        r = {"reduction": reduction}
        found += [
            Pair(nn.SmoothL1Loss(**r, beta=0.7), t.SmoothL1Loss(**r, beta=0.7), [x, y], dtype),
            Pair(nn.HuberLoss(**r, delta=0.7), t.HuberLoss(**r, delta=0.7), [x, y], dtype),
            Pair(nn.KLDivLoss(**r, log_target=True), kl_div(**r, log_target=True), [np.log(p), x], dtype),
            Pair(nn.BCELoss(**r), t.BCELoss(**r), [probabilities, labels], dtype),
            Pair(nn.CosineEmbeddingLoss(0.3, **r), t.CosineEmbeddingLoss(0.3, **r), [x, y, signs], dtype),
        ]
    weight = rng.uniform(size=(5, 1)).astype(dtype)
    inner = [probabilities[1:], labels[1:] * np.asarray(0.3, dtype)]
    found.append(Pair(nn.BCELoss(weight[1:]), t.BCELoss(torch.tensor(weight[1:])), inner, dtype))
    found.append(Pair(nn.SmoothL1Loss(beta=0.0), t.SmoothL1Loss(beta=0.0), [x, y], dtype))
    for reduction in ("sum", "batchmean"):
        mine, theirs = nn.KLDivLoss(reduction), t.KLDivLoss(reduction=reduction)
        found.append(Pair(mine, theirs, [np.log(p), np.maximum(q, np.asarray(1e-3, dtype))], dtype))
    for dim in (0, 1):
        found.append(Pair(nn.CosineSimilarity(dim), t.CosineSimilarity(dim), [x, y], dtype))
    return found


def test_losses_compute_what_pytorchs_do() -> None:
    for dtype in ("float32", "float64"):
        compare(weighted(dtype) + of_pairs(dtype), "numpy")


def test_compiled_losses_do_too() -> None:
    compare(weighted("float32")[:4] + of_pairs("float32")[:5], dl.cpu(0))


def test_a_target_of_zero_adds_nothing_to_the_divergence() -> None:
    x, y = np.log([[0.5, 0.5]]), np.array([[0.0, 1.0]])
    a, b = dl.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    mine, theirs = F.kl_div(a, dl.tensor(y), "sum"), t.functional.kl_div(b, torch.tensor(y), reduction="sum")
    mine.backward(), theirs.backward()
    close(mine.numpy(), theirs, "float64", "value")
    close(a.grad.numpy(), b.grad, "float64", "gradient")


def test_probabilities_of_zero_and_one_have_finite_losses() -> None:
    x, y = np.array([0, 0, 1, 1, 1e-30], "float32"), np.array([0, 1, 0, 1, 1], "float32")
    b = torch.tensor(x, requires_grad=True)
    expected = t.BCELoss(reduction="none")(b, torch.tensor(y))
    expected.sum().backward()
    for ctx in ("numpy", "cpu"):
        a = ad.Variable("a", (5,), "float32")
        mine = F.binary_cross_entropy(a, dl.tensor(y), reduction="none")
        value, grad = ad.Executor([mine, *ad.gradients(mine, [a])], ctx).run({a: x})
        close(value, expected, "float32", ctx)
        close(grad, b.grad, "float32", ctx)


def test_probabilities_are_between_zero_and_one() -> None:
    y = dl.tensor([0.0, 1.0])
    for values in ([0.5, 1.5], [-0.1, 0.5], [np.nan, 0.5]):
        for function in (F.binary_cross_entropy, nn.BCELoss()):
            assert "between 0 and 1" in error_of(GraphError, function, dl.tensor(values, "float32"), y)
            computed = dl.tensor(values, "float32") * 1
            assert np.isnan(function(computed, y).item())


def test_normalize_one_hot_and_cross_entropy_of_declared_variables() -> None:
    x = rng.standard_normal((3, 4, 2))
    x[0, :, 0] = 0
    for p, dim in ((2, 1), (1, 0), (3, -1), (np.inf, 1)):
        a, b = dl.tensor(x[1:], requires_grad=True), torch.tensor(x[1:], requires_grad=True)
        w = rng.standard_normal(x[1:].shape)
        mine, theirs = F.normalize(a, p, dim), t.functional.normalize(b, p, dim)
        (mine * dl.tensor(w)).sum().backward(), (theirs * torch.tensor(w)).sum().backward()
        close(mine.numpy(), theirs, "float64", p)
        close(a.grad.numpy(), b.grad, "float64", p)
    assert not F.normalize(dl.tensor(x)).numpy()[0, :, 0].any()
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
    assert "batchmean" in error_of(GraphError, nn.KLDivLoss, "average")
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
