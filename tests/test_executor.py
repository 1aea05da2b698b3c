"""The executor: its values against the NumPy interpreter of helpers.py, its plans, its errors."""

from __future__ import annotations

import copy
import gc
import pickle
import random
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import devices
from dlsys import executor as executors
from dlsys.graph import FLOATS
from dlsys.nn import functional as F
from drawn import Drawn
from helpers import error_of, evaluate
from hypothesis import given, settings
from hypothesis import strategies as st

RNG = np.random.default_rng(8)


def mlp(batch: int) -> tuple[list[ad.Node], dict[ad.Node, tuple[int, ...]]]:
    """Loss and gradients of 784-256-100-10, and the shapes to feed."""
    sizes = [784, 256, 100, 10]
    x, y = ad.Variable("X"), ad.Variable("y_")
    shapes = {x: (batch, 784), y: (batch, 10)}
    parameters = []
    h = x
    for i in range(3):
        w, b = ad.Variable(f"W{i}"), ad.Variable(f"b{i}")
        shapes |= {w: (sizes[i], sizes[i + 1]), b: (sizes[i + 1],)}
        parameters += [w, b]
        z = h @ w
        z = z + ad.broadcastto_op(b, z)
        h = ad.relu_op(z) if i < 2 else z
    loss = ad.softmaxcrossentropy_op(h, y)
    return [loss, *ad.gradients(loss, parameters)], shapes


def draw(shapes: dict[ad.Node, tuple[int, ...]], dtype: str = "float32") -> dict[ad.Node, np.ndarray]:
    rng = np.random.default_rng(0)
    return {node: (0.1 * rng.standard_normal(shape)).astype(dtype) for node, shape in shapes.items()}


def agree(found: list, expected: list, rtol: float = 2e-4, atol: float = 1e-5) -> None:
    for a, b in zip(found, expected, strict=True):
        a = np.asarray(a)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


@pytest.mark.slow
def test_mlp_two_signatures_compile_twice_and_then_nothing_is_allocated() -> None:
    nodes, shapes = mlp(20)
    other = {node: (7, *shape[1:]) if node.name in ("X", "y_") else shape for node, shape in shapes.items()}
    feeds = [draw(shapes), draw(other)]
    executor = ad.Executor(nodes)
    for feed in feeds:
        agree(executor.run(feed, True), evaluate(nodes, feed))
    counts = devices.allocation_count(), executor.allocations, executor.compilations
    assert counts[1:] == (1, 2)  # one arena: the second plan needs less
    funcs = dict(executor.node_to_compiled_func)
    for feed in feeds * 2:
        agree(executor.run(dict(reversed(feed.items()))), evaluate(nodes, feed))
    assert (devices.allocation_count(), executor.allocations, executor.compilations) == counts
    assert all(executor.node_to_compiled_func[node] is kernel for node, kernel in funcs.items())


def test_mlp_memory_is_within_2_percent_of_the_lower_bound() -> None:
    nodes, shapes = mlp(1000)
    executor = ad.Executor(nodes)
    report = executor.memory_report(shapes)
    before = devices.allocation_count()
    plan = executor.memory_plan(shapes)
    assert plan.bytes_planned <= 1.02 * plan.lower_bound
    assert plan.bytes_unplanned > 3 * plan.bytes_planned
    assert str(plan.bytes_planned) in report and devices.allocation_count() == before + 1


def test_whatever_is_evaluated() -> None:
    a, b = ad.Variable("a"), ad.Variable("b")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    nodes = [a, a, ad.reshape_op(a, 6), ad.zeroslike_op(b), ad.reducesum_op(a), ad.sum_to_like_op(a, a)]
    for ctx in (dl.cpu(), dl.numpy()):
        executor = ad.Executor(nodes, ctx)
        feed = {a: x.copy(), b: np.ones(2, np.float32)}
        results = executor.run(feed)
        feed[a][:] = -1  # results are not the user's arrays
        agree(results, [x, x, x.reshape(6), np.zeros(2, "f4"), np.array(15, "f4"), x])
    assert ad.Executor([]).run({}) == []


