"""Graphs without types: what is noted and called again computes what graphs of declared variables compute."""

from __future__ import annotations

import pickle

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys.errors import DTypeError, FeedError, GraphError, ShapeError
from dlsys.graph import FLOATS, Node
from helpers import CASES, error_of


def by_numpy(nodes: list[Node], feed: dict[Node, np.ndarray]) -> list[np.ndarray]:
    return ad.Executor(nodes, ctx=dl.numpy()).run(feed, True)


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_case_without_types_is_the_case_with_types(dtype: str) -> None:
    count = 0
    for cases in CASES.values():
        for case in cases:
            declared, arrays = case.variables(dtype), case.draw(dtype)
            if case.parameters:
                continue
            node = case.build(*declared)
            bare = [ad.Variable(x.name) for x in declared]
            other = case.build(*bare)
            if any(node is x for x in declared):
                continue
            wanted, found = [node], [other]
            wrt = [i for i, x in enumerate(declared) if x.dtype in FLOATS]
            if node.value_type is not None and node.op.kind != "scan" and node.dtype in FLOATS and wrt:
                try:
                    wanted += ad.gradients(node, [declared[i] for i in wrt])
                except GraphError:  # of operators that passes make
                    wrt = []
                found += ad.gradients(other, [bare[i] for i in wrt]) if wrt else []
            pairs = zip(
                by_numpy(wanted, dict(zip(declared, arrays, strict=True))),
                by_numpy(found, dict(zip(bare, arrays, strict=True))),
                strict=True,
            )
            for a, b in pairs:
                np.testing.assert_array_equal(a, b, err_msg=other.name)
            count += 1
    assert count > 300


def test_two_signatures_second_derivatives_and_inner_feeds() -> None:
    x, w = ad.Variable("x"), ad.Variable("w")
    hidden = ad.tanh_op(x @ w)
    loss = ad.sum_op(hidden * hidden * 0.5)
    (first,) = ad.gradients(loss, [w])
    (second,) = ad.gradients(ad.sum_op(first * first), [x])
    executor = ad.Executor([loss, first, second])
    for rows in (3, 5):
        a, b = np.random.default_rng(rows).standard_normal((2, rows, rows))
        torch = pytest.importorskip("torch")
        s, t = (torch.tensor(v, requires_grad=True) for v in (a, b))
        value = ((s @ t).tanh() ** 2).sum() * 0.5
        (g,) = torch.autograd.grad(value, t, create_graph=True)
        (h,) = torch.autograd.grad((g * g).sum(), s)
        for found, wanted in zip(executor.run({x: a, w: b}, True), (value, g, h), strict=True):
            np.testing.assert_allclose(found, wanted.detach().numpy(), rtol=1e-10)
    inner = np.random.default_rng(1).standard_normal((2, 4))
    (found,) = ad.Executor([loss]).run({hidden: inner}, True)  # what is behind it need not be fed
    np.testing.assert_allclose(found, (inner**2).sum() / 2)
    assert executor.infer_shape({x: (7, 2), w: (2, 3)})[hidden] == (7, 3)


def test_a_function_that_returns_its_argument_has_a_node_of_its_own() -> None:
    for x in (ad.Variable("x"), ad.Variable("x", (2, 3), "float64")):
        same = ad.sum_to_like_op(x, x)
        total = ad.sum_op(x * 3.0 + same * same)
        by_same, by_x = ad.gradients(total, [same, x])
        values = np.arange(6.0).reshape(2, 3)
        found = ad.Executor([by_same, by_x]).run({x: values}, True)
        np.testing.assert_array_equal(found[0], 2 * values)
        np.testing.assert_array_equal(found[1], 3 + 2 * values)


def test_what_a_call_was_given_is_copied_and_modes_are_those_of_the_call() -> None:
    x = ad.Variable("x")
    array, parts = np.ones(3), [x, x * 2.0]
    sums, joined = x + array, ad.concatenate_op(parts, 0)
    array[:] = 7
    parts.append(x)
    with dl.no_grad():
        still = ad.exp_op(x) * 1.0
    (grad,) = ad.gradients(ad.sum_op(still + x), [x])
    found = ad.Executor([sums, joined, grad]).run({x: np.zeros(3)}, True)
    assert [value.tolist() for value in found] == [[1.0] * 3, [0.0] * 6, [1.0] * 3]


def test_bodies_of_loops_may_read_what_has_no_type() -> None:
    x, w = ad.Variable("x"), ad.Variable("w")
    last, kept = dl.scan(lambda h, v: ((new := ad.tanh_op(h @ w + v)), new), ad.sum_op(x, 0) * 0.0, x)
    (grad,) = ad.gradients(ad.sum_op(kept * kept) + ad.sum_op(last), [w])
    a, b = np.random.default_rng(0).standard_normal((4, 3)), np.random.default_rng(1).standard_normal((3, 3))
    declared = ad.Variable("x", (4, 3), "float64"), ad.Variable("w", (3, 3), "float64")
    end, every = dl.scan(
        lambda h, v: ((new := ad.tanh_op(h @ declared[1] + v)), new), ad.sum_op(declared[0], 0) * 0.0, declared[0]
    )
    (wanted,) = ad.gradients(ad.sum_op(every * every) + ad.sum_op(end), [declared[1]])
    (one,) = ad.Executor([grad]).run({x: a, w: b}, True)
    (other,) = ad.Executor([wanted]).run(dict(zip(declared, (a, b), strict=True)), True)
    np.testing.assert_allclose(one, other, rtol=1e-12)


def test_errors_name_the_call_and_its_line() -> None:
    x, w, missing = ad.Variable("x"), ad.Variable("w"), ad.Variable("missing")
    product, total = x @ w, x + w
    told = error_of(ShapeError, ad.Executor([product]).run, {x: np.ones((2, 3)), w: np.ones((2, 3))})
    assert "inner dimensions differ: (2, 3) x (2, 3)" in told and "test_replay.py:" in told and product.name in told
    told = error_of(ShapeError, ad.Executor([total]).run, {x: np.ones(2), w: np.ones(3)})
    assert "(2,) and (3,)" in told and "test_replay.py:" in told
    told = error_of(FeedError, ad.Executor([x + missing]).run, {x: np.ones(2)})
    assert "missing was not fed" in told
    assert "known only when the variable is fed" in error_of(ShapeError, lambda: total.shape)
    assert "known only when the variable is fed" in error_of(DTypeError, lambda: total.dtype)
    error_of(TypeError, ad.softmax_op, x, 1, 2, 3)  # at the call
    assert ad.Variable("s", (2, 3)).shape == (ad.Variable("s", (2, 3)) * 2.0).shape == (2, 3)


def test_calls_print_as_they_were_written_and_are_pickled() -> None:
    x, w = ad.Variable("x"), ad.Variable("w")
    loss = ad.sum_op(x * 2.0 + w)
    (grad,) = ad.gradients(loss, [w])
    text = ad.format_graph([grad])
    assert "= mul(x, 2.0)   # test_replay.py:" in text and f"= gradients({loss.name}, [w])" in text
    again = pickle.loads(pickle.dumps([loss, grad, x, w]))
    (found,) = ad.Executor([again[1]]).run({again[2]: np.ones(2), again[3]: np.ones(2)}, True)
    assert found.tolist() == [1.0, 1.0]
