"""`dl.vmap`, and tensors of shape () in order: values and gradients are PyTorch's."""

from __future__ import annotations

from typing import Any

import dlsys as dl
import numpy as np
import torch
from dlsys.errors import GraphError, ShapeError
from helpers import error_of

RNG = np.random.default_rng(0)
W, X, Y = (RNG.standard_normal(shape).astype("float32") for shape in ((3, 4), (6, 4), (6, 3)))


def test_functions_of_one_example_take_batches() -> None:
    def program(lib: Any) -> list[Any]:
        vmap, func = lib.vmap, lib.func
        w, x, y = lib.tensor(W), lib.tensor(X), lib.tensor(Y)

        def loss(w: Any, x: Any, y: Any) -> Any:
            return ((lib.tanh(w @ x) - y) ** 2).sum()

        leaf = lib.tensor(W, requires_grad=True)
        vmap(loss, in_dims=(None, 0, 0))(leaf, x, y).mean().backward()
        return [
            vmap(func.grad(loss), in_dims=(None, 0, 0))(w, x, y),  # a gradient for each example
            vmap(lib.dot)(x, x),
            *vmap(lambda a, b: (a * 2, a + b), in_dims=(1, None), out_dims=(0, 1))(x, lib.ones(6)),
            vmap(lambda a: {"twice": a * 2})(x)["twice"],
            vmap(vmap(lambda a, b: a * b, in_dims=(None, 0)), in_dims=(0, None))(x[0], x[1]),
            vmap(func.jacrev(lambda a: lib.sin(a) * a.sum()))(x),
            leaf.grad,
        ]

    for mine, theirs in zip(program(dl), program(torch), strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5)
    assert dl.func.vmap is dl.vmap


def test_vmap_says_what_does_not_fit() -> None:
    x, y = dl.tensor(X), dl.tensor(Y)
    assert "3 and 6 examples" in error_of(ShapeError, dl.vmap(lambda a, b: a, in_dims=(0, 1)), x, y)
    assert "all None" in error_of(GraphError, dl.vmap(lambda a: a, in_dims=None), x)
    assert "for 2 arguments" in error_of(GraphError, dl.vmap(lambda a, b: a, in_dims=(0,)), x, y)
    assert "must return tensors, not int" in error_of(GraphError, dl.vmap(lambda a: 1), x)


def test_order_of_a_single_number() -> None:
    def program(lib: Any) -> list[Any]:
        x = lib.tensor(3.5, requires_grad=True)
        found = [
            *lib.sort(x), *lib.sort(x, 0, descending=True), lib.argsort(x, -1), lib.msort(x),
            *lib.topk(x, 1), *lib.kthvalue(x, 1), *lib.cummax(x, 0), *lib.cummin(x, 0),
            lib.cumsum(x, 0), lib.cumprod(x, 0), lib.index_select(x, 0, lib.tensor([0])), *lib.median(x, 0),
        ]  # fmt: skip
        x.topk(1).values.backward()
        return [*found, x.grad, lib.nonzero(lib.tensor(2.0)), lib.nonzero(lib.tensor(0.0))]

    for mine, theirs in zip(program(dl), program(torch), strict=True):
        assert mine.shape == tuple(theirs.shape)
        np.testing.assert_array_equal(mine.detach().numpy(), theirs.detach().numpy())
    assert "axis" in error_of(ShapeError, dl.sort, dl.tensor(1.0), 1)
