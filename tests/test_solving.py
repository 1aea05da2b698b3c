"""Inverses, determinants, solutions and Cholesky factors: values, gradients and their gradients are PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dlsys as dl
import numpy as np
import torch
from dlsys.errors import DTypeError, GraphError, ShapeError
from helpers import error_of

RNG = np.random.default_rng(0)
A = RNG.standard_normal((2, 4, 4)) + 3 * np.eye(4)
S = A @ A.swapaxes(1, 2)


def compare(function: Callable[..., Any], *arrays: np.ndarray) -> None:
    mine = [dl.tensor(a, requires_grad=True) for a in arrays]
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    y, z = function(dl, *mine), function(torch, *theirs)
    np.testing.assert_allclose(y.detach().numpy(), z.detach().numpy(), rtol=1e-9, atol=1e-9)
    weight = RNG.standard_normal(tuple(z.shape))
    grads = dl.autograd.grad((y * dl.tensor(weight)).sum(), mine, create_graph=True)
    wanted = torch.autograd.grad((z * torch.tensor(weight)).sum(), theirs, create_graph=True)
    for p, q in zip(grads, wanted, strict=True):
        np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), rtol=1e-8, atol=1e-8)
    sum((p * p).sum() for p in grads).backward()
    sum((q * q).sum() for q in wanted).backward()
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-6, atol=1e-6)


def test_inverses_and_determinants() -> None:
    compare(lambda lib, a: lib.linalg.inv(a), A)
    compare(lambda lib, a: lib.linalg.det(a), A)
    compare(lambda lib, a: lib.linalg.slogdet(a)[1], A)
    compare(lambda lib, a: lib.logdet(a), S)
    swapped = A[0][[1, 0, 2, 3]]
    assert float(dl.linalg.slogdet(swapped).sign) == float(torch.linalg.slogdet(torch.tensor(swapped)).sign)
    assert np.isnan(dl.logdet(dl.tensor(-np.eye(3))).numpy())


def test_solutions_are_of_matrices_and_vectors() -> None:
    solve = lambda lib, a, b: lib.linalg.solve(a, b)  # noqa: E731
    compare(solve, A, RNG.standard_normal((2, 4, 3)))
    compare(solve, A, RNG.standard_normal((2, 4)))
    compare(solve, A[0], RNG.standard_normal(4))
    compare(solve, A[0], RNG.standard_normal((5, 4, 2)))  # broadcast: its gradient is a sum over the batch


def test_cholesky() -> None:
    compare(lambda lib, a: lib.linalg.cholesky(a), S)
    compare(lambda lib, a: lib.linalg.cholesky(a @ a.mT, upper=True), A)


def test_gaussian_density_trains() -> None:
    x = RNG.standard_normal((50, 2)) @ np.array([[1.0, 0.5], [0.0, 0.8]])

    def run(lib: Any) -> list[float]:
        factor = lib.tensor(np.eye(2), requires_grad=True)
        data, losses = lib.tensor(x), []
        for _ in range(5):
            covariance = factor @ factor.T + 0.1 * lib.eye(2, dtype=lib.float64)
            mahalanobis = (data * lib.linalg.solve(covariance, data.T).T).sum(1).mean()
            loss = mahalanobis + lib.logdet(covariance)
            loss.backward()
            with lib.no_grad():
                factor -= 0.1 * factor.grad
            factor.grad = None
            losses.append(loss.item())
        return losses

    found = run(dl)
    np.testing.assert_allclose(found, run(torch), rtol=1e-9)
    assert found[-1] < found[0]


def test_errors() -> None:
    zeros = dl.zeros(3, 3)
    assert "singular" in error_of(GraphError, dl.linalg.inv, zeros)
    assert "singular" in error_of(GraphError, dl.linalg.solve, zeros, dl.ones(3))
    assert "positive definite" in error_of(GraphError, dl.linalg.cholesky, -dl.eye(2))
    assert "(2, 3)" in error_of(ShapeError, dl.linalg.det, dl.ones(2, 3))
    assert "right sides of shape (4, 2)" in error_of(ShapeError, dl.linalg.solve, dl.eye(3), dl.ones(4, 2))
    assert "int64" in error_of(DTypeError, dl.linalg.inv, dl.tensor([[1, 0], [0, 1]]))
    assert "variable" in error_of(GraphError, dl.linalg.inv, dl.autodiff.Variable("x", (2, 2), "float32"))
    assert "linalg.svd" in error_of(AttributeError, getattr, dl.linalg, "svd")
