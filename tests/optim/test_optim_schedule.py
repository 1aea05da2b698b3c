"""Learning rate schedules and gradient clipping: PyTorch's numbers, in graphs that are compiled once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from beside_torch import close
from dlsys import autodiff as ad
from dlsys import nn, optim
from dlsys.errors import GraphError
from helpers import error_of, evaluate
from optional import torch

ONE_CYCLE = [{"total_steps": 50}, {"epochs": 5, "steps_per_epoch": 11}, {"total_steps": 52, "pct_start": 0.4},
             {"total_steps": 60, "pct_start": 0.2, "div_factor": 5, "final_div_factor": 99}]  # fmt: skip
SCHEDULES: list[Callable[[Any, Any], Any]] = [  # of a module of schedules and an optimizer
    lambda m, opt: m.LambdaLR(opt, lambda epoch: 1 / (1 + epoch)),
    lambda m, opt: m.StepLR(opt, step_size=7),
    lambda m, opt: m.StepLR(opt, step_size=1, gamma=0.9),
    lambda m, opt: m.MultiStepLR(opt, [4, 30, 9, 9], gamma=0.5),
    lambda m, opt: m.LinearLR(opt),
    lambda m, opt: m.LinearLR(opt, start_factor=0.01, end_factor=0.5, total_iters=12),
    lambda m, opt: m.CosineAnnealingLR(opt, T_max=30),
    lambda m, opt: m.CosineAnnealingLR(opt, T_max=10, eta_min=0.01),
    lambda m, opt: m.ExponentialLR(opt, 0.95),
    lambda m, opt: m.SequentialLR(opt, [m.LinearLR(opt, 0.1, 1.0, 4), m.StepLR(opt, 5)], [4]),
    lambda m, opt: m.SequentialLR(
        opt, [m.ExponentialLR(opt, 0.9), m.LambdaLR(opt, lambda n: 1 / (n + 2)), m.StepLR(opt, 9)], milestones=[3, 20]
    ),
    *(lambda m, opt, words=words, kind=kind: m.OneCycleLR(
        opt, 2.0, anneal_strategy=kind, **words, **({} if m is optim.lr_scheduler else {"cycle_momentum": False})
    ) for words, kind in zip(ONE_CYCLE, ("cos", "cos", "linear", "cos"), strict=True)),
]  # fmt: skip


def optimizers() -> tuple[optim.Optimizer, Any]:
    """One of dlsys and one of PyTorch, of two groups with rates of their own."""
    found = []
    for library, make in ((optim, ad.Parameter), (torch.optim, torch.tensor)):
        values = [make([1.0]), make([2.0])]
        found.append(library.SGD([{"params": values[:1]}, {"params": values[1:], "lr": 0.3}], lr=1.5))
    return found[0], found[1]


def rates(optimizer: Any) -> np.ndarray:
    return np.array([group["lr"] for group in optimizer.param_groups])


def test_schedules_follow_torch() -> None:
    for make in SCHEDULES:
        opt, reference = optimizers()
        schedule, expected = make(optim.lr_scheduler, opt), make(torch.optim.lr_scheduler, reference)
        for _ in range(50):
            assert rates(opt).tolist() == schedule.get_last_lr()
            close(rates(opt), rates(reference))
            reference.step()
            schedule.step(), expected.step()


def test_a_schedule_begins_behind_the_last_epoch() -> None:
    makers: list[Callable[..., Any]] = [
        lambda module, opt, last: module.StepLR(opt, 3, 0.5, last),
        lambda module, opt, last: module.LambdaLR(opt, lambda n: 0.9**n, last_epoch=last),
        lambda module, opt, last: module.CosineAnnealingLR(opt, 10, last_epoch=last),
        lambda module, opt, last: module.ExponentialLR(opt, 0.8, last),
        lambda module, opt, last: module.LinearLR(opt, 0.5, 1.0, 9, last),
    ]
    for make in makers:
        opt, reference = optimizers()
        for last in (-1, 3):  # a run of four epochs, and another that goes on
            pair = make(optim.lr_scheduler, opt, last), make(torch.optim.lr_scheduler, reference, last)
            reference.step()
            for _ in range(4):
                close(rates(opt), rates(reference))
                pair[0].step(), pair[1].step()
            assert pair[0].last_epoch == pair[1].last_epoch


@pytest.mark.parametrize("options", [
    {}, {"mode": "max", "patience": 1}, {"threshold_mode": "abs", "threshold": 0.1, "patience": 0, "factor": 0.5},
    {"mode": "max", "threshold_mode": "abs", "patience": 2, "cooldown": 3, "min_lr": [0.1, 0.02]},
    {"threshold": 0.2, "patience": 1, "cooldown": 1, "min_lr": 1e-3, "eps": 1e-2},
])  # fmt: skip
def test_plateaus_follow_torch(options: dict[str, Any]) -> None:
    opt, reference = optimizers()
    ours = optim.ReduceLROnPlateau(opt, **options)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(reference, **options)
    for n, metric in enumerate(np.random.default_rng(0).standard_normal(80).cumsum() / 4):
        if n == 40:  # from a checkpoint
            state, ours = ours.state_dict(), optim.ReduceLROnPlateau(opt, **options)
            ours.load_state_dict(state)
        ours.step(dl.tensor(metric) if n % 2 else metric)
        theirs.step(metric)
        close(rates(opt), rates(reference))
        assert (ours.best, ours.num_bad_epochs) == (theirs.best, theirs.num_bad_epochs)
    assert opt.lr < 1.5 and ours.last_epoch == 80


def test_a_plateaus_metric_is_a_number() -> None:
    optimizer = optim.SGD([ad.Parameter([1.0])], lr=1.5)
    schedule = optim.ReduceLROnPlateau(optimizer, patience=0)
    for wrong in ("a", None, [1.0, 2.0], np.ones(2), dl.tensor([1.0, 2.0]), {}):
        error_of(GraphError, schedule.step, wrong)
        assert schedule.last_epoch == 0
    for metric in (2, math.nan, np.float32(3), math.inf):  # a run that diverges is one that became no better
        schedule.step(metric)
    assert schedule.best == 2 and optimizer.lr == pytest.approx(1.5e-3)


def test_schedule_reaches_the_kernels_and_compiles_nothing() -> None:
    parameter = ad.Parameter(np.zeros(2, "float32"))
    opt = optim.SGD([parameter], lr=1.0)
    schedule = optim.StepLR(opt, step_size=2, gamma=0.5)
    executor = ad.Executor([opt.minimize(parameter)])
    for expected in (-1.0, -2.0, -2.5, -3.0, -3.25):
        executor.run({})
        schedule.step()
        assert (parameter.value == expected).all()
    assert executor.compilations == 1


def test_schedule_goes_on_from_a_state_dict() -> None:
    opt, again = (optim.SGD([ad.Parameter([1.0])], lr=lr) for lr in (1.0, 7.0))
    schedule, other = (optim.CosineAnnealingLR(one, T_max=10) for one in (opt, again))
    for _ in range(4):
        schedule.step()
    other.load_state_dict(schedule.state_dict())
    assert again.lr == opt.lr < 1
    other.step(), schedule.step()
    assert again.lr == opt.lr
    opt.lr = 3.0  # by hand: a new schedule starts from here
    steps = optim.StepLR(opt, 1, 0.5)
    assert steps.get_last_lr() == [3.0]
    opt.add_param_group({"params": [ad.Parameter([2.0])], "lr": 8.0})  # which joins the schedule
    steps.step()
    assert steps.get_last_lr() == [1.5, 4.0]


def test_gradients_are_clipped_by_value() -> None:
    grads = [np.array([[0.5, -3.0], [math.inf, 1.0]], "float32"), np.array([2.0, -0.1]), np.zeros((0, 3), "float32")]
    own, theirs = [ad.Parameter(np.zeros_like(g)) for g in grads], [torch.tensor(np.zeros_like(g)) for g in grads]
    for p, q, g in zip(own, theirs, grads, strict=True):
        p.grad, q.grad = dl.tensor(g), torch.tensor(g)
    nn.utils.clip_grad_value_([*own, ad.Parameter([1.0])], 1)
    torch.nn.utils.clip_grad_value_(theirs, 1)
    for p, q in zip(own, theirs, strict=True):
        close(p.grad.numpy(), q.grad)
    optim.clip_grad_value_(own[1], 0.05)
    np.testing.assert_allclose(np.asarray(own[1].grad), [0.05, -0.05])


def test_gradients_are_clipped_by_their_norm() -> None:
    rng, nodes = np.random.default_rng(0), [ad.Variable("a"), ad.Variable("b")]
    values = [rng.standard_normal((3, 4)), rng.standard_normal(5)]
    norm = math.sqrt(sum((value**2).sum() for value in values))
    feed = dict(zip(nodes, values, strict=True))
    assert np.isclose(evaluate([optim.global_norm(nodes)], feed)[0], norm)
    own = [ad.Parameter(np.zeros_like(value)) for value in values]
    for max_norm in (0.0, 1e-3, norm / 2, norm * 2, 1e6):
        for parameter, value in zip(own, values, strict=True):
            parameter.grad = dl.tensor(value)
        assert np.isclose(float(optim.clip_grad_norm_(own, max_norm)), norm)
        for parameter, value in zip(own, values, strict=True):
            found = parameter.grad.numpy()
            np.testing.assert_allclose(found, value * min(1, max_norm / (norm + 1e-6)), rtol=1e-9)
            assert max_norm < norm or (found == value).all()
