"""Every operator through the registry: shapes, dtypes, gradients twice; then what single operators mean."""

from __future__ import annotations

from collections.abc import Iterator

import dlsys as dl
import numpy as np
import pytest
from cases import Case, is_float
from dlsys import autodiff as ad
from dlsys import ops
from dlsys.compiler import analyse
from dlsys.errors import DlsysError, DTypeError, GraphError
from dlsys.gradients import gradients
from dlsys.graph import FLOATS, INTEGERS, OPS, Node, Op, find_topo_sort
from helpers import CASES, COMPOSED, LOOPS, NO_CASES, OF_PASSES, error_of, evaluate
from hypothesis import given, settings
from hypothesis import strategies as st


def each_case(but: tuple[str, ...] = ()) -> Iterator[tuple[str, Case]]:
    return ((name, case) for name, cases in CASES.items() if name not in but for case in cases)


def each_composed() -> Iterator[tuple[str, Case]]:
    return ((name, case) for name, cases in COMPOSED.items() for case in cases)


def value(node: Node, feed: dict[Node, np.ndarray]) -> np.ndarray:
    return evaluate([node], feed)[0]


def test_every_operator_has_cases_of_its_own() -> None:
    assert set(CASES) == set(OPS) - set(NO_CASES)
    for name, case in each_case():
        assert case.build(*case.variables()).op is OPS[name], name


CHUNKS = 8  # that processes may share


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_parts_of_every_operator_agree(chunk: int) -> None:
    for number, (_, case) in enumerate([*each_case(but=OF_PASSES), *each_composed()]):
        if number % CHUNKS == chunk and not case.parameters:
            dl.check_operator(case.build, tuple(case.draw("float32")))


def test_loops_have_the_shapes_of_their_steps() -> None:
    for _, case in each_case(but=tuple(set(CASES) - set(LOOPS))):
        variables = case.variables("float64")
        node = case.build(*variables)
        feed = dict(zip(variables, case.draw(), strict=True))
        executor = ad.Executor([node])
        assert executor.infer_shape(feed)[node] == value(node, feed).shape
        assert executor.node_to_dtype_map[node] == str(value(node, feed).dtype)


def test_operators_of_passes_have_no_gradients_and_say_so() -> None:
    for name, case in each_case():
        if name in OF_PASSES:
            node = case.build(*case.variables())
            told = error_of(GraphError, node.op.gradient, node, node)
            assert "it has none" in told or "there is no gradient" in told


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.data())
def test_reductions_are_numpys(shape: list[int], data: st.DataObject) -> None:
    rank = len(shape)
    axes = data.draw(st.none() | st.integers(-rank, rank - 1) | st.sets(st.integers(0, rank - 1)).map(tuple))
    keepdims = data.draw(st.booleans())
    x = ad.Variable("x")
    array = np.random.default_rng(6).standard_normal(shape)
    output = ops.reducesum_op(x, axes, keepdims)
    np.testing.assert_allclose(value(output, {x: array}), array.sum(axis=axes, keepdims=keepdims))
    np.testing.assert_array_equal(value(gradients(output, [x])[0], {x: array}), np.ones(shape))


def test_relu_at_zero_and_the_closed_gate() -> None:
    x, g = ad.Variable("x"), ad.Variable("g")
    feed = {x: np.array([-1.0, 0.0, 2.0, np.nan, -3.0]), g: np.array([np.nan, np.inf, 5.0, 7.0, 1.0])}
    np.testing.assert_array_equal(value(ops.relu_gradient_op(x, g), feed), [0.0, 0.0, 5.0, 0.0, 0.0])
    np.testing.assert_array_equal(value(ops.relu_op(x), feed), [0.0, 0.0, 2.0, np.nan, 0.0])
    np.testing.assert_array_equal(value(gradients(ops.relu_op(x), [x])[0], feed), [0.0, 0.0, 1.0, 0.0, 0.0])


def test_cross_entropy_is_the_mean_and_survives_large_logits() -> None:
    rng = np.random.default_rng(8)
    logits, labels = ad.Variable("logits"), ad.Variable("labels")
    loss = ops.softmaxcrossentropy_op(logits, labels)
    z, y = rng.standard_normal((6, 4)), rng.uniform(size=(6, 4))  # rows of labels that do not sum to 1
    softmax = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    result = evaluate([loss, *gradients(loss, [logits, labels])], {logits: z, labels: y})
    np.testing.assert_allclose(result[0], [-(y * np.log(softmax)).sum(axis=1).mean()])
    np.testing.assert_allclose(result[1], (softmax * y.sum(axis=1, keepdims=True) - y) / 6)
    np.testing.assert_allclose(result[2], -np.log(softmax) / 6)

    extreme = np.array([[1e4, -1e4, 0.0], [-1e4, 1e4, 1e4]])
    one_hot = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    for dtype in Op.dtypes:
        feed = {logits: extreme.astype(dtype), labels: one_hot.astype(dtype)}
        found, grad = evaluate([loss, *gradients(loss, [logits])], feed)
        np.testing.assert_allclose(found, [(2e4 + np.log(2.0)) / 2], rtol=1e-6)
        np.testing.assert_allclose(grad, [[0.5, -0.5, 0.0], [0.0, 0.25, -0.25]], atol=1e-6)


