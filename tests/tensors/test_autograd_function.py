"""`autograd.Function`: values as `forward` computes them, gradients as `backward` states them, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys.errors import GraphError
from helpers import error_of
from optional import optional

torch = optional("torch")
X = np.random.default_rng(0).standard_normal((3, 4)).astype("float32")
Y = X[::-1].copy()


def scaled_exp(lib: Any) -> Any:
    class ScaledExp(lib.autograd.Function):
        """exp(k x); what is saved is the output."""

        @staticmethod
        def forward(ctx: Any, x: Any, k: float) -> Any:
            y = lib.exp(x * k)
            ctx.save_for_backward(y)
            ctx.k = k
            return y

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (y,) = ctx.saved_tensors
            return g * y * ctx.k, None

    return ScaledExp


def product(lib: Any) -> Any:
    class Product(lib.autograd.Function):
        """a b; what is saved are the arguments."""

        @staticmethod
        def forward(ctx: Any, a: Any, b: Any) -> Any:
            ctx.save_for_backward(a, b)
            return a * b

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            a, b = ctx.saved_tensors
            return g * b, g * a

    return Product


def straight_through(lib: Any) -> Any:
    class Sign(lib.autograd.Function):
        """The sign, whose gradient passes within [-1, 1]: of Hubara et al. (2016)."""

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return lib.sign(x)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return lib.where(x.abs() <= 1, g, 0.0)

    return Sign


Compute = Callable[[Any, Any, Any], Any]
COMPUTES: dict[str, Compute] = {
    "of an output": lambda lib, x, y: scaled_exp(lib).apply(x, 0.5) * y,
    "of the arguments": lambda lib, x, y: product(lib).apply(x, y) ** 2,
    "within each other": lambda lib, x, y: scaled_exp(lib).apply(product(lib).apply(x * 2, y), 0.25),
    "straight through": lambda lib, x, y: straight_through(lib).apply(x) * y,
}


@pytest.mark.parametrize("name", COMPUTES)
def test_values_gradients_and_their_gradients_are_pytorchs(name: str) -> None:
    def all_of(lib: Any) -> list[Any]:
        x, y = (lib.tensor(value, requires_grad=True) for value in (X, Y))
        loss = COMPUTES[name](lib, x, y).sum()
        first = lib.autograd.grad(loss, [x, y], create_graph=True)
        second = lib.autograd.grad(sum((g * g).sum() for g in first), [x, y], allow_unused=True)
        COMPUTES[name](lib, x, y).sum().backward()
        found = [loss, *first, *second, x.grad, y.grad]
        return [np.zeros_like(X) if value is None else value.detach().numpy() for value in found]

    for mine, theirs in zip(all_of(dl), all_of(torch), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-5)


def test_it_is_part_of_an_executors_graph() -> None:
    x = ad.Variable("x")
    y = scaled_exp(dl).apply(x, 0.5)
    (g,) = ad.gradients(y, [x])
    (gg,) = ad.gradients(g, [x])
    executor = ad.Executor([y, g, gg])
    for value, again in zip(executor.run({x: X}, convert_to_numpy_ret_vals=True), (1, 0.5, 0.25), strict=True):
        np.testing.assert_allclose(value, np.exp(X / 2) * again, rtol=1e-5)
    assert "with_gradient(" in executor.graph()
    assert "with_gradient(" not in executor.graph(True)  # type inference has put the output in its place


def test_attributes_of_the_context_are_those_of_the_call() -> None:
    """Also where the structure of the graph is one that was met before."""

    class Weighted(dl.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, weight: float) -> Any:
            ctx.weight = weight
            return x * 1.0

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * ctx.weight, None

    for weight in (2.0, 3.0, 2.0):
        x = dl.tensor(X, requires_grad=True)
        Weighted.apply(x, weight).sum().backward()
        np.testing.assert_array_equal(x.grad.numpy(), np.full_like(X, weight))


@pytest.mark.parametrize(
    ("error", "told", "returned"),
    [
        (GraphError, "Wrong.backward must return 2 gradients, one for each argument, not 1", lambda g: g),
        (GraphError, "Wrong.backward must return tensors, not float", lambda g: (1.0, None)),
    ],
)
def test_what_is_no_gradient_is_named(error: type[Exception], told: str, returned: Callable[[Any], Any]) -> None:
    class Wrong(dl.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            return x + y

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return returned(g)

    x, y = ad.Variable("x"), ad.Variable("y")
    grads = lambda: ad.Executor(ad.gradients(Wrong.apply(x, y), [x])).run({x: X, y: Y})  # noqa: E731
    assert told in error_of(error, grads)
