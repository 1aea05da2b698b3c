"""The operations of the course's assignment of 2017: on a GPU where there is one, on the CPU elsewhere. `cuda_on_cpu`
runs them on the emulated device too."""

from __future__ import annotations

from collections.abc import Callable

import dlsys as dl
import numpy as np
from dlsys import gpu_op, ndarray
from helpers import error_of


def context() -> dl.Context:
    return ndarray.gpu(0) if dl.cuda.is_available() else ndarray.cpu(0)


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).uniform(-5, 5, shape).astype("float32")


def check(operation: Callable[..., None], wanted: np.ndarray, *given: object) -> None:
    """The operation's output, of the arguments given, on the context."""
    ctx = context()
    arguments = [ndarray.array(x, ctx) if isinstance(x, np.ndarray) else x for x in given]
    out = ndarray.empty(wanted.shape, ctx=ctx)
    operation(*arguments, out)
    assert out.ctx == ctx and ndarray.is_gpu_ctx(ctx) == (ctx.kind == "cuda")
    np.testing.assert_allclose(out.asnumpy(), wanted, rtol=1e-5, atol=1e-5)


def test_array_set() -> None:
    for ctx in {context(), ndarray.cpu(0)}:
        arr = ndarray.empty((500, 200), ctx=ctx)
        gpu_op.array_set(arr, 1.0)
        assert set(arr.asnumpy().flat) == {1.0}
        gpu_op.array_set(arr, -0.5)
        assert set(arr.asnumpy().flat) == {-0.5}
    arr[:] = drawn(500, 200)
    np.testing.assert_array_equal(arr.copyto(np.empty((500, 200), "float32")), drawn(500, 200))


def test_broadcast_to() -> None:
    x = drawn(20, 30)
    check(gpu_op.broadcast_to, np.broadcast_to(x, (13, 20, 30)), x)


def test_reduce_sum_axis_zero() -> None:
    x = drawn(50, 20, 10)
    check(gpu_op.reduce_sum_axis_zero, x.sum(0, dtype="float64").astype("float32"), x)


def test_matrix_elementwise_add() -> None:
    x, y = drawn(50, 20), drawn(50, 20) * 2
    check(gpu_op.matrix_elementwise_add, x + y, x, y)


def test_matrix_elementwise_add_by_const() -> None:
    x = drawn(200, 30)
    check(gpu_op.matrix_elementwise_add_by_const, x + np.float32(2.5), x, 2.5)


def test_matrix_elementwise_multiply() -> None:
    x, y = drawn(50, 20), drawn(50, 20) + 3
    check(gpu_op.matrix_elementwise_multiply, x * y, x, y)


def test_matrix_elementwise_multiply_by_const() -> None:
    x = drawn(200, 30)
    check(gpu_op.matrix_elementwise_multiply_by_const, x * np.float32(-0.3), x, -0.3)


def test_matrix_multiply() -> None:
    x, y = drawn(50, 70), drawn(70, 100) / 10
    wanted = (x.astype("float64") @ y).astype("float32")
    for turned_x in (False, True):
        for turned_y in (False, True):
            given = (x.T.copy() if turned_x else x, turned_x, y.T.copy() if turned_y else y, turned_y)
            check(gpu_op.matrix_multiply, wanted, *given)


def test_relu() -> None:
    x = drawn(200, 250)
    check(gpu_op.relu, np.maximum(x, 0), x)


def test_relu_gradient() -> None:
    x, grad = drawn(200, 250), drawn(200, 250) + 1
    check(gpu_op.relu_gradient, np.where(x > 0, grad, 0), x, grad)


def _softmax(x: np.ndarray) -> np.ndarray:
    shifted = np.exp(x.astype("float64") - x.max(1, keepdims=True))
    return shifted / shifted.sum(1, keepdims=True)


def test_softmax() -> None:
    x = drawn(400, 100)
    check(gpu_op.softmax, _softmax(x).astype("float32"), x)


def test_softmax_cross_entropy() -> None:
    logits, labels = drawn(400, 100), _softmax(drawn(400, 100) / 2)
    wanted = np.array([-(labels * np.log(_softmax(logits))).sum(1).mean()], "float32")
    check(gpu_op.softmax_cross_entropy, wanted, logits, labels.astype("float32"))


def test_mistakes_are_named() -> None:
    x, y = ndarray.empty((2, 3)), ndarray.empty((3, 2))
    assert "(2, 3)" in error_of(dl.ShapeError, gpu_op.matrix_elementwise_add, x, x, y)
    assert "dlsys.ndarray" in error_of(dl.DTypeError, gpu_op.relu, np.zeros(3, "float32"), x)
    assert "number" in error_of(dl.DTypeError, gpu_op.array_set, x, "1")
    assert [ndarray.is_gpu_ctx(ctx) for ctx in (ndarray.gpu(0), ndarray.cpu(0), None)] == [True, False, False]
