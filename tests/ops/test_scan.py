"""Loops: values and gradients against the same steps written out, the plan of a loop, and mistakes."""

from __future__ import annotations

import contextlib
import random
import re
import tempfile
from pathlib import Path
from typing import Any

import dlsys as dl
import numpy as np
import pytest
import tvm_ffi
from dlsys import autodiff as ad
from dlsys import nn, ops, optim
from dlsys.graph import Node, find_topo_sort
from helpers import on_threads

BATCH, WIDTH = 2, 3


class Drawn:
    """A loop drawn by chance: matrices carried and sliced, others read by all steps."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.length = rng.randint(1, 5)
        self.reverse = rng.random() < 0.5
        self.carried = [ad.Variable(f"h{i}", (BATCH, WIDTH), "float64") for i in range(rng.randint(1, 3))]
        shape = (self.length, BATCH, WIDTH)
        self.sliced = [ad.Variable(f"x{i}", shape, "float64") for i in range(rng.randint(1, 2))]
        self.square = ad.Variable("w", (WIDTH, WIDTH), "float64")
        self.row = ad.Variable("b", (WIDTH,), "float64")
        self.choices = [rng.random() for _ in range(200)]
        numbers = np.random.default_rng(seed)
        variables = [*self.carried, *self.sliced, self.square, self.row]
        self.feed = {v: 0.5 * numbers.standard_normal(v.attrs["shape"]) for v in variables}

    def step(self, carried: Any, slices: Any) -> Any:
        """The same graph at each call."""
        choices = iter(self.choices)
        known = [*carried, *slices]

        def pick() -> Node:
            return known[int(next(choices) * len(known))]

        for _ in range(int(next(choices) * 8)):
            kind = int(next(choices) * 9)
            made = [
                lambda: ad.matmul_op(pick(), self.square, trans_B=next(choices) < 0.5),
                lambda: ad.tanh_op(pick()),
                lambda: pick() * pick(),
                lambda: pick() + self.row,
                lambda: ad.sigmoid_op(pick() - pick()),
                lambda: pick() * ops.sum_op(pick() * pick(), 1, keepdims=True),
                lambda: ad.relu_op(pick()) * 0.5 + ad.exp_op(-pick() * pick()),
                lambda: ad.softmax_op(pick() + self.row * 2.0),
                lambda: ad.matmul_op(pick(), self.square) + self.row,
            ][kind]()
            known.append(ad.tanh_op(made))
        return tuple(pick() for _ in carried), tuple(pick() for _ in range(2))

    def rolled(self) -> list[Node]:
        """The results by a loop."""
        last, kept = ad.scan_op(self.step, tuple(self.carried), tuple(self.sliced), reverse=self.reverse)
        return [*last, *kept]

    def written_out(self) -> list[Node]:
        """The same without one."""
        carried, kept = tuple(self.carried), []
        times = range(self.length)
        for t in reversed(times) if self.reverse else times:
            carried, own = self.step(carried, [x[t] for x in self.sliced])
            kept.append(own)
        return [*carried, *(ad.stack_op(list(each[:: -1 if self.reverse else 1])) for each in zip(*kept, strict=True))]


def with_gradients(results: list[Node], variables: list[Node]) -> list[Node]:
    """The results, gradients of a function of them, and gradients of a function of those."""
    weighted = [ops.sum_op(r * (0.5 + i) + r * r) for i, r in enumerate(results)]
    loss = ad.sum_node_list(weighted)
    firsts = ad.gradients(loss, variables)
    seconds = ad.gradients(ad.sum_node_list([ops.sum_op(g * g) for g in firsts]), variables)
    return [*results, *firsts, *seconds]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_drawn_loops_are_their_steps_written_out(seed: int) -> None:
    drawn = Drawn(seed)
    variables = list(drawn.feed)
    loop, steps = (with_gradients(results, variables) for results in (drawn.rolled(), drawn.written_out()))
    assert any(node.op.name == "scan" for node in find_topo_sort(loop))
    wanted = ad.Executor(steps, "numpy").run(drawn.feed)
    scale = [np.abs(value).max(initial=1.0) for value in wanted]
    ways: tuple[dict[str, Any], ...] = ({}, {"passes": ()}, {"passes": ("fuse",)})
    for how in ({"ctx": "numpy"}, ways[seed % 3]):
        found = ad.Executor(loop, **how).run(drawn.feed, True)
        for i, (one, other) in enumerate(zip(found, wanted, strict=True)):
            assert one.shape == other.shape, (seed, how, i)
            np.testing.assert_allclose(one / scale[i], other / scale[i], atol=1e-9, err_msg=f"{seed} {how} {i}")


@pytest.mark.slow
def test_what_a_body_gives_back_may_be_what_it_was_given() -> None:
    """A slice, another carried value, what all steps read, one value twice; and loops within loops of odd bytes."""
    x, h, w = ad.Variable("x", (4, 3)), ad.Variable("h", (3,)), ad.Variable("w", (3,))
    flags = ad.Variable("flags", (4, 3), "bool")
    rng = np.random.default_rng(0)
    feed = {v: rng.standard_normal(v.attrs["shape"]).astype("float32") for v in (x, h, w)}
    feed[flags] = feed[x] > 0

    def inner(v: Node) -> Node:
        return ad.scan_op(lambda p, _: (p * w, p), v, length=3)[0]

    def odd(c: Node, s: Any) -> Any:
        return c * 0.5 + inner(ops.where_op(s[1], c, s[0])), ops.logical_not_op(s[1])

    swapped, kept = ad.scan_op(lambda c, s: ((c[1], s * w), (w, c[0], s)), (h, w), x)
    (one, other), _ = ad.scan_op(lambda c, s: ((v := c[0] * c[1] + s, v), None), (h, w), x)
    within, turned = ad.scan_op(odd, h, (x, flags))
    powers, before = ad.scan_op(lambda c, s: (inner(c) + s, c), h, x, reverse=True)
    results = [*swapped, *kept, one, other, within, turned, powers, before]
    loss = ad.sum_node_list([ops.sum_op(r * r) for r in results if r is not turned])
    nodes = [*results, *(firsts := ad.gradients(loss, [x, h, w])), *ad.gradients(ops.sum_op(firsts[2]), [h])]
    wanted = ad.Executor(nodes, "numpy").run(feed)
    first, second, tracked = feed[h], feed[w], []
    for t in range(4):
        tracked.append(first)
        first, second = second, feed[x][t] * feed[w]
    np.testing.assert_allclose(wanted[0], first, rtol=1e-6)
    np.testing.assert_allclose(wanted[1], second, rtol=1e-6)
    np.testing.assert_allclose(wanted[3], np.stack(tracked), rtol=1e-6)
    for passes in (None, ()):
        for a, b in zip(ad.Executor(nodes, passes=passes).run(feed, True), wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max(initial=1.0))


def test_gradients_of_loops_whose_length_is_known_when_fed() -> None:
    """That read nothing of the slices."""
    u, v = ad.Variable("u"), ad.Variable("v")
    (grad,) = ad.gradients(ops.sum_op(ad.scan_op(lambda c, s: (c * 2.0, s), u, v)[0]), [u])
    feed = {u: np.ones(3, "float32"), v: np.ones((5, 3), "float32")}
    assert ad.Executor([grad]).run(feed, True)[0].tolist() == [32.0] * 3


def sums(length: int) -> tuple[Node, Node, ad.Executor]:
    """Running sums of products with a matrix."""
    x, w = ad.Variable("x", (length, 8, 64)), ad.Variable("w", (64, 64))
    zeros = ad.full_op((8, 64), 0.0)
    total, _ = ad.scan_op(lambda total, x: (ad.tanh_op(total @ w) + x, None), zeros, x)
    return x, w, ad.Executor([total, *ad.gradients(ops.sum_op(total * total), [w])])


@pytest.mark.slow
def test_a_step_is_compiled_once_and_the_table_repeats_it() -> None:
    groups = []
    for length in (2, 3, 1000):
        x, w, executor = sums(length)
        feed = {x: (length, 8, 64), w: (64, 64)}
        assert f"loop, {length} steps" in executor.groups(feed)
        assert f"for t in range({length}):" in executor.script(None, feed)
        groups.append([spec.key for spec in executor.latest_plan().specs.values()])
        rng = np.random.default_rng(0)
        values = {v: 0.1 * rng.standard_normal(s).astype("float32") for v, s in feed.items()}
        value = executor.run(values, True)[0]
        wanted = np.zeros((8, 64), "float32")
        for step in values[x]:
            wanted = np.tanh(wanted @ values[w]) + step
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-5)
        executor.run(values)
        assert executor.allocations == 1
    assert len(groups[0]) == len(groups[1]) == len(groups[2])


def test_what_is_carried_and_not_kept_takes_two_places() -> None:
    x = ad.Variable("x", (1000, 256))
    total, _ = ad.scan_op(lambda total, x: (ad.exp_op(total) * x, None), ad.full_op((256,), 0.0), x)
    plan = ad.Executor([total]).memory_plan({x: (1000, 256)})
    assert plan.bytes_planned <= 4 * 256 * 4 + 64


def test_loops_that_differ_in_one_thing_are_not_taken_for_one() -> None:
    """In the number of steps, the direction, or where gradients stop."""
    x, xs = ad.Variable("x", (3,)), ad.Variable("xs", (4, 3))
    three, five = (ad.scan_op(lambda v, _: (v * 2.0, None), x, length=n)[0] for n in (3, 5))
    there, back = (ad.scan_op(lambda v, s: (v * 0.5 + s, None), x, xs, reverse=r)[0] for r in (False, True))
    nodes = [three, five, *(g for n in (three, five) for g in ad.gradients(n, [x])), there, back]
    feed = {x: np.ones(3), xs: np.arange(12.0).reshape(4, 3)}
    found = ad.Executor(nodes).run({v: a.astype("float32") for v, a in feed.items()}, True)
    assert [value[0] for value in found[:4]] == [8, 32, 8, 32]
    value, other = np.ones(3), np.ones(3)
    for i in range(4):
        value, other = value * 0.5 + feed[xs][i], other * 0.5 + feed[xs][3 - i]
    np.testing.assert_allclose(found[4:], [value, other])
    for stopped, wanted in ((False, 4.0), (True, 1.0), (False, 4.0)):
        leaf = dl.tensor([3.0], requires_grad=True)

        def step(v: Any, _: Any, stopped: bool = stopped) -> Any:
            with dl.no_grad() if stopped else contextlib.nullcontext():
                doubled = v * 1.0
            return doubled + v, None

        dl.scan(step, leaf, length=2)[0].sum().backward()
        assert leaf.grad.item() == wanted


def test_loops_of_nothing() -> None:
    x, xs = ad.Variable("x", (0, 3)), ad.Variable("xs", (2, 0, 3))
    last, kept = ad.scan_op(lambda v, s: (v + s, ad.exp_op(v)), x, xs)
    found = ad.Executor([last, kept, *ad.gradients(ops.sum_op(kept) + ops.sum_op(last), [x, xs])])
    values = found.run({x: np.zeros((0, 3)), xs: np.zeros((2, 0, 3))}, True)
    assert [value.shape for value in values] == [(0, 3), (2, 0, 3), (0, 3), (2, 0, 3)]


@pytest.mark.slow
def test_a_recurrent_step_trains_as_a_loop_and_is_exported() -> None:
    for batch in (3, 32):
        dl.manual_seed(0)
        net = nn.LSTM(4, 8)
        x, y = ad.Variable("x", (5, batch, 4)), ad.Variable("y", (5, batch, 8))
        loss = ad.mse_loss_op(net(x)[0], y)
        executor = ad.Executor([loss, optim.SGD(net.parameters(), lr=2.0).minimize(loss)])
        rng = np.random.default_rng(0)
        feed = {x: rng.standard_normal((5, batch, 4)), y: rng.uniform(-0.5, 0.5, (5, batch, 8))}
        feed = {node: value.astype("float32") for node, value in feed.items()}
        parameters = [p.numpy().copy() for p in net.parameters()]
        losses = [executor.run(feed, True)[0].item() for _ in range(60)]
        assert losses[-1] < 0.85 * losses[0] and str(executor.groups()).count("loop, 5 steps") == 2
        profile = executor.profile(feed, runs=2)
        inside = [row for row in profile.rows if row.groups[0][1:2] == (1,)]  # of a step
        assert len(inside) > 3 and all(row.calls % 5 == 0 for row in inside)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "step.so")
            told = dl.export(executor, path)
            arrays = {"x": feed[x], "y": feed[y]}
            arrays |= dict(zip((p.name for p in net.parameters()), parameters, strict=True))
            names = [part.split(":")[0].strip() for part in told[told.index("(") + 1 :].split(", ") if ":" in part]
            result = np.zeros((), "float32")
            arrays["arena"] = np.zeros(int(re.findall(r"arena: uint8\[(\d+)\]", told)[0]), "uint8")
            tvm_ffi.load_module(str(path))["step"](*(tvm_ffi.from_dlpack(arrays.get(name, result)) for name in names))
        assert abs(result.item() - losses[0]) < 1e-6


@pytest.mark.slow
def test_two_threads_compute_what_one_does() -> None:
    rng = np.random.default_rng(0)
    x, y = ad.Variable("x", (5, 32, 8)), ad.Variable("y", (5, 32, 8))
    feed = {x: rng.standard_normal((5, 32, 8)).astype("float32"), y: np.zeros((5, 32, 8), "float32")}
    for kind in (nn.RNN, nn.LSTM, nn.GRU):
        net = kind(8, 12)
        loss = ad.mse_loss_op(net(x)[0][:, :, :8], y)
        results = [loss, *ad.gradients(loss, [x, *net.parameters()])]
        found = []
        for threads in (1, 2):
            with on_threads(threads):
                executor = ad.Executor(results)
                found += [executor.run(feed, True) for _ in range(2)]
        for other in found[1:]:
            for one, same in zip(found[0], other, strict=True):
                np.testing.assert_array_equal(one, same)
