"""Drawn graphs, over all operators, keep their values under every subset of the passes, compiled, with assignments."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from cases import is_float
from dlsys import autodiff as ad
from dlsys import ops
from dlsys.compiler import NAMES, PASSES, TypedGraph, fuse, run_passes, select, unrolled
from dlsys.compiler.base import rewrite
from dlsys.compiler.patterns import Rules
from dlsys.compiler.rules import TABLE
from dlsys.gradients import gradients
from dlsys.graph import DTYPES, FLOATS, INTEGERS, Node, Op, Shape
from drawn import Drawn
from helpers import (
    check_form,
    check_groups_reasons,
    check_reasons,
    evaluate,
    expression,
    numpy_value,
    typed_graph,
    values_read,
)
from hypothesis import given, settings
from hypothesis import strategies as st

TO_THE_BIT = ("cse", "dead")
NOISE = {"float32": 1e-6, "float64": 1e-14}


def values_of(
    graph: TypedGraph, feed: dict[Node, np.ndarray], noise: float = 0.0, seed: int = 0
) -> dict[Node, np.ndarray]:
    """Every computed node's value by the NumPy rules; each multiplied by 1 + noise u, u drawn from [-1, 1], and with
    zeros of other signs, which passes may change."""
    rng = np.random.default_rng(seed)
    values = dict(feed)
    graph = unrolled(graph)
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            inputs = {
                v: values.get(v, np.broadcast_to(np.zeros((), v.dtype), v.shape))
                for v in node.inputs
                if not v.op.immediate
            }
            value = numpy_value(node, values_read(node, inputs))
            assert (value.shape, str(value.dtype)) == (node.shape, node.dtype)
            if noise and is_float(value):
                moved = value * (1 + noise * rng.uniform(-1, 1, value.shape))
                sign = (1.0, -1.0, rng.choice([-1.0, 1.0], value.shape))[seed % 3]
                value = np.asarray(np.where(value == 0, 0.0 * sign, moved), value.dtype)
            values[node] = value
    values.update((node, values[now]) for node, now in graph.current.items() if now in values)
    return values


def same(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Where both are the same number or the same infinity or NaN."""
    return (a == b) | (np.isnan(a) & np.isnan(b))


def check_to_rounding(drawn: Drawn, graph: TypedGraph, names: Sequence[str]) -> None:
    """The same values after passes, which have reasons, as have kernels."""
    result = run_passes(graph, names)
    check_reasons(graph, result)
    check_groups_reasons(fuse(result, reasons=(reasons := [])), reasons)
    check_same_to_rounding(drawn, graph, result)


def check_same_to_rounding(drawn: Drawn, graph: TypedGraph, result: TypedGraph) -> None:
    """What every node of the user's, that stands, has for a value before and after, up to what rounding and signs of
    zero in the graph before may do. Where they decide between a number, an infinity and NaN, nothing is said."""
    check_form(result)
    noise = NOISE[drawn.dtype]
    before, found = values_of(graph, drawn.feed), values_of(result, drawn.feed)
    noisy = [values_of(graph, drawn.feed, noise, seed) for seed in range(6)]
    pairs = [(old, result.current.get(old, old)) for old in graph.nodes]
    pairs += [
        (a, b) for a, b in zip(graph.outputs, result.outputs, strict=True) if a is not None and b is not None
    ]
    pairs += [(a, b) for (_, a), (_, b) in zip(graph.updates, result.updates, strict=True)]
    for old, new in pairs:
        if new not in found:
            assert old not in set(graph.roots)
            continue
        a, b, others = before[old], found[new], [other[old] for other in noisy]
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if not is_float(a):
            a, b, others = a.astype(float), b.astype(float), [other.astype(float) for other in others]
        with np.errstate(all="ignore"):
            spread = np.max([np.abs(other - a) for other in others], axis=0)
            near = np.abs(a - b) <= 8 * spread + 8 * noise * np.abs(a)
        sure = np.all([same(a, other) | (np.isfinite(a) & np.isfinite(other)) for other in others], axis=0)
        assert (near | same(a, b) | ~sure).all(), (expression(old), expression(new), a, b)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.integers(0, 2**32),
    st.integers(1, 40),
    st.sampled_from(Op.dtypes),
    st.booleans(),
    st.sets(st.sampled_from(tuple(PASSES))),
)
def test_drawn_graphs_keep_their_values(
    seed: int, steps: int, dtype: str, special: bool, names: set[str]
) -> None:
    drawn = Drawn(random.Random(seed), steps, dtype, special)
    graph = drawn.typed()
    check_to_rounding(drawn, graph, select(names))
    check_to_rounding(drawn, graph, tuple(PASSES))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.randoms(use_true_random=False), st.integers(1, 40), st.sampled_from(Op.dtypes))
