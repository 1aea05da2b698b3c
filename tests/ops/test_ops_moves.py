"""Slices, joins, integer indices: against NumPy and PyTorch, and what single operators mean."""

from __future__ import annotations

from collections.abc import Callable

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import ops
from dlsys.errors import GraphError, IndexRangeError, ShapeError
from dlsys.graph import INTEGERS, Node, Shape
from dlsys.ops.indexing import index_add, scatter_add
from helpers import error_of, evaluate, on_threads
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, basic_indices

FEW = settings(max_examples=3, deadline=None, derandomize=True)
MANY = settings(max_examples=150, deadline=None, derandomize=True)


def numbers(shape: Shape, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def both(nodes: list[Node], feed: dict[Node, np.ndarray]) -> list[np.ndarray]:
    """The values by kernels, which must be those of the NumPy rules."""
    found = ad.Executor(nodes, dl.cpu(0)).run(feed, convert_to_numpy_ret_vals=True)
    for a, b in zip(found, ad.Executor(nodes, "numpy").run(feed), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
    return list(found)


def check(pairs: list[tuple[Node, np.ndarray]], feed: dict[Node, np.ndarray]) -> None:
    """Every node's value is exactly the array, of its shape and dtype."""
    for found, (_, wanted) in zip(both([node for node, _ in pairs], feed), pairs, strict=True):
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.slow
@MANY
@given(st.data(), array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6))
def test_slices_are_numpys(data: st.DataObject, shape: Shape) -> None:
    key = data.draw(basic_indices(shape, allow_newaxis=True))
    x, array = ad.Variable("x"), numbers(shape, dtype="float64")
    wanted = np.asarray(array[key])
    node = x[key]
    (grad,) = ad.gradients(ops.mul_op(node, node), [x])
    found, slope = evaluate([node, grad], {x: array})
    np.testing.assert_array_equal(found, wanted)
    expected = np.zeros(shape)
    expected[key] = 2 * wanted
    np.testing.assert_array_equal(slope, expected)


@FEW
@given(st.data(), array_shapes(min_dims=2, max_dims=4, min_side=1, max_side=9))
def test_kernels_of_slices_are_numpys(data: st.DataObject, shape: Shape) -> None:
    keys = [data.draw(basic_indices(shape, allow_newaxis=True)) for _ in range(6)]
    x, array = ad.Variable("x", shape, "float32"), numbers(shape)
    pairs = []
    for key in keys:
        zeros = np.zeros_like(array)
        zeros[key] = array[key]
        node = ops.slice_op(x, key)
        pairs += [(node, np.asarray(array[key])), (ad.gradients(ops.mul_op(node, node) * 0.5, [x])[0], zeros)]
    check(pairs, {x: array})


@pytest.mark.slow
def test_values_of_every_dtype_are_moved() -> None:
    for dtype in ("int32", "int64", "uint32", "bool"):
        array = np.arange(-3, 9).astype(dtype).reshape(3, 4) if dtype != "bool" else np.eye(3, 4, dtype=bool)
        x, i = ad.Variable("x"), ad.Variable("i")
        indices = np.array([2, -1, 0, -3])
        check(
            [
                (x[::-1, 1:3], array[::-1, 1:3]),
                (ops.flip_op(x, 1), array[:, ::-1]),
                (ops.concatenate_op([x, x], 1), np.concatenate([array, array], 1)),
                (ops.stack_op([x, x], -1), np.stack([array, array], -1)),
                (ops.pad_op(x, ((1, 0), (0, 2)), 1), np.pad(array, ((1, 0), (0, 2)), constant_values=1)),
                (ops.take_op(x, i), array[[2, 2, 0, 0]]),
                (ops.swapaxes_op(x, 0, -1), array.T),
            ],
            {x: array, i: indices},
        )


@pytest.mark.slow
def test_indices_of_every_integer_dtype_at_its_limits() -> None:
    """Also where there are more classes, or places along an axis, than the dtype holds."""
    values = np.arange(300.0)
    for dtype in INTEGERS:
        limits = np.iinfo(dtype)
        known = [n for n in (0, 1, 15, 16, 44, 255, 256, 271, 299) if n <= limits.max]
        some = np.array([*known, limits.max, limits.max - 1, limits.min], dtype)
        x, i, zero = ad.Variable("x"), ad.Variable("i"), ad.Variable("zero")
        of_run = i + zero  # what is fed is looked at
        hot, few = ops.one_hot_op(of_run, 300), ops.one_hot_op(of_run, 272, "int32")
        along = ops.take_along_axis_op(x, of_run, 0)
        found = both([hot, few, ops.take_op(x, of_run), along], {x: values, i: some, zero: np.zeros_like(some)})
        places = some.astype(np.int64)
        places = np.where((places < 0) & (places >= -300), places + 300, places)  # an int8 counts from the end
        for hots, classes in zip(found, (300, 272), strict=False):
            np.testing.assert_array_equal(hots, some.astype(np.int64)[:, None] == np.arange(classes), err_msg=dtype)
        for taken in found[2:]:  # what is out of range is clamped into it
            np.testing.assert_array_equal(taken, np.clip(places, 0, 299), err_msg=dtype)


def test_items_of_a_node() -> None:
    x, i = ad.Variable("x"), ad.Variable("i")
    array, indices = numbers((5, 4)), np.array([[0, -1], [3, 3]], "int32")
    check(
        [
            (x[2], array[2]),
            (x[np.int64(-1), np.array(1)], np.asarray(array[-1, 1])),
            (x[i], array[indices]),
            (x[indices.astype("uint8") % 5], array[indices.astype("uint8") % 5]),
            (x[[1, -2]], array[[1, -2]]),
            (x[:, i], array[:, indices]),
            (x[..., [1, 2]], array[..., [1, 2]]),
            (x[..., None, ::2], array[..., None, ::2]),
        ],
        {x: array, i: indices},
    )
    for walk in (list, tuple, lambda node: 1 in node):  # would go on for ever: no index fails before the run
        try:
            walk(x)
        except (GraphError, TypeError, ShapeError):
            continue
        raise AssertionError("a variable without a shape was walked through")


@FEW
@given(st.data(), array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5))
def test_joins_and_splits_are_numpys(data: st.DataObject, shape: Shape) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    extents = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    at = axis % len(shape)
    arrays = [numbers((*shape[:at], extent, *shape[at + 1 :]), i) for i, extent in enumerate(extents)]
    limits = data.draw(st.lists(st.integers(-2, sum(extents) + 1), max_size=3))
    nodes = [ad.Variable(f"x{i}") for i in range(len(arrays))]
    joined, wanted = ops.concatenate_op(nodes, axis), np.concatenate(arrays, axis)
    pairs = [(joined, wanted)]
    pairs += zip(ops.split_op(joined, limits, axis), np.split(wanted, limits, axis), strict=True)
    pairs += zip(
        ops.split_op(ops.stack_op([joined] * 4, axis), 2, axis),
        [np.stack([wanted] * 2, axis)] * 2,
        strict=True,
    )
    weights = ad.Variable("w")
    feed = {**dict(zip(nodes, arrays, strict=True)), weights: numbers(wanted.shape, 9)}
    grads = ad.gradients(ops.mul_op(joined, weights), nodes)
    parts = np.split(feed[weights], np.cumsum(extents)[:-1], axis)
    check([*pairs, *zip(grads, parts, strict=True)], feed)


