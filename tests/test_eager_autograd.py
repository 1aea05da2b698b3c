"""Hooks, retained gradients, `dl.autograd`, and the modes of gradients, as PyTorch has them."""

from __future__ import annotations

import copy
import pickle
import warnings

import dlsys as dl
import numpy as np
import torch
from dlsys import autodiff as ad
from dlsys.errors import GraphError, ShapeError
from helpers import error_of

VALUES = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]])


def test_hooks_change_gradients() -> None:
    def of(library: object, x: object) -> list[object]:
        seen = []
        hidden = x * x
        x.register_hook(lambda g: seen.append(g))
        hidden.register_hook(lambda g: g * 10)
        hidden.register_hook(lambda g: g + 1)
        gone = hidden.register_hook(lambda g: g * 0)
        gone.remove()
        gone.remove()
        hidden.retain_grad()
        hidden.sum().backward()
        (x * 3).sum().backward()
        return [x.grad, hidden.grad, *seen]

    mine = of(dl, dl.tensor(VALUES, requires_grad=True))
    theirs = of(torch, torch.tensor(VALUES, requires_grad=True))
    assert len(mine) == len(theirs) == 4
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy())
    x = dl.tensor(VALUES, requires_grad=True)
    with (x * 2).register_hook(lambda g: g * 100):
        pass
    y = x * 2
    with y.register_hook(lambda g: g * 100):
        y.sum().backward()
    y.sum().backward()
    assert (x.grad == 202).all()
    y.register_hook(lambda g: g.sum())
    assert "of a gradient of shape (2, 3)" in error_of(ShapeError, y.sum().backward)
    assert "requires no gradient" in error_of(GraphError, dl.ones(2).register_hook, print)
    assert "requires no gradient" in error_of(GraphError, (dl.ones(2) * 2).retain_grad)


def test_hooks_act_in_graphs_of_variables() -> None:
    x = ad.Variable("x", (2,), "float32")
    doubled = x * 2.0
    doubled.register_hook(lambda g: g * 7.0)
    (slope,) = ad.Executor(ad.gradients(doubled, [x])).run({x: np.ones(2, "float32")}, True)
    np.testing.assert_array_equal(slope, [14, 14])


def test_retained_gradients_add_up() -> None:
    x = dl.tensor(VALUES, requires_grad=True)
    y = x * 2
    y.retain_grad()
    y.retain_grad()
    assert y.retains_grad and not x.retains_grad and not (y * 1).retains_grad
    x.retain_grad()
    for _ in range(2):
        (y * y).sum().backward()
    np.testing.assert_allclose(y.grad.numpy(), 8 * VALUES)
    np.testing.assert_allclose(x.grad.numpy(), 16 * VALUES)
    other = (x * 3).sum()
    other.backward()
    np.testing.assert_allclose(y.grad.numpy(), 8 * VALUES)
    assert other.grad is None and (x * 3).grad is None


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
    assert dl.autograd.grad(loss, [unused], materialize_grads=True)[0].tolist() == [0, 0]
    assert "shape (3,)" in error_of(ShapeError, dl.autograd.grad, x, x, np.ones(3))
    assert "2 gradients for 1" in error_of(GraphError, dl.autograd.grad, x, x, [None, None])
    assert "must be tensors" in error_of(GraphError, dl.autograd.grad, 1.0, x)
    assert "there are no inputs" in error_of(GraphError, dl.autograd.grad, loss, [])
    assert "dl.autograd.grad" in error_of(GraphError, dl.grad, loss, [x])
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
        with dl.inference_mode(mode=False):
            assert not dl.is_grad_enabled()
    assert dl.is_grad_enabled()
    dl.set_grad_enabled(False)
    try:
        assert not dl.is_grad_enabled()
        dl.set_grad_enabled(True)
        assert (x * 2).requires_grad
    finally:
        dl.set_grad_enabled(True)
    with dl.inference_mode(False):
        assert (x * 2).requires_grad


def test_products_of_zeros_are_differentiated_twice() -> None:
    def cumulated(v: torch.Tensor) -> torch.Tensor:
        return torch.stack([v[: i + 1].prod() for i in range(len(v))])  # PyTorch's own is wrong twice, at zeros

    functions = {
        "prod": [lambda v: v.prod()] * 2,
        "prod_along": [lambda v: v.reshape(2, 3).prod(1)] * 2,
        "cumprod": [lambda v: v.cumprod(0), cumulated],
        "cumprod_along": [
            lambda v: v.reshape(2, 3).cumprod(1),
            lambda v: torch.stack([cumulated(row) for row in v.reshape(2, 3)]),
        ],
    }
    weights = np.array([1.0, -2.0, 0.5, 3.0, -1.0, 2.0])
    for name, pair_of_functions in functions.items():
        for zeros in ((), (2,), (0, 1), (1, 2, 4)):
            values = np.array([2.0, -1.5, 3.0, 0.5, -2.0, 4.0])
            values[list(zeros)] = 0.0
            pair = []
            for library, function in zip((dl, torch), pair_of_functions, strict=True):
                x = library.tensor(values, requires_grad=True)
                w = library.tensor(weights)
                y = function(x)
                scale = w[: y.numel()].reshape(tuple(y.shape))
                (first,) = library.autograd.grad((y * scale).sum(), x, create_graph=True)
                (second,) = library.autograd.grad((first * w).sum(), x)
                pair.append([first.detach().numpy(), second.detach().numpy()])
            for mine, theirs in zip(*pair, strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-12, err_msg=f"{name} {zeros}")


def test_tensors_with_hooks_are_copied() -> None:
    x = dl.ones(2, requires_grad=True).clone()
    x.register_hook(lambda g: g * 2)
    for other in (copy.deepcopy(x), pickle.loads(pickle.dumps(dl.ones(2).clone()))):
        assert other.tolist() == [1, 1]
