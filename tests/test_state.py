"""Parameters and assignments: when they act, in which order, where they are stored, who sees them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import devices, nn, optim
from dlsys.errors import DlsysError, FeedError, GraphError
from dlsys.nn import functional as F
from dlsys.tensors.inplace import advancing
from helpers import error_of
from optional import torch

CONTEXTS = ("cpu", "numpy")


def parameter(values: object, name: str = "p") -> ad.Parameter:
    return ad.Parameter(np.asarray(values, "float32"), name)


def test_a_parameter_need_not_be_fed_and_keeps_its_value() -> None:
    for ctx in CONTEXTS:
        x, p = ad.Variable("x"), parameter([1, 2, 3])
        executor = ad.Executor([x * p], ctx)
        assert np.asarray(executor.run({x: np.float32([2, 2, 2])})[0]).tolist() == [2, 4, 6]
        p.value = [3, 4, 5]
        assert np.asarray(executor.run({x: np.float32([2, 2, 2])})[0]).tolist() == [6, 8, 10]
        assert p.value.tolist() == [3, 4, 5] and p.value.dtype == np.float32
        # feeding it holds for that run alone
        assert np.asarray(executor.run({x: np.float32([1, 1, 1]), p: np.float32([7, 7, 7])})[0]).tolist() == [7] * 3
        assert p.value.tolist() == [3, 4, 5]


def test_assignments_act_at_the_end_and_see_old_values() -> None:
    for ctx in CONTEXTS:
        a, b, c = parameter([1, 2], "a"), parameter([10, 20], "b"), parameter([5, 5], "c")
        swap = ad.group([ad.assign(a, b), ad.assign(b, a), ad.assign(c, a + b)])
        executor = ad.Executor([swap, a + 0.5], ctx)
        nothing, old = executor.run({}, convert_to_numpy_ret_vals=True)
        assert nothing is None and old.tolist() == [1.5, 2.5]
        assert (a.value.tolist(), b.value.tolist(), c.value.tolist()) == ([10, 20], [1, 2], [11, 22])
        executor.run({})
        assert (a.value.tolist(), b.value.tolist(), c.value.tolist()) == ([1, 2], [10, 20], [11, 22])


def test_one_value_for_two_parameters_and_a_fed_value() -> None:
    for ctx in CONTEXTS:
        a, b, x = parameter([1, 2], "a"), parameter([0, 0], "b"), ad.Variable("x")
        total = a + x
        ad.Executor([ad.assign(a, total), ad.assign(b, total)], ctx).run({x: np.float32([1, 1])})
        assert a.value.tolist() == b.value.tolist() == [2, 3]
        ad.Executor([ad.group([ad.assign(a, x)])], ctx).run({x: (fed := np.float32([8, 9]))})
        fed[:] = 0
        assert a.value.tolist() == [8, 9]


def test_a_parameter_read_by_a_product_is_updated_behind_it() -> None:
    rng = np.random.default_rng(0)
    w0, v0 = (rng.standard_normal((40, 40)).astype("float32") for _ in range(2))
    for ctx in CONTEXTS:
        w, v, x = ad.Parameter(w0, "w"), ad.Parameter(v0, "v"), ad.Variable("x")
        # w's new value reads v, v's new value reads w: neither may be written before both are computed
        update = ad.group([ad.assign(w, x @ v), ad.assign(v, w @ x - w)])
        given = rng.standard_normal((40, 40)).astype("float32")
        ad.Executor([update], ctx).run({x: given})
        np.testing.assert_allclose(w.value, given @ v0, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(v.value, w0 @ given - w0, rtol=1e-3, atol=1e-4)


def test_updates_in_place_take_no_memory() -> None:
    w, g = parameter(np.ones((64, 64))), ad.Variable("g")
    executor = ad.Executor([ad.group([ad.assign(w, w - g * 0.5)])])
    plan = executor.memory_plan({g: (64, 64)})
    assert plan.bytes_planned == 0
    executor.run({g: np.ones((64, 64), "float32")})
    assert (w.value == 0.5).all()
    before = devices.allocation_count()
    for _ in range(50):
        executor.run({g: dl.zeros((64, 64))})
    assert devices.allocation_count() == before + 50  # the feeds alone


def test_executors_share_a_parameter_and_it_moves_between_contexts() -> None:
    a = parameter([1.0])
    double, read = ad.Executor([ad.assign(a, a * 2.0)]), ad.Executor([a + 0.0])
    on_numpy = ad.Executor([ad.assign(a, a + 1.0)], "numpy")
    double.run({})
    double.run({})
    assert float(np.asarray(read.run({})[0])[0]) == 4
    on_numpy.run({})
    double.run({})
    assert a.value.tolist() == [10]
    assert float(np.asarray(read.run({})[0])[0]) == 10


def test_a_bad_run_leaves_parameters_untouched() -> None:
    w, x = parameter(np.ones((3, 2))), ad.Variable("x")
    executor = ad.Executor([ad.group([ad.assign(w, w - x)])])
    executor.run({x: np.zeros((3, 2), "float32")})
    given = np.full((3, 2), 5, "float32")
    for ctx in CONTEXTS:  # the update must not go into the array that stands for the parameter
        both = ad.Executor([ad.group([ad.assign(w, w + 1.0)])], ctx)
        assert "set p.value instead" in error_of(FeedError, both.run, {w: given})
        assert (given == 5).all() and (w.value == 1).all()
    for bad in ({}, {x: np.zeros((4, 2), "float32")}, {x: np.zeros((3, 2), "float64")}, {x: "text"}):
        error_of(DlsysError, executor.run, bad)
        assert (w.value == 1).all()
    executor.run({x: np.ones((3, 2), "float32")})
    assert (w.value == 0).all()


def resident() -> int:
    """Bytes of memory that the process holds; 0 where the system does not tell."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0