@pytest.mark.slow
def test_indices_out_of_range_that_a_run_computes_are_clamped() -> None:
    x, i, g, zero = (ad.Variable(name) for name in ("x", "i", "g", "zero"))
    computed = ops.add_op(i, zero)
    extremes = {
        "int32": [-(2**31), -6, -5, -1, 4, 5, 2**31 - 1],
        "int64": [-(2**63), -6, -5, -1, 4, 5, 2**63 - 1],
        "uint32": [0, 0, 0, 4, 4, 5, 2**32 - 1],
    }
    places = [0, 0, 0, 4, 4, 4, 4]
    array = np.arange(10, dtype="float32").reshape(5, 2)
    for dtype, values in extremes.items():
        sums = np.zeros((5, 2), "float32")
        np.add.at(sums, places, np.ones((7, 2)))
        hot = (np.arange(5) == np.array(values)[:, None]).astype("float32")
        feed = {x: array, i: np.array(values, dtype), g: np.ones((7, 2), "float32"), zero: np.zeros(7, dtype)}
        scatter = index_add(g, computed, shape=(5, 2), axis=0, from_start=False)
        along = ops.broadcast_shape_op(ops.reshape_op(computed, (7, 1)), (7, 2))
        apart = scatter_add(g, along, shape=(5, 2), axis=0)
        inside = ops.in_range_op(computed, 5)
        check(
            [
                (ops.take_op(x, computed), array[places]),
                (ops.take_along_axis_op(x, along, 0), array[places]),
                (scatter, sums),
                (apart, sums),
                (ops.one_hot_op(computed, 5), hot),
                (inside, np.array(places)),
            ],
            feed,
        )


