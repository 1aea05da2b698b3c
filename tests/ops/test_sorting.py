"""Sorts: the order of elements along an axis, and the first of them."""

from __future__ import annotations

from pathlib import Path

import dlsys
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys.errors import GraphError
from helpers import error_of
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.slow
@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.data())
def test_sorts_are_numpys_for_all_values(data: st.DataObject) -> None:
    """Signed zeros and infinities, NaN of both signs, and many equal elements."""
    dtype = data.draw(st.sampled_from(["float32", "float64"]))
    shape = (data.draw(st.integers(1, 5)), data.draw(st.integers(1, 40)))
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1.5, -1.5, 1e-42, -1e-42], dtype)
    x = special[np.random.default_rng(data.draw(st.integers(0, 2**16))).integers(0, len(special), shape)]
    axis, largest = data.draw(st.integers(0, 1)), data.draw(st.booleans())
    count = data.draw(st.integers(0, shape[axis]))
    v = ad.Variable("x")
    nodes = [*ad.sort_op(v, axis, largest), ad.argsort_op(v, axis, largest), *ad.topk_op(v, count, axis, largest)]
    values, places, again, first, where = ad.Executor(nodes).run({v: x}, convert_to_numpy_ret_vals=True)
    nan = np.isnan(x)  # of two keys, the last counts first
    order = np.lexsort((np.where(nan, 0, -x if largest else x), nan ^ largest), axis)
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(again, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, axis))
    np.testing.assert_array_equal(where, np.take(order, range(count), axis))
    np.testing.assert_array_equal(first, np.take(values, range(count), axis))


ALL = ["float32", "float64", "int32", "int64", "int8", "uint8", "bool"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "shape", "axis"),
    [
        *((dtype, (2, 100), 1) for dtype in ALL),
        *((dtype, (2, 3000), 1) for dtype in ("float32", "float64", "int8")),  # in columns, whose lanes are compared
        ("float32", (37, 70), 1),  # more rows than lanes, and less than twice as many
        ("float32", (70, 32), 0),  # side by side in memory
    ],
)
def test_rows_of_every_dtype_are_sorted(dtype: str, shape: tuple[int, ...], axis: int) -> None:
    """Keys of each size, with and without places, side by side and alone."""
    rng = np.random.default_rng(0)
    extent = shape[axis]
    bits = rng.integers(0, 256, (shape[0], shape[1] * np.dtype(dtype).itemsize)).astype("uint8")
    x = bits % 2 == 0 if dtype == "bool" else bits.view(dtype)
    v = ad.Variable("x", dtype=dtype)
    nodes = [ad.argsort_op(v, axis), ad.topk_op(v, extent // 2, axis, largest=False)[1]]
    places, first = ad.Executor(nodes).run({v: x}, convert_to_numpy_ret_vals=True)
    alone = ad.Executor([ad.sort_op(v, axis)[0]])
    (values,) = alone.run({v: x}, convert_to_numpy_ret_vals=True)
    np.testing.assert_array_equal(places, np.argsort(x, axis, kind="stable"))
    np.testing.assert_array_equal(first, np.take(places, range(extent // 2), axis))
    np.testing.assert_array_equal(values, np.sort(x, axis))


@pytest.mark.slow
def test_long_rows_are_sorted_and_give_gradients() -> None:
    """Rows of 2^15 elements, in parts; the gradient of what is sorted goes back to its place."""
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((2, 1 << 15)).astype("float32"), rng.standard_normal((2, 1 << 15)).astype("float32")
    v, w = ad.Variable("x"), ad.Variable("w")
    (values, places), (first, where) = ad.sort_op(v), ad.topk_op(v, 100)
    gradient = ad.gradients(ad.mul_op(values, w), [v])[0]
    found = ad.Executor([values, places, first, where, gradient]).run({v: x, w: weight}, convert_to_numpy_ret_vals=True)
    order, down = np.argsort(x, -1, kind="stable"), np.argsort(-x, -1, kind="stable")[:, :100]
    want = np.empty_like(x)
    np.put_along_axis(want, order, weight, -1)
    for a, b in zip(found, [np.sort(x, -1), order, np.take_along_axis(x, down, -1), down, want], strict=True):
        np.testing.assert_array_equal(a, b)


def test_places_and_values_of_one_sort_agree() -> None:
    """-0 and 0 are equal, and stay as they stand where places are wanted; both are among the values."""
    x, v = np.array([0.0, 1.0, -0.0, np.nan, -0.0, -1.0], "float32"), ad.Variable("x")
    values, places = ad.Executor(list(ad.sort_op(v))).run({v: x}, convert_to_numpy_ret_vals=True)
    np.testing.assert_array_equal(places, [5, 0, 2, 4, 1, 3])
    np.testing.assert_array_equal(values, x[places])
    assert np.signbit(values[:5]).sum() == 3


def test_a_sort_in_a_larger_graph_runs_in_its_place() -> None:
    """Between kernels, of slices and of values in the arena, in a loop, and fed again."""
    x, v = np.random.default_rng(0).standard_normal((6, 40)).astype("float32"), ad.Variable("x", (6, 40), "float32")
    whole = ad.exp_op(v)
    nodes = [ad.sort_op(whole[1:4], -1, True)[0] * 2.0, ad.sort_op(ad.transpose_op(v, (1, 0)), 0)[0] + 1.0]
    nodes.append(ad.sum_op(ad.topk_op(whole, 3)[0] - whole[:, :3], 1))
    wants = [np.sort(np.exp(x)[1:4], 1)[:, ::-1] * 2, np.sort(x.T, 0) + 1]
    wants.append((np.sort(np.exp(x), 1)[:, :-4:-1] - np.exp(x)[:, :3]).sum(1))
    for ctx in ("cpu", "numpy"):
        executor = ad.Executor(nodes, ctx)
        for _ in range(2):
            for found, want in zip(executor.run({v: x}, convert_to_numpy_ret_vals=True), wants, strict=True):
                np.testing.assert_allclose(found, want, rtol=2e-5, atol=1e-6)
    start = dlsys.tensor(np.zeros(6, "float32"))
    last, steps = dlsys.scan(lambda h, row: ((h + row).sort()[0],) * 2, start, dlsys.tensor(x.T[:, :6].copy()))
    h = np.zeros(6, "float32")
    for row, step in zip(x.T[:, :6], steps.numpy(), strict=True):
        h = np.sort(h + row)
        np.testing.assert_allclose(step, h, rtol=1e-5)
    np.testing.assert_allclose(last.numpy(), h, rtol=1e-5)


def test_what_numpy_computes_is_in_no_library_and_no_relax_module(tmp_path: Path) -> None:
    v = ad.Variable("x", (2, 3), "float32")
    executor = ad.Executor([ad.sort_op(v)[0] + 1.0])
    told = "NumPy computes it on the host"
    assert told in error_of(GraphError, dlsys.export, executor, tmp_path / "sorted", {v: (2, 3)})
    assert told in error_of(GraphError, dlsys.relax.to_relax, [ad.sort_op(v)[0]], {v: (2, 3)})
    assert "on the host" in executor.script() and "on the host" in executor.source()
