"""needle's arrays, tensors and operators, as the programs of the course call them: `import dlsys.needle as ndl`."""

from __future__ import annotations

import gc
import operator
from collections.abc import Callable
from typing import Any

import dlsys.needle as ndl
import numpy as np
import pytest
from dlsys.autodiff import Executor
from dlsys.errors import DeviceError, GraphError, ShapeError
from dlsys.needle import backend_ndarray as nd
from dlsys.needle import nn, ops
from helpers import error_of, python

RNG = np.random.default_rng(0)


def drawn(*shape: int) -> np.ndarray:
    return RNG.uniform(0.5, 2, shape)


X, Y, CUBE, ROW, WIDE = drawn(3, 2), drawn(3, 2), drawn(2, 3, 2), drawn(2), drawn(2, 3)
FAR = np.array([[1e10, 1e9, -10.0]])
OPERATORS: list[tuple[str, tuple[Any, ...], dict[str, Any], Any]] = [  # name, arrays, settings, NumPy's value
    ("add", (X, Y), {}, X + Y),
    ("add_scalar", (X, 2), {}, X + 2),
    ("multiply", (X, Y), {}, X * Y),
    ("mul_scalar", (X, np.array([3.0])), {}, X * 3),
    ("divide", (X, Y), {}, X / Y),
    ("divide_scalar", (X,), {"scalar": np.array([1.7])}, X / 1.7),
    ("power", (X, ROW), {}, X**ROW),
    ("power_scalar", (X,), {"scalar": 3}, X**3),
    ("power_scalar", (X, -1.5), {}, X**-1.5),
    ("negate", (X,), {}, -X),
    ("matmul", (CUBE, WIDE), {}, CUBE @ WIDE),
    ("summation", (X,), {}, X.sum()),
    ("summation", (CUBE,), {"axes": (0, 1)}, CUBE.sum((0, 1))),
    ("summation", (CUBE,), {"axes": 1}, CUBE.sum(1)),
    ("logsumexp", (CUBE,), {"axes": (0, 2)}, np.log(np.exp(CUBE).sum((0, 2)))),
    ("logsoftmax", (X,), {}, X - np.log(np.exp(X).sum(1, keepdims=True))),
    ("log", (X,), {}, np.log(X)),
    ("exp", (X,), {}, np.exp(X)),
    ("relu", (X - 1,), {}, np.maximum(X - 1, 0)),
    ("tanh", (X,), {}, np.tanh(X)),
    ("transpose", (CUBE,), {}, CUBE.swapaxes(1, 2)),
    ("transpose", (CUBE,), {"axes": (0, 2)}, CUBE.swapaxes(0, 2)),
    ("reshape", (X,), {"shape": (2, 3)}, X.reshape(2, 3)),
    ("broadcast_to", (X[:, :1],), {"shape": (2, 3, 3)}, np.broadcast_to(X[:, :1], (2, 3, 3))),
    ("flip", (X,), {"axes": (0, 1)}, np.flip(X)),
    ("dilate", (X[:2],), {"axes": (0, 1), "dilation": 2}, None),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "arrays", "words", "wanted"), OPERATORS, ids=[name for name, *_ in OPERATORS])
def test_operators_have_needles_arguments_and_gradients_of_differences(
    name: str, arrays: tuple[Any, ...], words: dict[str, Any], wanted: Any
) -> None:
    """hw1's check: `cached_data` is written in place; gradients come from `op.gradient_as_tuple` and `backward`."""
    function, eps = getattr(ndl, name), 1e-4
    args = [ndl.Tensor(x, dtype="float64") if np.size(x) > 1 else x for x in arrays]
    out, tensors = function(*args, **words), [x for x in args if isinstance(x, ndl.Tensor)]
    if wanted is not None:
        np.testing.assert_allclose(getattr(ops, name)(*args, **words).numpy(), wanted, rtol=1e-12)
    assert isinstance(out, ndl.Tensor) and not out.is_leaf()
    direct = out.op.gradient_as_tuple(ndl.init.ones(*out.shape, dtype="float64"), out)
    out.sum().backward()
    for i, tensor in enumerate(tensors):
        cells = tensor.realize_cached_data().flat
        numerical = np.zeros(tensor.shape)
        for j in range(numerical.size):
            values = []
            for step in (eps, -2 * eps, eps):
                cells[j] += step
                values.append(float(function(*args, **words).numpy().sum()))
            numerical.flat[j] = (values[0] - values[1]) / (2 * eps)
        for found in (tensor.grad, *direct[i : i + 1]):
            np.testing.assert_allclose(found.cached_data, numerical, rtol=1e-5, atol=1e-6)