def test_rules_keep_values_in_any_order(rng: random.Random, steps: int, dtype: str) -> None:
    drawn = Drawn(rng, steps, dtype, special=True)
    graph = drawn.typed()
    rules = [rule for own in TABLE.values() for rule in own]
    rng.shuffle(rules)
    check_same_to_rounding(drawn, graph, rewrite(graph, Rules({"any order": rules}), merge=True))


@pytest.mark.slow
@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.integers(0, 2**32),
    st.integers(1, 40),
    st.sampled_from(Op.dtypes),
    st.sets(st.sampled_from(TO_THE_BIT)),
)
def test_passes_that_only_move_keep_them_to_the_bit(
    seed: int, steps: int, dtype: str, names: set[str]
) -> None:
    drawn = Drawn(random.Random(seed), steps, dtype, special=True)
    graph = drawn.typed()
    result = run_passes(graph, names)
    before, found = values_of(graph, drawn.feed), values_of(result, drawn.feed)
    for a, b in zip(graph.outputs, result.outputs, strict=True):
        if a is not None and b is not None:
            np.testing.assert_array_equal(before[a], found[b])


@pytest.mark.slow
@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.integers(1, 8))
def test_gradients_of_drawn_graphs_keep_their_values(seed: int, steps: int) -> None:
    drawn = Drawn(random.Random(seed), steps, "float64", special=False)
    nodes = [node for node, value in drawn.values.items() if is_float(value)]
    last, leaves = nodes[-1], [node for node in drawn.feed if node in set(nodes)]
    fed = {node: (value.shape, str(value.dtype)) for node, value in drawn.feed.items()}
    graph = typed_graph([last, *gradients(ops.reducesum_op(last), leaves)], [], fed)
    check_to_rounding(drawn, graph, tuple(PASSES))


def at_limits(dtype: str) -> st.SearchStrategy[Any]:
    """Numbers of a dtype: those at its limits and about zero, those next to what float64 holds, and any."""
    if dtype == "bool":
        return st.booleans()
    if dtype in FLOATS:
        size = 8 * np.dtype(dtype).itemsize
        some = [0.0, -0.0, 1.5, -3.0, float(np.finfo(dtype).max), float(np.finfo(dtype).tiny), np.inf, -np.inf, np.nan]
        return st.sampled_from(some) | st.floats(width=size)
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    some = [low, low + 1, -(2**53) - 1, -3, -1, 0, 1, 2, 3, 94906267, 2**53 - 1, 2**53 + 1, high // 2 + 1, high]
    return st.sampled_from([n for n in some if low <= n <= high]) | st.integers(low, high)


def constants(data: st.DataObject, dtype: str) -> list[Node]:
    """Elementwise operators, picks and sums of drawn constants of a dtype, of each that takes it one."""

    def full(shape: Shape = (2, 3), dtype: str = dtype) -> Node:
        return ops.full_op(shape, data.draw(at_limits(dtype)), dtype)

    found = [ops.reshape_op(full(), (6,)), ops.cast_op(full(), "bool"), ops.copy_op(full())]
    found += [ops.equal_op(full(), full()), ops.where_op(full(dtype="bool"), full(), full())]
    if dtype == "bool":
        return [*found, ops.logical_and_op(full(), full()), ops.logical_not_op(full())]
    found += [f(full(), full((3,))) for f in (ops.add_op, ops.sub_op, ops.mul_op, ops.maximum_op, ops.less_op)]
    found += [f(full()) for f in (ops.neg_op, ops.abs_op, ops.sign_op)]
    count = data.draw(st.sampled_from([0, 1, 255, 256, 300, 1000]))
    repeated = ops.broadcast_shape_op(full((3,)), (count, 3))
    found += [ops.reducesum_op(repeated, 0), ops.reducesum_op(full((count,)))]
    found.append(ops.mul_op(found[-1], full()))
    if dtype in INTEGERS:
        number = data.draw(at_limits(dtype))
        found += [f(full(), number) for f in (ops.add_byconst_op, ops.mul_byconst_op, ops.clip_op)]
        found += [ops.cast_op(full(), other) for other in (*INTEGERS, "float64")]
    return found


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data(), st.sampled_from(DTYPES))
def test_folded_constants_are_numpys(data: st.DataObject, dtype: str) -> None:
    """To the bit of integers, which wrap around; sums and products of floats to rounding."""
    outputs = constants(data, dtype)
    graph = run_passes(typed_graph(outputs, [], {}), tuple(PASSES))
    with np.errstate(all="ignore"):
        expected, found = evaluate(outputs, {}), evaluate([node for node in graph.outputs if node is not None], {})
    for node, now, want, got in zip(outputs, graph.outputs, expected, found, strict=True):
        one_value = want.size == 0 or np.array_equal(want, np.full_like(want, want.flat[0]), equal_nan=True)
        assert now is not None and (now.op.name == "full") == bool(one_value), expression(node)
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        if is_float(want):
            np.testing.assert_allclose(got, want, rtol=1e-4 if dtype == "float32" else 1e-12, err_msg=expression(node))
        else:
            np.testing.assert_array_equal(got, want, err_msg=expression(node))


