"""Denormal results are zero unless told otherwise; denormal arguments are read as they are; nobody else is affected."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import tvm_op
from dlsys.devices import flushes_denormal
from dlsys.errors import DTypeError, ShapeError
from dlsys.graph import Node
from helpers import denormals_kept, error_of

TINY = {"float32": (1e-30, 1e-11), "float64": (1e-300, 1e-20)}  # two numbers whose product is denormal
FLUSHES = dl.set_flush_denormal(True)


def _functions() -> list[tuple[str, Callable[[Node, Node], Node], Callable[..., np.ndarray]]]:
    """Pointwise functions, products, sums, rows: of two matrices of a number each; all products are denormal."""
    return [
        ("mul", lambda x, y: x * y, lambda a, b: a * b),
        ("matmul", lambda x, y: ad.matmul_op(x, y, trans_B=True), lambda a, b: a[:, :1] * b.T[:1] * a.shape[1]),
        ("sum", lambda x, y: ad.reducesum_op(x * y, 0), lambda a, b: (a * b)[0] * len(a)),
        ("gate", lambda x, y: ad.relu_op(x * y) * 2.0, lambda a, b: a * b * 2),
        ("softmax", lambda x, y: ad.softmax_op(x * 0.0) * y * x, lambda a, b: a * b / a.shape[1]),
    ]


def _results(dtype: str, shape: tuple[int, int]) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """The name of each function, its kernel's result and NumPy's."""
    x, y = ad.Variable("x"), ad.Variable("y")
    a, b = (np.full(shape, value, dtype) for value in TINY[dtype])
    functions = _functions()
    executor = ad.Executor([build(x, y) for _, build, _ in functions])
    found = executor.run({x: a, y: b}, convert_to_numpy_ret_vals=True)
    return [(name, value, of(a, b)) for (name, _, of), value in zip(functions, found, strict=True)]


@pytest.mark.slow
def test_denormal_results_are_zero_and_can_be_kept() -> None:
    """On one thread and on all, in every share of a loop, whoever ran before in a thread of the pool."""
    for dtype in TINY:
        for shape in ((3, 5), (600, 500)):
            for name, found, exact in _results(dtype, shape):
                assert 0 < exact.max() < np.finfo(dtype).tiny, name
                assert (found == 0).all() == FLUSHES, (name, dtype, shape)
            with denormals_kept():
                for name, found, exact in _results(dtype, shape):
                    np.testing.assert_allclose(found, exact, rtol=1e-3, err_msg=name)


@pytest.mark.slow
def test_denormal_arguments_are_read_as_they_are() -> None:
    for dtype in TINY:
        x, limits = ad.Variable("x"), np.finfo(dtype)
        values = np.array([limits.smallest_subnormal, limits.tiny / 2, -limits.tiny / 2, 0.0, 1.0], dtype)
        nodes = [
            *(ad.relu_op(x), ad.maximum_op(x, 0.0), x > 0.0, ad.cast_op(x, "float64"), ad.max_op(x)),
            *(ad.sort_op(x, 0)[0], ad.log_op(ad.abs_op(x)), x * (1.0 / float(limits.eps))),
        ]
        with np.errstate(divide="ignore"):
            wanted = [
                *(np.maximum(values, 0), np.maximum(values, 0), values > 0, values.astype("float64"), values.max()),
                *(np.sort(values), np.log(np.abs(values)), values / limits.eps),
            ]
        for node, found, exact in zip(nodes, ad.Executor(nodes).run({x: values}, True), wanted, strict=True):
            np.testing.assert_allclose(found, exact, rtol=1e-5, err_msg=node.name)


@pytest.mark.slow
def test_the_callers_own_arithmetic_stays_as_it_was() -> None:
    """Behind a kernel, one that raises, a run on all threads, and a module of Relax."""
    small = np.full(600, 1e-30, "float32")

    def check() -> None:
        assert (small * np.float32(1e-10) > 0).all()

    kernel = tvm_op.make_elemwise_mul((600,), "llvm", "llvm", "mul")
    kernel(small, small, np.empty_like(small))
    check()
    error_of(ShapeError, kernel, small, small, np.empty(3, "float32"))
    check()
    _results("float32", (600, 500))
    check()
    x = ad.Variable("x")
    compiled = dl.relax.compile(x * 1e-10, feed_shapes={x: (600,)})
    assert (np.asarray(compiled(small)[0]) == 0).all() == FLUSHES
    check()


@pytest.mark.slow
def test_the_setting_is_a_boolean_and_part_of_the_kernels_keys() -> None:
    assert flushes_denormal()
    assert "True or False, not 1" in error_of(DTypeError, dl.set_flush_denormal, 1)
    for target in ("llvm", {"kind": "llvm"}):
        make = partial(tvm_op.make_relu, (7,), target, "llvm", "relu")
        flushing = make()
        with denormals_kept():
            assert not flushes_denormal()
            keeping = make()
        assert flushing.function is make().function is not keeping.function
        assert ("ldmxcsr" in flushing.source("asm")) == FLUSHES and "ldmxcsr" not in keeping.source("asm")
    x = ad.Variable("x")
    (found,) = ad.Executor([x * 1e-10], ctx=dl.numpy()).run({x: np.full(3, 1e-30, "float32")})
    assert (found > 0).all()  # NumPy's own arithmetic
