"""Optimizers: groups, parameters that do not all move together, changed settings, and what is kept between runs."""

from __future__ import annotations

import copy
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import nn, optim
from helpers import error_of
from optional import torch
from test_optim import CONFIGURATIONS, Model, make
from test_serialization import same

TOLERANCE = {"float32": 2e-5, "float64": 1e-11}
SHAPES = ((3, 2), (4,), ())


def drawn(dtype: str, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.standard_normal(shape), dtype) for shape in SHAPES]


def close(found: list[ad.Parameter], wanted: list[np.ndarray], dtype: str, what: Any) -> None:
    for parameter, value in zip(found, wanted, strict=True):
        np.testing.assert_allclose(parameter.value, value, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype], err_msg=what)


class Half(dl.nn.Module):
    """Uses b in the first step alone."""

    def __init__(self) -> None:
        self.a, self.b = dl.nn.Parameter(np.ones(3, "float32")), dl.nn.Parameter(np.ones(3, "float32"))

    def forward(self, x: Any, first: bool) -> Any:
        return (x * self.a + self.b if first else x * self.a).square().sum()


@pytest.mark.parametrize("uses_b_first", [False, True])
def test_eager_and_compiled_steps_leave_what_the_loss_does_not_use(uses_b_first: bool) -> None:
    x = np.float32([1.0, 2.0, 3.0])
    for name, options in (("SGD", {"lr": 0.1, "weight_decay": 0.5, "momentum": 0.9}), ("Adam", {"lr": 0.1})):
        eager, compiled = Half(), Half()
        optimizers = [getattr(optim, name)(module.parameters(), **options) for module in (eager, compiled)]
        for step in range(3):
            first = uses_b_first and step == 0
            optimizers[0].zero_grad()
            eager(dl.tensor(x), first).backward()
            assert (eager.b.grad is not None) == first and eager.a.grad is not None
            optimizers[0].step()
            given = ad.Variable("x", x.shape)
            ad.Executor([optimizers[1].minimize(compiled(given, first))]).run({given: x})
        np.testing.assert_allclose(eager.a.value, compiled.a.value, 1e-6)
        np.testing.assert_allclose(eager.b.value, compiled.b.value, 1e-6)
        assert (eager.b.value == 1.0).all() != uses_b_first


def test_threads_may_share_an_optimizer() -> None:
    parameter = dl.nn.Parameter(np.zeros(2, "float32"))
    optimizer = optim.SGD([parameter], lr=1.0)

    def train(count: int) -> None:
        for _ in range(count):
            parameter.grad = dl.tensor([1.0, 1.0])
            optimizer.step()
            optimizer.zero_grad()

    optimizer.step()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for future in [pool.submit(train, 200) for _ in range(4)]:
                future.result()
    finally:
        sys.setswitchinterval(before)
    steps = -parameter.value
    assert steps[0] == steps[1] and 0 < steps[0] <= 800


def test_a_group_joins_and_settings_change() -> None:
    first, second, _ = drawn("float64")
    mine = [ad.Parameter(first), ad.Parameter(second)]
    theirs = [torch.tensor(value, requires_grad=True) for value in (first, second)]
    opt, reference = optim.SGD(mine[:1], lr=0.3), torch.optim.SGD(theirs[:1], lr=0.3)
    for step in range(6):
        for parameter, tensor, value in zip(mine, theirs, drawn("float64", step), strict=False):
            parameter.grad, tensor.grad = dl.tensor(value), torch.tensor(value)
        opt.step(), reference.step()
        close(mine, [tensor.detach().numpy() for tensor in theirs], "float64", f"step {step}")
        groups: list[Any] = [opt.param_groups, reference.param_groups]
        if step == 1:
            for optimizer, values in ((opt, mine), (reference, theirs)):
                optimizer.add_param_group({"params": values[1:], "lr": 0.1, "weight_decay": 0.2})
        elif step == 3:
            for each in groups:
                each[0]["lr"] *= 0.5
                each[1]["momentum"] = 0.9
                each[1]["weight_decay"] = 0.0
    assert groups[0][1]["lr"] == 0.1 and groups[0][0]["initial_lr"] == 0.15
    assert groups[0][1]["params"] == [mine[1]] and groups[1][0].keys() >= {"params", "lr", *opt.defaults}
    assert groups[0][0].keys() == {"params", "lr", "initial_lr", *opt.defaults}
    assert len(opt.groups) == 2 and len(opt.state) == 2


def test_closure_and_gradients_of_zeros() -> None:
    parameter = ad.Parameter(np.ones(2, "float32"))
    opt = optim.SGD([parameter], lr=0.5)

    def closure() -> ad.Node:
        opt.zero_grad()
        loss = (parameter * parameter).sum()
        loss.backward()
        return loss

    assert float(opt.step(closure)) == 2 and parameter.value.tolist() == [0, 0]
    opt.zero_grad(set_to_none=False)
    assert parameter.grad.numpy().tolist() == [0, 0]