def test_methods_and_operators_of_several_tensors() -> None:
    z = RNG.standard_normal((2, 3, 4)).astype("float32")
    c = ndl.Tensor(z)
    for number, (node, value) in enumerate((
        (ops.stack([c, c], axis=1), np.stack([z, z], 1)),
        (ndl.undilate(ndl.dilate(c, axes=(1,), dilation=2), axes=(1,), dilation=2), z),
        (ndl.tuple_get_item(ops.split(c, axis=1), 2), z[:, 2]),
        (ops.MakeTensorTuple()(c, c * 2)[-1], z * 2),
        (c.transpose(), z.swapaxes(1, 2)),
        (c.transpose((0, 1)), z.swapaxes(0, 1)),
        (c.reshape((4, 6)), z.reshape(4, 6)),
        (c.broadcast_to((5, 2, 3, 4)), np.broadcast_to(z, (5, 2, 3, 4))),
        (c.sum(axes=(1,)), z.sum(1)),
        (c.sum((1, 2)), z.sum((1, 2))),
        (c - 2, z - 2),
        (2 - c, 2 - z),
        (ndl.logsumexp(ndl.Tensor(FAR), (1,)), [1e10]),
    )):  # fmt: skip
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
    assert pair.op.gradient_as_tuple(ops.make_tuple(b, a), pair) == (b, a)
    out = ops.stack([a, b, a], axis=1)
    found = out.op.gradient_as_tuple(ndl.Tensor(weights := RNG.standard_normal(out.shape)), out)  # hw4's, of float64
    assert isinstance(found, tuple) and len(found) == 3
    for i, gradient in enumerate(found):
        np.testing.assert_allclose(gradient.numpy(), weights[:, i], rtol=1e-6)
    apart = total.detach()
    assert isinstance(apart, ndl.TensorTuple) and all(item.is_leaf() for item in apart) and not apart.requires_grad
    const = ndl.TensorTuple.make_const(pair.realize_cached_data(), requires_grad=True)
    np.testing.assert_array_equal(const[1].numpy(), y)
    const[0].cached_data[0, 0] = 8  # the arrays' own memory, as needle's
    assert a.numpy()[0, 0] == 8 and const.cached_data[0].numpy()[0, 0] == 8
    assert "of the same length, not of 1" in error_of(GraphError, lambda: pair + ops.make_tuple(a))


@pytest.mark.slow
def test_arrays_of_float64_become_float32_as_with_needles_arrays() -> None:
    values = RNG.standard_normal((3, 4))
    for x in (values, values.tolist(), nd.array(values), values.astype("float16"), np.arange(3)):
        assert ndl.Tensor(x).dtype == "float32"
    assert nd.array(values).dtype == "float32" and nn.Linear(4, 2)(ndl.Tensor(values)).numpy().dtype == "float32"
    wide = ndl.Tensor(values, dtype="float64")
    assert wide.dtype == ndl.Tensor(wide).dtype == "float64"
    code = "import numpy as np, dlsys.needle as ndl\nfor x in (np.ones(2), np.arange(2)): print(ndl.Tensor(x).dtype)"
    for backend, wanted in (("np", "float64 float32"), ("nd", "float32 float32")):
        assert python("-c", code, NEEDLE_BACKEND=backend).stdout.split() == wanted.split(), backend


