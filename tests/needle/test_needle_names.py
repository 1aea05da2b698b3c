"""Programs of needle's course, hw1 to hw4, with one line changed: `import dlsys.needle as ndl`."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dlsys.needle as ndl
import numpy as np
import pytest
from dlsys.autodiff import Executor
from dlsys.data import CIFAR10
from dlsys.errors import DataError, DeviceError, GraphError, ShapeError
from dlsys.needle import nn, ops
from helpers import error_of, python
from optional import torch


def gradient_check(function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """hw1's: `cached_data` is written in place, and gradients come from `op.gradient_as_tuple` or `backward`."""
    eps = 1e-4
    numerical = [np.zeros(a.shape) for a in args]
    for i, a in enumerate(args):
        for j in range(a.realize_cached_data().size):
            a.realize_cached_data().flat[j] += eps
            above = float(function(*args, **kwargs).numpy().sum())
            a.realize_cached_data().flat[j] -= 2 * eps
            below = float(function(*args, **kwargs).numpy().sum())
            a.realize_cached_data().flat[j] += eps
            numerical[i].flat[j] = (above - below) / (2 * eps)
    out = function(*args, **kwargs)
    direct = all(any(a is given for given in out.inputs) for a in args)  # no other operators in between
    if direct:
        found = out.op.gradient_as_tuple(ndl.init.ones(*out.shape, dtype=out.dtype), out)
    out.sum().backward()
    for i, a in enumerate(args):
        np.testing.assert_allclose(a.grad.cached_data, numerical[i], rtol=1e-5, atol=1e-6)
        if direct:
            np.testing.assert_allclose(found[i].numpy(), numerical[i], rtol=1e-5, atol=1e-6)


def drawn(*shape: int, seed: int = 0, low: float = 0.5) -> Any:
    return ndl.Tensor(np.random.default_rng(seed).uniform(low, 2, shape), dtype="float64")


@pytest.mark.slow
def test_operators_have_needles_arguments() -> None:
    x, y = np.arange(1.0, 13).reshape(3, 4), np.arange(12.0, 0, -1).reshape(3, 4)
    a, b = ndl.Tensor(x), ndl.Tensor(y)
    big = np.array([[1e10, 1e9, -10.0]])
    expected = {
        "add": ((a, b), x + y),
        "add_scalar": ((a, 2), x + 2),
        "multiply": ((a, b), x * y),
        "mul_scalar": ((a, np.array([3.0])), x * 3),
        "divide": ((a, b), x / y),
        "divide_scalar": ((a, 12), x / 12),
        "power": ((a, ndl.Tensor(np.full((4,), 2.0))), x**2),
        "power_scalar": ((a, -1.5), x**-1.5),
        "negate": ((a,), -x),
        "matmul": ((a, ops.transpose(b)), x @ y.T),
        "summation": ((a,), x.sum()),
        "logsumexp": ((ndl.Tensor(big), (1,)), [1e10]),
        "logsoftmax": ((a,), x - np.log(np.exp(x).sum(1, keepdims=True))),
        "log": ((a,), np.log(x)),
        "exp": ((a,), np.exp(x)),
        "relu": ((-a,), 0 * x),
        "tanh": ((a,), np.tanh(x)),
    }
    for name, (args, value) in expected.items():
        for home in (ops, ndl):
            found = getattr(home, name)(*args)
            np.testing.assert_allclose(found.numpy(), value, rtol=1e-5, atol=1e-6, err_msg=name)
            assert isinstance(found, ndl.Tensor) and not found.is_leaf()
    z = np.random.default_rng(0).standard_normal((2, 3, 4)).astype("float32")
    c = ndl.Tensor(z)
    moved: list[tuple[Any, np.ndarray]] = [
        (ops.transpose(c), z.swapaxes(1, 2)),
        (ops.transpose(c, axes=(0, 2)), z.swapaxes(0, 2)),
        (ops.reshape(c, shape=(4, 6)), z.reshape(4, 6)),
        (ops.broadcast_to(c, shape=(5, 2, 3, 4)), np.broadcast_to(z, (5, 2, 3, 4))),
        (ndl.summation(c, axes=(0, 2)), z.sum((0, 2))),
        (ndl.summation(c, axes=1), z.sum(1)),
        (ops.stack([c, c], axis=1), np.stack([z, z], 1)),
        (ops.flip(c, axes=(0, 1)), np.flip(z, (0, 1))),
        (ndl.undilate(ndl.dilate(c, axes=(1,), dilation=2), axes=(1,), dilation=2), z),
        (ndl.tuple_get_item(ops.split(c, axis=1), 2), z[:, 2]),
        (ops.MakeTensorTuple()(a, c)[-1], z),
    ]
    moved += [
        (c.transpose(), z.swapaxes(1, 2)),
        (c.transpose((0, 1)), z.swapaxes(0, 1)),
        (c.reshape((4, 6)), z.reshape(4, 6)),
        (c.broadcast_to((5, 2, 3, 4)), np.broadcast_to(z, (5, 2, 3, 4))),
        (c.sum(axes=(1,)), z.sum(1)),
        (c.sum((1, 2)), z.sum((1, 2))),
        (c - 2, z - 2),
        (2 - c, 2 - z),
    ]
    for number, (node, value) in enumerate(moved):
        np.testing.assert_allclose(node.numpy(), value, rtol=1e-5, atol=1e-6, err_msg=str(number))
    wide = ndl.dilate(ndl.Tensor([[1.0, 2.0]]), axes=(0, 1), dilation=1)
    assert wide.tolist() == [[1, 0, 2, 0], [0, 0, 0, 0]]
    assert len(ops.split(c, -1)) == 4 and len(ops.split(ndl.Tensor(np.zeros((2, 0))), 1)) == 0