def test_one_node_in_two_executors_and_batch_sizes_shares_the_state() -> None:
    model = Model(make("Adam", {"lr": 0.01}), "float64", "numpy")
    train = model.opt.minimize(model.loss)
    other = ad.Executor([train], ctx="numpy")
    x, y = model.batches[0]
    model.train(1)
    other.run({model.x: x[:4], model.y: y[:4]})
    model.train(1)
    assert [kept["step"] for kept in model.opt.state_dict()["state"].values()] == [3, 3]


def test_training_goes_on_from_a_state_dict() -> None:
    for name, options in [CONFIGURATIONS[i] for i in (0, 3, 5, 11)]:
        model = Model(make(name, options), "float32", "numpy")
        model.train(5)
        model.opt.lr = 0.25
        model.opt.groups[0].schedule_lr(0.125)
        state, values = model.opt.state_dict(), [parameter.value for parameter in model.parameters]
        expected = model.train(5, first=5)
        again = Model(make(name, options), "float32", "numpy")
        again.opt.load_state_dict(state)
        assert (again.opt.lr, again.opt.groups[0].initial_lr) == (0.125, 0.25)
        for parameter, value in zip(again.parameters, values, strict=True):
            parameter.value = value
        for a, b in zip(again.train(5, first=5), expected, strict=True):
            assert all((p == q).all() for p, q in zip(a, b, strict=True)), name


def test_state_dict_holds_copies_and_load_is_strict() -> None:
    model = Model(make("Adam", {}), "float32", "numpy")
    model.train(2)
    state = model.opt.state_dict()
    assert list(state["state"]) == [0, 1]
    assert all(sorted(kept) == ["exp_avg", "exp_avg_sq", "step"] for kept in state["state"].values())
    (group,) = state["param_groups"]
    assert group["params"] == [0, 1] and group["betas"] == (0.9, 0.999) and group["lr"] == group["initial_lr"]
    assert state["state"][1]["step"] == 2 and state["state"][0]["exp_avg"].shape == (5, 3)
    before = copy.deepcopy(state)
    model.train(1)
    assert same(state, before)

    load, present = model.opt.load_state_dict, model.opt.state_dict()
    kept = state["state"]
    for kind, words, wrong in (
        (dl.GraphError, 'needs a dictionary of "state" and "param_groups"', [1]),
        (dl.GraphError, "groups have [2] parameters, the state's [2, 2]", {**state, "param_groups": [group, group]}),
        (dl.GraphError, "lr must be a number >= 0", {**state, "param_groups": [{**group, "lr": -1}]}),
        (dl.GraphError, "missing keys: state.1.exp_avg; unexpected keys: state.7, state.1.other",
         {**state, "state": {0: kept[0], 7: {}, 1: {**{k: kept[1][k] for k in ("exp_avg_sq", "step")}, "other": 0}}}),
        (dl.ShapeError, "state.1.exp_avg has shape (3,), the value (4,)",
         {**state, "state": {**kept, 1: {**kept[1], "exp_avg": np.zeros(4)}}}),
        (dl.DTypeError, "state.1.exp_avg is <U1, not an array of numbers",
         {**state, "state": {**kept, 1: {**kept[1], "exp_avg": ["a"] * 3}}}),
    ):  # fmt: skip
        assert words in error_of(kind, load, wrong), words
    assert same(model.opt.state_dict(), present)


@pytest.mark.slow
def test_states_of_pytorch_load_and_training_goes_on_as_there() -> None:
    x = np.random.default_rng(0).standard_normal((6, 5)).astype("float32")
    for name, options in (
        ("SGD", {"lr": 0.05}),
        ("SGD", {"lr": 0.05, "momentum": 0.9}),
        ("Adam", {"lr": 0.02, "weight_decay": 0.1}),
        ("AdamW", {"lr": 0.02}),
        ("RMSprop", {"momentum": 0.5}),
    ):
        mine, theirs = nn.Linear(5, 3), torch.nn.Linear(5, 3)
        opt = getattr(optim, name)(mine.parameters())
        reference = getattr(torch.optim, name)(theirs.parameters(), **options)

        def step(network: Any, optimizer: Any, values: Any) -> None:
            optimizer.zero_grad()
            (network(values) ** 2).mean().backward()
            optimizer.step()

        opt.load_state_dict(reference.state_dict())  # before its first step: nothing is kept yet
        for _ in range(2):
            step(theirs, reference, torch.tensor(x))
        mine.load_state_dict(theirs.state_dict())
        opt.load_state_dict(reference.state_dict())
        for _ in range(2):
            step(theirs, reference, torch.tensor(x))
            step(mine, opt, dl.tensor(x))
        for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
            np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-5, atol=1e-6, err_msg=name)


def test_options_are_part_of_the_state() -> None:
    opt = optim.SGD([{"params": [ad.Parameter(np.zeros(2))], "momentum": 0.5}, {"params": [ad.Parameter(np.ones(3))]}])
    state = opt.state_dict()
    assert [group["momentum"] for group in state["param_groups"]] == [0.5, 0.0]
    state["param_groups"][1] |= {"momentum": 0.7, "nesterov": True}
    opt.load_state_dict(state)
    assert [group["momentum"] for group in opt.groups] == [0.5, 0.7] and opt.groups[1]["nesterov"]