@pytest.mark.slow
def test_ten_thousand_steps_leave_the_memory_flat() -> None:
    rng = np.random.default_rng(0)
    x, y = ad.Variable("x"), ad.Variable("y")
    w, b = parameter(rng.standard_normal((20, 5)), "w"), parameter(np.zeros(5), "b")
    loss = ad.softmaxcrossentropy_op(x @ w + b, y)
    train = ad.Executor([loss, optim.SGD([w, b], 0.1, momentum=0.9).minimize(loss)])
    feed = {x: rng.standard_normal((8, 20)).astype("float32"), y: np.eye(5, dtype="float32")[rng.integers(0, 5, 8)]}
    first = float(train.run(feed)[0])
    for _ in range(1000):
        train.run(feed)
    before = resident()
    for _ in range(10_000):
        (last, _) = train.run(feed)
    assert resident() - before < 512 * 1024  # 50 bytes a step
    assert float(last) < 0.1 * first


def test_a_value_with_updates_makes_them_once_a_run() -> None:
    count = parameter([0.0], "count")
    x = ad.Variable("x")
    advance = ad.assign(count, count + 1.0)
    y = ad.with_updates_op(x * 2.0, [advance])
    z = ad.with_updates_op(y + x, [advance])
    (grad,) = ad.gradients(z * z, [x])
    for ctx in ("cpu", "numpy"):
        for names in ((), None):
            count.value = [0.0]
            executor = ad.Executor([z, y, grad], ctx, passes=names)
            for step in (1, 2):
                found = executor.run({x: np.array([3.0], "f4")}, convert_to_numpy_ret_vals=True)
                assert [float(value[0]) for value in found] == [9.0, 6.0, 54.0] and count.value == [step]
    ad.Executor([x * 1.0]).run({x: 1.0})
    assert count.value == [2.0]
    assert "no assignment" in error_of(GraphError, ad.with_updates_op, x, [y])


def test_updates_that_follow_each_other() -> None:
    """Each finds what the one made before it left, whichever of them the run comes upon first."""
    for ctx in ("cpu", "numpy", None):
        a = parameter([1.0, 2.0])
        advance = advancing if ctx else ad.advance_op
        added = advance(a, lambda before: before + 1.0)
        read = added * 10.0
        doubled = advance(a, lambda before: before * 2.0)
        if ctx is None:
            both = ad.with_updates_op(doubled - read, [doubled, added])
            assert both.numpy().tolist() == [-16.0, -24.0] and a.value.tolist() == [4, 6]
            updates = [ad.advance_op(a, lambda before: before + 1.0) for _ in range(2)]
            late, later = (ad.with_updates_op(update * 1.0, [update]) for update in updates)
            later.numpy(), late.numpy()  # whichever is asked for first: in the order in which they were made
            assert late.numpy().tolist() == [5, 7] and later.numpy().tolist() == [6, 8] == a.value.tolist()
            continue
        executor = ad.Executor([ad.group([doubled]), doubled - read], ctx)
        executor.run({})
        executor.run({})
        assert a.value.tolist() == [10, 14], (ctx, a.value)
        alone = ad.Executor([doubled], ctx)
        alone.run({})
        assert a.value.tolist() == [20, 28]
    added, plain = advancing(a, lambda before: before + 1.0), ad.assign(a, a * 3.0)
    assert "assigned twice" in error_of(GraphError, ad.Executor([added, plain]).run, {})
    assert "must be a Parameter" in error_of(GraphError, ad.advance_op, a * 1.0, lambda v: v)