def test_constants_take_the_dtype_of_the_node() -> None:
    x = ad.Variable("x")
    for constant in (2, 2.5, np.float64(2.5), np.float32(2.5), np.int64(2), np.array(2.5)):
        for node in (x + constant, constant * x, x / constant, constant / x, constant - x, x**constant):
            for dtype in Op.dtypes:
                assert value(node, {x: np.ones((2, 2), dtype)}).dtype == dtype
    with np.errstate(over="ignore"):
        assert np.isinf(value(x * 1e300, {x: np.ones(2, "float32")})).all()


def test_operators_of_numbers_alone_are_float32() -> None:
    two = ops.constant_op(2.0)
    nodes = [two + 1, ops.exp_op(two), two * two, ops.div_op(two, ops.constant_op(3.0))]
    for node, want in zip(nodes, (3, np.exp(np.float32(2)), 4, np.float32(2) / np.float32(3)), strict=True):
        for ctx in ("cpu", "numpy"):
            (found,) = ad.Executor([node], ctx).run({}, convert_to_numpy_ret_vals=True)
            assert found.dtype == "float32" and found.shape == () and abs(found - want) <= 1e-6


def test_full_is_of_its_own_dtype_and_rounded_to_it() -> None:
    for dtype in Op.dtypes:
        for number, expected in ((0.1, np.dtype(dtype).type(0.1)), (np.nan, np.nan), (-np.inf, -np.inf)):
            node = ops.full_op((2, 1), number, dtype)
            np.testing.assert_array_equal(value(node, {}), np.full((2, 1), expected, dtype))
            np.testing.assert_equal(node.attrs["value"], float(expected))
    assert value(ops.full_op(3, 1e300), {}).tolist() == [np.inf] * 3
    assert "negative" in error_of(GraphError, ops.full_op, (2, -1), 0.0)
    assert "real number" in error_of(GraphError, ops.full_op, (2,), "0")
    assert "dtype complex64 is not one of" in error_of(GraphError, ops.full_op, (2,), 0.0, "complex64")
    for dtype, number, expected in (("int64", -3, -3), ("bool", 2, True), ("uint32", 2**32 - 1, 2**32 - 1)):
        found = value(ops.full_op((2,), number, dtype), {})
        assert str(found.dtype) == dtype and found.tolist() == [expected] * 2


def test_power_gradient_at_zero() -> None:
    x = ad.Variable("x")
    for constant, expected in ((0, 0.0), (1, 1.0), (2, 0.0)):
        assert value(gradients(x**constant, [x])[0], {x: np.zeros(1)})[0] == expected


def _pointwise(dtype: str, values: np.ndarray) -> tuple[list[Node], dict[Node, np.ndarray]]:
    """A node of each case of each pointwise operator that takes the dtype, and feeds of these values, drawn."""
    random, nodes, feed = np.random.default_rng(5), [], {}
    for name, case in each_case(but=OF_PASSES):
        if OPS[name].kind != "elementwise" or dtype not in OPS[name].dtypes or case.parameters:
            continue
        variables = case.variables(dtype)
        try:
            node = case.build(*variables)
        except DlsysError:  # a number that the dtype does not hold
            continue
        if node in set(variables):
            continue
        if node.const_attr == 0:
            continue  # x + 0.0 is taken for x, and x * 0.0 for 0.0 or NaN
        arrays = case.draw("float32")
        taken = [i for i, array in enumerate(arrays) if is_float(array)]
        for i in taken:
            arrays[i] = random.choice(values, arrays[i].shape).astype(dtype)
        try:
            types = {x: (x.attrs["shape"], str(array.dtype)) for x, array in zip(variables, arrays, strict=True)}
            analyse(find_topo_sort([node]), [node], types)
        except DTypeError:
            continue
        if taken:
            nodes.append(node)
            feed.update(zip(variables, arrays, strict=True))
    return nodes, feed


@pytest.mark.slow
def test_zeros_keep_the_signs_that_numpy_gives_them() -> None:
    """But for -0.0 ** 0.5, 0.0 in C, which NumPy takes for a square root, and for the lesser of two zeros."""
    either = ("power", "clip")
    for dtype in FLOATS:
        nodes, feed = _pointwise(dtype, np.array([0.0, -0.0]))
        assert len(nodes) > 60
        for node, found, wanted in zip(nodes, ad.Executor(nodes).run(feed, True), evaluate(nodes, feed), strict=True):
            np.testing.assert_array_equal(found, wanted, err_msg=node.name)
            if is_float(wanted) and node.op.name not in either:
                known = ~np.isnan(wanted)
                np.testing.assert_array_equal(np.signbit(found)[known], np.signbit(wanted)[known], err_msg=node.name)


@pytest.mark.slow
def test_integers_at_their_limits_are_numpys() -> None:
    for dtype in INTEGERS:
        limits = np.iinfo(dtype)
        values = np.array([limits.min, limits.min + 1, 0, 1, 2, limits.max - 1, limits.max], dtype)
        nodes, feed = _pointwise(dtype, values)
        assert len(nodes) > 10
        for node, found, wanted in zip(nodes, ad.Executor(nodes).run(feed, True), evaluate(nodes, feed), strict=True):
            np.testing.assert_array_equal(found, wanted, err_msg=f"{node.name} of {dtype}")
