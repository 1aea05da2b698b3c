"""Kernels with conditions, casts and maxima in them: what is fused, and their values."""

from __future__ import annotations

from typing import Any

import dlsys
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import ops
from dlsys.compiler import PASSES, Group, fuse, run_passes
from dlsys.graph import Node, Shape
from helpers import evaluate, typed_graph


def groups(outputs: list[Node], fed: dict[Node, tuple[Shape, str]]) -> tuple[list[Group], Any]:
    graph = run_passes(typed_graph(outputs, [], fed), tuple(PASSES))
    return fuse(graph), graph


def below(outputs: list[Node]) -> set[Node]:
    return set(ad.find_topo_sort(outputs))


def test_a_product_takes_a_condition_into_its_epilogue() -> None:
    x, w, m = (ad.Variable(name) for name in "xwm")
    product = x @ w
    fed = {x: ((12, 20), "float32"), w: ((20, 33), "float32"), m: ((12, 33), "float32")}
    output = ad.where_op(ad.logical_and_op(product > 0, m > 0.5), product, product * 0.1)
    (group,), _ = groups([output], fed)
    assert group.kind == "contraction"
    random = np.random.default_rng(3)
    arrays = {node: random.uniform(-1, 1, shape).astype(dtype) for node, (shape, dtype) in fed.items()}
    (value,) = ad.Executor([output]).run(arrays, convert_to_numpy_ret_vals=True)
    np.testing.assert_allclose(value, evaluate([output], arrays)[0], rtol=1e-5, atol=1e-5)


def test_no_output_lies_on_an_input_of_another_dtype() -> None:
    x = ad.Variable("x", dtype="int32")
    output = ad.cast_op(x, "float32")
    (group,), _ = groups([output], {x: ((8,), "int32")})
    assert group.overwritable(group.outputs[0]) == []
    c, y = ad.Variable("c", (8,), "bool"), ad.Variable("y", (8,), "float32")
    chosen = ad.where_op(c, y, y * 2.0)
    (group,), _ = groups([chosen], {c: ((8,), "bool"), y: ((8,), "float32")})
    assert group.overwritable(group.outputs[0]) == [y.node]


def test_a_condition_on_a_product_of_a_column_and_a_row() -> None:
    """The gate of a leaky ReLU before a layer of one output: TVM lowers no arrays of booleans within vectors."""
    h, g, v = (ad.Variable(name) for name in "hgv")
    product = ad.matmul_op(g, v)
    outputs = [ad.where_op(h > 0, product, product * 0.2)]
    random = np.random.default_rng(0)
    feed = {h: random.standard_normal((16, 8)), g: random.standard_normal((16, 1)), v: random.standard_normal((1, 8))}
    feed = {node: value.astype("float32") for node, value in feed.items()}
    (want,), (got,) = evaluate(outputs, feed), ad.Executor(outputs).run(feed)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)


def test_conditions_are_values_of_rows() -> None:
    """As masks that are fed, and as comparisons that are needed again behind the row's sums."""
    random = np.random.default_rng(0)
    for rows, columns in ((64, 257), (700, 10), (600, 130)):
        x, a, mask = ad.Variable("x"), ad.Variable("a"), ad.Variable("mask", dtype="bool")
        shares = [ad.softmax_op(ad.where_op(chosen, a, -1e9)) for chosen in (mask, x > 0)]
        outputs = [ad.where_op(mask, shares[0], 0.0), ad.where_op(x > 0, shares[1], 0.0)]
        outputs += ad.gradients(shares[0] * x, [a])
        feed = {node: random.standard_normal((rows, columns)).astype("float32") for node in (x, a)}
        feed[mask] = random.random((rows, columns)) < 0.3
        for output in outputs:
            executor = ad.Executor([output])
            (found,) = executor.run({node: feed[node] for node in below([output]) if node in feed}, True)
            assert len(executor.latest_plan().groups) == 1
            np.testing.assert_allclose(found, evaluate([output], feed)[0], rtol=3e-5, atol=1e-6)


def test_differences_are_rounded_as_written() -> None:
    """(x + y) - x is not y where x + y is rounded, and NaN where x is infinite; so is inf - min(inf)."""
    values = np.array([1e20, np.inf, -np.inf, np.nan, 1.0, 0.0, -3e38], "float32")
    for x in (values, values[:1], values[1]):
        a, b = ad.Variable("a"), ad.Variable("b")
        above = a - ad.min_op(a)
        outputs = [(a + b) - a, (b + a) - a, a - (a + b), b - (a - (-b)), above / 3.0 / above, a - a]
        feed = {a: x, b: np.full_like(x, 2.5)}
        for output in outputs:  # each with its own kernel
            (found,) = ad.Executor([output]).run(feed, convert_to_numpy_ret_vals=True)
            with np.errstate(all="ignore"):
                np.testing.assert_array_equal(found, evaluate([output], feed)[0])


@pytest.mark.slow
def test_chains_of_formulas_that_name_their_inputs_twice_are_one_kernel() -> None:
    """Each value has a register: written out where they are read, ten of these would be compiled for hours."""
    x, z, w = ad.Variable("x"), ad.Variable("z"), ad.Variable("w")
    rng = np.random.default_rng(0)
    feed = {v: rng.standard_normal((7, 7)).astype("float32") for v in (x, z, w)}
    steps = (
        lambda y: ad.relu_op(y + z),
        lambda y: ops.clip_op(y + z, -1.0, 1.0),
        lambda y: ops.maximum_op(y + 1.0, z * y),
        lambda y: ops.minimum_op(y - 1.0, z),
        ad.tanh_op,
        ad.gelu_op,
        lambda y: y * y * 0.5 - y,
        lambda y: ad.where_op(z > 0, y * y, y - z),
    )
    around = (
        lambda y, step: step(y),
        lambda y, step: step(y @ w),
        lambda y, step: ad.sum_op(step(y), 0),
        lambda y, step: ad.softmax_op(step(y)),
    )

    def chain(y: Any, step: Any) -> Any:
        for _ in range(10):
            y = step(y)
        return y

    def mixed(c: Any) -> Any:
        return ad.logical_or_op(ad.logical_and_op(c, x > 0), ad.logical_and_op(ad.logical_not_op(c), z > 0))

    chains = [kind(x, lambda y, step=step: chain(y, step)) for step in steps for kind in around]
    for y in (*chains, ad.where_op(chain(x > z, mixed), x, z)):
        executor = ad.Executor([y])
        (found,) = executor.run(feed, True)
        (wanted,) = ad.Executor([y], ctx="numpy").run(feed)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
        assert executor.groups().count("\n") < 4, executor.groups()


def test_zeros_that_are_nodes_keep_nan_and_infinity() -> None:
    """TVM's simplifier makes 0 * x and 0 / x zero where a kernel has both."""
    x, s = ad.Variable("x", (4, 4)), (4, 4)
    feed = {x: np.array([[np.nan, np.inf, -1.0, 1.0]] * 4, "float32")}
    zeros = ad.full_op(s, 0.0), ad.full_op(s, -0.0), ad.zeroslike_op(x), ad.broadcast_shape_op(ad.full_op((), 0.0), s)
    for zero in zeros:
        nodes = [x * zero, zero / x, zero * x + x, ad.matmul_op(x, zero), ad.matmul_op(zero, x)]
        for node in nodes:
            (wanted,) = ad.Executor([node], ctx=dlsys.numpy()).run(feed, True)
            for passes in ((), ("fuse",), None):
                (found,) = ad.Executor([node], passes=passes).run(feed, True)
                np.testing.assert_array_equal(found, wanted, err_msg=f"{node} {passes}")
