"""Spectral norm beside PyTorch's, and Gumbel's softmax."""

from __future__ import annotations

from typing import Any

import dlsys as dl
import numpy as np
import torch
from dlsys import autodiff as ad
from dlsys import nn
from dlsys.errors import GraphError, ShapeError
from dlsys.nn import functional as F
from helpers import error_of


def test_spectral_norm_is_pytorchs() -> None:
    draw = np.random.default_rng(0)
    for make, shape, options in (
        (lambda m: m.Linear(4, 3), (2, 4), {}),
        (lambda m: m.Conv2d(2, 3, 3), (2, 2, 5, 5), {"n_power_iterations": 2}),
        (lambda m: m.ConvTranspose2d(2, 3, 3), (2, 2, 3, 3), {}),
    ):
        theirs = torch.nn.utils.spectral_norm(make(torch.nn), **options)
        mine = nn.utils.spectral_norm(make(nn), **options)
        assert list(mine.state_dict()) == list(theirs.state_dict())
        mine.load_state_dict(theirs.state_dict())
        x = draw.standard_normal(shape).astype("float32")
        for training in (True, True, False):
            found, expected = mine.train(training)(dl.tensor(x)), theirs.train(training)(torch.tensor(x))
            (found**2).sum().backward()
            (expected**2).sum().backward()
            np.testing.assert_allclose(found.numpy(), expected.detach().numpy(), rtol=1e-4, atol=1e-5)
            for name, value in theirs.state_dict().items():
                np.testing.assert_allclose(mine.state_dict()[name], value.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(
            mine.weight_orig.grad.numpy(), theirs.weight_orig.grad.numpy(), rtol=1e-3, atol=1e-4
        )
        weight = mine.weight.numpy()
        assert nn.utils.remove_spectral_norm(mine) is mine
        assert {"weight", "bias"} == set(mine.state_dict())
        np.testing.assert_allclose(mine.weight.numpy(), weight, rtol=1e-5)
        assert mine(dl.tensor(x)).shape == tuple(expected.shape)


def test_spectral_norm_in_a_compiled_step() -> None:
    dl.manual_seed(0)
    layer = nn.utils.spectral_norm(nn.Linear(6, 5))
    layer.weight_orig.value = 5 * np.random.default_rng(0).standard_normal((5, 6))
    x = ad.Variable("x", (3, 6), "float32")
    loss = (layer(x) ** 2).mean()
    step = ad.Executor([loss, dl.optim.SGD(layer.parameters(), lr=0.01).minimize(loss)])
    for _ in range(40):
        step.run({x: np.ones((3, 6), "float32")})
    layer.eval()
    layer(dl.ones(3, 6))
    largest = np.linalg.svd(layer.weight.numpy(), compute_uv=False)[0]
    np.testing.assert_allclose(largest, 1, rtol=1e-2)


def test_spectral_norm_says_what_it_needs() -> None:
    norm = nn.utils.spectral_norm
    assert "has no parameter 'kernel'" in error_of(GraphError, norm, nn.Linear(2, 2), "kernel")
    assert "two axes are needed" in error_of(GraphError, norm, nn.Linear(2, 2), "bias")
    assert "axis 4" in error_of(GraphError, norm, nn.Linear(2, 2), dim=4)
    assert "needs a module, not int" in error_of(GraphError, norm, 3)
    assert "n_power_iterations" in error_of(GraphError, norm, nn.Linear(2, 2), n_power_iterations=0)
    assert "has no spectral_norm" in error_of(GraphError, nn.utils.remove_spectral_norm, nn.Linear(2, 2))


def test_gumbel_softmax() -> None:
    dl.manual_seed(0)
    p = np.array([0.1, 0.6, 0.3])
    logits = dl.tensor(np.log(p) + np.zeros((8000, 1)), requires_grad=True)
    hard = F.gumbel_softmax(logits, tau=0.5, hard=True)
    np.testing.assert_allclose(hard.numpy().sum(1), 1, rtol=1e-6)
    assert set(np.round(np.unique(hard.numpy()), 6)) == {0.0, 1.0}
    np.testing.assert_allclose(hard.numpy().mean(0), p, atol=0.02)
    dl.manual_seed(1)
    soft = F.gumbel_softmax(logits, tau=0.5)
    y = soft.numpy()  # it is drawn when it is computed
    dl.manual_seed(1)
    again = F.gumbel_softmax(logits, tau=0.5, hard=True)
    np.testing.assert_array_equal(y.argmax(1), again.numpy().argmax(1))
    weights = dl.tensor(np.array([1.0, -2.0, 3.0]))
    gradients = []
    for value in (soft, again):  # of the softmax both
        logits.grad = None
        (value * weights).sum().backward()
        gradients.append(logits.grad.numpy())
    expected = y * (weights.numpy() - (y * weights.numpy()).sum(1, keepdims=True)) / 0.5
    for found in gradients:
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)
    first = F.gumbel_softmax(dl.zeros(3, 2, 4), dim=1)
    np.testing.assert_allclose(first.numpy().sum(1), 1, rtol=1e-6)
    assert "tau must be" in error_of(GraphError, F.gumbel_softmax, logits, tau=0)
    assert "axis 2" in error_of(ShapeError, F.gumbel_softmax, logits, dim=2)


def test_gumbel_softmax_draws_anew() -> None:
    x: Any = ad.Variable("x", (4, 5), "float32")
    run = ad.Executor([F.gumbel_softmax(x, hard=False)])
    first, second = (np.array(run.run({x: np.zeros((4, 5), "float32")})[0]) for _ in range(2))
    assert (first != second).all()