def test_an_operand_is_not_overwritten_under_the_name_of_a_view() -> None:
    a, b = ad.Variable("a"), ad.Variable("b")
    x = a * 2.0
    rng = np.random.default_rng(0)
    feed = {node: rng.standard_normal((40, 40)).astype("float32") for node in (a, b)}
    nodes = [(ad.reshape_op(x, (40, 40)) @ b) + x]  # the sum may lie on x, if x were not the product's operand too
    for passes in (None, ["views", "fuse"], ["cse", "views", "fuse"]):
        agree(ad.Executor(nodes, passes=passes).run(feed), evaluate(nodes, feed), 1e-3, 1e-4)


def test_an_inner_node_may_be_fed() -> None:
    a = ad.Variable("a")
    inner = a * 2.0
    outer = inner + 1.0
    for ctx in (None, "numpy"):
        executor = ad.Executor([outer, inner], ctx)
        assert [float(v) for v in executor.run({inner: 3.0})] == [4, 3]
        assert [float(v) for v in executor.run({a: 3.0})] == [7, 6]
    executor = ad.Executor([outer])
    executor.compile_funcs({inner: (3,)})
    assert outer in executor.node_to_compiled_func
    assert {node.op.name for node in executor.node_to_compiled_func} == {"add"}  # nothing below it is computed


READERS: list[Callable[[ad.Node], ad.Node]] = [
    ad.softmax_op, ad.argmax_op, ad.transpose_op, lambda h: ad.reducesum_op(h, 0), lambda h: h @ h,
    lambda h: ad.max_op(h, 1) + ad.reducesum_op(h, 0), lambda h: F.layer_norm(h, (3,)),
    lambda h: ad.softmax_op(h) * h + ad.exp_op(h), lambda h: ad.softmaxcrossentropy_op(h, ad.relu_op(h)),
    lambda h: ad.gradients(ad.softmax_op(h) * h, [h])[0],
]  # fmt: skip


def test_an_inner_node_may_be_fed_whatever_reads_it() -> None:
    a, rng = ad.Variable("a"), np.random.default_rng(0)
    for inner in (ad.relu_op(a @ a), a * 2.0, ad.reducesum_op(a, 1, keepdims=True) * a):
        outputs = [reader(inner) for reader in READERS]
        feed = {inner: rng.standard_normal((3, 3)).astype("float32")}
        expected = evaluate(outputs, {**feed, a: np.zeros((3, 3), "float32")})
        for ctx in ("cpu", "numpy"):
            agree(ad.Executor(outputs, ctx).run(feed), expected)