# Of what reads indices of 5 slices or classes: its node of x (5, 2) and the indices (4,), the least and the largest.
INDEXED: dict[str, tuple[Callable[[Node, Node], Node], int, int]] = {
    "take": (ops.take_op, -5, 4),
    "embedding": (ops.embedding_op, 0, 4),
    "its gradient": (lambda x, i: ad.gradients(ops.embedding_op(x, i), [x])[0], 0, 4),
    "take_along_axis": (lambda x, i: ops.take_along_axis_op(x[:, :1], ops.reshape_op(i, (4, 1)), 0), -5, 4),
    "scatter_add": (lambda x, i: ops.scatter_add_op(x[:, 0], i, ops.full_op((4,), 1.0), 0), -5, 4),
    "one_hot": (lambda x, i: ops.one_hot_op(i, 5), 0, 4),
    "cross_entropy": (lambda x, i: ops.cross_entropy_op(ops.stack_op([x[:, 0]] * 4), i, ignore_index=-7), 0, 4),
    "several axes": (lambda x, i: x[i, np.arange(4) % 2], -5, 4),
    "of others": (lambda x, i: ops.take_op(x, ops.reshape_op(ops.cast_op(i, "int64"), (2, 2)) - 3), -2, 7),
    "a part": (lambda x, i: ops.take_op(x, i[:3]), -5, 4),
}


@pytest.mark.slow
def test_fed_indices_out_of_range_are_errors() -> None:
    for name, (make, least, most) in INDEXED.items():
        for dtype in ("int64", "int32", "uint32", "uint8"):
            x, i = ad.Variable("x", (5, 2), "float32"), ad.Variable("fed", (4,), dtype)
            if name == "several axes" and dtype == "uint8":
                continue  # a mask
            for ctx in ("cpu", "numpy"):
                executor = ad.Executor([make(x, i)], ctx)
                array = np.ones((5, 2), "float32")

                def run(*indices: int, own: bool = False) -> None:
                    given = np.array(indices, dtype)  # noqa: B023 - called here
                    feed = {x: array, i: given}  # noqa: B023
                    executor.run({node: dl.array(value) for node, value in feed.items()} if own else feed)  # noqa: B023

                lowest = max(least, 0) if dtype[0] == "u" else least
                for own in (False, True, True):  # the second time by the shorter way
                    run(lowest, most, lowest, most, own=own)
                    beyond = [most + 1] if dtype[0] == "u" else [most + 1, least - 1]
                    for wrong in beyond:
                        told = error_of(IndexRangeError, run, wrong, most, most, most, own=own)
                        assert "is out of range for" in told and "test_ops_moves.py" in told, (name, told)
                    if name == "a part":
                        run(most, most, most, most + 1, own=own)  # which is not read
                    if name == "cross_entropy" and dtype[0] == "i":
                        run(-7, most, most, most, own=own)


def test_sums_at_equal_indices_are_in_order_on_any_number_of_threads() -> None:
    rng = np.random.default_rng(5)
    grad, indices = rng.standard_normal((999, 300)).astype("float32"), rng.integers(0, 7, 999)
    g, i = (ad.Variable(name) for name in "gi")
    feed = {g: grad, i: indices}
    wanted = np.zeros((7, 300), "float32")
    np.add.at(wanted, indices, grad)
    executor = ad.Executor([index_add(g, i, shape=(7, 300), axis=0, from_start=False)], dl.cpu(0))
    for result in on_each_number_of_threads(executor, feed):
        np.testing.assert_array_equal(result, wanted)


def on_each_number_of_threads(executor: ad.Executor, feed: dict[Node, np.ndarray]) -> list[np.ndarray]:
    """The results with 1, 2 and all threads, one run after another."""
    found = []
    for count in sorted({1, min(2, dl.get_num_threads()), dl.get_num_threads()}):
        with on_threads(count):
            found += executor.run(feed, convert_to_numpy_ret_vals=True)
    return found
