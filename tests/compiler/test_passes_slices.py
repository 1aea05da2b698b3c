"""Arrays taken apart and put together: slices, their gradients, recurrences."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import ops
from dlsys.compiler import NAMES, PASSES, run_passes
from dlsys.graph import Node
from helpers import check_form, evaluate, typed_graph
from hypothesis import given, settings
from hypothesis import strategies as st


def keys(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    """Keys of a part of an array, often along one axis and of one of few places there."""

    def item(extent: int) -> st.SearchStrategy[Any]:
        ends = st.tuples(*[st.none() | st.integers(-extent, extent)] * 2).map(lambda pair: slice(*pair))
        some = [slice(i, i + 1) for i in range(extent)] + [slice(extent // 2), slice(extent // 2, None)]
        return ends | st.sampled_from([*some, slice(None, None, 2)]) | st.integers(-extent, extent - 1)

    one = st.integers(0, len(shape) - 1).flatmap(
        lambda axis: item(shape[axis]).map(lambda found: (*(slice(None),) * axis, found))
    )
    return one | item(shape[-1]).map(lambda found: (..., found)) | st.tuples(*map(item, shape)) | st.just((...,))


@pytest.mark.slow
@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data(), st.sampled_from([(6,), (4, 6), (2, 3, 4)]), st.integers(1, 7), st.booleans())
def test_the_gradient_of_what_is_taken_apart(
    data: st.DataObject, shape: tuple[int, ...], count: int, is_known: bool
) -> None:
    x = ops.Variable("x", *[shape, "float64"] if is_known else [])
    want, feed, terms = np.zeros(shape), {x: np.zeros(shape)}, []
    for _ in range(count):
        if data.draw(st.integers(0, 3)):
            key = data.draw(keys(shape))
            pairs = [(x[key], want[key])]
        else:
            axis = data.draw(st.integers(-len(shape), len(shape) - 1))
            some = data.draw(st.sampled_from([shape[axis], 1, [1], [0, 2]]))
            pairs = list(zip(ad.split_op(x, some, axis), np.split(want, some, axis), strict=True))
            pairs = data.draw(st.permutations(pairs))[: data.draw(st.integers(1, len(pairs)))]
        for part, target in pairs:
            feed[weight := ops.Variable("w")] = np.full(target.shape, float(len(feed)))
            terms.append(ops.reducesum_op(part * weight))
            if isinstance(target, np.ndarray):
                target += feed[weight]
            else:
                want[key] += feed[weight]
    (grad,) = ad.gradients(ad.sum_node_list(terms), [x])
    graph = run_passes(typed_graph([grad], [], {node: (v.shape, "float64") for node, v in feed.items()}), tuple(PASSES))
    for node in (grad, *graph.outputs):
        np.testing.assert_array_equal(evaluate([node], feed)[0], want)


class Drawn:
    """A drawn recurrence: an array is taken apart along time and along its last axis, by indices or chunks; products
    with shared matrices, functions of parts, states that are put together in some order; and gradients."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        steps, rows, width = rng.randint(2, 5), rng.randint(1, 3), 2 * rng.randint(1, 9)
        self.rng = rng
        self.x, self.w, self.v, self.b = (ops.Variable(name) for name in "xwvb")
        numbers = np.random.default_rng(seed)
        self.feed = {
            node: numbers.uniform(-1, 1, shape)
            for node, shape in {
                self.x: (steps, rows, width),
                self.w: (width, width),
                self.v: (2 * width, width),
                self.b: (width,),
            }.items()
        }
        states: list[Node] = []
        for t in rng.choice(
            [list(range(steps)), list(range(steps))[::-1], rng.choices(range(steps), k=steps)]
        ):
            part = self.x[t] if rng.random() < 0.7 else ad.reshape_op(self.x[t : t + 1], (rows, width))
            if states:
                part = part + self.product(states[-1])
            if rng.random() < 0.5:
                part = part + ad.broadcast_shape_op(self.b, (rows, width))
            states.append(self.halved(ad.tanh_op(part), width))
        order = rng.choice([states, states[::-1], states[1:] or states, rng.sample(states, len(states))])
        output = ad.stack_op(order, rng.choice([0, 0, 0, 1]))
        if rng.random() < 0.5:
            output = output * ad.stack_op([ad.reducesum_op(state) for state in order[:1]])
        loss = ops.reducesum_op(output * output) + ops.reducesum_op(rng.choice(states))
        leaves = rng.sample(list(self.feed), rng.randint(1, 4))
        grads = ad.gradients(loss, leaves)
        self.outputs = [loss, *grads, rng.choice(states), output][rng.randrange(3) :]
        if rng.random() < 0.4:
            self.outputs += ad.gradients(ops.reducesum_op(grads[0] * grads[0]), [rng.choice(leaves)])

    def product(self, state: Node) -> Node:
        halves = ad.split_op(self.v, 2)
        matrix = self.rng.choice([self.w, self.w, *halves])
        return ad.matmul_op(state, matrix, trans_B=self.rng.random() < 0.5)

    def halved(self, state: Node, width: int) -> Node:
        """The state, in some steps of two functions of its halves."""
        if self.rng.random() < 0.6:
            return state
        low, high = ad.split_op(state, 2, axis=1)
        return ad.concatenate_op([ad.tanh_op(low * high), ad.exp_op(high)], 1) * 0.5