class Program:
    """A drawn graph whose feeds are partly parameters, some of which are assigned."""

    def __init__(self, seed: int, steps: int, dtype: str) -> None:
        rng = random.Random(seed)
        self.drawn = drawn = Drawn(rng, steps, dtype, special=False)
        nodes = [node for node, value in drawn.values.items() if is_float(value)]
        self.outputs = [rng.choice(nodes[-6:] + nodes) for _ in range(3)]
        self.parameters = rng.sample([node for node in drawn.feed if is_float(drawn.feed[node])], 3)
        self.updates: dict[Node, Node] = {}
        for parameter in self.parameters:
            fits = [n for n in nodes if drawn.values[n].shape == drawn.values[parameter].shape]
            self.updates[parameter] = rng.choice(fits[-4:] + fits)

    def expected(self, noise: float = 0.0, seed: int = 0) -> list[np.ndarray]:
        """The outputs, then the parameters afterwards, by the NumPy rules."""
        fed = {node: (value.shape, str(value.dtype)) for node, value in self.drawn.feed.items()}
        graph = typed_graph(self.outputs, list(self.updates.items()), fed)
        values = values_of(graph, self.drawn.feed, noise, seed)
        results = [*graph.outputs, *(value for _, value in graph.updates)]
        return [values[node] for node in results if node is not None]

    def run(self, names: tuple[str, ...], ctx: str) -> list[np.ndarray]:
        """The same, by an executor; the graph is made anew with Parameters in place of some variables."""
        made = {node: ad.Parameter(self.drawn.feed[node], node.name) for node in self.parameters}
        now: dict[Node, Node] = {node: parameter.node for node, parameter in made.items()}
        for node in self.drawn.values:
            for inner in ad.find_topo_sort([node]):
                if inner in made:
                    continue
                if inner not in now:
                    inputs = [now[value] for value in inner.inputs]
                    now[inner] = Node(inner.op, inputs, inner.attrs, inner.name)
        assigns = ad.group([ad.assign(now[p], now[value]) for p, value in self.updates.items()])
        executor = ad.Executor([now[node] for node in self.outputs] + [assigns], ctx, passes=names)
        variables = {now[n]: v for n, v in self.drawn.feed.items() if n not in set(self.parameters)}
        needed = {handle.node for handle in executor.topo_order}
        feed = {node: value for node, value in variables.items() if node in needed}
        results = executor.run(feed, convert_to_numpy_ret_vals=True)
        assert results.pop() is None
        return [*results, *(made[parameter].value for parameter in self.updates)]


def agree(program: Program, found: list[np.ndarray]) -> None:
    """Up to what rounding may do; where rounding decides between numbers, infinity and NaN, nothing is said."""
    noise = NOISE[program.drawn.dtype]
    expected, noisy = program.expected(), [program.expected(noise, seed) for seed in range(6)]
    for i, (a, b) in enumerate(zip(expected, found, strict=True)):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        others = [values[i] for values in noisy]
        with np.errstate(all="ignore"):
            spread = np.max([np.abs(other - a) for other in others], axis=0)
            near = np.abs(a - b) <= 8 * spread + 16 * noise * np.abs(a)
        sure = np.all([same(a, other) | (np.isfinite(a) & np.isfinite(other)) for other in others], axis=0)
        assert (near | same(a, b) | ~sure).all(), (i, a, b)


@pytest.mark.slow
@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.integers(1, 15), st.sampled_from(Op.dtypes), st.sets(st.sampled_from(NAMES)))
def test_every_subset_of_passes_computes_the_same(seed: int, steps: int, dtype: str, names: set[str]) -> None:
    program = Program(seed, steps, dtype)
    agree(program, program.run(tuple(names), "numpy"))
    agree(program, program.run(tuple(names), "cpu"))


@pytest.mark.slow
@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.integers(1, 25), st.sampled_from(Op.dtypes))
def test_all_passes_compute_the_same(seed: int, steps: int, dtype: str) -> None:
    program = Program(seed, steps, dtype)
    agree(program, program.run(NAMES, "cpu"))