def test_tuples_of_tensors() -> None:
    x, y = np.arange(6.0).reshape(2, 3), np.arange(6.0, 0, -1).reshape(2, 3)
    a, b = ndl.Tensor(x), ndl.Tensor(y)
    pair = ops.make_tuple(a, b)
    assert isinstance(pair, ndl.autograd.TensorTuple) and ndl.TensorTuple is ops.TensorTuple and len(pair) == 2
    assert pair[0] is a and ops.tuple_get_item(pair, 1) is b and pair.tuple() == (a, b) and pair.inputs == [a, b]
    assert isinstance(pair.op, ops.MakeTensorTuple) and pair.op.compute(1, 2) == (1, 2)
    assert str(pair).startswith("needle.TensorTuple(needle.Tensor([[0. 1. 2.]") and pair.requires_grad
    total = pair + ops.make_tuple(b, b)
    np.testing.assert_array_equal(total[0].numpy(), x + y)
    (total[0] * total[1]).sum().backward()  # (a + b) 2 b
    np.testing.assert_array_equal(a.grad.numpy(), 2 * y)
    np.testing.assert_array_equal(b.grad.numpy(), 2 * x + 4 * y)
    a.grad = None
    parts = ops.split(a, 1)
    assert isinstance(parts, ndl.TensorTuple) and ops.stack(parts, 1).shape == (2, 3)
    (parts[2] * 3).sum().backward()
    assert a.grad.tolist() == [[0, 0, 3], [0, 0, 3]]
    grads = pair.op.gradient_as_tuple(ops.make_tuple(b, a), pair)
    assert grads == (b, a)
    apart = total.detach()
    assert isinstance(apart, ndl.TensorTuple) and all(item.is_leaf() for item in apart) and not apart.requires_grad
    const = ndl.TensorTuple.make_const(pair.realize_cached_data(), requires_grad=True)
    np.testing.assert_array_equal(const[1].numpy(), y)
    const[0].cached_data[0, 0] = 8  # the arrays' own memory, as needle's
    assert a.numpy()[0, 0] == 8 and const.cached_data[0].numpy()[0, 0] == 8
    assert "of the same length, not of 1" in error_of(GraphError, lambda: pair + ops.make_tuple(a))


