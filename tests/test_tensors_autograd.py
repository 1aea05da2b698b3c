"""Hooks, retained gradients, `dl.autograd`, and the modes of gradients, as PyTorch has them."""

from __future__ import annotations

import warnings

import dlsys as dl
import numpy as np
import torch
from dlsys import autodiff as ad
from dlsys.errors import GraphError, ShapeError
from helpers import error_of

VALUES = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]])


def test_autograd_grad() -> None:
    x, t = dl.tensor(VALUES, requires_grad=True), torch.tensor(VALUES, requires_grad=True)
    (mine,) = dl.autograd.grad((x**3).sum(), x, create_graph=True)
    (theirs,) = torch.autograd.grad((t**3).sum(), t, create_graph=True)
    np.testing.assert_allclose(mine.numpy(), theirs.detach().numpy())
    (mine,), (theirs,) = dl.autograd.grad(mine.sum(), [x]), torch.autograd.grad(theirs.sum(), [t])
    np.testing.assert_allclose(mine.numpy(), theirs.numpy())
    assert mine.is_leaf and not mine.requires_grad and x.grad is None
    hidden, w = x * 2, dl.tensor(VALUES[:, 0], requires_grad=True)
    outputs, weights = [hidden @ x.T, hidden.sum(1) * w], [np.array([[1.0, 2.0], [3.0, 4.0]]), None]
    found = dl.autograd.grad(outputs, [x, hidden, w], weights)
    th, tw = t * 2, torch.tensor(VALUES[:, 0], requires_grad=True)
    wanted = torch.autograd.grad([th @ t.T, th.sum(1) * tw], [t, th, tw], [torch.tensor(weights[0]), torch.ones(2)])
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy())
    unused = dl.ones(2, requires_grad=True)
    loss = (x * x).sum()
    assert "no output depends" in error_of(GraphError, dl.autograd.grad, loss, [x, unused])
    assert dl.autograd.grad(loss, [x, unused], allow_unused=True)[1] is None
    assert "shape (3,)" in error_of(ShapeError, dl.autograd.grad, x, x, np.ones(3))
    assert "2 gradients for 1" in error_of(GraphError, dl.autograd.grad, x, x, [None, None])
    assert "must be tensors" in error_of(GraphError, dl.autograd.grad, 1.0, x)
    assert "there are no inputs" in error_of(GraphError, dl.autograd.grad, loss, [])
    with dl.no_grad():
        hidden = x * 2
    assert "no output depends" in error_of(GraphError, dl.autograd.grad, hidden.sum(), x)
    dl.autograd.backward([loss, hidden.sum() * loss], [None, None])
    np.testing.assert_allclose(x.grad.numpy(), 2 * VALUES * (1 + 2 * VALUES.sum()))
    v = ad.Variable("v", (2,), "float32")
    (slope,) = dl.autograd.grad(v * v, v)
    (value,) = ad.Executor([slope]).run({v: np.float32([1, 2])}, True)
    assert value.tolist() == [2, 4]


def test_backward_leaves_what_is_asked_for() -> None:
    def of(library: object) -> list[object]:
        x, w = (library.tensor(VALUES, requires_grad=True) for _ in range(2))
        (x**3 * w).sum().backward(inputs=[x])
        assert w.grad is None
        first = x.grad
        x.grad = None
        (x**3 * w).sum().backward(create_graph=True, inputs=(x, w))
        slope = x.grad
        x.grad, w.grad = None, None
        slope.sum().backward()
        return [first, slope, x.grad, w.grad]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, of memory
        wanted = of(torch)
    for mine, theirs in zip(of(dl), wanted, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.detach().numpy())


def test_modes() -> None:
    x = dl.ones(2, requires_grad=True)

    @dl.no_grad
    def plain() -> bool:
        return (x * 2).requires_grad

    @dl.inference_mode()
    def inferred() -> bool:
        return (x * 2).requires_grad

    @dl.set_grad_enabled(False)
    def switched() -> bool:
        return (x * 2).requires_grad

    assert not plain() and not inferred() and not switched() and plain.__name__ == "plain"
    assert dl.is_grad_enabled()
    with dl.set_grad_enabled(False):
        assert not dl.is_grad_enabled() and not (x * 2).requires_grad
        with dl.enable_grad():
            assert (x * 2).requires_grad and switched() is False and dl.is_grad_enabled()
        assert not dl.is_grad_enabled()
    assert dl.is_grad_enabled()
    dl.set_grad_enabled(False)
    try:
        assert not dl.is_grad_enabled()
        dl.set_grad_enabled(True)
        assert (x * 2).requires_grad
    finally:
        dl.set_grad_enabled(True)
