"""Calls of functions on tensors, and optimizers' steps: one node stands for all that they make."""

from __future__ import annotations

from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import nn, optim
from dlsys.errors import IndexRangeError
from dlsys.nn import functional as F


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def tensors(*shapes: tuple[int, ...]) -> list[Any]:
    return [dl.tensor(drawn(*shape, seed=seed), requires_grad=True) for seed, shape in enumerate(shapes)]


def test_a_call_that_is_known_is_one_node() -> None:
    x, y = tensors((3, 4), (3, 4))
    first, second = F.cross_entropy(x, y.softmax(1)), F.cross_entropy(y, x.softmax(1))
    assert second.op is first.op and len(second.inputs) == 2
    np.testing.assert_allclose(first.numpy(), -(y.softmax(1) * x.log_softmax(1)).sum(1).mean().numpy(), rtol=1e-5)
    np.testing.assert_allclose(second.numpy(), -(x.softmax(1) * y.log_softmax(1)).sum(1).mean().numpy(), rtol=1e-5)


def test_one_tensor_twice_is_another_call_than_two() -> None:
    v, w = tensors((4,), (4,))
    for a, b in ((v, v), (v, w), (w, v), (w, w)):
        np.testing.assert_allclose(dl.dot(a, b).numpy(), np.dot(a.numpy(), b.numpy()), rtol=1e-5)


def test_numbers_of_a_call_may_vary() -> None:
    (x,) = tensors((5, 3))
    for at in range(20):
        bound = 0.1 * at + 0.05
        np.testing.assert_allclose(x.clamp(-bound, bound).numpy(), np.clip(x.numpy(), -bound, bound))
        np.testing.assert_array_equal(x[at % 5].numpy(), x.numpy()[at % 5])


def test_indices_of_a_known_call_are_checked() -> None:
    (x,) = tensors((5, 3))
    table = nn.Embedding(5, 3)
    for function in (table, lambda at: x[at], lambda at: F.one_hot(at, 5), lambda at: F.cross_entropy(x[:3, :], at)):
        for at in ([0, 1, 2], [2, 1, 0]):
            function(dl.tensor(at))
    for function in (table, lambda at: x[at], lambda at: F.one_hot(at, 5)):
        with pytest.raises(IndexRangeError):
            function(dl.tensor([0, 7, 2]))


def test_the_gradient_of_a_call_whose_inputs_depend_on_each_other() -> None:
    """In a graph of an Executor, where calls are taken apart."""
    x, scale, shift = tensors((5, 3), (3,), (3,))
    norm = nn.BatchNorm1d(3).eval()
    found = norm(x * scale) * F.silu(scale) + F.softplus(shift * scale)
    grads = ad.gradients(ad.reducesum_op(found * found), [x, scale, shift])
    values = ad.Executor(list(grads)).run({}, convert_to_numpy_ret_vals=True)
    (found * found).sum().backward()
    for value, leaf in zip(values, (x, scale, shift), strict=True):
        np.testing.assert_allclose(value, leaf.grad.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reads", ["none", "before", "after", "each"])
def test_gradients_can_be_read_after_the_step_that_used_them(reads: str) -> None:
    model, x = nn.Linear(3, 2), dl.tensor(drawn(4, 3))
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    weight, buffer = model.weight.numpy().copy(), np.zeros((2, 3), np.float32)
    wanted = np.repeat(x.numpy().sum(0)[None], 2, 0)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).sum().backward()
        if reads in ("before", "each"):
            np.testing.assert_allclose(model.weight.grad.numpy(), wanted, rtol=1e-5)
        optimizer.step()
        buffer = 0.9 * buffer + wanted
        weight = weight - 0.1 * buffer
        if reads in ("after", "each"):
            np.testing.assert_allclose(model.weight.grad.numpy(), wanted, rtol=1e-5)
        np.testing.assert_allclose(model.weight.numpy(), weight, rtol=1e-4)
    model(x).sum().backward()  # adds
    optimizer.step()
    np.testing.assert_allclose(model.weight.grad.numpy(), 2 * wanted, rtol=1e-5)


def test_what_was_made_before_a_step_has_the_old_parameters() -> None:
    model, x = nn.Linear(3, 2), dl.tensor(drawn(4, 3))
    optimizer = optim.Adam(model.parameters(), lr=0.1)
    before, weight = model.weight * 2.0, model.weight.numpy().copy()
    model(x).sum().backward()
    optimizer.step()
    np.testing.assert_allclose(before.numpy(), 2 * weight)
    assert np.abs(model.weight.numpy() - weight).min() > 0.05


def test_a_programs_own_optimizer_may_change_its_formula() -> None:
    class Own(optim.SGD):
        factor = 1.0

        def update(self, p: Any, g: Any, state: Any, lr: Any, step: Any, group: Any) -> Any:
            return p - g * (lr * self.factor), {}

    (p,) = [nn.Parameter(np.zeros(2, np.float32))]
    optimizer = Own([p], lr=1.0)
    for factor, value in ((1.0, -1.0), (3.0, -4.0), (0.5, -4.5)):
        optimizer.factor = factor
        optimizer.zero_grad()
        p.sum().backward()
        optimizer.step()
        np.testing.assert_allclose(p.numpy(), [value, value])
