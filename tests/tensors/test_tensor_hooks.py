"""Hooks of tensors' gradients, against PyTorch: what they see, what they change, and for how long."""

from __future__ import annotations

from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys.errors import GraphError, ShapeError
from helpers import error_of
from optional import torch


def steps(library: Any) -> list[np.ndarray]:
    """Gradients under hooks of a leaf and of computed tensors, of which one is removed after a step."""
    rng = np.random.default_rng(0)
    w = library.tensor(rng.normal(size=(3, 2)).astype("float32"), requires_grad=True)
    x = library.tensor(rng.normal(size=(4, 3)).astype("float32"))
    leaf = w.register_hook(lambda grad: grad.clamp(-0.5, 0.5))
    found = []
    for step in range(3):
        seen: list[Any] = []
        hidden = (x @ w).tanh()
        hidden.register_hook(seen.append)
        doubled = hidden.register_hook(lambda grad: 2 * grad)
        if step == 1:
            doubled.remove()
            doubled.remove()  # once more is nothing
        if step == 2:
            leaf.remove()
        (hidden * hidden).sum().backward(retain_graph=True)
        found += [w.grad.numpy().copy(), seen[0].numpy()]
        assert len(seen) == 1
        w.grad = None
        (grad,) = library.autograd.grad((hidden * 3).sum(), [w])
        found.append(grad.numpy())
    return found


def test_hooks_see_and_change_gradients() -> None:
    for ours, theirs in zip(steps(dl), steps(torch), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_gradient_that_a_hook_keeps_outlives_the_step() -> None:
    w, kept = dl.nn.Parameter(np.ones((2, 2), "float32")), []
    optimizer = dl.optim.SGD([w], lr=0.1)
    for _ in range(3):
        y = w * w
        y.register_hook(kept.append)
        optimizer.zero_grad()
        (y * y).sum().backward()
        optimizer.step()
    values = [float(grad.numpy()[0, 0]) for grad in kept]
    np.testing.assert_allclose(values, [2.0, 0.72, 0.527570], rtol=1e-5)


def test_gradients_of_variables_pass_hooks_too() -> None:
    x = ad.Variable("x")
    y = x * x
    y.register_hook(lambda grad: grad * 5.0)
    (grad,) = ad.gradients(y, [x])
    (found,) = ad.Executor([grad]).run({x: np.full(2, 3.0, "float32")}, convert_to_numpy_ret_vals=True)
    np.testing.assert_array_equal(found, [30.0, 30.0])


def test_what_is_no_hook_is_refused() -> None:
    x = dl.ones(2, requires_grad=True)
    assert "takes a function" in error_of(GraphError, x.register_hook, 1)
    assert "requires no gradient" in error_of(GraphError, dl.ones(2).register_hook, print)
    for returned, error in ((3.0, GraphError), (dl.ones(3), ShapeError)):
        y = x * 2
        y.register_hook(lambda grad, returned=returned: returned)
        with pytest.raises(error, match="register_hook"):
            y.sum().backward()
