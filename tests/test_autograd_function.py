"""Functions with gradients of the user's own, and the check of gradients, beside PyTorch's."""

from __future__ import annotations

import warnings
from typing import Any

import dlsys as dl
import numpy as np
import torch
from dlsys import autodiff as ad
from dlsys.autodiff import OPS
from dlsys.errors import GraphError, ShapeError
from dlsys.ops.function import function_op
from helpers import error_of

START = np.random.default_rng(0).standard_normal((2, 3))


def functions(m: Any) -> dict[str, Any]:
    """The same classes for either library."""

    class Exp(m.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            result = x.exp()
            ctx.save_for_backward(result)
            return result

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            (result,) = ctx.saved_tensors
            return grad * result

    class Several(m.autograd.Function):
        """Three outputs, of which one has no gradient, and an argument that is no tensor."""

        @staticmethod
        def forward(ctx: Any, x: Any, k: float, y: Any) -> Any:
            ctx.k, ctx.seen = k, ctx.needs_input_grad
            ctx.save_for_backward(x, y, None)
            positive, kept = x > 0, x + 0
            ctx.mark_non_differentiable(positive, kept)
            return x * y * k, (x * x).sum(), positive, kept

        @staticmethod
        def backward(ctx: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
            assert ctx.seen == (True, False, True) and ctx.needs_input_grad == ctx.seen
            x, y, nothing = ctx.saved_tensors
            assert nothing is None
            return a * y * ctx.k + 2 * b * x, None, a * x * ctx.k

    class Line(m.autograd.Function):
        """The newer form, with a setup_context of its own; its bias's gradient is to be summed."""

        @staticmethod
        def forward(x: Any, w: Any, b: Any) -> Any:
            return x @ w + b

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(inputs[0], inputs[1])

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            x, w = ctx.saved_tensors
            return grad @ w.T, x.T @ grad, grad, None

    class Reverse(m.autograd.Function):
        """No derivative of what is computed: another gradient than the true one."""

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return -0.5 * grad

    class Sparse(m.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.set_materialize_grads(False)
            mask = x > 0
            ctx.mark_non_differentiable(mask)
            return x * 2, mask

        @staticmethod
        def backward(ctx: Any, grad: Any, nothing: Any) -> Any:
            assert nothing is None
            return 2 * grad

    return {"Exp": Exp, "Several": Several, "Line": Line, "Reverse": Reverse, "Sparse": Sparse}


def test_values_and_gradients_are_pytorchs() -> None:
    found = []
    for m in (dl, torch):
        own = functions(m)
        x, y = (m.tensor(START + k, requires_grad=True) for k in (0, 1))
        z = own["Exp"].apply(x)
        (first,) = m.autograd.grad((z * z).sum(), x, create_graph=True)
        (second,) = m.autograd.grad((first**2).sum(), x)
        a, b, c, d = own["Several"].apply(x, 3.0, y)
        (a.sum() + b * b * own["Exp"].apply(y).sum() + (own["Reverse"].apply(x) * x).sum()).backward()
        assert not c.requires_grad and not d.requires_grad
        w, bias = m.tensor(START[:, :2].T @ START, requires_grad=True), m.tensor(START[0], requires_grad=True)
        line = own["Line"].apply(m.tensor(START[:, :2], requires_grad=True), w, bias)
        (line**2).sum().backward()
        free = m.tensor(START, requires_grad=True)
        double, mask = own["Sparse"].apply(free)
        (double * double).sum().backward()
        # only one of several outputs is used
        single = m.tensor(START, requires_grad=True)
        own["Several"].apply(single, 2.0, y)[1].backward()
        found.append([z, first, second, a, b, c, d, x.grad, y.grad, line, w.grad, bias.grad, free.grad, mask,
                      single.grad])  # fmt: skip
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.detach().numpy(), rtol=1e-10)


def test_graphs_of_variables_run_and_fuse() -> None:
    own = functions(dl)
    x, y = (ad.Variable(name, (2, 3), "float64") for name in "xy")
    a, b, _, d = own["Several"].apply(own["Exp"].apply(x), 2.0, y)
    loss = a.sum() + b + d.sum()
    executor = ad.Executor([loss, *ad.gradients(loss, [x, y])])
    value, of_x, of_y = executor.run({x: START, y: START + 1})
    e = np.exp(START)
    np.testing.assert_allclose(np.asarray(value), (e * (START + 1) * 2).sum() + (e * e).sum() + e.sum())
    np.testing.assert_allclose(np.asarray(of_x), (2 * (START + 1) + 2 * e) * e)  # none goes through d
    np.testing.assert_allclose(np.asarray(of_y), 2 * e)
    assert "function" not in executor.groups()
    free = ad.Variable("free")  # neither shape nor dtype is known
    squared = own["Exp"].apply(own["Exp"].apply(free) * 2)
    (found,) = ad.Executor(ad.gradients(squared, [free])).run({free: START})
    np.testing.assert_allclose(np.asarray(found), 2 * e * np.exp(2 * e))
    assert "must be known" in error_of(GraphError, own["Several"].apply, free, 2.0, free)


def test_what_is_saved_stays_what_it_was() -> None:
    class Square(dl.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return 2 * grad * ctx.saved_tensors[0]

    x = dl.tensor(START, requires_grad=True)
    base = (x * 3).clone()
    y = Square.apply(base)
    base.mul_(0)  # PyTorch would refuse the gradient
    y.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 18 * START)
    x.grad = None
    result = functions(dl)["Exp"].apply(x).clone()
    result.mul_(3)
    (result + 1).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 3 * np.exp(START))


def test_function_trains_within_a_module() -> None:
    exp = functions(dl)["Exp"]

    class Positive(dl.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = dl.nn.Parameter(np.zeros(3, np.float32))

        def forward(self, x: Any) -> Any:
            return (x * exp.apply(self.w)).sum(-1)

    model, x = Positive(), ad.Variable("x", (4, 3), "float32")
    target = ad.Variable("target", (4,), "float32")
    optimizer = dl.optim.SGD(model.parameters(), lr=0.05)
    loss = dl.nn.MSELoss()(model(x), target)
    step = ad.Executor([loss, optimizer.minimize(loss)])
    draw = np.random.default_rng(0)
    for _ in range(200):
        given = draw.standard_normal((4, 3)).astype("float32")
        step.run({x: given, target: given @ np.array([2.0, 0.5, 1.0], "float32")})
    np.testing.assert_allclose(np.exp(model.w.numpy()), [2, 0.5, 1], rtol=1e-2)


def test_modes_and_what_needs_no_gradient() -> None:
    own = functions(dl)
    x = dl.tensor(START, requires_grad=True)
    with dl.no_grad():
        assert not own["Exp"].apply(x).requires_grad
    assert own["Exp"].apply(x).requires_grad and not own["Exp"].apply(x.detach()).requires_grad

    class Count(dl.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            assert ctx.needs_input_grad == (False,)
            return x + 1, None

    assert Count.apply(dl.tensor([1, 2]))[0].tolist() == [2, 3]
    found = dl.grad(lambda v: own["Exp"].apply(v).sum())(dl.tensor(START))  # which requires none
    np.testing.assert_allclose(found.numpy(), np.exp(START))


def _apply(backward: Any, *args: Any) -> Any:
    class Mine(dl.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            return args[0] * 1

    Mine.backward = staticmethod(backward)  # type: ignore[method-assign]
    return Mine.apply(*args).sum().backward()


def test_errors() -> None:
    x = dl.tensor(START, requires_grad=True)
    few = error_of(GraphError, _apply, lambda ctx, g: g, x, 2)
    assert "MineBackward returned an incorrect number of gradients (expected 2, got 1)" in few
    wrong = error_of(ShapeError, _apply, lambda ctx, g: g.sum(0)[:2], x)
    assert "invalid gradient at index 0 - got [2] but expected shape compatible with [2, 3]" in wrong
    assert "at position 2" in error_of(GraphError, _apply, lambda ctx, g: (g, g), x, 2)
    assert "returned a float at index 0" in error_of(GraphError, _apply, lambda ctx, g: 1.0, x)
    _apply(lambda ctx, g: (g, None, None), x, 2)  # more Nones than arguments, as in PyTorch
    assert "in place" in error_of(GraphError, dl.autograd.function.FunctionCtx().mark_dirty, x)
    assert "takes tensors" in error_of(GraphError, dl.autograd.function.FunctionCtx().save_for_backward, 1)
    assert "inputs must be nodes" in error_of(GraphError, function_op, x, [1], lambda grad: [grad])

    class Without(dl.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x

    try:
        Without.apply(x).sum().backward()
    except NotImplementedError as error:
        assert "backward" in str(error)
    else:
        raise AssertionError("a Function without a backward has none")

    class Once(dl.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @dl.autograd.function.once_differentiable
        def backward(ctx: Any, grad: Any) -> Any:
            return 2 * grad * ctx.saved_tensors[0]

    (first,) = dl.autograd.grad(Once.apply(x).sum(), x, create_graph=True)
    np.testing.assert_allclose(first.numpy(), 2 * START)
    assert "once_differentiable" in error_of(GraphError, dl.autograd.grad, first.sum(), x)


def test_operator() -> None:
    """The operator by itself: a copy of its first input, whatever the others are."""
    x, y = ad.Variable("x", (2, 3)), ad.Variable("y", (5,))
    node = function_op(x, [y], lambda grad: [None])
    op = OPS["function"]
    np.testing.assert_array_equal(op.numpy(node, [START, START[0]]), START)
    for target in ("cpu", "numpy"):
        (found,) = ad.Executor([node], ctx=target).run({x: START, y: np.ones(5)})
        np.testing.assert_array_equal(np.asarray(found), START)
    assert "as written" in error_of(GraphError, op.gradient, ad.Node(op, [x, y], {}), x)


def test_gradcheck_finds_wrong_gradients() -> None:
    own = functions(dl)
    x, y = (dl.tensor(START + k, requires_grad=True) for k in (0, 1))
    check, twice = dl.autograd.gradcheck, dl.autograd.gradgradcheck
    assert check(own["Exp"].apply, x) and twice(own["Exp"].apply, (x,))
    assert check(lambda a, k, b: own["Several"].apply(a, k, b)[:2], (x, 2.0, y))
    assert twice(lambda a, k, b: own["Several"].apply(a, k, b)[:2], (x, 2.0, y))
    assert check(lambda a, b: dl.nn.functional.gelu(a @ b.T), (x, y), eps=1e-6, atol=1e-7, rtol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not check(own["Reverse"].apply, x, raise_exception=False)
    said = error_of(dl.autograd.GradcheckError, check, own["Reverse"].apply, x)
    theirs = torch.tensor(START, requires_grad=True)
    try:
        torch.autograd.gradcheck(functions(torch)["Reverse"].apply, theirs)
    except RuntimeError as error:
        assert str(error).splitlines()[0] == said.splitlines()[0]
    assert "Jacobian mismatch for output 0 with respect to input 0" in said and "analytical:tensor" in said
    assert "requires_grad=True" in error_of(GraphError, check, own["Exp"].apply, x.detach())
    assert "must return tensors" in error_of(GraphError, check, lambda a: 1.0, x)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check(lambda a: a * 2, x.detach().float().requires_grad_(), atol=1e-1)
    assert "double precision" in str(caught[0].message)

    class Twice(dl.autograd.Function):
        """A gradient whose own gradient is wrong."""

        @staticmethod
        def forward(ctx: Any, v: Any) -> Any:
            ctx.save_for_backward(v)
            return v * v

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return 2 * grad * ctx.saved_tensors[0].detach()

    assert check(Twice.apply, x) and not twice(Twice.apply, x, raise_exception=False)