@given(st.integers(0, 2**32), st.integers(1, 25), st.sampled_from(FLOATS))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_drawn_inner_nodes_may_be_fed(seed: int, steps: int, dtype: str) -> None:
    """By the operators' NumPy rules to the bit, and planned for the CPU without being compiled."""
    rng = random.Random(seed)
    drawn = Drawn(rng, steps, dtype, special=False)
    inner = [node for node in drawn.values if node not in drawn.feed]
    fed = rng.sample(inner, len(inner) // 3)
    feed = {**drawn.feed, **{node: np.asarray(drawn.values[node] * 0.75, dtype) for node in fed}}
    outputs = rng.sample(list(drawn.values), min(4, len(drawn.values)))
    with np.errstate(all="ignore"):
        expected = evaluate(outputs, feed)
    for value, want in zip(ad.Executor(outputs, "numpy").run(feed), expected, strict=True):
        np.testing.assert_array_equal(value, want)
    ad.Executor(outputs).infer_shape(feed)


def test_what_is_read_for_its_shape_alone_is_not_computed() -> None:
    a = ad.Variable("a")
    dead = a @ a
    executor = ad.Executor([ad.oneslike_op(dead)])
    (ones,) = executor.run({a: np.full((3, 3), np.nan, np.float32)})
    assert ones.numpy().tolist() == [[1.0] * 3] * 3
    assert dead not in executor.node_to_arr_map and executor.node_to_shape_map[dead] == (3, 3)


def test_sizes_of_zero_and_float64() -> None:
    a, w = ad.Variable("a"), ad.Variable("w")
    executor = ad.Executor([ad.relu_op(a) + 1.0, ad.reducesumaxiszero_op(a), a * w])
    for rows in (0, 2):
        feed = {a: np.ones((rows, 3)), w: np.ones(3)}
        agree(executor.run(feed), evaluate(executor.eval_node_list, feed))
    assert executor.node_to_dtype_map[a] == "float64"
    declared = ad.Variable("d", shape=(), dtype="float64")
    assert ad.Executor([declared + 1.0]).run({declared: 1})[0].dtype == "float64"


def test_results_are_valid_until_the_next_run_and_copies_stay() -> None:
    a = ad.Variable("a")
    executor = ad.Executor([a * 2.0])
    (kept,) = executor.run({a: [1.0]}, convert_to_numpy_ret_vals=True)
    (first,) = executor.run({a: [1.0]})
    (second,) = executor.run({a: [2.0]})
    assert isinstance(kept, np.ndarray) and kept.tolist() == [2.0]
    assert first is second and second.numpy().tolist() == [4.0]


def test_the_courses_steps_one_by_one() -> None:
    a, b = ad.Variable("a"), ad.Variable("b")
    c = a @ b
    executor = ad.Executor([c])
    shapes = {a: (2, 3), b: (3, 5)}
    assert executor.infer_shape(shapes)[c] == (2, 5) == executor.node_to_shape_map[c]
    assert not executor.node_to_arr_map and not executor.node_to_compiled_func
    executor.memory_plan(shapes)
    assert executor.node_to_arr_map[c].shape == (2, 5)
    kernel = executor.compile_funcs(shapes)[c]
    assert executor.node_to_compiled_func[c] is kernel
    executor.run({a: np.ones((2, 3), "f4"), b: np.ones((3, 5), "f4")})
    assert executor.compilations == 1 and "matmul" in executor.graph()
    alone = ad.Executor([c])
    assert list(alone.compile_funcs(shapes)) == [c]
    assert alone.infer_shape({a: np.ones((4, 3)), b: np.ones((3, 1))})[c] == (4, 1)
    assert alone.node_to_dtype_map[c] == "float64"


def test_feeds_of_every_kind() -> None:
    a, b = ad.Variable("a"), ad.Variable("b")
    executor = ad.Executor([a + b])
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    read_only, unaligned = x.copy(), np.zeros(13, np.float32)[1:].reshape(3, 4)
    read_only.flags.writeable, unaligned[:] = False, x
    arrays = [x, x.T.copy().T, x[::1], read_only, unaligned, x.astype(">f4")]
    for value in [*arrays, dl.array(x), devices.to_tensor(x), x.tolist()]:
        (result,) = executor.run({a: value, b: 1})
        assert result.numpy().tolist() == (x + 1).tolist()
    assert executor.compilations == 1


def test_two_threads_take_turns() -> None:
    a = ad.Variable("a")
    executor = ad.Executor([ad.reducesum_op(a * 2.0)])

    def work(value: int) -> bool:
        feed = {a: np.full(value, value, np.float32)}
        return all(executor.run(feed, convert_to_numpy_ret_vals=True)[0] == 2 * value * value for _ in range(50))

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(work, (3, 5))) and executor.compilations == 2