def backward_check(function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """hw4's: float64 for the gradient of the result, of tensors that are float32."""
    eps = 1e-3
    out = function(*args, **kwargs)
    c = np.random.randn(*out.shape)
    if isinstance(args[0], list):
        args = (*args[0],)
        inner, function = function, lambda *parts, **kwargs: inner(list(parts), **kwargs)
    numerical = [np.zeros(a.shape) for a in args]
    for a, found in zip(args, numerical, strict=True):
        for j in range(a.realize_cached_data().size):
            a.realize_cached_data().flat[j] += eps
            above = (function(*args, **kwargs).numpy() * c).sum()
            a.realize_cached_data().flat[j] -= 2 * eps
            below = (function(*args, **kwargs).numpy() * c).sum()
            a.realize_cached_data().flat[j] += eps
            found.flat[j] = (above - below) / (2 * eps)
    grads = out.op.gradient_as_tuple(ndl.Tensor(c, device=args[0].device), out)
    if isinstance(grads[0], ndl.TensorTuple):
        grads = grads[0].tuple()
    assert sum(np.linalg.norm(g.numpy() - n) for g, n in zip(grads, numerical, strict=False)) < 1e-2


@pytest.mark.slow
def test_arrays_of_float64_become_float32_as_with_needles_arrays() -> None:
    np.random.seed(0)
    nd, values = ndl.backend_ndarray, np.random.randn(3, 4)
    for x in (values, values.tolist(), nd.array(values), values.astype("float16"), np.arange(3)):
        assert ndl.Tensor(x).dtype == "float32"
    assert nd.array(values).dtype == "float32" and nn.Linear(4, 2)(ndl.Tensor(values)).numpy().dtype == "float32"
    wide = ndl.Tensor(values, dtype="float64")
    assert wide.dtype == ndl.Tensor(wide).dtype == "float64"
    backward_check(ops.tanh, ndl.Tensor(nd.array(values)))
    backward_check(ops.stack, [ndl.Tensor(values), ndl.Tensor(values * 2)], axis=1)
    backward_check(ops.flip, ndl.Tensor(values), axes=(1,))
    backward_check(ops.dilate, ndl.Tensor(values), dilation=1, axes=(0,))
    code = "import numpy as np, dlsys.needle as ndl\nfor x in (np.ones(2), np.arange(2)): print(ndl.Tensor(x).dtype)"
    for backend, wanted in (("np", "float64 float32"), ("nd", "float32 float32")):
        assert python("-c", code, NEEDLE_BACKEND=backend).stdout.split() == wanted.split(), backend


def test_numpy_gives_a_copy_that_may_be_written() -> None:
    x = ndl.Tensor(np.ones(3))
    for tensor in (x, x * 2):
        values = tensor.numpy()
        values += 1
        assert values[0] == tensor.numpy()[0] + 1


@pytest.mark.slow
def test_gradients_are_those_of_differences() -> None:
    gradient_check(ndl.power_scalar, drawn(3, 2), scalar=3)
    gradient_check(ndl.divide, drawn(3, 2), drawn(3, 2, seed=1))
    gradient_check(ndl.divide_scalar, drawn(3, 2), scalar=np.array([1.7]))
    gradient_check(ndl.power, drawn(3, 2), drawn(3, 2, seed=1))
    gradient_check(ndl.matmul, drawn(2, 3, 2), drawn(2, 3, seed=1))
    gradient_check(ops.reshape, drawn(3, 2), shape=(2, 3))
    gradient_check(ops.transpose, drawn(2, 3, 2), axes=(1, 2))
    gradient_check(ops.broadcast_to, drawn(3, 1), shape=(2, 3, 3))
    gradient_check(ndl.summation, drawn(3, 2, 1), axes=(0, 1))
    gradient_check(ops.logsumexp, drawn(2, 3, 2), axes=(0, 2))
    gradient_check(ndl.logsoftmax, drawn(2, 3))
    gradient_check(ops.flip, drawn(2, 3), axes=(1,))
    gradient_check(ndl.dilate, drawn(2, 2), dilation=2, axes=(0, 1))


def test_autograd() -> None:
    a1, b1 = (ndl.Tensor([[v]]) for v in (0.88282157, 0.90170084))
    c1 = 3 * a1 * a1 + 4 * b1 * a1 - a1
    order = ndl.autograd.find_topo_sort([c1])
    a, b = 0.88282157, 0.90170084
    values = [a, 3 * a, 3 * a * a, b, 4 * b, 4 * b * a, 3 * a * a + 4 * a * b, -a, 3 * a * a + 4 * a * b - a]
    np.testing.assert_allclose([node.numpy().item() for node in order], values)  # needle's order, and `a - b` as its
    assert all(isinstance(node, ndl.autograd.Value) and isinstance(node.op, ndl.autograd.Op) for node in order)
    x2, x3 = ndl.Tensor([6]), ndl.Tensor([0])
    y = x2 * x2 + x2 * x3
    y.backward()
    first, other = x2.grad, x3.grad
    assert first.numpy() == 12 and other.numpy() == 6 and x2.dtype == "float32"
    first.backward()  # gradients of gradients, without asking for them; those before are forgotten
    assert x2.grad.numpy() == 2 and x3.grad.numpy() == 1
    ndl.autograd.compute_gradient_of_variables(y, ndl.Tensor([2.0]))
    assert x2.grad.numpy() == 24
    assert "shape (3,)" in error_of(ShapeError, y.backward, np.ones(3))
    const = ndl.Tensor.make_const(np.arange(3), requires_grad=False)
    assert const.dtype == "int64" and const.cached_data.numpy().tolist() == [0, 1, 2]
    const.cached_data = np.array([4, 5, 6])
    assert const.tolist() == [4, 5, 6] and const.is_leaf() and not y.is_leaf()
    assert "only leaves" in error_of(GraphError, setattr, y, "cached_data", np.zeros(1))
    assert (x2 == x3) is False and (x2 != x3) is True and x3 in [x2, x3] and y not in [x2, x3]
    w = ndl.Tensor([1.0, 2.0])
    w.data = w.data - 0.5 * w.detach()
    assert w.tolist() == [0.5, 1.0] and repr(w) == "needle.Tensor([0.5 1. ])" and str(w) == "[0.5 1. ]"
    for node, inputs in ((w + 1, 1), (3 * w, 1), (w * w, 2)):
        found = node.op.gradient_as_tuple(ndl.init.ones(2, dtype="float64"), node)
        assert isinstance(found, tuple) and len(found) == inputs and all(isinstance(g, ndl.Tensor) for g in found)
    step = (w > 1.0).op.gradient_as_tuple(w, w > 1.0)
    assert step[0].numpy().tolist() == [0, 0]  # where there is none, zeros


def test_placeholders_are_fed() -> None:
    x = ndl.Tensor(np.zeros((2, 3)), dtype="float32", placeholder=True)
    model = nn.Linear(3, 4)
    executor = Executor([model(x)])
    fed = np.ones((2, 3), "float32")
    found = executor.run({x: fed}, convert_to_numpy_ret_vals=True)[0]
    np.testing.assert_allclose(found, fed @ model.weight.numpy() + model.bias.numpy(), rtol=1e-5, atol=1e-6)
    assert "variable" in error_of(GraphError, model(x).numpy) and x.shape == (2, 3)


def test_devices() -> None:
    assert ndl.cpu().enabled() and ndl.cpu_numpy().enabled() and not ndl.cuda().enabled()
    assert repr(ndl.cpu()) == repr(ndl.cpu_numpy()) == "cpu()" and ndl.cuda().name == "cuda"
    assert ndl.default_device() == ndl.cpu() == ndl.all_devices()[0] == ndl.Tensor([1.0]).device
    assert "not on cuda()" in error_of(DeviceError, ndl.Tensor, [1.0], device=ndl.cuda())
    np.random.seed(1)
    drawn = ndl.cpu().rand(2, 3), ndl.cpu().randn(2, 3)
    np.random.seed(1)
    for found, value in zip(drawn, (np.random.rand(2, 3), np.random.randn(2, 3)), strict=True):
        np.testing.assert_array_equal(found, value.astype("float32"))
    assert ndl.cpu().one_hot(3, [2]).tolist() == [[0, 0, 1]] and ndl.cpu().full((2,), 5.0).tolist() == [5, 5]
    assert ndl.cpu().empty((2, 3)).shape == (2, 3)


def test_initial_values_are_numpys_draws() -> None:
    given = {"device": ndl.cpu(), "dtype": "float32", "requires_grad": True}
    uniform = {
        "xavier_uniform": (1.5 * np.sqrt(6 / 300), {"gain": 1.5}),
        "kaiming_uniform": (np.sqrt(6 / 100), {"nonlinearity": "relu"}),
    }
    for name, (bound, more) in uniform.items():
        np.random.seed(3)
        w = getattr(ndl.init, name)(100, 200, **more, **given)
        np.random.seed(3)
        want = (np.random.rand(100, 200) * 2 - 1) * bound
        np.testing.assert_allclose(w.numpy(), want, rtol=1e-5, atol=1e-7)
        assert w.requires_grad and isinstance(w, ndl.Tensor)
    for name, std in (("xavier_normal", np.sqrt(2 / 300)), ("kaiming_normal", np.sqrt(2 / 100))):
        np.random.seed(4)
        w = getattr(ndl.init, name)(100, 200, **given)
        np.random.seed(4)
        np.testing.assert_allclose(w.numpy(), np.random.randn(100, 200) * std, rtol=1e-5)
    assert ndl.init.kaiming_uniform(16 * 9, 8 * 9, shape=(3, 3, 16, 8)).shape == (3, 3, 16, 8)
    w = ndl.init.rand(50, 50, low=-1, high=3, device=ndl.cpu())
    assert -1 <= w.numpy().min() < -0.9 and 2.9 < w.numpy().max() < 3 and not w.requires_grad
    assert ndl.init.constant(2, 3, c=4.0).tolist() == [[4.0] * 3] * 2
    assert ndl.init.one_hot(3, ndl.Tensor([2, 0]), device=ndl.cpu()).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert "from 0 to 2" in error_of(GraphError, ndl.init.one_hot, 3, np.array([3]))
    assert 0.2 < ndl.init.randb(40, 40, p=0.3).numpy().mean() < 0.4
    like = ndl.init.zeros(2, dtype="float64")
    assert ndl.init.ones_like(like).dtype == "float64" and ndl.init.zeros_like(like).tolist() == [0, 0]
    np.random.seed(1337)
    f = nn.Linear(7, 4)
    np.random.seed(1337)
    bounds = np.sqrt(6 / 7), np.sqrt(6 / 4)
    want = [(np.random.rand(*s) * 2 - 1) * bound for s, bound in zip(((7, 4), (1, 4)), bounds, strict=True)]
    np.testing.assert_allclose(f.weight.numpy(), want[0], rtol=1e-5)
    np.testing.assert_allclose(f.bias.numpy(), want[1], rtol=1e-5)


def test_optimizers_step_as_needles() -> None:
    draw = np.random.default_rng(2)
    start, grads = draw.standard_normal((4, 3)), [draw.standard_normal((4, 3)) for _ in range(3)]
    p = nn.Parameter(start, dtype="float64")
    opt = ndl.optim.SGD([p], lr=0.1, momentum=0.9, weight_decay=0.01)
    value, u = start, 0.0
    for g in grads:
        p.grad = ndl.Tensor(g, dtype="float64")
        opt.step()
        u = 0.9 * u + 0.1 * (g + 0.01 * value)
        value = value - 0.1 * u
        np.testing.assert_allclose(p.numpy(), value, rtol=1e-12)
    p = nn.Parameter(start, dtype="float64")
    adam = ndl.optim.Adam([p], lr=0.1, beta1=0.8, beta2=0.99, eps=1e-8, weight_decay=0.01)
    value, m, v = start, 0.0, 0.0
    for t, g in enumerate(grads, 1):
        p.grad = ndl.Tensor(g, dtype="float64")
        adam.step()
        g = g + 0.01 * value
        m, v = 0.8 * m + 0.2 * g, 0.99 * v + 0.01 * g * g
        value = value - 0.1 * (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.99**t)) + 1e-8)
        np.testing.assert_allclose(p.numpy(), value, rtol=1e-10)
    adam.reset_grad()
    assert p.grad is None