def test_one_value_for_two_states_is_copied() -> None:
    """No two leaves hold one array, nor does one hold that of a computed tensor: compiled steps write in place."""
    for give in (
        lambda p, q, y: [ad.advance_op(p, lambda v: y), ad.advance_op(q, lambda v: y)],
        lambda p, q, y: [ad.with_updates_op(y * 1.0, [ad.assign(p, y), ad.assign(q, y)])],
    ):
        for made in (lambda: dl.tensor([1.0, 2.0]) * 3.0, lambda: parameter([3, 6], "value")):
            for look_first in (False, True):
                p, q, y = parameter([0, 0]), parameter([0, 0], "q"), made()
                if look_first:
                    y.numpy()
                give(p, q, y)
                assert (p * 2.0).numpy().tolist() == [6, 12]
                assert p.value.tolist() == q.value.tolist() == [3, 6]
                ad.Executor([ad.assign(p, p * 10.0)]).run({})
                assert p.value.tolist() == [30, 60]
                assert q.value.tolist() == y.numpy().tolist() == [3, 6]


def test_a_change_is_computed_once_and_later_ones_read_it() -> None:
    p, q, read = parameter(np.zeros(1000)), parameter(np.zeros(1000), "q"), []
    for i in range(20):
        y = dl.tensor(np.full(1000, i, "float32")) * 1.0
        for cell in (p, q):
            ad.advance_op(cell, lambda v, y=y: y)
            assert cell.value[0] == i
            read.append(cell * 2.0)
        for cell in (p, q):
            cell.value = np.zeros(1000)
    assert [value.numpy()[0] for value in read[::2]] == [2.0 * i for i in range(20)]


RNG = np.random.default_rng(0)
BATCHES = [(RNG.standard_normal((8, 3)) + i).astype("float32") for i in range(11)]


def same(mine: Any, theirs: Any) -> None:
    """Equal buffers of a module and PyTorch's."""
    for name, value in theirs.named_buffers():
        own = dict(mine.named_buffers())[name].numpy()
        np.testing.assert_allclose(own, value.numpy(), rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_statistics_move_once_a_call_in_the_order_of_the_calls() -> None:
    """Whether somebody looks at the values or not, and in whatever order; compiled steps come after what waits."""

    def pair(momentum: float | None = 0.1) -> tuple[Any, Any]:
        return nn.BatchNorm1d(3, momentum=momentum), torch.nn.BatchNorm1d(3, momentum=momentum)

    for count in (1, 2, 11):
        mine, theirs = pair()
        with dl.no_grad():
            for x in BATCHES[:count]:
                mine(x), theirs(torch.tensor(x))
        same(mine, theirs)
    for order in ((2, 0, 1), (1,), ()):
        mine, theirs = pair(None)
        ys, zs = [mine(x) for x in BATCHES[:3]], [theirs(torch.tensor(x)) for x in BATCHES[:3]]
        for i in (*order, 0):
            np.testing.assert_allclose(ys[i].numpy(), zs[i].detach().numpy(), atol=1e-5)
            same(mine, theirs)
    assert mine.state_dict()["num_batches_tracked"] == 3
    mine(BATCHES[0]), theirs(torch.tensor(BATCHES[0]))
    x = ad.Variable("x", (8, 3))
    executor = ad.Executor([mine(x)])
    for batch in BATCHES[1:4]:
        executor.run({x: batch}), theirs(torch.tensor(batch))
    same(mine, theirs)


def test_draws_do_not_depend_on_what_is_asked_first() -> None:
    def drawn(order: tuple[int, ...]) -> list[Any]:
        dl.manual_seed(3)
        made = [F.dropout(dl.ones(40), 0.5) for _ in range(3)]
        found = {i: made[i].numpy() for i in order}
        (made[0] * 2).numpy()
        return [found[i].tolist() for i in range(3)]

    first = drawn((0, 1, 2))
    assert first == drawn((2, 0, 1)) == drawn((1, 2, 0)) and first[0] != first[1] != first[2]