def test_errors_say_what_is_wrong_and_leave_the_executor_usable() -> None:
    x, w = ad.Variable("x", shape=(2, 3), dtype="float32"), ad.Variable("w")
    good = {x: np.ones((2, 3), "f4"), w: np.ones((3, 2), "f4")}
    for ctx in ("cpu", "numpy"):
        executor = ad.Executor([x @ w], ctx)
        cases = [
            (dl.FeedError, {x: good[x]}, "placeholder w was not fed [node w, made at test_executor.py:"),
            (dl.FeedError, {"x": 1}, "'x' is not a node"),
            (dl.FeedError, [1], "dictionary"),
            (dl.ShapeError, {**good, w: np.ones((4, 2), "f4")}, "matmul"),
            (dl.ShapeError, {**good, x: np.ones((2, 4), "f4")}, "declared with shape (2, 3)"),
            (dl.DTypeError, {**good, x: np.ones((2, 3))}, "declared as float32"),
            (dl.DTypeError, {**good, w: np.ones((3, 2))}, "dtypes differ"),
            (dl.DTypeError, {**good, w: np.ones((3, 2), int)}, "int64"),
            (dl.DTypeError, {**good, w: "abc"}, "feed of w"),
            (dl.DTypeError, {**good, w: np.ones((3, 2), "c8")}, "not an array of numbers"),
        ]
        for kind, feed, text in cases:
            assert text in error_of(kind, executor.run, feed), text
        assert np.asarray(executor.run(good)[0]).tolist() == [[3, 3], [3, 3]]


def test_feeds_that_are_not_needed_are_left_unread() -> None:
    """As in the course: one dictionary serves training and prediction."""
    x, y, other = ad.Variable("x"), ad.Variable("y"), ad.Variable("other")
    hidden = x * 2.0
    for ctx in ("cpu", "numpy"):
        executor = ad.Executor([hidden + 1.0], ctx)
        everything = {x: np.ones(3, "f4"), y: np.zeros((4, 4)), other: object()}
        assert np.asarray(executor.run(everything)[0]).tolist() == [3, 3, 3]
        assert np.asarray(executor.run({x: "not read", hidden: np.ones(2, "f4")})[0]).tolist() == [2, 2]
        assert np.asarray(executor.run({x: np.ones(3, "f4"), y: np.zeros((5, 5))})[0]).tolist() == [3, 3, 3]
        assert len(executor._plans) == 2  # neither what was not needed, nor its shape, makes another plan
        assert executor.infer_shape({x: (7,), other: "no shape"})[hidden] == (7,)


def test_a_deep_graph_runs() -> None:
    a = ad.Variable("a")
    node = a
    for _ in range(5000):
        node = node + 1.0
    executor = ad.Executor([node, *ad.gradients(node, [a])])
    assert [float(v) for v in executor.run({a: 0.0})] == [5000, 1]


def test_booleans_are_not_overwritten_before_they_are_read() -> None:
    x, c = ad.Variable("x"), ad.Variable("c")
    held = ad.flip_op(ad.equal_op(x, 0.0), 0)  # computed, dead after the next kernel, and of its results' size
    one = ad.equal_op(c, 1.0)
    nodes = [one, ad.logical_and_op(held, one), ad.logical_and_op(held, ad.equal_op(c, 2.0))]
    parts = [ad.flip_op(node, 0) for node in nodes]
    feed = {x: np.array([0.0, 1, 0, 0, 1, 0]), c: np.array([1.0, 2, 1, 1, 0, 2])}
    executor = ad.Executor(parts)
    for a, b in zip(executor.run(feed, True), evaluate(parts, feed), strict=True):
        np.testing.assert_array_equal(a, b)
    lines = executor.groups().splitlines()
    assert any(len(line.split("->")[-1].split(",")) > 1 for line in lines)  # a kernel of several results


def test_plans_share_one_arena_that_grows() -> None:
    """What a plan returned before the arena grew stays readable, and the plan takes its place in the new one."""
    x = ad.Variable("x")
    executor = ad.Executor([ad.tanh_op(ad.matmul_op(x, x, trans_B=True))])
    values = {n: np.linspace(-1, 1, n * 4, dtype="f4").reshape(n, 4) for n in (3, 50, 7)}
    small = executor.run({x: values[3]})[0]
    kept = small.numpy()
    arena = executor.node_to_arr_map[executor.eval_node_list[0]]
    executor.run({x: values[50]})
    np.testing.assert_array_equal(small.numpy(), kept)  # another memory, which nobody writes any more
    assert executor.allocations == 2
    for n in (7, 3, 50, 3):
        (found,) = executor.run({x: values[n]})
        np.testing.assert_allclose(found.numpy(), np.tanh(values[n] @ values[n].T), rtol=1e-5, atol=1e-6)
    assert executor.allocations == 2 and executor.compilations == 3
    again = executor.node_to_arr_map[executor.eval_node_list[0]]
    assert again.tensor.data_ptr() != arena.tensor.data_ptr()


