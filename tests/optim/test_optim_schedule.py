"""Learning rate schedules and gradient clipping: PyTorch's numbers, in graphs that are compiled once."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import optim
from helpers import error_of, evaluate
from optional import torch


def schedules(module: Any, **no_momentum: Any) -> list[Callable[[Any], Any]]:
    """Makers of the same schedules of dlsys.optim and of torch.optim.lr_scheduler."""
    return [
        lambda opt: module.LambdaLR(opt, lambda epoch: 1 / (1 + epoch)),
        lambda opt: module.StepLR(opt, step_size=7),
        lambda opt: module.StepLR(opt, step_size=1, gamma=0.9),
        lambda opt: module.LinearLR(opt),
        lambda opt: module.LinearLR(opt, start_factor=0.01, end_factor=0.5, total_iters=12),
        lambda opt: module.CosineAnnealingLR(opt, T_max=30),
        lambda opt: module.CosineAnnealingLR(opt, T_max=10, eta_min=0.01),
        lambda opt: module.ExponentialLR(opt, 0.95),
        lambda opt: module.OneCycleLR(opt, 2.0, total_steps=50, **no_momentum),
        lambda opt: module.OneCycleLR(opt, 2.0, None, 5, 11, **no_momentum),
        lambda opt: module.OneCycleLR(opt, 1.0, 60, pct_start=0.2, div_factor=5, final_div_factor=99, **no_momentum),
    ]


def test_schedules_follow_torch() -> None:
    fixed = {"cycle_momentum": False}
    pairs = zip(schedules(optim.lr_scheduler, **fixed), schedules(torch.optim.lr_scheduler, **fixed), strict=True)
    for ours, theirs in pairs:
        opt = optim.SGD([{"params": ad.Parameter([1.0])}, {"params": ad.Parameter([2.0]), "lr": 0.3}], lr=1.5)
        tensors = [torch.zeros(1, requires_grad=True) for _ in range(2)]
        reference = torch.optim.SGD([{"params": tensors[:1]}, {"params": tensors[1:], "lr": 0.3}], lr=1.5)
        schedule, expected = ours(opt), theirs(reference)
        for _ in range(50):
            found = [group.lr for group in opt.groups]
            assert found == schedule.get_last_lr()
            np.testing.assert_allclose(
                found, [group["lr"] for group in reference.param_groups], rtol=1e-9, atol=1e-15
            )
            reference.step()
            schedule.step()
            expected.step()


def test_the_one_cycle_leaves_the_momentum_and_says_so() -> None:
    """By default PyTorch's changes it with the rate."""
    opt = optim.SGD([ad.Parameter([1.0])], lr=1.0, momentum=0.9)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        schedule = optim.OneCycleLR(opt, 2.0, total_steps=10)
    told = "OneCycleLR: cycle_momentum=True has no effect: the momentum stays as it is"
    assert [str(one.message)[: len(told)] for one in caught] == [told]
    fixed = optim.OneCycleLR(optim.SGD([ad.Parameter([1.0])], lr=1.0), 2.0, total_steps=10, cycle_momentum=False)
    for _ in range(9):
        schedule.step(), fixed.step()
        assert schedule.get_last_lr() == fixed.get_last_lr() and opt.groups[0]["momentum"] == 0.9


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
    opt = optim.SGD([ad.Parameter([1.0])], lr=1.0)
    schedule = optim.CosineAnnealingLR(opt, T_max=10)
    for _ in range(4):
        schedule.step()
    again = optim.SGD([ad.Parameter([1.0])], lr=7.0)
    other = optim.CosineAnnealingLR(again, T_max=10)
    other.load_state_dict(schedule.state_dict())
    assert again.lr == opt.lr < 1
    other.step()
    schedule.step()
    assert again.lr == opt.lr
    opt.lr = 3.0  # by hand: a new schedule starts from here
    assert optim.StepLR(opt, 5).get_last_lr() == [3.0]


def test_clip_grad_norm() -> None:
    rng = np.random.default_rng(0)
    nodes = [ad.Variable("a"), ad.Variable("b")]
    values = [rng.standard_normal((3, 4)), rng.standard_normal(5)]
    norm = math.sqrt(sum((value**2).sum() for value in values))
    feed = dict(zip(nodes, values, strict=True))
    assert np.isclose(evaluate([optim.global_norm(nodes)], feed)[0], norm)
    for max_norm in (0.0, 1e-3, 1.0, norm / 2, norm * 2, 1e6):
        found = evaluate(optim.clip_grad_norm(nodes, max_norm), feed)
        for a, b in zip(found, values, strict=True):
            np.testing.assert_allclose(a, b * min(1, max_norm / (norm + 1e-6)), rtol=1e-9)
            assert max_norm < norm or (a == b).all()
    parameter = ad.Parameter(np.array([3.0, 4.0], "float32"))
    opt = optim.SGD([parameter], lr=1.0)
    clipped = optim.clip_grad_norm(ad.gradients(parameter * parameter, [parameter]), 5.0)
    ad.Executor([opt.update(clipped)]).run({})
    np.testing.assert_allclose(parameter.value, [0.0, 0.0], atol=1e-5)


@pytest.mark.slow
def test_mistakes_are_named() -> None:
    w = ad.Parameter(np.zeros((2, 3)), "W")
    opt = optim.SGD([w], lr=0.1)
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: optim.global_norm([]), "needs a list of one gradient or more"),
        (lambda: optim.clip_grad_norm([w * 1.0], -1.0), "max_norm must be a number >= 0"),
        (lambda: optim.clip_grad_norm([w], 1.0), "takes gradients, not parameters"),
        (lambda: optim.StepLR(w, 3), "StepLR: needs an optimizer, not Parameter"),  # type: ignore[arg-type]
        (lambda: optim.StepLR(opt, 0), "step_size must be an integer >= 1, not 0"),
        (lambda: optim.CosineAnnealingLR(opt, 2.5), "T_max must be an integer"),  # type: ignore[arg-type]
        (lambda: optim.LinearLR(opt, start_factor=0.0), "start_factor must be greater than 0"),
        (lambda: optim.OneCycleLR(opt, 1.0, cycle_momentum=False), "epochs must be an integer >= 1, not None"),
        (lambda: optim.LambdaLR(opt, [abs, abs]), "lr_lambda must be a function, not list"),
        (lambda: optim.StepLR(opt, 2).load_state_dict({}), 'a dictionary of "last_epoch" and "base_lrs"'),
    ]
    for call, expected in cases:
        text = error_of(dl.GraphError, call)
        assert expected in text, text