def test_norms_are_needles() -> None:
    x = np.random.default_rng(0).standard_normal((8, 5)).astype("float32")
    norm = nn.BatchNorm1d(5, momentum=0.3)
    y = norm(ndl.Tensor(x)).numpy()
    np.testing.assert_allclose(y, (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(norm.running_mean.numpy(), 0.3 * x.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(norm.running_var.numpy(), 0.7 + 0.3 * x.var(0), rtol=1e-4)  # biased
    norm.eval()
    mean, var = norm.running_mean.numpy(), norm.running_var.numpy()
    np.testing.assert_allclose(norm(ndl.Tensor(x)).numpy(), (x - mean) / np.sqrt(var + 1e-5), rtol=1e-4, atol=1e-5)
    z = np.random.default_rng(1).standard_normal((2, 5, 3, 4)).astype("float32")
    want = (z - z.mean((0, 2, 3), keepdims=True)) / np.sqrt(z.var((0, 2, 3), keepdims=True) + 1e-5)
    np.testing.assert_allclose(nn.BatchNorm2d(5)(ndl.Tensor(z)).numpy(), want, rtol=1e-4, atol=1e-5)
    want = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(nn.LayerNorm1d(5)(ndl.Tensor(x)).numpy(), want, rtol=1e-4, atol=1e-5)


def test_modules_are_found_in_lists_and_dictionaries() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = [nn.Linear(2, 3), (nn.Linear(3, 3), nn.Dropout(0.5))]
            self.named = {"a": nn.Linear(3, 1, bias=False), "p": nn.Parameter(np.ones(2))}

    model = Model()
    assert len(model.parameters()) == 6 and len(model._children()) == 4
    model.eval()
    assert not model.parts[1][1].training and model.train().parts[1][1].training
    np.random.seed(0)
    x = ndl.init.ones(3, 4)
    found = nn.Dropout(0.25)(x).numpy()
    np.random.seed(0)
    np.testing.assert_allclose(found, (np.random.rand(3, 4) <= 0.75) / 0.75, rtol=1e-6)


def test_modules_that_refer_to_each_other() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Residual(nn.Linear(3, 3)))
    model.modules[0].parent, model.table = model, [model, {"again": model.modules}]
    assert len(model.parameters()) == 4 and len(model._children()) == 3
    model.table.append(model.table)
    assert not model.eval().modules[1].fn.training and len(model.modules[0].parameters()) == 4


class ResidualBlock(nn.Module):
    """hw2's."""

    def __init__(self, dim: int, hidden_dim: int, norm: Any = nn.BatchNorm1d, drop_prob: float = 0.1) -> None:
        super().__init__()
        inner = nn.Sequential(
            nn.Linear(dim, hidden_dim),
            norm(dim=hidden_dim, device=ndl.cpu()),
            nn.ReLU(),
            nn.Dropout(drop_prob),
            nn.Linear(hidden_dim, dim),
            norm(dim=dim),
        )
        self.block = nn.Sequential(nn.Residual(inner), nn.ReLU())

    def forward(self, x: Any) -> Any:
        return self.block(x)


@pytest.mark.slow
def test_mlp_resnet_trains() -> None:
    np.random.seed(0)
    draw = np.random.default_rng(0)
    centres = 2 * draw.standard_normal((4, 12))
    y = draw.integers(0, 4, 128)
    x = (centres[y] + draw.standard_normal((128, 12))).astype("float32")
    loader = ndl.data.DataLoader(dataset=ndl.data.NDArrayDataset(x, y), batch_size=32, shuffle=True)
    for norm, make in (
        (nn.BatchNorm1d, lambda p: ndl.optim.Adam(p, lr=0.01, beta1=0.9, beta2=0.99, weight_decay=1e-4)),
        (nn.LayerNorm1d, lambda p: ndl.optim.SGD(p, lr=0.5, momentum=0.9, weight_decay=1e-4)),
    ):
        block = ResidualBlock(16, 8, norm)
        model = nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.ReLU(), block, nn.Linear(16, 4))
        opt, loss_fn = make(model.parameters()), nn.SoftmaxLoss()
        losses = []
        for _ in range(5):
            for batch in loader:
                opt.reset_grad()
                loss = loss_fn(model(batch[0]), batch[1])
                loss.backward()
                opt.step()
                losses.append(float(loss.numpy()))
        model.eval()
        right = model(ndl.Tensor(x)).numpy().argmax(1) == y
        assert losses[-1] < losses[0] / 2 and right.mean() > 0.9, (norm, losses, right.mean())


class LanguageModel(nn.Module):
    """hw4's, with whole numbers as tokens."""

    def __init__(self, embedding_size: int, output_size: int, hidden_size: int, device: Any = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(output_size, embedding_size, device=device, dtype="float32")
        self.model = nn.LSTM(embedding_size, hidden_size, num_layers=1, device=device, dtype="float32")
        self.linear = nn.Linear(hidden_size, output_size, device=device, dtype="float32")

    def forward(self, x: Any, h: Any = None) -> Any:
        seq_len, batch = x.shape
        out, h = self.model(self.embedding(x), h)
        return self.linear(out.reshape((seq_len * batch, out.shape[2]))), h


@pytest.mark.slow
def test_language_model_trains(folder: Path) -> None:
    np.random.seed(0)
    for name in ("train.txt", "test.txt"):
        (folder / name).write_text("the cat sat on the mat\nthe dog sat on the log\n" * 20)
    corpus = ndl.data.Corpus(str(folder), max_lines=40)
    assert len(corpus.dictionary) == 8
    data = ndl.data.batchify(corpus.train, batch_size=4, device=ndl.cpu(), dtype="float32")
    assert data.dtype == np.float32 and data.shape == (70, 4)
    x, y = ndl.data.get_batch(data, 0, 5, device=ndl.cpu(), dtype="int64")
    assert y.dtype == "int64" and x.shape == (5, 4) and y.shape == (20,)
    np.testing.assert_array_equal(y.numpy(), data[1:6].reshape(-1))
    data = ndl.data.batchify(corpus.train, 4)
    model = LanguageModel(8, len(corpus.dictionary), 16, device=ndl.cpu())
    opt, loss_fn = ndl.optim.SGD(model.parameters(), lr=4.0), nn.SoftmaxLoss()
    losses = []
    for _ in range(4):
        h = tuple(ndl.init.zeros(1, 4, 16) for _ in range(2))
        for i in range(0, data.shape[0] - 5, 5):
            x, y = ndl.data.get_batch(data, i, 5, device=ndl.cpu())
            opt.reset_grad()
            out, h = model(x, h)
            h = tuple(part.detach() for part in h)
            loss = loss_fn(out, y)
            loss.backward()
            norm = opt.clip_grad_norm(max_norm=0.25)
            after = np.sqrt(sum((p.grad.numpy() ** 2).sum() for p in model.parameters()))
            np.testing.assert_allclose(after, min(norm, 0.25), rtol=1e-3)
            opt.step()
            losses.append(float(loss.numpy()))
    assert losses[-1] < 0.6 * losses[0], losses
    assert all(p.grad is not None for p in model.parameters())


def test_conv_module_keeps_extents() -> None:
    f = nn.Conv(3, 4, 3, stride=2, bias=True, device=ndl.cpu())
    x = ndl.init.rand(2, 3, 9, 9, requires_grad=True)
    g = torch.nn.Conv2d(3, 4, 3, stride=2, padding=1)
    assert f.weight.shape == (3, 3, 3, 4)
    g.weight.data, g.bias.data = torch.tensor(f.weight.numpy().transpose(3, 2, 0, 1)), torch.tensor(f.bias.numpy())
    np.testing.assert_allclose(f(x).cached_data, g(torch.tensor(x.numpy())).detach().numpy(), rtol=1e-5, atol=1e-6)


def _idx(values: np.ndarray) -> bytes:
    return bytes((0, 0, 8, values.ndim)) + b"".join(n.to_bytes(4, "big") for n in values.shape) + values.tobytes()


def test_data_sets(folder: Path) -> None:
    draw = np.random.default_rng(0)
    pixels, labels = draw.integers(0, 256, (6, 5, 4), np.uint8), draw.integers(0, 10, 6).astype(np.uint8)
    images, numbers = folder / "images.gz", folder / "labels"
    images.write_bytes(gzip.compress(_idx(pixels)))
    numbers.write_bytes(_idx(labels))
    plain = ndl.data.MNISTDataset(images, numbers)
    np.random.seed(0)
    tforms = [ndl.data.RandomFlipHorizontal(p=1.0), ndl.data.RandomCrop(padding=1)]
    changed = ndl.data.MNISTDataset(images, numbers, transforms=tforms)[2][0]
    assert "images of shape (6,)" in error_of(DataError, ndl.data.MNISTDataset, numbers, numbers)
    records = folder / "test_batch.bin"
    records.write_bytes(draw.integers(0, 10, 3 * 3073, np.uint8).tobytes())
    cifar = ndl.data.CIFAR10Dataset(str(folder), train=False, p=0.5, transforms=[ndl.data.RandomFlipHorizontal(1)])
    unchanged = CIFAR10(folder, train=False)
    batch = {b"data": unchanged.pixels.reshape(3, -1), b"labels": [3, 1, 2]}
    (folder / "test_batch").write_bytes(pickle.dumps(batch, protocol=2))
    pickled = ndl.data.CIFAR10Dataset(folder, train=False)
    (folder / "test_batch").write_bytes(pickle.dumps({b"data": folder, b"labels": []}))
    assert "is not read" in error_of(DataError, ndl.data.CIFAR10Dataset, folder, train=False)
    (folder / "test_batch").write_bytes(b"no pickle")
    assert "no batch" in error_of(DataError, ndl.data.CIFAR10Dataset, folder, train=False)
    assert len(plain) == 6 and plain[1][0].shape == (5, 4, 1) and plain[1:3][1].tolist() == labels[1:3].tolist()
    np.testing.assert_allclose(plain[:][0][..., 0], pixels / np.float32(255), rtol=1e-6)
    np.random.seed(0)
    np.random.rand()
    down, right = np.random.randint(-1, 2, size=2)
    flipped = np.pad(plain[2][0][:, ::-1], ((1, 1), (1, 1), (0, 0)))
    np.testing.assert_array_equal(changed, flipped[1 + down : 6 + down, 1 + right : 5 + right])
    np.testing.assert_array_equal(cifar[1][0], unchanged[1][0][:, :, ::-1])
    nothing = ndl.data.DataLoader(ndl.data.NDArrayDataset(np.zeros((0, 2)), np.zeros(0)), 4, shuffle=True)
    assert len(nothing) == 0 and list(nothing) == []
    batch = next(iter(ndl.data.DataLoader(cifar, 2)))
    np.testing.assert_array_equal(batch[0].numpy(), unchanged[:2][0][..., ::-1])
    np.testing.assert_array_equal(pickled[:][0], unchanged[:][0])
    assert pickled[:][1].tolist() == [3, 1, 2] and pickled[1][0].shape == (3, 32, 32)