def test_plans_used_longest_ago_are_dropped() -> None:
    """Bounded by number and by bytes; what a dropped plan returned stays, and it is made again when it is needed."""
    x = ad.Variable("x")
    executor = ad.Executor([x * 2.0 + 1.0])
    values = {n: np.arange(n, dtype="f4") for n in range(2, 8)}

    def right(*counts: int) -> None:
        for n in counts:
            assert executor.run({x: values[n]}, True)[0].tolist() == (2 * values[n] + 1).tolist()
            assert executor.node_to_shape_map[x] == (n,) and f"[{n}]" in executor.graph(True)

    with mock.patch.object(executors, "MOST_PLANS", 3):
        right(*values, 2, 3, 2, 4, 5, 2, *values)
        assert executor.compilations == 15  # of 18: three times 2 was among the last three
    kept = executor.run({x: values[7]})[0]
    with mock.patch.object(executors, "MOST_PLANS", 1):
        assert executor.infer_shape({x: (9,)})[x] == (9,) and "[9]" in executor.plan() + executor.graph(True)
        np.testing.assert_array_equal(kept.numpy(), 2 * values[7] + 1)  # until the next run


@pytest.mark.usefixtures("young")
def test_plans_hold_no_arrays_that_were_fed() -> None:
    """Nor, as another one's turn comes, the parameters' old values."""
    x, p = ad.Variable("x"), ad.Parameter(np.ones(1000, "f4"))
    executor = ad.Executor([x * p])
    gone = []
    for n in (1, 2, 1, 2):
        fed = dl.array(np.ones((n, 1000), "f4"))
        for _ in range(3):
            executor.run({x: fed})
        p.value = np.full(1000, n, "f4")
        gone += [weakref.ref(fed), weakref.ref(p.node.held)]
        del fed
    p.value = np.zeros(1000, "f4")
    executor.run({x: dl.array(np.ones((1, 1000), "f4"))})
    gc.collect()
    assert [ref() for ref in gone] == [None] * 8


def test_a_run_with_arrays_like_the_last_ones_sees_what_is_fed() -> None:
    """The short way of a run must not take one feed for another: values, arrays, nodes, parameters, shapes change."""
    rng = np.random.default_rng(0)
    x, w, other = ad.Variable("x"), ad.Variable("w"), ad.Variable("other")
    p = ad.Parameter(np.ones(4, "float32"), "p")
    hidden = x @ w
    executor = ad.Executor([hidden * 2.0 + p])
    feed = {x: dl.array(rng.standard_normal((3, 5)), dtype="float32"), w: dl.array(np.ones((5, 4)), dtype="float32")}

    def right(given: dict[Any, Any]) -> None:
        value = given[hidden] if hidden in given else np.asarray(given[x]) @ np.asarray(given[w])
        for _ in range(3):
            (found,) = executor.run(given, convert_to_numpy_ret_vals=True)
            np.testing.assert_allclose(found, 2 * np.asarray(value) + np.asarray(p.value), rtol=1e-5)

    right(feed)
    feed[x][:] = 3.0  # in its own memory
    right(feed)
    feed[w] = dl.array(rng.standard_normal((5, 4)), dtype="float32")
    right(feed)
    right({hidden: dl.array(np.full((3, 4), 7.0), dtype="float32"), w: feed[w]})  # as many, and others
    right({**feed, other: feed[x]})
    p.value = np.arange(4, dtype="float32")
    right(feed)
    right({x: dl.array(np.ones((6, 5)), dtype="float32"), w: feed[w]})
    executor.infer_shape({x: (9, 5), w: (5, 4)})
    right(feed)
    right({x: np.ones((3, 5), "float32"), w: feed[w]})
    error = error_of(dl.ShapeError, executor.run, {x: feed[x], w: dl.zeros((4, 4))})
    assert "(3, 5)" in error
    right(feed)
    with mock.patch.object(executor, "_prepare", side_effect=AssertionError):  # and the way is the short one
        right(feed)


