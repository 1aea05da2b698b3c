"""Adamax, NAdam, RAdam and Adadelta against PyTorch, over 100 steps; the keywords that PyTorch's constructors take."""

from __future__ import annotations

from typing import Any

import dlsys as dl
import numpy as np
import torch
from dlsys import autodiff as ad
from dlsys import nn, optim
from dlsys.errors import GraphError
from helpers import error_of
from test_optim import STEPS, TOLERANCE, Model, start

CONFIGURATIONS: list[tuple[str, dict[str, Any]]] = [
    ("Adamax", {}),
    ("Adamax", {"lr": 0.1, "betas": (0.8, 0.9), "weight_decay": 0.1, "eps": 1e-4, "maximize": True}),
    ("NAdam", {}),
    ("NAdam", {"lr": 0.05, "weight_decay": 0.1, "momentum_decay": 0.1}),
    ("NAdam", {"lr": 0.05, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {"lr": 0.05}),
    ("RAdam", {"lr": 0.05, "betas": (0.8, 0.9), "weight_decay": 0.1}),
    ("RAdam", {"lr": 0.05, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {"lr": 0.01, "betas": (0.5, 0.6)}),
    ("Adadelta", {}),
    ("Adadelta", {"lr": 0.5, "rho": 0.8, "eps": 1e-4, "weight_decay": 0.1}),
]


def torch_history(name: str, options: dict[str, Any], model: Model) -> list[list[np.ndarray]]:
    """The parameters after each step of PyTorch, in float64."""
    parameters = [torch.tensor(value.astype("float64"), requires_grad=True) for value in start("float64")]
    optimizer = getattr(torch.optim, name)(parameters, **options)
    history = []
    for step in range(STEPS):
        x, y = (torch.tensor(array.astype("float64")) for array in model.batches[step % 2])
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(x @ parameters[0] + parameters[1], y).backward()
        optimizer.step()
        history.append([parameter.detach().numpy().copy() for parameter in parameters])
    return history


def test_numbers_are_those_of_pytorch() -> None:
    for dtype in ("float32", "float64"):
        for name, options in CONFIGURATIONS:
            model = Model(lambda p, name=name, options=options: getattr(optim, name)(p, **options), dtype, "numpy")
            expected = torch_history(name, options, model)
            # PyTorch keeps NAdam's product of momenta in float32
            tolerance = 1e-7 if (name, dtype) == ("NAdam", "float64") else TOLERANCE[dtype]
            for step, (a, b) in enumerate(zip(model.train(STEPS), expected, strict=True)):
                for p, q in zip(a, b, strict=True):
                    limit = max(1.0, float(np.abs(q).max())) * tolerance
                    assert np.abs(p - q).max() <= limit, (name, options, dtype, step, np.abs(p - q).max())


def test_compiled_steps_are_those_of_numpy() -> None:
    for number in (1, 4, 5, 10):
        name, options = CONFIGURATIONS[number]
        histories = []
        for ctx in ("numpy", "cpu"):
            model = Model(lambda p, name=name, options=options: getattr(optim, name)(p, **options), "float32", ctx)
            histories.append(model.train(10)[-1])
        for a, b in zip(*histories, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=name)


def test_steps_after_backward_and_states_of_pytorch() -> None:
    x = np.random.default_rng(0).standard_normal((6, 5)).astype("float32")
    for name, options in (CONFIGURATIONS[1], CONFIGURATIONS[4], CONFIGURATIONS[7], CONFIGURATIONS[10]):
        mine, theirs = nn.Linear(5, 3), torch.nn.Linear(5, 3)
        opt, reference = (
            getattr(home, name)(network.parameters(), **options)
            for home, network in ((optim, mine), (torch.optim, theirs))
        )
        for step in range(6):
            if step == 3:
                mine.load_state_dict(theirs.state_dict())
                opt.load_state_dict(reference.state_dict())
            for network, optimizer, values in ((theirs, reference, torch.tensor(x)), (mine, opt, dl.tensor(x))):
                optimizer.zero_grad()
                (network(values) ** 2).mean().backward()
                optimizer.step()
        for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
            np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-5, atol=1e-6, err_msg=name)


def test_one_cycle_varies_the_first_of_the_betas() -> None:
    for name in ("Adamax", "NAdam", "RAdam"):
        schedule = optim.lr_scheduler.OneCycleLR(getattr(optim, name)([ad.Parameter(np.ones(3))]), 0.1, 10)
        (parameter,) = schedule.optimizer.parameters
        reference = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
        theirs = getattr(torch.optim, name)([reference])
        other = torch.optim.lr_scheduler.OneCycleLR(theirs, 0.1, 10)
        for step in range(5):
            gradient = np.array([1.0, -2.0, 0.5]) * (step + 1)
            parameter.grad = dl.tensor(gradient)
            reference.grad = torch.tensor(gradient)
            for optimizer, scheduler in ((schedule.optimizer, schedule), (theirs, other)):
                optimizer.step()
                scheduler.step()
        np.testing.assert_allclose(parameter.numpy(), reference.detach().numpy(), rtol=1e-6, err_msg=name)
        assert schedule.optimizer.groups[0]["betas"][0] == theirs.param_groups[0]["betas"][0] != 0.9


def test_keywords_that_change_nothing_are_taken_and_others_named() -> None:
    parameters = [ad.Parameter(np.ones(3))]
    for name in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam"):
        optimizer = getattr(optim, name)(parameters, foreach=True, fused=False, capturable=False, differentiable=False)
        assert "foreach" not in optimizer.groups[0]
        told = error_of(TypeError, getattr(optim, name), parameters, foreache=True)
        assert told == f"{name}: unexpected keyword argument 'foreache'"
    for words, kind, options in (
        ("NAdam: momentum_decay must be >= 0", optim.NAdam, {"momentum_decay": -1}),
        ("RAdam: betas must be two numbers", optim.RAdam, {"betas": 0.9}),
        ("Adamax: betas must be >= 0 and < 1", optim.Adamax, {"betas": (0.9, 1.0)}),
        ("Adadelta: rho must be >= 0 and < 1", optim.Adadelta, {"rho": 1.5}),
    ):
        assert words in error_of(GraphError, kind, parameters, **options), words