def test_numpy_gives_a_copy_that_may_be_written() -> None:
    x = ndl.Tensor(np.ones(3))
    for tensor in (x, x * 2):
        values = tensor.numpy()
        values += 1
        assert values[0] == tensor.numpy()[0] + 1


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
    assert "has a history" in error_of(GraphError, setattr, y, "cached_data", np.zeros(1))
    assert (x2 == x3) is False and (x2 != x3) is True and x3 in [x2, x3] and y not in [x2, x3]
    w = ndl.Tensor([1.0, 2.0])
    w.data = w.data - 0.5 * w.detach()
    assert w.tolist() == [0.5, 1.0] and repr(w) == "needle.Tensor([0.5 1. ])" and str(w) == "[0.5 1. ]"
    step = (w > 1.0).op.gradient_as_tuple(w, w > 1.0)
    assert step[0].numpy().tolist() == [0, 0]  # where there is none, zeros
    gc.collect()
    before = ndl.autograd.TENSOR_COUNTER
    kept = [ndl.Tensor([float(i)]) for i in range(50)]
    assert before + len(kept) == ndl.autograd.TENSOR_COUNTER


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
    draws: list[Callable[..., Any]] = [ndl.cpu().rand, np.random.rand, ndl.cpu().randn, np.random.randn]
    for mine, numpys in zip(draws[::2], draws[1::2], strict=True):
        np.random.seed(1)
        found = mine(2, 3)
        np.random.seed(1)
        np.testing.assert_array_equal(found, numpys(2, 3).astype("float32"))
    assert ndl.cpu().one_hot(3, [2]).tolist() == [[0, 0, 1]] and ndl.cpu().full((2,), 5.0).tolist() == [5, 5]
    assert ndl.cpu().empty((2, 3)).shape == (2, 3)


def test_arrays_have_needles_views_and_strides() -> None:
    values = RNG.standard_normal((4, 5, 6)).astype("float32")
    a = nd.array(values, device=nd.cpu())
    assert a.dtype == np.float32 and a.device == ndl.cpu() and type(a.numpy()) is np.ndarray
    assert a.strides == nd.NDArray.compact_strides((4, 5, 6)) == (30, 6, 1)
    views = [
        (a[1:3, ::2, -1:], values[1:3, ::2, -1:]),
        (a.permute((2, 0, 1)), values.transpose(2, 0, 1)),
        (a[:1].broadcast_to((3, 5, 6)), np.broadcast_to(values[:1], (3, 5, 6))),
        (a.reshape((20, 6)), values.reshape(20, 6)),
        (a.as_strided((5, 4), (6, 30)), values[:, :, 0].T),
    ]
    for view, want in views:
        np.testing.assert_array_equal(view.numpy(), want)
        assert view.strides == tuple(step // 4 for step in want.strides) and isinstance(view, nd.NDArray)
        assert np.shares_memory(view, a)
    assert not views[1][0].is_compact() and views[1][0].compact().is_compact() and a.compact() is a
    a[1:3, :, 0] = nd.array(np.ones((2, 5)))
    a[0, 0, :] = 7.0
    values[1:3, :, 0], values[0, 0, :] = 1, 7
    np.testing.assert_array_equal(a, values)
    np.testing.assert_array_equal(a.flip((1,)), np.flip(values, 1))
    np.testing.assert_array_equal(a.pad(((0, 1), (2, 0), (0, 0))), np.pad(values, ((0, 1), (2, 0), (0, 0))))
    assert "1 pairs for 3 axes" in error_of(GraphError, a.pad, ((0, 1),))
    positive = nd.array(np.abs(values) + 1)
    for name in ("exp", "log", "tanh"):
        for found in (getattr(positive, name)(), getattr(nd, name)(positive)):
            np.testing.assert_allclose(found, getattr(np, name)(np.abs(values) + 1), rtol=1e-5)
    np.testing.assert_array_equal(a.maximum(0.5), np.maximum(values, 0.5))
    for axis, keepdims in ((0, True), (2, False), (None, False)):
        np.testing.assert_allclose(a.sum(axis=axis, keepdims=keepdims), values.sum(axis, keepdims=keepdims), rtol=1e-4)
        np.testing.assert_array_equal(a.max(axis=axis, keepdims=keepdims), values.max(axis, keepdims=keepdims))
    for function in (operator.add, operator.mul, operator.sub, operator.truediv, operator.ge, operator.eq):
        np.testing.assert_array_equal(function(positive, a[:, :, ::-1]), function(positive.numpy(), values[:, :, ::-1]))
    np.testing.assert_allclose(a[0] @ a[0].permute((1, 0)), values[0] @ values[0].T, rtol=1e-4)
    assert nd.full((2,), 3.0).tolist() == [3, 3] and nd.empty((2, 3)).shape == (2, 3) and nd.NDArray([1]).dtype == "f4"
    assert nd.NDArray.make((2, 3), device=nd.cpu()).strides == (3, 1)
    assert nd.NDArray.make((2, 3), (1, 2), nd.cpu()).strides == (1, 2)