@pytest.mark.slow
def test_a_result_fed_to_the_next_run_is_read_before_it_is_overwritten() -> None:
    X = ad.Variable("X")
    lent: dict[str, Callable[[dl.Array], Any]] = {
        "Array": lambda array: array,
        "NumPy": np.asarray,
        "TVM": lambda array: array.tensor,
        "part": lambda array: np.asarray(array)[1:],  # another signature, whose values lie in the same arena
    }
    for name, lend in lent.items():
        executor = ad.Executor([ad.transpose_op(X) + 1.0])
        (found,) = executor.run({X: RNG.standard_normal((64, 64)).astype("float32")})
        for _ in range(4):  # the same objects again and again
            given = lend(found)
            want = np.array(np.from_dlpack(given) if name == "TVM" else np.asarray(given)).T + np.float32(1)
            (found,) = executor.run({X: given})
            np.testing.assert_array_equal(found.numpy(), want, name)
        own, twice = dl.array(want), dl.array(want)
        executor.run({X: own})
        allocated = dl.devices.allocation_count()
        for feed in (own, twice, own, own):  # arrays of memory of their own are read where they lie
            (found,) = executor.run({X: feed})
            np.testing.assert_array_equal(found.numpy(), want.T + 1)
        for _ in range(3):
            (found,) = executor.run({X: found})
        assert dl.devices.allocation_count() <= allocated + 1  # the copy's memory


def test_a_feed_that_lies_in_a_parameter_is_read_before_the_run_overwrites_it() -> None:
    first = RNG.standard_normal((4, 4)).astype("float32")
    for passes in (None, []):
        W, X, V = ad.Parameter(first, "W"), ad.Variable("X"), ad.Parameter(first + 1, "V")
        new = W * 2.0 + 1.0
        nodes = [ad.assign(W, new), ad.assign(V, V + 1.0), X * ad.reducesum_op(new, None)]
        executor = ad.Executor(nodes, passes=passes)
        value, fed = first, dl.array(first)
        for step in range(5):  # the second and later runs are fed with the memory of W, then of V
            given = np.asarray(fed).copy()
            value = value * np.float32(2) + np.float32(1)
            found = executor.run({X: fed})
            np.testing.assert_allclose(found[2].numpy(), given * value.sum(), rtol=1e-5)
            np.testing.assert_allclose(W.numpy(), value, rtol=1e-6)
            fed = found[step % 2]
        W.value = first  # another array, whose memory is written now
        given = W.node.held
        np.testing.assert_allclose(executor.run({X: given})[2].numpy(), first * (first * 2 + 1).sum(), rtol=1e-5)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_an_executor_is_copied_as_its_nodes(copied: Callable[[Any], Any]) -> None:
    x, w = ad.Variable("x"), ad.Parameter(np.ones((3, 2), "float32"), "w")
    y = x @ w
    for _ in range(2000):  # deeper than Python's recursion
        y = y + 1.0
    executor = ad.Executor([y, ad.assign_op(w, w * 2.0)], passes=["fuse"])
    feed = np.ones((1, 3), "float32")
    executor.run({x: feed})
    other, given = copied((executor, x))
    if copied is copy.copy:
        other, given = copied(executor), x
    assert other.passes == executor.passes and other.ctx is executor.ctx and other.compilations == 0
    assert (other.run({given: feed}, True)[0] == 2006.0).all()
    assert (executor.run({x: feed}, True)[0] == (2012.0 if copied is copy.copy else 2006.0)).all()
