"""Learning rate schedules and gradient clipping: PyTorch's numbers, in graphs that are compiled once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys import nn, optim
from dlsys.errors import GraphError
from helpers import error_of, evaluate
from optional import torch


def schedules(module: Any, **no_momentum: Any) -> list[Callable[[Any], Any]]:
    """Makers of the same schedules of dlsys.optim and of torch.optim.lr_scheduler."""
    return [
        lambda opt: module.LambdaLR(opt, lambda epoch: 1 / (1 + epoch)),
        lambda opt: module.StepLR(opt, step_size=7),
        lambda opt: module.StepLR(opt, step_size=1, gamma=0.9),
        lambda opt: module.MultiStepLR(opt, [4, 30, 9, 9], gamma=0.5),
        lambda opt: module.LinearLR(opt),
        lambda opt: module.LinearLR(opt, start_factor=0.01, end_factor=0.5, total_iters=12),
        lambda opt: module.CosineAnnealingLR(opt, T_max=30),
        lambda opt: module.CosineAnnealingLR(opt, T_max=10, eta_min=0.01),
        lambda opt: module.ExponentialLR(opt, 0.95),
        lambda opt: module.SequentialLR(opt, [module.LinearLR(opt, 0.1, 1.0, 4), module.StepLR(opt, 5)], [4]),
        lambda opt: module.SequentialLR(
            opt, [module.ExponentialLR(opt, 0.9), module.LambdaLR(opt, lambda n: 1 / (n + 2)), module.StepLR(opt, 9)],
            milestones=[3, 20],
        ),
        lambda opt: module.OneCycleLR(opt, 2.0, total_steps=50, **no_momentum),
        lambda opt: module.OneCycleLR(opt, 2.0, None, 5, 11, **no_momentum),
        lambda opt: module.OneCycleLR(opt, 2.0, 52, None, None, 0.4, "linear", **no_momentum),
        lambda opt: module.OneCycleLR(opt, 1.0, 60, pct_start=0.2, div_factor=5, final_div_factor=99, **no_momentum),
    ]


def test_schedules_follow_torch() -> None:
    theirs = schedules(torch.optim.lr_scheduler, cycle_momentum=False)
    pairs = zip(schedules(optim.lr_scheduler), theirs, strict=True)
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


def test_a_schedule_begins_behind_the_last_epoch() -> None:
    makers: list[Callable[..., Any]] = [
        lambda module, opt, last: module.StepLR(opt, 3, 0.5, last),
        lambda module, opt, last: module.LambdaLR(opt, lambda n: 0.9**n, last_epoch=last),
        lambda module, opt, last: module.CosineAnnealingLR(opt, 10, last_epoch=last),
        lambda module, opt, last: module.ExponentialLR(opt, 0.8, last),
        lambda module, opt, last: module.LinearLR(opt, 0.5, 1.0, 9, last),
    ]
    for make in makers:
        own = optim.SGD([ad.Parameter([1.0])], lr=1.5)
        theirs = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.5)
        for last in (-1, 3):  # a run of four epochs, and another that goes on
            pair = make(optim.lr_scheduler, own, last), make(torch.optim.lr_scheduler, theirs, last)
            theirs.step()
            for _ in range(4):
                np.testing.assert_allclose(own.lr, theirs.param_groups[0]["lr"], rtol=1e-9)
                pair[0].step(), pair[1].step()
            assert pair[0].last_epoch == pair[1].last_epoch


@pytest.mark.parametrize("options", [
    {}, {"mode": "max", "patience": 1}, {"threshold_mode": "abs", "threshold": 0.1, "patience": 0, "factor": 0.5},
    {"mode": "max", "threshold_mode": "abs", "patience": 2, "cooldown": 3, "min_lr": [0.1, 0.02]},
    {"threshold": 0.2, "patience": 1, "cooldown": 1, "min_lr": 1e-3, "eps": 1e-2},
])  # fmt: skip
def test_plateaus_follow_torch(options: dict[str, Any]) -> None:
    opt = optim.SGD([{"params": ad.Parameter([1.0])}, {"params": ad.Parameter([2.0]), "lr": 0.3}], lr=1.5)
    tensors = [torch.zeros(1, requires_grad=True) for _ in range(2)]
    reference = torch.optim.SGD([{"params": tensors[:1]}, {"params": tensors[1:], "lr": 0.3}], lr=1.5)
    ours = optim.ReduceLROnPlateau(opt, **options)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(reference, **options)
    for n, metric in enumerate(np.random.default_rng(0).standard_normal(80).cumsum() / 4):
        if n == 40:  # from a checkpoint
            state, ours = ours.state_dict(), optim.ReduceLROnPlateau(opt, **options)
            ours.load_state_dict(state)
        ours.step(dl.tensor(metric) if n % 2 else metric)
        theirs.step(metric)
        np.testing.assert_allclose(ours.get_last_lr(), [g["lr"] for g in reference.param_groups], rtol=1e-12)
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


def test_clip_grad_value() -> None:
    grads = [np.array([[0.5, -3.0], [math.inf, 1.0]], "float32"), np.array([2.0, -0.1]), np.zeros((0, 3), "float32")]
    own, theirs = [ad.Parameter(np.zeros_like(g)) for g in grads], [torch.zeros(g.shape) for g in grads]
    for p, q, g in zip(own, theirs, grads, strict=True):
        p.grad, q.grad = dl.tensor(g), torch.tensor(g).to(q.dtype)
    nn.utils.clip_grad_value_([*own, ad.Parameter([1.0])], 1)
    torch.nn.utils.clip_grad_value_(theirs, 1)
    for p, q in zip(own, theirs, strict=True):
        assert p.grad is not None and p.grad.dtype == p.dtype
        np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-7)
    optim.clip_grad_value_(own[1], 0.05)
    np.testing.assert_allclose(np.asarray(own[1].grad), [0.05, -0.05])


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
