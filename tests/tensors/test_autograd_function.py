"""`autograd.Function`: values as `forward` computes them, gradients as `backward` states them, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys.errors import DTypeError, GraphError, ShapeError
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


def both(lib: Any) -> Any:
    class Both(lib.autograd.Function):
        """a b and a + b."""

        @staticmethod
        def forward(ctx: Any, a: Any, b: Any) -> Any:
            ctx.save_for_backward(a, b)
            return a * b, a + b

        @staticmethod
        def backward(ctx: Any, g: Any, h: Any) -> Any:
            a, b = ctx.saved_tensors
            return g * b + h, g * a + h

    return Both


def straight_through(lib: Any) -> Any:
    class Sign(lib.autograd.Function):
        """The sign, whose gradient passes within [-1, 1]: of Hubara et al. (2016)."""

        @staticmethod
        def forward(x: Any) -> Any:
            return lib.sign(x)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(inputs[0])

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return lib.where(x.abs() <= 1, g, 0.0)

    return Sign


def reversal(lib: Any) -> Any:
    class Reversal(lib.autograd.Function):
        """x, whose gradient is turned round: of Ganin and Lempitsky (2015)."""

        @staticmethod
        def forward(ctx: Any, x: Any, weight: float) -> Any:
            ctx.weight = weight
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g.neg() * ctx.weight, None

    return Reversal


Compute = Callable[[Any, Any, Any], Any]
COMPUTES: dict[str, Compute] = {
    "of an output": lambda lib, x, y: scaled_exp(lib).apply(x, 0.5) * y,
    "of several": lambda lib, x, y: (lambda u, v: u * u + v * 3)(*both(lib).apply(x, y)),
    "one of several": lambda lib, x, y: both(lib).apply(x, y)[1] ** 2,
    "within each other": lambda lib, x, y: scaled_exp(lib).apply(both(lib).apply(x * 2, y)[0], 0.25),
    "straight through": lambda lib, x, y: straight_through(lib).apply(x) * y,
    "turned round": lambda lib, x, y: reversal(lib).apply(x * y, 0.3) ** 2,
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
    assert "function(" in executor.graph()
    assert "function(" not in executor.graph(True)  # type inference has put the output in its place


def test_attributes_of_the_context_are_those_of_the_call() -> None:
    """Numbers, arrays and objects, also where the structure of the graph is one that was met before."""

    class Weighted(dl.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, weight: Any) -> Any:
            ctx.weight, ctx.more = weight, {"by": 2.0}
            return x * 1.0

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * ctx.weight * ctx.more["by"], None

    for weight in (2.0, 3.0, np.arange(4, dtype="float32"), np.ones(4, "float32")):
        x = dl.tensor(X, requires_grad=True)
        Weighted.apply(x, weight).sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), np.broadcast_to(2 * weight, X.shape))


def test_outputs_that_are_integers_or_marked_have_no_gradient() -> None:
    class Parts(dl.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            whole = dl.floor(x)
            ctx.mark_non_differentiable(whole)
            return x - whole, whole, x.argmax(1)

        @staticmethod
        def backward(ctx: Any, g: Any, *unused: Any) -> Any:
            assert ctx.needs_input_grad == (True,)
            return g

    x = dl.tensor(X, requires_grad=True)
    part, whole, place = Parts.apply(x)
    assert part.requires_grad and not whole.requires_grad and place.dtype == dl.int64
    part.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.ones_like(X))


@pytest.mark.parametrize(
    ("error", "told", "returned"),
    [
        (GraphError, "Wrong.backward must return 2 gradients, one for each argument, not 1", lambda g: g),
        (GraphError, "Wrong.backward must return 2 gradients, tensors or None", lambda g: (1.0, None)),
        (ShapeError, "gradient that it gives for x has shape (3,), the input (3, 4)", lambda g: (g.sum(1), g)),
        (DTypeError, "Wrong: the gradient that it gives for x is float64", lambda g: (g.double(), g)),
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


def test_a_function_that_lacks_something_says_so() -> None:
    class Nothing(dl.autograd.Function):
        pass

    class Array(dl.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return np.ones(3) if x.shape == (3,) else ctx.save_for_backward(1.5)

    assert "must have a static method forward" in error_of(GraphError, Nothing.apply, dl.ones(3))
    assert "Array.forward must return a tensor or several" in error_of(GraphError, Array.apply, dl.ones(3))
    assert "takes tensors, not float" in error_of(GraphError, Array.apply, dl.ones(2))