def check(drawn: Drawn, names: tuple[str, ...]) -> None:
    expected = evaluate(drawn.outputs, drawn.feed)
    fed = {node: (value.shape, "float64") for node, value in drawn.feed.items()}
    graph = run_passes(typed_graph(drawn.outputs, [], fed), names)
    check_form(graph)
    for a, b in zip(evaluate(list(graph.outputs), drawn.feed), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.slow
@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.sets(st.sampled_from(tuple(PASSES))))
def test_drawn_recurrences_keep_their_values(seed: int, names: set[str]) -> None:
    drawn = Drawn(seed)
    check(drawn, tuple(PASSES))
    check(drawn, tuple(name for name in PASSES if name in names))


def run(drawn: Drawn, names: tuple[str, ...]) -> ad.Executor:
    """Compiled, from variables and, every other time, from parameters that the run changes."""
    now = {node: ad.Parameter(value) for node, value in drawn.feed.items() if node is not drawn.x}
    nodes: dict[Node, Node] = {drawn.x: drawn.x, **now}
    for node in ad.find_topo_sort(drawn.outputs):
        if node not in nodes:
            nodes[node] = Node(node.op, [nodes[value] for value in node.inputs], node.attrs, node.name)
    outputs = [nodes[node] for node in drawn.outputs]
    updates = ad.group([ad.assign(now[node], now[node] * 0.5 + 1.0) for node in list(now)[:2]])
    executor = ad.Executor([*outputs, updates], passes=names)
    feed = {drawn.x: drawn.feed[drawn.x]}
    found = executor.run(feed, convert_to_numpy_ret_vals=True)[:-1]
    for a, b in zip(found, evaluate(drawn.outputs, drawn.feed), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)
    for node in list(now)[:2]:
        np.testing.assert_allclose(now[node].value, drawn.feed[node] * 0.5 + 1.0)
    return executor


@pytest.mark.slow
@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.sets(st.sampled_from(NAMES)))
def test_drawn_recurrences_compiled(seed: int, names: set[str]) -> None:
    drawn = Drawn(seed)
    for chosen in (NAMES, tuple(name for name in NAMES if name in names)):
        executor = run(drawn, chosen)  # compares the numbers
        assert executor.compilations == 1


@pytest.mark.parametrize("width", [4, 3])  # of 3, slices begin at no multiple of 16 bytes
def test_rows_of_a_slice_are_moved(width: int) -> None:
    """As those of attention's heads."""
    x = ops.Variable("x", (2, 5, 3, 4, width), "float32")
    parts = [x[:, :, i] for i in range(3)]
    moved = [ops.transpose_op(part, (0, 2, 1, 3)) for part in parts[:2]]
    executor = ad.Executor([*moved, ops.transpose_op(parts[2], (0, 2, 3, 1)), moved[0] * 2.0, parts[1]])
    given = np.arange(2 * 5 * 3 * 4 * width, dtype="float32").reshape(2, 5, 3, 4, width)
    found = executor.run({x: given}, convert_to_numpy_ret_vals=True)
    first = given[:, :, 0].swapaxes(1, 2)
    second, third = given[:, :, 1].swapaxes(1, 2), given[:, :, 2].transpose(0, 2, 3, 1)
    for got, expected in zip(found, [first, second, third, first * 2, given[:, :, 1]], strict=True):
        np.testing.assert_array_equal(got, expected)
