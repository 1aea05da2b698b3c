"""What runs a plan: the table of its calls, kernels that several shapes share, kernels that check nothing."""

from __future__ import annotations

import os
from dataclasses import replace
from unittest import mock

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import tvm_op
from dlsys.errors import DeviceError, GraphError, ShapeError
from dlsys.kernels import Call, Place, Repeat, Runner, disk
from helpers import error_of

RNG = np.random.default_rng(5)


def values(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def symbols(executor: ad.Executor) -> set[str]:
    """The different kernels of the latest plan."""
    return {kernel.symbol for kernel in executor.node_to_compiled_func.values()}


@pytest.mark.slow
def test_slices_that_begin_elsewhere() -> None:
    x, w = ad.Variable("x"), ad.Parameter(values(4, 6, 5))
    keys = [
        *((slice(None), i) for i in range(6)),
        *((Ellipsis, i) for i in (0, 4, -2)),
        *((slice(None), slice(i, i + 2)) for i in (0, 3, 4)),
        *((slice(i, None, 2), slice(1, None, 3)) for i in (0, 1)),
        *((slice(i, i + 2), None, 1, slice(None, 3)) for i in (0, 1, 2)),
        *((2, i, 3) for i in (0, 5)),
        *((slice(None), slice(None, None, -1)), (slice(None), 2, slice(4, 1, -2))),
    ]
    sources = [x, w, ad.exp_op(x)]  # fed, a parameter, in the arena
    nodes = [ad.slice_op(source, key) for source in sources for key in keys]
    executor = ad.Executor(nodes, passes=["views"])
    fed = values(4, 6, 5)
    arrays = [fed, w.value, np.exp(fed)]
    want = [array[key] for array in arrays for key in keys]
    for _ in range(2):
        for found, expected in zip(executor.run({x: fed}, True), want, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_pointwise_kernels_take_arrays_of_all_shapes() -> None:
    a, b, c = (ad.Variable(name) for name in "abc")
    fed = {a: values(3, 4, 5), b: values(60, 1), c: values(12, 5)}
    executor = ad.Executor([ad.tanh_op(x * 0.5) + 1.0 for x in fed])
    for value, array in zip(executor.run(fed, True), fed.values(), strict=True):
        np.testing.assert_allclose(value, np.tanh(array * 0.5) + 1, rtol=1e-5)
    (kernel,) = set(executor.node_to_compiled_func.values())
    assert kernel.inputs == (((60,), "float32"),) and not kernel.checked and kernel.flat
    out = np.zeros((3, 4, 5), "float32")
    kernel(fed[a], out)
    np.testing.assert_allclose(out, np.tanh(fed[a] * 0.5) + 1, rtol=1e-5)
    flat = np.zeros(60, "float32")
    kernel(fed[b], flat)
    np.testing.assert_allclose(flat, np.tanh(fed[b][:, 0] * 0.5) + 1, rtol=1e-5)
    assert "must have shape (60,)" in error_of(ShapeError, kernel, values(59), flat)
    scalar = ad.Variable("s", (1, 1))
    mixed = ad.Executor([ad.where_op(a > scalar, a * scalar, 2.0) + ad.oneslike_op(a)])
    (found,) = mixed.run({a: fed[a], scalar: np.float32([[0.5]])}, True)
    np.testing.assert_allclose(found, np.where(fed[a] > 0.5, fed[a] * np.float32(0.5), 2) + 1, rtol=1e-6)


@pytest.mark.slow
def test_without_a_cache_kernels_run_the_same() -> None:
    with mock.patch.dict(os.environ, {disk.VARIABLE: "0"}):
        x = ad.Variable("x")
        y = ad.exp_op(x) * 3.0
        executor = ad.Executor([y, y[:, 1], y.T @ y])
        fed = values(7, 3)
        found = executor.run({x: fed}, True)
        want = np.exp(fed) * 3
        for value, expected in zip(found, [want, want[:, 1], want.T @ want], strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-5)
        assert executor.profile({x: fed}, runs=1).rows


def test_a_plan_of_many_calls_is_one_list() -> None:
    x, w = ad.Variable("x"), ad.Parameter(np.eye(4, dtype="float32") * np.float32(0.99))
    node = x
    for _ in range(450):
        node = ad.tanh_op(node @ w)
    executor = ad.Executor([node])
    fed = values(3, 4)
    want = fed
    for _ in range(450):
        want = np.tanh(want * np.float32(0.99))
    (found,) = executor.run({x: fed}, True)
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-6)
    allocated = dl.devices.allocation_count()
    executor.run({x: fed})
    assert dl.devices.allocation_count() == allocated and len(symbols(executor)) <= 3


def test_a_parameter_of_another_type_is_refused() -> None:
    w, x = ad.Parameter(values(3, 2)), ad.Variable("x")
    executor = ad.Executor([x * w])
    feed = {x: dl.array(values(3, 2))}
    for _ in range(2):
        executor.run(feed)
    w.hold(dl.array(values(2, 2)))
    for _ in range(2):  # what was bound before is not run with
        assert "make a new Executor" in error_of(GraphError, executor.run, feed)
    w.hold(dl.array(values(3, 2).astype("float64")))
    assert "float64" in error_of(GraphError, executor.run, {x: values(3, 2)})
    mine = values(3, 2)
    w.hold(dl.array(mine))
    fed = values(3, 2)
    np.testing.assert_array_equal(executor.run({x: fed}, True)[0], fed * mine)


def test_a_call_that_fails_is_an_error() -> None:
    kernel = tvm_op.make_relu((4,), "llvm", "llvm", "relu")
    arena = dl.devices.zeros((64,), "float32", dl.cpu()).tensor
    for dtype, fails in (("float32", False), ("float64", True)):
        places = (Place(0, 0, (4,), "float32"), Place(None, 64, (4,), dtype))
        after = (places[0], Place(None, 128, (4,), "float32"))  # as an update of parameters would be
        moved = tuple(replace(place, moves=((16, False),)) for place in places)
        first = [Call(kernel.symbol, places), Repeat((Call(kernel.symbol, moved),), 2)]
        for one in first:  # alone, and in a loop
            runner = Runner([one, Call(kernel.symbol, after)], [kernel.function] * 2, 1, arena)
            given = dl.array(np.float32([-1, 2, -3, 4, 5, -6, 7, -8]))
            runner.given[0] = given.tensor.data_ptr()
            memory = np.array(np.from_dlpack(arena))
            if fails:
                assert "one of 2" in error_of(DeviceError, runner.run)
                np.testing.assert_array_equal(np.from_dlpack(arena), memory)
            else:
                runner.run()
                second = [5, 0, 7, 0] if one is first[1] else [0] * 4
                assert np.from_dlpack(arena)[16:24].tolist() == [0, 2, 0, 4, *second]
                assert np.from_dlpack(arena)[32:36].tolist() == [0, 2, 0, 4]
                np.from_dlpack(arena)[:] = 0
