"""What an optimizer keeps between runs: the learning rate, buffers and counts, and its state_dict."""

from __future__ import annotations

import copy
import os
import tempfile
from typing import Any

import dlsys as dl
import numpy as np
import torch
from dlsys import autodiff as ad
from dlsys import nn, optim
from helpers import error_of
from test_optim import CONFIGURATIONS, Model, make
from test_serialization_nested import same


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
        (dl.GraphError, 'needs a dictionary of "state" and "param_groups"', kept),
        (dl.GraphError, "param_groups must be a list", {**state, "param_groups": {"lr": 1}}),
        (dl.GraphError, "groups have [2] parameters, the state's [2, 2]", {**state, "param_groups": [group, group]}),
        (dl.GraphError, "have [2] parameters, the state's [1]", {**state, "param_groups": [{**group, "params": [0]}]}),
        (dl.GraphError, "unexpected settings: momentum", {**state, "param_groups": [{**group, "momentum": 0.9}]}),
        (dl.GraphError, "lr must be a number >= 0", {**state, "param_groups": [{**group, "lr": -1}]}),
        (dl.GraphError, "betas must be two numbers", {**state, "param_groups": [{**group, "betas": 3}]}),
        (dl.GraphError, "missing keys: state.1.exp_avg; unexpected keys: state.7, state.1.other",
         {**state, "state": {0: kept[0], 7: {}, 1: {**{k: kept[1][k] for k in ("exp_avg_sq", "step")}, "other": 0}}}),
        (dl.ShapeError, "state.1.exp_avg has shape (3,), the value (4,)",
         {**state, "state": {**kept, 1: {**kept[1], "exp_avg": np.zeros(4)}}}),
        (dl.DTypeError, "state.1.exp_avg is <U1, not an array of numbers",
         {**state, "state": {**kept, 1: {**kept[1], "exp_avg": ["a"] * 3}}}),
    ):  # fmt: skip
        assert words in error_of(kind, load, wrong), words
    assert same(model.opt.state_dict(), present)


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
    state["param_groups"][1]["maximize"] = True
    assert "maximize must be False" in error_of(dl.GraphError, opt.load_state_dict, state)


def test_everything_in_one_file_goes_on_to_the_same_bits() -> None:
    x = np.random.default_rng(0).standard_normal((6, 5)).astype("float32")

    def made() -> tuple[Any, Any, Any]:
        model = nn.Linear(5, 3)
        optimizer = optim.Adam(model.parameters(), 0.05)
        return model, optimizer, optim.lr_scheduler.StepLR(optimizer, 2)

    def train(model: Any, optimizer: Any, schedule: Any) -> None:
        for _ in range(3):
            optimizer.zero_grad()
            (model(x) ** 2).mean().backward()
            optimizer.step()
            schedule.step()

    run = made()
    train(*run)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "checkpoint.safetensors")
        names = ("model", "optimizer", "schedule")
        dl.save({**{name: part.state_dict() for name, part in zip(names, run, strict=True)}, "epoch": 3}, path)
        train(*run)
        again, found = made(), dl.load(path)
        assert found["epoch"] == 3
        for name, part in zip(names, again, strict=True):
            part.load_state_dict(found[name])
    train(*again)
    assert same([part.state_dict() for part in again], [part.state_dict() for part in run])
